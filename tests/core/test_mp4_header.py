"""Tests for the duration in the header of MP4 files, which ffmpeg writes."""

from __future__ import annotations

import struct
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.mp4_header import mp4_seconds
from voxbatch.audio.waveforms import decode, probe
from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage import Stores


def write(path: Path, *options: str, inputs: tuple[str, ...] = ()) -> Path:
    """Write 12.5 s of a tone with ffmpeg."""
    tone = ("-f", "lavfi", "-i", "sine=duration=12.5", *inputs, "-c:a", "aac", *options)
    subprocess.run([executable(), "-loglevel", "error", *tone, path], check=True)
    return path


VIDEO = ("-f", "lavfi", "-i", "testsrc=duration=12.5:size=64x64", "-c:v", "mpeg4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "inputs"),
    [
        ("a.m4a", (), ()),
        ("a.mov", ("-movflags", "faststart"), ()),
        ("video.mp4", (), VIDEO),
    ],
)
def test_duration_of_mp4_files(tmp_path: Path, name: str, options: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    """The duration is what ffmpeg wrote, whether the header is at the start or at the end; a probe for certain lengths
    gives none.
    """
    with closing(Stores().recording(str(write(tmp_path / name, *options, inputs=inputs)))) as recording:
        assert probe(recording) == pytest.approx(12.5, abs=0.1)
        assert probe(recording, certain=True) is None


@pytest.mark.slow
def test_a_cut_file_is_called_cut(tmp_path: Path) -> None:
    """A file that was cut before or inside moov is damaged, and the message says how. A whole one without a sound track
    is no cut one."""
    whole = write(tmp_path / "a.m4a").read_bytes()
    moov = whole.index(b"moov") - 4
    cut = tmp_path / "cut.m4a"
    for end in (moov // 2, moov, moov + 20, moov + 60):
        cut.write_bytes(whole[:end])
        with (
            closing(Stores().recording(str(cut))) as recording,
            pytest.raises(AudioError, match="the file is cut") as e,
        ):
            list(decode(recording, "a.m4a"))
        assert e.value.kind is FailureKind.DAMAGED, end
    cut.write_bytes(whole)
    with closing(Stores().recording(str(cut))) as recording:
        assert list(decode(recording, "a.m4a"))


def test_sizes_of_64_bits(tmp_path: Path) -> None:
    """A hand-made file with a box of 64 bits before moov, and a header of version 1: 90,000 units of 1/600 s."""
    header = bytes([1, 0, 0, 0]) + bytes(16) + struct.pack(">IQ", 600, 90_000)
    mvhd = struct.pack(">I4s", 8 + len(header), b"mvhd") + header
    moov = struct.pack(">I4s", 8 + len(mvhd), b"moov") + mvhd
    data = struct.pack(">I4s", 8, b"ftyp") + struct.pack(">I4sQ", 1, b"mdat", 26) + bytes(10) + moov
    (path := tmp_path / "a.mp4").write_bytes(data)
    with closing(Stores().recording(str(path))) as recording:
        assert mp4_seconds(recording) == 150.0


def test_fragmented_file_tells_no_duration(tmp_path: Path) -> None:
    """A fragmented file, whose header was written first, has no duration there."""
    path = write(tmp_path / "a.mp4", "-movflags", "frag_keyframe+empty_moov")
    with closing(Stores().recording(str(path))) as recording:
        assert mp4_seconds(recording) is None


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mp4") / "a.m4a", "-movflags", "faststart")


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8), st.integers(0, 600))
def test_damaged_header_never_fails(sample: Path, changes: list[tuple[int, int]], length: int) -> None:
    """A damaged or cut header gives a number or None, and ends."""
    data = bytearray(sample.read_bytes()[: max(8, length)])
    for at, value in changes:
        if at < len(data):
            data[at] = value
    damaged = sample.with_name("damaged.m4a")
    damaged.write_bytes(data)
    with closing(Stores().recording(str(damaged))) as recording:
        seconds = mp4_seconds(recording)
    assert seconds is None or seconds > 0
