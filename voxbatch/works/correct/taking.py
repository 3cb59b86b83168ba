"""Take in the changes of a run's files: find them, find the times of new words, commit the corrections, and merge."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from voxbatch.errors import ConfigError
from voxbatch.formats.json_formats import transcript_dict
from voxbatch.log import Log
from voxbatch.output.beside import BESIDE
from voxbatch.output.corrections import CorrectedItem, commit
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import item_files
from voxbatch.output.layout import TRANSCRIPTS
from voxbatch.output.lines import parse_line
from voxbatch.output.merge import known_files
from voxbatch.output.merge_again import merge_again
from voxbatch.output.merged_outputs import correction_advice, correction_command
from voxbatch.output.own_files import Key, OwnFiles, key_of, sha256
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary, read_whole_summary
from voxbatch.records import Transcript
from voxbatch.safe_text import counted
from voxbatch.storage import Store, Stores, redacted
from voxbatch.works.correct.chosen_files import ChosenFiles
from voxbatch.works.correct.draft import Draft
from voxbatch.works.correct.edits import RETIMED, EditedItem, EditFinder, TextEdit
from voxbatch.works.correct.merged_lines import ChangedLines, changed_lines
from voxbatch.works.correct.times import Aligner, set_times


@dataclass(frozen=True, slots=True)
class TakenItem:
    """An item whose corrected text is taken in."""

    item: EditedItem
    edit: TextEdit
    """The edit whose text counts."""

    @property
    def draft(self) -> Draft:
        """The corrected text."""
        return self.edit.draft

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of the files that may be replaced."""
        return _keys(self.item)


@dataclass(slots=True)
class TextChanges:
    """The changes of a run's files, and what becomes of them."""

    own: OwnFiles
    """The files that voxbatch has written."""
    taken: list[TakenItem] = field(default_factory=list)
    same: list[Key] = field(default_factory=list)
    """Keys of files that say the same as before, with other line ends, numbers or line breaks."""
    rewritten: list[str] = field(default_factory=list)
    """Such files, which are written as before."""
    retimed: list[str] = field(default_factory=list)
    """Subtitles with cues of a person, which stay as they are."""
    kept: list[Key] = field(default_factory=list)
    """Their keys."""
    behind: list[str] = field(default_factory=list)
    """Kept files that lack a correction that was made elsewhere."""
    untaken: list[str] = field(default_factory=list)
    """Changes that are not taken in, for people."""
    merged: ChangedLines | None = None
    note: str = ""
    """The sentence about files that are not in UTF-8, or ""."""

    @property
    def merged_keys(self) -> list[Key]:
        """Key of transcripts.jsonl, if everything that was changed there is taken in."""
        return [self.merged.key] if self.merged and not self.merged.rest else []


def find_changes(store: Store, run: Run, stores: Stores, names: Sequence[str]) -> TextChanges:
    """Return what somebody has changed in the files of a run, or in the files that a person has named.

    Raises:
        ConfigError: a named file cannot be read, or has no item; or two files of an item differ.
        CheckpointError: a part is damaged.
    """
    summary = read_whole_summary(store)
    latest = summary if summary is not None and summary.key == run.key else None
    entries, chosen = Entries(store, run), ChosenFiles(names, store, stores)
    own = known_files(store, entries, latest)
    merged = None
    if chosen.includes(TRANSCRIPTS):
        merged = changed_lines(store, entries, own, latest.list if latest else run.list_number)
    if merged:
        chosen.take(TRANSCRIPTS)
    files = ItemFiles.of((latest or run).facts.config)
    finder = EditFinder(store, run, entries, own, files, stores, chosen, merged.texts if merged else {})
    edits = finder.find()
    if unmatched := chosen.unmatched():
        shown = ", ".join(unmatched[:3])
        raise ConfigError(f"{shown}: no item with a transcript has this name, or nobody has changed the file")
    changes = TextChanges(own, untaken=edits.untaken, merged=merged)
    conflicts = [conflict for item in edits.items if (conflict := _add(changes, item))]
    if conflicts:
        first, second = conflicts[0]
        raise ConfigError(
            f"{first} and {second} were both changed, and say different things. Name the file that counts: "
            f"{correction_command(store)} {shlex.quote(first)}"
        )
    changes.note = finder.decoder.note()
    changes.untaken += [f"{TRANSCRIPTS}: {reason}" for reason in (merged.rest if merged else ())]
    return changes


def _add(changes: TextChanges, item: EditedItem) -> tuple[str, str] | None:
    """Add an item to the changes. Return the names of two of its files that say different things."""
    changes.kept += [edit.key for edit in item.edits if edit.key is not None and edit.is_retimed]
    edits = sorted((edit for edit in item.edits if edit.differs), key=lambda edit: not edit.subtitles)
    for edit in item.edits:
        lacks = edit.is_kept and (edit.draft.said != edits[0].draft.said if edits else edit.draft.differs)
        if edit.is_retimed and edit.key is not None:
            (changes.behind if lacks else changes.retimed).append(edit.file)
        elif edit.key is not None and not edit.differs:
            changes.rewritten.append(edit.file)
    if not edits:
        changes.same += _keys(item)
        return None
    for edit in edits[1:]:
        if edit.draft.said != edits[0].draft.said:
            return edits[0].file, edit.file
    changes.taken.append(TakenItem(item, edits[0]))
    return None


def _keys(item: EditedItem) -> tuple[Key, ...]:
    return tuple(edit.key for edit in item.edits if edit.key is not None and not edit.is_retimed)


def take_in(store: Store, run: Run, changes: TextChanges, aligner: Aligner, log: Log) -> Summary:
    """Commit the corrections, and merge.

    Raises:
        ConfigError: the engine or the model that was asked for cannot be used. Nothing was committed.
        CheckpointError: the run is not finished, or transcripts.jsonl has changes that cannot be taken in.
        TakenOverError: OUT belongs to another run or to a later list now.
    """
    reason = aligner.align((taken.item.line, taken.draft) for taken in changes.taken)
    corrections, estimated = [], 0
    for taken in changes.taken:
        words = set_times(taken.draft)
        estimated += words
        corrections.append(CorrectedItem(taken.item.index, _correction(taken, words), taken.keys))
    commit(store, run, corrections, changes.own.next_number, changes.merged_keys)
    changes.own.adopt([*changes.same, *(changes.merged_keys if not corrections else ())])
    changes.own.keep(changes.kept)
    changes.own.mark((file, RETIMED) for file in changes.retimed)
    if estimated:
        why = f": {reason}" if reason else ""
        log.warning("estimated", text=f"times between those of their neighbours: {counted(estimated, 'word')}{why}")
    merged = merge_again(store, None, log, aligner.stores)
    if not ItemFiles.of(merged.facts.config).beside:
        _follow_beside(store, run, merged, aligner.stores, log)
    return merged


def _follow_beside(store: Store, run: Run, merged: Summary, stores: Stores, log: Log) -> None:
    """Write the files of corrected items beside the recordings that earlier merges have written there. Those that
    somebody has changed or deleted stay so."""
    entries, settings = Entries(store, run), ItemFiles.of(merged.facts.config)
    indexes = {entry.index for entry in entries.corrections.of_pass()} if entries.corrections else set[int]()
    corrected = Entries(store, run, only=np.array(sorted(indexes), np.intp))
    lines = ((entry, parse_line(store, entry, run.products)) for entry in corrected)
    own, written = known_files(store, entries, merged), list[str]()
    for file in item_files(store, run, replace(settings, beside=True), entries, lines):
        if not file.beside or not own.has_mark(file.beside, BESIDE):
            continue
        folder, name = posixpath.split(file.beside)
        present = stores.out(folder).read(name)
        if present is None or file.content in (None, present):
            continue
        key = key_of(file.name, sha256(present))
        if own.has_written(key) and not own.is_kept(key):
            stores.out(folder).write(name, [file.content])
            written.append(file.beside)
        else:
            own.leave(file.beside, file.name, present)
    if written:
        text = f"files beside the recordings: {len(written):,}, the first is {redacted(written[0])}"
        log.info("beside", text=text)
    own.report(log, correction_advice(store, run))


def _correction(taken: TakenItem, estimated: int) -> Mapping[str, Any]:
    """Return the line of a correction; see output.corrections.Correction."""
    draft = taken.draft
    transcript = replace(
        draft.transcript, text=draft.text, words=tuple(draft.words()), segments=tuple(draft.segments())
    )
    fields, subtitles = transcript_dict(transcript), transcript_dict(Transcript("", (), taken.edit.subtitles))
    return {
        "id": taken.item.line["id"],
        "pred_text": fields["text"],
        "words": fields["words"],
        "segments": fields["segments"],
        "subtitles": subtitles["segments"],
        "file": taken.edit.file,
        "estimated_words": estimated,
    }
