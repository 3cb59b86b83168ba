"""Continue an earlier run of OUT with another list of recordings: its finished items become those of a later run.

A recording is found in the new list by its id. If its line is the same, too, its entry becomes an entry of the new
generation under its new index, with the same bytes. If the line differs, the recording has changed, and is transcribed
again. A transcript whose id is not in the list stays: it gets an index after the items of the list, because people move
recordings away after their transcription. A failure whose id is not in the list is dropped.

These steps continue a run. Each of them may be the last one of a process that is killed, and any process that runs the
same command later does the rest:

1. `plan` the items of the new generation, and write their keys (items.bin). Nobody reads them yet.
2. Create next.json in the folder of the earlier generation. Of several processes, one creates it, and its plan counts.
3. Replace run.json. Processes of the earlier generation end before they commit anything more.
4. `carry_over`: commit the earlier entries as parts of the new generation.
5. Delete the files of the earlier generation.

The generations that a run continues are in its run.json, newest first, because step 4 of an earlier run may not have
ended. An entry of a newer generation goes before one of an older generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.latency import Latency
from voxbatch.manifest import item_key
from voxbatch.output import run_file
from voxbatch.output.checkpoint import Checkpoint, PartEntry, PartHeader, part_names, read_header, read_part
from voxbatch.output.item_names import possible_files
from voxbatch.output.items_file import ItemKeys, read_items, write_items
from voxbatch.output.layout import RUN_FILE, items_name, names_of_generation, next_name
from voxbatch.output.run_file import Continued, Ownership, RunFile
from voxbatch.storage import Store, parallel_map
from voxbatch.storage.columns import Column

RETRYABLE, ALL = "retryable", "all"
"""Values of Continued.retried: the failures that may succeed with nothing changed, and all failures."""
CARRIED_PART_BYTES = 8 << 20
"""Bytes of lines that trigger the commit of a part with carried entries. Parts of earlier generations are joined up to
this size, so that a run that is continued often does not have more and more parts."""

_TRANSCRIPT, _FAILURE, _RETRIED = 1, 2, 3
"""Ends of an item in an earlier generation. 0 means that it has none."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The counts of a plan, for people."""

    new: int
    """Items that no earlier generation knows."""
    kept: int
    """Items of the list that are finished."""
    changed: int
    """Items that are done again because their recording or their line has changed."""
    gone: int
    """Transcripts of recordings that are not in the list. They stay."""
    dropped: int
    """Failures of recordings that are not in the list. They are left out."""
    retried: int
    """Failures that are done again."""

    def __str__(self) -> str:
        texts = [
            f"{self.new:,} new" if self.new or not self.retried else "",
            f"{self.kept:,} done before, kept as they are",
            f"{self.changed:,} changed, transcribed again" if self.changed else "",
            f"{self.retried:,} failed before, done again" if self.retried else "",
            f"{self.gone:,} no longer in the list, with transcripts that stay" if self.gone else "",
            f"{self.dropped:,} failed before and no longer in the list, left out" if self.dropped else "",
        ]
        return "; ".join(text for text in texts if text)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The items of a new generation."""

    keys: ItemKeys
    """Keys of the items of the list, and then of the transcripts that stay."""
    changes: Changes


def plan(store: Store, keys: ItemKeys, continues: Sequence[Continued]) -> Plan:
    """Return the items of a generation that continues others.

    Args:
        keys: keys of the items of the list.
        continues: the generations to continue, newest first.

    Raises:
        CheckpointError: a part or a list of items is damaged, or the list of the newest generation is missing.
    """
    index = _Index(keys)
    is_known, is_done, is_changed, is_retried = (np.zeros(len(keys), np.bool_) for _ in range(4))
    gone, gone_ids, dropped = list[ItemKeys](), np.empty(0, np.uint64), 0
    for number, each in enumerate(continues):
        if not (names := part_names(store, each.key.generation)):
            continue
        if (old := read_items(store, each.key)) is None:
            if number == 0:
                raise _without_items(store, each)
            continue  # it was carried over before
        ends = _ends(store, names, each, len(old))
        where, has_id = index.find(old)
        has_line = keys[where, 1] == old[:, 1]
        is_known[where[has_id]] = True
        is_done[where[has_id & has_line & ((ends == _TRANSCRIPT) | (ends == _FAILURE))]] = True
        is_retried[where[has_id & has_line & (ends == _RETRIED)]] = True
        is_changed[where[has_id & ~has_line & (ends > 0)]] = True
        stays = ~has_id & (ends == _TRANSCRIPT) & ~np.isin(old[:, 0], gone_ids)
        dropped += int(np.count_nonzero(~has_id & (ends > _TRANSCRIPT)))
        gone.append(old[stays])
        gone_ids = np.concatenate([gone_ids, old[stays, 0]])
    is_changed &= ~is_done
    is_retried &= ~is_done & ~is_changed
    changes = Changes(
        new=int(np.count_nonzero(~is_known)),
        kept=int(np.count_nonzero(is_done)),
        changed=int(np.count_nonzero(is_changed)),
        gone=len(gone_ids),
        dropped=dropped,
        retried=int(np.count_nonzero(is_retried)),
    )
    return Plan(np.concatenate([keys, *gone]), changes)


def take_over(store: Store, earlier: RunFile, run: RunFile, planned: Plan) -> RunFile:
    """Make a run the owner of OUT that continues an earlier one. Its entries are not carried over yet.

    Args:
        earlier: the owner of OUT.
        run: the later run, with the generations that it continues.
        planned: the items of the later run.

    Returns:
        The owner of OUT: `run` with a new generation and with the number of its items, or the run of another process
        that was faster.
    """
    later = replace(run, generation=run_file.new_generation(), items=len(planned.keys))
    write_items(store, later.key, planned.keys)
    name = next_name(earlier.generation)
    if not store.create(name, [later.to_bytes()]):
        claimed = run_file.parse(store, name, store.read(name) or b"")
        if claimed.continues and claimed.continues[0].key == earlier.key:
            store.delete(items_name(later.generation))
            later = claimed
        else:  # a file of another run, from an OUT whose run.json was removed
            store.write(name, [later.to_bytes()])
    # A process that was suspended here must not replace the run.json of a still later run.
    owner = run_file.read_existing(store)
    if owner.key != earlier.key:
        return owner
    store.write(RUN_FILE, [later.to_bytes()])
    return later


def carry_over(store: Store, run: RunFile, num_listed: int) -> bool:
    """Commit the entries of the generations that a run continues as entries of the run, and delete these generations.

    The run owns OUT. Nothing is done if a process has done all of it before.

    Args:
        num_listed: number of items in the run's list of recordings.

    Returns:
        False if the run needs another plan: a transcript that stays is missing, because its part was damaged and
        removed, or a process of the earlier run has committed one since the plan was made.

    Raises:
        CheckpointError: a part or a list of items is damaged.
        TakenOverError: OUT belongs to another run now.
    """
    earlier = [(each, names) for each in run.continues if (names := part_names(store, each.key.generation))]
    if not earlier and run.items == num_listed:
        return True
    checkpoint = Checkpoint(store, run.key, run.items)
    checkpoint.load()
    if not earlier:
        return _are_done(checkpoint, num_listed, run.items)
    if (keys := read_items(store, run.key)) is None:
        return False  # a merge of the earlier generation has deleted the file, before it noticed the takeover
    index, is_planned = _Index(keys), True
    for each, names in earlier:
        if (old := read_items(store, each.key)) is not None:  # otherwise it was carried over before
            batch = _Batch(checkpoint)
            is_planned &= _carry(store, each, names, old, index, batch)
            batch.commit()
    if not is_planned or not _are_done(checkpoint, num_listed, run.items):
        return False
    for each, names in earlier:
        _delete(store, each, names, index, Ownership(store, run.key))
    return True


def _are_done(checkpoint: Checkpoint, start: int, stop: int) -> bool:
    return all(checkpoint.done[index] for index in range(start, stop))


def ensure_items(store: Store, run: RunFile, listed: ItemKeys | Column) -> None:
    """Write the keys of a run's items if the file is missing.

    If it was removed because it was damaged, the lines of the transcripts that are not in the list are not known any
    more. If such a recording comes back, it counts as changed.

    Args:
        listed: keys of the items of the run's list.
    """
    if run.items == len(listed):
        write_items(store, run.key, listed)
        return
    if store.exists(items_name(run.generation)):
        return
    keys = np.zeros((run.items, 2), np.uint64)
    keys[: len(listed)] = np.asarray(listed)
    for name in part_names(store, run.generation):
        for entry in read_part(store, name, run.key):
            if len(listed) <= entry.index < run.items:
                keys[entry.index] = np.frombuffer(item_key(str(json.loads(entry.line)["id"]), b""), "<u8")
    write_items(store, run.key, keys)


def has_same_items(store: Store, earlier: RunFile, keys: ItemKeys) -> bool:
    """Return whether each item of an earlier run is in a list, with the same line.

    Raises:
        CheckpointError: the list of the earlier run is damaged.
    """
    old = read_items(store, earlier.key)
    if old is None:
        return False
    targets, _ = _Index(keys).targets(old)
    return bool(np.all(targets >= 0))


class _Index:
    """Finds items in a list by their keys."""

    def __init__(self, keys: ItemKeys):
        self.keys = keys
        self._order = np.argsort(keys[:, 0], kind="stable")
        self._sorted = keys[self._order, 0]

    def find(self, old: ItemKeys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return, for each of some keys, the index of the item with that id (any index if there is none), and whether
        there is one."""
        at = np.minimum(np.searchsorted(self._sorted, old[:, 0]), len(self._sorted) - 1)
        return self._order[at], self._sorted[at] == old[:, 0]

    def targets(self, old: ItemKeys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return, for each of some keys, the index of the item with that id and line, or -1, and whether there is an
        item with that id."""
        where, has_id = self.find(old)
        return np.where(has_id & (self.keys[where, 1] == old[:, 1]), where, -1), has_id


@dataclass(slots=True)
class _Batch:
    """Carried entries that become one part."""

    checkpoint: Checkpoint
    headers: list[PartHeader] = field(default_factory=list)
    """Headers of the parts that the entries come from. They have the same shard and worker."""
    entries: dict[int, PartEntry] = field(default_factory=dict)
    """The entries by index."""
    num_bytes: int = 0

    def add(self, header: PartHeader, entries: list[PartEntry]) -> None:
        """Add the entries of one part. Commit those of earlier parts first if they do not belong together."""
        if self.headers:
            first = self.headers[0]
            is_other = (first.measured_shard, first.worker) != (header.measured_shard, header.worker)
            if is_other or self.num_bytes >= CARRIED_PART_BYTES:
                self.commit()
        added = {entry.index: entry for entry in entries if not self.checkpoint.done[entry.index]}
        added = {index: entry for index, entry in added.items() if index not in self.entries}
        if added:
            self.headers.append(header)
            self.entries |= added
            self.num_bytes += sum(len(entry.line) for entry in added.values())

    def commit(self) -> None:
        """Commit the entries as a part with the sum of the measurements."""
        if self.entries:
            latency = Latency()
            for header in self.headers:
                if header.latency is not None:
                    latency.update(header.latency)
            self.checkpoint.commit(
                self.entries.values(),
                sum(header.wall_s for header in self.headers),
                latency if any(header.latency for header in self.headers) else None,
                max((header.peak_gpu_bytes for header in self.headers if header.peak_gpu_bytes), default=None),
                self.headers[0],
            )
        self.headers, self.entries, self.num_bytes = [], {}, 0


def _carry(store: Store, each: Continued, names: list[str], old: ItemKeys, index: _Index, batch: _Batch) -> bool:
    """Add the entries of a generation to a batch. Return False if a transcript has no place in the plan."""
    targets, has_id = index.targets(old)
    is_planned = True
    for name in names:
        entries = []
        for entry in _checked(store, name, each, len(old)):
            if targets[entry.index] >= 0 and not _is_retried(entry, each.retried):
                entries.append(replace(entry, index=int(targets[entry.index])))
            elif entry.kind == "transcript" and not has_id[entry.index]:
                is_planned = False
        batch.add(read_header(store, name, each.key), entries)
    return is_planned


def _delete(store: Store, each: Continued, names: list[str], index: _Index, owner: Ownership) -> None:
    """Delete the given parts of a generation that was carried over, the files of items whose transcripts were not, and
    then the other files of the generation. A part that appeared meanwhile stays, together with these."""
    old = read_items(store, each.key)
    formats = [extension for extension in WRITERS if old is not None and store.exists(f"{extension}/")]
    targets = index.targets(old)[0] if old is not None else np.empty(0, np.intp)

    def delete(name: str) -> None:
        if formats:
            for entry in _checked(store, name, each, len(targets)):
                if entry.kind == "transcript" and targets[entry.index] < 0:
                    item_id = str(json.loads(entry.line)["id"])
                    owner.check_again()
                    for file in possible_files(item_id, formats):
                        store.delete(file)
        owner.check_again()
        store.delete(name)

    for _ in parallel_map(store.concurrency, delete, names):
        pass
    if not part_names(store, each.key.generation):
        for name in names_of_generation(store, each.key.generation):
            owner.check_again()
            store.delete(name)


def _ends(store: Store, names: list[str], each: Continued, num_items: int) -> NDArray[np.uint8]:
    """Return the end of each item in a generation, shape (num_items,)."""
    ends = np.zeros(num_items, np.uint8)

    def read(name: str) -> list[tuple[int, int]]:
        return [
            (entry.index, _RETRIED if _is_retried(entry, each.retried) else _KINDS[entry.kind])
            for entry in _checked(store, name, each, num_items)
        ]

    for part in parallel_map(store.concurrency, read, names):
        for item, end in part:
            if not ends[item]:  # of two shardings that have both committed the item, the first part by name counts
                ends[item] = end
    return ends


_KINDS = {"transcript": _TRANSCRIPT, "failure": _FAILURE}


def _checked(store: Store, name: str, each: Continued, num_items: int) -> Iterator[PartEntry]:
    """Yield the entries of a part of a generation with so many items."""
    for entry in read_part(store, name, each.key):
        if entry.index >= num_items:
            reason = f"it has item {entry.index} of a manifest of {num_items:,} items"
            raise CheckpointError(f"{store.place}/{name}: {reason}", reason)
        yield entry


def _is_retried(entry: PartEntry, retried: str | None) -> bool:
    """Return whether an entry is a failure that is done again."""
    if entry.kind != "failure" or retried is None:
        return False
    return retried == ALL or bool(json.loads(entry.line).get("retryable"))


def _without_items(store: Store, each: Continued) -> CheckpointError:
    reason = "is missing, and it says which recordings are done"
    return CheckpointError(
        f"{store.place}/{items_name(each.key.generation)} {reason}; run once with the list of recordings that OUT was "
        "started with, which writes the file, or choose another OUT with -o",
        reason,
    )
