"""The size and the checksum of a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from voxbatch.storage import Store


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and the checksum of a file."""

    bytes: int
    sha256: str
    """SHA-256, in hexadecimal digits."""


class RunningDigest:
    """The digest of a file whose lines come one by one."""

    def __init__(self) -> None:
        self._size, self._sha256 = 0, hashlib.sha256()

    def add(self, line: bytes) -> None:
        """Add a line."""
        self._size += len(line)
        self._sha256.update(line)

    def digest(self) -> FileDigest:
        """Return the digest of the lines so far."""
        return FileDigest(self._size, self._sha256.hexdigest())


def digest_of(store: Store, name: str) -> FileDigest:
    """Return the digest of a file in OUT. A missing file has the digest of an empty one."""
    digest = RunningDigest()
    if store.exists(name):
        for line in store.lines(name):
            digest.add(line)
    return digest.digest()
