"""Store outputs in local files.

`create` is an atomic create-if-absent by hard link, and `write` is an atomic replace by rename.

A durable file survives a loss of power. Its bytes are synced to disk before it has its name: some file systems (XFS,
ext4 with noauto_da_alloc) would otherwise keep the name and lose the bytes. Then its folder is synced, and the parents
of the folders that were created for it. Many small files are written without this, and synced together by `sync`.

Nothing is written or deleted through a symbolic link below the store's folder: somebody who may write there, too, could
have planted it to change files elsewhere. The folder itself may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from voxbatch.errors import StorageError

_NO_FILE = "it is no regular file: move it away"
_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "the file grew past the allowed size: raise the limit (ulimit -f)",
    errno.EACCES: "permission denied: make it writable, or {alternative}",
    errno.EPERM: "not permitted (or no hard links there): make it writable, or {alternative}",
    errno.EROFS: "the file system is read-only: {alternative}",
    errno.ENXIO: _NO_FILE,  # a socket
    errno.ENOTDIR: "a file stands where a folder is needed: {alternative}",
    errno.EEXIST: "a file stands where a folder is needed: {alternative}",
    errno.EISDIR: "a folder stands where a file is needed: move it away, or {alternative}",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}
"""Advice for each error number, for messages."""
OTHER_OUT = "choose another OUT with -o"
"""Alternative of a command that takes -o."""
COPIED_OUT = "copy OUT to a place that can be written"
"""Alternative of a command on a finished OUT."""
_LINK_ADVICE = "put a folder in its place; to store the outputs elsewhere, make OUT itself a link"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags with which a folder is opened."""


@contextlib.contextmanager
def file_errors(verb: str, where: str, alternative: str) -> Iterator[None]:
    """Raise StorageError with advice for an OSError.

    Args:
        verb: the action that may fail, for the message: "read", "write", ….
        alternative: the advice if the place cannot be used, such as "choose another OUT with -o".
    """
    try:
        yield
    except OSError as e:
        advice = _ADVICE.get(e.errno or 0, e.strerror or str(e)).replace("{alternative}", alternative)
        if e.errno == errno.ENOSPC and _has_no_inodes(where):
            advice = "the file system has no free inodes, of which each file takes one: delete files there"
        raise StorageError(f"cannot {verb} {where}: {advice}") from e


def _has_no_inodes(path: str) -> bool:
    """Return whether the file system of a path is full of files and not of bytes. Some file systems have no inodes."""
    folder = next(parent for parent in Path(path).parents if parent.exists())
    space = os.statvfs(folder)
    return bool(space.f_files and not space.f_favail and space.f_bavail)


class LocalStore:
    """Store in a folder. See storage.Store for what each method promises. `alternative` is the advice of its errors."""

    concurrency = 1
    max_open = 500
    """Half of the usual limit of file descriptors."""

    def __init__(self, place: str, alternative: str = OTHER_OUT):
        self.place = os.path.abspath(place)
        self._root = Path(self.place)
        self._alternative = alternative

    def prepare(self) -> str | None:
        """Create the folder and prove that files can be written and linked there. A hard link never replaces a file, so
        there is no warning."""
        with self._errors("create"):
            _make_folder(self._root, durable=True)
            probe = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            with self._written(probe, [b"voxbatch"], durable=False) as (file, folder):
                _link(file, folder, probe)
                os.unlink(probe, dir_fd=folder)
        return None

    def read(self, name: str) -> bytes | None:
        """See storage.Store."""
        with self._errors("read", name):
            try:
                with self._opened(name) as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, name: str) -> bool:
        """See storage.Store."""
        with self._errors("read", name):
            if name.endswith("/"):
                return any(True for _ in self._files(name))
            return (self._root / name).exists()

    def checksum(self, name: str) -> str:
        """Return "": a file system keeps none."""
        return ""

    def lines(self, name: str) -> Generator[bytes]:
        """See storage.Store. A missing file raises StorageError."""
        with self._errors("read", name), self._opened(name) as file:
            yield from file

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """Yield an open file. Anything but a regular file, such as a named pipe, raises StorageError: a read of it
        might never end."""
        path = self._root / name
        with open(path, "rb", opener=lambda place, flags: os.open(place, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StorageError(f"cannot read {path}: {_NO_FILE}")
            yield file

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
        """See storage.Store."""
        target = self._root / name
        with self._errors("write", name):
            if target.exists():
                return False
            with self._written(name, blocks, durable) as (file, folder):
                try:
                    _link(file, folder, target.name)
                except FileExistsError:
                    return False
                if durable:
                    os.fsync(folder)
                return True

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        """See storage.Store."""
        target = self._root / name
        with self._errors("write", name), self._written(name, blocks, durable) as (file, folder):
            try:
                _link(file, folder, target.name)
            except FileExistsError:
                _replace(file, folder, target.name)
            if durable:
                os.fsync(folder)

    def sync(self) -> None:
        """See storage.Store. One call syncs the file system of the folder: an fsync of each of many small files would
        commit the file system's journal as many times."""
        import ctypes

        with self._errors("write"), open_folder(self._root) as folder:
            if ctypes.CDLL(None, use_errno=True).syncfs(folder):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        """See storage.Store."""
        if check:
            check()
        with self._errors("delete", name), contextlib.suppress(FileNotFoundError), self._folder(name) as folder:
            os.unlink(os.path.basename(name), dir_fd=folder)

    @contextlib.contextmanager
    def _written(self, name: str, blocks: Iterable[bytes], durable: bool) -> Iterator[tuple[str, int]]:
        """Yield (path to link from, descriptor of the folder) of a complete file that has not got its name yet."""
        _make_folder(self._root, durable)
        with self._folder(name, create=True, durable=durable) as folder, _temporary_file(folder) as (path, file):
            file.writelines(blocks)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            yield path, folder

    @contextlib.contextmanager
    def _folder(self, name: str, create: bool = False, durable: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder of a file, which has been reached without a link below the store's folder.

        Args:
            durable: sync the parents of the folders that are created.

        Raises:
            StorageError: a link is in the way.
        """
        path = self._root
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(open_folder(path))
            for step in name.split("/")[:-1]:
                path /= step
                try:
                    inner = os.open(step, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=folder)
                    if durable:
                        os.fsync(folder)
                    inner = os.open(step, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                except NotADirectoryError as e:
                    if not path.is_symlink():
                        raise
                    raise StorageError(f"{path} is a symbolic link, which is not followed: {_LINK_ADVICE}") from e
                opened.callback(os.close, inner)
                folder = inner
            yield folder

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str = "") -> Iterator[None]:
        with file_errors(verb, os.path.join(self.place, name) if name else self.place, self._alternative):
            yield


TEMPORARY_PREFIX = ".tmp-"


def _make_folder(folder: Path, durable: bool) -> None:
    """Create a folder and its parents, as far as they are missing."""
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing if durable else ():
        with contextlib.suppress(PermissionError), open_folder(path.parent) as parent:  # it may be unreadable
            os.fsync(parent)


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of a folder."""
    fd = os.open(folder, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _temporary_file(folder: int) -> Iterator[tuple[str, BinaryIO]]:
    """Yield (path, file) of a new file in an open folder that vanishes with its process, so that nothing is left after
    a kill. A relative path starts in the folder.

    On file systems without unnamed files (NFS, some FUSE), the file has a temporary name. The tempfile module is not
    used, because only the current user could read its files.
    """
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    else:
        with open(fd, "wb") as file:
            yield f"/proc/self/fd/{fd}", file
        return
    temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            yield temporary, file
    finally:
        os.unlink(temporary, dir_fd=folder)


def _link(path: str, folder: int, name: str) -> None:
    """Give a file of an open folder another name there. Raise FileExistsError if the name is taken.

    The descriptor of the folder makes Python call linkat, which follows /proc/self/fd/N to the unnamed file.
    """
    os.link(path, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)


def _replace(path: str, folder: int, name: str) -> None:
    """Replace a file of an open folder by another one, which gets a temporary name there first.

    The temporary name is that of the replaced file, so that the next process removes the one that a killed process has
    left. A lock on the new file, which ends with its process, tells whether the process lives. Beside a living one,
    which may be suspended, and on file systems without locks, a random name is taken.
    """
    own = f"{TEMPORARY_PREFIX}{hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()}"
    names = own, own, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as new:
        with contextlib.suppress(OSError):
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary = next(name for name in names if _takes_name(path, folder, name))
        try:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise


def _takes_name(path: str, folder: int, temporary: str) -> bool:
    """Give a file a temporary name in an open folder, and return whether the name was free. If a killed process has
    left it, it is free the next time."""
    try:
        _link(path, folder, temporary)
        return True
    except FileExistsError:
        with contextlib.suppress(OSError), open(os.open(temporary, os.O_RDONLY, dir_fd=folder), "rb") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(left.fileno()), os.stat(temporary, dir_fd=folder)):
                os.unlink(temporary, dir_fd=folder)
        return False


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


def write_at(fd: int, data: bytes | bytearray, at: int) -> None:
    """Write all bytes at a position of a file. A disk that gets full takes a part of them first, without an error.

    Raises:
        OSError: the file cannot be written.
    """
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


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
