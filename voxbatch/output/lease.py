"""A worker's lease on an OUT: a small object there, renewed during the work, so that a second worker does not perform
the same run at the same time.

The lease only saves work. It may be wrong, because clocks differ or a write arrives late. Then two workers perform one
run, and the ledger ensures that no item is committed twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from voxbatch.errors import StorageError
from voxbatch.storage import Store

NAME = "claim.json"
"""Name of the lease's object in OUT."""
WORKER = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
"""Identity of this process: host, process id and a random part."""
RENEWALS = 4
"""Renewals of the OUT's lease within the length of a message's lease."""
GOOD_FOR = 0.6
"""Validity of the OUT's lease, as a fraction of a message's lease.

A message's lease is extended three times within its length. When the message's lease of a dead worker ends, the
worker's lease on OUT is therefore older than two thirds of that length, and has ended, too. So no worker waits for a
dead one.
"""
_JOIN_S = 1.0
"""Seconds to wait for the renewing thread."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The lease, as stored."""

    worker: str
    message: str
    """Id of the message that is not acknowledged before the work is done."""
    at: float
    """Time of the last renewal, in seconds since 1970."""
    good_for_s: float


def take(store: Store, message: str, lease_s: float) -> Claim | None:
    """Take the lease on an OUT, and return None; return the valid lease of another process if there is one.

    Args:
        store: the OUT.
        message: id of the message that asks for the run.
        lease_s: length of the message's lease, in seconds.

    Raises:
        StorageError: the store cannot be read or written.
    """
    ours = _renewed(message, lease_s)
    if store.create(NAME, ours):
        return None
    if (other := _found(store)) is None:
        store.write(NAME, ours)
    return other


@contextlib.contextmanager
def kept(store: Store, message: str, lease_s: float) -> Iterator[None]:
    """Renew the lease inside the context, and release it afterwards. A failed renewal is ignored."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(lease_s / RENEWALS):
            with contextlib.suppress(StorageError):
                store.write(NAME, _renewed(message, lease_s))

    thread = threading.Thread(target=renew, daemon=True, name="claim")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)
        with contextlib.suppress(StorageError):
            store.delete(NAME)


def _renewed(message: str, lease_s: float) -> list[bytes]:
    """Return the content of the lease, renewed now."""
    return [json.dumps(asdict(Claim(WORKER, message, time.time(), lease_s * GOOD_FOR))).encode() + b"\n"]


def _found(store: Store) -> Claim | None:
    """Return the valid lease of another process; None if there is none."""
    try:
        claim = Claim(**json.loads(store.read(NAME) or b"null"))
        is_good = abs(time.time() - claim.at) < claim.good_for_s  # abs: a time in the future comes from a wrong clock
    except (ValueError, TypeError):
        return None  # it was released meanwhile, or voxbatch did not write it
    return claim if is_good and claim.worker != WORKER else None
