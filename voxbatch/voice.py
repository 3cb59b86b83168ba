"""Find voice in a mono signal, whatever its level and its offset.

Silero VAD, which is part of faster-whisper's wheel, tells voice from other sounds. Without faster-whisper, every sound
counts as voice that is neither silence nor stationary noise.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import SAMPLING_RATE, Samples

FRAME = SAMPLING_RATE // 100
"""Samples per loudness frame: 10 ms."""
MIN_LEVEL_DB = -100.0
"""Lowest level that `loudness` returns."""
SILENCE_DB = -75.0
"""Highest level of silence, for every 10 ms frame (RMS 6 of 32,768): digital silence or dither, not even a whisper.
Audio that is quieter throughout is silence unless it holds a voice."""
ROUNDING_PEAK = 2 / 32_768
"""Largest sample that the rounding to 16 bits, or dither, makes of silence."""
STATIONARY_DB, STATIONARY_HIGH_DB, STATIONARY_LOW_DB = 6.0, 2.0, 5.0
"""Widest ranges of the 50 ms loudness of noise or tone: of the full signal, of its high and of its low frequencies.

A second or more is certainly noise or tone if all three ranges hold. A range reaches from the 1st percentile to the
maximum, so one short word exceeds it. White noise, pink noise and hum stay 20 % below each limit. Syllables move speech
by 20 dB. Real speech under white or pink noise of three times its power exceeds the limits.
"""

OFFSET_STEP = SAMPLING_RATE // 2
"""Samples over which an offset is measured: 0.5 s. It may change within a recording."""
OFFSET_SHARE = 0.25
"""Share of the level of the sound from which an offset is removed. Of 358 real recordings, none has more than 0.18.
From 0.25 on, Silero VAD begins to miss voice."""
QUIET_DB, USUAL_DB = -50.0, -20.0
"""Level below which a recording is amplified, and the level to which it is. Silero VAD hears nobody at −73 dB, and most
voice at −56 dB. Real recordings are above −45 dB."""
LOUD_FRAMES = 10
"""Number of loudest frames that do not count for the level: 100 ms. A click is shorter, and a word is longer."""

VOICE_WINDOW = 512
"""Samples of one probability of the voice detector: 32 ms (Silero VAD)."""
VOICE_PROBABILITY = 0.5
"""Probability above which a window counts as voice (Silero VAD's own threshold)."""
SPEECH_PROBABILITY = 0.4
"""Speech probability that at least one window must reach; otherwise the audio holds no voice. On 460 chunks of real
speech in five languages, with telephone speech and single digits among them, the highest window was never below 0.63.
On white noise it was 0.25."""
BELOW_PEAK_DB = 25.0
"""Distance of the frames that count as voice from the loud ones (95th percentile), without the voice detector."""

Voice = NDArray[np.float32]
"""Speech probability of each VOICE_WINDOW, by the voice detector."""


def loudness(samples: Samples, frame: int = FRAME) -> NDArray[np.float64]:
    """Return the RMS level of each whole frame in dB relative to full scale, at least MIN_LEVEL_DB.

    The shape is (len(samples) // frame,).
    """
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
    return decibels(np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / frame)


def frame_powers(samples: Samples, frame: int) -> NDArray[np.float64]:
    """Return the mean square of each whole frame of each channel: (num_samples, channels) → (num_frames, channels)."""
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame, samples.shape[1])
    powers: NDArray[np.float64] = np.einsum("nfc,nfc->nc", frames, frames, dtype=np.float64) / frame
    return powers


def windowed(frames: NDArray[np.generic], size: int) -> NDArray[np.float64]:
    """Return the sum of the `size` frames around each one; shape (frames,) or (frames, channels)."""
    around = ((size // 2 + 1, size - size // 2 - 1), (0, 0))
    total = np.cumsum(np.pad(frames.astype(np.float64), around[: frames.ndim]), axis=0)
    return np.asarray(total[size:] - total[:-size])


def decibels(powers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean squares in dB relative to full scale, at least MIN_LEVEL_DB."""
    levels: NDArray[np.float64] = 10 * np.log10(np.maximum(powers, 10 ** (MIN_LEVEL_DB / 10)))
    return levels


def without_offset(samples: Samples) -> Samples:
    """Return the samples without an offset (a mean that is not 0) that would hide the voice. Other samples are returned
    as they are."""
    if len(samples) == 0:
        return samples
    steps = samples[: len(samples) // OFFSET_STEP * OFFSET_STEP].reshape(-1, OFFSET_STEP)
    offsets = steps.mean(axis=1, dtype=np.float64) if len(steps) else samples.mean(dtype=np.float64, keepdims=True)
    offset_power, power = np.mean(offsets**2), np.mean(np.square(samples, dtype=np.float64))
    if offset_power <= OFFSET_SHARE**2 * (power - offset_power):
        return samples
    before = OFFSET_STEP // 2
    padded = np.pad(samples, (before, OFFSET_STEP - before), mode="edge")
    sums = np.cumsum(np.concatenate([[0.0], padded]))
    moving_mean = (sums[OFFSET_STEP:] - sums[:-OFFSET_STEP])[: len(samples)] / OFFSET_STEP
    centred: Samples = (samples - moving_mean).astype(np.float32)
    return centred


def at_usual_level(samples: Samples) -> Samples:
    """Return the samples for the voice detector: without offset, and amplified if they are far below the level of usual
    recordings. Usual samples are returned as they are."""
    samples = without_offset(samples)
    levels = loudness(samples)
    if len(levels) > LOUD_FRAMES:
        level = float(np.partition(levels, -LOUD_FRAMES)[-LOUD_FRAMES])
    else:
        level = 10 * float(np.log10(max(float(np.mean(np.square(samples))), 1e-20))) if len(samples) else 0.0
    if level >= QUIET_DB or np.abs(samples).max(initial=0.0) <= ROUNDING_PEAK:
        return samples
    amplified: Samples = np.clip(samples * np.float32(10 ** ((USUAL_DB - level) / 20)), -1, 1)
    return amplified


@functools.cache
def has_detector() -> bool:
    """Return whether the voice detector is installed."""
    return importlib.util.find_spec("faster_whisper") is not None


def speech_probabilities(samples: Samples) -> Voice:
    """Return the speech probability that Silero VAD gives to each VOICE_WINDOW of the audio, at a usual level and
    without its offset."""
    # onnxruntime 1.31, which runs the model, otherwise sends statistics to its makers and keeps a device id on disk.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from faster_whisper.vad import get_vad_model

    samples = at_usual_level(samples)
    probabilities: Voice = get_vad_model()(np.pad(samples, (0, -len(samples) % VOICE_WINDOW))).ravel()
    return probabilities


def voice_seconds(samples: Samples) -> float:
    """Return the seconds of voice in a signal."""
    if has_detector():
        return float((speech_probabilities(samples) > VOICE_PROBABILITY).sum()) * VOICE_WINDOW / SAMPLING_RATE
    samples = at_usual_level(samples)
    if is_silent(samples) or not len(levels := loudness(samples)):
        return 0.0
    return float((levels > np.percentile(levels, 95) - BELOW_PEAK_DB).sum()) * FRAME / SAMPLING_RATE


def is_silent(samples: Samples) -> bool:
    """Return whether the samples certainly hold no speech.

    This is true for silence throughout, and for at least one second of stationary noise or tone.
    """
    levels = loudness(samples)
    if len(levels) == 0 or levels.max() <= SILENCE_DB:
        peak = np.abs(samples).max(initial=0.0)
        return bool(peak <= 10 ** (SILENCE_DB / 20) * 4) and not _has_faint_voice(samples, float(peak))
    return len(samples) >= SAMPLING_RATE and _is_stationary(samples)


def _has_faint_voice(samples: Samples, peak: float) -> bool:
    """Return whether samples that are quieter than SILENCE_DB hold a voice, as recordings of 24 bits may."""
    if len(samples) < SAMPLING_RATE or peak <= ROUNDING_PEAK or _is_stationary(at_usual_level(samples)):
        return False
    return not has_detector() or bool(speech_probabilities(samples).max() >= SPEECH_PROBABILITY)


def _is_stationary(samples: Samples) -> bool:
    low = samples[: len(samples) // 8 * 8].reshape(-1, 8).mean(axis=1)  # 0 to 1 kHz: the range of vowels
    return (
        _range_db(samples, 5 * FRAME) <= STATIONARY_DB
        and _range_db(np.diff(samples), 5 * FRAME) <= STATIONARY_HIGH_DB
        and _range_db(np.diff(low), 5 * FRAME // 8) <= STATIONARY_LOW_DB
    )


def _range_db(samples: Samples, frame: int) -> float:
    """Return the range of the loudness in dB, from the 1st percentile to the maximum."""
    levels = loudness(samples, frame)
    return float(levels.max() - np.percentile(levels, 1))
