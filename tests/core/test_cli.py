"""Tests for the command line: exit codes, exact messages, and no tracebacks."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import soundfile
import yaml
from click.testing import CliRunner
from conftest import ManifestWriter, Recorder, Voxbatch, environment

from voxbatch.audio.ffmpeg import executable, version
from voxbatch.cli import cli
from voxbatch.cli.commands import MODULES
from voxbatch.cli.options import unknown_variables
from voxbatch.formats import WRITERS
from voxbatch.profiles import load_profile, profile_names
from voxbatch.settings import SWITCHES

SCRIPTED = ("--engine", "scripted", "--log-format", "text")


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SHARD_RULE = "give i/n, n from 1 to 99,999 and i from 0 to n-1, such as 0/16 for the first of sixteen"
SCRIPT_OPTIONS = (
    "concurrency, confidence, crash_items, crash_signal, delay_s, die_after, end_after, fail_items, hold, hold_after, "
    "kill_after, load_error, load_s, lose_items, max_answer_tokens, max_chunk_s, max_question_s, misplace, "
    "misplace_items, notices, only_worker, own_process, raise_error, raise_items, says, shuffle, task, words, workers"
)
OPTION = "run m.jsonl --engine scripted --engine-option"
LISTEN = "listen --subscription s --project p"
ELSEWHERE = f"{LISTEN} --to cloudrun --region us-central1"
REFUSED = {
    "run m.jsonl --shard x": f"--shard 'x' is not i/n; {SHARD_RULE}",
    "run m.jsonl --shard 4/4": f"--shard '4/4': shards count from 0, so the last of 4 is 3/4; {SHARD_RULE}",
    "run m.jsonl --limit 0": "Invalid value for '--limit': 0 is not in the range x>=1.",
    f"{OPTION} x": "Invalid value for '--engine-option': 'x': give NAME=VALUE",
    f"{OPTION} x=1": f"engine option 'x' is unknown to scripted; known are {SCRIPT_OPTIONS}",
    "run m.jsonl --allow-outside --only-under .": (
        "--allow-outside and --only-under contradict each other; give one of them"
    ),
    "score m.jsonl": "m.jsonl: line 1: has no `pred_text`; give a run's transcripts.jsonl",
    "manifest m.jsonl": "m.jsonl: is neither a folder nor a feed (RSS, Atom); give one of them",
    f"{LISTEN} -o gs://calls/in --prefix gs://calls/in/day/": (
        "gs://calls/in/day/ lies in gs://calls/in/, the -o OUT, where nothing is run: give another OUT"
    ),
    f"{LISTEN} -o gs://calls --recordings gs://calls/in/": "gs://calls/in/ lies in gs://calls/, the -o OUT",
    f"{LISTEN} -o gs://out --recordings gs://calls/in/ --batch-window nan": (
        "--batch-window is nan; give from 0 to 86400 seconds"
    ),
    f"{ELSEWHERE} -o here": "-o here is a folder of this machine, which the job cannot see: give gs://… or s3://…",
    f"{ELSEWHERE} --engine scripted": "the speed of scripted on the machine of a task is unknown, so",
}


@pytest.mark.parametrize(("command", "message"), REFUSED.items(), ids=REFUSED)
def test_invalid_usage_exits_with_2_and_writes_nothing(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, command: str, message: str
) -> None:
    """Invalid usage, configuration and manifests exit with 2, with the reason in the last line, and write nothing."""
    manifest(0.1, text="one")
    extra = ("--log-format", "text") if command.startswith(("run", "listen")) else ()
    done = voxbatch(*command.split(), *extra)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.jsonl", "r0.wav"]


@pytest.mark.parametrize("command", ["merge", "status"])
def test_merge_and_status_report_a_folder_without_a_run(voxbatch: Voxbatch, tmp_path: Path, command: str) -> None:
    """merge and status report a folder without a run, with exit code 2."""
    done = voxbatch(command, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path}: no run was started there (it has no run.json)\n"


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
    outputs; with -v also latencies and the rules of the score. Its score says that the failed item counts.
    """
    manifest(1.1, 1.1, None, text="w0 w1")
    done = voxbatch("run", "m.jsonl", *SCRIPTED, "--formats", "srt", "--model", "m")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[:4] == ["r0.wav: w0 w1", "r1.wav: w0 w1", "", "2 done + 1 failed = 3 items (1 not found)"]
    counts = "0 substitutions, 0 insertions, 2 deletions over 6 words; 1 without a transcript"
    assert lines[4] == f"WER 33.33%, 95 % interval 0.00% to 100.00% ({counts})"
    assert lines[5] == "und: no language is known; if it is English, give --language en to `voxbatch score`"
    assert lines[7] == "engine scripted, model m (Apache-2.0)"
    out = "m.voxbatch"
    command = f"voxbatch run m.jsonl {' '.join(SCRIPTED)} --formats srt --model m"
    assert lines[8:] == [
        f"transcripts  {out}/transcripts.jsonl", f"failures     {out}/failures.jsonl",
        f"summary      {out}/summary.json", f"report       {out}/report.html", f"srt          {out}/srt/",
        "1 failed:", "  r2.wav: No such file or directory",
        "1 not found: put the recordings in place", f"  then: {command} --retry-failed all",
    ]  # fmt: skip
    assert f"the run in {out}; 1 item of failures.jsonl count as deletions" in voxbatch("score", out).stderr
    verbose = voxbatch("run", "m.jsonl", *SCRIPTED, "--formats", "srt", "--model", "m", "--overwrite", "-v").stdout
    lines = verbose.splitlines()
    assert lines[5].startswith("texts compared by basic rules (Unicode ")
    assert re.fullmatch(r"latency of a chunk: P50 \d\.\d\d s, P90 \d\.\d\d s, P95 \d\.\d\d s", lines[8])
    assert lines[9] == "engine scripted, model m (Apache-2.0; voxbatch)"


def test_the_text_of_a_recording_goes_into_a_pipe(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A pipe gets the whole text and nothing else, and the outcome goes to standard error. --stdout takes any format,
    also of a manifest. A manifest and --quiet print no text by themselves.
    """
    recording("talk.wav", 12.2)
    recording("b.wav", 1.1)
    done = voxbatch("run", "talk.wav", *SCRIPTED)
    assert done.stdout == (tmp_path / "talk.voxbatch/txt/talk.txt").read_text() != ""
    assert "1 done + 0 failed = 1 item\n" in done.stderr
    subtitles = voxbatch("run", "talk.wav", *SCRIPTED, "--stdout", "srt")
    assert subtitles.stdout == (tmp_path / "talk.voxbatch/srt/talk.srt").read_text()
    several = voxbatch("run", "talk.wav", "b.wav", *SCRIPTED, "-o", "both")
    assert several.stdout == f"==> talk.wav <==\n{done.stdout}==> b.wav <==\nw0 w1\n"
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "b.wav"}\n')
    assert voxbatch("run", "m.jsonl", *SCRIPTED, "--stdout", "txt").stdout == "w0 w1\n"
    assert voxbatch("run", "m.jsonl", *SCRIPTED, "-v").stdout.startswith("b.wav: w0 w1\n")
    assert voxbatch("run", "talk.wav", *SCRIPTED, "-q").stdout == ""


def test_formats_of_recordings_and_of_manifests(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """Recordings and local folders get subtitles and a text; a manifest, and a run with --formats, what is given."""
    recording("folder/talk.wav", 1.1)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "folder/talk.wav"}\n')
    formats = {
        ("folder/talk.wav",): {"srt", "txt"},
        ("folder",): {"srt", "txt"},
        ("m.jsonl",): set(),
        ("folder/talk.wav", "--formats", "vtt"): {"vtt"},
        ("folder/talk.wav", "--formats", ""): set(),
        ("folder/talk.wav", "--beside"): {"srt"},
    }
    for number, (words, folders) in enumerate(formats.items()):
        assert voxbatch("run", *words, *SCRIPTED, "-o", f"out{number}").returncode == 0
        assert {path.name for path in (tmp_path / f"out{number}").iterdir()} & {*WRITERS} == folders


def test_help_is_short_and_help_all_has_everything(voxbatch: Voxbatch) -> None:
    """`run --help` has the options that most people need, and names --help-all, which has them all."""
    short, whole = voxbatch("run", "--help").stdout, voxbatch("run", "--help-all").stdout
    options = {
        name: re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
        for name, text in [("short", short), ("whole", whole)]
    }
    assert len(options["short"]) <= 18
    assert {"--help-all", "--help", "--formats", "--stdout"} < {*options["short"]} < {*options["whole"]}
    assert "--part-items" in whole


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
        **given[1], "lang": None, "id": "gone.wav", "line": 2, "error": "AudioError", "error_kind": "not_found",
        "message": message, "retryable": False, "version": 1,
    }  # fmt: skip


def test_a_recording_on_standard_input_is_refused(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """Standard input is a manifest. The command that the message gives instead works, and overwrites no recording."""
    with recording("talk.wav", 1.1).open("rb") as talk:
        done = voxbatch("run", "-", *SCRIPTED, stdin=talk)
    assert done.returncode == 2
    assert "standard input: is a recording or other binary data, not a manifest; give the file itself" in done.stderr
    (name,) = re.findall(r"COMMAND > (\S+) && voxbatch run \1$", done.stderr, re.MULTILINE)
    shutil.copy(tmp_path / "talk.wav", tmp_path / name)
    assert voxbatch("run", name, *SCRIPTED).stdout.startswith(f"{name}: w0 w1\n")


FLAGS = {
    (name, str(param.envvar)): param
    for name, command in cli.commands.items()
    for param in command.params
    if isinstance(param, click.Option) and param.is_flag and param.envvar
}
"""The flags of all commands that a variable sets, by the names of the command and of the variable."""


@pytest.mark.parametrize("flag", FLAGS, ids=" ".join)
def test_the_variable_of_each_flag_takes_the_same_words(flag: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Words for true set the flag, words for false are as if it was not there, and any other word is refused."""
    param, context = FLAGS[flag], click.Context(cli.commands[flag[0]])
    assert isinstance(param, click.Option)
    for word, is_on in SWITCHES.items():
        for text in (word, word.upper(), f" {word} "):
            monkeypatch.setenv(flag[1], text)
            value = param.value_from_envvar(context)
            assert value == (is_on if param.is_bool_flag else param.flag_value if is_on else None)
    for text in ("2", "-1", "y", "t", "maybe", "none"):
        monkeypatch.setenv(flag[1], text)
        with pytest.raises(click.BadParameter, match=rf"'{text}' is not one of true, 1, false, 0, yes, on, no, off"):
            param.value_from_envvar(context)
    monkeypatch.setenv(flag[1], "")
    assert param.value_from_envvar(context) is None


@pytest.mark.parametrize(
    ("variables", "videos"),
    [
        ({"MUX": "0"}, ""), ({"MUX": "false"}, ""), ({"BURN": "0"}, ""), ({"MUX": "1"}, "mux"),
        ({"BURN": "yes"}, "burn"), ({"MUX": "on", "BURN": "off"}, "mux"), ({"MUX": "0", "BURN": "1"}, "burn"),
    ],
)  # fmt: skip
def test_variables_of_the_copies_of_videos(
    variables: dict[str, str], videos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VOXBATCH_MUX=0 is as if it was not there, and so is VOXBATCH_BURN=0; a flag comes first."""
    for name, value in variables.items():
        monkeypatch.setenv(f"VOXBATCH_{name}", value)
    with cli.make_context("voxbatch", ["run"]) as program:
        command = cli.commands["run"]
        assert command.make_context("run", ["a.wav"], parent=program).params["videos"] == videos
        assert command.make_context("run", ["a.wav", "--burn"], parent=program).params["videos"] == "burn"


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that nothing reads is named, with the one that was perhaps meant."""
    assert unknown_variables(["VOXBATCH_FORMAT", "VOXBATCH_FOO", "VOXBATCH_XYZ", "VOXBATCH_MODEL", "HOME"]) == [
        "VOXBATCH_FOO is no variable of voxbatch; voxbatch run --help lists the options",
        "VOXBATCH_FORMAT is no variable of voxbatch; did you mean VOXBATCH_FORMATS?",
        "VOXBATCH_XYZ is no variable of voxbatch; voxbatch run --help lists the options",
    ]


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


def test_merge_and_status_follow_the_shards(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """After one of two shards, status shows it and merge refuses; after both, merge adds formats."""
    manifest(1.1, 1.1, text="w0 w1")
    voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--shard", "0/2")
    early = voxbatch("merge", "out")
    assert (early.returncode, early.stderr) == (
        1, f"Error: {tmp_path}/out: 1 of 2 items are not done yet; run again (each shard) to finish them\n",
    )  # fmt: skip
    status = voxbatch("status", "out").stdout.splitlines()
    assert status[:2] == ["out: 1 of 2 items committed, not finished", "1 done + 0 failed, WER 0.00%"]
    assert re.fullmatch(r"last commit \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", status[2])
    assert re.fullmatch(r"about 1.1 s of audio left, about \d.* of work, at the .* so far", status[3])
    resumes = "no process works on it; the same command resumes the run"
    assert status[4:] == ["shard 0/2: 1 item in 1 part, complete", resumes]
    voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--shard", "1/2")
    found = json.loads(voxbatch("status", "out", "--json", "--watch").stdout)  # a finished run is shown once
    assert (found["items"], found["committed"], found["finished"], len(found["shards"])) == (2, 2, True, 2)
    merged = voxbatch("merge", "out", "--formats", "vtt")
    assert merged.returncode == 0
    assert "2 done + 0 failed = 2 items" in merged.stdout
    assert len(list((tmp_path / "out" / "vtt").iterdir())) == 2


def test_damaged_run_file_ends_a_run_with_a_reason(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A damaged run.json gives exit code 1 and a plain reason for run and merge. --overwrite does not repair it:
    without it, nothing proves that voxbatch wrote the other files.
    """
    command = ("run", manifest(0.5), *SCRIPTED)
    voxbatch(*command)
    (tmp_path / "m.voxbatch" / "run.json").write_bytes(b"{}")
    message = "run.json was not written by this version of voxbatch; continue with the one that wrote it, or"
    for again in (command, ("merge", "m.voxbatch")):
        done = voxbatch(*again)
        assert done.returncode == 1
        assert f"rror: {tmp_path}/m.voxbatch/{message}" in done.stderr
        assert "Traceback" not in done.stderr
    assert voxbatch(*command, "--overwrite").returncode == 2
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
        "audio    about 3:22, 3 items by the headers of a sample",
        "chunks   at least 8",
        "time     about 4.0 s at RTFx 50",
        "cost     about $4.05 at $3600 an hour, without the start of the machine",
        f"outputs  {tmp_path}/m.voxbatch",
    ]
    assert not (tmp_path / "m.voxbatch").exists()


def test_dry_run_says_what_is_left_to_do_in_out(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A dry run counts the items that OUT lacks, and estimates their time alone. It says how the run would continue the
    one in OUT, or that the run would be refused, and changes nothing there."""

    def planned(*args: str) -> dict[str, str]:
        done = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--expected-rtfx", "50", "--dry-run", *args)
        assert (done.returncode, done.stderr) == (0, "")
        return {line[:9].strip(): line[9:] for line in done.stdout.splitlines()}

    manifest(1, None, 2)
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 3
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    plan = planned()
    assert (plan["before"], plan["items"]) == (
        "0 new; 2 done before, kept as they are; 1 failed before, not done again",
        "0 to do",
    )
    plan = planned("--retry-failed", "all")
    assert (plan["before"], plan["items"]) == (
        "2 done before, kept as they are; 1 failed before, done again",
        "1 to do",
    )
    assert ("before" in planned("--overwrite"), planned("--overwrite")["items"]) == (False, "3")
    assert planned("--model", "other")["before"].startswith(f"this run would be refused: {tmp_path}/out holds another")

    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    rows = [rows[0], rows[2] | {"lang": "de"}, rows[0] | {"id": "new", "duration": 0.75}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "add --update" in planned()["before"]
    plan = planned("--update")
    dropped = "1 failed before and no longer in the list, left out"
    assert plan["before"] == f"1 new; 1 done before, kept as they are; 1 changed; {dropped}"
    assert (plan["items"], plan["audio"]) == ("2 to do", "2.8 s, 1 item by the headers of a sample")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--update").returncode == 0
    assert planned("--update")["items"] == "0 to do"


def test_dry_run_plans_no_work_for_rows_that_keep_their_transcripts(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """Rows with another reference or another column are not transcribed again, so a dry run plans no time for them. A
    row with other audio is."""
    manifest(1, 1, 1, text="w0 w1", topic="a")
    command = ("run", "m.jsonl", "-o", "out", *SCRIPTED, "--update")
    assert voxbatch(*command).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    rows = [rows[0] | {"text": "w0 w9"}, rows[1] | {"topic": "b"}, rows[2] | {"duration": 0.75}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = voxbatch(*command, "--dry-run").stdout
    told = "2 changed items with the same audio and language: rows and scores are new, texts stay"
    assert f"before   0 new; 0 done before, kept as they are; 3 changed; {told}\nitems    1 to do\n" in plan
    assert told in voxbatch(*command).stderr


def test_dry_run_says_that_shards_cannot_change_the_list(voxbatch: Voxbatch, recording: Recorder) -> None:
    """A folder that has grown is refused in one of several shards; its dry run says so."""
    recording("a.wav", 1)
    assert voxbatch("run", ".", "-o", "out", *SCRIPTED).returncode == 0
    recording("b.wav", 1)
    command = ("run", ".", "-o", "out", *SCRIPTED, "--shard", "0/2")
    plan, done = voxbatch(*command, "--dry-run").stdout, voxbatch(*command)
    assert done.returncode == 2
    assert f"before   this run would be refused: {done.stderr.partition('Error: ')[2].rstrip()}\n" in plan


def test_dry_run_says_that_out_has_another_model(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The plan of a run that OUT refuses says so; that of its model, of --overwrite and of another OUT does not."""
    command = ("run", manifest(0.5), "--dry-run", "--model", "small")
    assert voxbatch(*command[:2], *SCRIPTED).returncode == 0
    place = f"outputs  {tmp_path}/m.voxbatch"
    told = f"{place}, which holds another run (model was count): give another OUT by -o"
    assert voxbatch(*command).stdout.splitlines()[-1] == told
    assert voxbatch(*command, "--overwrite").stdout.splitlines()[-1] == place
    assert voxbatch(*command[:3], *SCRIPTED).stdout.splitlines()[-1] == place
    assert voxbatch(*command, "-o", "other").stdout.splitlines()[-1] == "outputs  other"


def test_dry_run_counts_the_windows_of_short_recordings(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Each recording is padded by 5 s, whose encoder costs as much as 2 s of audio. So 10,000 recordings of 0.45 s take
    12 minutes on two cores, and not 3.
    """
    rows = ({"audio_filepath": f"https://host/{n}.wav", "duration": 0.45} for n in range(10_000))
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = voxbatch("run", "m.jsonl", "--dry-run", "--engine", "faster-whisper", "--expected-rtfx", "22.2")
    assert done.returncode == 0, done.stderr
    time = next(line for line in done.stdout.splitlines() if line.startswith("time"))
    assert time == "time     about 12:36 at RTFx 22.2, because each short recording is padded"


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
    for file in ("lists/00001.bin", "summary.json"):
        assert b'"source": "m\\udcff.jsonl"' in (out / file).read_bytes()


def test_quiet_prints_only_warnings(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """--quiet prints nothing but warnings, and a line if items failed."""
    failed = "1 of 2 items failed: see out3/failures.jsonl\n"
    for seconds, code, told in (([0.5], 0, ""), ([0.5, None], 3, failed)):
        done = voxbatch("run", manifest(*seconds), "-o", f"out{code}", *SCRIPTED, "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", told)
    (tmp_path / "out3" / "summary.json").write_bytes(b"{")
    warned = voxbatch("run", "m.jsonl", "-o", "out3", *SCRIPTED, "--quiet")
    assert (warned.returncode, warned.stdout) == (3, "")
    assert re.fullmatch(
        rf".*summary\.json is damaged; it is written again from the parts.*\n{re.escape(failed)}", warned.stderr
    )


@pytest.mark.parametrize(
    ("extra", "job"),
    [
        ((), "K_SERVICE"),
        (("--engine-option", "die_after=1"), "KUBERNETES_SERVICE_HOST"),
        (("--engine", "x"), "CLOUD_RUN_WORKER_POOL"),
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


@pytest.mark.parametrize("variable", ["CLOUD_RUN_JOB", "AWS_BATCH_JOB_ID", "KUBERNETES_SERVICE_HOST"])
def test_log_of_a_job_has_no_texts_and_no_names(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, variable: str
) -> None:
    """The log of a job has no transcripts and no names of recordings: neither of a manifest, nor of a single
    recording, nor of failures. The last event of a run with failed items is a warning with the kinds. --stdout prints
    the texts.
    """
    place = manifest(0.5, None)
    [name, missing] = [json.loads(line)["audio_filepath"] for line in place.read_text().splitlines()]
    for number, source in enumerate((place, tmp_path / name)):
        usual = ("--engine", "scripted", "-o", f"out{number}")
        done = voxbatch("run", source, *usual, env={variable: "x"})
        assert not re.search(rf"\b(w0|{re.escape(name)}|{re.escape(missing)})\b", done.stdout + done.stderr)
        assert json.loads(done.stderr.splitlines()[-1])["message"] == "run_finished"
        assert voxbatch("run", source, *usual, "--stdout", "txt", env={variable: "x"}).stdout.endswith("w0\n")
    done = voxbatch("run", place, "--engine", "scripted", "-o", "out0", env={variable: "x"})
    finished = json.loads(done.stderr.splitlines()[-1])
    assert (finished["severity"], finished["failures_by_kind"]) == ("WARNING", {"not_found": 1})


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
    assert (last["out"], last["shard"], last["wer"]) == ("out", "1/2", score["wer"])
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


@pytest.mark.parametrize("command", [(), *((name,) for name in sorted(MODULES))], ids=lambda c: " ".join(c) or "-")
def test_help_fits_into_80_columns(command: tuple[str, ...]) -> None:
    """No line of a help text is wider than a usual terminal, and the list of commands is not cut off."""
    done = CliRunner().invoke(cli, [*command, "--help"], terminal_width=78)  # click takes 2 of 80
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    assert command or "..." not in done.output.replace("ARGS]...", "")


def test_flag_beats_environment_beats_profile_beats_default(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A flag has priority over a variable, a variable over the profile and the profile over the default. The resolved
    configuration is in the summary.
    """

    def planned(*args: str, **env: str) -> tuple[str, str]:
        shown = voxbatch("run", "m.jsonl", "--dry-run", *args, env=env).stdout.splitlines()
        return shown[0].split("(")[1], shown[4].partition(",")[0].split()[-1]

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
    """`profiles` lists the profiles, and `profiles NAME` prints the resolved settings that a profile may set."""
    listed = voxbatch("profiles").stdout.splitlines()
    assert [line.split()[0] for line in listed] == profile_names()
    assert max(map(len, listed)) <= 100
    shown = yaml.safe_load(voxbatch("profiles", "cpu").stdout)
    assert (shown["engine"], "engine_arguments" in shown) == ("faster-whisper", False)
    assert {"only_under", "max_http_gb", "formats"} <= shown.keys()
    assert not {"source", "include", "anonymous", "s3_endpoint_url", "allow_private_addresses"} & shown.keys()
    shown = yaml.safe_load(voxbatch("profiles", "ctx512-batch").stdout)
    assert (shown["engine"], shown["engine_arguments"]["max_model_len"]) == ("vllm", 512)
    assert shown["longest_chunk_s"] == 35.12


def test_manifest_of_a_folder_has_relative_paths_and_durations(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """Paths in the manifest of a folder are relative to it, and --include selects files. Durations are read from the
    headers, but not from those of MP3: files may be concatenated, and the header describes only the first one.
    Without --include, a note says which files were left out.
    """
    for name in ("a.wav", "x/b.wav"):
        recording(f"calls/{name}", 0.5)
    soundfile.write(tmp_path / "calls/x/c.mp3", np.zeros(16_000), 16_000)
    (tmp_path / "calls/x/d.pcm").touch()
    advice = "to take them, name them in a list: voxbatch run @list.txt"
    assert voxbatch("manifest", "calls").stderr == f"left out 1 file of other kinds (1 .pcm); {advice}\n"
    done = voxbatch("manifest", "calls", "--include", "x/*")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '{"audio_filepath": "x/b.wav", "duration": 0.5}\n{"audio_filepath": "x/c.mp3"}\n'


def test_doctor_prints_one_line_per_finding(voxbatch: Voxbatch) -> None:
    """`doctor` prints one line per finding, with the default engine among them; and at the end the model to take."""
    done = voxbatch("doctor")
    listed, _, ending = done.stdout.partition("\n\n")
    rows, (verdict, *advice) = listed.splitlines(), ending.splitlines()
    if done.returncode == 0:
        assert [line.partition(": ")[0] for line in advice] == [
            "best model for English",
            "for other languages",
            "take it",
        ]
        assert advice[2].startswith("take it: voxbatch run FOLDER --quality best --language en")
    found = {line.split()[1]: line.split()[0] for line in rows}
    assert verdict.startswith("ready: " if done.returncode == 0 else "not ready: ")
    assert found.keys() >= {"voxbatch", "python", "cores", "numpy", "ffmpeg", "gpu", "cuda", "vllm", "engine"}
    assert done.returncode == (0 if found["engine"] == "ok" else 1)
    assert f"ok       ffmpeg                 {version()}: {executable()}\n" in done.stdout


def test_doctor_names_the_remedy_for_a_missing_gpu_and_token(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`doctor` marks what a machine lacks without a GPU, with the remedy; that is no failure. A token is never printed.
    The default model is found in the cache of the Hugging Face client.
    """
    env = {"HF_TOKEN": "", "HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = voxbatch("doctor", env=env)
    missing = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("missing")}
    assert missing.keys() >= {"gpu", "HF_TOKEN", "vllm-model"}
    assert "export HF_TOKEN=…" in missing["HF_TOKEN"]
    assert "hf download mistralai/Voxtral-Mini-4B-Realtime-2602" in missing["vllm-model"]
    repository = tmp_path / "hub" / "models--mistralai--Voxtral-Mini-4B-Realtime-2602"
    for file, content in (("snapshots/0/consolidated.safetensors", ""), ("refs/main", "0")):
        (repository / file).parent.mkdir(parents=True)
        (repository / file).write_text(content)
    done = voxbatch("doctor", env={**env, "HF_TOKEN": "hf_secret"})
    assert ("hf_secret" in done.stdout + done.stderr, "HF_TOKEN               set" in done.stdout) == (False, True)
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
    message = (
        "serving.properties:1: option.max_model_len='long': it must be a whole number from 1, such as 2048, "
        "2k (2000) or 2K (2048)"
    )
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


def test_score_takes_rules_and_groups(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`score` compares by the rules that were asked for, and scores each value of each key, in a table for people; a
    wrong key is an error."""
    rows = [
        {"id": n, "text": "OK, Mr. Grey", "pred_text": "okay mister grey", "lang": "en", "speaker": "AB"[n % 2]}
        for n in range(4)
    ]
    (tmp_path / "h.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "words.tsv").write_text("ok\tokay\n")
    as_they_are = json.loads(voxbatch("score", "h.jsonl", "--normalizer", "none", "--json").stdout)
    assert as_they_are["words"]["substitutions"] == 12
    done = voxbatch(
        "score", "h.jsonl", "--replace", "words.tsv", "--by", "speaker,id", "--cluster", "speaker", "--json"
    )
    found = json.loads(done.stdout)
    assert (found["wer"], found["interval_by"]) == (0.0, "speaker")
    assert {key: list(values) for key, values in found["by"].items()} == {"speaker": ["A", "B"], "id": list("0123")}
    assert "replacements of words.tsv" in found["by_language"]["en"]["normalizer"]
    note = "intervals by speaker; a row with one speaker has none"
    for command in (["score", "h.jsonl"], ["compare", "h.jsonl", "h.jsonl"]):
        clustered = voxbatch(*command, "--by", "speaker", "--cluster", "speaker")
        assert (clustered.returncode, clustered.stdout.splitlines().count(note)) == (0, 1), clustered.stderr
        assert "intervals by" not in voxbatch(*command, "--by", "speaker").stdout
    (tmp_path / "zh.jsonl").write_text('{"id": 9, "text": "你好", "pred_text": "你", "lang": "zh", "speaker": "B"}\n')
    with (tmp_path / "zh.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    assert voxbatch("score", "zh.jsonl", "--normalizer", "none", "--by", "speaker").stdout.splitlines()[:10] == [
        "               WER     95 % interval  sub  del  ins  words  items  missing",
        "all        100.00%  100.00 to 100.00   12    0    0     12      4        0",
        "en         100.00%  100.00 to 100.00   12    0    0     12      4        0",
        "speaker A  100.00%  100.00 to 100.00    6    0    0      6      2        0",
        "speaker B  100.00%  100.00 to 100.00    6    0    0      6      2        0",
        "",
        "              CER  95 % interval  sub  del  ins  characters  items  missing",
        "all        50.00%                   0    1    0           2      1        0",
        "zh         50.00%                   0    1    0           2      1        0",
        "speaker B  50.00%                   0    1    0           2      1        0",
    ]
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
    manifest(1.1, text="w0 w1", lang="en")
    voxbatch("run", "m.jsonl", "-o", "complete", *SCRIPTED)
    assert voxbatch("score", "complete").stderr == ""
