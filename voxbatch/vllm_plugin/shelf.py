"""Where the encoded audio of running requests lies until it is decoded: a place for each, taken once at the start.

vLLM keeps what the encoder gave until a request ends, and counts that memory nowhere. Here it is part of the model, so
that it is counted as the weights are, never grows and never falls into pieces.
"""

from __future__ import annotations

import weakref

import torch


class Shelf:
    """`places` times `rows` rows, each like `row`."""

    def __init__(self, places: int, rows: int, row: torch.Tensor):
        self._places = row.new_zeros(places, rows, len(row))
        self._free = list(range(places))

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
