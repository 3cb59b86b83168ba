"""Tests that a run shows what it waits for: on a terminal, and in the events of a JSON log."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ManifestWriter, Starter, environment
from hub import serving

from voxbatch.errors import VoxbatchError
from voxbatch.storage import retry, waits
from voxbatch.storage.retry import RUN_START, Retries
from voxbatch.storage.waits import longest_wait

NOBODY = "http://127.0.0.1:9"
"""Address at which nobody listens: port 9 belongs to the discard protocol."""


def dead_manifest(folder: Path) -> Path:
    """Write a manifest of recordings on a host that refuses connections."""
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps({"audio_filepath": f"{NOBODY}/{i}.wav"}) + "\n" for i in range(3)))
    return path


def on_a_terminal(folder: Path, *arguments: str, **variables: str) -> Iterator[str]:
    """Yield all that a run has written to a terminal of 80 columns so far, and end the run when no more is wanted."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "voxbatch", "run", *arguments]
    env = environment(**{"TERM": "xterm", "COLUMNS": "80", "VOXBATCH_ENGINE": "scripted", **variables})
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=theirs) as running:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
                yield re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))
        except OSError:  # EIO: the other end is closed
            pass
        finally:
            running.kill()
            os.close(ours)


@pytest.mark.slow
def test_terminal_shows_a_host_that_does_not_answer(tmp_path: Path) -> None:
    """The place, the number of the attempt and the time are shown while the requests are retried."""
    dead_manifest(tmp_path)
    options = ("m.jsonl", "--allow-outside", "--allow-private-addresses")
    expected = re.compile(rf"waiting: {NOBODY}/ does not answer \(attempt \d+ of 12, for \d+ s\)")
    assert any(expected.search(seen) for seen in on_a_terminal(tmp_path, *options))


def test_terminal_shows_the_bytes_of_a_download(manifest: ManifestWriter, base_model: Path, tmp_path: Path) -> None:
    """The download of a model is shown with its bytes, in one line that changes."""
    manifest(1.0)
    variables = {"VOXBATCH_ENGINE": "faster-whisper", "CUDA_VISIBLE_DEVICES": ""}
    with serving({"Systran/faster-whisper-base": base_model}, tmp_path / "hf", seconds_per_block=0.1) as hub:
        shown = on_a_terminal(tmp_path, "m.jsonl", "--model", "base", **hub.environment, **variables)
        expected = re.compile(r"waiting: downloading Systran/faster-whisper-base: [1-9]\d* of 145 MB")
        seen = next(seen for seen in shown if expected.search(seen))
    log = [line for line in seen.splitlines() if line.startswith("downloading ")]
    assert len(log) <= 1


@pytest.mark.slow
def test_terminal_shows_that_the_model_is_loading_and_an_estimated_total(
    manifest: ManifestWriter, tmp_path: Path
) -> None:
    """While the engine loads its model, the terminal says so. The headers of a folder's recordings are read during the
    run, so that a total is shown before any is finished.
    """
    manifest(*[2.0] * 20)
    total = "0.0 s / about 40.0 s audio · 0 / 20 items"
    shown = on_a_terminal(tmp_path, ".", "--engine-option", "load_s=600")
    assert any("waiting: the model is loading" in seen and total in seen for seen in shown)


def test_json_events_tell_what_the_run_waits_for(start: Starter, tmp_path: Path) -> None:
    """The progress events name the host that does not answer."""
    running = start(
        "run", dead_manifest(tmp_path), "--allow-outside", "--allow-private-addresses", "--engine", "scripted",
        "--log-format", "json",
    )  # fmt: skip
    assert running.stderr is not None
    event = next(e for e in map(json.loads, running.stderr) if e["message"] == "progress" and e["waiting"])
    assert event["waiting"].startswith(f"{NOBODY}/ does not answer (attempt ")
    assert event["text"].endswith(f"waiting: {event['waiting']}")


def test_a_call_that_is_retried_is_known_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait of a call is known after its first failure, the longest first, and forgotten at its end."""
    monkeypatch.setenv("VOXBATCH_NO_WAIT", "1")
    now, shown = time.monotonic(), list[str]()
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    for module in (retry, waits):
        monkeypatch.setattr(module, "time", clock)

    def fail(times: int, place: str, first: Callable[[], None] = lambda: None) -> None:
        """Call what fails so many times. Before its last attempt, call `first`. Note the waits before each attempt."""
        retries = Retries(RUN_START, place)

        def attempt() -> None:
            shown.append(str(longest_wait()))
            if retries.failed == times:
                return first()
            raise VoxbatchError

        retries.call(attempt, lambda error: isinstance(error, VoxbatchError))

    def fail_twice() -> None:
        nonlocal now
        now += 0.01
        fail(2, "gs://b/")

    fail(1, "gs://a/", fail_twice)
    a, b = ("gs://a/ does not answer (attempt 2 of 20, for 0 s)", "gs://b/ does not answer (attempt 3 of 20, for 0 s)")
    assert shown == ["None", a, a, a, a]
    assert longest_wait() is None
    shown.clear()
    fail(2, "gs://b/")
    assert shown == ["None", b.replace("3 of", "2 of"), b]
