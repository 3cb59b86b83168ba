"""Tests for odd, broken and hostile input in one run with a real model: each item ends as expected and affects no
other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, Voxbatch, environment

from voxbatch.scoring.counts import count_errors, tokens

DATA = Path(os.environ.get("VOXBATCH_TEST_DATA", ROOT.parent / "shared" / "data")) / "odd"
ROWS = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()] if DATA.is_dir() else []
MANIFESTS = sorted((DATA / "manifests").glob("*.jsonl")) if DATA.is_dir() else []
REPEATED = "jfk_repeated_100x.opus"
MAX_WER = 0.15
MAX_MEMORY = 1.5e9

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROWS, reason="the recordings for tests are absent: set VOXBATCH_TEST_DATA"),
    pytest.mark.timeout(600),
]


@dataclass(frozen=True)
class Ran:
    """Exit code, output and results of the run."""

    code: int
    out: str
    err: str
    peak: int
    """Bytes: the peak of the summed resident memory of the program and its children."""
    items: int
    transcripts: dict[str, dict[str, Any]]
    failures: dict[str, dict[str, Any]]


def made_here(folder: Path) -> Iterator[dict[str, Any]]:
    """Create recordings that cannot be shipped: links, a long name, a FIFO and a folder named like a file."""
    good = DATA / "pcm_s24.wav"
    text = next(row["text"] for row in ROWS if row["audio_filepath"] == "pcm_s24.wav")
    (folder / "link.wav").symlink_to(good)
    yield {"audio_filepath": "link.wav", "expect": "ok", "text": text}
    (folder / "loop1.wav").symlink_to("loop2.wav")
    (folder / "loop2.wav").symlink_to("loop1.wav")
    yield {"audio_filepath": "loop1.wav", "expect": "error"}
    long = "long" * 60 + ".wav"
    shutil.copyfile(good, folder / long)
    yield {"audio_filepath": long, "expect": "ok", "text": text}
    os.mkfifo(folder / "fifo.wav")
    yield {"audio_filepath": "fifo.wav", "expect": "error"}
    (folder / "folder.wav").mkdir()
    yield {"audio_filepath": "folder.wav", "expect": "error"}


def memory(process: psutil.Process) -> int:
    """Return the resident memory of a process and its children in bytes."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.fixture(scope="module", params=[8, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Transcribe the recordings: those that are damaged, and of the undamaged ones each eighth one or all."""
    folder = tmp_path_factory.mktemp("odd")
    good = [row for row in ROWS if row.get("text") and row["audio_filepath"] != REPEATED]
    some = [row for row in ROWS if row not in good or good.index(row) % request.param == 0]
    rows = [{**row, "id": row["audio_filepath"], "audio_filepath": str(DATA / row["audio_filepath"])} for row in some]
    repeated = next(row for row in rows if row["id"] == REPEATED)
    del repeated["text"]  # of all 18 minutes, which would take two minutes of a core
    repeated["duration"] = 60
    rows += made_here(folder)
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "voxbatch", "run", "m.jsonl", "--engine", "faster-whisper", "--allow-outside"]
    command += ["--formats", "srt,txt", "--log-format", "json"]
    command += ["--engine-option", "beam_size=1"]  # the exact words do not matter here
    with (
        open(folder / "stdout", "w+") as out,
        open(folder / "stderr", "w+") as err,
        subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=err) as running,
    ):
        process, peak = psutil.Process(running.pid), 0
        while running.poll() is None:
            try:
                peak = max(peak, memory(process))
            except psutil.NoSuchProcess:
                break
            time.sleep(0.2)
        running.wait()
        stdout, stderr = ((folder / name).read_text() for name in ("stdout", "stderr"))
    place = folder / "m.voxbatch"
    transcripts, failures = (_by_id(place / f"{name}.jsonl") for name in ("transcripts", "failures"))
    return Ran(running.returncode, stdout, stderr, peak, len(rows), transcripts, failures)


def _by_id(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row for row in found}


def everything(ran: Ran) -> dict[str, dict[str, Any]]:
    return {**ran.transcripts, **ran.failures}


def test_run_with_failed_items_exits_with_3_and_prints_counts(ran: Ran) -> None:
    """A run with failed items exits with 3, prints the counts, and ends every item once."""
    assert ran.code == 3, ran.err[-2000:]
    assert not set(ran.transcripts) & set(ran.failures)
    done, failed = len(ran.transcripts), len(ran.failures)
    assert done + failed == ran.items
    assert f"{done} done + {failed} failed = {ran.items} items" in ran.out


def test_stderr_has_only_events(ran: Ran) -> None:
    """Complaints of libraries about broken files do not reach the user."""
    assert "Traceback" not in ran.out + ran.err
    assert all("severity" in json.loads(line) for line in ran.err.splitlines())


def test_memory_stays_bounded(ran: Ran) -> None:
    """The memory of the program and all its processes, model included, stays within the limit."""
    print(f"peak {ran.peak / 1e6:.0f} MB")
    assert ran.peak <= MAX_MEMORY, f"{ran.peak / 1e6:.0f} MB"


def test_each_item_ends_as_expected(ran: Ran) -> None:
    """Each item ends as `expect` or `alt` of its row says."""
    wrong = []
    for name, row in everything(ran).items():
        ended = "error" if name in ran.failures else "ok" if row["pred_text"] else "empty"
        allowed = [row["expect"], *row.get("alt", "").replace("/", " ").replace("-", " ").split()]
        allowed = ["empty"] if name == "video_no_audio.mp4" else allowed  # no failure of a folder of videos
        if ended not in allowed and not (ended == "empty" and "ok" in allowed):
            wrong.append((name, ended, allowed, row.get("message")))
    assert not wrong


def test_failed_item_names_file_and_cause(ran: Ran) -> None:
    """A failed item has one of our error classes and a message of one line that names the file and the fault."""
    for name, row in ran.failures.items():
        assert row["error"] == "AudioError", row
        assert name.rpartition("/")[2] in row["message"], row
        assert "\n" not in row["message"]
        assert "decoder died" not in row["message"], row


def test_speech_is_transcribed_within_error_limit(ran: Ran) -> None:
    """Every row with a reference is transcribed within the error limit; a truncated one matches a prefix of it."""
    wrong = {}
    for name, row in ran.transcripts.items():
        if row.get("text"):
            references = [row["text"], row.get("alt_text", row["text"])]
            rate = min(count_errors(reference, row["pred_text"], "en").rate or 0 for reference in references)
            if rate > MAX_WER:
                wrong[name] = (round(rate, 3), row["pred_text"][:200], row["warnings"])
        elif "text_prefix_of" in row and prefix_rate(row["text_prefix_of"], row["pred_text"]) > MAX_WER:
            wrong[name] = (1.0, row["pred_text"], row["warnings"])
    assert not wrong


def prefix_rate(reference: str, text: str) -> float:
    """Return the word error rate against the best prefix of at least three words."""
    words = tokens(reference, "en")
    rates = [count_errors(" ".join(words[:n]), text, "en").rate or 0 for n in range(3, len(words) + 1)]
    return min(rates)


def test_silence_and_noise_give_no_text(ran: Ran) -> None:
    """Silence, noise and fragments give exactly no text."""
    heard = {name: row["pred_text"] for name, row in ran.transcripts.items() if row.get("text") == ""}
    assert heard
    assert set(heard.values()) == {""}


def test_repeated_sentence_is_transcribed_each_time(ran: Ran) -> None:
    """A sentence of 11 s that is spoken again and again is transcribed each time, within the errors of a tiny model."""
    text = ran.transcripts[REPEATED]["pred_text"].lower()
    assert 4 <= text.count("my fellow americans") <= 6


POLICY = "this manifest may name only recordings there"
EXPECTED = {
    "blank_lines_crlf_bom": {1: POLICY, 3: POLICY},
    "duplicates": {1: POLICY, 2: POLICY, 3: POLICY},
    "empty": {0: "no items: the manifest has no line that is not blank"},
    "latin1": {1: "is not UTF-8; save the file again as UTF-8"},
    "missing_key": {1: "has no `audio_filepath`, its keys: 'path'; rename `path` to `audio_filepath`"},
    "nan_duration": {1: "holds NaN", 2: "`duration` is -5", 3: "`duration` is 1e+308", 4: POLICY},
    "not_json": {1: "not JSON", 2: "not JSON"},
    "traversal": {1: POLICY, 2: POLICY, 3: POLICY, 4: "names the protocol concat:, and only files are allowed"},
    "truncated_last_line": {1: POLICY, 2: "ends within a JSON object"},
    "wrong_types": {
        1: "`audio_filepath` is 123", 2: "`audio_filepath` is null", 3: "is an array", 4: "is a string",
        5: "is a number, 42", 6: "is null",
    },
}  # fmt: skip
"""Reason for which each odd manifest is refused, by line; line 0 is the manifest as a whole."""


def bad_lines(path: Path, stderr: str) -> dict[int, str]:
    """Return the reasons in stderr by line number; 0 is the manifest as a whole."""
    found = {}
    for line in stderr.splitlines():
        where, _, reason = line.removeprefix("Error: ").removeprefix(f"{path}: ").partition(": ")
        is_line = where.startswith("line ")
        found[int(where.removeprefix("line ")) if is_line else 0] = reason if is_line else line
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_bad_manifest_exits_with_2_and_names_bad_lines(voxbatch: Voxbatch, tmp_path: Path, path: Path) -> None:
    """A bad manifest exits with 2 before a model is loaded or OUT is created, and names the first
    bad lines; `validate --all` names every bad line with its fault.
    """
    reasons, here = EXPECTED[path.stem], ("--only-under", path.parent)
    done = voxbatch("run", path, "-o", "out", *here, "--engine", "faster-whisper", "--log-format", "text")
    assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (2, "", False)
    shown = min(len(reasons), 3)
    assert len(bad_lines(path, done.stderr).keys() & reasons.keys()) == shown
    found = bad_lines(path, voxbatch("validate", "--all", path, *here).stderr)
    assert found.keys() == reasons.keys()
    assert all(reason in found[line] for line, reason in reasons.items()), found
