"""Admission in bursts, for an encoder that runs once per chunk.

A step that only decodes is one CUDA graph; a step that also computes a prompt is not. So each admission makes a step
slower. For this reason a whole burst of requests is admitted in one step, and the steps between two bursts only decode.
"""

from __future__ import annotations

BURSTS, LARGEST = 14, 36
"""Number of bursts that admit as many requests as may run at a time, and maximum number of requests in a burst.

On an H200 a burst of 36 chunks takes the GPU from the decoding requests for about 0.25 s. More and smaller bursts would
slow down more steps. Before a larger burst, a GPU with power to spare would wait, because the host would need longer to
prepare the burst than the GPU needs for a step of the other requests."""


def size(most: int) -> int:
    """Return the number of requests in a burst if `most` requests may run at a time."""
    return max(1, min(LARGEST, most // BURSTS))
