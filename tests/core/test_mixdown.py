"""Tests for mixing channels down to mono: no speech is lost, no clicks are added, and block sizes do not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxbatch.audio.libsndfile import NativeBlock
from voxbatch.audio.mixdown import Mixdown

RATE = 8_000


def voice(seconds: float, seed: int = 0, hertz: float = 150) -> NDArray[np.float32]:
    """Return a buzz of varying loudness, three times a second like syllables."""
    t = np.arange(round(seconds * RATE)) / RATE
    buzz = sum(np.sin(2 * np.pi * hertz * k * t) / k for k in range(1, 8))
    return (0.15 * buzz * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * t + seed))).astype(np.float32)


def hiss(seconds: float, level: float, seed: int = 0) -> NDArray[np.float32]:
    return (level * np.random.default_rng(seed).standard_normal(round(seconds * RATE))).astype(np.float32)


def mix(channels: NativeBlock, *sizes: int, channel: int | None = None) -> NDArray[np.float32]:
    """Mix down the whole recording, fed in blocks of the given sizes with the rest in the last block."""
    mixdown = Mixdown(RATE, channels.shape[1], channel)
    edges = np.cumsum(sizes, dtype=int).clip(max=len(channels))
    return np.concatenate([*(mixdown(block) for block in np.split(channels, edges)), mixdown.finish()])


def decibels(samples: NDArray[np.float32]) -> float:
    """Return the mean power in dB."""
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-20))


def test_single_channel_passes_unchanged() -> None:
    """A single channel passes unchanged."""
    samples = voice(3)
    assert np.array_equal(mix(samples[:, None], 1000), samples)


@pytest.mark.parametrize("count", [2, 6, 8])
def test_identical_channels_give_their_signal(count: int) -> None:
    """The same signal in all channels gives that signal."""
    samples = voice(3)
    assert np.allclose(mix(np.repeat(samples[:, None], count, axis=1)), samples, atol=1e-6)


def test_stereo_is_the_mean() -> None:
    """A normal stereo recording, with a voice to the left of the centre, gives the mean of its channels."""
    both = np.stack([voice(5) + hiss(5, 0.02, 1), 0.5 * voice(5) + hiss(5, 0.02, 2)], axis=1)
    assert np.allclose(mix(both), both.mean(axis=1), atol=1e-7)


def test_voice_in_one_of_two_channels_gives_the_mean() -> None:
    """A voice in one of two channels gives the mean, too: 6 dB quieter, but present."""
    both = np.stack([voice(5), np.zeros_like(voice(5))], axis=1)
    assert np.allclose(mix(both), voice(5) / 2, atol=1e-7)


@pytest.mark.parametrize("place", [0, 2, 5])
def test_voice_in_one_of_six_channels_keeps_its_level(place: int) -> None:
    """A voice in one of six channels keeps its level, without the noise of the other channels."""
    six = np.stack([hiss(5, 0.001, i) for i in range(6)], axis=1)
    six[:, place] = voice(5)
    assert np.allclose(mix(six), voice(5), atol=1e-6)


@pytest.mark.parametrize("balance", [1.0, 0.8])
def test_voice_in_opposite_phase_keeps_its_energy(balance: float) -> None:
    """A voice that would cancel itself in the mean keeps its energy from the first sample on."""
    both = np.stack([voice(5), -balance * voice(5)], axis=1)
    assert np.array_equal(mix(both), both[:, 0])


def test_phase_inversion_loses_a_quarter_second_at_most() -> None:
    """If the phase inverts during a recording, at most a quarter of a second is lost."""
    first = np.stack([voice(20), voice(20)], axis=1)
    second = np.stack([voice(5), -voice(5)], axis=1)
    mixed = mix(np.concatenate([first, second]))
    assert decibels(mixed[20 * RATE + RATE // 4 :]) > decibels(voice(5)) - 1


def test_next_speaker_is_audible_within_a_quarter_second() -> None:
    """In a meeting with one microphone each, the next speaker is audible after a quarter of a second at the latest."""
    turns = np.zeros((40 * RATE, 6), np.float32)
    for turn in range(8):
        turns[turn * 5 * RATE : (turn + 1) * 5 * RATE, turn * 5 % 6] = voice(5, turn)
    turns += np.stack([hiss(40, 0.0005, i) for i in range(6)], axis=1)
    mixed = mix(turns)
    for turn in range(8):
        begin = turn * 5 * RATE
        wanted = voice(5, turn)
        for at in range(RATE // 4, 5 * RATE, RATE // 4):
            part = mixed[begin + at : begin + at + RATE // 4]
            assert decibels(part) > decibels(wanted[at : at + RATE // 4]) - 3


def test_pause_keeps_the_mix() -> None:
    """Background noise in a pause of three seconds, louder in another channel, does not change the mix."""
    four = np.stack([hiss(12, level, i) for i, level in enumerate([0.0002, 0.002, 0.0002, 0.0002])], axis=1)
    four[: 5 * RATE, 0] += voice(5)
    four[8 * RATE :, 0] += voice(4)
    assert np.allclose(mix(four), four[:, 0], atol=1e-6)


def test_change_of_mix_adds_no_click() -> None:
    """A change of the mix adds no jump larger than 1.2 times the largest one within a channel."""
    left = (0.3 * np.sin(2 * np.pi * 97.3 * np.arange(12 * RATE) / RATE)).astype(np.float32)
    sign = np.repeat(np.array([1, -1, 1], np.float32), 4 * RATE)
    both = np.stack([left, np.convolve(sign, np.ones(400) / 400, "same") * left], axis=1).astype(np.float32)
    mixed = mix(both)
    assert not np.allclose(mixed, both.mean(axis=1), atol=1e-3)
    assert np.abs(np.diff(mixed)).max() <= np.abs(np.diff(both, axis=0)).max() * 1.2


def test_chosen_channel_passes_unchanged() -> None:
    """A requested channel passes unchanged, whatever the other channels contain."""
    both = np.stack([voice(3), hiss(3, 0.1)], axis=1)
    assert np.array_equal(mix(both, 777, channel=1), both[:, 1])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20_000), max_size=8), st.integers(2, 6), st.integers(0, 1000), st.floats(0.001, 6))
def test_samples_do_not_depend_on_block_boundaries(sizes: list[int], count: int, seed: int, seconds: float) -> None:
    """The samples and their number do not depend on the block boundaries."""
    rng = np.random.default_rng(seed)
    gains = rng.uniform(-1, 1, (4, count)).round(1)[np.arange(round(seconds * RATE)) // (2 * RATE)]
    channels = (voice(seconds)[:, None] * gains).astype(np.float32)
    whole = mix(channels)
    assert len(whole) == len(channels)
    assert np.allclose(mix(channels, *sizes), whole, atol=1e-7)
