"""Create the client for an address. This is the only module that knows the class for each scheme.

A process has one client for each bucket and for each host.
"""

from __future__ import annotations

import functools
import threading

from voxbatch.storage.address import HTTP_SCHEMES, in_bucket, on_web, place_of, scheme_of
from voxbatch.storage.options import Access
from voxbatch.storage.retry import SteadyBucket, SteadyReader

_MAKING = threading.Lock()
"""Lock around the caches. Without it, several threads that come before the first client exists would each create a
client and log in."""


@functools.cache
def bucket(scheme: str, name: str, access: Access) -> SteadyBucket:
    """Return the client of a bucket, with retries.

    Raises:
        StorageError: the client library or the credentials are missing.
    """
    if scheme == "gs":
        from voxbatch.storage.gcs import GoogleBucket

        return SteadyBucket(GoogleBucket(name, access))
    from voxbatch.storage.s3 import AmazonBucket

    return SteadyBucket(AmazonBucket(name, access))


@functools.lru_cache(64)
def _web(place: str, access: Access) -> SteadyReader:
    from voxbatch.storage.web import WebServer

    return SteadyReader(WebServer(place, access))


def reader(uri: str, access: Access) -> tuple[SteadyReader, str]:
    """Return (the client of a remote file's place, the file's key there).

    Raises:
        ValueError: no file has that address.
        StorageError: the client library or the credentials are missing.
    """
    if scheme_of(uri) in HTTP_SCHEMES:
        target = on_web(uri).target
        with _MAKING:
            return _web(place_of(uri), access), target[1:]
    address = in_bucket(uri)
    if not address.key or address.key.endswith("/"):
        raise ValueError("it is a folder; name a file in it")
    with _MAKING:
        return bucket(address.scheme, address.bucket, access), address.key
