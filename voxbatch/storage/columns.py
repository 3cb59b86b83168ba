"""Numbers and sets with one entry for each item of a run, so that a run of 100 million items needs no memory for them.

A `Column` has its values in a temporary file. An `ItemSet` has one bit for each item: 12.5 MB for 100 million.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.storage.local import read_at, write_at
from voxbatch.storage.temporary_files import temporary_errors

BLOCK = 1 << 16
"""Items that are handled at a time: the columns of a block take up to 1 MB."""
_BUFFER_BYTES = 1 << 20
"""Bytes that are collected before they are written."""


class Column:
    """Values of one type, `width` of them for each item, in a temporary file. It can be pickled for a process that
    inherits the descriptor `fd`."""

    def __init__(self, dtype: str, width: int = 1, fd: int | None = None, size: int = 0):
        """Begin an empty column.

        Args:
            dtype: NumPy's name of the type of a value.
            fd: descriptor of the file of another column with `size` items, which is duplicated.

        Raises:
            TemporaryFileError: the file cannot be created.
        """
        self.dtype, self.width = np.dtype(dtype), width
        self._size, self._buffer = size, bytearray()
        self._item_bytes = self.dtype.itemsize * width
        with temporary_errors("the list of items"):
            if fd is not None:
                self.fd = os.dup(fd)
            else:
                with tempfile.TemporaryFile() as file:
                    self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)

    def __reduce__(self) -> tuple[Any, ...]:
        self._flush()
        return Column, (self.dtype.str, self.width, self.fd, self._size)

    def __len__(self) -> int:
        return self._size

    def append(self, values: bytes | NDArray[Any]) -> None:
        """Append values: an array, or their bytes.

        Raises:
            TemporaryFileError: the file cannot be written.
        """
        data = values if isinstance(values, bytes) else values.astype(self.dtype, copy=False).tobytes()
        self._buffer += data
        self._size += len(data) // self._item_bytes
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (index of the first item, the values) of each BLOCK of items: shape (items,), or (items, width)."""
        for start in range(0, self._size, BLOCK):
            yield start, self.read(start, min(start + BLOCK, self._size))

    def at_most(self, maximum: float) -> Column:
        """Return a column with the maximum in place of each greater value. NaN stays."""
        if maximum == math.inf:
            return self
        column = Column(self.dtype.str, self.width)
        for _, block in self.blocks():
            column.append(np.minimum(block, maximum))
        return column

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values of some items; see `blocks`.

        Raises:
            LocalReadError: the file cannot be read.
        """
        self._flush()
        values = np.empty((stop - start) * self.width, self.dtype)
        view, at = values.view(np.uint8).data, start * self._item_bytes
        while view:
            data = read_at(self.fd, len(view), at)
            assert data, "a column ends before its last item"
            view[: len(data)] = data
            view, at = view[len(data) :], at + len(data)
        return values if self.width == 1 else values.reshape(-1, self.width)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values in memory, for NumPy."""
        return self.read(0, self._size).astype(dtype or self.dtype, copy=False)

    def _flush(self) -> None:
        with temporary_errors("the list of items"):
            write_at(self.fd, self._buffer, self._size * self._item_bytes - len(self._buffer))
        self._buffer.clear()


class ItemSet:
    """A set of items, by their indexes: one bit for each item of a run."""

    def __init__(self, size: int, is_full: bool = False):
        """Begin a set, empty or full, of the items 0 to size - 1."""
        self.size = size
        self._bits = bytearray(b"\xff" * (-(-size // 8))) if is_full else bytearray(-(-size // 8))
        if is_full and size % 8:
            self._bits[-1] = (1 << size % 8) - 1

    @classmethod
    def of_bytes(cls, size: int, bits: bytes) -> ItemSet:
        """Return the set of the items 0 to size - 1 that `to_bytes` gave.

        Raises:
            ValueError: the set has another size.
        """
        items = cls(size)
        if len(bits) != len(items._bits):
            raise ValueError(f"{len(bits)} bytes are not the bits of {size} items")
        items._bits[:] = bits
        return items

    def to_bytes(self) -> bytes:
        """Return the bits of the items, the first one in the lowest bit of the first byte."""
        return bytes(self._bits)

    def __getitem__(self, index: int) -> bool:
        """Return whether an item is in the set."""
        return bool(self._bits[index >> 3] >> (index & 7) & 1)

    def __setitem__(self, index: int, is_in: bool) -> None:
        if is_in:
            self._bits[index >> 3] |= 1 << (index & 7)
        else:
            self._bits[index >> 3] &= ~(1 << (index & 7))

    def add(self, indexes: NDArray[np.integer]) -> None:
        """Add items."""
        bits = np.left_shift(1, indexes & 7).astype(np.uint8)
        np.bitwise_or.at(np.frombuffer(self._bits, np.uint8), indexes >> 3, bits)

    def block(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return whether each item from `start`, a multiple of 8, to before `stop` is in the set."""
        bits = np.unpackbits(np.frombuffer(self._bits, np.uint8)[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[: stop - start].view(np.bool_)

    def blocks(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield (index of the first item, whether each item is in the set) of each BLOCK of items."""
        for start in range(0, self.size, BLOCK):
            yield start, self.block(start, min(start + BLOCK, self.size))

    def __iter__(self) -> Iterator[bool]:
        """Yield for each item whether it is in the set."""
        for _, block in self.blocks():
            yield from block.tolist()

    def count(self) -> int:
        """Return the number of items in the set."""
        return sum(int(np.count_nonzero(block)) for _, block in self.blocks())

    def any(self) -> bool:
        """Return whether any item is in the set."""
        return any(self._bits)

    def first(self, count: int) -> NDArray[np.intp]:
        """Return the indexes of the first items in the set, at most so many, in ascending order."""
        indexes = (start + index for start, block in self.blocks() for index in np.flatnonzero(block))
        return np.fromiter(islice(indexes, count), np.intp)

    def __and__(self, other: ItemSet) -> ItemSet:
        return self._combined(np.bitwise_and, other)

    def __sub__(self, other: ItemSet) -> ItemSet:
        result = self & other
        return result._combined(np.bitwise_xor, self)

    def _combined(self, operation: np.ufunc, other: ItemSet) -> ItemSet:
        result = ItemSet(self.size)
        own_bits, other_bits = np.frombuffer(self._bits, np.uint8), np.frombuffer(other._bits, np.uint8)
        operation(own_bits, other_bits, out=np.frombuffer(result._bits, np.uint8))
        return result


SORTED_HASHES = 1 << 22
"""Hashes that are sorted at a time, about: 32 MB. 100 million are read 32 times."""


def repeated_hashes(hashes: Column) -> NDArray[np.int64]:
    """Return, in ascending order, the hash of every duplicate: a hash that occurs three times is returned twice.

    Args:
        hashes: 64-bit integers. If there are several for each item, the first one counts.
    """
    groups = 1
    while len(hashes) > groups * SORTED_HASHES:
        groups *= 2
    duplicates = [np.empty(0, np.int64)]
    for group in range(groups):
        values = np.concatenate([np.empty(0, np.int64), *_group(hashes, groups, group)])
        values.sort()
        duplicates.append(values[1:][values[1:] == values[:-1]])
    result = np.concatenate(duplicates)
    result.sort()
    return result


def _group(hashes: Column, groups: int, group: int) -> Iterable[NDArray[np.int64]]:
    """Yield the hashes whose low bits are `group`, a block at a time."""
    for _, block in hashes.blocks():
        values = (block if hashes.width == 1 else block[:, 0]).view(np.int64)
        yield values[(values & (groups - 1)) == group]
