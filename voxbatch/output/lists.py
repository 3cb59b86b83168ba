"""Find the items of earlier lists in another list of recordings, by the keys that each part has of its items.

An item is found by the hash of its id. If the hash of its line is the same, too, its entry counts: it has the item's
position in the other list. If the line differs, the recording has changed, and is transcribed again. A transcript whose
id is not in the list stays: it gets a position after the items of the manifest, because people move recordings away
after their transcription. A failure whose id is not in the list does not count.

Nothing is rewritten. Entries that do not count stay in their parts, and count again if their recording comes back. Only
`voxbatch forget` writes parts again: the key of a forgotten item has ANY_LINE, so that no change of its recording or
line has it transcribed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest import item_key
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.layout import list_name, part_names
from voxbatch.output.lines import parse_line
from voxbatch.output.parts import PartEntry, PartHeader, damaged_part, open_part, read_headers
from voxbatch.output.run_file import ItemKeys, Run, RunKey, read_keys
from voxbatch.storage import Store
from voxbatch.storage.columns import Column
from voxbatch.storage.signatures import SIGNATURE_REFUSED, is_signed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Listing:
    """The list of recordings of a run, and how the run may continue another one."""

    keys: ItemKeys | Column
    """See manifest.Survey."""
    grows: bool = False
    """See manifest.Source.grows. Such a run may continue a run with another list of the same place."""
    is_update: bool = False
    """True with `--update`: the run may continue a run with any other list."""
    retried: str | None = None
    """Failures to do again: further_list.RETRYABLE, further_list.ALL, or None."""
    shards: int = 1


ANY_LINE = 0
"""Stands for the hash of any line in the key of a forgotten item."""


class ItemIndex:
    """Finds items by their keys in a list of keys, whose ids are all different."""

    def __init__(self, keys: ItemKeys):
        self.keys = keys
        self._order = np.argsort(keys[:, 0], kind="stable")
        self._sorted = keys[self._order, 0]

    def find(self, keys: ItemKeys) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return, for each of some keys, the index of the item with that id (any index if there is none), whether there
        is one, and whether it has the same line or is forgotten."""
        if not len(self.keys):
            none = np.zeros(len(keys), np.bool_)
            return np.zeros(len(keys), np.intp), none, none
        at = np.minimum(np.searchsorted(self._sorted, keys[:, 0]), len(self._sorted) - 1)
        where, has_id = self._order[at], self._sorted[at] == keys[:, 0]
        is_same = (self.keys[where, 1] == keys[:, 1]) | (keys[:, 1] == ANY_LINE)
        return where, has_id, has_id & is_same


class ItemList:
    """The latest list of a run, in which the entries of all its parts have their positions.

    Several threads may use an object.
    """

    def __init__(self, store: Store, run: Run, keys: ItemKeys | Column | None = None):
        """Begin with the keys of the list. None means that they are read from the list, if they are needed."""
        self.store, self.run = store, run
        self._keys, self._lock = keys, Lock()
        self._index: ItemIndex | None = None

    def keys_of(self, positions: Sequence[int]) -> bytes:
        """Return the keys of items, whose positions are in ascending order. A column is read once for each run of
        consecutive positions."""
        if isinstance(self._keys, Column):
            runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
            return b"".join(self._keys.read(int(run[0]), int(run[-1]) + 1).tobytes() for run in runs)
        return self.index.keys[list(positions)].tobytes()

    @property
    def index(self) -> ItemIndex:
        """The items by their keys."""
        with self._lock:
            if self._index is None:
                name = list_name(self.run.list_number, self.run.generation)
                keys = read_keys(self.store, name, self.run.key) if self._keys is None else np.asarray(self._keys)
                self._index = ItemIndex(keys)
            return self._index

    def has_id(self, item_id: str) -> bool:
        """Return whether an item of the list has this id."""
        key = np.frombuffer(item_key(item_id, b""), "<u8").reshape(1, 2)
        return bool(self.index.find(key)[1][0])

    def positions(self, name: str, header: PartHeader) -> NDArray[np.intp] | None:
        """Return the positions of the items of a part in the list, in the order of its entries; -1 for an entry that
        does not count. None means that the part has the positions of this list.

        Raises:
            CheckpointError: the part is damaged or of a later list.
        """
        if header.list_number == self.run.list_number:
            if header.last >= self.run.items:
                reason = f"it has item {header.last} of a manifest of {self.run.items:,} items"
                raise damaged_part(self.store, name, reason)
            return None
        if header.list_number > self.run.list_number:
            reason = (
                f"is of list {header.list_number} of the run, which is missing: the latest is {self.run.list_number}"
            )
            remedy = "run again with its recordings, as one task (--tasks none, without --shard)"
            raise CheckpointError(f"{self.store.place}/{name} {reason}; {remedy}", reason)
        where, _, is_same = self.index.find(header.item_keys)
        return np.where(is_same, where, -1)

    def read_part(self, name: str) -> Iterator[PartEntry]:
        """Yield the entries of a part that count, each with its position in the list. One entry is in memory at a time.

        If the part is of an earlier list, the positions may be in any order.

        Raises:
            CheckpointError: the part is damaged, or belongs to another run or to a later list.
        """
        header, entries = open_part(self.store, name, self.run.key)
        with contextlib.closing(entries):
            positions = self.positions(name, header)
            for number, entry in enumerate(entries):
                if positions is not None:
                    entry = replace(entry, index=int(positions[number]))
                if entry.index >= 0 and not self.is_retried(header, entry):
                    yield entry

    def is_retried(self, header: PartHeader, entry: PartEntry) -> bool:
        """Return whether an entry is a failure that a later list does again."""
        if entry.kind != "failure" or header.list_number >= self.run.list_number or is_forgotten(self.store, entry):
            return False
        if header.list_number < self.run.failures_before or is_renewed(self.store, entry):
            return True
        is_early = header.list_number < self.run.retryable_before
        return is_early and bool(parse_line(self.store, entry).get("retryable"))


def is_forgotten(store: Store, entry: PartEntry) -> bool:
    """Return whether `voxbatch forget` has erased the item of an entry. Nothing does such an item again."""
    may_be = entry.kind == "failure" and FailureKind.FORGOTTEN.encode() in entry.line
    return may_be and FailureKind.of_line(parse_line(store, entry)) is FailureKind.FORGOTTEN


def count_forgotten(store: Store, run: RunKey) -> int:
    """Return the number of entries of forgotten items in the parts."""
    headers = read_headers(store, part_names(store, run.generation), run)
    return sum(int((header.item_keys[:, 1] == ANY_LINE).sum()) for header in headers)


def is_renewed(store: Store, failure: PartEntry) -> bool:
    """Return whether a failure does not count in a later list: the signature of its address was refused, and a later
    list has another one."""
    if FailureKind.NO_ACCESS.encode() not in failure.line:
        return False
    line = parse_line(store, failure)
    was_signed = SIGNATURE_REFUSED in line["message"] or is_signed(line[AUDIO_KEY])  # lines once had the signature
    return FailureKind.of_line(line) is FailureKind.NO_ACCESS and was_signed
