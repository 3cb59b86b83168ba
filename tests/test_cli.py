"""Tests for the command line: exit codes, exact messages, and no tracebacks."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml
from click.testing import CliRunner
from conftest import ManifestWriter, Recorder, Voxbatch, environment

import voxbatch as package
from voxbatch.audio.ffmpeg import executable, version
from voxbatch.cli import cli
from voxbatch.config import load_profile, profile_names
from voxbatch.output.layout import default_out

SCRIPTED = ("--engine", "scripted", "--log-format", "text")


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_version_and_help(voxbatch: Voxbatch) -> None:
    """`python -m voxbatch` runs the program under the name voxbatch."""
    assert voxbatch("--version").stdout == f"voxbatch, version {package.__version__}\n"
    shown = voxbatch("--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith("Usage: voxbatch [OPTIONS] COMMAND [ARGS]...\n")


SHARD_RULE = "give i/n, n from 1 to 99,999 and i from 0 to n-1, such as 0/16 for the first of sixteen"
SCRIPT_OPTIONS = (
    "concurrency, delay_s, die_after, fail_items, kill_after, load_s, max_answer_tokens, max_chunk_s, max_question_s, "
    "only_worker, shuffle, task, words, workers"
)
LISTEN = ("listen", "--subscription", "s", "--project", "p")
ELSEWHERE = ("--to", "cloudrun", "--region", "us-central1")
REFUSED = [
    (("run", "nope.jsonl"), "nope.jsonl: does not exist in "),
    (("run", "r1.wav"), "r1.wav: does not exist in "),
    (("run", "m.jsonl", "--engine", "x"), "engine 'x' is unknown; known are auto, faster-whisper, scripted"),
    (("run", "m.jsonl", "--formats", "srt,docx"), "--formats docx: unknown; known are srt, vtt, vtt-words, "),
    (("run", "m.jsonl", "--shard", "x"), f"--shard 'x' is not i/n; {SHARD_RULE}"),
    (
        ("run", "m.jsonl", "--shard", "4/4"),
        f"--shard '4/4': shards count from 0, so the last of 4 is 3/4; {SHARD_RULE}",
    ),
    (("run", "m.jsonl", "--limit", "0"), "Invalid value for '--limit': 0 is not in the range x>=1."),
    (("run", "m.jsonl", "--part-items", "0"), "part-items is 0; it must be at least 1"),
    (("run", "m.jsonl", "--part-seconds", "nan"), "part-seconds is nan; it must be at least 0.01"),
    (("run", "m.jsonl", "--profile", "x"), "profile 'x' is unknown; known are cpu"),
    (
        ("run", "m.jsonl", *SCRIPTED, "--engine-option", "x"),
        "Invalid value for '--engine-option': 'x': give NAME=VALUE",
    ),
    (
        ("run", "m.jsonl", *SCRIPTED, "--engine-option", "x=1"),
        f"engine option 'x' is unknown to scripted; known are {SCRIPT_OPTIONS}",
    ),
    (
        ("run", "m.jsonl", *SCRIPTED, "--engine-option", "delay_s=a"),
        "engine option delay_s='a': scripted takes a value of type float here",
    ),
    (
        ("run", "m.jsonl", *SCRIPTED, "--engine-option", "fail_items=a"),
        "engine option fail_items='a': scripted takes item indexes, such as 0,3",
    ),
    (
        ("run", "m.jsonl", *SCRIPTED, "--engine-option", "max_chunk_s=5"),
        (
            "engine options max_chunk_s=5, concurrency=8, workers=1: scripted takes a max_chunk_s from 14, a "
            "concurrency from 1 and workers from 1"
        ),
    ),
    (("run", "m.jsonl", "--workers", "x"), "Invalid value for '--workers': 'x': give auto or a number"),
    (("run", "m.jsonl", "--workers", "-1"), "workers is -1; it must be at least 0"),
    (
        ("run", "m.jsonl", *SCRIPTED, "--allow-outside", "--only-under", "."),
        "--allow-outside and --only-under contradict each other; give one of them",
    ),
    (("merge", "nope"), "Invalid value for 'OUT': Directory 'nope' does not exist."),
    (("profiles", "x"), "profile 'x' is unknown; known are cpu"),
    (("score", "m.jsonl"), "m.jsonl: line 1: has no `pred_text`; score takes a run's transcripts.jsonl"),
    (("score", "r0.wav"), "r0.wav: line 1: byte 0x"),
    (
        ("run", "m.jsonl", "--include", "*.wav"),
        "--include '*.wav' selects recordings of a folder, and m.jsonl is no",
    ),
    (
        ("run", "m.jsonl", "--anonymous", "--requester-pays"),
        "--anonymous and --requester-pays contradict each other: anonymous requests cannot be billed; give one",
    ),
    (("run", "https://me:secret@h/m.jsonl"), "https://h/m.jsonl: cannot be opened: it contains a user name or"),
    (("manifest", "https://h/x/"), "https://h/x/: is a folder of a web server, which cannot be listed; give a"),
    (("manifest", "m.jsonl"), "Invalid value for 'FOLDER': Directory 'm.jsonl' is a file."),
    (
        (*LISTEN, "-o", "gs://calls/in", "--prefix", "gs://calls/in/day/"),
        "gs://calls/in/day/ lies in gs://calls/in/, the -o OUT, where nothing is run: give another OUT",
    ),
    (
        (*LISTEN, "-o", "gs://calls", "--recordings", "gs://calls/in/"),
        "gs://calls/in/ lies in gs://calls/, the -o OUT",
    ),
    (
        (*LISTEN, "-o", "gs://out", "--recordings", "gs://calls/in/", "--batch-window", "nan"),
        "--batch-window is nan; give from 0 to 86400 seconds",
    ),
    (
        (*LISTEN, "-o", "gs://out", "--recordings", "gs://calls/in/", "--batch-window", "inf"),
        "--batch-window is inf; give from 0 to 86400 seconds",
    ),
    (
        (*LISTEN, "--allow-outside", "--only-under", "gs://calls/"),
        "--allow-outside and --only-under contradict each other; give one of them",
    ),
    (
        (*LISTEN, *ELSEWHERE, "-o", "here"),
        "-o here is a folder of this machine, which the job cannot see: give gs://… or s3://…",
    ),
    ((*LISTEN, *ELSEWHERE, "--tasks", "10001"), "tasks is 10,001; Cloud Run takes from 1 to 10,000"),
    ((*LISTEN, *ELSEWHERE, "--engine", "scripted"), "the speed of scripted on the machine of a task is unknown, so"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "message"), REFUSED, ids=[" ".join(command) for command, _ in REFUSED])
def test_invalid_usage_exits_with_2_and_writes_nothing(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    """Invalid usage, configuration and manifests exit with 2, with the reason in the last line, and write nothing."""
    manifest(0.1, text="one")
    extra = ("--log-format", "text") if command[0] in ("run", "listen") and "--log-format" not in command else ()
    done = voxbatch(*command, *extra)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.jsonl", "r0.wav"]


@pytest.mark.parametrize("command", ["merge", "status"])
def test_merge_and_status_report_a_folder_without_a_run(voxbatch: Voxbatch, tmp_path: Path, command: str) -> None:
    """merge and status report a folder without a run, with exit code 2."""
    done = voxbatch(command, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path}: no run was started there (it has no run.json)\n"


@pytest.mark.parametrize("change", [("items", "one"), ("shard", "x/1"), ("shard", 3), ("items", None), ("latency", [])])
def test_status_names_a_damaged_part(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, change: tuple[str, object]
) -> None:
    """Status names a part whose header is damaged, with the remedy and exit code 1, and shows no traceback."""
    manifest(1.1)
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 0
    (part,) = (tmp_path / "out/parts").rglob("*.jsonl")
    header, rest = part.read_text().split("\n", 1)
    part.write_text(json.dumps(json.loads(header) | dict([change])) + "\n" + rest)
    done = voxbatch("status", "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {part}: its first line is not a header")
    assert done.stderr.endswith(
        f"; delete this part and run again, so that its items are transcribed again: rm {part}\n"
    )
    assert done.stderr.count("\n") == 1


def test_validate_reports_bad_lines(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """validate reports a few bad lines one by one, with number, value and rule."""
    (tmp_path / "bad.jsonl").write_text(
        '{"audio_filepath": "a.wav"}\nx\n\n{"audio_filepath": 5}\n{"audio_filepath": "a.wav"}\n'
    )
    done = voxbatch("validate", "bad.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "Error: bad.jsonl: line 2: not JSON: Expecting value at column 1, near 'x'; write one JSON object a line",
        "bad.jsonl: line 4: `audio_filepath` is 5; it must be a string, the recording's path",
        "bad.jsonl: line 5: id 'a.wav' is also line 1's; give each line its own `id`",
    ]


def test_messages_hold_no_secret_of_an_address(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """No message holds a signature or a password: not of a line that cannot be parsed, and not of an argument."""
    secret = "7Kq2" * 30
    signed, login = f"https://h/a.wav?X-Goog-Signature={secret}", f"https://me:{secret}@h/a.wav"
    lines = [f'{{"audio_filepath": "{signed}', signed, login, f'["{signed}"]', f'{{"audio_filepath": "{login}"}}']
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines, f'{{"audio_filepath": "{signed[:-9]}" {signed}']))
    done = voxbatch("validate", "bad.jsonl", "--all")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, len(lines) + 1)
    for log_format in ("text", "json"):
        done.stderr += voxbatch("run", "bad.jsonl", "--log-format", log_format, "--engine", "scripted").stderr
    done.stderr += voxbatch("status", f"./{signed}").stderr + voxbatch("score", "bad.jsonl").stderr
    done.stderr += voxbatch("run", "bad.jsonl", "--workers", login).stderr
    assert "7Kq2" not in done.stderr
    assert "https://h/a.wav?…" in done.stderr
    assert "https://…@h" in done.stderr


def test_validate_prints_totals_of_a_valid_manifest(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """validate prints the items, hours, references and languages of a valid manifest."""
    manifest(0.1, 0.1, duration=1800, text="one", lang="en")
    done = voxbatch("validate", "m.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "m.jsonl: 2 items, all valid",
        "1.00 hours in the items that give a duration; 2 with a reference",
        "languages: en 2",
    ]


def test_run_prints_its_outcome(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A run prints the start of the transcripts, counts that add up, WER, RTFx, the model and the places of the
    outputs.
    """
    manifest(1.1, 1.1, None, text="w0 w1")
    done = voxbatch("run", "m.jsonl", *SCRIPTED, "--formats", "srt", "--model", "m")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[:4] == ["r0.wav: w0 w1", "r1.wav: w0 w1", "", "2 done + 1 failed = 3 items (1 AudioError)"]
    counts = "0 substitutions, 0 insertions, 2 deletions over 6 words; 1 without a transcript"
    assert lines[4] == f"WER 33.33%, 95 % interval 0.00% to 100.00% ({counts})"
    assert lines[5].startswith("texts compared by basic rules (Unicode ")
    assert lines[6] == "und: no language is known; if it is English, give --language en to `voxbatch score`"
    assert re.fullmatch(r"latency of a chunk: P50 \d\.\d\d s, P90 \d\.\d\d s, P95 \d\.\d\d s", lines[8])
    assert lines[9] == "engine scripted, model m (Apache-2.0; voxbatch)"
    out = tmp_path / "m.voxbatch"
    command = f"voxbatch run m.jsonl {' '.join(SCRIPTED)} --formats srt --model m"
    assert lines[10:] == [
        f"transcripts  {out}/transcripts.jsonl", f"failures     {out}/failures.jsonl",
        f"summary      {out}/summary.json", f"report       {out}/report.html", f"srt          {out}/srt/",
        f"1 failed: 1 no such file; mend them, and retry with: {command} --retry-failed all",
    ]  # fmt: skip


def test_unknown_keys_of_input_lines_are_in_output_lines(
    voxbatch: Voxbatch, tmp_path: Path, recording: Recorder
) -> None:
    """Every key of an input line is in the output line of a transcript or a failure. Paths are absolute there."""
    recording("a.wav", 1.1)
    given = [
        {"audio_filepath": "a.wav", "id": 7, "text": "w0", "mine": [{"é": None}], "duration": 1.1, "channel": 0},
        {"audio_filepath": "gone.wav", "x": 1.5},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    assert voxbatch("run", "m.jsonl", *SCRIPTED).returncode == 3
    (found,) = rows(tmp_path / "m.voxbatch" / "transcripts.jsonl")
    given = [{**row, "audio_filepath": f"{tmp_path}/{row['audio_filepath']}"} for row in given]
    expected = {"id": "7", "pred_text": "w0 w1", "audio_duration": 1.1, "engine": "scripted", "model": "count"}
    expected |= {"wer": 1.0, "insertions": 1, "substitutions": 0, "deletions": 0, "reference_length": 1}
    assert found.items() >= {**given[0], **expected, "warnings": [], "version": 1}.items()
    (failed,) = rows(tmp_path / "m.voxbatch" / "failures.jsonl")
    message = f"cannot open {tmp_path}/gone.wav: No such file or directory"
    assert failed == {
        **given[1], "lang": None, "id": "gone.wav", "line": 2, "error": "AudioError", "message": message,
        "retryable": False, "version": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_all_kinds_of_sources_give_the_same_texts(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A plain and a compressed manifest, standard input and a folder with references give the same texts; OUT is named
    after each source.
    """
    manifest(1.1, 2.1, text="w0 w1")
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress((tmp_path / "m.jsonl").read_bytes()))
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(2):
        os.link(tmp_path / f"r{i}.wav", folder / f"r{i}.wav")
        (folder / f"r{i}.txt").write_text("w0 w1\n")
    for source, out in (("m.jsonl", "m"), ("g.jsonl.gz", "g"), ("folder", "folder")):
        assert voxbatch("run", source, *SCRIPTED).returncode == 0
        assert [row["wer"] for row in rows(tmp_path / f"{out}.voxbatch" / "transcripts.jsonl")] == [0.0, 1.0]
    done = voxbatch("run", "-", *SCRIPTED, input=(tmp_path / "m.jsonl").read_text())
    assert done.returncode == 0
    outs = [tmp_path / f"{out}.voxbatch" for out in ("m", "g", "folder", "stdin")]
    places = {"audio_filepath", "size", "modified"}
    lines = [
        [{k: v for k, v in row.items() if k not in places} for row in rows(out / "transcripts.jsonl")] for out in outs
    ]
    assert all(each == lines[0] for each in lines)


def test_limit_runs_only_the_first_items(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """--limit runs only the first N items; later lines are not read."""
    path = manifest(0.5, 0.5, 0.5)
    with path.open("a") as file:
        file.write("no json\n")
    assert voxbatch("run", path, "--limit", "2", *SCRIPTED).returncode == 0
    assert [row["id"] for row in rows(tmp_path / "m.voxbatch" / "transcripts.jsonl")] == ["r0.wav", "r1.wav"]


AWKWARD = [
    "../../up",
    "/abs",
    "a/b",
    "a%2Fb",
    ".",
    "..",
    "con",
    "x" * 300,
    "é" * 200,
    "-rf",
    "new line".replace(" ", "\u00a0"),
]


@pytest.mark.slow
def test_files_of_unusual_ids_have_safe_names(voxbatch: Voxbatch, tmp_path: Path, recording: Recorder) -> None:
    """Unusual ids and a 244-byte file name give one file per item and format, all inside OUT and with valid lengths."""
    long = "n" * 240 + ".wav"
    given = [{"audio_filepath": recording("a.wav", 1.1).name, "id": each} for each in AWKWARD]
    given.append({"audio_filepath": recording(long, 1.1).name})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    before = set(tmp_path.rglob("*"))
    done = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--formats", "srt,vtt,txt,ctm,json")
    assert done.returncode == 0, done.stderr
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "out") for path in new)
    for extension in ("srt", "vtt", "txt", "ctm", "json"):
        files = [path for path in (tmp_path / "out" / extension).rglob("*") if path.is_file()]
        assert len(files) == len(given)
        assert all(len(os.fsencode(path.name)) <= 255 and path.suffix == f".{extension}" for path in files)


def test_no_control_character_reaches_the_terminal(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """Neither the name of OUT nor a transcript nor an error writes a control character to the terminal."""
    manifest(1.1, text="one")
    out = tmp_path / "evil\x1b[2J\x07\x9b"
    said = voxbatch("run", "m.jsonl", "-o", out, *SCRIPTED, "--log-format", "text")
    assert said.returncode == 0, said.stderr
    status = voxbatch("status", out)
    assert r"evil\x1b[2J\x07\x9b: 1 of 1 items committed" in status.stdout
    (out / "run.json").write_text("{")
    refused = voxbatch("status", out)
    shown = said.stdout + said.stderr + status.stdout + refused.stderr
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert r"evil\x1b[2J\x07\x9b/run.json" in refused.stderr


@pytest.mark.slow
def test_merge_status_and_score_agree(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """After one of two shards, status shows it and merge refuses; after both, merge adds formats and `score` agrees."""
    manifest(1.1, 1.1, text="w0 w1")
    voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--shard", "0/2")
    early = voxbatch("merge", "out")
    assert (early.returncode, early.stderr) == (
        1, f"Error: {tmp_path}/out: 1 of 2 items are not done yet; run again (each shard) to finish them\n",
    )  # fmt: skip
    status = voxbatch("status", "out").stdout.splitlines()
    assert status == ["out: 1 of 2 items committed, not finished", "shard 0/2: 1 item in 1 part, complete"]
    voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--shard", "1/2")
    found = json.loads(voxbatch("status", "out", "--json").stdout)
    assert (found["items"], found["committed"], found["finished"], len(found["shards"])) == (2, 2, True, 2)
    merged = voxbatch("merge", "out", "--formats", "vtt")
    assert merged.returncode == 0
    assert "2 done + 0 failed = 2 items" in merged.stdout
    assert len(list((tmp_path / "out" / "vtt").iterdir())) == 2
    scored = json.loads(voxbatch("score", "out/transcripts.jsonl").stdout)
    against = json.loads(voxbatch("score", "out/transcripts.jsonl", "--ref", "m.jsonl").stdout)
    assert (
        scored["words"] == against["words"] == json.loads((tmp_path / "out/summary.json").read_text())["score"]["words"]
    )


DAMAGE = [
    ("run.json", b"{}", "run.json was not written by this version of voxbatch; choose another OUT with -o"),
    ("summary.json", b"{", "summary.json is damaged; delete it and run again, so that it is written again from the "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content", "message"), DAMAGE, ids=[name for name, _, _ in DAMAGE])
def test_damaged_outputs_end_a_run_with_a_reason(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """A damaged file gives exit code 1 and a plain reason for run and merge. --overwrite repairs it, unless it is
    run.json: without it, nothing proves that voxbatch wrote the other files.
    """
    command = ("run", manifest(0.5), *SCRIPTED)
    voxbatch(*command)
    (tmp_path / "m.voxbatch" / name).write_bytes(content)
    for again in (command, ("merge", "m.voxbatch")):
        done = voxbatch(*again)
        assert done.returncode == 1
        assert f"rror: {tmp_path}/m.voxbatch/{message}" in done.stderr
        assert "Traceback" not in done.stderr
    done = voxbatch(*command, "--overwrite")
    assert done.returncode == (2 if name == "run.json" else 0)
    assert (tmp_path / "m.voxbatch" / "transcripts.jsonl").exists()


def test_dry_run_prints_an_estimate_and_writes_nothing(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A dry run prints items, hours, chunks, time and cost; it writes nothing and loads no model."""
    manifest(90, 45, None)
    done = voxbatch(
        "run", "m.jsonl", "--engine", "scripted", "--dry-run", "--expected-rtfx", "50", "--usd-per-hour", "3600"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "engine   scripted: asked for (model count)",
        "items    3",
        "audio    3:22, 3 of them by the headers of a sample",
        "chunks   at least 8",
        "time     about 4.0 s at RTFx 50",
        "cost     about $4.05 at $3600 an hour, without the start of the machine",
        f"outputs  {tmp_path}/m.voxbatch",
    ]
    assert not (tmp_path / "m.voxbatch").exists()


def test_dry_run_says_that_durations_are_unknown(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """If no header tells a duration, a dry run gives neither a time nor a cost."""
    for name in ("a.m4a", "b.m4a"):
        (tmp_path / name).write_bytes(b"\0" * 1000)
    rates = ("--expected-rtfx", "50", "--usd-per-hour", "3600")
    done = voxbatch("run", ".", "-o", "out", "--engine", "scripted", "--dry-run", *rates)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:6] == [
        "items    2",
        "audio    2 items of unknown duration: the headers of a sample do not tell it",
        "chunks   at least 2",
        "time     unknown: give `duration` in the manifest",
        "cost     unknown: give `duration` in the manifest",
    ]


def test_names_that_are_not_utf8_are_written_to_the_outputs(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A manifest and an OUT whose names are not UTF-8 are recorded with the bytes escaped, and can be resumed."""
    manifest(0.5)
    name = os.fsdecode(b"m\xff.jsonl")
    (tmp_path / "m.jsonl").rename(tmp_path / name)
    for _ in range(2):
        done = voxbatch("run", name, *SCRIPTED, "--quiet")
        assert done.returncode == 0, done.stderr
    out = tmp_path / os.fsdecode(b"m\xff.voxbatch")
    for file in ("run.json", "summary.json"):
        assert b'"source": "m\\udcff.jsonl"' in (out / file).read_bytes()


def test_quiet_prints_nothing(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """--quiet prints nothing on either stream; the exit code shows whether items failed."""
    for seconds, code in (([0.5], 0), ([0.5, None], 3)):
        done = voxbatch("run", manifest(*seconds), "-o", f"out{code}", *SCRIPTED, "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "job"),
    [
        ((), "K_SERVICE"),
        (("--log-format", "json"), ""),
        (("--engine-option", "die_after=1"), "KUBERNETES_SERVICE_HOST"),
        (("--engine", "x"), "BATCH_TASK_INDEX"),
        (("--part-items", "0"), "CLOUD_RUN_JOB"),
        (("--part-items", "0", "--log-format", "json"), ""),
        (("--no-such-option",), "CLOUD_RUN_JOB"),
    ],
)
def test_each_log_line_of_a_job_is_a_json_event(
    voxbatch: Voxbatch, manifest: ManifestWriter, extra: tuple[str, ...], job: str
) -> None:
    """In a job of a platform that reads JSON, and with --log-format json, each line is an event with severity, time and
    message; errors are events, too.
    """
    done = voxbatch("run", manifest(0.5, None), "--engine", "scripted", *extra, env={job: "x"} if job else {})
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"severity", "time", "message"} <= event.keys() for event in events)
    assert events
    if done.returncode in (1, 2):
        assert (events[-1]["severity"], "text" in events[-1]) == ("ERROR", True)
    else:
        assert (events[-1]["message"], events[-1]["done"], events[-1]["failed"]) == ("run_finished", 1, 1)


@pytest.mark.slow
def test_last_event_has_the_figures_of_the_run(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The last event of a run has counts that add up, hours, speed and score. It is also written when no item was left
    and when other shards are still running.
    """

    def finished(*args: str) -> dict[str, object]:
        done = voxbatch("run", "m.jsonl", "-o", "out", "--engine", "scripted", "--log-format", "json", *args)
        events = [json.loads(line) for line in done.stderr.splitlines()]
        found: dict[str, object]
        (found,) = [event for event in events if event["message"] == "run_finished"]
        return found

    manifest(1.1, 2.1, None, text="w0 w1")
    first = finished("--shard", "0/2")
    assert (first["shard"], first["wer"], first["usd"]) == ("0/2", None, None)
    assert first["items"] == int(str(first["done"])) + int(str(first["failed"]))
    last = finished("--shard", "1/2")
    score = json.loads((tmp_path / "out" / "summary.json").read_text())["score"]
    assert (last["shard"], last["wer"]) == ("1/2", score["wer"])
    assert int(str(first["items"])) + int(str(last["items"])) == 3
    assert float(str(first["audio_s"])) + float(str(last["audio_s"])) == pytest.approx(3.2, abs=0.2)
    again = finished()
    expected = {"shard": "0/1", "items": 3, "done": 0, "failed": 0, "resumed": 3, "audio_hours": 0.0, "rtfx": None}
    assert again.items() >= {**expected, "wer": score["wer"], "engine_s": 0.0}.items()


def test_the_log_in_a_pipe_is_text(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """`voxbatch run … 2>&1 | tee log` shows text for people, without the figures for programs."""
    done = voxbatch("run", manifest(0.5, None), "--engine", "scripted", "--usd-per-hour", "1")
    assert done.returncode == 3
    assert done.stderr == "engine scripted: asked for; model count (Apache-2.0)\n"


def test_many_bad_lines_are_one_error_with_three_examples(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A manifest with thousands of bad lines gives a short error, and one event of a JSON log."""
    (tmp_path / "bad.jsonl").write_text("x\n" * 5000)
    done = voxbatch("run", "bad.jsonl", "--engine", "scripted")
    assert (done.returncode, done.stdout) == (2, "")
    bad = "not JSON: Expecting value at column 1, near 'x'; write one JSON object a line"
    assert done.stderr.splitlines() == [
        f"Error: bad.jsonl: line 1: {bad}", f"bad.jsonl: line 2: {bad}", f"bad.jsonl: line 3: {bad}",
        "bad.jsonl: … and 4,997 more bad lines; voxbatch validate --all lists them",
    ]  # fmt: skip
    done = voxbatch("run", "bad.jsonl", "--engine", "scripted", "--log-format", "json")
    (event,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (event["severity"], event["text"].count("\n")) == ("ERROR", 3)


@pytest.mark.parametrize("given", [("srt", "vtt"), ("SRT,vtt",), (".srt", ".VTT"), ("srt,", "vtt")])
def test_formats_are_read_as_people_write_them(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, given: tuple[str, ...]
) -> None:
    """Formats may be separated by spaces, written in capitals and with a dot, before and after SOURCE."""
    manifest(0.6)
    assert voxbatch("run", "--formats", *given, "m.jsonl", *SCRIPTED).returncode == 0
    assert voxbatch("run", "m.jsonl", *SCRIPTED, "-o", "out", "--formats", *given).returncode == 0
    for out in ("m.voxbatch", "out"):
        assert {path.name for path in (tmp_path / out).iterdir()} >= {"srt", "vtt"}


@pytest.mark.parametrize("command", [(), *((name,) for name in sorted(cli.commands))], ids=lambda c: " ".join(c) or "-")
def test_help_fits_into_80_columns(command: tuple[str, ...]) -> None:
    """No line of a help text is wider than a usual terminal, and the list of commands is not cut off."""
    done = CliRunner().invoke(cli, [*command, "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    assert command or "..." not in done.output.replace("ARGS]...", "")


def test_commands_name_the_next_step(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """A missing SOURCE, a missing command and a misspelt one say what to type."""
    manifest(0.1)
    assert "voxbatch run recordings/   a folder of recordings\n" in voxbatch("run").stderr
    assert "To begin: voxbatch run FOLDER" in voxbatch().stderr
    assert voxbatch("rum").stderr.endswith("Error: No such command 'rum'. Did you mean 'run'?\n")
    assert voxbatch("r0.wav").stderr.endswith(
        "Error: No such command 'r0.wav'. To transcribe it: voxbatch run r0.wav\n"
    )


@pytest.mark.slow
def test_flag_beats_environment_beats_profile_beats_default(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A flag has priority over a variable, a variable over the profile and the profile over the default. The resolved
    configuration is in the summary.
    """

    def planned(*args: str, **env: str) -> tuple[str, str]:
        shown = voxbatch("run", "m.jsonl", "--dry-run", *args, env=env).stdout.splitlines()
        return shown[0].split("(")[1], shown[4].split()[-1]

    manifest(1)
    assert planned("--engine", "scripted", "--expected-rtfx", "2") == ("model count)", "2")
    assert planned("--profile", "cpu")[1] == f"{load_profile('cpu')['expected_rtfx']:g}"
    assert planned("--profile", "cpu", VOXBATCH_EXPECTED_RTFX="7")[1] == "7"
    assert planned(VOXBATCH_PROFILE="cpu", VOXBATCH_EXPECTED_RTFX="7")[1] == "7"
    assert planned("--profile", "cpu", "--expected-rtfx", "9", VOXBATCH_EXPECTED_RTFX="7")[1] == "9"
    env = {
        "VOXBATCH_ENGINE": "scripted",
        "VOXBATCH_ENGINE_OPTION": "words=false delay_s=0.01",
        "VOXBATCH_FORMATS": "txt",
    }
    assert voxbatch("run", "m.jsonl", "--model", "mine", env=env).returncode == 0
    config = json.loads((tmp_path / "m.voxbatch" / "summary.json").read_text())["config"]
    assert (config["engine"], config["model"], config["formats"]) == ("scripted", "mine", ["txt"])
    assert config["engine_options"] == {"words": "false", "delay_s": "0.01"}


def test_profiles_are_listed_and_printed(voxbatch: Voxbatch) -> None:
    """`profiles` lists the profiles, and `profiles NAME` prints the resolved settings."""
    listed = voxbatch("profiles").stdout.splitlines()
    assert [line.split()[0] for line in listed] == profile_names()
    assert max(map(len, listed)) <= 100
    shown = yaml.safe_load(voxbatch("profiles", "cpu").stdout)
    assert (shown["engine"], "engine_arguments" in shown) == ("faster-whisper", False)
    shown = yaml.safe_load(voxbatch("profiles", "ctx512-batch").stdout)
    assert (shown["engine"], shown["engine_arguments"]["max_model_len"]) == ("vllm", 512)
    assert shown["longest_chunk_s"] == 35.12


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("-", "stdin.voxbatch"),
        ("/jobs/calls.jsonl.gz", "/jobs/calls.voxbatch"),
        ("/jobs/calls.JSON", "/jobs/calls.voxbatch"),
        ("gs://calls/m.jsonl", "gs://calls/m.voxbatch"),
        ("S3://calls/2026/m.jsonl.gz", "s3://calls/2026/m.voxbatch"),
        ("gs://calls/2026/day/", "gs://calls/2026/day.voxbatch"),
        ("gs://calls/2026-11-20/", "gs://calls/2026-11-20.voxbatch"),
        ("gs://calls/", "calls.voxbatch"),
        ("s3://calls", "calls.voxbatch"),
        ("https://host/jobs/m.jsonl?sig=a/b", "m.voxbatch"),
        ("https://host/?job=3", "host.voxbatch"),
        ("gs://", "root.voxbatch"),
    ],
)
def test_default_out_is_beside_the_source(source: str, out: str) -> None:
    """Outputs are placed beside the source, or in the current folder if that is impossible."""
    assert default_out(source) == out


def test_profiles_print_only_settings_of_profiles(voxbatch: Voxbatch) -> None:
    """`profiles NAME` prints only settings that a profile may set."""
    shown = yaml.safe_load(voxbatch("profiles", "cpu").stdout)
    assert {"only_under", "max_http_gb", "formats"} <= shown.keys()
    assert not {"source", "include", "anonymous", "s3_endpoint_url", "allow_private_addresses"} & shown.keys()


def test_include_and_store_options_can_be_variables(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """VOXBATCH_* variables set --include and the storage options, and an invalid value is refused before a source is
    opened.
    """
    for name in ("a.wav", "x/b.wav"):
        recording(f"calls/{name}", 0.1)
    done = voxbatch("validate", "calls", env={"VOXBATCH_INCLUDE": "b.* *.flac"})
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "calls: 1 item, all valid")
    done = voxbatch("validate", "none.jsonl", env={"VOXBATCH_MAX_HTTP_GB": "-1"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: max-http-gb is -1.0; it must be more than 0, and finite\n"


def test_manifest_of_a_folder_has_relative_paths_and_durations(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """Paths in the manifest of a folder are relative to it, durations are read from the headers, and --include selects
    files.
    """
    for name in ("a.wav", "x/b.wav"):
        recording(f"calls/{name}", 0.5)
    done = voxbatch("manifest", "calls", "--include", "x/*")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '{"audio_filepath": "x/b.wav", "duration": 0.5}\n'


def test_doctor_prints_one_line_per_finding(voxbatch: Voxbatch) -> None:
    """`doctor` prints one line per finding, with the default engine among them."""
    done = voxbatch("doctor")
    *rows, _, verdict = done.stdout.splitlines()
    found = {line.split()[1]: line.split()[0] for line in rows}
    assert verdict.startswith("ready: " if done.returncode == 0 else "not ready: ")
    assert found.keys() >= {"voxbatch", "python", "cores", "numpy", "ffmpeg", "gpu", "cuda", "vllm", "engine"}
    assert done.returncode == (0 if found["engine"] == "ok" else 1)
    assert f"ok       ffmpeg                 {version()}: {executable()}\n" in done.stdout


def test_doctor_names_the_remedy_for_a_missing_gpu_and_token(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`doctor` marks what a machine lacks without a GPU, with the remedy; that is no failure. A
    token is never printed.
    """
    env = {"HF_TOKEN": "", "HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = voxbatch("doctor", env=env)
    missing = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("missing")}
    assert missing.keys() >= {"gpu", "HF_TOKEN", "vllm-model"}
    assert "export HF_TOKEN=…" in missing["HF_TOKEN"]
    assert "hf download mistralai/Voxtral-Mini-4B-Realtime-2602" in missing["vllm-model"]
    done = voxbatch("doctor", env={**env, "HF_TOKEN": "hf_secret"})
    assert ("hf_secret" in done.stdout + done.stderr, "HF_TOKEN               set" in done.stdout) == (False, True)


def test_doctor_finds_the_default_model_in_the_hub_cache(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`doctor` finds the default model in the cache of the Hugging Face client."""
    repository = tmp_path / "hub" / "models--mistralai--Voxtral-Mini-4B-Realtime-2602"
    weights = repository / "snapshots" / "0" / "consolidated.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0")
    done = voxbatch("doctor", env={"HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""})
    assert "ok       vllm-model" in done.stdout


def test_ignored_entries_of_serving_properties_are_reported(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """Ignored entries of a serving.properties file are reported first; an invalid value ends the run with file and
    line.
    """
    file = tmp_path / "serving.properties"
    file.write_text("engine=Python\noption.max_modl_len=512\n")
    command = ("run", manifest(0.1), "--serving-properties", "serving.properties", "--log-format", "text")
    told = voxbatch(*command, "--dry-run", env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}).stderr.splitlines()
    assert told[0] == "serving.properties: without effect here: engine"
    assert told[1].startswith("Warning: serving.properties:2: option.max_modl_len is unknown and has no effect; the ")
    file.write_text("option.max_model_len=long\n")
    done = voxbatch(*command)
    assert (done.returncode, done.stdout) == (2, "")
    message = "serving.properties:1: option.max_model_len='long': it must be a whole number from 1"
    assert done.stderr == f"Error: {message}\n"


@pytest.mark.slow
def test_closed_pipe_ends_without_a_traceback(manifest: ManifestWriter, tmp_path: Path) -> None:
    """`voxbatch manifest … | head -1` ends without a traceback."""
    manifest(*[0.01] * 300)
    command = f"{sys.executable} -m voxbatch manifest . | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(manifest: ManifestWriter, tmp_path: Path) -> None:
    """A terminal shows the hours done, items, RTFx and remaining time in place; the outcome is on stdout."""
    manifest(*[2] * 20, duration=2)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "voxbatch", "run", "m.jsonl", "--engine", "scripted"]
    command += ["--engine-option", "delay_s=0.1", "--engine-option", "concurrency=1"]
    env = environment(TERM="xterm")
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True) as running:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # EIO: the other end is closed
                break
        assert running.stdout is not None
        outcome = running.stdout.read()
    os.close(ours)
    text = seen.decode()
    assert "engine scripted: asked for" in text
    assert " / 40.0 s audio · " in text
    assert " left" in text
    assert "20 done + 0 failed = 20 items" in outcome
    assert "{" not in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ("run", "m.jsonl", *SCRIPTED, "--overwrite", "--shard", "0/2"),
            "--overwrite by one of 2 shards",
        ),
        (("run", "m.jsonl", "--engine", "faster-whisper", "--log-format", "text", "--language", "de"), "knows only en"),
        (("merge", "m.voxbatch", "--formats", "xyz"), "--formats xyz: unknown; known are srt, vtt, vtt-words, "),
    ],
)
def test_refused_commands_keep_existing_outputs(
    voxbatch: Voxbatch, manifest: ManifestWriter, command: tuple[str, ...], message: str
) -> None:
    """Impossible or harmful commands are refused, and existing outputs stay."""
    manifest(0.5)
    assert voxbatch("run", "m.jsonl", *SCRIPTED).returncode == 0
    done = voxbatch(*command)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert "finished" in voxbatch("status", "m.voxbatch").stdout


def test_modules_in_the_current_folder_are_not_imported(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A resource.py in the folder of the data is not imported by the decoder processes."""
    (tmp_path / "resource.py").write_text("raise SystemExit('imported')")
    manifest(0.5)
    entry = "from voxbatch.cli import main; main()"
    command = [sys.executable, "-P", "-c", entry, "run", "m.jsonl", *SCRIPTED]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, "1 done + 0 failed = 1 item" in done.stdout) == (0, True), done.stderr


def test_forced_cuts_without_word_times_repeat_no_word(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Forced cuts do not overlap without word times, because words in the overlap could not be matched."""
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 70 * 16_000) * np.tile([1.0, 0.6], 35 * 16_000)
    soundfile.write(tmp_path / "noise.wav", noise * np.repeat(np.linspace(0.2, 1, 70), 16_000), 16_000)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "noise.wav"}\n')
    assert voxbatch("run", "m.jsonl", *SCRIPTED, "--engine-option", "words=false").returncode == 0
    words = json.loads((tmp_path / "m.voxbatch" / "transcripts.jsonl").read_text())["pred_text"].split()
    assert len(words) == len(set(words)) > 100


def test_merge_refuses_transcripts_that_do_not_match_the_parts(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """merge refuses a transcripts.jsonl that was changed, and keeps it. It is written again after its removal."""
    manifest(0.5, 0.5)
    voxbatch("run", "m.jsonl", *SCRIPTED)
    changed = tmp_path / "m.voxbatch" / "transcripts.jsonl"
    size = changed.stat().st_size
    changed.write_text("")
    done = voxbatch("merge", "m.voxbatch")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: {changed} was changed or damaged: it has 0 bytes, and the run's file has {size:,} and another "
        "checksum. Keep a copy if the change is yours; then remove the file and run again, so that it is written again "
        f"from the parts: rm {changed}\n"
    )
    changed.unlink()
    assert voxbatch("merge", "m.voxbatch").returncode == 0
    assert changed.stat().st_size == size


@pytest.mark.parametrize("language", [(), ("--language", "en")])
def test_score_of_a_run_is_its_own_score(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, language: tuple[str, ...]
) -> None:
    """`score OUT` gives the figures of summary.json, with the failed item as deletions; a file with transcripts only
    cannot know of it.
    """
    manifest(1.1, None, 2.2, text="w0, don't!")
    assert voxbatch("run", "m.jsonl", *SCRIPTED, *language).returncode == 3
    done = voxbatch("score", "m.voxbatch")
    score = json.loads(done.stdout)
    assert score == json.loads((tmp_path / "m.voxbatch" / "summary.json").read_text())["score"]
    assert (score["items"], score["missing"]) == (2, 1)
    assert "the run in m.voxbatch; 1 item of failures.jsonl count as deletions" in done.stderr
    assert json.loads(voxbatch("score", "m.voxbatch/transcripts.jsonl").stdout)["missing"] == 0
    assert json.loads(voxbatch("score", "m.voxbatch", "--ref", "m.jsonl").stdout)["missing"] == 1


def test_score_takes_rules_and_groups(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`score` compares by the rules that were asked for, and scores each value of each key; a wrong key is an error."""
    rows = [
        {"id": n, "text": "OK, Mr. Grey", "pred_text": "okay mister grey", "lang": "en", "speaker": "AB"[n % 2]}
        for n in range(4)
    ]
    (tmp_path / "h.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "words.tsv").write_text("ok\tokay\n")
    as_they_are = json.loads(voxbatch("score", "h.jsonl", "--normalizer", "none").stdout)
    assert as_they_are["words"]["substitutions"] == 12
    done = voxbatch("score", "h.jsonl", "--replace", "words.tsv", "--by", "speaker,id", "--cluster", "speaker")
    found = json.loads(done.stdout)
    assert (found["wer"], found["interval_by"]) == (0.0, "speaker")
    assert {key: list(values) for key, values in found["by"].items()} == {"speaker": ["A", "B"], "id": list("0123")}
    assert "replacements of words.tsv" in found["by_language"]["en"]["normalizer"]
    for options, reason in (
        (("--by", "speeker"), "no item with a reference has the key 'speeker'"),
        (("--cluster", "town"), "no item with a reference has the key 'town'"),
        (("--normalizer", "english", "--case"), "--normalizer english cannot be combined with --case"),
        (("--replace", "h.jsonl"), "h.jsonl: line 2: not JSON: Extra data"),
    ):
        refused = voxbatch("score", "h.jsonl", *options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr


def test_score_says_what_is_missing(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A run without references, a folder without a run, and lines without references say what to do."""
    manifest(1.1)
    voxbatch("run", "m.jsonl", *SCRIPTED)
    for path, reason in (
        ("m.voxbatch", "no item has a reference, so there is nothing to score; give --ref FILE, JSON lines with"),
        ("m.voxbatch/transcripts.jsonl", "no line has a reference: give `text` in its lines, or --ref FILE with"),
        (".", "no run was started"),
    ):
        done = voxbatch("score", path)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_output_lines_have_the_language_of_the_run(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """The language of the run is written to lines without one, so that the line gets the same score anywhere."""
    manifest(0.5)
    voxbatch("run", "m.jsonl", *SCRIPTED, "--language", "en")
    assert json.loads((tmp_path / "m.voxbatch" / "transcripts.jsonl").read_text())["lang"] == "en"


def test_manifest_gives_no_duration_of_an_mp3(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An MP3 gets no duration in a manifest: files may be concatenated, and the header describes only the first one."""
    for name in ("a.wav", "b.mp3"):
        soundfile.write(tmp_path / name, np.zeros(16_000), 16_000)
    rows = [json.loads(line) for line in voxbatch("manifest", tmp_path).stdout.splitlines()]
    assert [(row["audio_filepath"], row.get("duration")) for row in rows] == [("a.wav", 1.0), ("b.mp3", None)]
