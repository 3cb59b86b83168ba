"""Read recordings and models, and write outputs: in local files, in buckets, and on web servers.

`Stores` opens everything: it has the options of access, and no other object passes them on. What it opens has two
interfaces. A `Store` is the place of one run's outputs (OUT), addressed by relative names. Its `create` is
create-if-absent, and every promise of the checkpoint (the committed parts) depends on that. A `Recording`
(`recording`) is the input of a decoder.

`model_download.download_model` fetches a model from a bucket. The classes for remote places have the interfaces of
`objects`, with one class for each protocol (`gcs`, `s3`, `web`). `retry` wraps these classes with retries. No other
module here repeats a request, except that `model_download` restarts a broken download. No module outside this package
uses a cloud's storage client. The modules for remote places are imported when an address is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from voxbatch.errors import VoxbatchError
from voxbatch.storage.address import (
    StoreOptions,
    is_remote,
    place_of,
    redacted,
    scheme_of,
)
from voxbatch.storage.circuit_breaker import UnusableRecording
from voxbatch.storage.local import COPIED_OUT, LocalReadError, read_at
from voxbatch.storage.recording import WEB_PAGE, is_web_page
from voxbatch.storage.store import Store
from voxbatch.storage.stores import DEFAULT_STORES, Stores
from voxbatch.storage.temporary_files import TemporaryFileError

__all__ = [
    "COPIED_OUT",
    "DEFAULT_STORES",
    "WEB_PAGE",
    "LocalReadError",
    "Store",
    "StoreOptions",
    "Stores",
    "TemporaryFileError",
    "UnusableRecording",
    "is_remote",
    "is_web_page",
    "parallel_map",
    "place_of",
    "read_at",
    "redacted",
    "remove_command",
]

_T = TypeVar("_T")
_R = TypeVar("_R")


def remove_command(place: str, name: str) -> str:
    """Return the command with which a person removes an object of a store, for messages. A * in the last part of its
    name stands for any text."""
    folder, _, last = f"{place}/{name}".rpartition("/")
    scheme, has_pattern = scheme_of(place), "*" in last
    if scheme == "s3" and has_pattern:
        return f"aws s3 rm {shlex.quote(f'{folder}/')} --recursive --exclude '*' --include {shlex.quote(last)}"
    program = {"gs": "gcloud storage rm", "s3": "aws s3 rm"}.get(scheme, "rm")
    is_expanded_here = has_pattern and program == "rm"
    return f"{program} {f'{shlex.quote(folder)}/{last}' if is_expanded_here else shlex.quote(f'{folder}/{last}')}"


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
