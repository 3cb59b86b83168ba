"""Circuit breaker for places: tell a recording that failed from a place that is unreachable.

If a place is unreachable, nothing is known about its recordings, and they must not be recorded as permanently failed.
If one recording cannot be fetched from a place that delivers others, that recording has failed.

A fault is held back until something arrives from its place after the fault began. The fault then becomes the failure of
its item. If many faults gather without an arrival, or the run ends without one, the place is down. The run then stops
and can be resumed. A refusal (no permission) is an answer too: at the end of the run, it becomes the failure of its
item if the place has delivered anything to this run.

A process can start with the knowledge of another process: see Known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from voxbatch.errors import StorageError

GIVE_UP_AFTER = 16
"""Number of faults of a place, with no arrival in between, at which the place counts as down. Each fault was itself
retried many times."""

_M = TypeVar("_M")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure to fetch a recording, which may be the place's or the recording's own."""

    place: str
    """Name of the place: "gs://bucket/", "the web", or the folder of temporary files."""
    reason: str
    """Message for people."""
    since: float | None
    """Middle of the failed attempts, on the clock that all processes of this host share (time.monotonic). Data that was
    on its way when the place went down has arrived by then. None if the place answered with a refusal."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Proof that a place answers: it delivered something, or reported that the object does not exist."""

    place: str
    when: float
    """Time of the arrival; see Fault.since for the clock."""


@dataclass(slots=True)
class Known:
    """Knowledge about places. One thread keeps it up to date, other threads copy it, and the copies of several
    processes are merged."""

    came: dict[str, float] = field(default_factory=dict)
    """Place → time of the last arrival from it; see Fault.since for the clock."""
    failing: dict[tuple[int, str], float] = field(default_factory=dict)
    """(Item, its place) → time since when the item is unreachable, for every item that ever was."""

    def first(self, item: int, fault: Fault) -> Fault:
        """Return the fault, dated back to the first fault of the item.

        Another process may have tried the recording in vain before this process retries it. Without the earlier date,
        the new fault would always appear to begin after every known arrival.
        """
        if fault.since is None:
            return fault
        return replace(fault, since=self.failing.setdefault((item, fault.place), fault.since))

    def learn(self, other: Known) -> None:
        """Merge the knowledge of another process: the latest arrivals and the earliest faults."""
        _merge(self.came, other.came, max)
        _merge(self.failing, other.failing, min)

    def copy(self) -> Known:
        """Return an independent copy."""
        return Known(self.came.copy(), self.failing.copy())


class Reach(Generic[_M]):
    """Decides for each fault whether the recording or its place is to blame. For one thread. It starts from what is
    known and adds to it.

    `_M` is the type of the messages that are held back with their faults.
    """

    def __init__(self, known: Known | None = None) -> None:
        self._latest = (known or Known()).came
        self._held: dict[str, list[tuple[Fault, _M]]] = {}

    def came(self, arrival: Arrival) -> list[_M]:
        """Record an arrival. Return the messages that were held back and that are now known to be failures of their own
        recordings."""
        place = arrival.place
        latest = self._latest[place] = max(arrival.when, self._latest.get(place, 0.0))
        held = self._held.pop(place, [])
        if still := [(fault, message) for fault, message in held if (fault.since or 0.0) >= latest]:
            self._held[place] = still
        return [message for fault, message in held if (fault.since or 0.0) < latest]

    def fault(self, fault: Fault, message: _M) -> list[_M]:
        """Record that a recording was not reached. Return its message if the recording itself has failed; otherwise
        hold the message back.

        Raises:
            StorageError: the place is down.
        """
        if fault.since is not None and fault.since < self._latest.get(fault.place, 0.0):
            return [message]
        held = self._held.setdefault(fault.place, [])
        held.append((fault, message))
        if len(held) >= GIVE_UP_AFTER:
            raise _down(fault, len(held))
        return []

    def end(self) -> list[_M]:
        """Return the refusals that are still held back, as failures of their own recordings.

        Raises:
            StorageError: a fault is still held back, and nothing has arrived from its place since.
        """
        for place, held in self._held.items():
            for fault, _ in held:
                if fault.since is not None or place not in self._latest:
                    raise _down(fault, len(held))
        return [message for held in self._held.values() for _, message in held]


def _down(fault: Fault, count: int) -> StorageError:
    tried = f"{count} recordings there were tried, and nothing" if count > 1 else "nothing else"
    return StorageError(
        f"{fault.reason}; {tried} came from {fault.place} meanwhile (--fail-unreachable records such as failed)"
    )


def _merge(ours: dict[_K, float], theirs: Mapping[_K, float], better: Callable[[float, float], float]) -> None:
    for key, value in theirs.items():
        ours[key] = better(value, ours.get(key, value))
