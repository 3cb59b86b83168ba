"""Tests for the process that reads headers: the same durations as in this process, and nothing that is worth taking."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from conftest import Recorder

from voxbatch.audio.waveforms import probe
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.process import confinement
from voxbatch.storage.errors import TransientError
from voxbatch.storage.recording import FileRecording


class Fetched(FileRecording):
    """Recording that is fetched while it is read."""

    is_file = False


class Unreachable(Fetched):
    """Recording whose place does not answer."""

    def pread(self, count: int, at: int) -> bytes:
        raise TransientError("no answer", since=0.0)


@pytest.fixture
def reader() -> Iterator[HeaderReader]:
    reader = HeaderReader()
    yield reader
    reader.close()


def opened(path: Path, kind: type[FileRecording] = Fetched) -> FileRecording:
    return kind(os.open(path, os.O_RDONLY))


def test_durations_are_those_of_this_process(reader: HeaderReader, tmp_path: Path) -> None:
    """Each format has the duration that this process reads, several recordings at a time; what is no audio has none."""
    paths = [tmp_path / f"a.{suffix}" for suffix in ("wav", "flac", "ogg", "mp3")]
    for seconds, path in enumerate(paths, 2):
        soundfile.write(path, np.zeros(16_000 * seconds), 16_000)
    (text := tmp_path / "text.wav").write_text("no audio")
    (empty := tmp_path / "empty.wav").write_bytes(b"")
    every = [*paths, text, empty] * 4
    with ThreadPoolExecutor(8) as threads:
        durations = list(threads.map(lambda path: reader(opened(path)), every))
    assert durations == [probe(opened(path), by_ffmpeg=False) for path in every]
    assert durations[:2] == [2, 3]


def test_the_process_has_no_secrets(reader: HeaderReader, recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no variable of a store or with a secret, and is confined where the kernel can."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/planted.json")
    assert reader(opened(recording("a.wav", 1))) == 1
    assert reader._child is not None
    process = psutil.Process(reader._child.pid)
    assert not {name for name in process.environ() if name.startswith(("AWS_", "GOOGLE_", "HF_", "CLOUDSDK_"))}
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert ("Seccomp:\t2" in status) is confinement.granted().seccomp


def test_an_unreachable_recording_is_told(reader: HeaderReader, recording: Recorder) -> None:
    """An error of the recording's place is raised in the parent, and the process reads the next header."""
    path = recording("a.wav", 1)
    with pytest.raises(TransientError, match="no answer"):
        reader(opened(path, Unreachable))
    assert reader(opened(path)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_is_replaced(
    reader: HeaderReader, recording: Recorder, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A header with which the process dies or hangs tells no duration, and the next one does."""
    path = recording("a.wav", 1)
    assert reader(opened(path)) == 1
    monkeypatch.setattr("voxbatch.decoding.header_reader.SILENCE_S", 1.0)
    assert reader._child is not None
    os.kill(reader._child.pid, number)
    if number == signal.SIGSTOP:
        assert reader(opened(path)) is None
    while not reader._child.has_ended():
        time.sleep(0.01)
    monkeypatch.undo()
    assert reader(opened(path)) == 1
