"""Tests that compare our loudness, pauses and dropouts with those of pydub, in real recordings.

pydub measures with integers of 16 bits in its own code, and decodes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydub import AudioSegment
from pydub.silence import detect_silence

from voxbatch.audio.dropouts import STEP_SECONDS, Dropouts
from voxbatch.audio.waveforms import decode
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.storage import Stores
from voxbatch.text.chunking import PAUSE_DEPTH_DB, PAUSE_FRAMES, SEARCH_SECONDS, quietest_position
from voxbatch.voice import FRAME, is_silent, loudness

pytestmark = pytest.mark.slow

FRAME_MS = 1000 * FRAME // SAMPLING_RATE
PAUSE_MS = PAUSE_FRAMES * FRAME_MS
EXACT_DB = -50.0
"""Level above which rounding to 16 bits changes a frame's level by less than a tenth of a dB."""
CLEAR_MS, CLEAR_DB = 100, 6
"""By how much a clear silence is longer and quieter than a pause must be: pydub takes the mean power of a stretch, in
which a few frames may be louder than we admit."""
SECONDS = 60.0


@pytest.fixture(scope="module")
def recordings(corpus: Path) -> list[Samples]:
    """Return the first minute of each long recording."""
    minutes = []
    for path in sorted((corpus / "speech" / "longform").glob("*.*")):
        with closing(Stores().recording(str(path))) as recording:
            blocks = decode(recording, path.name, duration=SECONDS)
            minutes.append(np.concatenate([block.samples for block in blocks]))
    assert len(minutes) >= 5
    return minutes


def segment(samples: Samples) -> AudioSegment:
    """Return the samples as a segment of pydub."""
    data = (np.clip(samples, -1, 1) * 32_767).round().astype("<i2").tobytes()
    return AudioSegment(data, frame_rate=SAMPLING_RATE, sample_width=2, channels=1)


def levels_of(audio: AudioSegment) -> Sequence[float]:
    """Return pydub's level of each 10 ms in dB relative to full scale."""
    return [frame.dBFS for frame in audio[::FRAME_MS]]


def silences_of(audio: AudioSegment, min_ms: int, threshold_db: float) -> list[list[int]]:
    """Return the begin and the end in ms of each stretch of at least min_ms that pydub finds silent."""
    return list(detect_silence(audio, min_silence_len=min_ms, silence_thresh=threshold_db, seek_step=FRAME_MS))


def test_loudness_is_that_of_pydub(recordings: list[Samples]) -> None:
    """Each frame of 10 ms has the level that pydub gives it, within a tenth of a dB."""
    for samples in recordings:
        ours = loudness(samples)
        theirs = np.array(levels_of(segment(samples)))[: len(ours)]
        is_exact = ours > EXACT_DB
        assert is_exact.mean() > 0.2
        assert np.abs(ours - theirs)[is_exact].max() < 0.1
        assert (theirs[~is_exact] < EXACT_DB + 0.1).all()


def test_pauses_are_silences_of_pydub(recordings: list[Samples]) -> None:
    """A pause in which a recording may be cut is a silence to pydub, and a clear silence to pydub contains a pause."""
    pauses = 0
    window = SEARCH_SECONDS * SAMPLING_RATE
    for samples in recordings:
        for begin in range(0, len(samples) - window + 1, window // 2):
            at, is_pause = quietest_position(samples, begin, begin + window)
            audio = segment(samples[begin : begin + window])
            quiet_db = float(np.percentile(levels_of(audio), 95)) - PAUSE_DEPTH_DB
            if is_pause:
                pauses += 1
                at_ms = (at - begin) * 1000 / SAMPLING_RATE
                assert any(start <= at_ms <= end for start, end in silences_of(audio, PAUSE_MS, quiet_db))
            else:
                assert not silences_of(audio, PAUSE_MS + CLEAR_MS, quiet_db - CLEAR_DB)
    assert pauses > 50


def test_dropouts_are_digital_silences_of_pydub(recordings: list[Samples]) -> None:
    """Blocks of a recording that are zero are found where pydub finds them, to within a step at each end."""
    rng = np.random.default_rng(0)
    for samples in recordings:
        damaged = np.clip(samples + rng.uniform(-1e-3, 1e-3, len(samples)), -1, 1).astype(np.float32)
        for start_s in (5.0, 20.0, 40.0):
            begin = round((start_s + rng.uniform(0, 5)) * SAMPLING_RATE)
            damaged[begin : begin + round(rng.uniform(1.3, 4) * SAMPLING_RATE)] = 0
        dropouts = Dropouts(SAMPLING_RATE)
        for at in range(0, len(damaged), 7_000):
            dropouts.add(damaged[at : at + 7_000, None])
        silences = silences_of(segment(damaged), 1_000, -95.0)
        assert len(silences) == len(dropouts.stretches) == 3
        for (start, end), (start_ms, end_ms) in zip(dropouts.stretches, silences, strict=True):
            assert start_ms / 1000 - 0.02 <= start <= start_ms / 1000 + STEP_SECONDS + 0.02
            assert end_ms / 1000 - STEP_SECONDS - 0.02 <= end <= end_ms / 1000 + 0.02
            middle = damaged[round(start * SAMPLING_RATE) : round(end * SAMPLING_RATE)]
            assert is_silent(middle)
            assert segment(middle).dBFS == -np.inf
