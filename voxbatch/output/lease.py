"""Leases on an OUT: small objects, renewed by heartbeats during the work, so that two processes do not do the same work
by accident.

    parts/lease-00003-of-00016.json    the process that works on shard 3 of 16: {"worker": "node7:4711:0123abcd", …}

The lease of a run only saves work. It may be wrong, because clocks differ. Then two workers perform one run, and the
checkpoint ensures that no item is committed twice. A worker that was suspended, or whose request arrives late, neither
renews nor releases the lease of its successor.

A command that changes what is committed or merged, such as forget, holds the lease of shard 0 of 1 and shares OUT with
nobody, also not with tasks: otherwise a merge may write what it has read before forget erased it.

A holder on this machine is known by its process id: after a kill the next start does not wait. One on another machine
is known by its heartbeats: the next start waits until the lease is renewed, or has not been for a while.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from voxbatch.errors import InUseError, StorageError
from voxbatch.log import Log
from voxbatch.output.layout import lease_name, lease_names
from voxbatch.output.stored_json import Moment, json_bytes, read_json
from voxbatch.storage import Store

HEARTBEATS = 3
"""Renewals of a lease within the time for which it is valid."""
VALID_S = 60.0
"""Seconds for which the lease of a run is valid after a renewal."""
WATCH = 1.5
"""Intervals between renewals for which a lease of another machine is watched at least."""
_POLL_S = 1.0
"""Seconds between two looks at the lease of another machine."""
_JOIN_S = 1.0
"""Seconds to wait for the end of the heartbeat thread."""


def new_worker() -> str:
    """Return an identity for a holder in this process: host, process id and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def _processes() -> str:
    """Return the boot of the kernel and the namespace in which process ids mean the same; "" if they are not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started_ticks(pid: int) -> int:
    """Return the start of a process in the kernel's ticks since the boot; 0 if there is none that lives."""
    try:
        state, *values = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if state in b"ZX" else int(values[18])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease, as stored."""

    worker: str
    """See `new_worker`."""
    at: Moment
    """Time of the last renewal, in seconds since 1970."""
    good_for_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86_400)]
    """Seconds from the last renewal to the end of the lease."""
    message: str = ""
    """Id of the message that a listener does not acknowledge before the work is done."""
    since: Moment = 0.0
    """Time at which the work began, in seconds since 1970."""
    processes: str = ""
    """See `_processes`. Empty if only the age tells whether the holder lives: a listener that is suspended loses its
    lease."""
    ticks: int = 0
    """See `_started_ticks`."""
    command: str = ""
    """The command that shares OUT with nobody, such as "forget". Empty for a run."""

    @classmethod
    def of_run(cls, command: str = "") -> Lease:
        """Return a new lease of a run, or of another command, in this process."""
        now, ticks = time.time(), _started_ticks(os.getpid())
        worker, processes = new_worker(), _processes()
        return cls(
            worker=worker, at=now, good_for_s=VALID_S, since=now, processes=processes, ticks=ticks, command=command
        )

    @property
    def host(self) -> str:
        """Name of the machine of the holder."""
        return self.worker.partition(":")[0]

    @property
    def pid(self) -> int:
        """Process id of the holder, on its machine; 0 if the identity has none."""
        pid = self.worker.partition(":")[2].partition(":")[0]
        return int(pid) if pid.isdecimal() else 0

    @property
    def is_local(self) -> bool:
        """True if the holder is, or was, a process of this machine and of this container."""
        return bool(self.ticks and self.processes) and self.processes == _processes()

    @property
    def is_valid(self) -> bool:
        """True if the holder lives, as far as that is known."""
        if self.is_local:
            return _started_ticks(self.pid) == self.ticks
        # The absolute value, because a time in the future comes from a wrong clock.
        return abs(time.time() - self.at) < self.good_for_s

    def __str__(self) -> str:
        """Return, for example, "pid 4711 on node7 since 2026-11-29 20:31:05, last heartbeat 3 s ago"."""
        return f"{process_in_words(self.pid, self.host, self.since)}, {heartbeat_in_words(self.at)}"


def process_in_words(pid: int, host: str, since: float) -> str:
    """Return, for example, "pid 4711 on node7 since 2026-11-29 20:31:05"; `since` is in seconds since 1970."""
    return f"pid {pid} on {host} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}"


def heartbeat_in_words(at: float) -> str:
    """Return, for example, "last heartbeat 3 s ago"; `at` is in seconds since 1970."""
    return f"last heartbeat {max(0.0, time.time() - at):.0f} s ago"


def read_lease(store: Store, name: str) -> Lease | None:
    """Return a lease; None if there is none, or if voxbatch did not write it."""
    with contextlib.suppress(ValueError):
        return read_json(store.read(name) or b"null", Lease)
    return None


def acquire(store: Store, name: str, lease: Lease) -> Lease | None:
    """Acquire a lease, and return None; return the valid lease of another holder if there is one.

    Raises:
        StorageError: the store cannot be read or written.
    """
    if store.create(name, _content(lease), durable=False):
        return None
    other = read_lease(store, name)
    if other is not None and other.worker != lease.worker and other.is_valid:
        return other
    try:
        store.write(name, _while_held_by(store, name, other, lease), durable=False)
    except StorageError:
        present = read_lease(store, name)
        if present is None or present == other:
            raise
        return present  # it came in the same moment
    return None


@contextlib.contextmanager
def hold(store: Store, name: str, lease: Lease) -> Iterator[None]:
    """Renew an acquired lease inside the context, and release it afterwards. A failed renewal is ignored, and so is
    the lease of another process."""
    over = threading.Event()

    def send_heartbeats() -> None:
        while not over.wait(lease.good_for_s / HEARTBEATS):
            with contextlib.suppress(StorageError):
                renewed = replace(lease, at=time.time())
                store.write(name, _while_held_by(store, name, lease, renewed), durable=False)

    thread = threading.Thread(target=send_heartbeats, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)
        with contextlib.suppress(StorageError):
            store.delete(name, lambda: _check_holder(store, name, lease))


def _check_holder(store: Store, name: str, holder: Lease | None) -> None:
    """Raise StorageError unless a lease still belongs to a holder, or to none that is known."""
    present = read_lease(store, name)
    if (present and present.worker) != (holder and holder.worker):
        raise StorageError(f"{store.place}/{name} belongs to another process now")


def _while_held_by(store: Store, name: str, holder: Lease | None, lease: Lease) -> Iterator[bytes]:
    """Yield the content of a lease if it still belongs to a holder. Store.write has looked at the present lease before,
    and replaces no other one."""
    _check_holder(store, name, holder)
    yield from _content(lease)


def _content(lease: Lease) -> list[bytes]:
    return [json_bytes(asdict(lease)) + b"\n"]


@contextlib.contextmanager
def work_on(store: Store, shard: int, shards: int, is_alone: bool, log: Log, command: str = "") -> Iterator[None]:
    """Hold the lease on a shard inside the context. A store that does not permit to replace or delete an object is no
    obstacle.

    Args:
        is_alone: no other process may work on OUT. Tasks of one job share it instead.
        command: see `Lease`; such a command is alone.

    Raises:
        InUseError: another process works on OUT, and this one or the other one is to be alone.
    """
    name, of_all, lease = lease_name(shard, shards), lease_name(0, 1), Lease.of_run(command)
    if name == of_all:
        _refuse_living(store, name, lease, is_alone, log)
    other = None
    with contextlib.suppress(StorageError):
        other = acquire(store, name, lease)
        if other is not None and not (is_alone or other.command):
            store.write(name, _content(lease), durable=False)
    if other is not None and (is_alone or other.command):  # it came in the same moment
        raise _in_use(store, other, lease)
    with hold(store, name, lease):
        # After the lease is acquired: of two processes that come in the same moment, one sees the other at least.
        for other_name in lease_names(store) if is_alone else [of_all]:
            if other_name != name:
                _refuse_living(store, other_name, lease, is_alone, log)
        yield


def _refuse_living(store: Store, name: str, own: Lease, is_alone: bool, log: Log) -> None:
    """Refuse to work beside the holder of a lease, if one of the two is to be alone. Watch a lease of another machine,
    whose holder may have been killed. Delete the lease of a dead one."""
    lease = read_lease(store, name)
    if lease is not None and not (is_alone or lease.command):
        return
    if lease is not None and lease.is_local:
        if lease.is_valid:
            raise _in_use(store, lease, own)
    elif lease is not None:
        log.warning("lease", text=f"a process may work on {store.place}: {lease}; waiting for its next heartbeat")
        _refuse_renewed(store, name, lease, own)
    with contextlib.suppress(StorageError):
        store.delete(name, lambda: _check_holder(store, name, lease))


def _refuse_renewed(store: Store, name: str, seen: Lease, own: Lease) -> None:
    """Refuse to work beside a holder that renews its lease. Return after its time has passed, by the clock of this
    machine. That of the holder may be another one: so at least one renewal is waited for, and not the whole time of a
    lease that is too old."""
    patience = WATCH * seen.good_for_s / HEARTBEATS
    if 0 <= (age := time.time() - seen.at) < seen.good_for_s:
        patience = max(patience, seen.good_for_s - age)
    end = time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(_POLL_S)
        present = read_lease(store, name)
        if present is None:
            return
        if present != seen:
            raise _in_use(store, present, own)


def _in_use(store: Store, lease: Lease, own: Lease) -> InUseError:
    """Return the error of a process, with its own lease, that would work beside the holder of a lease."""
    stop = f"stop it with `kill {lease.pid}`" if lease.is_local else f"stop it on {lease.host}"
    if lease.command:
        return InUseError(
            f"{store.place}: `voxbatch {lease.command}` works on this run, {lease}, and shares it with no process. "
            f"Wait for its end, or {stop}, and run again"
        )
    reason, shared = "a second one would do the same work again", "; to divide a run, give each process its --shard I/N"
    if own.command:
        reason, shared = f"`voxbatch {own.command}` shares it with no process", ""
    return InUseError(
        f"{store.place}: another process works on this run, {lease}; {reason}. Wait for its end (`voxbatch status "
        f"{shlex.quote(store.place)}` shows how far it is), or {stop} and run again{shared}"
    )
