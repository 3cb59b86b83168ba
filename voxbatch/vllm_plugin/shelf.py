"""Where the encoded audio of running requests lies until it is decoded: a place for each, taken once at the start.

vLLM keeps what the encoder gave until a request ends, and counts that memory nowhere. Here it is part of the model, so
that it is counted as the weights are, never grows and never falls into pieces.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence

import numpy as np
import torch

ELSEWHERE = -1


class Shelf:
    """`places` times `rows` rows, each like `row`."""

    def __init__(self, places: int, rows: int, row: torch.Tensor):
        self._places = row.new_zeros(places, rows, len(row))
        self._free = list(range(places))
        self._begins: dict[str, int] = {}
        self.last = places * rows - 1
        """Number of the last row."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """The same rows on the shelf. Their place is free again as soon as nobody holds the returned object; a slice
        of it does not count, but work that was already given to the GPU is done before other rows arrive.

        Where no place is free, or the rows are too many, they come back in memory of their own.
        """
        if not self._free or len(rows) > self._places.shape[1]:
            return rows.clone()
        place = self._free.pop()
        kept = self._places[place, : len(rows)]
        kept.copy_(rows)
        weakref.finalize(kept, self._free.append, place).atexit = False
        return kept

    # -- by number of row ----------------------------------------------------------------------------------------------

    def note(self, name: str, rows: torch.Tensor | None) -> None:
        """From now on the request `name` has these rows."""
        self._begins[name] = self._begin(rows) if rows is not None else ELSEWHERE

    @property
    def is_crowded(self) -> bool:
        """Many names are of requests that have ended."""
        return len(self._begins) > 4 * len(self._places)

    def keep_only(self, names: Container[str]) -> None:
        self._begins = {name: begin for name, begin in self._begins.items() if name in names}

    def begins(self, names: Sequence[str]) -> np.ndarray | None:
        """[names], int64: where each one's rows begin; None where one's are elsewhere."""
        found = np.fromiter((self._begins.get(name, ELSEWHERE) for name in names), np.int64, len(names))
        return None if found.min() == ELSEWHERE else found

    def take(self, numbers: torch.Tensor) -> torch.Tensor:
        """[numbers, width], copied.

        Args:
            numbers: [numbers], int64, on the shelf's device.
        """
        return self._places.flatten(0, 1).index_select(0, numbers)

    def _begin(self, rows: torch.Tensor) -> int:
        here = rows.untyped_storage().data_ptr() == self._places.untyped_storage().data_ptr()
        return rows.storage_offset() // self._places.shape[2] if here else ELSEWHERE
