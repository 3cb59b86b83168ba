"""The progress of the run in an OUT, read from its parts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.layout import SECOND, complete_name, lease_names, part_names, shard_of_lease
from voxbatch.output.lease import Lease, read_lease
from voxbatch.output.lines import parse_line
from voxbatch.output.lists import ItemList
from voxbatch.output.parts import Measurements, PartEntry, PartHeader, read_header
from voxbatch.output.products import SecondPassFiles
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary, read_summary, summarise
from voxbatch.output.totals import Totals
from voxbatch.storage import Store, parallel_map
from voxbatch.storage.columns import ItemSet


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The progress of one shard that has committed a part."""

    shard: str
    """Shard number and number of shards, for example "3/16"."""
    items: int
    parts: int
    complete: bool
    """True if each item of the shard is committed."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A process that works on a shard, or that was killed at work."""

    shard: str
    """See ShardStatus."""
    host: str
    pid: int
    since: float
    """Time at which it began, in seconds since 1970."""
    heartbeat: float
    """Time of its last heartbeat, in seconds since 1970, by the clock of its machine."""
    lives: bool
    """True if it is at work, as far as that is known: on another machine a killed process counts for a minute more."""
    by_clock: bool = False
    """True if it is on another machine, and `lives` is by the time of its last heartbeat and the clock of this machine,
    because no two heartbeats were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The progress of a run."""

    items: int
    committed: int
    finished: bool
    """True if the outputs are merged."""
    failed: int
    failures_by_kind: Mapping[str, int]
    """See Summary."""
    wer: float | None
    """Word error rate of the committed items; None without references."""
    last_commit: float | None
    """Time of the last commit in seconds since 1970. None if there is none."""
    remaining_audio_s: float | None
    """Estimated seconds of audio of the items that are not committed. None if nothing is known yet."""
    remaining_s: float | None
    """Estimated seconds until the last shard is done: by the estimate that each shard had at its last commit; before
    all shards have one, by the speed so far."""
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...] = ()
    """The processes at work, and those that were killed. Empty after a run that ended or was stopped."""
    second_items: int | None = None
    """Number of items that the large model of a cascade does. None without a cascade, before the first pass is
    committed, and when the run is finished."""
    second_committed: int | None = None
    """Number of these items that are committed. None in the same cases."""

    def to_dict(self) -> dict[str, Any]:
        """Return the status as values for JSON."""
        return asdict(self)


class StatusReader:
    """Reads the progress again and again, and each part only once. Parts never change."""

    def __init__(self, store: Store):
        self._store = store
        self._run: Run | None = None
        self._start(None)

    def _start(self, run: Run | None) -> None:
        """Forget what was read, because OUT has another run or another list."""
        self._run, self._names = run, set[str]()
        self._totals, self._measured = Totals.of(run) if run else Totals(), Measurements()
        self._done = ItemSet(run.items if run else 0)
        """The items in the parts that were read. Shards of two shardings may both have one."""
        self._items, self._parts, self._folders = Counter[str](), Counter[str](), dict[str, str]()
        self._latest_headers = dict[str, PartHeader]()
        """Header of the part of each shard that was committed last."""
        self._chosen: ItemSet | None = None
        """The items of the second pass. None until the first pass is committed."""
        self._done_again = ItemSet(0)
        """The items that the second pass has committed."""
        self._heartbeats = dict[str, tuple[float, float | None]]()
        """The last heartbeat of each process of another machine, and the moment in which this one was seen as a
        further one, by time.monotonic."""

    def read(self) -> Status:
        """Return the progress of the run in OUT.

        Raises:
            ConfigError: no run was started there.
            CheckpointError: run.json, summary.json or a part is damaged, or a part belongs to another run.
        """
        store, run = self._store, run_file.read_existing(self._store)
        summary = read_summary(store)
        if summary is not None and not summary.is_of(run):
            summary = None
        if self._run is None or (self._run.key, self._run.list_number) != (run.key, run.list_number):
            self._start(run)
        latest = ItemList(store, run)

        def read_part(name: str) -> tuple[PartHeader, list[PartEntry] | None]:
            """Return the header of a part, and its entries that count unless the run is finished."""
            header = read_header(store, name, run.key)
            is_enough = summary is not None and header.list_number == run.list_number
            return header, None if is_enough else list(latest.read_part(name))

        names = [name for name in part_names(store, run.generation) if name not in self._names]
        for header, entries in parallel_map(store.concurrency, read_part, names):
            self._add(header, entries)
        self._names.update(names)
        return self._status(run, summary)

    def _add(self, header: PartHeader, entries: list[PartEntry] | None) -> None:
        self._measured.add(header)
        self._parts[header.shard] += 1
        self._folders[header.shard] = header.folder
        self._items[header.shard] += header.items if entries is None else len(entries)
        latest = self._latest_headers.setdefault(header.shard, header)
        if header.committed_at > latest.committed_at:
            self._latest_headers[header.shard] = header
        for entry in entries or ():
            if not self._done[entry.index]:
                self._done[entry.index] = True
                self._totals.add(entry, parse_line(self._store, entry, self._totals.products))

    def _status(self, run: Run, summary: Summary | None) -> Status:
        """Return the progress by the parts that were read, and by the summary of a finished run."""
        finished, committed = summary is not None, run.items if summary else self._done.count()
        summary = summary or summarise(self._totals, run, self._measured)
        left = max(0, run.items - committed)
        second_pass = run.second_pass if not left and not finished else None
        second_items, second_committed = self._second_pass(run, second_pass) if second_pass else (None, None)
        return Status(
            items=run.items,
            committed=committed,
            finished=finished,
            failed=summary.failed,
            failures_by_kind=summary.failures_by_kind,
            wer=summary.score.wer if summary.score else None,
            last_commit=max((header.committed_at for header in self._latest_headers.values()), default=None),
            remaining_audio_s=self._remaining_audio_s(left, summary.audio_s / summary.done if summary.done else None),
            remaining_s=None
            if second_pass
            else self._remaining_s(left, summary.wall_s / committed * left if committed else None),
            shards=tuple(
                self._shard(shard, run, finished)
                for shard in sorted(self._parts, key=lambda shard: int(shard.partition("/")[0]))
            ),
            workers=tuple(self._workers()),
            second_items=second_items,
            second_committed=second_committed,
        )

    def _second_pass(self, run: Run, second_pass: SecondPassFiles) -> tuple[int, int]:
        """Return the number of items that the large model does, and the number of these that are committed. Kept
        transcripts of recordings that are gone count as if they were in the manifest."""
        if self._chosen is None:
            self._chosen = second_pass.chosen(Entries(self._store, run).of_pass(), run, run.items)
            self._done_again = ItemSet(run.items)
        latest = ItemList(self._store, run)
        names = [name for name in part_names(self._store, run.generation, SECOND) if name not in self._names]
        for entry in chain.from_iterable(map(latest.read_part, names)):
            self._done_again[entry.index] = True
        self._names.update(names)
        return self._chosen.count(), (self._chosen & self._done_again).count()

    def _workers(self) -> Iterator[WorkerStatus]:
        for name in lease_names(self._store):
            if (lease := read_lease(self._store, name)) is not None:
                seen_at = None if lease.is_local else self._seen_heartbeat(lease)
                lives = lease.is_valid if seen_at is None else time.monotonic() - seen_at < lease.good_for_s
                by_clock = seen_at is None and not lease.is_local
                shard = shard_of_lease(name)
                yield WorkerStatus(shard, lease.host, lease.pid, lease.since, lease.at, lives, by_clock)

    def _seen_heartbeat(self, lease: Lease) -> float | None:
        """Return the moment in which the last heartbeat was seen as a further one; None if no earlier one was seen. So
        the clock of the holder's machine does not matter."""
        at, seen_at = self._heartbeats.get(lease.worker, (lease.at, None))
        if at != lease.at:
            seen_at = time.monotonic()
        self._heartbeats[lease.worker] = lease.at, seen_at
        return seen_at

    def _latest_estimates(self) -> list[PartHeader]:
        """Return the latest header of each shard of the latest sharding."""
        headers = sorted(self._latest_headers.values(), key=lambda header: header.committed_at)
        return [header for header in headers if header.num_shards == headers[-1].num_shards]

    def _remaining_audio_s(self, left: int, by_items: float | None) -> float | None:
        """Return the seconds of audio of so many items, by the mean that each shard had left at its last commit; by the
        mean of the items that are done if no shard has one."""
        headers = self._latest_estimates()
        means = [header.remaining_item_s for header in headers if header.remaining_item_s is not None]
        mean = sum(means) / len(means) if means else by_items
        return None if mean is None else mean * left

    def _remaining_s(self, left: int, by_items: float | None) -> float | None:
        """Return the longest of the shards' own estimates; `by_items` if a shard of the latest sharding has none."""
        headers = self._latest_estimates()
        if not headers or not left:
            return by_items
        estimates = [header.remaining_s for header in headers if header.remaining_s is not None]
        return max(estimates) if len(estimates) == headers[0].num_shards else by_items

    def _shard(self, shard: str, run: Run, finished: bool) -> ShardStatus:
        is_complete = finished or self._store.exists(complete_name(self._folders[shard], run.list_number))
        return ShardStatus(shard, self._items[shard], self._parts[shard], is_complete)


def read_status(store: Store) -> Status:
    """Return the progress of the run in OUT; see StatusReader."""
    return StatusReader(store).read()
