"""Check that a run continues the one in OUT, and make its further list: its items, and what becomes of the items of
earlier lists.

A run makes one if its recordings have changed since the latest list, or to do failed items again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import ConfigError, RunMismatchError
from voxbatch.output.layout import list_name, listed_parts
from voxbatch.output.lines import parse_line
from voxbatch.output.lists import ItemIndex, ItemList, Listing, is_forgotten, is_renewed
from voxbatch.output.parts import PartHeader, open_part
from voxbatch.output.run_file import ItemKeys, Run, RunKey, read_keys
from voxbatch.storage import Store, parallel_map

RETRYABLE, ALL = "retryable", "all"
"""The failures that `--retry-failed` does again: those that may succeed with nothing changed, or all."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The effect of another list, for people."""

    new: int
    """Items that the earlier list did not have."""
    kept: int
    """Items of the list with transcripts."""
    failed: int
    """Items of the list that ended as failures, and are not done again."""
    forgotten: int
    """Items of the list that `voxbatch forget` has erased."""
    changed: int
    """Items whose recording or line has changed. They are transcribed again, except where the transcript of the earlier
    line is carried over."""
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
            f"{self.changed:,} changed" if self.changed else "",
            f"{self.failed:,} failed before, not done again" if self.failed else "",
            f"{self.retried:,} failed before, done again" if self.retried else "",
            f"{self.forgotten:,} forgotten" if self.forgotten else "",
            f"{self.gone:,} no longer in the list, with transcripts that stay" if self.gone else "",
            f"{self.dropped:,} failed before and no longer in the list, left out" if self.dropped else "",
        ]
        return "; ".join(text for text in texts if text)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A further list of a run."""

    keys: ItemKeys
    """Keys of the items of the manifest, and then of the transcripts that stay."""
    changes: Changes
    last_list: int
    """Highest number of a list that a part has."""
    is_done: NDArray[np.bool_]
    """True for each item of the manifest that is finished."""


_NONE, _RETRIED, _FAILURE, _FORGOTTEN, _TRANSCRIPT = range(5)
"""Ends of items, of which the greatest counts. _RETRIED is a failure that is done again."""


def plan(
    store: Store, run: RunKey, names: Sequence[str], listed: ItemKeys, earlier: Run | None, retried: str | None
) -> Plan:
    """Return the list that follows the earlier one.

    Args:
        names: the parts of the run.
        listed: keys of the items of the manifest.
        earlier: the run with its latest list. None if the list is missing.
        retried: the failures that are done again.

    Raises:
        CheckpointError: a part or the list is damaged.
    """
    index, old = ItemIndex(listed), ItemList(store, earlier) if earlier else None
    is_changed, ended = np.zeros(len(listed), np.bool_), np.zeros(len(listed), np.uint8)
    none, last_list = np.empty((0, 2), np.uint64), 0
    gone, failed = defaultdict[int, list[ItemKeys]](list), [none]

    def read(name: str) -> tuple[PartHeader, NDArray[np.uint8]]:
        """Return the header of a part and the end of each of its entries."""
        header, entries = open_part(store, name, run)
        ends = []
        for entry in entries:
            if entry.kind == "transcript":
                ends.append(_TRANSCRIPT)
            elif is_forgotten(store, entry):
                ends.append(_FORGOTTEN)
            elif retried == ALL or (old and old.is_retried(header, entry)):
                ends.append(_RETRIED)
            else:
                is_again = is_renewed(store, entry) or (retried and parse_line(store, entry).get("retryable"))
                ends.append(_RETRIED if is_again else _FAILURE)
        return header, np.array(ends, np.uint8)

    for header, ends in parallel_map(store.concurrency, read, names):
        last_list, keys = max(last_list, header.list_number), header.item_keys
        where, has_id, has_line = index.find(keys)
        np.maximum.at(ended, where[has_line], ends[has_line])
        is_changed[where[has_id & ~has_line]] = True
        gone[header.list_number].append(keys[~has_id & (ends == _TRANSCRIPT)])
        failed.append(keys[~has_id & (ends != _TRANSCRIPT)])
    before = old.index.keys if old else none
    staying = _staying(
        before, np.concatenate([none, *chain.from_iterable(gone[n] for n in sorted(gone, reverse=True))])
    )
    is_known = (ended > _NONE) | is_changed
    where, has_id, _ = index.find(before)
    is_known[where[has_id]] = True
    is_changed &= ended == _NONE
    num_ended = [int(np.count_nonzero(ended == end)) for end in range(_TRANSCRIPT + 1)]
    changes = Changes(
        new=int(np.count_nonzero(~is_known)),
        kept=num_ended[_TRANSCRIPT],
        failed=num_ended[_FAILURE],
        forgotten=num_ended[_FORGOTTEN],
        changed=int(np.count_nonzero(is_changed)),
        gone=len(staying),
        dropped=int(
            np.count_nonzero(
                np.isin(before[:, 0], np.concatenate(failed)[:, 0]) & ~np.isin(before[:, 0], staying[:, 0])
            )
        ),
        retried=num_ended[_RETRIED],
    )
    return Plan(np.concatenate([listed, staying]), changes, last_list, ended > _RETRIED)


def _staying(before: ItemKeys, transcribed: ItemKeys) -> ItemKeys:
    """Return the keys of the transcripts that stay although their recordings are gone: first those that the earlier
    list has, in its order, and then others, such as those of a process that committed after that list was made. Each id
    comes once.

    Args:
        before: keys of the items of the earlier list.
        transcribed: keys of the transcripts that are not in the new list, those of the latest list first.
    """
    known = before[np.isin(_mixed(before), _mixed(transcribed))]
    others = transcribed[~np.isin(transcribed[:, 0], known[:, 0])]
    _, first = np.unique(others[:, 0], return_index=True)
    return np.concatenate([known, others[np.sort(first)]])


def _mixed(keys: ItemKeys) -> NDArray[np.uint64]:
    """Return one number for each key."""
    return keys[:, 0] ^ (keys[:, 1] * np.uint64(0x9E3779B97F4A7C15))


def further(owner: Run, run: Run, planned: Plan, retried: str | None) -> Run:
    """Return the run with the list that follows the list of its owner."""
    number = 1 + max(owner.list_number, planned.last_list)
    return replace(
        owner,
        list_number=number,
        manifest=run.manifest,
        items=len(planned.keys),
        gone=planned.changes.gone,
        folder=run.folder,
        facts=run.facts,
        retryable_before=number if retried == RETRYABLE else owner.retryable_before,
        failures_before=number if retried == ALL else owner.failures_before,
    )


def check_continues(store: Store, owner: Run, run: Run, listing: Listing) -> None:
    """Check that a run may continue the owner of OUT: only the list differs, and it may differ.

    A manifest that somebody wrote is fixed. But its addresses may have new signatures, and a run with `--limit` may be
    followed by one with more of its lines. A list of another folder needs `--update`, because recordings of two folders
    often have the same names, and the one would replace the transcripts of the other.

    Raises:
        RunMismatchError: the run may not.
    """
    before, now = owner.settings, run.settings
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names == ["manifest"]:
        has_limit = owner.facts.config.get("limit") is not None or run.facts.config.get("limit") is not None
        is_same_place = listing.grows and owner.folder in (None, run.folder)
        if listing.is_update or is_same_place:
            return
        listed = np.asarray(listing.keys)
        old = _keys(store, owner) if owner.list_number else listed[:0]
        if np.array_equal(old, listed) or (has_limit and np.all(ItemIndex(listed).find(old)[2])):
            return
    differing = [f"{name} was {_shown(before.get(name))}, and is {_shown(now.get(name))} now" for name in names]
    hint = ""
    if names == ["manifest"] and listing.grows:
        differing = [f"it has recordings in {owner.folder}, and this run those in {run.folder}"]
        hint = "If these are the same recordings in another place, and further ones, add --update. "
    elif names == ["manifest"]:
        differing = [f"the lines of the manifest differ ({_line_changes(store, owner, np.asarray(listing.keys))})"]
        hint = (
            "To continue it with the present manifest, which keeps the transcripts of unchanged lines, add --update. "
        )
    elif not listed_parts(store, owner.generation):
        hint = "It has committed nothing yet. "
    raise RunMismatchError(
        f"{store.place} holds another run: {'; '.join(differing)}. {hint}"
        f"{'Or choose' if hint else 'Choose'} another OUT with -o",
        may_update=names == ["manifest"],
    )


def _line_changes(store: Store, owner: Run, listed: ItemKeys) -> str:
    """Return how many lines of a manifest are new, changed, gone and as before, for people."""
    old = _keys(store, owner)[: owner.items - owner.gone] if owner.list_number else listed[:0]
    _, has_id, has_line = ItemIndex(listed).find(old)
    same = int(np.count_nonzero(has_line))
    counts = {
        "new": len(listed) - int(np.count_nonzero(has_id)),
        "changed": int(np.count_nonzero(has_id)) - same,
        "gone": int(np.count_nonzero(~has_id)),
    }
    order = "" if any(counts.values()) else ", in another order"
    note = "; they match by id" if counts["new"] and counts["gone"] else ""
    texts = [*(f"{count:,} {name}" for name, count in counts.items() if count), f"{same:,} as before{order}"]
    return "; ".join(texts) + note


def _keys(store: Store, owner: Run) -> ItemKeys:
    """Return the keys of the list in OUT."""
    return read_keys(store, list_name(owner.list_number, owner.generation), owner.key)


def _shown(value: Any) -> str:
    """Return a value of the identity for a message: the first digits of a SHA-256 digest, all of any other value."""
    if value is None:
        return "not given"
    return value[:12] + "…" if isinstance(value, str) and len(value) == 64 else str(value)


def check_is_one_task(store: Store, shards: int) -> None:
    """Check that one task does the run, because another list follows, or the list is not taken over completely.

    Raises:
        ConfigError: the run has several tasks.
    """
    if shards > 1:
        raise ConfigError(
            f"{store.place} was started with another list of recordings, and {shards} shards or tasks cannot "
            "change the list together. Run the same command once as one task (--tasks none, without --shard), or give "
            "a manifest, or give all tasks another OUT with -o"
        )
