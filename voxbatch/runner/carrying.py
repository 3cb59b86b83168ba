"""Carry over the transcripts of items whose rows have changed since an earlier list in nothing that decides the text.

A further list has other keys for such items, so that their earlier entries do not count any more. Their rows are
compared with the earlier output lines, which hold the rows. If the keys that name the audio, its state and its language
are the same, the present row is committed with the earlier transcript, and with its errors against the present
reference: the recording is neither decoded nor transcribed. Before it, the correction of the item is committed again,
if a person has made one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxbatch.languages import DETECTED_LANGUAGE
from voxbatch.manifest import InheritableSource, PathPolicy, items
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.corrections import CorrectedItem, commit, latest_by_keys
from voxbatch.output.layout import FIRST, part_names
from voxbatch.output.lines import (
    LINE_KEYS,
    SPOKEN_LANGUAGE,
    line_bytes,
    manifest_keys,
    parse_line,
    score_keys,
)
from voxbatch.output.lists import ItemIndex
from voxbatch.output.own_files import MARKS
from voxbatch.output.parts import PartEntry, open_part, read_headers
from voxbatch.output.run_file import ItemKeys, Run
from voxbatch.records import TRANSLATE, Item
from voxbatch.runner.job import Job, RemainingWork
from voxbatch.runner.progress import Stop
from voxbatch.runner.steps import steps_of
from voxbatch.safe_text import counted
from voxbatch.scoring.counts import count_errors
from voxbatch.storage import Store
from voxbatch.storage.columns import Column, ItemSet

MAX_BATCH, MAX_BATCH_BYTES = 10_000, 32 << 20
"""A batch of earlier lines ends with the line that reaches one of these. The manifest is read up to the last item
of each batch, so a new column of a million rows takes some minutes."""
DECIDING_KEYS = (
    AUDIO_KEY, "offset", "duration", "channel", "hotwords",
    "size", "modified", "generation", "mtime", "last_modified", "etag", "checksum", "crc32c", "md5", "sha1", "sha256",
)  # fmt: skip
"""Keys of a row that decide its transcript: those that voxbatch reads, and those that tell of another content of the
recording. The languages are compared by themselves."""

Earlier = dict[int, tuple[PartEntry, CorrectedItem | None]]
"""The earlier transcript of each item and its correction, by its index in the latest list."""


@dataclass(frozen=True, slots=True, eq=False)
class PresentRows:
    """The latest list of a run, and the rows of its items."""

    store: Store
    """OUT."""
    run: Run
    keys: ItemKeys | Column
    """Keys of the items of the list."""
    source: InheritableSource
    path_policy: PathPolicy
    folder: str | None
    """See Job.folder."""


def carry_over(job: Job, work: RemainingWork, stop: Stop) -> int:
    """Commit the remaining items whose rows have the transcripts of earlier rows. Return their number.

    Raises:
        TakenOverError, CheckpointError, StorageError: see Checkpoint.commit.
    """
    if job.run.list_number == 1 or not work.items.any() or not steps_of(job.config).carries_over:
        return 0
    store = job.config.stores.out(job.config.out)
    rows = PresentRows(store, job.run, job.keys, job.source, job.path_policy, job.folder)
    count, started_at = 0, time.monotonic()
    for earlier in _batches(rows, work.items):
        if stop.requested.is_set():
            break
        if entries := list(_carried(rows, earlier)):
            corrections = (earlier[entry.index][1] for entry in entries)
            commit(store, job.run, filter(None, corrections), MARKS)
            now = time.monotonic()
            count += len(work.checkpoint.commit(entries, now - started_at))
            started_at = now
    return count


def carried_items(rows: PresentRows, remaining: ItemSet) -> ItemSet:
    """Return the remaining items whose rows have the transcripts of earlier rows. Nothing is written.

    Raises:
        CheckpointError, StorageError: a part is damaged, or OUT cannot be read.
    """
    carried = ItemSet(remaining.size)
    for earlier in _batches(rows, remaining):
        for entry in _carried(rows, earlier):
            carried[entry.index] = True
    return carried


def carried_text(count: int) -> str:
    """Return how many changed items keep their transcripts, for people."""
    return f"{counted(count, 'changed item')} with the same audio and language: rows and scores are new, texts stay"


def _batches(rows: PresentRows, remaining: ItemSet) -> Iterator[Earlier]:
    """Yield the transcripts of earlier lists whose items remain because their rows have changed, the latest list first.
    Each item comes once."""
    store, run = rows.store, rows.run
    index, seen = ItemIndex(np.asarray(rows.keys)), ItemSet(remaining.size)
    names = part_names(store, run.generation, run.pass_name)
    numbers = [header.list_number for header in read_headers(store, names, run.key)]
    corrections = latest_by_keys(store, run) if run.pass_name == FIRST else {}
    batch, size = Earlier(), 0
    for number, name in sorted(zip(numbers, names, strict=True), reverse=True):
        if number == run.list_number:
            continue
        header, entries = open_part(store, name, run.key)
        with closing(entries):
            where, has_id, is_same = index.find(header.item_keys)
            has_changed = has_id & ~is_same
            for at, entry in enumerate(entries if has_changed.any() else ()):
                item = int(where[at])
                if has_changed[at] and remaining[item] and not seen[item]:
                    seen[item] = True
                    if entry.kind == "transcript":
                        correction = corrections.get(tuple(header.item_keys[at].tolist()))
                        corrected = CorrectedItem(item, correction, ()) if correction else None
                        batch[item], size = (entry, corrected), size + len(entry.line)
                if len(batch) >= MAX_BATCH or size >= MAX_BATCH_BYTES:
                    yield batch
                    batch, size = Earlier(), 0
    if batch:
        yield batch


def _carried(rows: PresentRows, earlier: Earlier) -> Iterator[PartEntry]:
    """Yield the entries of the items of a batch whose present rows have the earlier transcripts."""
    wanted = ItemSet(rows.run.items)
    for index in earlier:
        wanted[index] = True
    with replace(rows.source, fd=os.dup(rows.source.fd)).open() as source:
        for item in items(source, rows.path_policy, 1 + max(earlier), wanted):
            before = parse_line(rows.store, earlier[item.index][0], rows.run.products)
            if (line := _line(item, before, rows)) is not None:
                yield PartEntry(item.index, "transcript", line_bytes(line))


def _line(item: Item, before: Mapping[str, Any], rows: PresentRows) -> dict[str, Any] | None:
    """Return the present row of an item with its earlier transcript and the errors against its present reference. None
    if something has changed that decides the transcript."""
    keys, spoken = manifest_keys(item, rows.folder), before.get(SPOKEN_LANGUAGE if item.task == TRANSLATE else "lang")
    asked_for = None if before.get(DETECTED_LANGUAGE) else spoken
    is_same = all(keys.get(name) == before.get(name) for name in DECIDING_KEYS)
    if not is_same or asked_for != (item.lang or rows.run.language):
        return None
    counts = None
    if item.text is not None:
        counts = count_errors(item.text, before["pred_text"], before.get("lang"))
    results = {name: value for name, value in before.items() if name in LINE_KEYS}
    return {**keys, **results, **score_keys(counts)}
