"""Tests for the commands that voxbatch advises: each of them does what its line says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from conftest import ManifestWriter, Recorder, Voxbatch

from voxbatch.cli.advice import command_with, other_out

SCRIPTED = ("--engine", "scripted")


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        (["my talks", "--overwrite", "-q"], ["--retry-failed"], "voxbatch run 'my talks' -q --retry-failed"),
        (["--retry-failed", "all", "all"], ["--update"], "voxbatch run all --update"),
        (["--retry-failed", "day"], ["--retry-failed", "all"], "voxbatch run day --retry-failed all"),
        (["all"], ["--retry-failed", "all"], "voxbatch run all --retry-failed all"),
        (["day", "--retry-failed=all"], ["--overwrite"], "voxbatch run day --overwrite"),
        (["day", "--out", "a", "--model=m"], ["--model", "base", "-o", "b"], "voxbatch run day --model base -o b"),
        (["https://host/m.jsonl?sig=ab12"], ["--update"], "voxbatch run … --update"),
        (["http://me:hush@host/"], ["--update"], "voxbatch run … --update"),
        (["m.jsonl", "--s3-endpoint-url=http://me:hush@host"], ["--update"], "voxbatch run … --update"),
    ],
)
def test_the_command_with_other_options(words: list[str], options: list[str], command: str) -> None:
    """The command is that of the run, quoted for a shell, with the new options in place of the old ones."""
    assert command_with(["x", "run", *words], *options) == command


def test_no_command_is_advised_for_another_program() -> None:
    """Only a run can be repeated."""
    assert command_with(["x", "merge", "out"], "--update") == ""


def test_another_out_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of another OUT is relative to the current folder, exists not yet, and is not that of another day, shard
    or folder."""
    monkeypatch.chdir(tmp_path)
    Path("calls-other.voxbatch").mkdir()
    others = {
        "gs://b/day.voxbatch/": "gs://b/day-other.voxbatch",
        "out": "out-other",
        "out-2": "out-2-other",
        "out-other": "out-other-2",
        "out/2026-11-20": "out/2026-11-20-other",
        "out/20261120": "out/20261120-other",
        "s3://b/day-7": "s3://b/day-7-other",
        "s3://b/day-7-other": "s3://b/day-7-other-2",
        str(tmp_path / "calls.voxbatch"): "calls-other-2.voxbatch",
        str(tmp_path / "calls-other.voxbatch"): "calls-other-2.voxbatch",
    }
    assert {out: other_out(out) for out in others} == others


def advised(text: str, before: str) -> list[str]:
    """Return the arguments of the command after some words."""
    (command,) = re.findall(rf"{before}: voxbatch (.*)$", text, re.MULTILINE)
    return shlex.split(command)


def test_each_command_for_a_refused_out_works(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A run with another setting names that setting, and offers another OUT and nothing that erases this one."""
    recording("talk.wav", 1.5)
    assert voxbatch("run", "talk.wav", *SCRIPTED).returncode == 0
    refused = voxbatch("run", "talk.wav", *SCRIPTED, "--language", "de")
    assert refused.returncode == 2
    assert "holds another run: language was not given, and is de now. " in refused.stderr
    assert "--overwrite" not in refused.stderr
    done = voxbatch(*advised(refused.stderr, "to keep both"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "talk-other.voxbatch" / "summary.json").exists()


@pytest.mark.parametrize("wrong", ["--verbose", "--version", "--overwrit", "--over", "--debug", "--dro"])
@pytest.mark.parametrize("command", ["run", "ask", "correct"])
def test_no_hint_names_an_option_that_deletes(voxbatch: Voxbatch, command: str, wrong: str) -> None:
    """A mistyped option is never answered with one that erases what somebody may still need."""
    refused = voxbatch(command, "talk.wav", wrong)
    assert refused.returncode == 2
    assert not re.search(r"--overwrite|--drop\b", refused.stderr), refused.stderr


def test_the_command_for_a_changed_manifest_works(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """A manifest whose lines have changed is continued by the command of the message."""
    assert voxbatch("run", manifest(1.5), *SCRIPTED).returncode == 0
    refused = voxbatch("run", manifest(1.5, 1.1), *SCRIPTED)
    assert "holds another run: the lines of the manifest differ (" in refused.stderr
    done = voxbatch(*advised(refused.stderr, "to continue it"))
    assert done.returncode == 0, done.stderr


def test_each_command_for_failures_works(
    voxbatch: Voxbatch, manifest: ManifestWriter, recording: Recorder, tmp_path: Path
) -> None:
    """The command for missing recordings, and that for recordings that are too long, end the failures. No command is
    shown where none can help.
    """
    manifest(1.5, None, 5.0, 1.0)
    (tmp_path / "r3.wav").write_text("no audio")
    done = voxbatch("run", "m.jsonl", *SCRIPTED, "--max-hours", "0.001")
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith(
        "1 not audio: nothing can be transcribed; move them away, or name the others by --include\n"
    )
    recording("r1.wav", 1.5)
    for before, failed in (("1 not found: .*\n  then", 2), ("1 too long: .*\n  then", 1)):
        again = voxbatch(*advised(done.stdout, before))
        assert f"+ {failed} failed = 4 items" in again.stdout, again.stderr
