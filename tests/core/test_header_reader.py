"""Tests for the process that reads headers: the same durations as in this process, and nothing that is worth taking."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from conftest import ROOT, Recorder

import voxbatch
from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.waveforms import probe
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.process import confinement
from voxbatch.runner import workload
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
    with HeaderReader() as reader:
        yield reader


@pytest.fixture
def brief_reader() -> Iterator[HeaderReader]:
    with HeaderReader(is_brief=True) as reader:
        yield reader


def opened(path: Path, kind: type[FileRecording] = Fetched) -> FileRecording:
    return kind(os.open(path, os.O_RDONLY))


@pytest.mark.parametrize("kind", [Fetched, FileRecording])
@pytest.mark.parametrize("certain", [False, True])
def test_durations_are_those_of_this_process(
    reader: HeaderReader, kind: type[FileRecording], certain: bool, tmp_path: Path
) -> None:
    """Each format has the duration that this process reads, several recordings at a time, fetched or on this machine;
    what is no audio has none. Two files in one have no certain duration.
    """
    paths = [tmp_path / f"a.{suffix}" for suffix in ("wav", "flac", "ogg", "mp3")]
    for seconds, path in enumerate(paths, 2):
        soundfile.write(path, np.zeros(16_000 * seconds), 16_000)
    (text := tmp_path / "text.wav").write_text("no audio")
    (empty := tmp_path / "empty.wav").write_bytes(b"")
    (joined := tmp_path / "joined.wav").write_bytes(paths[0].read_bytes() * 2)
    every = [*paths, text, empty, joined] * 4
    with ThreadPoolExecutor(8) as threads:
        durations = list(threads.map(lambda path: reader.seconds(opened(path, kind), certain), every))
    assert durations == [probe(opened(path, kind), certain) for path in every]
    assert durations[:2] == [2, 3]
    assert (durations[6] is None) is certain


def test_formats_of_ffmpeg_have_a_duration_unless_the_reader_is_brief(
    reader: HeaderReader, brief_reader: HeaderReader, recording: Recorder, tmp_path: Path
) -> None:
    """A format that only ffmpeg knows is asked of ffmpeg, which a brief reader does not start; nor does it call any
    length certain.
    """
    wav, path = recording("a.wav", 2), tmp_path / "a.mka"
    subprocess.run([executable(), "-loglevel", "error", "-i", str(wav), str(path)], check=True)
    assert reader.seconds(opened(path)) == pytest.approx(2, abs=0.1)
    assert brief_reader.seconds(opened(path)) is None
    assert (reader.seconds(opened(wav), certain=True), brief_reader.seconds(opened(wav), certain=True)) == (2, None)


def test_channels_are_those_of_the_header(reader: HeaderReader, tmp_path: Path) -> None:
    """The number of channels is that of the header; unknown for MP3 and for what is no audio."""
    for number, name in ((1, "a.wav"), (2, "b.flac"), (2, "c.mp3")):
        soundfile.write(tmp_path / name, np.zeros((16_000, number)), 16_000)
    (tmp_path / "text.wav").write_text("no audio")
    names = ("a.wav", "b.flac", "c.mp3", "text.wav")
    assert [reader.channels(opened(tmp_path / name)) for name in names] == [1, 2, None, None]


def test_the_process_has_no_secrets(reader: HeaderReader, recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no variable of a store or with a secret, and is confined where the kernel can."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/planted.json")
    assert reader.seconds(opened(recording("a.wav", 1))) == 1
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
        reader.seconds(opened(path, Unreachable))
    assert reader.seconds(opened(path)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_is_replaced(
    brief_reader: HeaderReader, recording: Recorder, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A header with which the process dies or hangs tells no duration, and the next one does."""
    path = recording("a.wav", 1)
    assert brief_reader.seconds(opened(path)) == 1
    monkeypatch.setattr("voxbatch.decoding.header_reader.SILENCE_S", 1.0)
    assert brief_reader._child is not None
    os.kill(brief_reader._child.pid, number)
    if number == signal.SIGSTOP:
        assert brief_reader.seconds(opened(path)) is None
    while not brief_reader._child.has_ended():
        time.sleep(0.01)
    monkeypatch.undo()
    assert brief_reader.seconds(opened(path)) == 1


@pytest.mark.usefixtures("warm_decoders")
def test_a_short_run_starts_no_process_for_headers(
    recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoders measure the recordings of a run that is over before the sample of headers begins."""
    asked = list[str]()
    monkeypatch.setattr(HeaderReader, "seconds", lambda *_: asked.append("a header"))
    monkeypatch.setattr(workload, "SAMPLING_DELAY_S", 60.0)
    assert voxbatch.run(recording("a.wav", 2), tmp_path / "out", engine="scripted").done == 1
    assert asked == []


def test_only_decoders_and_the_process_of_headers_parse_recordings() -> None:
    """No other module calls what parses a recording with native code, except for two that read a person's own files:
    the voices to know again, and the recordings that a data set holds.
    """
    parse = re.compile(r"^ *from voxbatch\.audio.* import .*\b(?:decode|probe|SoundFileStream)\b", re.MULTILINE)
    callers = {
        path.relative_to(ROOT / "voxbatch").as_posix()
        for path in (ROOT / "voxbatch").rglob("*.py")
        if parse.search(path.read_text())
    }
    outside = {name for name in callers if not name.startswith(("audio/", "decoding/"))}
    assert outside == {"speakers/enrolment.py", "analysis/dataset.py"}
