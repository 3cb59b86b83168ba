"""Tests for the echo of a call in the other channel: it is taken out at any delay, and nobody's speech is."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from conftest import ROOT

from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.text.echo import EchoCanceller

SECOND = SAMPLING_RATE
CASES = ROOT.parent / "shared" / "cases" / "2026-11-28"


def speech(seconds: float, seed: int) -> Samples:
    """Return noise in the band of voices whose loudness varies like syllables. Shape (frames,)."""
    random = np.random.default_rng(seed)
    size = round(seconds * SECOND)
    noise = np.convolve(random.standard_normal(size + 15), np.hanning(16), "valid")
    loudness = np.interp(np.arange(size), np.arange(0, size + 3200, 3200), random.uniform(0, 0.1, size // 3200 + 1))
    return np.asarray(noise * loudness, np.float32)


def call(seconds: float = 24.0, both_from: float = 16.0) -> Samples:
    """Return a call: the first side speaks for eight seconds, the second one for eight, then both."""
    at = np.arange(round(seconds * SECOND)) / SECOND
    noise = np.random.default_rng(3).normal(0, 1e-4, (len(at), 2))
    first = speech(seconds, 1) * ((at < 8) | (at >= both_from))
    return np.asarray(noise + np.stack([first, speech(seconds, 2) * (at >= 8)], axis=1), np.float32)


def with_echo(samples: Samples, delay_ms: float, level_db: float) -> Samples:
    """Return a call whose second channel has the first one, too."""
    delay, out = round(delay_ms * SECOND / 1000), samples.copy()
    out[delay:, 1] += np.float32(10 ** (level_db / 20)) * samples[: len(samples) - delay, 0]
    return out


def cancelled(samples: Samples, block: int = 10 * SECOND) -> Samples:
    """Return a recording without its echoes."""
    canceller = EchoCanceller(samples.shape[1])
    return np.concatenate(
        [*(canceller(samples[at : at + block]) for at in range(0, len(samples), block)), canceller.finish()]
    )


def level(samples: Samples) -> float:
    """Return the level in dB."""
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-12))


@pytest.mark.parametrize("delay_ms", [40, 160, 300, 500])
@pytest.mark.parametrize("level_db", [-3, -10, -20])
def test_an_echo_is_taken_out_and_both_speakers_stay(delay_ms: float, level_db: float) -> None:
    """The echo of speech alone is gone; speech alone and speech of both at once stay, without the echo in it."""
    samples = call()
    out = cancelled(with_echo(samples, delay_ms, level_db))
    assert np.array_equal(out[:, 0], samples[:, 0])
    assert level(out[: 7 * SECOND, 1]) < level(samples[: 7 * SECOND, 0]) + level_db - 25
    for part in (slice(9 * SECOND, 16 * SECOND), slice(17 * SECOND, 24 * SECOND)):
        assert level(out[part, 1] - samples[part, 1]) < level(samples[part, 1]) - 15


def test_a_loud_echo_of_the_same_moment_is_taken_out_of_the_right_channel() -> None:
    """The source stays as it is without a delay, where each channel could be the echo of the other one."""
    samples = call()
    out = cancelled(with_echo(samples, 0, -3))
    assert np.array_equal(out[:, 0], samples[:, 0])
    assert level(out[: 7 * SECOND, 1]) < -60


@pytest.mark.parametrize("samples", [call(), with_echo(call(), 12, -15), np.zeros((3 * SECOND, 2), np.float32)])
def test_other_recordings_stay_as_they_are(samples: Samples) -> None:
    """Two speakers who do not hear each other, quiet crosstalk of the same moment, and silence."""
    assert np.array_equal(cancelled(samples), samples)


def test_the_samples_do_not_depend_on_the_blocks() -> None:
    """Blocks of any size give the same samples, and all of them."""
    samples = with_echo(call(), 160, -6)[: -SECOND // 3]
    whole = cancelled(samples, len(samples))
    assert len(whole) == len(samples)
    for block in (777, 3 * SECOND):
        assert np.array_equal(cancelled(samples, block), whole)


@pytest.mark.parametrize("name", ["echo_of_a_phone_15dB_160ms", "echo_of_a_phone_6dB_160ms"])
def test_cases(name: str) -> None:
    """The agent's words, which come back through a GSM phone, are gone, and the customer's stay."""
    if not (CASES / name).is_dir():
        pytest.skip(f"no {CASES / name}")
    narrow, rate = soundfile.read(CASES / name / "call.flac", dtype="float32")
    samples = np.repeat(narrow, SECOND // rate, axis=0)
    out = cancelled(samples)
    assert level(out[: round(4.5 * SECOND), 1]) < level(samples[: round(4.5 * SECOND), 1]) - 20
    assert np.array_equal(out[6 * SECOND :], samples[6 * SECOND :])
