"""Open files, outputs and recordings at any address: local, in buckets, on web servers and on the hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import (
    HTTP_SCHEMES,
    StoreOptions,
    is_remote,
    parse_bucket_address,
    place_of,
    redacted,
    scheme_of,
)
from voxbatch.storage.circuit_breaker import UnusableRecording
from voxbatch.storage.errors import ObjectNotFound, UnusableObject
from voxbatch.storage.local import OTHER_OUT, LocalStore, read_at
from voxbatch.storage.objects import ReadRange, Stat
from voxbatch.storage.recording import (
    BLOCK_BYTES,
    IN_ARCHIVE,
    WEB_PAGE,
    FileRecording,
    Recording,
    is_web_page,
    open_local_audio,
)
from voxbatch.storage.store import Store

if TYPE_CHECKING:
    from voxbatch.storage.retrying_client import RetryingBucket, RetryingReader

_PAGE_BYTES = 256
_FIRST_BYTES, _NEXT_BYTES = 1 << 20, 8 << 20


@dataclass(frozen=True, slots=True)
class Stores:
    """All places that a run reads and writes, entered with one set of options.

    A value: another process may get it in a message. The clients stay in their process, where all Stores with equal
    options share them (see `connect`). Modules for remote places are imported when an address needs them.
    """

    options: StoreOptions = field(default_factory=StoreOptions)

    def out(self, place: str, alternative: str = OTHER_OUT) -> Store:
        """Return the store of a place of outputs: a folder, or a gs:// or s3:// prefix.

        Args:
            alternative: the advice of errors if a folder cannot be used.

        Raises:
            ConfigError: nothing can be written there.
            StorageError: the client library or the credentials are missing.
        """
        if not is_remote(place):
            return LocalStore(place, alternative)
        if (scheme := scheme_of(place)) in (*HTTP_SCHEMES, "hf"):
            server = "the Hugging Face hub" if scheme == "hf" else "a web server"
            raise ConfigError(f"-o {redacted(place)}: {server} takes no outputs; give a folder, gs:// or s3://")
        from voxbatch.storage.bucket import BucketStore

        try:
            address = parse_bucket_address(place)
        except ValueError as e:
            raise ConfigError(f"-o {place}: {e}") from e
        return BucketStore(address, self.bucket(address.scheme, address.bucket))

    def recording(self, uri: str, block_bytes: int = BLOCK_BYTES) -> Recording:
        """Open a recording, which the caller must close. A large remote recording is fetched in blocks of `block_bytes`
        bytes.

        Raises:
            AudioError: the recording is missing, unreadable, or not a regular file.
            StorageError: its place does not answer or refuses access, so that nothing is known about the recording.
        """
        try:
            if IN_ARCHIVE.search(uri) and (member := self._member(uri)):
                return member
            if not is_remote(uri):
                return FileRecording(open_local_audio(uri))
            from voxbatch.storage.remote_recording import fetch

            recording = fetch(*self.reader(uri), block_bytes)
            if scheme_of(uri) in HTTP_SCHEMES and is_web_page(recording.pread(_PAGE_BYTES, 0)):
                recording.close()
                raise UnusableObject(f"cannot read {redacted(uri)}: it {WEB_PAGE}", FailureKind.NOT_AUDIO)
            return recording
        except (AudioError, ObjectNotFound, UnusableObject) as e:
            raise UnusableRecording(str(e), e.kind, retryable=isinstance(e, UnusableObject) and e.retryable) from e
        except ValueError as e:
            raise AudioError(f"cannot open {redacted(uri)}: {e}", FailureKind.NOT_FOUND) from e

    def _member(self, uri: str) -> Recording | None:
        """Open a recording in an archive. None if the address names no such recording."""
        from voxbatch.storage import parquet_members, tar_members

        if member := tar_members.parse_member(uri):
            with self.ranges(member.archive) as (read, _):
                return tar_members.open_member(member, read)
        if row := parquet_members.parse_member(uri):
            with self.ranges(row.file, of_one_revision=True) as (read, stat):
                return parquet_members.open_member(row, read, stat)
        return None

    def open(self, uri: str) -> BinaryIO:
        """Open a file, positioned at the start. A remote file is copied to an unnamed temporary file.

        Raises:
            OSError: the local file cannot be read.
            StorageError: the remote file cannot be read, or the temporary file cannot be written.
        """
        if not is_remote(uri):
            return open(uri, "rb")
        try:
            client, key = self.reader(uri)
        except ValueError as e:
            raise StorageError(f"cannot open {redacted(uri)}: {e}") from e
        return client.copy(key, _FIRST_BYTES, _NEXT_BYTES)

    @contextlib.contextmanager
    def ranges(self, file: str, of_one_revision: bool = False) -> Iterator[tuple[ReadRange, Stat]]:
        """Yield the function that reads ranges of a local or remote file, and the file's size and revision. Those of a
        remote file are unknown unless all reads must be of one revision.

        Raises:
            AudioError, StorageError: the file cannot be read; see `recording`.
        """
        if is_remote(file):
            reader, key = self.reader(file)
            stat = reader.stat(key) if of_one_revision else Stat(key, 0, "")
            yield lambda count, at: reader.get(key, at, at + count, stat.tag).data, stat
            return
        fd = open_local_audio(file)
        try:
            state = os.fstat(fd)
            local = Stat(file, state.st_size, f"{state.st_ino} {state.st_mtime_ns}")
            yield lambda count, at: read_at(fd, count, at), local
        finally:
            os.close(fd)

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield the objects below gs://bucket/prefix/ or s3://bucket/prefix/, ordered by key.

        Raises:
            ValueError: it is not such an address.
            StorageError: the bucket cannot be listed.
        """
        address = parse_bucket_address(prefix)
        return self.bucket(address.scheme, address.bucket).list(address.key)

    def stat(self, uri: str) -> Stat:
        """Return the size, revision, checksum and time of a remote object.

        Raises:
            ValueError: no object can have that address.
            ObjectNotFound: there is no such object.
            StorageError: its place does not answer, or refuses access.
        """
        client, key = self.reader(uri)
        return client.stat(key)

    def bucket(self, scheme: str, name: str) -> RetryingBucket:
        """Return this process's client of a bucket.

        Raises:
            StorageError: the client library or the credentials are missing.
        """
        from voxbatch.storage import connect

        with connect.CREATING:
            return connect.bucket(scheme, name, self.options)

    def reader(self, uri: str) -> tuple[RetryingReader, str]:
        """Return (the client of a remote file's place, the file's key there).

        Raises:
            ValueError: no file has that address.
            StorageError: the client library or the credentials are missing.
        """
        if scheme_of(uri) not in HTTP_SCHEMES:
            address = parse_bucket_address(uri)
            if not address.key or address.key.endswith("/"):
                raise ValueError("it is a folder; name a file in it")
            return self.bucket(address.scheme, address.bucket), address.key
        from voxbatch.storage import connect

        key = connect.web_key(uri)
        with connect.CREATING:
            return connect.web_server(place_of(uri), self.options), key


DEFAULT_STORES = Stores()
