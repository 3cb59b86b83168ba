"""Encoder output pool: memory for the encoded audio of running requests, allocated once at the start.

vLLM keeps the encoder's output until a request ends, and counts that memory nowhere. Here the memory is part of the
model. So it is counted like the weights, never grows and never fragments.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence

import numpy as np
import torch

OUTSIDE = -1
"""First row of audio that is outside the pool."""


class EncoderOutputPool:
    """Pool of `slots` slots, each of `rows` rows that have the width, number format and device of `row`."""

    def __init__(self, slots: int, rows: int, row: torch.Tensor):
        self._slots = row.new_zeros(slots, rows, len(row))
        self._free = list(range(slots))
        self._first_rows: dict[str, int] = {}
        self.last_row = slots * rows - 1

    def store(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy the rows into a free slot, and return them there.

        The slot is free again as soon as nobody holds the returned object. A slice of it does not hold the slot. Work
        that was already given to the GPU is done before other rows arrive.

        If no slot is free, or the rows are too many for a slot, they are returned in memory of their own.
        """
        if not self._free or len(rows) > self._slots.shape[1]:
            return rows.clone()
        slot = self._free.pop()
        stored = self._slots[slot, : len(rows)]
        stored.copy_(rows)
        weakref.finalize(stored, self._free.append, slot).atexit = False
        return stored

    # -- by row number -------------------------------------------------------------------------------------------------

    def first_row(self, rows: torch.Tensor | None) -> int:
        """Return the number of the first of these rows in the pool, or OUTSIDE."""
        if rows is None or rows.untyped_storage().data_ptr() != self._slots.untyped_storage().data_ptr():
            return OUTSIDE
        return int(rows.storage_offset() // self._slots.shape[2])

    def assign(self, request_id: str, rows: torch.Tensor | None) -> None:
        """Record that a request has these rows from now on."""
        self._first_rows[request_id] = self.first_row(rows)

    @property
    def has_many_ended(self) -> bool:
        """Tell whether most recorded requests have ended."""
        return len(self._first_rows) > 4 * len(self._slots)

    def keep_only(self, request_ids: Container[str]) -> None:
        """Forget all recorded requests but these."""
        self._first_rows = {name: row for name, row in self._first_rows.items() if name in request_ids}

    def first_rows(self, request_ids: Sequence[str]) -> np.ndarray | None:
        """Return the first row of each request, [requests], int64; None if the rows of one are outside the pool."""
        rows = (self._first_rows.get(name, OUTSIDE) for name in request_ids)
        first_rows = np.fromiter(rows, np.int64, len(request_ids))
        return None if first_rows.min() == OUTSIDE else first_rows

    def gather(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows with these numbers, [numbers, width].

        Args:
            numbers: [numbers], int64, on the pool's device.
        """
        return self._slots.flatten(0, 1).index_select(0, numbers)
