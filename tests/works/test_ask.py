"""Tests for `voxbatch ask`: questions of a run or of a line, several recordings, long recordings, bad input."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorder, Voxbatch

import voxbatch as vb
from voxbatch.audio.ffmpeg import executable
from voxbatch.errors import ConfigError
from voxbatch.works.ask.answer_format import checked_schema, checked_tools

SCRIPTED = ("--engine", "scripted", "--log-format", "text")
TOOL = {
    "type": "function",
    "function": {"name": "open_door", "parameters": {"type": "object", "properties": {"floor": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """Write a manifest."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(out: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of the answers by id."""
    return {row["id"]: row for row in map(json.loads, (out / "transcripts.jsonl").read_text().splitlines())}


@pytest.fixture
def questions(tmp_path: Path, recording: Recorder) -> Path:
    """Return a manifest of eleven questions: of one, two and eight recordings, one of which is missing."""
    names = [recording(f"{i}.wav", seconds).name for i, seconds in enumerate((1, 2.5, 0.2, 14, 3, 1.5, 0.7, 2))]
    rows: list[dict[str, Any]] = [{"audio_filepath": name, "id": name} for name in names]
    rows += [
        {"audio_filepaths": names[:2], "id": "two", "prompt": "Who agrees?", "text": "a reference of the speech"},
        {"audio_filepaths": names, "id": "eight"},
        {"audio_filepaths": [names[0], "gone.wav", "also-gone.wav"], "id": "missing"},
    ]
    return write(tmp_path / "questions.jsonl", *rows)


def test_each_line_has_one_answer(questions: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Each line has an answer to its own prompt or that of the run, which is not scored against the reference of the
    speech; a line with a missing recording fails.
    """
    done = voxbatch("ask", questions, "--prompt", "Who speaks?", "-o", "out", *SCRIPTED)
    assert done.returncode == 3, done.stderr
    rows = answers(tmp_path / "out")
    assert rows["0.wav"]["answer"] == "Who speaks? [1 s]"
    assert rows["two"]["answer"] == "Who agrees? [1 s, 2.5 s]"
    assert rows["eight"]["answer"] == "Who speaks? [1 s, 2.5 s, 0.2 s, 14 s, 3 s, 1.5 s, 0.7 s, 2 s]"
    assert rows["eight"]["audio_filepaths"] == [str(tmp_path / f"{i}.wav") for i in range(8)]
    assert (rows["two"]["finish_reason"], rows["two"]["tool_calls"]) == ("stop", [])
    assert min(rows["two"]["prompt_tokens"], rows["two"]["completion_tokens"]) > 0
    assert rows["0.wav"]["prompt"] == "Who speaks?"
    reference, wer = rows["two"]["reference_text"], rows["two"]["wer"]
    assert (reference, wer, "text" in rows["two"]) == ("a reference of the speech", None, False)
    assert "WER" not in done.stdout
    [failure] = map(json.loads, (tmp_path / "out" / "failures.jsonl").read_text().splitlines())
    assert "gone.wav" in failure["message"]
    assert "also-gone" not in failure["message"]


@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.long), ("--map-reduce",)], ids=["whole", "map-reduce"]
)
def test_a_killed_run_resumes_with_the_same_bytes(
    options: tuple[str, ...], recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    names = [recording(f"{i}.wav", 0.5 + 7 * (i % 4)).name for i in range(12)]
    rows = write(tmp_path / "m.jsonl", *({"audio_filepath": name, "prompt": f"Question {name}"} for name in names))
    begin = ("ask", rows, *SCRIPTED, *options, "--engine-option", "max_chunk_s=20", "--part-items", "1")
    begin = (*begin, "--engine-option", "max_question_s=3600")
    assert voxbatch(*begin, "-o", "peace").returncode == (0 if options else 2)
    if not options:  # 21.5 s is refused before the engine is loaded; without these lines, the run begins
        kept = [json.loads(line) for line in rows.read_text().splitlines()]
        write(rows, *(row for i, row in enumerate(kept) if i % 4 != 3))
        assert voxbatch(*begin, "-o", "peace").returncode == 0
    for kill_after in (3, 4, 1):
        killed = voxbatch(*begin, "-o", "war", "--engine-option", f"kill_after={kill_after}", "--part-seconds", "0.01")
        assert killed.returncode == -9
    assert voxbatch(*begin, "-o", "war").returncode == 0
    peace, war = ((tmp_path / name / "transcripts.jsonl").read_bytes() for name in ("peace", "war"))
    assert peace == war
    assert peace.count(b"\n") == len(rows.read_text().splitlines())


def test_a_long_recording_is_asked_about_part_by_part(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    long, short = recording("long.wav", 40), recording("short.wav", 5)
    done = voxbatch(
        "ask", long, short, "--prompt", "What?", "--map-reduce", "-o", "out", *SCRIPTED, "--engine-option",
        "max_chunk_s=15",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = answers(tmp_path / "out")
    parts = rows["long.wav"]["answers_to_parts"]
    assert len(parts) >= 3
    assert all(part.startswith("What? [") for part in parts)
    assert all(f"Part {i} of {len(parts)}:\n{part}" in rows["long.wav"]["answer"] for i, part in enumerate(parts, 1))
    assert rows["long.wav"]["audio_duration"] == 40
    assert (rows["short.wav"]["answer"], rows["short.wav"]["answers_to_parts"]) == ("What? [5 s]", [])


def test_the_file_of_a_recording_that_is_too_long_fails_alone(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The header of a stream tells no length, so that the recording cannot be refused before the run."""
    wav, long, short = recording("long.wav", 40), tmp_path / "long.webm", recording("short.wav", 5)
    with long.open("wb") as stream:
        command = [executable(), "-v", "error", "-i", str(wav), "-f", "webm", "pipe:1"]
        subprocess.run(command, stdout=stream, check=True)
    done = voxbatch("ask", long, short, "--prompt", "What?", "-o", "out", *SCRIPTED)
    assert (done.returncode, set(answers(tmp_path / "out"))) == (3, {"short.wav"})
    assert "--map-reduce" in (tmp_path / "out" / "failures.jsonl").read_text()


BAD_LINES = {
    "no prompt": ({"audio_filepath": "a.wav"}, "has no `prompt`"),
    "empty prompt": ({"audio_filepath": "a.wav", "prompt": " "}, "`prompt` is ' '; it must be a text"),
    "prompt is a number": ({"audio_filepath": "a.wav", "prompt": 7}, "`prompt` is 7; it must be a text"),
    "nine recordings": ({"audio_filepaths": ["a.wav"] * 9, "prompt": "?"}, "names 9 recordings"),
    "no recordings": ({"audio_filepaths": [], "prompt": "?"}, "must be a list of 1 to 8 paths"),
    "a path that is no text": ({"audio_filepaths": ["a.wav", 3], "prompt": "?"}, "must be a string"),
    "an offset for two": ({"audio_filepaths": ["a.wav"] * 2, "offset": 1, "prompt": "?"}, "`offset` belongs to one"),
    "two keys": ({"audio_filepath": "b.wav", "audio_filepaths": ["a.wav"], "prompt": "?"}, "which differ"),
    "too long by the manifest": ({"audio_filepath": "a.wav", "duration": 99, "prompt": "?"}, "1.6 minutes"),
    "too long by the header": ({"audio_filepath": "long.wav", "prompt": "?"}, "--map-reduce"),
    "too long together": ({"audio_filepaths": ["half.wav"] * 8, "prompt": "?"}, "has room for 2"),
}


@pytest.mark.parametrize(("row", "reason"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_refused_before_the_engine_loads(
    row: dict[str, Any], reason: str, recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    for name, seconds in (("a.wav", 1), ("b.wav", 1), ("long.wav", 40), ("half.wav", 28)):
        recording(name, seconds)
    good = {"audio_filepath": "a.wav", "prompt": "?", "id": "good"}
    manifest = write(tmp_path / "m.jsonl", good, row)
    refused = voxbatch("ask", manifest, "-o", "out", *SCRIPTED)
    assert refused.returncode == 2
    assert f"{manifest}: line 2: " in refused.stderr
    assert reason in refused.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_an_option_alone_asks_nothing(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """A run without a question is refused if its engine's options ask."""
    recording("a.wav", 1)
    manifest = write(tmp_path / "m.jsonl", {"audio_filepath": "a.wav"})
    refused = voxbatch("run", manifest, "-o", "out", *SCRIPTED, "--engine-option", "task=ask")
    assert refused.returncode == 2
    assert "engine option task=ask: it is for voxbatch ask" in refused.stderr


BAD_OPTIONS = {
    "an engine that cannot": (("--engine", "faster-whisper"), "cannot answer questions; take --engine vllm"),
    "two prompts": (("--translate-to", "fr"), "--prompt and --translate-to each give the question"),
    "no tokens": (("--max-tokens", "0"), "--max-tokens is 0; it must be from 1"),
    "hot": (("--temperature", "3"), "--temperature is 3; it must be from 0 to 2"),
    "no JSON": (("--json-schema", "no.json"), "is no JSON"),
    "tools of another shape": (("--tools", "schema.json"), "it must be a list of functions"),
    "both": (("--json-schema", "schema.json", "--tools", "tools.json"), "contradict each other"),
}


@pytest.mark.parametrize(("options", "reason"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_refused(
    options: tuple[str, ...], reason: str, recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    for name, content in (("no.json", "{"), ("schema.json", json.dumps(SCHEMA)), ("tools.json", json.dumps([TOOL]))):
        (tmp_path / name).write_text(content)
    engine = () if "--engine" in options else SCRIPTED
    refused = voxbatch("ask", recording("a.wav", 1), "--prompt", "?", "-o", "out", *options, *engine)
    assert refused.returncode == 2, refused.stderr
    assert reason in refused.stderr


def test_the_question_may_come_from_a_file_or_be_a_translation(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("Wer spricht?\n")
    audio = recording("a.wav", 1)
    for option, question in ((("--prompt-file", "prompt.txt"), "Wer spricht?"), (("--translate-to", "fr"), "French")):
        assert voxbatch("ask", audio, *option, "-o", f"out{option[0]}", *SCRIPTED).returncode == 0
        assert question in answers(tmp_path / f"out{option[0]}")["a.wav"]["prompt"]


def test_another_question_is_another_run(recording: Recorder, voxbatch: Voxbatch) -> None:
    audio = recording("a.wav", 1)
    assert voxbatch("ask", audio, "--prompt", "One?", "-o", "out", *SCRIPTED).returncode == 0
    for other in (("--prompt", "Two?"), ("--prompt", "One?", "--max-tokens", "7")):
        refused = voxbatch("ask", audio, *other, "-o", "out", *SCRIPTED)
        assert refused.returncode == 2, refused.stderr
    assert voxbatch("run", audio, "-o", "out", *SCRIPTED).returncode == 2


def test_shards_of_questions_give_the_bytes_of_one_run(questions: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    ask = ("ask", questions, "--prompt", "Who?", *SCRIPTED)
    voxbatch(*ask, "-o", "one")
    for shard in (1, 0, 2):
        voxbatch(*ask, "-o", "three", "--shard", f"{shard}/3")
    for name in ("transcripts.jsonl", "failures.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()


SUBMIT = ("submit", "gs://calls/m.jsonl", "--target", "cloudrun", "--project", "p", "--region", "r", "--tasks", "2")


def test_a_submitted_run_asks_the_same_question(voxbatch: Voxbatch) -> None:
    done = voxbatch(
        *SUBMIT, "--dry-run", "--ask", "--prompt", "Who?", "--max-tokens", "9", "--engine", "vllm",
        env={"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, _, body = done.stdout.partition("request ")
    arguments = json.loads(body[body.index("{") :])["overrides"]["containerOverrides"][0]["args"]
    assert arguments[:2] == ["ask", "gs://calls/m.jsonl"]
    assert arguments[4:] == ["--prompt", "Who?", "--max-tokens", "9", "--engine", "vllm"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--system", "Be brief."), "--system is an option of voxbatch ask; add --ask"),
        (("--ask", "--formats", "srt"), "--formats is an option of voxbatch run; leave it out"),
        (("--ask", "--json-schema", "schema.json"), "lies on this machine"),
    ],
)
def test_a_submission_that_no_job_could_start_is_refused(
    options: tuple[str, ...], reason: str, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    refused = voxbatch(*SUBMIT, "--dry-run", *options)
    assert refused.returncode == 2
    assert reason in refused.stderr


def test_run_passes_the_keys_of_questions_through(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    recording("a.wav", 1)
    row = {"audio_filepath": "a.wav", "prompt": 7, "answer": "mine"}
    assert voxbatch("run", write(tmp_path / "m.jsonl", row), "-o", "out", *SCRIPTED).returncode == 0
    [found] = answers(tmp_path / "out").values()
    assert (found["prompt"], found["answer"]) == (7, "mine")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "must be a list of functions in OpenAI's format, and not empty"),
        ('[{"name": "f"}]', 'function 1: it must be {"type": "function"'),
        (json.dumps([TOOL, TOOL]), "function 2: the name 'open_door' is given twice"),
        ('[{"function": {"name": "a b", "parameters": {"type": "object"}}}]', "`name` is 'a b'"),
        ('[{"function": {"name": "f", "parameters": {"type": "array"}}}]', "`parameters` of f must be"),
        ('[{"function": {"name": "f", "parameters": {"type": "object", "required": 3}}}]', "at required"),
    ],
)
def test_tools_of_another_shape_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"--tools t\.json") as refused:
        checked_tools(text, "t.json")
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["[1]", '{"topic": "weather"}', '{"type": "object", "required": 1}'])
def test_a_file_that_is_no_json_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--json-schema s.json: this is no JSON schema"):
        checked_schema(text, "s.json")


# ── from Python ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_python_asks_what_the_command_asks(questions: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The function's OUT has the bytes of the command's, and a call with the same arguments continues the run."""
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    asked = ("--prompt", "Who speaks?", "--system", "Be brief.", "--max-tokens", "50", "--seed", "3")
    done = voxbatch("ask", questions, *asked, "--json-schema", schema, "-o", "command", *SCRIPTED)
    assert done.returncode == 3, done.stderr
    given: dict[str, Any] = {"system": "Be brief.", "max_tokens": 50, "seed": 3, "engine": "scripted"}
    seen = list[int]()
    for _ in range(2):
        summary = vb.ask(
            questions, "Who speaks?", tmp_path / "python", json_schema=SCHEMA, **given,
            on_progress=lambda progress: seen.append(progress.done),
        )  # fmt: skip
        assert (summary.done, summary.failed) == (10, 1)
    assert max(seen) == 10
    for name in ("transcripts.jsonl", "failures.jsonl"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    found = {result.id: result.line for result in vb.read_results(tmp_path / "python")}
    assert found["two"]["answer"] == answers(tmp_path / "command")["two"]["answer"]
    with pytest.raises(vb.UsageError):
        vb.ask(questions, "Who listens?", tmp_path / "python", json_schema=SCHEMA, **given)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt": 5}, "option prompt is 5; it must be a string or None"),
        ({"prompt": " "}, "--prompt is empty"),
        ({"max_tokens": "9"}, "option max_tokens is '9'; it must be a whole number"),
        ({"language": "en"}, "option language: it is for transcripts"),
        ({"json_schema": {"type": {1}}}, "json_schema is no JSON"),
        ({"tools": [TOOL], "json_schema": SCHEMA}, "contradict each other"),
        ({"max_token": 5}, "option max_token: unknown"),
    ],
)
def test_python_refuses_what_the_command_refuses(questions: Path, options: dict[str, Any], reason: str) -> None:
    """A wrong argument is refused with what is allowed, before anything is asked."""
    with pytest.raises(ConfigError, match=re.escape(reason)):
        vb.ask(questions, **{"prompt": "Who?", "engine": "scripted", **options})
    assert not list(questions.parent.glob("*.voxbatch"))
