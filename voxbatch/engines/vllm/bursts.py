"""When new requests are admitted, where the encoder runs once a chunk: in bursts.

Each admission breaks up a step: one that only decodes is one CUDA graph, one with a prompt in it is not. So as many
requests as make a burst are let in together, and the steps between two bursts are left alone.
"""

from __future__ import annotations

BURSTS, LARGEST = 14, 36
"""In which as many requests are admitted as may run, and how many one is at most. It takes the GPU from those that
decode for some 0.25 s on an H200 (36 chunks). More and smaller ones break up more steps; before a larger one a GPU that
has power to spare waits, for the host takes longer to prepare it than a step of the others does."""


def size(most: int) -> int:
    """Requests that make a burst, where so many may run."""
    return max(1, min(LARGEST, most // BURSTS))
