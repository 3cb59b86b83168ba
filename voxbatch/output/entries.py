"""Read the entries of a run in the order of its latest list, each item once.

A part is opened when the order reaches its first item. If more parts overlap than the store can read at a time, as with
hundreds of shards, groups of them are first merged into temporary files, and then these files: an external merge sort.
So a part is read once in any case, and memory does not grow with the number of shards.

Entries of earlier lists have the positions of the latest list, and those that do not count any more are left out; see
the module `lists`. If several parts have an item, the entry of the latest list counts, and of these the first part by
name: runs with different numbers of shards may both have committed it.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import CheckpointError
from voxbatch.log import Log
from voxbatch.output.corrections import LostCorrections, overlaid
from voxbatch.output.layout import CORRECTED, FIRST, PARTS, SECOND, correction_names, part_names
from voxbatch.output.lists import ItemList
from voxbatch.output.own_files import Key
from voxbatch.output.parts import Measurements, PartEntry, PartHeader, parse_entry, read_headers
from voxbatch.output.run_file import Run
from voxbatch.output.shown import wait_until_shown
from voxbatch.storage import Store
from voxbatch.storage.temporary_files import temporary_file


@dataclass(frozen=True, slots=True)
class Part:
    """The facts about a part that are kept while the entries are read."""

    name: str
    list_number: int
    shard: str
    worker: int
    wall_s: float
    committed_at: float
    """See PartHeader."""
    first: int
    last: int
    """Lowest and highest position of an item in the latest list. -1 if no entry counts."""
    is_ordered: bool
    """True if the entries are in the order of the latest list."""
    num_entries: int
    """Number of entries that may count."""


_RankedEntry = tuple[int, int, PartEntry]
"""The position of an entry, the rank of its part, and the entry. Of several entries with a position, the one with the
lowest rank counts."""


@dataclass(frozen=True, slots=True)
class _EntryStream:
    """Entries in the order of the latest list, of a part or of several parts."""

    first: int
    last: int
    """No entry has a lower or a higher position."""
    read: Callable[[], Iterator[_RankedEntry]]


def complete_entries(store: Store, run: Run, shards: int, log: Log) -> Entries:
    """Return the entries of a run all of whose shards are complete. Wait for parts that the store does not show yet.

    Args:
        shards: number of shards of the run.
        log: gets a warning before the first wait.

    Raises:
        CheckpointError: parts are missing, or damaged.
    """
    reason = "all shards are complete, and parts with some of their items are missing"

    def read() -> Entries | None:
        entries = Entries(store, run, shards)
        return entries if entries.num_entries >= run.items else None

    if (entries := wait_until_shown(read, f"{store.place}: {reason}", log)) is None:
        present = f"{sum(1 for _ in Entries(store, run, shards).of_pass()):,} of {run.items:,} items"
        advice = "run again (each shard) to transcribe these items"
        raise CheckpointError(f"{store.place}: {reason}; {advice}", reason, present)
    return entries


class Entries:
    """The entries of a run. The headers of its parts are read at once, and the entries with each iteration.

    Memory grows neither with the number of items nor with the sizes of the parts.
    """

    def __init__(self, store: Store, run: Run, shards: int = 1, only: NDArray[np.intp] | None = None):
        """Begin with the parts that are committed now.

        Args:
            shards: see layout.part_names.
            only: positions of items in ascending order. Parts without any of them are not read, and other entries are
                left out. None means all items.

        Raises:
            CheckpointError: the header of a part is damaged, or the part belongs to another run.
        """
        self._store, self._list, self._only = store, ItemList(store, run), only
        self.measurements = Measurements()
        """Sums over all parts."""
        self.taken_files = list[tuple[Sequence[Key], int]]()
        """Keys of the files from which the corrections were taken, with the number of their digests."""
        is_corrected = run.pass_name == CORRECTED
        if is_corrected:
            names = correction_names(store, run.generation)
        else:
            names = part_names(store, run.generation, run.pass_name, shards)
        self.parts = [self._part(*pair) for pair in zip(names, read_headers(store, names, run.key), strict=True)]
        """All parts, in the order of their names, without those of corrections."""
        self.num_entries = sum(part.num_entries for part in self.parts)
        """Number of entries that may count, of this pass. Two parts of different shardings may have the same item."""
        latest_first = reversed(self.parts) if is_corrected else self.parts
        self._ranked = sorted(latest_first, key=lambda part: -part.list_number)
        self._second: Entries | None = None
        """The second pass of a cascade."""
        self._second_pass = run.second_pass if run.pass_name == FIRST else None
        if self._second_pass:
            self._second = Entries(store, replace(run, pass_name=SECOND), only=only)
            self.measurements.update(self._second.measurements)
            self.parts += self._second.parts
        corrections = Entries(store, replace(run, pass_name=CORRECTED), only=only) if run.pass_name == FIRST else None
        self.corrections = corrections if corrections and corrections.parts else None
        """The corrections by a person. None if there are none."""

    def _part(self, name: str, header: PartHeader) -> Part:
        self.measurements.add(header)
        self.taken_files += [(header.taken, header.taken_number)] if header.taken else []
        first, last, is_ordered, num_entries = header.first, header.last, True, header.items
        if (positions := self._list.positions(name, header)) is not None:
            positions = positions[positions >= 0]
            first, last = (int(positions.min()), int(positions.max())) if len(positions) else (-1, -1)
            is_ordered, num_entries = bool(np.all(np.diff(positions) > 0)), len(positions)
        shard = sys.intern(header.shard)
        return Part(
            name,
            header.list_number,
            shard,
            header.worker,
            header.wall_s,
            header.committed_at,
            first,
            last,
            is_ordered,
            num_entries,
        )

    def commit_times(self) -> dict[str, float]:
        """Return the times of the commits by the names of the parts, also of those with corrections, in seconds since
        1970."""
        corrected = self.corrections.parts if self.corrections else []
        return {part.name: part.committed_at for part in (*self.parts, *corrected)}

    def has_id(self, item_id: str) -> bool:
        """Return whether an item of the list has this id."""
        return self._list.has_id(item_id)

    def lost_corrections(self) -> LostCorrections | None:
        """Return the finder of the corrections that do not count any more since the latest list; None without any."""
        if self.corrections is None:
            return None
        latest = {part.name for part in self.parts if part.list_number == self._list.run.list_number}
        names = [part.name for part in self.corrections.parts]
        return LostCorrections(self._store, self._list.run, names, latest)

    def __iter__(self) -> Iterator[PartEntry]:
        """Yield the entries in the order of the list, each with its position there. The second pass of a cascade lies
        over the first, and corrections lie over both.

        Raises:
            CheckpointError: a part is damaged.
            TemporaryFileError: a temporary file cannot be written.
        """
        entries = self.of_pass()
        if self._second_pass and self._second:
            entries = self._second_pass.overlaid(entries, self._second.of_pass())
        if self.corrections:
            entries = overlaid(self._store, entries, self.corrections.of_pass())
        return entries

    def of_pass(self) -> Iterator[PartEntry]:
        """Yield the entries of one pass alone: the first one, unless the run says otherwise.

        Raises:
            CheckpointError: a part is damaged.
            TemporaryFileError: a temporary file cannot be written.
        """
        streams = [
            _EntryStream(part.first, part.last, partial(self._read_part, rank, part))
            for rank, part in enumerate(self._ranked)
            if part.first >= 0 and self._may_have_wanted(part)
        ]
        streams.sort(key=attrgetter("first"))
        limit = self._store.max_open
        while _most_open(streams) > limit:
            streams = [self._joined(streams[i : i + limit]) for i in range(0, len(streams), limit)]
        for _, _, entry in _merged(streams):
            yield entry

    def _may_have_wanted(self, part: Part) -> bool:
        if self._only is None:
            return True
        begin, end = np.searchsorted(self._only, (part.first, part.last + 1))
        return bool(begin < end)

    def _is_wanted(self, index: int) -> bool:
        return self._only is None or index in self._only[np.searchsorted(self._only, index) :][:1]

    def _read_part(self, rank: int, part: Part) -> Iterator[_RankedEntry]:
        """Return the wanted entries of a part in the order of the list."""
        stored = self._list.read_part(part.name)
        entries = ((entry.index, rank, entry) for entry in stored if self._is_wanted(entry.index))
        return entries if part.is_ordered else self._through_file(sorted(entries))

    def _joined(self, streams: Sequence[_EntryStream]) -> _EntryStream:
        """Return the entries of streams that follow each other, as one stream, which reads all of them at its start."""
        last = max(stream.last for stream in streams)
        return _EntryStream(streams[0].first, last, lambda: self._through_file(_merged(streams)))

    def _through_file(self, entries: Iterable[_RankedEntry]) -> Iterator[_RankedEntry]:
        """Yield entries from a temporary file, into which all of them are written first."""
        lines = (b"%d %b" % (rank, entry.to_bytes()) for _, rank, entry in entries)
        with temporary_file(f"{self._store.place}/{PARTS}", lines) as file:
            del entries, lines  # they may be in memory
            for line in file:
                rank, _, stored = line.partition(b" ")
                entry = parse_entry(stored, self._ranked[int(rank)].name)
                assert entry is not None
                yield entry.index, int(rank), entry


def _most_open(streams: Sequence[_EntryStream]) -> int:
    """Return how many streams have begun and not ended at a time. They are in the order of their first positions."""
    ended = np.searchsorted(np.sort([stream.last for stream in streams]), [stream.first for stream in streams])
    return int(np.max(np.arange(1, len(streams) + 1) - ended, initial=0))


def _merged(streams: Iterable[_EntryStream]) -> Iterator[_RankedEntry]:
    """Yield the entries of streams in the order of their first positions, each position once."""
    waiting, previous = deque(streams), -1
    heap: list[tuple[_RankedEntry, Iterator[_RankedEntry]]] = []
    while heap or waiting:
        while waiting and (not heap or waiting[0].first <= heap[0][0][0]):
            _push(heap, waiting.popleft().read())
        if heap:
            ranked, entries = heapq.heappop(heap)
            _push(heap, entries)
            if ranked[0] != previous:
                previous = ranked[0]
                yield ranked


def _push(heap: list[tuple[_RankedEntry, Iterator[_RankedEntry]]], entries: Iterator[_RankedEntry]) -> None:
    """Push the next entry of a stream onto the heap, if the stream has another."""
    if (ranked := next(entries, None)) is not None:
        heapq.heappush(heap, (ranked, entries))
