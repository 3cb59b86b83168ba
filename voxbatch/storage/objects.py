"""Interface of object stores, with as few methods as possible. `gcs`, `s3` and `web` implement it.

One call is one request, or several requests in sequence if a listing has pages. Nothing here retries (`retry` does
that), and the client libraries are set up not to retry by themselves. All reads are made of `get`: it reads a range of
an object, pinned to the revision that an earlier call found.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from voxbatch.storage.errors import DamagedTransfer

ReadRange = Callable[[int, int], bytes]
"""Function from a number of bytes and a position in a file to the bytes, fewer at its end."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Properties of one revision of an object."""

    key: str
    size: int
    """Bytes, as stored."""
    tag: str
    """Identifies the revision: a generation, an ETag or a date. Empty if the store (a web server) gives none."""
    checksum: str = ""
    """Checksum "crc32c:…", "crc32:…", "crc64nvme:…" or "md5:…" in base64. Empty if the store gives none for the whole
    object."""
    created: float = 0.0
    """Time when this revision was stored, by the store's clock, in seconds since 1970; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class RangeReply:
    """Bytes of a range of an object."""

    data: bytes
    tag: str
    """Revision; see Stat.tag."""
    checksum: str = ""
    """Checksum of the whole object; see Stat.checksum."""
    is_gzipped: bool = False
    """True if the object is stored with Content-Encoding gzip, so that these bytes are compressed."""
    is_whole_object: bool = False
    """True if a web server ignored the range: these are the first bytes of a reply that holds the whole object."""
    has_length: bool = True
    """False if a web server ends the reply by closing the connection, so that one that broke off looks complete."""
    size: int | None = None
    """Bytes of the whole object, if it is on a web server and the reply reports them."""


class ObjectReader(Protocol):
    """Place from which recordings and manifests are read."""

    place: str
    """Address "gs://bucket/" or "https://host/", for messages, and to know which recordings fail together."""

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """Return bytes [start, end), fewer if the object ends earlier. If a tag is given, the bytes are of that
        revision.

        Raises:
            ObjectNotFound, UnusableObject, CredentialsExpired, TransientError, StorageError
        """

    def stat(self, key: str, tag: str = "") -> Stat:
        """Return the size and the revision of an object.

        Args:
            tag: if it is given, the object must have that revision.
        """

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """Yield the whole object from its start, of the revision in `stat`, and check it if the store gives a
        checksum."""

    def renew(self) -> None:
        """Find credentials again."""


class Bucket(ObjectReader, Protocol):
    """Bucket that can also be listed and written."""

    scheme: str
    bucket: str

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """Yield the objects whose keys begin with `prefix`, in the order of their keys; only those after the key
        `after`."""

    def put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        """Store a seekable file from its start.

        Args:
            replaced: the tag of the revision that the file replaces. If it is empty, the object must not exist.

        Returns:
            False if the object has another revision, or exists, and was not written.
        """

    def delete(self, key: str, tag: str = "") -> None:
        """Delete an object. Deleting a missing object is not an error.

        Args:
            tag: if it is given, an object with another revision stays. Some servers that speak S3 ignore it. An ETag of
                S3 is also that of a later object with the same bytes.
        """


class Digest:
    """Running checksum, of the kind that a Stat or RangeReply carries."""

    def __init__(self, checksum: str):
        self._wanted = checksum
        self._kind = checksum.partition(":")[0]
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = 0
        self._crc_bytes = 8 if self._kind == "crc64nvme" else 4

    def update(self, data: bytes) -> None:
        """Add bytes."""
        if self._kind == "crc32c":
            import google_crc32c

            self._crc = google_crc32c.extend(self._crc, data)
        elif self._kind == "crc32":
            self._crc = zlib.crc32(data, self._crc)
        elif self._kind == "crc64nvme":
            self._crc = importlib.import_module("awscrt.checksums").crc64nvme(data, self._crc)
        elif self._kind == "md5":
            self._md5.update(data)

    def check(self, where: str) -> None:
        """Compare the bytes with the expected checksum; without one, accept all bytes.

        Raises:
            DamagedTransfer: the bytes differ.
        """
        if self._wanted and self.text() != self._wanted:
            kind, _, value = self._wanted.partition(":")
            raise DamagedTransfer(f"cannot read {where}: the received data does not match its {kind.upper()}, {value}")

    def text(self) -> str:
        """Return the checksum in the form of Stat.checksum."""
        raw = self._md5.digest() if self._kind == "md5" else self._crc.to_bytes(self._crc_bytes, "big")
        return f"{self._kind}:{base64.b64encode(raw).decode()}"
