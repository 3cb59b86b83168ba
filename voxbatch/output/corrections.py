"""Corrections by a person: entries of OUT's log, which lie over those of the recogniser.

    parts/shard-00000-of-00001/corrected-00007.jsonl    a part (see the module `parts`) of corrected texts

A correction has the text, words and segments that its item has from then on. What they were before stays in the parts,
and the key CORRECTION_KEY of the line has the recogniser's text with its errors against the correction. A correction
belongs to its item as any entry does, by the hashes of the item's id and line: it stays with `--update` and further
recordings, and does not count any more if its recording has changed. Of several corrections of an item, the latest
counts. The item's files follow when OUT is merged, because they are made of what the log gives.

The header of the part has the digests of the files from which the corrections were taken. A merge may replace these
files, and a kill between the two loses nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from voxbatch.log import Log
from voxbatch.output.layout import CORRECTED, correction_names, number_of_part, part_name, shard_folder
from voxbatch.output.lines import CORRECTION_KEY, SegmentKeys, WordKeys, line_bytes, score_keys
from voxbatch.output.lists import ItemList
from voxbatch.output.own_files import Key
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry, PartHeader, damaged_part, open_part
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import Count, json_bytes, record_of
from voxbatch.safe_text import counted
from voxbatch.scoring.counts import count_errors
from voxbatch.storage import Store
from voxbatch.text.stitching import mean

ITEMS_OF_PART = 200
"""Corrections that a part has, at most."""
SHOWN_IDS = 3
"""Items that a message names."""


class Correction(msgspec.Struct, kw_only=True):
    """The corrected text of an item, as the log has it."""

    id: str
    pred_text: str
    words: list[WordKeys]
    segments: list[SegmentKeys]
    subtitles: list[SegmentKeys] = []
    """Its subtitles with their lines, if a person has timed them."""
    file: str
    """Name of the file from which it was taken, for people."""
    estimated_words: Count = 0
    """Number of words whose times were not found in the audio, and lie between those of their neighbours."""


@dataclass(frozen=True, slots=True)
class CorrectedItem:
    """A correction that is to be committed."""

    index: int
    """Position of the item in the latest list."""
    line: Mapping[str, Any]
    """The keys of Correction."""
    taken: tuple[Key, ...]
    """Keys of the files of the item from which it was taken."""


def commit(
    store: Store, run: Run, corrections: Iterable[CorrectedItem], taken_number: int, taken: Iterable[Key] = ()
) -> None:
    """Commit corrections as the next parts. Each part is created if absent, so that no process replaces one.

    Args:
        taken_number: number of the merge for which the files are those of voxbatch; see own_files.
        taken: keys of files from which corrections of several items were taken. The last part has them: if this process
            is killed before, a further start takes in the rest of the files.

    Raises:
        TakenOverError: OUT belongs to another run or to a later list now.
        StorageError: OUT cannot be written.
    """
    owner, items, folder = Ownership(store, run), ItemList(store, run), shard_folder(0, 1, run.generation)
    number = 1 + max(map(number_of_part, correction_names(store, run.generation)), default=-1)
    ordered = sorted(corrections, key=lambda correction: correction.index)
    for at in range(0, len(ordered), ITEMS_OF_PART):
        items_of_part = ordered[at : at + ITEMS_OF_PART]
        keys = {key for correction in items_of_part for key in correction.taken}
        if items_of_part[-1] is ordered[-1]:
            keys.update(taken)
        part = [PartEntry(one.index, "transcript", json_bytes(one.line)) for one in items_of_part]
        digest = hashlib.sha256(b"".join(entry.to_bytes() for entry in part))
        header = PartHeader(
            run=run.run_id,
            generation=run.generation,
            shard="0/1",
            items=len(part),
            first=part[0].index,
            last=part[-1].index,
            wall_s=0.0,
            list_number=run.list_number,
            keys=base64.b64encode(items.keys_of([entry.index for entry in part])).decode(),
            committed_at=round(time.time(), 3),
            sha256=digest.hexdigest(),
            taken=tuple(sorted(keys)),
            taken_number=taken_number,
        )
        content = [header.to_bytes(), *(entry.to_bytes() for entry in part)]
        owner.check()
        while not store.create(part_name(folder, number, CORRECTED), content):
            number += 1  # another process has committed corrections meanwhile
            owner.check()
        number += 1


def latest_by_keys(store: Store, run: Run) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Return the latest correction of each line, by the hashes of its item's id and line.

    Raises:
        CheckpointError: a correction is damaged.
    """
    corrections = dict[tuple[int, int], Mapping[str, Any]]()
    for name in correction_names(store, run.generation):
        header, entries = open_part(store, name, run.key)
        for (item_id, line), entry in zip(header.item_keys.tolist(), entries, strict=True):
            corrections[item_id, line] = json.loads(entry.line)
    return corrections


class LostCorrections:
    """Finds, while the entries of a merge come, the items that are recognised anew because their recording or their
    line has changed, so that their corrections do not count any more."""

    def __init__(self, store: Store, run: Run, names: Iterable[str], recognised_in: Collection[str]) -> None:
        """Begin without entries.

        Args:
            names: the parts of corrections.
            recognised_in: the parts of the latest list.

        Raises:
            CheckpointError: a correction is damaged.
        """
        self._parts, items = recognised_in, ItemList(store, run)
        lost, counting = set[str](), set[str]()
        for name in names:
            header, entries = open_part(store, name, run.key)
            _, has_id, is_same = items.index.find(header.item_keys)
            for entry, has_item, counts in zip(entries, has_id, is_same, strict=True):
                if has_item:
                    (counting if counts else lost).add(json.loads(entry.line)["id"])
        self._lost = lost - counting
        self.ids = list[str]()
        """The ids of these items."""

    def add(self, entry: PartEntry, line: Mapping[str, Any]) -> None:
        """Add an entry, whose line is also given as its JSON object."""
        if line["id"] in self._lost and entry.part in self._parts:
            self.ids.append(line["id"])

    def report(self, log: Log, _: str) -> None:
        """Log how many items there are, and the first of them."""
        if self.ids:
            shown = ", ".join(self.ids[:SHOWN_IDS]) + (", …" if len(self.ids) > SHOWN_IDS else "")
            text = f"{counted(len(self.ids), 'item')} recognised anew, because the recording or its line has changed"
            log.warning("lost_corrections", text=f"{text}; the corrections do not count any more: {shown}")


def overlaid(store: Store, entries: Iterable[PartEntry], corrections: Iterator[PartEntry]) -> Iterator[PartEntry]:
    """Yield the entries of a run, each with the correction of its item. Both are in the order of the list. A correction
    of an item that has failed does not count, nor one that is forgotten.

    Raises:
        CheckpointError: a correction is damaged.
    """
    following = next(corrections, None)
    for entry in entries:
        while following is not None and following.index < entry.index:
            following = next(corrections, None)
        if following is not None and following.index == entry.index and entry.kind == following.kind == "transcript":
            yield combined(store, entry, following)
        else:
            yield entry


def combined(store: Store, entry: PartEntry, correction: PartEntry) -> PartEntry:
    """Return the entry of a corrected item: the recogniser's line with the corrected text, words and segments, without
    flags, and with CORRECTION_KEY. Its errors are counted again.

    Raises:
        CheckpointError: the correction is damaged.
    """
    line: dict[str, Any] = json.loads(entry.line)
    stored: dict[str, Any] = json.loads(correction.line)
    try:
        text = record_of(stored, Correction)
    except ValueError as e:
        raise damaged_part(store, correction.part, f"the correction of item {correction.index} is damaged: {e}") from e
    lang, confidences = line.get("lang"), [word.confidence for word in text.words if word.confidence is not None]
    confidence = mean(confidences)
    recognised = {
        "pred_text": line["pred_text"],
        **score_keys(count_errors(text.pred_text, line["pred_text"], lang)),
        "confidence": line["confidence"],
        "flags": line["flags"],
        "corrected_in": text.file,
        "estimated_words": text.estimated_words,
        "subtitles": stored.get("subtitles", []),
    }
    counts = None if line.get("text") is None else count_errors(line["text"], text.pred_text, lang)
    warnings = line["warnings"]
    if text.estimated_words:
        warnings = [*warnings, f"corrected: {text.estimated_words:,} words have estimated times"]
    changed = {
        **{key: stored[key] for key in ("pred_text", "words", "segments")},
        **score_keys(counts),
        "confidence": None if confidence is None else round(confidence, 3),
        "flags": [],
        "warnings": warnings,
        CORRECTION_KEY: recognised,
    }
    return replace(entry, line=line_bytes({**line, **changed}), correction=correction.part)
