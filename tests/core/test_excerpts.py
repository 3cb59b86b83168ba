"""Tests for excerpts: a long recording is heard at a few places that are spread over it, whatever its header says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import Recorder
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxbatch.decoding import Decoded, DecoderPool, DecodeTask
from voxbatch.decoding.excerpts import excerpt_starts
from voxbatch.records import SAMPLING_RATE, Chunk

LIMIT = 30 * SAMPLING_RATE
TASK = DecodeTask(0, "", 0.0, None, None, None, LIMIT, excerpts=3)


def decoded(path: Path, task: DecodeTask = TASK) -> Decoded:
    """Return the end of a task, and assert that its chunks were sent."""
    with DecoderPool(1) as pool:
        *chunks, end = pool.run(iter([replace(task, audio=str(path))]))
    assert isinstance(end, Decoded), end
    assert all(isinstance(chunk, Chunk) and len(chunk.samples) <= task.limit for chunk in chunks)
    assert [chunk.span for chunk in chunks if isinstance(chunk, Chunk)] == [*end.spans]
    return end


def starts(end: Decoded) -> list[float]:
    return [round(span.core_start / SAMPLING_RATE, 2) for span in end.spans]


@given(st.floats(1, 1e6), st.integers(1, 100), st.floats(1, 10))
def test_excerpts_are_inside_and_apart(length_s: float, count: int, times: float) -> None:
    """The excerpts are in order, in the recording, and do not overlap."""
    total_s = times * count * length_s
    places = excerpt_starts(total_s, length_s, count)
    slack = 1e-9 * total_s
    assert len(places) == count
    assert places[0] >= -slack
    assert places[-1] + length_s <= total_s + slack
    assert all(right - left >= length_s - slack for left, right in pairwise(places))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000])
def test_a_long_recording_is_decoded_in_excerpts(recording: Recorder, rate: int) -> None:
    """Each excerpt is one chunk of the full length, at any sampling rate, and the length of the whole is told."""
    end = decoded(recording("long.wav", 600, rate=rate))
    assert starts(end) == [85.0, 285.0, 485.0]
    assert [span.core_end - span.core_start for span in end.spans] == [LIMIT] * 3
    assert (end.seconds, end.claimed_s) == (90, 600)


@pytest.mark.slow
def test_excerpts_of_a_part_are_inside_the_part(recording: Recorder) -> None:
    end = decoded(recording("long.wav", 600), replace(TASK, offset=200.0, duration=300.0, excerpts=2))
    assert starts(end) == [260.0, 410.0]
    assert end.claimed_s == 300


@pytest.mark.slow
def test_a_short_recording_is_decoded_to_its_end(recording: Recorder) -> None:
    end = decoded(recording("short.wav", 80))
    assert (end.seconds, end.claimed_s) == (80, None)


def flac_that_claims(path: Path, samples: NDArray[np.int16], rate: int, claimed: int) -> Path:
    """Write a FLAC file whose header claims a number of samples; 0 tells none."""
    soundfile.write(path, samples, rate)
    data = bytearray(path.read_bytes())
    data[21:26] = ((data[21] & 0xF0) << 32 | claimed).to_bytes(5)  # 36 bits of STREAMINFO
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_a_header_that_is_wrong_gives_the_beginning(recording: Recorder, tmp_path: Path) -> None:
    """A recording whose header tells no length, or far too much, is decoded to its end if it is no longer than the
    excerpts; otherwise its beginning is decoded, and its length stays unknown."""
    samples, rate = soundfile.read(recording("long.wav", 300), dtype="int16")
    for claimed_s in (0, 100_000):
        short = decoded(flac_that_claims(tmp_path / "short.flac", samples[: 80 * rate], rate, claimed_s * rate))
        assert (short.seconds, short.claimed_s) == (80, None)
        end = decoded(flac_that_claims(tmp_path / "long.flac", samples, rate, claimed_s * rate))
        assert 90 <= end.seconds < 120
        assert (starts(end)[0], end.claimed_s) == (0.0, 0.0)
