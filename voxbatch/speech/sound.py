"""Join the speech of pieces to one recording of a given loudness, and encode it."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxbatch.records import Samples, Segment, Speech

PEAK = 10 ** (-1 / 20)
"""Highest sample of a recording: -1 dB of full scale, so that lossy formats do not clip."""
QUIET = 10 ** (-40 / 20)
"""Part of the highest sample that is silence at the ends of speech: -40 dB."""
MARGIN_S = 0.04
"""Seconds of this silence that stay at each end, for soft consonants."""
QUIET_LUFS = -70.0
"""Loudness below which nothing is measured: the absolute gate of BS.1770."""
BLOCK_S = 0.4
"""Shortest recording that has a loudness: a block of BS.1770."""
MAX_SPEED = 1.7
"""Highest speed at which speech is fitted to its time. Whisper still understands the speech; people find more hard."""


def trimmed(samples: Samples, sampling_rate: int) -> Samples:
    """Return speech without the silence before and after it, so that pauses and cues have their exact times."""
    loud = np.flatnonzero(np.abs(samples) > QUIET * np.abs(samples).max(initial=0.0))
    if not len(loud):
        return samples
    margin = round(MARGIN_S * sampling_rate)
    return samples[max(0, loud[0] - margin) : loud[-1] + 1 + margin]


def speed_to_fit(samples: Samples, sampling_rate: int, longest_s: float | None) -> float:
    """Return how many times as fast speech must be to take `longest_s` seconds, 1.0 if it fits.

    It is 2 % more than the lengths say, because the length of faster speech does not follow its speed exactly.
    """
    seconds = len(samples) / sampling_rate
    return 1.0 if longest_s is None or seconds <= longest_s else 1.02 * seconds / max(longest_s, 1 / sampling_rate)


def overlong(samples: Samples, sampling_rate: int, longest_s: float | None) -> tuple[str, ...]:
    """Return the warning about speech that takes longer than its time, or nothing."""
    seconds = len(samples) / sampling_rate
    if longest_s is None or seconds <= longest_s:
        return ()
    return (f"takes {seconds:.2f} s, and its cue has {longest_s:.2f} s",)


def joined(
    speeches: Iterable[Speech], sampling_rate: int, longest_s: float | None = None
) -> tuple[Samples, tuple[Segment, ...]]:
    """Return the samples of pieces with the pauses between them, and the pieces with their times.

    Args:
        longest_s: seconds that the recording shall have: silence is added at its end. None adds none.
    """
    parts: list[Samples] = []
    segments: list[Segment] = []
    at = 0
    for speech in speeches:
        pause = np.zeros(round(speech.piece.pause_s * sampling_rate), np.float32)
        end = at + len(speech.samples)
        segments.append(Segment(speech.piece.text, round(at / sampling_rate, 3), round(end / sampling_rate, 3)))
        parts += (speech.samples, pause)
        at = end + len(pause)
    parts.append(np.zeros(max(0, round((longest_s or 0) * sampling_rate) - at), np.float32))
    return np.concatenate(parts), tuple(segments)


def normalized(samples: Samples, sampling_rate: int, loudness: float) -> tuple[Samples, float | None]:
    """Return samples at a loudness, and the loudness that they have.

    It is lower than asked for if the highest sample would be above PEAK, and None if the samples are too short or too
    quiet to measure; their loudness then stays.

    Args:
        loudness: integrated loudness in LUFS, by ITU-R BS.1770.
    """
    import pyloudnorm

    measured = QUIET_LUFS
    if len(samples) >= BLOCK_S * sampling_rate:
        measured = float(pyloudnorm.Meter(sampling_rate, block_size=BLOCK_S).integrated_loudness(samples))
    peak = float(np.abs(samples).max())
    if measured <= QUIET_LUFS:
        return (samples * min(1.0, PEAK / max(peak, PEAK))).astype(np.float32), None
    gain = min(10 ** ((loudness - measured) / 20), PEAK / peak)
    return (samples * gain).astype(np.float32), round(measured + 20 * float(np.log10(gain)), 2)


def flac(samples: Samples | NDArray[np.int16], sampling_rate: int) -> bytes:
    """Return samples as a FLAC file of 16 bits."""
    file = io.BytesIO()
    soundfile.write(file, samples, sampling_rate, "PCM_16", format="FLAC")
    return file.getvalue()
