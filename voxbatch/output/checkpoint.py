"""The checkpoint: the finished items of a shard, in parts that are committed once and never changed.

The parts are the checkpoint of a run. There is no other.

    parts/shard-00003-of-00016/part-00007.jsonl    see the module `parts`
    parts/shard-00003-of-00016/complete.json       written when every item of the shard is in a part

A part is created if absent, under the next free number. A writer that loses the race for a number reads the winner's
part, counts those items as done, and tries the next number. So a writer has read every part before its own, and no item
can be in two parts of a shard, however many processes work on the shard. Parts of later lists follow those of earlier
ones under the next numbers, so that also a process of an earlier list and one of the present list cannot both commit an
item.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import FailureKind
from voxbatch.output.latency import Latency
from voxbatch.output.layout import (
    FIRST,
    VERSION,
    complete_name,
    listed_parts,
    number_of_part,
    part_name,
    shard_folder,
    unlisted_parts,
)
from voxbatch.output.lists import ItemList, is_forgotten
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry, PartHeader, read_headers
from voxbatch.output.run_file import ItemKeys, Run, RunKey
from voxbatch.output.stored_json import Count, json_bytes, read_json
from voxbatch.storage import Store, parallel_map, remove_command
from voxbatch.storage.columns import Column, ItemSet


class Checkpoint:
    """The committed items of one shard, as one process sees them.

    Args:
        run: the run. run.json and its list exist.
        keys: the keys of the list's items. None reads them from the list.
        shard: number of the shard, from 0.
        worker: see PartHeader.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        keys: ItemKeys | Column | None = None,
        shard: int = 0,
        shards: int = 1,
        worker: int = 0,
    ):
        self.store, self._run, self._shard, self._shards, self.worker = store, run, shard, shards, worker
        self._list = ItemList(store, run, keys)
        self._owner = Ownership(store, run)
        self.folder = shard_folder(shard, shards, run.generation)
        self._next = 0
        self.done = ItemSet(run.items)
        """The items that are in a part of this shard, or that a run with another number of shards committed."""
        self.failed = ItemSet(run.items)
        """The items in `done` that ended as failures, without those that are forgotten."""
        self.forgotten = ItemSet(run.items)
        """The items in `done` that `voxbatch forget` has erased."""

    def load(self) -> None:
        """Read the committed items, at the start or once more later.

        Only the folder of this shard and the folders of other shard counts are read.

        Raises:
            CheckpointError: a part is damaged or belongs to another run.
        """
        this_shard, same_sharding = f"{self.folder}/", f"-of-{self._shards:05d}/"
        pass_name = self._run.pass_name
        listed = listed_parts(self.store, self._run.generation, pass_name)
        own = [name for name in listed if name.startswith(this_shard)]
        own += unlisted_parts(self.store, self.folder, own, pass_name)
        self._next = 1 + max(map(number_of_part, own), default=-1)
        names = sorted([*own, *(name for name in listed if same_sharding not in name)])
        for kinds in parallel_map(self.store.concurrency, self._read_kinds, names):
            self._mark_done(kinds)

    def _read_kinds(self, name: str) -> dict[int, str]:
        """Return the kind of each entry of a part, by Item.index. Forgotten items have a kind of their own here."""
        entries = self._list.read_part(name)
        return {e.index: FailureKind.FORGOTTEN if is_forgotten(self.store, e) else e.kind for e in entries}

    def _mark_done(self, kinds: Mapping[int, str]) -> None:
        for index, kind in kinds.items():
            self.done[index], self.failed[index] = True, kind == "failure"
            self.forgotten[index] = kind == FailureKind.FORGOTTEN

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latencies: Mapping[int, Latency] | None = None,
        peak_gpu_bytes: int | None = None,
        remaining_s: float | None = None,
        remaining_item_s: float | None = None,
    ) -> list[PartEntry]:
        """Commit entries as the next part. Entries that another process committed first are left out.

        Args:
            latencies: those of each entry, by Item.index, as far as they were measured. The part has those of its own
                entries.
            wall_s, peak_gpu_bytes, remaining_s, remaining_item_s: see PartHeader.

        Returns:
            The entries that this call committed: all of them, unless another process works on the same shard.

        Raises:
            TakenOverError: another run took OUT over, or OUT was deleted.
            CheckpointError: the part of another process is damaged.
            StorageError: OUT cannot be read or written.
        """
        pending = sorted((e for e in entries if not self.done[e.index]), key=lambda e: e.index)
        if pending:
            self._owner.check()
        if any(entry.flac for entry in pending):
            from voxbatch.output.audio_archive import archived  # only for a run that speaks

            pending = archived(self.store, self.folder, pending)
        while pending:
            name = part_name(self.folder, self._next, self._run.pass_name)
            self._next += 1
            digest = hashlib.sha256()
            for entry in pending:
                digest.update(entry.to_bytes())
            header = PartHeader(
                run=self._run.run_id,
                shard=f"{self._shard}/{self._shards}",
                items=len(pending),
                first=pending[0].index,
                last=pending[-1].index,
                wall_s=round(wall_s, 3),
                list_number=self._run.list_number,
                keys=base64.b64encode(self._list.keys_of([entry.index for entry in pending])).decode(),
                worker=self.worker,
                latency=None if latencies is None else Latency.total(map(latencies.get, (e.index for e in pending))),
                peak_gpu_bytes=peak_gpu_bytes,
                generation=self._run.generation,
                committed_at=round(time.time(), 3),
                remaining_s=None if remaining_s is None else round(remaining_s, 1),
                remaining_item_s=None if remaining_item_s is None else round(remaining_item_s, 1),
                sha256=digest.hexdigest(),
            )
            if self.store.create(name, chain([header.to_bytes()], (entry.to_bytes() for entry in pending))):
                self._mark_done({e.index: e.kind for e in pending})
                return pending
            self._owner.check()  # another process took this number, perhaps with a later list
            committed = self._read_kinds(name)
            self._mark_done(committed)
            pending = [e for e in pending if e.index not in committed]
        return []

    def last_commit(self) -> float | None:
        """Return the time of the last commit of the run in seconds since 1970; None without a part.

        Raises:
            CheckpointError: the header of a part is damaged.
        """
        names = listed_parts(self.store, self._run.generation, self._run.pass_name)
        last = list({name.rpartition("/")[0]: name for name in names}.values())  # those of each shard
        return max((header.committed_at for header in read_headers(self.store, last, self._run.key)), default=None)

    def mark_complete(self, items: ItemSet) -> None:
        """Record that the shard is complete: each of its items is in a part. The record of a second pass has the items
        themselves, because nothing else tells which of them it has chosen."""
        key, pass_name = self._run.key, self._run.pass_name
        content = {"version": VERSION, "run": key.run_id, "generation": key.generation, "items": items.count()}
        if pass_name != FIRST:
            content["chosen"] = base64.b64encode(items.to_bytes()).decode()
        name = complete_name(self.folder, self._run.list_number, pass_name)
        self.store.create(name, [json_bytes(content) + b"\n"])

    def are_all_complete(self) -> bool:
        """Return whether every shard of this run's sharding is recorded as complete. The records are read by their
        names, because the listing of a store may lack what was written last.

        Raises:
            CheckpointError: a record is damaged, or another run wrote it.
        """
        folders = (shard_folder(shard, self._shards, self._run.generation) for shard in range(self._shards))
        names = (complete_name(folder, self._run.list_number, self._run.pass_name) for folder in folders)
        read = functools.partial(read_complete, self.store, run=self._run.key)
        return all(parallel_map(self.store.concurrency, read, names))


@dataclass(frozen=True, slots=True)
class Complete:
    """The record that a shard is complete."""

    run: str
    generation: str = ""
    items: Count = 0
    """Number of items of the shard."""
    chosen: str = ""
    """Bits of the items of a second pass, in base64; see ItemSet.to_bytes. Empty for a first pass, and in records of
    earlier versions of voxbatch."""


def read_complete(store: Store, name: str, run: RunKey) -> Complete | None:
    """Return the record that a shard is complete; None if there is none.

    Raises:
        CheckpointError: the record is damaged, or another run wrote it.
    """
    if (content := store.read(name)) is None:
        return None
    try:
        stored = read_json(content, Complete)
    except ValueError:
        stored = None
    if stored is None or RunKey(stored.run, stored.generation) != run:
        raise unreadable_record(store, name, f"not written by run {run}")
    return stored


def unreadable_record(store: Store, name: str, reason: str) -> CheckpointError:
    """Return the error for a record that a shard is complete, with the remedy."""
    remedy = f"remove it and run again: {remove_command(store.place, name)}"
    return CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason)
