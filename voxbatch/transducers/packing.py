"""Put clips of any length into rows of a few fixed lengths, so that a GPU computes hardly any padding and PyTorch
compiles few shapes.

A row is a stretch of frames of the encoder; `FRAME` samples give one. Several clips share a row, with a gap between
them: attention stays inside a clip, and the gap is as long as the reach of the convolutions. So a clip gives what it
gives alone. A clip that fills no row takes shorter ones along:

    clips of 200, 330, 90, 120 and 30 frames, rows of 344 frames  →  [330] [200, 120] [90, 30]
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 4
"""Frames between two clips of a row: half the depthwise convolution of the encoder (9 frames). A frame of the features
needs less."""
MAX_CLIPS = 32
"""Largest number of clips in a row."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a clip in a batch of rows."""

    clip: int
    """Index of the clip."""
    row: int
    start: int
    """Frame of the row at which the clip begins."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one length."""

    num_frames: int
    """Length of each row."""
    num_rows: int
    """Rows that have clips."""
    places: tuple[Place, ...]


def packed(
    lengths: Sequence[int], row_lengths: Sequence[int], max_rows: int, max_clips: int = MAX_CLIPS
) -> list[Batch]:
    """Return batches that have each clip once.

    The longest clip without a place begins a row of the smallest length that holds it. The longest clips that still
    fit follow. (This is best fit decreasing: at most 11/9 of the fewest rows, and usually one in a hundred more.)

    Args:
        lengths: frames of each clip, from 1 to the longest row.
        row_lengths: the lengths that a row may have, ascending.
        max_rows: the most rows of a batch.
        max_clips: the most clips of a row.
    """
    order = sorted(range(len(lengths)), key=lambda clip: (lengths[clip], -clip))
    sizes = [lengths[clip] for clip in order]
    rows: dict[int, list[list[Place]]] = {}
    while order:
        free = row = row_lengths[bisect.bisect_left(row_lengths, sizes[-1])]
        of_length = rows.setdefault(row, [])
        places: list[Place] = []
        while len(places) < max_clips and (fitting := bisect.bisect_right(sizes, free)):
            places.append(Place(order.pop(fitting - 1), len(of_length) % max_rows, row - free))
            free -= sizes.pop(fitting - 1) + GAP
        of_length.append(places)
    return [
        Batch(length, len(part), tuple(place for places in part for place in places))
        for length, of_length in sorted(rows.items(), reverse=True)
        for part in (of_length[first : first + max_rows] for first in range(0, len(of_length), max_rows))
    ]
