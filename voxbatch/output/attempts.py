"""Records of the processes that work on a shard, so that an item that kills a whole container is found.

An engine in a child process that dies costs only that process (see engines.engine_process). But the kernel may kill all
processes of a container that runs out of memory, and nobody is left to see why. So a process records which items it has
begun, from the first chunk of its engine on, and deletes the record when it ends by itself:

    parts/shard-00003-of-00016/attempt-00007.json     {"list_number": 1, "first": 0, "last": 1023, "kills": 0, …}

The record is ahead of the work: no item after `last` is begun before a record with a higher `last` is there. A start
that finds the record of a killed process knows its suspects: the items that the process may have begun, and that are
not committed. It works on them as on all others, but begins only a few more than its engine needs, and commits them
soon, so that the suspects of a second kill are few. These are on trial, by the rules of `process.suspects`:

    start 1   killed; items 400 to 1,023 may have been begun, and 470 of them are not committed
    start 2   killed; of these, 410 to 450 had been begun and are not committed
    start 3   each of these alone: killed with item 412
    start 4   item 412 alone: killed
    start 5   item 412 fails, and the others are transcribed

So n such items cost at most 4 * n + 1 starts, however many processes work side by side, and wherever the items are in
the list. There is one start more for each if a process has begun more than RULES.parts items.

A loss of power, a reclaimed machine or an operator leaves the same record. So two kills with an item alone are needed
before it fails. Each of them comes after the same process has transcribed a second of noise, because otherwise the
machine may be to blame, and before the item's result: the record of an item is deleted before the item is committed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any, Protocol

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

RULES = SearchRules(parts=4096, alone=1, proves_first=True)
"""The deaths are those of processes that are killed. Starts may be limited, and take minutes: Kubernetes permits six
retries, and Cloud Run five. So all suspects are alone from the second kill on, unless they are thousands."""
WINDOW = 1024
"""Number of items that are recorded at a time, before the first of them is begun."""
CAREFUL_WINDOW = 16
"""The same for the suspects of a kill."""
CAREFUL_BEGUN = 64
"""Suspects of a kill that may be begun and not committed, besides two for each chunk that the engine works on at a
time: one in the engine, and the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The content of a record: the items that a process works on, and what is known about them."""

    list_number: Count
    """Number of the list that the indexes mean."""
    start: Count
    """Number of the first record of the start. The records of its workers have it, too, and those of later starts a
    higher one, also if a worker of an earlier start is still there."""
    worker: Count = 0
    """Number of the worker."""
    first: Count
    last: Count
    """The first and the last item. In a record, those that may be begun and not committed."""
    items: Count
    """Number of items of all workers."""
    kills: Count = 0
    """Number of processes in succession that were killed with these items: with the single one if they are on trial,
    with those up to `doubted` otherwise."""
    doubted: int = -1
    """The last suspect of a kill, if they are not on trial. -1 if there is none."""
    width: Count | None = None
    """Number of items that may be begun together. None if they are not on trial."""

    @property
    def failure(self) -> Failure | None:
        """The failure of the item, if it is to blame."""
        if not RULES.blames(Trial(self.kills, self.width), Cause.KILL):
            return None
        text = f"the process of the run was killed {self.kills} times while it worked on this item alone"
        return Failure(FailureKind.ENGINE_CRASH, text)

    def describe(self) -> str:
        """Return a warning for people: what a process does that has these items on trial."""
        if self.failure:
            return f"item {self.first}: {self.failure.message}; it fails"
        suspects = f"{self.items:,} items" if self.items > 1 else "one item"
        how = "alone" if self.width == 1 else f"{self.width} at a time"
        return f"the run was killed more than once while it worked on {suspects}, which it does {how} now"


class Attempts:
    """The records of one shard."""

    def __init__(self, store: Store, run: Run, folder: str):
        self._store, self._run, self._folder = store, run, folder
        self._numbers = attempt_numbers(store, folder)
        """Numbers of the records, in ascending order, with those that are made here."""

    def plan(self, remaining: ItemSet) -> Iterator[tuple[Attempt, ItemSet]]:
        """Yield groups of the remaining items, in the order in which to work on them, and their attempts: a single
        group, unless a process was killed twice with the same items."""
        before, kills, doubted = self._latest(), 0, -1
        if before is not None:
            suspects = _between(remaining, before.first, before.last)
            if before.width is None:
                new = _between(suspects, before.doubted + 1, before.last)
                if new.any():
                    kills, doubted = RULES.after_death(Trial(), new.count(), is_alone=False).deaths, before.last
                suspects -= new
            if count := suspects.count():
                trial = RULES.after_death(Trial(before.kills, before.width), count, is_alone=count == 1)
                yield self._attempt(suspects, kills=trial.deaths, width=trial.width), suspects
                remaining -= suspects
        if remaining.any():
            yield self._attempt(remaining, kills=kills, doubted=doubted), remaining

    def _latest(self) -> Attempt | None:
        """Return what the records of the latest process tell, or those of its workers, if they are about the present
        list."""
        records = list[Attempt]()
        for number in self._numbers:
            with contextlib.suppress(ValueError):
                if content := self._store.read(attempt_name(self._folder, number)):
                    records.append(read_json(content, Attempt))
        latest = max((record.start for record in records), default=0)
        records = [record for record in records if record.start == latest]
        if not records or records[0].list_number != self._run.list_number:
            return None
        first, last = min(record.first for record in records), max(record.last for record in records)
        return replace(records[0], first=first, last=last)

    def _attempt(self, items: ItemSet, **known: Any) -> Attempt:
        blocks = [(start, block) for start, block in items.blocks() if block.any()]
        (start, first_block), (last_start, last_block) = blocks[0], blocks[-1]
        first, last = start + int(first_block.argmax()), last_start + int(np.flatnonzero(last_block)[-1])
        return Attempt(
            list_number=self._run.list_number,
            start=1 + max(self._numbers, default=0),
            first=first,
            last=last,
            items=items.count(),
            **known,
        )

    def record(self, attempt: Attempt, is_last: bool) -> AttemptRecord:
        """Return the next record, which is not created yet."""
        earlier = tuple(self._numbers)
        self._numbers.append(attempt.start)
        return AttemptRecord(self._folder, attempt, is_last, earlier)

    def clear(self) -> None:
        """Delete all records, also those of killed workers, because all items are done. A store that does not permit
        this is no obstacle."""
        for number in {*self._numbers, *attempt_numbers(self._store, self._folder)}:
            with contextlib.suppress(StorageError):
                self._store.delete(attempt_name(self._folder, number))
        self._numbers = []


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A record to be created."""

    folder: str
    attempt: Attempt
    is_last: bool
    """True if no items remain after these."""
    earlier: tuple[int, ...]
    """Numbers of the records that this one replaces."""


class Gate(Protocol):
    """Decides when the items of a pipeline may begin."""

    is_closed: bool
    """True while an item waits until others are committed."""

    def begin(self) -> None:
        """Take note that the engine takes its first chunk."""

    def admits(self, index: int) -> bool:
        """Return whether an item may begin now."""

    def enter(self, index: int) -> None:
        """Take note that an item begins. The items come in ascending order."""


class OpenGate:
    """Lets every item begin."""

    is_closed = False

    def begin(self) -> None:
        """See Gate."""

    def admits(self, index: int) -> bool:
        """See Gate."""
        return True

    def enter(self, index: int) -> None:
        """See Gate."""


class AttemptRecorder:
    """Records which items a process may have begun. See Gate for the methods.

    The engine's thread calls `begin`, and the main thread `acquit` and `clear`; the others are the decode thread's.

    Args:
        items: the items of this process.
        checkpoint: tells which of them are committed.
        concurrency: number of chunks that the engine works on at a time.
    """

    def __init__(self, record: AttemptRecord, items: ItemSet, checkpoint: Checkpoint, concurrency: int):
        self._record, self._attempt = record, replace(record.attempt, worker=checkpoint.worker)
        self._store, self._done = checkpoint.store, checkpoint.done
        self._most_begun = record.attempt.width or CAREFUL_BEGUN + 2 * concurrency
        self._indexes = chain.from_iterable((start + np.flatnonzero(block)).tolist() for start, block in items.blocks())
        self._begun = set[int]()
        """Suspects that were begun, and that may be committed since."""
        self._last = -1
        """The last item that may begin."""
        self._has_begun = False
        self._number: int | None = None
        """Number of the present record."""
        self._lock = threading.Lock()
        self.is_closed = False

    def begin(self) -> None:
        """Create the record, and delete those before it: a kill from now on may be due to the engine's work."""
        with self._lock:
            self._has_begun = True
            if self._last >= 0:
                self._write()
        for number in self._record.earlier:
            self._delete(number)

    def admits(self, index: int) -> bool:
        """See Gate."""
        is_suspect = self._is_suspect(index)
        if is_suspect and len(self._begun) >= self._most_begun:
            self._begun = {begun for begun in self._begun if not self._done[begun]}
        self.is_closed = is_suspect and len(self._begun) >= self._most_begun
        return not self.is_closed

    def enter(self, index: int) -> None:
        """Create a record that covers the item, unless the present one does."""
        if is_suspect := self._is_suspect(index):
            self._begun.add(index)
        if index <= self._last:
            return
        count = self._attempt.width or (CAREFUL_WINDOW if is_suspect else WINDOW)
        with self._lock:
            while self._last < index:
                self._last = list(islice(self._indexes, count))[-1]
            first = min(self._begun) if self._attempt.width else self._attempt.first
            self._attempt = replace(self._attempt, first=first, last=self._last)
            if self._has_begun:
                self._write()

    def _is_suspect(self, index: int) -> bool:
        return self._attempt.width is not None or index <= self._attempt.doubted

    def _write(self) -> None:
        """Create a record under the next free number, and delete the present one."""
        number, present = self._attempt.start if self._number is None else self._number + 1, self._number
        content = json_bytes(asdict(self._attempt)) + b"\n"
        while not self._store.create(attempt_name(self._record.folder, number), [content], durable=False):
            number += 1  # another worker has taken it
        self._number = number
        if present is not None:
            self._delete(present)

    def acquit(self, indexes: Collection[int]) -> None:
        """Delete the record of an item that is alone and has its result, so that a kill during its commit does not
        count."""
        with self._lock:
            if self._attempt.width == 1 and self._attempt.first == self._attempt.last in indexes:
                self._clear()

    def clear(self) -> None:
        """Delete the record, because this process ends by itself."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._number is not None:
            self._delete(self._number)

    def _delete(self, number: int) -> None:
        with contextlib.suppress(StorageError):  # a store that does not permit this is no obstacle
            self._store.delete(attempt_name(self._record.folder, number))


@dataclass(frozen=True, slots=True)
class Acquittal:
    """The checkpoint of a process that has items on trial."""

    checkpoint: Checkpoint
    recorder: AttemptRecorder

    def commit(self, entries: Iterable[PartEntry], *arguments: Any, **options: Any) -> list[PartEntry]:
        """Acquit the items and commit; see Checkpoint.commit."""
        committed = list(entries)
        self.recorder.acquit([entry.index for entry in committed])
        return self.checkpoint.commit(committed, *arguments, **options)


def _between(items: ItemSet, first: int, last: int) -> ItemSet:
    """Return the items from the first to the last index."""
    chosen = ItemSet(items.size)
    for start, block in items.blocks():
        if start <= last and first < start + len(block):
            indexes = start + np.flatnonzero(block)
            chosen.add(indexes[(first <= indexes) & (indexes <= last)])
    return chosen
