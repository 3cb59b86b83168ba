"""Records of the processes that work on a shard, so that an item that kills a whole container is found.

An engine in a child process that dies costs only that process (see engines.engine_process). But the kernel may kill all
processes of a container that runs out of memory, and nobody is left to see why. So a process creates a record when its
engine takes its first chunk, and deletes it when it ends by itself. A start that finds the record of a killed process
works on the items of this record first. If two processes in succession were killed and had committed nothing, it works
on these items in groups, by the rules of `process.suspects`:

    parts/shard-00003-of-00016/attempt-00007.json     {"list_number": 1, "first": 0, "last": 999, "items": 600, …}

    start 1   items 0 to 999, of which 400 are committed when it is killed
    start 2   the other 600: killed before one of them is committed
    start 3   the same
    start 4   items 400 to 417, then 418 to 435, and so on: killed with items 490 to 507
    start 5   each item of this group alone: killed with item 500
    2 more    item 500 alone: killed. The next start makes it a failure.

So n such items of N end after at most n * (5 + log32 N, rounded up) + 1 starts, wherever they are in the list.

A loss of power, a reclaimed machine or an operator leaves the same record. So three kills with an item alone are needed
before it fails. Each of them comes after the same process has transcribed a second of noise, because otherwise the
machine may be to blame, and before the item's result: the record of one item is deleted before the item is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.layout import attempt_name, attempt_numbers
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import Count, json_bytes, read_json
from voxbatch.process.suspects import Cause, SearchRules, Trial
from voxbatch.records import Failure
from voxbatch.storage import Store
from voxbatch.storage.columns import ItemSet

RULES = SearchRules(proves_first=True)
"""The deaths are those of processes that are killed and have committed nothing. More parts need fewer starts, which may
be limited and take minutes; but the engine is idle at the end of each group."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The content of a record: the items that a process works on, and what is known about them."""

    list_number: Count
    """Number of the list that the indexes mean."""
    first: Count
    last: Count
    items: Count
    """Number of items from the first to the last that were not committed."""
    kills: Count = 0
    """Number of processes in succession that were killed while they worked on just these items."""
    is_suspect: bool = False
    """True if one of these items may be the cause of kills."""

    @property
    def trial(self) -> Trial:
        """The same, as it is known about requests: all of these items are in a process together."""
        return Trial(self.kills, self.items if self.is_suspect else None)

    @property
    def failure(self) -> Failure | None:
        """The failure of the item, if it is to blame."""
        if not RULES.blames(self.trial, Cause.KILL):
            return None
        text = f"the process of the run was killed {self.kills} times while it worked on this item alone"
        return Failure(FailureKind.ENGINE_CRASH, text)

    def describe(self) -> str:
        """Return a warning for people: what a process does that works on these items."""
        if self.failure:
            return f"item {self.first}: {self.failure.message}; it fails"
        items = f"{self.items:,} of the items" if self.items > 1 else "one of the items"
        return f"the run was killed more than once before it had committed an item; {items} that it had come alone now"


class Attempts:
    """The records of one shard."""

    def __init__(self, store: Store, run: Run, folder: str):
        self._store, self._run, self._folder = store, run, folder
        self._numbers = attempt_numbers(store, folder)
        """Numbers of the records, in ascending order, with those that are made here."""

    def plan(self, remaining: ItemSet) -> Iterator[tuple[Attempt, ItemSet]]:
        """Yield groups of the remaining items, in the order in which to work on them, and their records: a single
        group, unless processes were killed before."""
        killed, suspects = self._latest(), ItemSet(remaining.size)
        if killed is not None:
            for start, block in remaining.blocks():
                indexes = start + np.flatnonzero(block)
                suspects.add(indexes[(killed.first <= indexes) & (indexes <= killed.last)])
        if killed is not None and (count := suspects.count()):
            trial = replace(killed.trial, deaths=0)
            if count == killed.items:  # otherwise, the process had committed something
                trial = RULES.after_death(killed.trial, count, is_alone=count == 1)
            for group in _groups(suspects, trial.width or count):
                yield self._attempt(group, trial.deaths, trial.width is not None), group
            remaining -= suspects
        if remaining.any():
            yield self._attempt(remaining), remaining

    def _latest(self) -> Attempt | None:
        """Return the latest record, if it is about the present list."""
        content = self._store.read(attempt_name(self._folder, self._numbers[-1])) if self._numbers else None
        with contextlib.suppress(ValueError):
            if content and (attempt := read_json(content, Attempt)).list_number == self._run.list_number:
                return attempt
        return None

    def _attempt(self, items: ItemSet, kills: int = 0, is_suspect: bool = False) -> Attempt:
        blocks = [(start, block) for start, block in items.blocks() if block.any()]
        (start, first_block), (last_start, last_block) = blocks[0], blocks[-1]
        first, last = start + int(first_block.argmax()), last_start + int(np.flatnonzero(last_block)[-1])
        return Attempt(self._run.list_number, first, last, items.count(), kills, is_suspect)

    def record(self, attempt: Attempt, is_last: bool) -> AttemptRecord:
        """Return the next record, which is not created yet."""
        earlier = self._names()
        self._numbers.append(self._numbers[-1] + 1 if self._numbers else 1)
        return AttemptRecord(self._names()[-1], attempt, is_last, earlier)

    def clear(self) -> None:
        """Delete all records. A store that does not permit this is no obstacle."""
        for name in self._names():
            with contextlib.suppress(StorageError):
                self._store.delete(name)
        self._numbers = []

    def _names(self) -> tuple[str, ...]:
        return tuple(attempt_name(self._folder, number) for number in self._numbers)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A record to be created."""

    name: str
    attempt: Attempt
    is_last: bool
    """True if no items remain after these."""
    earlier: tuple[str, ...]
    """Names of the records that this one replaces."""

    def create(self, store: Store) -> None:
        """Create the record, unless another worker has, and delete the earlier ones.

        Raises:
            StorageError: OUT cannot be written.
        """
        store.create(self.name, [json_bytes(asdict(self.attempt)) + b"\n"], durable=False)
        for name in self.earlier:
            with contextlib.suppress(StorageError):
                store.delete(name)


@dataclass(frozen=True, slots=True)
class Acquittal:
    """The checkpoint of a process that works on one suspect: before the item is committed, its record is deleted, so
    that a kill during the commit does not count."""

    checkpoint: Checkpoint
    record: AttemptRecord

    def commit(self, *arguments: Any, **options: Any) -> list[PartEntry]:
        """Delete the record and commit; see Checkpoint.commit."""
        with contextlib.suppress(StorageError):  # a store that does not permit this is no obstacle
            self.checkpoint.store.delete(self.record.name)
        return self.checkpoint.commit(*arguments, **options)


def _groups(items: ItemSet, size: int) -> Iterator[ItemSet]:
    """Yield the items in groups of `size`, in the order of the list."""
    group, room = ItemSet(items.size), size
    for start, block in items.blocks():
        indexes = start + np.flatnonzero(block)
        while len(indexes):
            group.add(indexes[:room])
            room, indexes = room - len(indexes[:room]), indexes[room:]
            if not room:
                yield group
                group, room = ItemSet(items.size), size
    if group.any():
        yield group
