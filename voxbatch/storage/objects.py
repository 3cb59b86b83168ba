"""What a store of objects can do, in the fewest verbs, and how it fails; `gcs`, `s3` and `web` speak them.

One call is one request, or one after the other where a listing has pages: nothing here repeats anything (`steady`
does) and no client library does behind its back. `get` is what reads are made of: a stretch of an object, pinned to the
revision that an earlier call met.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from voxbatch.errors import StorageError


class Interrupted(StorageError):
    """What may pass: the network or the server failed, or the bytes that came are not the stored ones."""

    def __init__(self, message: str, retry_after_s: float = 0.0, since: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """How long the server asks to be left alone."""
        self.since = since
        """The middle of several failed attempts, on time.monotonic's clock: what came later came while these failed."""


class Absent(StorageError):
    """There is no such object."""


class Unfit(StorageError):
    """The object is there and cannot be taken: it changed while it was read, is too large, or is stored packed."""


class Expired(StorageError):
    """The credentials were good once; new ones may be to be had."""


@dataclass(frozen=True, slots=True)
class Stat:
    key: str
    size: int
    """Bytes, as stored."""
    tag: str
    """Pins the revision: a generation or an ETag; empty where the store (a web server) gives none."""
    checksum: str = ""
    """ "crc32c:…" or "md5:…", base64; empty where the store gives none for the whole."""
    created: float = 0.0
    """When this revision came, by the store's clock, in seconds since 1970; 0 where nobody tells."""


@dataclass(frozen=True, slots=True)
class Piece:
    data: bytes
    tag: str
    checksum: str = ""
    """See Stat."""
    is_packed: bool = False
    """Stored with Content-Encoding gzip: these bytes are gzip's."""
    is_all: bool = False
    """A web server ignored the range, and these are the first bytes of a reply that holds the whole."""


class Readable(Protocol):
    """Where recordings and manifests are read."""

    place: str
    """ "gs://bucket/" or "https://host/", for people, and to know what fails together."""

    def get(self, key: str, start: int, end: int, tag: str = "") -> Piece:
        """Bytes [start, end), fewer where the object ends before; of this revision where a tag is given.

        Raises:
            Absent, Unfit, Expired, Interrupted, StorageError
        """

    def stat(self, key: str, tag: str = "") -> Stat: ...

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """The whole object from its start, of this revision, checked as far as the store gives a checksum."""

    def renew(self) -> None:
        """Find credentials anew."""


class Objects(Readable, Protocol):
    """One bucket."""

    scheme: str
    bucket: str

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """The objects whose keys start so, in the order of their keys, those behind `after` only."""

    def put(self, key: str, body: BinaryIO, content_type: str, only_if_absent: bool) -> bool:
        """Store a seekable file from its start. False where it is there already and must not be."""

    def delete(self, key: str) -> None:
        """Nothing happens where there is none."""


class Digest:
    """A checksum in the making, of the kind that a Stat or Piece carries."""

    def __init__(self, checksum: str):
        self._wanted = checksum
        self._kind = checksum.partition(":")[0]
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = 0

    def update(self, data: bytes) -> None:
        if self._kind == "crc32c":
            import google_crc32c

            self._crc = google_crc32c.extend(self._crc, data)
        elif self._kind == "md5":
            self._md5.update(data)

    def check(self, where: str) -> None:
        """Raises Interrupted where the bytes are others."""
        if self._wanted and self.text() != self._wanted:
            kind, _, value = self._wanted.partition(":")
            raise Interrupted(f"cannot read {where}: what came does not match its {kind.upper()}, {value}")

    def text(self) -> str:
        raw = self._crc.to_bytes(4, "big") if self._kind == "crc32c" else self._md5.digest()
        return f"{self._kind}:{base64.b64encode(raw).decode()}"
