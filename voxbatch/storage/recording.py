"""Define what decoders read: an open recording with bytes at any position and, for programs that need one, an open
regular file; and open one. Local files are read here; `remote_recording` fetches the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage import WEB_PAGE, is_web_page
from voxbatch.storage.address import DEFAULT_STORE_OPTIONS, HTTP_SCHEMES, StoreOptions, is_remote, redacted, scheme_of
from voxbatch.storage.circuit_breaker import UnusableRecording
from voxbatch.storage.errors import DamagedObject, ObjectNotFound, UnusableObject
from voxbatch.storage.local import IN_ARCHIVE, open_local_audio, read_at

BLOCK_BYTES = 4 << 20
"""Bytes of one request, and an upper limit for a small object: two minutes of 16 kHz WAV."""
WAITING_S = 3.0
"""Seconds between two calls of Recording.on_wait."""


class RecordingChangedError(AudioError):
    """A recording that changed while it was decoded. It may be whole when its writer has finished."""

    kind = FailureKind.CHANGED
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


def open_recording(
    uri: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS, block_bytes: int = BLOCK_BYTES
) -> Recording:
    """Open a recording, which the caller must close. A large remote recording is fetched in blocks of `block_bytes`
    bytes.

    Raises:
        AudioError: the recording is missing, unreadable, or not a regular file.
        StorageError: its place does not answer or refuses access, so that nothing is known about the recording.
    """
    try:
        if IN_ARCHIVE.search(uri):
            from voxbatch.storage import parquet_members, tar_members

            if member := tar_members.parse_member(uri):
                return tar_members.open_member(member, store_options)
            if row := parquet_members.parse_member(uri):
                return parquet_members.open_member(row, store_options)
        if not is_remote(uri):
            return FileRecording(open_local_audio(uri))
        from voxbatch.storage import connect
        from voxbatch.storage.remote_recording import fetch

        recording = fetch(*connect.reader(uri, store_options), block_bytes)
        if scheme_of(uri) in HTTP_SCHEMES and is_web_page(recording.pread(_PAGE_BYTES, 0)):
            recording.close()
            raise UnusableObject(f"cannot read {redacted(uri)}: it {WEB_PAGE}", FailureKind.NOT_AUDIO)
        return recording
    except (AudioError, ObjectNotFound, UnusableObject) as e:
        raise UnusableRecording(str(e), e.kind, retryable=isinstance(e, DamagedObject)) from e
    except ValueError as e:
        raise AudioError(f"cannot open {redacted(uri)}: {e}", FailureKind.NOT_FOUND) from e


_PAGE_BYTES = 256
