"""A merged output that is written while its lines come, so that one pass over the entries feeds several files.

A Store takes the blocks of a file from an iterator, so a thread of each file waits for them. The file appears when all
lines have come, or not at all.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from types import TracebackType

from voxbatch.output.layout import FAILURES
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.storage import Store

BLOCK_BYTES = 1 << 20
"""Bytes of lines that are given to the thread at a time."""


class Change(Enum):
    """The change of a merged output by a merge."""

    CREATE = "create"
    """It is written unless another process writes it first."""
    REPLACE = "replace"
    KEEP = "keep"
    """It is not written."""


class _Incomplete(Exception):
    """Not all lines have come."""


class MergedFile:
    """A merged output. Use it as a context: its thread ends with the context, and without `finish` nothing is
    written."""

    def __init__(self, store: Store, name: str, kind: str, owner: Ownership, change: Change):
        """Begin without lines. The file takes the entries of a kind."""
        self._store, self._name, self._kind, self._owner, self._change = store, name, kind, owner, change
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._blocks: queue.Queue[list[bytes] | None] = queue.Queue(maxsize=2)
        """Blocks for the thread. An empty block is the end. None means that not all lines have come."""
        self._pool = ThreadPoolExecutor(1, f"write {name}")
        self._writing: Future[bool] | None = None

    def __enter__(self) -> MergedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writing is not None and not self._writing.done():
            self._put(None)
        self._pool.shutdown()

    def add(self, entry: PartEntry, _: object = None) -> None:
        """Add the line of an entry, if it is of the kind of the file.

        Raises:
            StorageError: the file cannot be written.
        """
        if entry.kind == self._kind and self._change != Change.KEEP:
            self._lines += (entry.line, b"\n")
            self._num_bytes += len(entry.line) + 1
            if self._num_bytes >= BLOCK_BYTES:
                self._flush()

    def finish(self) -> bool:
        """Write the file. If no item failed, there is no failures.jsonl: many readers of JSON lines refuse an empty
        file.

        Returns:
            True if the file has the lines. False if it existed, and was not to be replaced.

        Raises:
            StorageError: the file cannot be written.
            TakenOverError: OUT belongs to another run now.
        """
        if self._change == Change.KEEP:
            return False
        if self._writing is None and not self._lines and self._name == FAILURES:
            if self._change == Change.REPLACE:
                self._store.delete(self._name, self._owner.check_again)
            return True
        if self._lines or self._writing is None:
            self._flush()
        self._put([])
        assert self._writing is not None
        return self._writing.result()

    def _flush(self) -> None:
        if self._writing is None:
            self._writing = self._pool.submit(self._write)
        if self._lines:
            self._put(self._lines)
        self._lines, self._num_bytes = [], 0

    def _put(self, block: list[bytes] | None) -> None:
        """Give a block to the thread, unless it has ended.

        Raises:
            StorageError, TakenOverError: the thread has ended with an error.
        """
        assert self._writing is not None
        while not self._writing.done():
            with contextlib.suppress(queue.Full):
                self._blocks.put(block, timeout=0.1)
                return
        if block is not None:
            self._writing.result()

    def _write(self) -> bool:
        if self._change == Change.CREATE:
            return self._store.create(self._name, self._content())
        self._store.write(self._name, self._content())
        return True

    def _content(self) -> Iterator[bytes]:
        """Yield the blocks. The owner is checked after the last one, just before the file appears."""
        while block := self._blocks.get():
            yield b"".join(block)
        if block is None:
            raise _Incomplete
        self._owner.check_again()
