"""The one place that knows which class speaks to which scheme. A process has one client for a bucket and for a host."""

from __future__ import annotations

import functools
import threading

from voxbatch.storage.access import Access
from voxbatch.storage.address import HTTP_SCHEMES, in_bucket, on_web, place_of, scheme_of
from voxbatch.storage.steady import SteadyBucket, SteadyReader

_MAKING = threading.Lock()
"""A cache alone lets all threads in that come before the first client is made, and each would log in."""


@functools.cache
def bucket(scheme: str, name: str, access: Access) -> SteadyBucket:
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
    """(the place of a remote file, its key there)

    Raises:
        ValueError: no file has that address.
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
