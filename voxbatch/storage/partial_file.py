"""Write a file in stretches that arrive in any order, and show it only when it is complete.

The bytes go to a partial file of the right length in another folder of the same file system. A journal beside it has a
line with a checksum for each stretch that was written:

    8388608 8388608 1c291ca3          start, length and CRC-32 in hexadecimal

After a kill, the next PartialFile reads the stretches of the journal again and keeps those whose checksum is right; so
a machine that lost power costs stretches and damages nothing. One process at a time writes a partial file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from voxbatch.storage.errors import TransientError
from voxbatch.storage.local import file_errors, open_folder, write_at
from voxbatch.storage.objects import Digest

STRETCH_BYTES = 8 << 20
"""Bytes of one stretch, and of one request. At 100 MB/s a stretch takes 80 ms, several times the latency of a request;
and each thread holds one or two in memory."""


class PartialFile:
    """A file whose stretches are being written. Any thread may write any stretch."""

    def __init__(self, target: Path, partial: Path, size: int, checksum: str, alternative: str):
        """Create the partial file, or continue that of a killed process.

        Args:
            partial: the path of the partial file; the journal is beside it.
            checksum: the checksum of the complete file, as in objects.Stat, or "".
            alternative: advice for errors of the disk, as in LocalStore.

        Raises:
            StorageError: the file cannot be written.
        """
        self.target, self.size = target, size
        self._partial, self._journal = partial, partial.with_name(f"{partial.name}.stretches")
        self._alternative = alternative
        self._digest = Digest(checksum)
        self._lock = threading.Lock()
        """Protects what follows, and the digest."""
        self._digested = 0
        """Bytes from the start that are in the digest."""
        with self._errors():
            partial.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._fd, size)
            self._written = set(self._read_journal())
            self._journal_fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def missing(self) -> list[int]:
        """Return the starts of the stretches that are not written yet, in order."""
        with self._lock:
            return [start for start in range(0, self.size, STRETCH_BYTES) if start not in self._written]

    def end_of(self, start: int) -> int:
        """Return the end of the stretch that begins at `start`."""
        return min(start + STRETCH_BYTES, self.size)

    def write(self, start: int, data: bytes) -> None:
        """Write a stretch.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._errors():
            write_at(self._fd, data, start)
            os.write(self._journal_fd, f"{start} {len(data)} {zlib.crc32(data):08x}\n".encode())
            with self._lock:
                self._written.add(start)
                self._update_digest()

    def finish(self) -> bool:
        """Check the file and give it its name. Call this once, after the last stretch.

        Returns:
            False if the bytes do not match the checksum. Then all stretches are forgotten.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._lock, self._errors():
            self._update_digest()
            try:
                self._digest.check(str(self.target))
            except TransientError:
                self._discard()
                return False
            os.fsync(self._fd)
            self.target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._partial, self.target)
            with open_folder(self.target.parent) as folder:
                os.fsync(folder)
            self._journal.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Release the files. The stretches stay for the next process."""
        os.close(self._fd)
        os.close(self._journal_fd)

    def _discard(self) -> None:
        self._journal.unlink(missing_ok=True)
        self._partial.unlink(missing_ok=True)

    def _update_digest(self) -> None:
        """Add the stretches to the digest that follow those in it. They are still in the kernel's memory."""
        while self._digested < self.size and self._digested in self._written:
            end = self.end_of(self._digested)
            while self._digested < end:
                block = os.pread(self._fd, min(_BLOCK_BYTES, end - self._digested), self._digested)
                self._digest.update(block)
                self._digested += len(block)

    def _read_journal(self) -> Iterator[int]:
        """Yield the starts of the stretches that a killed process wrote and that are still what it wrote."""
        try:
            lines = self._journal.read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be cut off
                start, length, crc = line.split(" ")
                begin, count = int(start), int(length)
                if begin % STRETCH_BYTES or begin >= self.size or begin + count != self.end_of(begin):
                    continue
                if f"{zlib.crc32(os.pread(self._fd, count, begin)):08x}" == crc:
                    yield begin

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise StorageError for errors of the disk. What fills a disk is removed."""
        with file_errors("write", str(self.target), self._alternative):
            try:
                yield
            except OSError:
                with contextlib.suppress(OSError):
                    self._discard()
                raise


_BLOCK_BYTES = 1 << 20
