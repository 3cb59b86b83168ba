"""Where audio comes from and where outputs go: the only room that touches files, buckets and web servers.

Two seams. A `Store` is the place of one run's outputs (OUT), named by relative names; its `create` is create-if-absent,
which every promise of the ledger rests on. A `Recording` is what a decoder reads. A model in a bucket is
`prefix.fetch_prefix`'s to bring. Remote places are `objects`, one class a protocol (`gcs`, `s3`, `web`), made steady by
`steady`; nothing else here repeats a request, and nobody else knows a cloud's client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import BinaryIO, Protocol, TypeVar

from voxbatch.errors import AudioError, ConfigError, StorageError, VoxbatchError
from voxbatch.storage import connect
from voxbatch.storage.access import USUAL, Access
from voxbatch.storage.address import HTTP_SCHEMES, in_bucket, is_remote, place_of, scheme_of, shown
from voxbatch.storage.local import LocalStore, open_local_audio
from voxbatch.storage.objects import Absent, Expired, Interrupted, Stat, Unfit
from voxbatch.storage.recording import BLOCK_BYTES, FileRecording, Recording, fetch
from voxbatch.storage.spool import Unkept, spool
from voxbatch.storage.steady import blocks, hurry

__all__ = [
    "USUAL",
    "Access",
    "Answered",
    "Expired",
    "Interrupted",
    "Recording",
    "Store",
    "Unfit",
    "Unkept",
    "at_once",
    "hurry",
    "in_order",
    "is_remote",
    "listed",
    "open_recording",
    "open_remote",
    "open_store",
    "place_of",
    "shown",
    "stat",
]

_T = TypeVar("_T")
_R = TypeVar("_R")


class Answered(AudioError):
    """A recording cannot be had, and its place said so at `when` (time.monotonic): the place is not to blame."""

    def __init__(self, message: str):
        super().__init__(message)
        self.when = time.monotonic()


class Store(Protocol):
    """Names are relative POSIX paths below the store's place. Every method raises StorageError when the place fails."""

    place: str
    """For people: the folder or the bucket prefix."""
    streams: int
    """How many calls at a time pay off."""

    def prepare(self) -> str | None:
        """Make the place, and prove that it can be written. Gives a warning where it can, but `create` would replace
        what is there."""

    def read(self, name: str) -> bytes | None:
        """The whole object, None where there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is such an object, or, for a name that ends in /, anything below it."""

    def lines(self, name: str) -> Generator[bytes]:
        """The object's lines, streamed; close it when done early."""

    def names(self, prefix: str) -> list[str]:
        """The names below a folder, sorted; [] where it does not exist."""

    def create(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write the object unless it exists: all of it appears at once or nothing does. False when another stood
        there."""

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write or replace the object, all at once."""

    def delete(self, name: str) -> None:
        """Remove the object; nothing happens where there is none."""


def open_store(place: str, access: Access = USUAL) -> Store:
    """
    Raises:
        ConfigError: nothing can be written there.
        StorageError: the client library or the credentials are missing.
    """
    if not is_remote(place):
        return LocalStore(place)
    if scheme_of(place) in HTTP_SCHEMES:
        raise ConfigError(f"-o {shown(place)}: a web server takes no outputs; give a folder, gs:// or s3://")
    from voxbatch.storage.bucket import BucketStore

    try:
        address = in_bucket(place)
    except ValueError as e:
        raise ConfigError(f"-o {place}: {e}") from e
    return BucketStore(address, connect.bucket(address.scheme, address.bucket, access))


def open_recording(uri: str, access: Access = USUAL, block_bytes: int = BLOCK_BYTES) -> Recording:
    """A recording, to be closed. What is remote comes in blocks of so many bytes.

    Raises:
        AudioError: it is missing, unreadable, or no regular file.
        StorageError: its place does not answer or lets nobody in: nothing is known of the recording.
    """
    if not is_remote(uri):
        return FileRecording(open_local_audio(uri))
    try:
        return fetch(*connect.reader(uri, access), block_bytes)
    except (Absent, Unfit) as e:
        raise Answered(str(e)) from e
    except ValueError as e:
        raise AudioError(f"cannot open {shown(uri)}: {e}") from e


def open_remote(uri: str, access: Access = USUAL) -> BinaryIO:
    """A remote file's bytes in an unnamed temporary file, at its start.

    Raises:
        StorageError: it cannot be read, or not kept.
    """
    try:
        reader, key = connect.reader(uri, access)
    except ValueError as e:
        raise StorageError(f"cannot open {shown(uri)}: {e}") from e
    return spool(shown(uri), blocks(reader, key, _FIRST_BYTES, _NEXT_BYTES))


_FIRST_BYTES, _NEXT_BYTES = 1 << 20, 8 << 20


def listed(uri: str, access: Access = USUAL) -> Iterator[Stat]:
    """The objects below gs://bucket/prefix/ or s3://bucket/prefix/, by key.

    Raises:
        ValueError: it is no such address.
        StorageError: the bucket cannot be listed.
    """
    address = in_bucket(uri)
    return connect.bucket(address.scheme, address.bucket, access).list(address.key)


def stat(uri: str, access: Access = USUAL) -> Stat:
    """What is known of a remote object.

    Raises:
        ValueError: no object has that address.
        Absent: there is none.
        StorageError: its place does not answer, or lets nobody in.
    """
    reader, key = connect.reader(uri, access)
    return reader.stat(key)


def at_once(store: Store, call: Callable[[_T], _R], arguments: Iterable[_T]) -> Iterator[_R]:
    """map(call, arguments), in order, as many calls at a time as pay off in this store."""
    return in_order(store.streams, call, arguments)


def in_order(streams: int, call: Callable[[_T], _R], arguments: Iterable[_T]) -> Iterator[_R]:
    """map(call, arguments), in order, so many calls at a time on threads."""
    if streams == 1:
        yield from map(call, arguments)
        return
    waiting, is_calm = iter(arguments), False
    pool = ThreadPoolExecutor(streams, thread_name_prefix="store")
    try:
        running = [pool.submit(call, each) for each in islice(waiting, 2 * streams)]
        while running:
            done = running.pop(0)
            yield done.result()
            running += [pool.submit(call, each) for each in islice(waiting, 1)]
        is_calm = True
    except (VoxbatchError, GeneratorExit):
        is_calm = True
        raise
    finally:  # who is interrupted does not wait for requests that are made again and again
        pool.shutdown(wait=is_calm, cancel_futures=True)
