"""Choose the excerpts of a recording that are decoded in place of all of it."""

from __future__ import annotations

from dataclasses import replace

from voxbatch.decoding.messages import DecodeTask
from voxbatch.records import SAMPLING_RATE


def excerpt_starts(total_s: float, length_s: float, count: int) -> list[float]:
    """Return the starts of excerpts that are spread over a recording: the middles of equal stretches, in seconds.

        (600, 30, 3)  →  [85.0, 285.0, 485.0]

    The beginning and the end are left out, where many recordings have music or an announcement.

    Args:
        total_s: length of the recording, at least `count` × `length_s`.
    """
    return [(2 * number + 1) * total_s / (2 * count) - length_s / 2 for number in range(count)]


def excerpts_of(task: DecodeTask, claimed_s: float) -> list[DecodeTask]:
    """Return a task for each excerpt of a recording. Empty if all of it is to be decoded.

    Args:
        claimed_s: seconds of the task's audio by the header; 0 if the header does not tell.
    """
    length_s = task.limit / SAMPLING_RATE
    if task.excerpts is None or claimed_s <= task.excerpts * length_s:
        return []
    starts = excerpt_starts(claimed_s, length_s, task.excerpts)
    return [replace(task, offset=task.offset + start, duration=length_s) for start in starts]
