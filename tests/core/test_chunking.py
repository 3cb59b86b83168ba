"""Tests for chunking: cores partition the recording, cuts fall in pauses, and only audio that is certainly no speech
counts as silent.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxbatch.audio.waveforms import decode
from voxbatch.records import OVERLAP, SAMPLING_RATE, Samples, Span, Waveform
from voxbatch.storage import Stores
from voxbatch.text.chunking import MIN_LAST_CHUNK_SECONDS, cut_into_chunks
from voxbatch.voice import is_silent

SECOND = SAMPLING_RATE
LIMIT = 30 * SECOND


def syllables(seconds: float, seed: int = 0) -> Samples:
    """Return noise at −20 dBFS of varying loudness without a pause."""
    count = round(seconds * SECOND)
    swell = 1 + 0.3 * np.sin(np.arange(count) / SECOND * 25)
    return (0.1 * swell * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)


def with_pauses(seconds: float, pauses: list[float], length: float = 0.5) -> Samples:
    """Return sound with pauses of faint noise that start at these seconds."""
    samples = syllables(seconds)
    for at in pauses:
        samples[round(at * SECOND) : round((at + length) * SECOND)] *= 0.001
    return samples


def blocked(samples: Samples, size: int, start: int = 0) -> list[Waveform]:
    """Split the samples into Waveforms of `size` samples."""
    return [Waveform(samples[at : at + size], start + at) for at in range(0, len(samples), size)]


def spans(samples: Samples, limit: int = LIMIT, size: int = 10 * SECOND) -> list[Span]:
    """Return the spans of the chunks."""
    return [span for _, span in cut_into_chunks(blocked(samples, size), limit)]


def is_forced(left: Span, right: Span) -> bool:
    """Return whether the cut between two chunks was forced, so that they overlap."""
    return left.end > right.start


RECORDINGS = st.builds(
    with_pauses,
    st.floats(0.001, 90),
    st.lists(st.floats(0, 90), max_size=30),
    st.sampled_from([0.1, 0.3, 0.5, 2.0]),
)
LIMITS = st.integers(14 * SECOND, 40 * SECOND)


@settings(max_examples=25, deadline=None)
@given(RECORDINGS, LIMITS, st.integers(1_000, 500_000), st.integers(0, 1 << 40))
def test_cores_partition_the_recording(samples: Samples, limit: int, size: int, start: int) -> None:
    """Cores join without gap or overlap, and a chunk's audio is that of the recording, contains its core, and is within
    the limit. The two chunks at a forced cut overlap by one second on each side, those at a pause not at all, and the
    last chunk is not tiny.
    """
    chunks = list(cut_into_chunks(blocked(samples, size, start), limit))
    assert chunks[0][1].core_start == start
    assert chunks[-1][1].core_end == start + len(samples)
    assert all(a.core_end == b.core_start for (_, a), (_, b) in pairwise(chunks))
    for audio, span in chunks:
        assert span.start <= span.core_start < span.core_end <= span.end
        assert len(audio) <= limit
        assert np.array_equal(audio, samples[span.start - start : span.end - start])
    for (_, left), (_, right) in pairwise(chunks):
        reach = OVERLAP if is_forced(left, right) else 0
        assert left.end - left.core_end == right.core_start - right.start == reach
    last = chunks[-1][1]
    assert len(chunks) == 1 or last.core_end - last.core_start >= MIN_LAST_CHUNK_SECONDS * SECOND - SECOND // 5


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(RECORDINGS, LIMITS, st.integers(1_000, 500_000), st.integers(1_000, 500_000))
def test_cuts_do_not_depend_on_block_sizes(samples: Samples, limit: int, one: int, other: int) -> None:
    """A recording is cut at the same places, in whatever blocks it was read."""
    assert spans(samples, limit, one) == spans(samples, limit, other)


def test_short_recording_is_one_chunk() -> None:
    """A recording that fits the engine's limit is one chunk, exact to the sample."""
    assert spans(syllables(30)) == [Span(0, LIMIT, 0, LIMIT)]
    assert len(spans(np.append(syllables(30), np.float32(0)))) == 2
    assert spans(np.zeros(0, np.float32)) == []


def test_limit_below_minimum_is_refused() -> None:
    """A limit that is too small for the search for pauses is refused with the minimum."""
    with pytest.raises(ValueError, match="at least 224000 are needed"):
        spans(syllables(30), 14 * SECOND - 1)


@pytest.mark.parametrize("length", [0.3, 0.4, 1.0])
@pytest.mark.parametrize("at", [20.5, 24.0, 28.5])
def test_cut_falls_in_the_only_pause(at: float, length: float) -> None:
    """A single pause in the ten seconds before the limit is where the cut falls, well inside the pause."""
    left, right = spans(with_pauses(40, [at], length))
    assert not is_forced(left, right)
    assert at + 0.1 <= left.end / SECOND <= at + length - 0.1


def test_click_does_not_hide_a_pause() -> None:
    """A loud click of 5 ms in the only pause does not hide the pause."""
    samples = with_pauses(40, [24.0], 0.4)
    samples[round(24.2 * SECOND) : round(24.205 * SECOND)] = 0.5
    left, right = spans(samples)
    assert not is_forced(left, right)
    assert 24.0 < left.end / SECOND < 24.4


def test_stop_consonant_is_not_a_pause() -> None:
    """The cut falls in the pause, not in 120 ms of digital silence within a word, although their mean loudness is the
    lowest.
    """
    samples = with_pauses(40, [23.0], 0.4)
    for at in (21.0, 25.0, 27.0, 29.0):
        samples[round(at * SECOND) : round((at + 0.12) * SECOND)] = 0
    left, right = spans(samples)
    assert not is_forced(left, right)
    assert 23.0 < left.end / SECOND < 23.4
    only_stops = samples.copy()
    only_stops[23 * SECOND : 24 * SECOND] = syllables(1)
    assert is_forced(*spans(only_stops))


def test_short_word_in_quiet_is_not_cut() -> None:
    """A single short word in ten quiet seconds is not cut, and no cut is forced."""
    samples = syllables(40)
    samples[19 * SECOND : 31 * SECOND] *= 0.01
    samples[round(25.0 * SECOND) : round(25.6 * SECOND)] = syllables(0.6, seed=1)
    left, right = spans(samples)
    assert not is_forced(left, right)
    assert not 25.0 <= left.end / SECOND <= 25.6


def test_deeper_pause_wins_and_later_of_equal_pauses() -> None:
    """A pause that is 20 dB deeper is preferred to one 4 s later; of two equal pauses the later is chosen."""
    samples = with_pauses(40, [23.0, 27.0])
    samples[23 * SECOND : 23 * SECOND + 8000] = samples[27 * SECOND : 27 * SECOND + 8000]
    assert 27.0 < spans(samples)[0].end / SECOND < 27.5
    samples[round(27.0 * SECOND) : round(27.5 * SECOND)] *= 10
    assert 23.0 < spans(samples)[0].end / SECOND < 23.5


def noise(power: float, seconds: int, seed: int = 0) -> Samples:
    """Return noise with a spectrum of 1/f^power down to 20 Hz, RMS 0.05."""
    rng = np.random.default_rng(seed)
    spectrum = np.fft.rfft(rng.standard_normal(seconds * SECOND))
    shaped = np.fft.irfft(spectrum / np.maximum(np.fft.rfftfreq(seconds * SECOND, 1 / SECOND), 20) ** (power / 2))
    samples: Samples = (0.05 * shaped / shaped.std()).astype(np.float32)
    return samples


def tone(hertz: float, seconds: int) -> Samples:
    return (0.1 * np.sin(2 * np.pi * hertz * np.arange(seconds * SECOND) / SECOND)).astype(np.float32)


@pytest.mark.parametrize("seconds", [1, 2, 10, 30])
def test_noise_and_tones_are_silent(seconds: int) -> None:
    """Digital silence, dither, white and pink noise, hum, tones and a dial tone are silent."""
    rng = np.random.default_rng(seconds)
    dither = (rng.random((2, seconds * SECOND)).sum(axis=0) - 1).round() / 32768
    kinds = [np.zeros(seconds * SECOND), dither, tone(50, seconds), tone(440, seconds)]
    kinds += [tone(350, seconds) + tone(440, seconds), noise(0, seconds), noise(1, seconds)]
    assert all(is_silent(samples.astype(np.float32)) for samples in kinds)


def test_short_noise_and_words_in_noise_are_not_silent() -> None:
    """Noise shorter than a second, a click, and a short word in long noise are not silent."""
    assert not is_silent(noise(0, 1)[:-1])
    assert is_silent(np.zeros(100, np.float32))
    assert is_silent(np.zeros(0, np.float32))
    click = np.zeros(SECOND, np.float32)
    click[-1] = 0.1
    assert not is_silent(click[-50:])
    assert not is_silent(click)
    word = noise(0, 30)
    word[10 * SECOND : round(10.2 * SECOND)] *= 2
    assert not is_silent(word)


def speech(corpus: Path, step: int) -> list[Samples]:
    """Return every `step`th real recording of at most 30 s, including digits at 8 kHz."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    found = []
    for row in [row for row in rows if row["duration"] < 30][::step]:
        path = str(corpus / "speech" / row["audio_filepath"])
        with closing(Stores().recording(path)) as recording:
            found.append(np.concatenate([block.samples for block in decode(recording, path)]))
    return found


@pytest.mark.slow
def test_real_speech_is_never_silent(corpus: Path) -> None:
    """Real speech is never silent, not even at −40 dBFS or under white or pink noise of its own power."""
    for samples in speech(corpus, 9):
        assert not is_silent(samples)
        assert not is_silent(samples * np.float32(0.01 / np.abs(samples).max()))
        for power in (0, 1):
            floor = np.resize(noise(power, 10), len(samples))
            assert not is_silent((samples + floor * (samples.std() / floor.std())).astype(np.float32))


@pytest.mark.slow
def test_long_speech_is_cut_in_pauses(corpus: Path) -> None:
    """In real long recordings at least 95 % of the cuts fall in pauses; the speed is printed."""
    cuts = forced = 0
    seconds = wall = 0.0
    for path in sorted((corpus / "speech" / "longform").glob("*.*")):
        with closing(Stores().recording(str(path))) as recording:
            blocks = list(decode(recording, path.name))
        began = time.perf_counter()
        found = [span for _, span in cut_into_chunks(blocks, LIMIT)]
        wall += time.perf_counter() - began
        seconds += found[-1].core_end / SECOND
        cuts += len(found) - 1
        forced += sum(is_forced(left, right) for left, right in pairwise(found))
    print(f"{seconds:.0f} s of audio, {cuts} cuts, {forced} forced, {seconds / wall:,.0f} audio seconds a second")
    assert cuts > 60
    assert forced <= cuts * 0.05
