"""Hold a lease on an OUT, so that a second listener does not perform the same run meanwhile; see output.lease."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from voxbatch.output import lease
from voxbatch.output.layout import LEASE
from voxbatch.output.lease import Lease
from voxbatch.storage import Store

WORKER = lease.new_worker()
"""Identity of this process."""
VALIDITY = 0.6
"""Validity of the lease on OUT, as a fraction of the length of a message's lease.

A message's lease is extended three times within its length. When the message's lease of a dead worker ends, the
worker's lease on OUT is therefore older than two thirds of that length, and has ended, too. So no worker waits for a
dead one.
"""


def acquire(store: Store, message: str, lease_s: float) -> Lease | None:
    """Acquire the lease on an OUT, and return None; return the valid lease of another process if there is one.

    Args:
        message: id of the message that asks for the run.
        lease_s: length of the message's lease.

    Raises:
        StorageError: the store cannot be read or written.
    """
    return lease.acquire(store, LEASE, _lease(message, lease_s))


def hold(store: Store, message: str, lease_s: float) -> AbstractContextManager[None]:
    """Return a context inside which the acquired lease is renewed, and which releases it; see output.lease.hold."""
    return lease.hold(store, LEASE, _lease(message, lease_s))


def _lease(message: str, lease_s: float) -> Lease:
    return Lease(worker=WORKER, at=time.time(), good_for_s=lease_s * VALIDITY, message=message)
