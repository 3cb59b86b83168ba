"""Open a recording for decoders: bytes at any position and, for programs that need one, an open regular file.

A local file is used directly. A small object is fetched in one request and held in memory. A large object is fetched in
blocks as they are read, and the next blocks are prefetched. A part of it therefore costs no more than that part, and
its length costs no memory. All blocks are of one revision. ffmpeg takes only files, so a large object for ffmpeg is
first copied to TMPDIR.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

from voxbatch.errors import AudioError
from voxbatch.storage.local import read_at
from voxbatch.storage.objects import Digest, RangeReply, Stat, TransientError, UnusableObject
from voxbatch.storage.request_pool import BLOCK_THREADS, fetch_pool
from voxbatch.storage.retrying_client import RetryingReader, read_blocks
from voxbatch.storage.temporary_files import temporary_file

_T = TypeVar("_T")

BLOCK_BYTES = 4 << 20
"""Bytes of one request, and an upper limit for a small object: two minutes of 16 kHz WAV."""
WAITING_S = 3.0
"""Seconds between two calls of Recording.on_wait."""
CACHED_BLOCKS = 6
"""Number of blocks in memory. Decoders mostly read forward; now and then they read at the start or the end."""


NO_LENGTH = "its server gives no length: if the transfer broke off, the end of the recording is missing"
"""Warning of a recording that a server sent without Content-Length and not in chunks (as in HTTP/1.0)."""


class RecordingChangedError(AudioError):
    """A recording that changed while it was decoded. It may be whole when its writer has finished."""

    retryable = True


class Recording(Protocol):
    """Open recording."""

    size: int
    """Bytes."""
    is_file: bool
    """True if the whole recording is in the file that `fileno` returns."""
    last_arrival: float
    """Time of the last arrival of bytes from its place (time.monotonic)."""
    on_wait: Callable[[], None]
    """Callback that a reader calls now and then while it waits for bytes."""
    warnings: tuple[str, ...]
    """Doubts about the recording's bytes, for the warnings of its item."""

    def pread(self, count: int, at: int) -> bytes:
        """Return `count` bytes from position `at`, fewer if the recording ends earlier.

        Raises:
            TransientError: the store does not answer.
            LocalReadError: the file cannot be read.
            UnusableObject: the recording was replaced or changed.
        """

    def fileno(self) -> int:
        """Return the descriptor of a regular file with the whole recording. Read it, but do not close it.

        Raises:
            TransientError, UnusableObject: see `pread`.
        """

    def verify_unchanged(self) -> None:
        """Compare the recording with what it was when it was opened. Call this after its last byte was read.

        Raises:
            RecordingChangedError: the recording was changed meanwhile.
        """

    def close(self) -> None:
        """Release the file or the connection."""


class FileRecording:
    """Recording in an open file, which is closed together with it."""

    is_file = True

    def __init__(self, fd: int, warnings: tuple[str, ...] = ()):
        self._fd, self.warnings = fd, warnings
        self.last_arrival = time.monotonic()
        self.on_wait = lambda: None
        self._opened = os.fstat(fd)
        self.size = self._opened.st_size

    @classmethod
    def in_memory(cls, data: bytes, warnings: tuple[str, ...] = ()) -> FileRecording:
        """Return a recording whose bytes are in an unnamed file in memory."""
        fd = os.memfd_create("recording")
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        return cls(fd, warnings)

    def pread(self, count: int, at: int) -> bytes:
        """Return `count` bytes from position `at`, fewer at the end of the file.

        Raises:
            LocalReadError: the file cannot be read.
        """
        return read_at(self._fd, count, at)

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._fd

    def verify_unchanged(self) -> None:
        """See Recording.verify_unchanged. A file that was replaced by another (by rename) is still the same file here,
        and its bytes belong together."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) == (self.size, self._opened.st_mtime_ns):
            return
        sizes = f" from {self.size:,} to {now.st_size:,} bytes" if now.st_size != self.size else ""
        raise RecordingChangedError(
            f"it changed{sizes} while it was read: let its writer finish, then run the item again"
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def fetch(reader: RetryingReader, key: str, block_bytes: int = BLOCK_BYTES) -> Recording:
    """Open the recording at an address. A small one is fetched completely; of a large one the first block is fetched.

    Raises:
        ObjectNotFound, UnusableObject, TransientError, StorageError
    """
    first = reader.get(key, 0, block_bytes)
    if first.is_gzipped:
        raise UnusableObject(
            f"cannot read {reader.where(key)}: it is stored with Content-Encoding: gzip: store it uncompressed"
        )
    warnings = () if first.has_length else (NO_LENGTH,)
    if len(first.data) < block_bytes:
        return FileRecording.in_memory(first.data, warnings)
    if first.is_whole_object or not first.tag:  # without a tag, two requests may give bytes of two contents
        with temporary_file(reader.where(key), reader.whole(key, first.tag)) as file:
            return FileRecording(os.dup(file.fileno()), warnings)
    stat = reader.stat(key, first.tag)
    if stat.size < len(first.data):  # the size is -1 if a web server no longer reports it
        where = reader.where(key)
        raise UnusableObject(
            f"cannot read {where}: it changed while it was read, or its server no longer reports its size"
        )
    return _Ranged(reader, stat, first)


def _spooled(reader: RetryingReader, key: str, tag: str, arrived: Callable[[], None] = lambda: None) -> int:
    def told() -> Iterator[bytes]:
        for block in read_blocks(reader, key, BLOCK_BYTES, BLOCK_BYTES, tag):
            arrived()
            yield block

    with temporary_file(reader.where(key), told()) as file:
        return os.dup(file.fileno())


class _Ranged:
    """Large object that is fetched in blocks of the first block's length, as they are read. One thread reads; the
    fetch pool fetches."""

    is_file = False
    warnings: tuple[str, ...] = ()

    def __init__(self, reader: RetryingReader, stat: Stat, first: RangeReply):
        self.last_arrival = time.monotonic()
        self.on_wait: Callable[[], None] = lambda: None
        self._reader, self._stat = reader, stat
        self.size, self._bytes = stat.size, len(first.data)
        self._last = (stat.size - 1) // self._bytes
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._fd: int | None = None
        self._digest, self._digested = Digest(stat.checksum), 0
        done: Future[bytes] = Future()
        done.set_result(first.data)
        self._blocks[0] = done

    def pread(self, count: int, at: int) -> bytes:
        """See Recording.pread."""
        parts = []
        end = min(at + count, self.size)
        while at < end:
            number, begin = divmod(at, self._bytes)
            data = self._block(number)[begin : begin + end - at]
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block and block.done() and block.exception():  # perhaps long ago, and its place answers again
            del self._blocks[number]
        for wanted in range(number, min(number + BLOCK_THREADS, self._last + 1)):
            if wanted not in self._blocks:
                self._blocks[wanted] = fetch_pool.submit(self._fetch, wanted, urgent=True)
        self._blocks.move_to_end(number)
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        data = self._result(self._blocks[number])
        if number == self._digested:  # the checksum is checked if the object is read completely and in order
            self._digested += 1
            self._digest.update(data)
            if number == self._last:
                try:
                    self._digest.check(self._reader.where(self._stat.key))
                except TransientError as e:  # all bytes arrived: the recording is to blame, and its place is not down
                    raise UnusableObject(str(e)) from None
        return data

    def _result(self, coming: Future[_T]) -> _T:
        """Wait for the result, and call `on_wait` now and then."""
        while not wait([coming], WAITING_S).done:
            self.on_wait()
        return coming.result()

    def _fetch(self, number: int) -> bytes:
        start = number * self._bytes
        wanted = min(start + self._bytes, self.size)
        data = self._reader.get(self._stat.key, start, wanted, self._stat.tag).data
        self._arrived()
        if len(data) != wanted - start:
            where = self._reader.where(self._stat.key)
            raise UnusableObject(
                f"cannot read {where}: it changed while it was read: let its writer finish, then start again"
            )
        return data

    def fileno(self) -> int:
        """See Recording.fileno. The first call copies the whole object to a temporary file."""
        if self._fd is None:
            copied = fetch_pool.submit(
                _spooled, self._reader, self._stat.key, self._stat.tag, self._arrived, urgent=True
            )
            self._fd = self._result(copied)
        return self._fd

    def verify_unchanged(self) -> None:
        """See Recording.verify_unchanged. Every block was compared with the first one's revision when it arrived."""

    def _arrived(self) -> None:
        self.last_arrival = time.monotonic()

    def close(self) -> None:
        """Stop fetching, and close the temporary file."""
        for block in self._blocks.values():
            block.cancel()
        if self._fd is not None:
            os.close(self._fd)
