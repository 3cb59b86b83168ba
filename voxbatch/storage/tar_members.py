"""Recordings in uncompressed tar archives, read where they are: `shard.tar#bytes=1536+48044,a.wav`.

Nothing is unpacked. Of a remote archive, only the headers and the small files between the recordings are fetched to
list it, and only its own bytes to read a recording.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote, unquote

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import redacted
from voxbatch.storage.errors import UnusableObject
from voxbatch.storage.objects import ReadRange
from voxbatch.storage.recording import BLOCK_BYTES, FileRecording
from voxbatch.storage.temporary_files import temporary_file

_ADDRESS = re.compile(
    r"(?P<archive>.+\.tar)#bytes=(?P<at>[0-9]{1,18})\+(?P<size>[0-9]{1,18}),(?P<name>[^/]+)", re.IGNORECASE
)
IN_MEMORY_BYTES = 64 << 20
"""Size of a recording up to which it is held in memory; a longer one is copied to TMPDIR."""
_LISTED_BYTES = 16 << 10
"""Bytes that are fetched at a time to list an archive: a header, and most files of text behind it."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file in an archive."""

    archive: str
    """Path or address."""
    at: int
    """Position of the first byte of the file."""
    size: int
    """Bytes."""
    name: str

    def __str__(self) -> str:
        """Return the address. The name is only for people; it holds no /, which would be a path outside of it."""
        return f"{self.archive}#bytes={self.at}+{self.size},{quote(self.name, safe=' ')}"


def parse_member(address: str) -> TarMember | None:
    """Return the file that an address names; None if it is not in an archive."""
    if (match := _ADDRESS.fullmatch(address)) is None:
        return None
    return TarMember(match["archive"], int(match["at"]), int(match["size"]), unquote(match["name"]))


def open_member(member: TarMember, read: ReadRange) -> FileRecording:
    """Return a copy of a file in the archive that `read` reads.

    Raises:
        UnusableObject: the archive has no such file there any more.
        AudioError, StorageError: the archive cannot be read; see Stores.recording.
    """
    is_there = False
    with contextlib.suppress(tarfile.HeaderError):
        header = read(tarfile.BLOCKSIZE, max(0, member.at - tarfile.BLOCKSIZE))
        found = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        is_there = found.isfile() and found.size == member.size
    if not is_there:
        raise changed(member.archive, member.name)
    if member.size <= IN_MEMORY_BYTES:
        return FileRecording.in_memory(b"".join(_blocks(member, read)))
    with temporary_file(redacted(str(member)), _blocks(member, read)) as file:
        return FileRecording(os.dup(file.fileno()))


def _blocks(member: TarMember, read: ReadRange) -> Iterator[bytes]:
    end = member.at + member.size
    for at in range(member.at, end, BLOCK_BYTES):
        count = min(BLOCK_BYTES, end - at)
        if len(block := read(count, at)) < count:
            raise changed(member.archive, member.name)
        yield block


def changed(archive: str, name: str) -> UnusableObject:
    """Return the error of an archive that no longer has the file with this name at its place."""
    advice = "restore it, or start again with another OUT (-o)"
    return UnusableObject(
        f"cannot read {name} in {redacted(archive)}: the archive was changed: {advice}", FailureKind.CHANGED
    )


def open_listing(archive: str, keep: Callable[[str], bool], read: ReadRange) -> BinaryIO:
    """Return an unnamed temporary file that is like a remote archive, without the bytes of most of its files: it takes
    no place on the disk for them, and they are not fetched.

    Args:
        keep: returns whether the bytes of the file with this name are needed.
        read: reads the archive.

    Raises:
        StorageError: the archive cannot be read, or the temporary file cannot be written.
    """
    file = temporary_file(redacted(archive), [])
    with os.fdopen(os.dup(file.fileno()), "r+b", 0) as target:
        at = 0
        while block := read(_LISTED_BYTES, at):
            target.seek(at)
            target.write(block)
            begin = at
            while at - begin + tarfile.BLOCKSIZE <= len(block):
                header = block[at - begin :][: tarfile.BLOCKSIZE]
                if not any(header):  # the end
                    return file
                try:
                    info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                except tarfile.HeaderError as e:
                    raise StorageError(f"{redacted(archive)} is no tar archive: {e} at byte {at:,}") from e
                is_special = not info.isreg()  # a long name, for example
                end = at + (1 + math.ceil(info.size / tarfile.BLOCKSIZE)) * tarfile.BLOCKSIZE
                have = begin + len(block)
                if end > have and (is_special or keep(info.name)):
                    target.seek(have)
                    target.write(read(end - have, have))
                at = end
    return file
