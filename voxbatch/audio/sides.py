"""Tell a call with a side in each channel from other recordings with several channels, by the first minutes.

In a call, mostly one side speaks at a time, so one channel is much louder than the other, now this one, now that one.
In music, in a film and in a conversation that was recorded with two microphones, both channels are about as loud.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from voxbatch.audio.libsndfile import NativeBlock
from voxbatch.records import AUTO
from voxbatch.voice import SILENCE_DB, decibels, frame_powers

JUDGED_SECONDS = 180
"""Seconds at the start by which the channels are judged. They take 70 MB at 48 kHz."""
FRAME_SECONDS = 0.05
"""Length of the frames whose levels are compared: shorter than a syllable."""
SAME_CORRELATION = 0.99
"""Correlation from which two channels hold the same sound, also at another level or in opposite phase. Dual mono has
1.00. The sides of a call have less than 0.4, also if each hears the other at -15 dB."""
ACTIVE_RANGE_DB = 30.0
"""Frames are compared if their louder channel is at most so far below the loud frames (95th percentile)."""
DOMINANT_DB = 10.0
"""Difference in dB from which one channel is much louder. The sides of real calls differ by 15 dB and more."""
DOMINATED_SHARE = 0.6
"""Smallest share of frames of a call in which one channel is much louder. In the others, both sides speak."""
SIDE_SHARE = 0.05
"""Smallest share of frames of a call in which each of the channels is the louder one."""


def separate_channels(
    blocks: Iterator[NativeBlock], rate: int, channels: int, mode: str
) -> tuple[bool, str | None, Iterator[NativeBlock]]:
    """Decide whether the channels of a recording are recognised alone.

    Args:
        blocks: the recording's consecutive blocks of shape (frames, channels).

    Returns:
        The decision; a note if there is only one channel to split, or if channels are silent or the same; and all of
        the blocks.
    """
    only_calls = mode == AUTO
    if channels == 1:
        note = "the recording has one channel: it was transcribed without speakers" if not only_calls else None
        return False, note, blocks
    if channels > 2 and only_calls:  # no call
        return False, None, blocks
    begin, num_frames = list[NativeBlock](), 0
    for block in blocks:
        begin.append(block)
        num_frames += len(block)
        if num_frames >= JUDGED_SECONDS * rate:
            break
    sides = _measure(begin, max(1, int(rate * FRAME_SECONDS)), channels)
    note = None
    if sides.are_same:
        note = "the channels hold the same sound: they were transcribed as one"
    elif sides.silent:
        numbers = ", ".join(map(str, sides.silent))
        note = f"silent in the first {min(JUDGED_SECONDS, num_frames / rate):.0f} s: channel {numbers}"
    is_split = not sides.are_same and (not only_calls or (sides.is_call and not sides.silent))
    return is_split, note, chain(begin, blocks)


@dataclass(frozen=True, slots=True)
class _Sides:
    silent: tuple[int, ...]
    are_same: bool
    """True if all channels hold the same sound."""
    is_call: bool
    """True if the first two channels are the sides of a call."""


def _measure(blocks: Iterable[NativeBlock], frame: int, channels: int) -> _Sides:
    """Return what the levels of the channels show.

    Args:
        blocks: consecutive blocks of shape (frames, channels).
        frame: frames of a level.
    """
    products, powers = np.zeros((channels, channels)), list[NDArray[np.float64]]()
    for block in blocks:
        products += block.T @ block
        powers.append(frame_powers(block, frame))
    levels = decibels(np.concatenate([*powers, np.zeros((1, channels))]))
    silent = tuple(np.flatnonzero(levels.max(axis=0) <= SILENCE_DB).tolist())
    norms = np.sqrt(np.maximum(np.diag(products), 1e-30))
    are_same = not silent and bool((np.abs(products / np.outer(norms, norms)) >= SAME_CORRELATION).all())
    louder = levels[:, :2].max(axis=1)
    active = levels[louder > max(np.percentile(louder, 95) - ACTIVE_RANGE_DB, SILENCE_DB)]
    if not len(active):
        return _Sides(silent, are_same, is_call=False)
    difference = active[:, 0] - active[:, 1]
    shares = [float((difference > DOMINANT_DB).mean()), float((difference < -DOMINANT_DB).mean())]
    return _Sides(silent, are_same, sum(shares) >= DOMINATED_SHARE and min(shares) >= SIDE_SHARE)
