"""Wrap the client of a store with retries.

A request that failed with a transient error is repeated as the policy STORE_REQUEST says. All other errors are raised
at once. Expired credentials are renewed once per call.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import BinaryIO, TypeVar

from voxbatch.errors import StorageError
from voxbatch.safe_text import escape_controls
from voxbatch.storage.address import redacted
from voxbatch.storage.errors import (
    CredentialsExpired,
    DamagedObject,
    DamagedTransfer,
    ObjectNotFound,
    TransientError,
    UnknownHost,
    UnusableObject,
    VaryingObject,
)
from voxbatch.storage.objects import Bucket, Digest, ObjectReader, RangeReply, Stat
from voxbatch.storage.retry import STORE_REQUEST, Retries
from voxbatch.storage.revision import Revision
from voxbatch.storage.temporary_files import temporary_errors, temporary_file

LISTING_PAGE_SIZE = 999
"""Objects that a listing reads at a time: fewer than the 1,000 of both stores' pages, because one of the stores repeats
the last object of a page."""
COPY_BYTES = 1 << 20
"""Bytes that are read from a temporary file at a time."""

_T = TypeVar("_T")


class RetryingReader:
    """ObjectReader with retries. Thread-safe if the wrapped ObjectReader is."""

    def __init__(self, reader: ObjectReader):
        self._reader = reader
        self.place = reader.place
        self._renewals = 0
        self._lock = threading.Lock()

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See ObjectReader.get. If the bytes are a whole object, its checksum is checked too."""

        def get_checked() -> RangeReply:
            reply = self._reader.get(key, start, end, tag)
            if start == 0 and len(reply.data) < end:
                digest = Digest(reply.checksum)
                digest.update(reply.data)
                digest.check(self.where(key))
            return reply

        return self._retry(get_checked)

    def get_once(self, key: str, start: int, end: int, tag: str) -> RangeReply:
        """See ObjectReader.get. This is not retried, for callers with a policy of their own. Expired credentials are
        renewed."""
        return self._with_renewal(lambda: self._reader.get(key, start, end, tag))

    def where(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return escape_controls(redacted(f"{self.place}{key}"))

    def stat(self, key: str, tag: str = "") -> Stat:
        """See ObjectReader.stat."""
        return self._retry(lambda: self._reader.stat(key, tag))

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See ObjectReader.stream. This is not retried: a caller that has taken a part must begin again by itself,
        or use `whole`. Credentials are renewed only at the start."""

        def start() -> Iterator[bytes]:
            stream = self._reader.stream(stat)
            return chain([next(stream, b"")], stream)

        yield from self._with_renewal(start)

    def whole(self, key: str, tag: str) -> Iterator[bytes]:
        """Yield a whole object that cannot be read in ranges: all bytes are of one reply. The object is gathered on
        disk, and fetched from its start again if the transfer breaks off.

        Raises:
            TemporaryFileError: the temporary file cannot be written.
        """
        with temporary_errors(self.where(key)), tempfile.TemporaryFile() as file:

            def copy() -> None:
                file.seek(0)
                file.truncate()
                file.writelines(self._reader.stream(Stat(key, -1, tag)))

            self._retry(copy)
            file.seek(0)
            while data := file.read(COPY_BYTES):
                yield data

    def renew(self) -> None:
        """Find credentials again."""
        self._reader.renew()

    def copy(self, key: str, first: int, then: int, tag: str = "") -> BinaryIO:
        """Return a temporary file of an object, which is read as in `read_blocks`. An object that arrives damaged is
        fetched again. One of which two replies differ is fetched in one reply.

        Raises:
            TemporaryFileError: the file cannot be written.
            DamagedObject, StorageError: see `read_blocks`.
        """
        where = self.where(key)
        try:
            return self._retry(lambda: temporary_file(where, read_blocks(self, key, first, then, tag)), DamagedTransfer)
        except VaryingObject:
            return temporary_file(where, self.whole(key, tag))

    def _retry(self, call: Callable[[], _T], repeated: type[TransientError] = TransientError) -> _T:
        """Return call(). Repeat it after errors of one kind, but not after an unknown host."""
        retries = Retries(STORE_REQUEST, escape_controls(redacted(self.place)))
        try:
            return retries.call(
                lambda: self._with_renewal(call),
                lambda error: isinstance(error, repeated) and not isinstance(error, UnknownHost),
            )
        except DamagedTransfer as e:
            raise DamagedObject(f"{e} ({retries.failed} attempts failed)") from e
        except TransientError as e:
            if not retries.failed:  # a call that repeats its own requests
                raise
            raise TransientError(f"{e} ({retries.failed} attempts failed)", since=retries.middle()) from e

    def _with_renewal(self, call: Callable[[], _T]) -> _T:
        renewals = self._renewals
        try:
            return call()
        except CredentialsExpired:
            with self._lock:
                if self._renewals == renewals:  # no other thread has renewed them meanwhile
                    self._reader.renew()
                    self._renewals += 1
        return call()


class RetryingBucket(RetryingReader):
    """Bucket with retries, which recognise their own data after a lost reply."""

    def __init__(self, bucket: Bucket):
        super().__init__(bucket)
        self._bucket = bucket
        self.scheme, self.bucket = bucket.scheme, bucket.bucket

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """See Bucket.list. The listing is read in pages, each of which is retried.

        Some servers list by folders and not in the order of the keys (SeaweedFS), so the order proves nothing. A server
        that ignores where a page begins, and would list for ever, lists the first object again.
        """

        def read_page(after: str) -> tuple[Stat, ...]:
            return tuple(islice(self._bucket.list(prefix, after), LISTING_PAGE_SIZE))

        first = ""
        while True:
            page = self._retry(partial(read_page, after))
            if first and page and page[0].key == first:
                reason = f"the server lists {first!r} again, and never what follows; use another server"
                raise StorageError(f"cannot list {self.place}{prefix}: {reason}")
            first = first or (page[0].key if page else "")
            yield from page
            if len(page) < LISTING_PAGE_SIZE:
                return
            after = page[-1].key

    def put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        """See Bucket.put. If the object has another revision and holds the same bytes, an earlier attempt wrote it and
        its reply was lost: that counts as written by us."""
        if self._retry(lambda: self._bucket.put(key, body, content_type, replaced)):
            return True
        return self._retry(lambda: self._holds(key, body))

    def _holds(self, key: str, body: BinaryIO) -> bool:
        try:
            stat = self._bucket.stat(key)
            if stat.size != body.seek(0, 2):
                return False
            body.seek(0)
            if not stat.checksum:
                return all(data == body.read(len(data)) for data in self._bucket.stream(stat))
        except (ObjectNotFound, UnusableObject):  # deleted or replaced meanwhile
            return False
        digest = Digest(stat.checksum)
        while data := body.read(COPY_BYTES):
            digest.update(data)
        return digest.text() == stat.checksum

    def delete(self, key: str, tag: str = "") -> None:
        """See Bucket.delete."""
        self._retry(lambda: self._bucket.delete(key, tag))


def read_blocks(reader: RetryingReader, key: str, first: int, then: int, tag: str = "") -> Iterator[bytes]:
    """Yield an object's bytes from its start, in ranges of `first` bytes and then of `then` bytes, all of one revision,
    and check the checksum at the end. An object without a tag is read in one request.

    Raises:
        UnusableObject: the server gives no length, so that a transfer that broke off would look complete.
        DamagedTransfer: the bytes do not match the checksum. The error comes after the last of them.
        VaryingObject: a reply is of another content than the first one.
        ObjectNotFound, UnusableObject, CredentialsExpired, TransientError, StorageError: see ObjectReader.get.
    """
    reply = reader.get(key, 0, first, tag)
    if not reply.has_length:
        raise UnusableObject(
            f"cannot read {reader.where(key)}: its server gives no length, so that a transfer that broke off would "
            "look complete: download it, and give the path of the file"
        )
    if (reply.is_whole_object or not reply.tag) and len(reply.data) == first:
        yield from reader.whole(key, reply.tag)
        return
    revision = Revision(reader, reader.where(key), key, reply)
    digest, data, size, at = Digest(reply.checksum), reply.data, first, 0
    while True:
        digest.update(data)
        at += len(data)
        if data:
            yield data
        if len(data) < size:
            break
        size = then
        data = revision.get(at, at + size)
    digest.check(reader.where(key))
