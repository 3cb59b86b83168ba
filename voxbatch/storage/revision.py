"""Read ranges of one revision of an object, and notice replies of other contents.

A bucket's tag pins a revision. A web server's may not: servers that insert advertisements send other bytes to each
request, with one date or one ETag. The replies of a web server are therefore compared with each other: each must report
the same size of the whole, and the bytes where two ranges meet are requested with both.
"""

from __future__ import annotations

from voxbatch.storage.errors import VaryingObject
from voxbatch.storage.objects import ObjectReader, RangeReply

SHARED_BYTES = 64
"""Bytes before a range that are requested again: too many to be equal by chance in two contents, and next to nothing.
Where two contents are equal here, they may still differ inside a range, as with advertisements of one length. The
joined bytes are then complete all the same."""


class Revision:
    """One revision of an object. Thread-safe."""

    def __init__(self, reader: ObjectReader, where: str, key: str, first: RangeReply):
        """Store the reply with the first bytes of the object, which sets the revision. `where` is its address, for
        messages."""
        self.tag, self._size = first.tag, first.size
        self.may_vary = first.size is not None
        """True if it is on a web server, whose tag may not pin the content."""
        self._reader, self._where, self._key = reader, where, key
        self._before: dict[int, bytes] = {}
        """Position → the bytes before it, from the reply that came first. `setdefault` is atomic."""
        self._compare(first, 0, 0)

    def get(self, start: int, end: int) -> bytes:
        """Return bytes [start, end), fewer if the object ends earlier.

        Raises:
            VaryingObject: they belong to another content than earlier bytes.
            ObjectNotFound, UnusableObject, CredentialsExpired, TransientError, StorageError: see ObjectReader.get.
        """
        shared = min(SHARED_BYTES, start) if self.may_vary else 0
        reply = self._reader.get(self._key, start - shared, end, self.tag)
        self._compare(reply, start - shared, start)
        return reply.data[shared:]

    def _compare(self, reply: RangeReply, at: int, start: int) -> None:
        """Compare a reply from position `at` with earlier ones: its size, and the bytes before `start` and its end."""
        if not self.may_vary:
            return
        is_same = reply.size in (None, self._size)
        for position in (start, at + len(reply.data)):
            before = reply.data[: position - at][-SHARED_BYTES:]
            is_same &= self._before.setdefault(position, before) == before
        if not is_same:
            raise VaryingObject(self._where)
