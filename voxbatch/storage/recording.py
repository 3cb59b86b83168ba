"""A recording as decoders want it: bytes at any position, and, for the programs that need one, an open regular file.

A local file is itself. A small object comes whole, in one request, into memory; of a large one come the blocks that are
read, and the next ones ahead of the reader, so that a part of it costs no more than that part and its length no memory.
All blocks are of one revision. ffmpeg takes files only: for it a large object is brought to TMPDIR whole.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

from voxbatch.storage.objects import Digest, Interrupted, Piece, Stat, Unfit
from voxbatch.storage.spool import spool
from voxbatch.storage.steady import SteadyReader, blocks

_T = TypeVar("_T")

BLOCK_BYTES = 4 << 20
"""What is asked for at a time, and the most that a small object has: two minutes of 16 kHz WAV."""
AHEAD = 2
"""Blocks on their way behind the one that is read: three requests at a time fill most networks."""
WAITING_S = 10.0
"""Between two calls of Recording.waiting."""
KEPT = 6
"""Blocks in memory. Decoders read on from where they are; now and then they look at the start or the end."""


class Recording(Protocol):
    size: int
    """Bytes."""
    is_file: bool
    """Whether all of it lies in the file that `fileno` tells of."""
    came: float
    """When the last bytes came from its place, on time.monotonic's clock."""
    waiting: Callable[[], None]
    """Called now and then by who waits for bytes."""

    def pread(self, count: int, at: int) -> bytes:
        """Fewer bytes where the recording ends before.

        Raises:
            Interrupted: the store does not answer.
            Unfit: another recording stands in its place now.
        """

    def fileno(self) -> int:
        """Of a regular file that holds it all; to be read, and left open. Raises as `pread` does."""

    def close(self) -> None: ...


class FileRecording:
    """An open file, closed with this."""

    is_file = True

    def __init__(self, fd: int):
        self._fd = fd
        self.came = time.monotonic()
        self.waiting = lambda: None
        self.size = os.fstat(fd).st_size

    def pread(self, count: int, at: int) -> bytes:
        return os.pread(self._fd, count, at)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def fetch(reader: SteadyReader, key: str, block_bytes: int = BLOCK_BYTES) -> Recording:
    """The recording at an address: small ones whole, of large ones the first block.

    Raises:
        Absent, Unfit, Interrupted, StorageError
    """
    first = reader.get(key, 0, block_bytes)
    if first.is_packed:
        raise Unfit(f"cannot read {reader.where(key)}: it is stored with Content-Encoding: gzip; unpack it")
    if len(first.data) < block_bytes:
        return _in_memory(first.data)
    if first.is_all:
        return FileRecording(_spooled(reader, key, first.tag))
    stat = reader.stat(key, first.tag)
    if stat.size < len(first.data):  # -1 where a web server no longer tells
        where = reader.where(key)
        raise Unfit(f"cannot read {where}: it changed while it was read, or its server no longer tells its size")
    return _Ranged(reader, stat, first)


def _spooled(reader: SteadyReader, key: str, tag: str, arrived: Callable[[], None] = lambda: None) -> int:
    def told() -> Iterator[bytes]:
        for block in blocks(reader, key, BLOCK_BYTES, BLOCK_BYTES, tag):
            arrived()
            yield block

    with spool(reader.where(key), told()) as file:
        return os.dup(file.fileno())


def _in_memory(data: bytes) -> FileRecording:
    fd = os.memfd_create("recording")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return FileRecording(fd)


class _Ranged:
    """A large object of which blocks as long as the first come as they are wanted. One thread reads; others fetch."""

    is_file = False

    def __init__(self, reader: SteadyReader, stat: Stat, first: Piece):
        self.came = time.monotonic()
        self.waiting: Callable[[], None] = lambda: None
        self._reader, self._stat = reader, stat
        self.size, self._bytes = stat.size, len(first.data)
        self._last = (stat.size - 1) // self._bytes
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._pool = ThreadPoolExecutor(AHEAD + 1, thread_name_prefix="block")
        self._fd: int | None = None
        self._digest, self._digested = Digest(stat.checksum), 0
        done: Future[bytes] = Future()
        done.set_result(first.data)
        self._blocks[0] = done

    def pread(self, count: int, at: int) -> bytes:
        parts = []
        end = min(at + count, self.size)
        while at < end:
            number, begin = divmod(at, self._bytes)
            data = self._block(number)[begin : begin + end - at]
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if _has_failed(self._blocks.get(number)):  # long ago maybe, and its place answers again
            del self._blocks[number]
        for wanted in range(number, min(number + AHEAD, self._last) + 1):
            if wanted not in self._blocks:
                self._blocks[wanted] = self._pool.submit(self._fetch, wanted)
        self._blocks.move_to_end(number)
        while len(self._blocks) > KEPT:
            self._blocks.popitem(last=False)
        data = self._awaited(self._blocks[number])
        self._check(number, data)
        return data

    def _awaited(self, coming: Future[_T]) -> _T:
        while not wait([coming], WAITING_S).done:
            self.waiting()
        return coming.result()

    def _fetch(self, number: int) -> bytes:
        start = number * self._bytes
        wanted = min(start + self._bytes, self.size)
        data = self._reader.get(self._stat.key, start, wanted, self._stat.tag).data
        self._arrived()
        if len(data) != wanted - start:
            where = self._reader.where(self._stat.key)
            raise Unfit(f"cannot read {where}: it changed while it was read: let its writer finish, then start again")
        return data

    def _check(self, number: int, data: bytes) -> None:
        """The whole's checksum, as far as the whole is read in order."""
        if number != self._digested:
            return
        self._digested += 1
        self._digest.update(data)
        if number == self._last:
            try:
                self._digest.check(self._reader.where(self._stat.key))
            except Interrupted as e:  # after all of it came: the recording is to blame, and its place is not down
                raise Unfit(str(e)) from None

    def fileno(self) -> int:
        if self._fd is None:
            coming = self._pool.submit(_spooled, self._reader, self._stat.key, self._stat.tag, self._arrived)
            self._fd = self._awaited(coming)
        return self._fd

    def _arrived(self) -> None:
        self.came = time.monotonic()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._fd is not None:
            os.close(self._fd)


def _has_failed(block: Future[bytes] | None) -> bool:
    return block is not None and block.done() and block.exception() is not None
