"""Who works on an OUT: a small object there, renewed while the work goes on, so that a second worker that is asked for
the same run does not do it beside the first.

It only spares work. What it says may be wrong (clocks differ, a write comes late): then two work on one run, and the
ledger sees to it that nothing is done twice in what comes out.
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
WORKER = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
"""This process."""
RENEWALS = 4
"""Within a message's lease."""
GOOD_FOR = 0.6
"""Of a message's lease, which is extended three times within its length: when that of a dead worker runs out, its claim
is older than two thirds of it, and nobody waits for a claim of the dead."""
_JOIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    worker: str
    message: str
    """The id of the message that will not be acknowledged before the work is done."""
    at: float
    """When it was last renewed, in seconds since 1970."""
    good_for_s: float


def take(store: Store, message: str, lease_s: float) -> Claim | None:
    """Claim a place; or another process's claim, which was renewed in time.

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
    """Meanwhile, what was taken is ours; then it is anybody's."""
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
    return [json.dumps(asdict(Claim(WORKER, message, time.time(), lease_s * GOOD_FOR))).encode() + b"\n"]


def _found(store: Store) -> Claim | None:
    try:
        claim = Claim(**json.loads(store.read(NAME) or b"null"))
        is_good = abs(time.time() - claim.at) < claim.good_for_s  # one of the future is a wrong clock's
    except (ValueError, TypeError):
        return None  # it went meanwhile, or is none of ours
    return claim if is_good and claim.worker != WORKER else None
