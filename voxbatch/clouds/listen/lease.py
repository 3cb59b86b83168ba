"""Hold a lease on an OUT: a small object there, renewed by heartbeats during the work, so that a second listener does
not perform the same run at the same time.

The lease only saves work. It may be wrong, because clocks differ. Then two workers perform one run, and the checkpoint
ensures that no item is committed twice. A worker that was suspended, or whose request arrives late, neither renews nor
releases the lease of its successor.
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
from voxbatch.output.layout import LEASE
from voxbatch.storage import Store

WORKER = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
"""Identity of this process: host, process id and a random part."""
HEARTBEATS = 4
"""Renewals of the lease on OUT within the length of a message's lease."""
VALIDITY = 0.6
"""Validity of the lease on OUT, as a fraction of the length of a message's lease.

A message's lease is extended three times within its length. When the message's lease of a dead worker ends, the
worker's lease on OUT is therefore older than two thirds of that length, and has ended, too. So no worker waits for a
dead one.
"""
_JOIN_S = 1.0
"""Seconds to wait for the end of the heartbeat thread."""


@dataclass(frozen=True, slots=True)
class OutputLease:
    """The lease, as stored."""

    worker: str
    message: str
    """Id of the message that is not acknowledged before the work is done."""
    at: float
    """Time of the last renewal, in seconds since 1970."""
    good_for_s: float
    """Seconds from the last renewal to the end of the lease."""


def acquire(store: Store, message: str, lease_s: float) -> OutputLease | None:
    """Acquire the lease on an OUT, and return None; return the valid lease of another process if there is one.

    Args:
        message: id of the message that asks for the run.

    Raises:
        StorageError: the store cannot be read or written.
    """
    content = _renewed(message, lease_s)
    if store.create(LEASE, content):
        return None
    with contextlib.suppress(ValueError, TypeError):  # it was released meanwhile, or voxbatch did not write it
        other = OutputLease(**json.loads(store.read(LEASE) or b"null"))
        # The absolute value, because a time in the future comes from a wrong clock.
        if abs(time.time() - other.at) < other.good_for_s and other.worker != WORKER:
            return other
    store.write(LEASE, content)
    return None


@contextlib.contextmanager
def hold(store: Store, message: str, lease_s: float) -> Iterator[None]:
    """Renew the acquired lease inside the context, and release it afterwards. A failed renewal is ignored, and so is
    the lease of another process."""
    over = threading.Event()

    def send_heartbeats() -> None:
        while not over.wait(lease_s / HEARTBEATS):
            with contextlib.suppress(StorageError):
                store.write(LEASE, _while_ours(store, _renewed(message, lease_s)))

    thread = threading.Thread(target=send_heartbeats, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)
        with contextlib.suppress(StorageError):
            store.delete(LEASE, lambda: _check_ours(store))


def _check_ours(store: Store) -> None:
    """Raise StorageError unless the lease belongs to this process."""
    with contextlib.suppress(ValueError, TypeError):  # voxbatch did not write it
        if OutputLease(**json.loads(store.read(LEASE) or b"null")).worker == WORKER:
            return
    raise StorageError(f"{store.place}/{LEASE} belongs to another process now")


def _while_ours(store: Store, content: list[bytes]) -> Iterator[bytes]:
    """Yield the content of the lease if it belongs to this process. Store.write has looked at the present lease before,
    and replaces no other one."""
    _check_ours(store)
    yield from content


def _renewed(message: str, lease_s: float) -> list[bytes]:
    """Return the content of this process's lease, renewed now."""
    return [json.dumps(asdict(OutputLease(WORKER, message, time.time(), lease_s * VALIDITY))).encode() + b"\n"]
