"""When new requests are admitted, where the encoder runs once a chunk: in bursts.

Each admission breaks up a step: one that only decodes is one CUDA graph, one with a prompt in it is not. So as many
requests as make a burst are let in together, and the steps between two bursts are left alone.
"""

from __future__ import annotations

BURSTS, LARGEST = 14, 36
"""In which as many requests are admitted as may run, and how many one is at most. It takes the GPU from those that
decode for some 0.25 s on an H200 (36 chunks). More and smaller ones break up more steps; before a larger one the GPU
waits, for the host takes longer to prepare it than a step of the others does."""


def size(most: int) -> int:
    """Requests that make a burst, where so many may run."""
    return max(1, min(LARGEST, most // BURSTS))


def opens(running: int, most: int, was_open: bool) -> bool:
    """Whether the door is open for a step: when a burst has room, or nothing runs, or it was left open.

    Args:
        running: requests now.
        most: that may run.
        was_open: see stays_open, of the step before.
    """
    room = most - running
    return room > 0 and (was_open or running == 0 or room >= size(most))


def stays_open(running: int, waiting: int, most: int) -> bool:
    """Whether an open door is left open after a step: the burst had more in it than the step could take.

    Args:
        running: requests, those included that the step has let in.
        waiting: requests that it has not.
    """
    return waiting > 0 and running < most
