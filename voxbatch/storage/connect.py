"""Create the client for an address, and read remote objects that are no recordings. This is the only module that knows
the class for each scheme.

A process has one client for each bucket and for each host.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import BinaryIO

from voxbatch.errors import StorageError
from voxbatch.storage.address import (
    DEFAULT_STORE_OPTIONS,
    HTTP_SCHEMES,
    StoreOptions,
    parse_bucket_address,
    place_of,
    redacted,
    scheme_of,
)
from voxbatch.storage.objects import Stat
from voxbatch.storage.retrying_client import RetryingBucket, RetryingReader

_CREATING = threading.Lock()
"""Lock around the caches. Without it, several threads that come before the first client exists would each create a
client and log in."""


@functools.cache
def bucket(scheme: str, name: str, store_options: StoreOptions) -> RetryingBucket:
    """Return the client of a bucket, with retries.

    Raises:
        StorageError: the client library or the credentials are missing.
    """
    if scheme == "gs":
        from voxbatch.storage.gcs import GoogleBucket

        return RetryingBucket(GoogleBucket(name, store_options))
    if scheme == "hf":
        from voxbatch.storage.hf import HubDatasets

        return RetryingBucket(HubDatasets(store_options))
    from voxbatch.storage.s3 import AmazonBucket

    return RetryingBucket(AmazonBucket(name, store_options))


@functools.lru_cache(64)
def web_server(place: str, store_options: StoreOptions) -> RetryingReader:
    """Return the client of a web server, with retries."""
    from voxbatch.storage.web import WebServer

    return RetryingReader(WebServer(place, store_options))


def reader(uri: str, store_options: StoreOptions) -> tuple[RetryingReader, str]:
    """Return (the client of a remote file's place, the file's key there).

    Raises:
        ValueError: no file has that address.
        StorageError: the client library or the credentials are missing.
    """
    if scheme_of(uri) in HTTP_SCHEMES:
        from voxbatch.storage.web import parse_web_address

        target = parse_web_address(uri).target
        with _CREATING:
            return web_server(place_of(uri), store_options), target[1:]
    address = parse_bucket_address(uri)
    if not address.key or address.key.endswith("/"):
        raise ValueError("it is a folder; name a file in it")
    with _CREATING:
        return bucket(address.scheme, address.bucket, store_options), address.key


def open_remote(uri: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> BinaryIO:
    """Return a remote file's bytes as an unnamed temporary file, positioned at the start.

    Raises:
        StorageError: the remote file cannot be read, or the temporary file cannot be written.
    """
    try:
        client, key = reader(uri, store_options)
    except ValueError as e:
        raise StorageError(f"cannot open {redacted(uri)}: {e}") from e
    return client.copy(key, _FIRST_BYTES, _NEXT_BYTES)


_FIRST_BYTES, _NEXT_BYTES = 1 << 20, 8 << 20


def list_objects(uri: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> Iterator[Stat]:
    """Yield the objects below gs://bucket/prefix/ or s3://bucket/prefix/, ordered by key.

    Raises:
        ValueError: it is not such an address.
        StorageError: the bucket cannot be listed.
    """
    address = parse_bucket_address(uri)
    return bucket(address.scheme, address.bucket, store_options).list(address.key)


def stat_object(uri: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> Stat:
    """Return the size, revision, checksum and time of a remote object.

    Raises:
        ValueError: no object can have that address.
        ObjectNotFound: there is no such object.
        StorageError: its place does not answer, or refuses access.
    """
    client, key = reader(uri, store_options)
    return client.stat(key)
