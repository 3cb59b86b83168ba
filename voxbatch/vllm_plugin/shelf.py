"""Encoder output pool: memory for the encoded audio of running requests, allocated once at the start.

vLLM keeps the encoder's output until a request ends, and counts that memory nowhere. Here the memory is part of the
model. So it is counted like the weights, never grows and never fragments.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence

import numpy as np
import torch

ELSEWHERE = -1
"""Stands for the first row of audio that is outside the pool."""


class Shelf:
    """Pool of `places` places, each of `rows` rows that have the width, number format and device of `row`."""

    def __init__(self, places: int, rows: int, row: torch.Tensor):
        self._places = row.new_zeros(places, rows, len(row))
        self._free = list(range(places))
        self._begins: dict[str, int] = {}
        self.last = places * rows - 1
        """Number of the last row."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy the rows into a free place, and return them there.

        The place is free again as soon as nobody holds the returned object. A slice of it does not hold the place. Work
        that was already given to the GPU is done before other rows arrive.

        If no place is free, or the rows are too many for a place, they are returned in memory of their own.
        """
        if not self._free or len(rows) > self._places.shape[1]:
            return rows.clone()
        place = self._free.pop()
        kept = self._places[place, : len(rows)]
        kept.copy_(rows)
        weakref.finalize(kept, self._free.append, place).atexit = False
        return kept

    # -- by row number -------------------------------------------------------------------------------------------------

    def note(self, name: str, rows: torch.Tensor | None) -> None:
        """Record that the request `name` has these rows from now on."""
        self._begins[name] = self._begin(rows) if rows is not None else ELSEWHERE

    @property
    def is_crowded(self) -> bool:
        """Tell whether most recorded names belong to requests that have ended."""
        return len(self._begins) > 4 * len(self._places)

    def keep_only(self, names: Container[str]) -> None:
        """Forget all recorded requests but `names`."""
        self._begins = {name: begin for name, begin in self._begins.items() if name in names}

    def begins(self, names: Sequence[str]) -> np.ndarray | None:
        """Return the first row of each request, [names], int64; None if the rows of one are outside the pool."""
        found = np.fromiter((self._begins.get(name, ELSEWHERE) for name in names), np.int64, len(names))
        return None if found.min() == ELSEWHERE else found

    def take(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows with these numbers, [numbers, width].

        Args:
            numbers: [numbers], int64, on the pool's device.
        """
        return self._places.flatten(0, 1).index_select(0, numbers)

    def _begin(self, rows: torch.Tensor) -> int:
        here = rows.untyped_storage().data_ptr() == self._places.untyped_storage().data_ptr()
        return rows.storage_offset() // self._places.shape[2] if here else ELSEWHERE
