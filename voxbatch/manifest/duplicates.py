"""Find duplicates among many 64-bit hashes, in memory that does not grow with their number.

The hashes go to an unnamed temporary file, 8 bytes each. They are then examined in shares that are small enough to
sort.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import StorageError

SHARE = 1 << 17
"""Number of hashes sorted at a time: a megabyte, and a few more for their order."""
_BLOCK = 1 << 16


class DuplicateFinder:
    """Finds duplicates: append hashes in order, then ask which of them repeat an earlier one."""

    def __init__(self, share: int = SHARE) -> None:
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 it has no name, and `close` closes it
        except OSError as e:
            raise StorageError(f"cannot make a temporary file: {e.strerror}; set TMPDIR to another folder") from e
        self._block = array("q")
        self._count, self._share = 0, share

    def append(self, value: int) -> None:
        """Add one hash, a signed 64-bit integer.

        Raises:
            StorageError: the temporary file cannot be written.
        """
        self._block.append(value)
        if len(self._block) == _BLOCK:
            self._flush()

    def first(self, limit: int) -> tuple[set[int], int]:
        """Return (the hashes of the `limit` earliest duplicates, the number of duplicates of all other hashes)."""
        self._flush()
        earliest, total = np.zeros((0, 2), np.int64), 0
        for positions, values in self._shares():
            order = np.argsort(values, kind="stable")
            again = order[1:][values[order[1:]] == values[order[:-1]]]
            total += len(again)
            found = np.stack([positions[again], values[again]], axis=1)
            earliest = np.concatenate([earliest, found])
            earliest = earliest[np.argsort(earliest[:, 0])][:limit]
        hashes = np.unique(earliest[:, 1])
        return set(hashes.tolist()), total - self._repeats_of(hashes) if total else 0

    def _repeats_of(self, hashes: NDArray[np.int64]) -> int:
        return sum(int(np.isin(values, hashes).sum()) for _, values in self._shares()) - len(hashes)

    def _shares(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (positions, hashes) of each share. Equal hashes are in the same share."""
        shares = -(-self._count // self._share)
        for share in range(shares):
            parts = [
                (start + np.flatnonzero(mine), block[mine])
                for start, block in self._blocks()
                if (mine := block % shares == share).any()
            ]
            if parts:
                yield np.concatenate([p for p, _ in parts]), np.concatenate([v for _, v in parts])

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        self._file.seek(0)
        start = 0
        while data := self._file.read(8 * _BLOCK):
            block = np.frombuffer(data, np.int64)
            yield start, block
            start += len(block)

    def _flush(self) -> None:
        try:
            self._file.write(self._block.tobytes())
            self._file.flush()
        except OSError as e:
            raise StorageError(f"cannot write a temporary file: {e.strerror}; free some space or set TMPDIR") from e
        self._count += len(self._block)
        del self._block[:]

    def close(self) -> None:
        """Close the temporary file, which removes it."""
        self._file.close()
