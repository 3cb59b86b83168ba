"""When a place cannot be reached, nothing is known of the recordings there, and they must not be recorded as failed for
good; when one recording cannot be had of a place that gives others, it has failed.

A fault is held back until something has come from its place since it began, and is then that item's failure. Where many
faults gather, or the end comes, without it, the place is down and the run stops, resumable. A refusal (no permission)
is an answer too: at the end it is its item's failure wherever the place has given anything to this run.

What one process has learnt of places may be known to another from its beginning: see Known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from voxbatch.errors import StorageError

GIVE_UP_AFTER = 16
"""Faults of a place that nothing has come from meanwhile. Each was itself tried many times."""

_M = TypeVar("_M")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Fault:
    place: str
    """ "gs://bucket/", or "the web"; or the folder of temporary files """
    reason: str
    since: float | None
    """The middle of its failed attempts, on the clock that this host's processes share (time.monotonic): what was on
    its way when the place went down has come by then. None where there was an answer: a refusal."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something came from a place, or was told not to be there: it answers."""

    place: str
    when: float
    """See Fault.since."""


@dataclass(slots=True)
class Known:
    """What is known of places: kept up to date by one thread, copied by others, merged from many."""

    came: dict[str, float] = field(default_factory=dict)
    """Place → when something last came from it; see Fault.since."""
    failing: dict[tuple[int, str], float] = field(default_factory=dict)
    """(Item, its place) → since when it has been out of reach, if it ever was."""

    def first(self, item: int, fault: Fault) -> Fault:
        """The fault, dated back to the item's first. Else a recording that another process tried in vain, and that
        is tried anew, would always have begun to fail after all that is known to have come."""
        if fault.since is None:
            return fault
        return replace(fault, since=self.failing.setdefault((item, fault.place), fault.since))

    def learn(self, other: Known) -> None:
        _merge(self.came, other.came, max)
        _merge(self.failing, other.failing, min)

    def copy(self) -> Known:
        return Known(self.came.copy(), self.failing.copy())


class Reach(Generic[_M]):
    """Judges what comes of recordings' places; for one thread. Goes by what is known, and adds to it."""

    def __init__(self, known: Known | None = None) -> None:
        self._latest = (known or Known()).came
        self._held: dict[str, list[tuple[Fault, _M]]] = {}

    def came(self, arrival: Arrival) -> list[_M]:
        """Gives what was held back and has thereby failed on its own account."""
        place = arrival.place
        latest = self._latest[place] = max(arrival.when, self._latest.get(place, 0.0))
        held = self._held.pop(place, [])
        if still := [(fault, message) for fault, message in held if (fault.since or 0.0) >= latest]:
            self._held[place] = still
        return [message for fault, message in held if (fault.since or 0.0) < latest]

    def fault(self, fault: Fault, message: _M) -> list[_M]:
        """A recording was not reached: gives it back if that is its own failure.

        Raises:
            StorageError: its place is down.
        """
        if fault.since is not None and fault.since < self._latest.get(fault.place, 0.0):
            return [message]
        held = self._held.setdefault(fault.place, [])
        held.append((fault, message))
        if len(held) >= GIVE_UP_AFTER:
            raise _down(fault, len(held))
        return []

    def end(self) -> list[_M]:
        """
        Raises:
            StorageError: something is held back: nothing has come from its place since.
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
