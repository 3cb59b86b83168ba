"""Fetch a recording from a store or a web server while it is decoded.

A small object is fetched in one request and held in memory. A large object is fetched in blocks as they are read, and
the next blocks are prefetched. A part of it therefore costs no more than that part, and its length costs no memory. All
blocks are of one revision (see `revision`). ffmpeg takes only files, so a large object for ffmpeg is first copied to
TMPDIR. So is an object of a web server that sends other bytes to each request: in one reply.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.errors import (
    DamagedObject,
    DamagedTransfer,
    UnusableObject,
    VaryingObject,
    stored_compressed,
)
from voxbatch.storage.local import read_at
from voxbatch.storage.objects import Digest, Stat
from voxbatch.storage.recording import BLOCK_BYTES, WAITING_S, FileRecording, Recording
from voxbatch.storage.request_pool import BLOCK_THREADS, fetch_pool
from voxbatch.storage.retrying_client import RetryingReader
from voxbatch.storage.revision import SHARED_BYTES, Revision
from voxbatch.storage.temporary_files import temporary_file

_T = TypeVar("_T")

CACHED_BLOCKS = 6
"""Number of blocks in memory. Decoders mostly read forward; now and then they read at the start or the end."""
NO_LENGTH = "its server gives no length: if the transfer broke off, the end of the recording is missing"
"""Warning of a recording that a server sent without Content-Length and not in chunks (as in HTTP/1.0)."""


def fetch(reader: RetryingReader, key: str, block_bytes: int = BLOCK_BYTES) -> Recording:
    """Open the recording at an address. A small one is fetched completely; of a large one the first block is fetched.

    Raises:
        ObjectNotFound, UnusableObject, TransientError, StorageError
    """
    first = reader.get(key, 0, block_bytes)
    if first.is_gzipped:
        raise stored_compressed(reader.where(key))
    warnings = () if first.has_length else (NO_LENGTH,)
    if len(first.data) < block_bytes:
        return FileRecording.in_memory(first.data, warnings)
    if first.is_whole_object or not first.tag:  # without a tag, two requests may give bytes of two contents
        return FileRecording(_in_one_reply(reader, key, first.tag), warnings)
    revision = Revision(reader, reader.where(key), key, first)
    if first.size is None:
        return _Ranged(reader, revision, reader.stat(key, first.tag), first.data)
    try:  # a second reply is compared with the first one before anything is decoded
        revision.get(max(0, block_bytes - SHARED_BYTES), block_bytes)
    except VaryingObject:
        return FileRecording(_in_one_reply(reader, key, first.tag))
    return _Ranged(reader, revision, Stat(key, first.size, first.tag), first.data)


def _in_one_reply(reader: RetryingReader, key: str, tag: str) -> int:
    """Return the descriptor of a temporary file with an object, all of whose bytes are of one reply."""
    with temporary_file(reader.where(key), reader.whole(key, tag)) as file:
        return os.dup(file.fileno())


class _Ranged:
    """Large object that is fetched in blocks of the first block's length, as they are read. One thread reads; the
    fetch pool fetches."""

    is_file = False
    warnings: tuple[str, ...] = ()

    def __init__(self, reader: RetryingReader, revision: Revision, stat: Stat, first: bytes):
        self.last_arrival = time.monotonic()
        self.on_wait: Callable[[], None] = lambda: None
        self._reader, self._revision, self._stat = reader, revision, stat
        self.size, self._bytes = stat.size, len(first)
        self._last = (stat.size - 1) // self._bytes
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._fd: int | None = None
        self._digest = Digest(stat.checksum)
        self._num_digested = 0
        """Number of blocks that are in the digest."""
        self._crcs: dict[int, int] = {}
        """The CRC-32 of each block that was read."""
        self._blocks[0] = _done(first)

    def pread(self, count: int, at: int) -> bytes:
        """See Recording.pread."""
        parts = []
        end = min(at + count, self.size)
        while at < end and self._fd is None:
            number, begin = divmod(at, self._bytes)
            try:
                data = self._block(number)[begin : begin + end - at]
            except UnusableObject as e:  # another content, or one that ends before the block
                if not self._revision.may_vary or e.kind is not FailureKind.CHANGED:
                    raise
                self._fd = self._checked(_in_one_reply, self._reader, self._stat.key, self._stat.tag)
                break
            parts.append(data)
            at += len(data)
        if at < end and self._fd is not None:
            parts.append(read_at(self._fd, end - at, at))
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block and block.done() and block.exception():  # perhaps long ago, and its place answers again
            del self._blocks[number]
        for following in range(number, min(number + BLOCK_THREADS, self._last + 1)):
            if following not in self._blocks:
                self._blocks[following] = fetch_pool.submit(self._fetch, following, urgent=True)
        self._blocks.move_to_end(number)
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        data = self._result(self._blocks[number])
        if number not in self._crcs:
            self._crcs[number] = zlib.crc32(data)
        if number == self._num_digested:  # the checksum is checked if the object is read completely and in order
            self._num_digested += 1
            self._digest.update(data)
            if number == self._last:
                try:
                    self._digest.check(self._reader.where(self._stat.key))
                except DamagedTransfer:
                    data = self._undamaged_last_block()
                    self._blocks[number] = _done(data)
        return data

    def _undamaged_last_block(self) -> bytes:
        """Fetch the object again, because a block of it is damaged, and return the last block.

        Raises:
            DamagedObject: the object arrives damaged each time; or the damaged block is an earlier one, which was
                already decoded.
        """
        del self._crcs[self._last]
        fd = self.fileno()
        return os.pread(fd, self._bytes, self._last * self._bytes)

    def _checked(self, copy: Callable[..., int], *arguments: object) -> int:
        """Return the descriptor of a copy of the object, after a comparison with the blocks that were read before.

        Raises:
            VaryingObject, DamagedObject: the copy has other bytes.
        """
        fd = self._result(fetch_pool.submit(copy, *arguments, urgent=True))
        self.last_arrival = time.monotonic()
        blocks = ((crc, os.pread(fd, self._bytes, number * self._bytes)) for number, crc in self._crcs.items())
        if os.fstat(fd).st_size == self.size and all(zlib.crc32(data) == crc for crc, data in blocks):
            return fd
        os.close(fd)
        where = self._reader.where(self._stat.key)
        if self._stat.checksum:
            text = f"cannot read {where}: bytes of it arrived damaged and were decoded: run the item again"
            raise DamagedObject(text)
        raise VaryingObject(where)

    def _result(self, coming: Future[_T]) -> _T:
        """Wait for the result, and call `on_wait` now and then."""
        while not wait([coming], WAITING_S).done:
            self.on_wait()
        return coming.result()

    def _fetch(self, number: int) -> bytes:
        start = number * self._bytes
        end = min(start + self._bytes, self.size)
        data = self._revision.get(start, end)
        self.last_arrival = time.monotonic()
        if len(data) != end - start:
            where = self._reader.where(self._stat.key)
            raise UnusableObject(
                f"cannot read {where}: it changed while it was read: let its writer finish, then start again",
                FailureKind.CHANGED,
            )
        return data

    def fileno(self) -> int:
        """See Recording.fileno. The first call copies the whole object to a temporary file."""
        if self._fd is None:
            self._fd = self._checked(self._copy)
        return self._fd

    def _copy(self) -> int:
        with self._reader.copy(self._stat.key, BLOCK_BYTES, BLOCK_BYTES, self._stat.tag) as file:
            return os.dup(file.fileno())

    def verify_unchanged(self) -> None:
        """See Recording.verify_unchanged. Every block was compared with the first one's revision when it arrived."""

    def close(self) -> None:
        """Stop fetching, and close the temporary file."""
        for block in self._blocks.values():
            block.cancel()
        if self._fd is not None:
            os.close(self._fd)


def _done(data: bytes) -> Future[bytes]:
    done: Future[bytes] = Future()
    done.set_result(data)
    return done
