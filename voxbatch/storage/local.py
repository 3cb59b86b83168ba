"""Store outputs in local files, and open local recordings.

`create` is an atomic create-if-absent by hard link, `write` is an atomic replace by rename, and opening a recording
cannot hang.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import secrets
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from voxbatch.errors import AudioError, StorageError
from voxbatch.storage.objects import TransientError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "the file grew past the allowed size: raise the limit (ulimit -f)",
    errno.EACCES: "permission denied: make it writable, or {alternative}",
    errno.EPERM: "not permitted (or no hard links there): make it writable, or {alternative}",
    errno.EROFS: "the file system is read-only: {alternative}",
    errno.ENOTDIR: "a file stands where a folder is needed: {alternative}",
    errno.EEXIST: "a file stands where a folder is needed: {alternative}",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}
"""Advice for each error number, for messages."""


@contextlib.contextmanager
def file_errors(verb: str, where: str, alternative: str) -> Iterator[None]:
    """Raise StorageError with advice for an OSError.

    Args:
        verb: the action that may fail, for the message: "read", "write", ….
        where: the path, for the message.
        alternative: the advice if the place cannot be used, such as "choose another OUT with -o".
    """
    try:
        yield
    except OSError as e:
        advice = _ADVICE.get(e.errno or 0, e.strerror or str(e)).replace("{alternative}", alternative)
        raise StorageError(f"cannot {verb} {where}: {advice}") from e


class LocalStore:
    """Store in a folder. See storage.Store for what each method promises. `instead` is the alternative that its errors
    suggest."""

    concurrency = 1

    def __init__(self, place: str, alternative: str = "choose another OUT with -o"):
        self.place = os.path.abspath(place)
        self._root = Path(self.place)
        self._alternative = alternative

    def prepare(self) -> str | None:
        """Create the folder and prove that files can be written and linked there. A hard link never replaces a file, so
        there is no warning."""
        with self._errors("create"):
            self._root.mkdir(parents=True, exist_ok=True)
            probe = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            with self._written(self._root, [b"voxbatch"], sync=False) as (file, folder):
                _link(file, folder, probe)
                os.unlink(probe, dir_fd=folder)
        return None

    def read(self, name: str) -> bytes | None:
        """See storage.Store."""
        with self._errors("read", name):
            try:
                return (self._root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, name: str) -> bool:
        """See storage.Store."""
        with self._errors("read", name):
            if name.endswith("/"):
                return any(True for _ in self._files(name))
            return (self._root / name).exists()

    def lines(self, name: str) -> Generator[bytes]:
        """See storage.Store. A missing file raises StorageError."""
        with self._errors("read", name), open(self._root / name, "rb") as file:
            yield from file

    def names(self, prefix: str) -> list[str]:
        """See storage.Store. Temporary files are left out."""
        with self._errors("list", prefix):
            return sorted(self._files(prefix))

    def _files(self, prefix: str) -> Iterator[str]:
        """Yield the names below a folder."""

        def raise_unless_missing(error: OSError) -> None:
            # By default os.walk treats a folder that it cannot list as empty, and a run would start from the beginning.
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise error

        for folder, _, files in os.walk(self._root / prefix, onerror=raise_unless_missing):
            for file in files:
                if not file.startswith(TEMPORARY_PREFIX):
                    yield os.path.relpath(os.path.join(folder, file), self._root)

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        """See storage.Store. A durable file and its folder are synced to disk."""
        target = self._root / name
        with self._errors("write", name):
            if target.exists():
                return False
            with self._written(target.parent, blocks, durable) as (file, folder):
                try:
                    _link(file, folder, target.name)
                except FileExistsError:
                    return False
                if durable:
                    os.fsync(folder)
                return True

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """See storage.Store. The file is not synced to disk."""
        target = self._root / name
        with self._errors("write", name), self._written(target.parent, blocks, sync=False) as (file, folder):
            try:
                _link(file, folder, target.name)
            except FileExistsError:
                temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
                _link(file, folder, temporary)
                os.replace(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)

    def delete(self, name: str) -> None:
        """See storage.Store."""
        with self._errors("delete", name):
            (self._root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, folder: Path, blocks: Iterable[bytes], sync: bool = True) -> Iterator[tuple[str, int]]:
        """Yield (path to link from, descriptor of the folder) of a complete file that has no name in the folder yet."""
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder_fd)
            path, file = stack.enter_context(_temporary_file(folder))
            file.writelines(blocks)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            yield path, folder_fd

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str = "") -> Iterator[None]:
        with file_errors(verb, os.path.join(self.place, name) if name else self.place, self._alternative):
            yield


TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of temporary files."""


@contextlib.contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Yield (path, file) of a new file that vanishes with its process, so that nothing is left after a kill.

    On file systems without unnamed files (NFS, some FUSE), the file has a temporary name. The tempfile module is not
    used, because only the current user could read its files.
    """
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    else:
        with open(fd, "wb") as file:
            yield f"/proc/self/fd/{fd}", file
        return
    temporary = str(folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            yield temporary, file
    finally:
        os.unlink(temporary)


def _link(path: str, folder_fd: int, name: str) -> None:
    """Give a file another name. Raise FileExistsError if the name is taken.

    The descriptor of the folder makes Python call linkat, which follows /proc/self/fd/N to the unnamed file.
    """
    os.link(path, name, dst_dir_fd=folder_fd, follow_symlinks=True)


_KIND = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as e:
        raise AudioError(f"cannot open {shown}: {e}") from e
    except OSError as e:
        message = f"cannot open {shown}: {e.strerror}"
        if e.errno in _FILE_SYSTEM_ERRORS:
            raise TransientError(message, since=began) from e
        if e.errno in (errno.ENOENT, errno.EACCES) and (problem := _folder_problem(os.path.dirname(path))):
            message = f"cannot open {shown}: its folder {problem}; is its file system mounted?"
            raise TransientError(message, since=began) from e
        raise AudioError(message) from e
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise AudioError(f"cannot read {shown}: it is {_KIND.get(stat.S_IFMT(mode), 'no regular file')}")
    return fd


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


class LocalReadError(StorageError):
    """A local file that cannot be read: the disk or the network file system fails, and the file may be whole."""


def read_at(fd: int, count: int, at: int) -> bytes:
    """Return os.pread(fd, count, at).

    Raises:
        LocalReadError: the file cannot be read.
    """
    try:
        return os.pread(fd, count, at)
    except OSError as e:
        raise LocalReadError(f"{e.strerror} at byte {at:,}") from e


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


@functools.cache
def _mount_points() -> tuple[str, ...]:
    """Return the mount points when this process first asked for them, so that one that disappears later is still
    known."""
    lines = Path("/proc/self/mounts").read_bytes().splitlines()
    escaped = [line.split(b" ")[1] for line in lines]
    points = (re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), point) for point in escaped)
    return tuple(sorted({os.path.join(os.fsdecode(point), "") for point in points}, key=len, reverse=True))


def mount_point(path: str) -> str:
    """Return the mount point of an absolute path, which works or fails as a whole: "/mnt/nfs/a.wav" → "/mnt/nfs/"."""
    return next((point for point in _mount_points() if path.startswith(point)), "/")
