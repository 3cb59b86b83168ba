"""Read recordings and models, and write outputs: in local files, in buckets, and on web servers.

The package has two interfaces. A `Store` is the place of one run's outputs (OUT), addressed by relative names. Its
`create` is create-if-absent, and every promise of the checkpoint (the committed parts) depends on that. A
`Recording` (`recording`) is the input of a decoder.

`model_download.download_model` fetches a model from a bucket. The classes for remote places have the interfaces of
`objects`, with one class for each protocol (`gcs`, `s3`, `web`). `retry` wraps these classes with retries. No other
module here repeats a request, except that `model_download` restarts a broken download. No module outside this package
uses a cloud's storage client. The modules for remote places are imported when an address is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from voxbatch.errors import ConfigError, StorageError, VoxbatchError
from voxbatch.storage.address import (
    DEFAULT_STORE_OPTIONS,
    HTTP_SCHEMES,
    StoreOptions,
    is_remote,
    parse_bucket_address,
    place_of,
    redacted,
    scheme_of,
)
from voxbatch.storage.circuit_breaker import UnusableRecording
from voxbatch.storage.local import (
    IN_ARCHIVE,
    LocalReadError,
    LocalStore,
    open_local_audio,
    read_at,
    stored_path,
    verify_readable,
)
from voxbatch.storage.temporary_files import TemporaryFileError

__all__ = [
    "DEFAULT_STORE_OPTIONS",
    "IN_ARCHIVE",
    "WEB_PAGE",
    "LocalReadError",
    "StorageError",
    "Store",
    "StoreOptions",
    "TemporaryFileError",
    "UnusableRecording",
    "is_remote",
    "is_web_page",
    "open_local_audio",
    "open_store",
    "parallel_map",
    "place_of",
    "read_at",
    "redacted",
    "remove_command",
    "stored_path",
    "verify_readable",
]

_T = TypeVar("_T")
_R = TypeVar("_R")


class Store(Protocol):
    """Place of a run's outputs. Names are relative POSIX paths below the place. Every method raises StorageError if the
    place fails."""

    place: str
    """Folder or bucket prefix, for messages."""
    concurrency: int
    """Number of concurrent calls that is worthwhile."""
    max_open: int
    """Number of objects whose `lines` may be read at a time: each takes a buffer or a file descriptor."""

    def prepare(self) -> str | None:
        """Create the place and prove that it can be written.

        Returns:
            A warning if the place can be written, but its `create` replaces existing objects; otherwise None.
        """

    def read(self, name: str) -> bytes | None:
        """Return the whole object, or None if it does not exist."""

    def exists(self, name: str) -> bool:
        """Return whether the object exists, or, for a name that ends in /, whether anything exists below it."""

    def lines(self, name: str) -> Generator[bytes]:
        """Yield the object's lines as a stream. Close the generator if it is not exhausted."""

    def names(self, prefix: str) -> list[str]:
        """Return the names below a folder, sorted; [] if the folder does not exist."""

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        """Write the object unless it exists. All of it appears at once, or nothing.

        Args:
            durable: the object survives a loss of power from now on. Otherwise it does so after `sync`; before that,
                its name may be left with other bytes.

        Returns:
            False if the object existed already.
        """

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        """Write or replace the object, all at once. See `create` for `durable`.

        Raises:
            StorageError: in a bucket, another process has written the object since this call began to read `blocks`.
        """

    def sync(self) -> None:
        """Make everything durable that was written so far, also by other processes of this machine."""

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        """Remove the object. Removing a missing object is not an error.

        Args:
            check: raises an error if the object may not be removed. In a bucket, the revision that is removed is read
                before it: a request that is delayed, or repeated for minutes, cannot remove a later one.
        """


def open_store(place: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> Store:
    """Return the store of a place: a folder, or a gs:// or s3:// prefix.

    Raises:
        ConfigError: nothing can be written there.
        StorageError: the client library or the credentials are missing.
    """
    if not is_remote(place):
        return LocalStore(place)
    if (scheme := scheme_of(place)) in (*HTTP_SCHEMES, "hf"):
        server = "the Hugging Face hub" if scheme == "hf" else "a web server"
        raise ConfigError(f"-o {redacted(place)}: {server} takes no outputs; give a folder, gs:// or s3://")
    from voxbatch.storage import connect
    from voxbatch.storage.bucket import BucketStore

    try:
        address = parse_bucket_address(place)
    except ValueError as e:
        raise ConfigError(f"-o {place}: {e}") from e
    return BucketStore(address, connect.bucket(address.scheme, address.bucket, store_options))


def remove_command(place: str, name: str) -> str:
    """Return the command with which a person removes an object of a store, for messages."""
    program = {"gs": "gcloud storage rm", "s3": "aws s3 rm"}.get(scheme_of(place), "rm")
    return f"{program} {shlex.quote(f'{place}/{name}')}"


WEB_PAGE = "is a web page, and no recording; yt-dlp fetches the recordings of web pages: yt-dlp -x ADDRESS"


def is_web_page(begin: bytes) -> bool:
    """Return whether a file that begins so is HTML."""
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype html", b"<html"))


def parallel_map(concurrency: int, call: Callable[[_T], _R], arguments: Iterable[_T]) -> Iterator[_R]:
    """Yield map(call, arguments), in order, with `concurrency` calls at a time, on threads."""
    if concurrency == 1:
        yield from map(call, arguments)
        return
    from voxbatch.storage.request_pool import RequestPool

    waiting, is_calm = iter(arguments), False
    pool = RequestPool(concurrency)
    try:
        running = [pool.submit(call, argument) for argument in islice(waiting, 2 * concurrency)]
        while running:
            done = running.pop(0)
            yield done.result()
            running += [pool.submit(call, argument) for argument in islice(waiting, 1)]
        is_calm = True
    except (VoxbatchError, GeneratorExit):
        is_calm = True
        raise
    finally:  # an interrupted caller does not wait for requests that are being retried
        pool.close(wait=is_calm)
