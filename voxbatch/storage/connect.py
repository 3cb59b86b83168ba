"""Create the client of a bucket or of a web server. This is the only module that knows the class for each scheme.

A process has one client for each bucket and for each host, and for each set of options. It keeps them here.
"""

from __future__ import annotations

import functools
import threading

from voxbatch.storage.address import StoreOptions
from voxbatch.storage.retrying_client import RetryingBucket, RetryingReader

CREATING = threading.Lock()
"""Lock around the caches. Without it, several threads that come before the first client exists would each create a
client and log in."""


@functools.cache
def bucket(scheme: str, name: str, options: StoreOptions) -> RetryingBucket:
    """Return the client of a bucket, with retries.

    Raises:
        StorageError: the client library or the credentials are missing.
    """
    if scheme == "gs":
        from voxbatch.storage.gcs import GoogleBucket

        return RetryingBucket(GoogleBucket(name, options))
    if scheme == "hf":
        from voxbatch.storage.hf import HubDatasets

        return RetryingBucket(HubDatasets(options))
    from voxbatch.storage.s3 import AmazonBucket

    return RetryingBucket(AmazonBucket(name, options))


@functools.lru_cache(64)
def web_server(place: str, options: StoreOptions) -> RetryingReader:
    """Return the client of a web server, with retries."""
    from voxbatch.storage.web import WebServer

    return RetryingReader(WebServer(place, options))
