"""Local files: atomic create-if-absent by hard link, atomic replace by rename, and recordings opened without
hanging.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from voxbatch.errors import AudioError, StorageError

_MEND = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "the file grew past the allowed size: raise the limit (ulimit -f)",
    errno.EACCES: "permission denied: make it writable, or choose another OUT with -o",
    errno.EPERM: "not permitted: make it writable, or choose another OUT with -o",
    errno.EROFS: "the file system is read-only: choose another OUT with -o",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another OUT with -o",
    errno.EEXIST: "a file stands where a folder is needed: choose another OUT with -o",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}


class LocalStore:
    """A folder. See storage.Store for what each method promises."""

    def __init__(self, place: str):
        self.place = os.path.abspath(place)
        self._root = Path(self.place)

    def prepare(self) -> None:
        with self._explained("create"):
            self._root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._root) as probe:
                probe.write(b"voxbatch")
                probe.flush()

    def read(self, name: str) -> bytes | None:
        with self._explained("read", name):
            try:
                return (self._root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def lines(self, name: str) -> Generator[bytes]:
        with self._explained("read", name), open(self._root / name, "rb") as file:
            yield from file

    def names(self, prefix: str) -> list[str]:
        with self._explained("list", prefix):
            found = [
                os.path.relpath(os.path.join(folder, file), self._root)
                for folder, _, files in os.walk(self._root / prefix, onerror=_unless_absent)
                for file in files
                if not file.startswith(".tmp-")
            ]
        return sorted(found)

    def create(self, name: str, pieces: Iterable[bytes]) -> bool:
        target = self._root / name
        with self._explained("write", name):
            if target.exists():
                return False
            with self._written_beside(target, pieces) as temporary:
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    return False
            self._sync_folder(target.parent)
            return True

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        target = self._root / name
        with self._explained("write", name), self._written_beside(target, pieces, sync=False) as temporary:
            os.replace(temporary, target)

    def delete(self, name: str) -> None:
        with self._explained("delete", name):
            (self._root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written_beside(self, target: Path, pieces: Iterable[bytes], sync: bool = True) -> Iterator[str]:
        """A complete temporary file in the target's folder; gone afterwards unless renamed."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = str(target.parent / f".tmp-{secrets.token_hex(8)}")
        try:
            with open(temporary, "xb") as file:  # not tempfile's, which nobody but this user could read
                file.writelines(pieces)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as e:
            where = os.path.join(self.place, name) if name else self.place
            mend = _MEND.get(e.errno or 0, e.strerror or str(e))
            raise StorageError(f"cannot {verb} {where}: {mend}") from e


def _unless_absent(error: OSError) -> None:
    """For os.walk, which else takes a folder that it cannot list for an empty one: a run would start anew on that."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


_KIND = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextlib.contextmanager
def open_local_audio(path: str) -> Iterator[int]:
    """See storage.open_audio. O_NONBLOCK because opening a FIFO would otherwise wait for a writer for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise AudioError(f"cannot open {path}: {reason}") from e
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise AudioError(f"cannot read {path}: it is {_KIND.get(stat.S_IFMT(mode), 'no regular file')}")
        yield fd
    finally:
        os.close(fd)
