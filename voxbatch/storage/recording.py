"""Define what decoders read: an open recording with bytes at any position and, for programs that need one, an open
regular file. Local files are read here; `remote_recording` fetches the others, and `stores` opens all of them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable
from typing import Protocol

from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.errors import TransientError
from voxbatch.storage.local import read_at

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


WEB_PAGE = "is a web page, and no recording; yt-dlp fetches the recordings of web pages: yt-dlp -x ADDRESS"


def is_web_page(begin: bytes) -> bool:
    """Return whether a file that begins so is HTML."""
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype html", b"<html"))


_KIND = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


IN_ARCHIVE = re.compile(r"(?<=\.tar)#bytes=|(?<=\.parquet)#row=", re.IGNORECASE)
"""Part of the path or address of each recording in an archive; see tar_members and parquet_members."""


def stored_path(path: str) -> str:
    """Return the path of a file as it is stored; of a recording in an archive, that of the archive. A file that is
    missing may have another name that Unicode says is the same text: macOS often writes é as two characters, and most
    manifests have it as one."""
    path = IN_ARCHIVE.split(path, 1)[0]
    if path.isascii() or os.path.lexists(path):
        return path
    names = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
    return next(filter(os.path.lexists, names), path)


def open_local_audio(path: str) -> int:
    """Return a descriptor of a regular file, at its start. O_NONBLOCK is set, because opening a FIFO would otherwise
    wait for a writer indefinitely.

    Raises:
        AudioError: the file is missing, unreadable, or not a regular file.
        TransientError: the file's folder is missing or empty, or the file system fails.
    """
    began = time.monotonic()  # a file of the same place that is read while this one fails is an answer of the place
    shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")  # it may not be UTF-8
    try:
        fd = os.open(stored_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as e:
        raise AudioError(f"cannot open {shown}: {e}", FailureKind.NOT_FOUND) from e
    except OSError as e:
        message = f"cannot open {shown}: {e.strerror}"
        if e.errno in _FILE_SYSTEM_ERRORS:
            raise TransientError(message, since=began) from e
        if e.errno in (errno.ENOENT, errno.EACCES) and (problem := _folder_problem(os.path.dirname(path))):
            message = f"cannot open {shown}: its folder {problem}; is its file system mounted?"
            raise TransientError(message, since=began) from e
        raise AudioError(message, _KIND_OF_FAILURE.get(e.errno or 0, FailureKind.NOT_FOUND)) from e
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        text = f"cannot read {shown}: it is {_KIND.get(stat.S_IFMT(mode), 'no regular file')}"
        raise AudioError(text, FailureKind.NOT_AUDIO)
    return fd


_KIND_OF_FAILURE = dict.fromkeys((errno.EACCES, errno.EPERM), FailureKind.NO_ACCESS)
"""Kind of the failure by the error number of an open call. Others mean that there is no such file."""
_FILE_SYSTEM_ERRORS = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""Errors of a disk or a network file system, which say nothing about a file."""


def _folder_problem(folder: str) -> str:
    """Return why a folder may belong to a file system that is not mounted or fails, or "". Where a file system is not
    mounted, folders are missing or empty."""
    try:
        with os.scandir(folder) as entries:
            return "is empty" if next(entries, None) is None else ""
    except OSError as e:
        if e.errno == errno.EACCES and os.access(folder, os.X_OK):  # it can be searched, only not listed
            return ""
        return "is missing" if e.errno == errno.ENOENT else f"cannot be read ({e.strerror})"


def verify_readable(fd: int) -> None:
    """Read a file to its end. Call this if a decoder failed: for a decoder, a read error looks like damage or like the
    end of the file.

    Raises:
        LocalReadError: the file cannot be read.
    """
    at = 0
    while data := read_at(fd, _VERIFY_BYTES, at):
        at += len(data)


_VERIFY_BYTES = 1 << 20
