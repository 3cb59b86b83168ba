"""Create the client of a bucket or of a web server. This is the only module that knows the class for each scheme.
The classes are in the folder `stores`, and are imported when an address needs them.

A process has one client for each bucket and for each host, and for each set of options. It keeps them here.
"""

from __future__ import annotations

import functools
import threading
from pkgutil import resolve_name
from typing import Any

from voxbatch import parts
from voxbatch.errors import StorageError
from voxbatch.storage.address import StoreOptions
from voxbatch.storage.retrying_client import RetryingBucket, RetryingReader

CREATING = threading.Lock()
"""Lock around the caches. Without it, several threads that come before the first client exists would each create a
client and log in."""
CLIENTS = {
    "gs": "voxbatch.stores.gcs:GoogleBucket",
    "hf": "voxbatch.stores.hf:HubDatasets",
    "s3": "voxbatch.stores.s3:AmazonBucket",
    "https": "voxbatch.stores.web:WebServer",
}
"""The client of each scheme, as module:class; http is as https."""


@functools.cache
def bucket(scheme: str, name: str, options: StoreOptions) -> RetryingBucket:
    """Return the client of a bucket, with retries.

    Raises:
        StorageError: the client library or the credentials are missing, or this installation has no client for it.
    """
    client = _part(CLIENTS[scheme])
    return RetryingBucket(client(options) if scheme == "hf" else client(name, options))


@functools.lru_cache(64)
def web_server(place: str, options: StoreOptions) -> RetryingReader:
    """Return the client of a web server, with retries.

    Raises:
        StorageError: this installation has no client for it.
    """
    return RetryingReader(_part(CLIENTS["https"])(place, options))


def web_key(uri: str) -> str:
    """Return the key of a file at its web server: its path and query without the first slash.

    Raises:
        ValueError: no file has that address.
        StorageError: as for `web_server`.
    """
    key: str = _part("voxbatch.stores.web:parse_web_address")(uri).target[1:]
    return key


def pinned(uri: str, options: StoreOptions) -> str:
    """Return a data set of the hub at the commit that it has now.

    Raises:
        ValueError: it is no address of a data set.
        ObjectNotFound: there is no such data set.
        StorageError: as for `bucket`.
    """
    address: str = _part("voxbatch.stores.hf:pinned")(uri, options)
    return address


def _part(name: str) -> Any:
    module = name.partition(":")[0]
    if not parts.has(module):
        raise StorageError(f"this installation of voxbatch has no {module}: install voxbatch again")
    return resolve_name(name)
