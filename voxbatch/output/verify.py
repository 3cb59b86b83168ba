"""Verify an OUT: read every part and every output, and find what is damaged, missing, or of another run.

The outputs of a finished run are compared with what its parts give. Nothing is written.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any
from unicodedata import normalize

import numpy as np

from voxbatch import __version__
from voxbatch.config import digest as digest_of_identity
from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.output import run_file
from voxbatch.output.audio_archive import AudioReader
from voxbatch.output.checkpoint import read_complete
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import FileDigest, digest_of
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import ItemFile, item_files
from voxbatch.output.layout import (
    FAILURES,
    FIRST,
    PARTS,
    REPORT,
    RUN_FILE,
    SECOND,
    SUMMARY,
    complete_name,
    complete_names,
    correction_names,
    list_name,
    list_names,
    part_name,
    part_names,
    shard_folder,
)
from voxbatch.output.lists import ItemList
from voxbatch.output.merge import lines_of
from voxbatch.output.merged_outputs import correction_command
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.parts import read_part
from voxbatch.output.report import is_report_of
from voxbatch.output.run_file import Run, read_keys
from voxbatch.output.stored_json import json_bytes, parse_json
from voxbatch.output.summary import Summary, read_summary, summarise
from voxbatch.output.totals import Totals
from voxbatch.safe_text import counted
from voxbatch.storage import Store, parallel_map, remove_command
from voxbatch.storage.columns import Column
from voxbatch.work import work_of

RUN_AGAIN = "run the same command again, without --overwrite"


@dataclass(frozen=True, slots=True)
class Problem:
    """A file, or a folder of files, that is not as the run wrote it."""

    file: str
    problem: str
    repair: tuple[str, ...]
    """The steps of the repair, in this order: commands for a shell, and RUN_AGAIN."""


def verify(store: Store) -> list[Problem]:
    """Return all problems of an OUT; [] if there are none. The outputs are verified if all parts are sound and the run
    is finished.

    Raises:
        ConfigError: no run was started there.
        CheckpointError: run.json is damaged.
        StorageError: OUT cannot be read.
    """
    try:
        run = run_file.read_existing(store)
    except CheckpointError as e:
        stored = run_file.read_file(store)  # raises the error again if it is that of run.json
        if stored is None or not (lists := list_names(store, stored.generation)):
            raise
        return [Problem(lists[-1], e.reason, (remove_command(store.place, lists[-1]), RUN_AGAIN))]
    problems = _problems_in_parts(store, run) or list(_problems_in_second_pass(store, run))
    is_sound = not problems
    problems += _problems_in_identity(store, run)
    try:
        summary = read_summary(store)
    except CheckpointError as e:
        return [*problems, Problem(SUMMARY, e.reason, _made_again(store, SUMMARY))]
    if summary is not None and not summary.is_of(run):
        latest = f"list {run.list_number} of run {run.key}, which is not finished"
        text = f"it is of list {summary.list} of run {summary.key}; OUT belongs to {latest}"
        return [*problems, Problem(SUMMARY, text, (RUN_AGAIN,))]
    if summary is not None and is_sound:
        problems += _problems_in_outputs(store, run, summary)
    return problems


def _problems_in_parts(store: Store, run: Run) -> list[Problem]:
    """Return the problems of all parts, of the records that shards are complete, and of the latest list."""
    latest: ItemList | None = ItemList(store, run)
    recordings = AudioReader(store)

    def check(name: str) -> Problem | None:
        try:
            if name == listed:
                read_keys(store, name, run.key)
            elif not name.endswith(".jsonl"):
                read_complete(store, name, run.key)
            else:
                for entry in latest.read_part(name) if latest else read_part(store, name, run.key):
                    if entry.audio:
                        recordings.flac(entry)
        except CheckpointError as e:
            return Problem(name, e.reason, (remove_command(store.place, name), RUN_AGAIN))
        return None

    listed = list_name(run.list_number, run.generation)
    in_list = check(listed)
    if in_list is not None:
        latest = None
    parts = (part_names(store, run.generation, pass_name) for pass_name in (FIRST, SECOND))
    others = (correction_names(store, run.generation), complete_names(store, run.generation))
    names = [*chain.from_iterable(parts), *chain.from_iterable(others)]
    problems = [problem for problem in parallel_map(store.concurrency, check, names) if problem is not None]
    return [*problems, *([in_list] if in_list else [])]


def _problems_in_identity(store: Store, run: Run) -> list[Problem]:
    """Return the problem of run.json, if its settings are not those that gave the run its id, together with the list
    that it was started with. If that list is gone, nothing is known."""
    first = list_name(1, run.generation)
    try:
        started = run_file.read_list(store, first, run.key) if store.exists(first) else None
    except CheckpointError:
        started = None
    if started is None:
        return []
    language, own_id = run.identity.get("language"), digest_of_identity({"manifest": started.manifest, **run.identity})
    if own_id == (started.started_as or run.run_id) and language in (None, run.language):
        return []
    text = f"its settings are not those that run {run.run_id} was started with: put back a copy of the file"
    return [Problem(RUN_FILE, f"{text}, or correct it by the facts in {first}", ())]


def _problems_in_second_pass(store: Store, run: Run) -> Iterator[Problem]:
    """Yield the problem of a second pass of which a part is gone. Its parts have consecutive numbers."""
    folder = shard_folder(0, 1, run.generation)
    try:
        missing = run.second_pass and run.second_pass.missing(store, run)
    except CheckpointError as e:  # of the record, because the parts are sound
        record = complete_name(folder, run.list_number, SECOND)
        yield Problem(record, e.reason, (remove_command(store.place, record), RUN_AGAIN))
        return
    if missing:
        present = set(part_names(store, run.generation, SECOND))
        names = (part_name(folder, number, SECOND) for number in itertools.count())
        text = f"missing, or a later part: {counted(missing, 'item')} of the second pass in no part"
        yield Problem(next(name for name in names if name not in present), text, (RUN_AGAIN,))


def _problems_in_outputs(store: Store, run: Run, summary: Summary) -> Iterator[Problem]:
    """Yield the problems of the outputs of a finished run whose parts are sound."""
    latest = ItemFiles.of(summary.facts.config)
    formats = [form for form in WRITERS if form in {*latest.formats, *run.facts.formats}]
    files = replace(latest, formats=tuple(formats), beside=False)
    totals, damaged, known, own = Totals.of(run), dict[str, list[str]](), Column("<i8"), OwnFiles(store)

    def is_equal(file: ItemFile) -> tuple[str, bool]:
        present = store.read(file.name)
        return file.name, present == file.content or own.has_mark(file.name, sha256(present or b""))

    try:
        entries = Entries(store, run)
        contents = item_files(store, run, files, entries, lines_of(store, entries, run, [totals]))
        for name, equal in parallel_map(store.concurrency, is_equal, contents):
            known.append(_digest_of_name(name))
            if not equal:
                damaged.setdefault(name.partition("/")[0], []).append(name)
    except CheckpointError as e:
        yield Problem(PARTS, e.reason, (RUN_AGAIN,))
        return
    digests = totals.digests(run)
    yield from _problems_in_merged(store, digests)
    if latest.report and not is_report_of(store, run):
        removed = (remove_command(store.place, REPORT),) if store.exists(REPORT) else ()
        again = f"voxbatch report {shlex.quote(store.place)}"
        yield Problem(REPORT, "missing, damaged, or of another run", (*removed, again))
    for extension, names in damaged.items():
        text = f"{len(names):,} files are missing, changed or damaged; the first is {names[0]}"
        if run.takes_corrections:
            text += f"; if a person changed them: {correction_command(store)}"
        yield Problem(f"{extension}/", text, (f"{correction_command(store)} --drop {extension}/",))
    yield from _files_of_no_item(store, run, (*formats, *files.audio), known)
    figures = summarise(totals, replace(run, facts=summary.facts), entries.measurements, digests)
    if wrong := _differing(parse_json(store.read(SUMMARY) or b"{}"), figures):
        yield Problem(SUMMARY, f"not as the parts give it: {', '.join(wrong)}", _made_again(store, SUMMARY))


_BY_RULES = {"score", "word_times", "speakers", "wer_by_voice"}
"""Figures that another version of voxbatch may count by other rules."""


def _differing(stored: Mapping[str, Any], figures: Summary) -> list[str]:
    """Return the names of the figures of a stored summary that are not those of its run. The facts about the machine
    and the options, and an estimate by a calibration, are not compared."""
    left_out = {"estimated_wer", "digests", *figures.facts.to_dict()}
    if figures.facts.voxbatch != __version__:
        left_out |= _BY_RULES
    if not stored.get("outputs"):
        left_out.add("outputs")  # an earlier version of voxbatch recorded none
    expected = parse_json(json_bytes(figures.to_dict()))
    return [name for name, value in expected.items() if name not in left_out and stored.get(name) != value]


def _files_of_no_item(store: Store, run: Run, formats: Iterable[str], known: Column) -> Iterator[Problem]:
    """Yield the problem of each folder of a format that has files of no item. They may be of a person, so no command
    removes them.

    Args:
        known: a digest of the name of each item's file.
    """
    digests, of_all = np.sort(np.asarray(known)), [name for _, name in work_of(run.identity).outputs]
    for form in formats:
        extension = WRITERS[form].extension if form in WRITERS else form
        names = [name for name in store.names(form) if name.endswith(f".{extension}") and name not in of_all]
        is_known = np.isin([int.from_bytes(_digest_of_name(name), "little", signed=True) for name in names], digests)
        if not np.all(is_known):
            first = names[int(np.argmin(is_known))]
            text = f"files of no item of the run: {np.count_nonzero(~is_known):,}, the first is {first}; remove them "
            yield Problem(f"{form}/", f"{text}unless they are yours", ())


def _digest_of_name(name: str) -> bytes:
    """Return 8 bytes that are the same for names that a file system may take for one: a listing may have the other."""
    name = normalize("NFC", normalize("NFD", name).casefold())
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _problems_in_merged(store: Store, digests: Mapping[str, FileDigest]) -> Iterator[Problem]:
    """Yield the problems of the merged outputs, which should have these digests. If no item failed, failures.jsonl does
    not exist."""
    for name, digest in digests.items():
        if not store.exists(name):
            if name != FAILURES or digest.bytes:
                yield Problem(name, "missing", (_merge_command(store),))
        elif (present := digest_of(store, name)) != digest:
            text = (
                f"changed or damaged: {present.bytes:,} bytes, and the parts give {digest.bytes:,} and another checksum"
            )
            yield Problem(name, text, _made_again(store, name))


def _made_again(store: Store, name: str) -> tuple[str, ...]:
    """Return the commands that make a merged output again from the parts."""
    return remove_command(store.place, name), _merge_command(store)


def _merge_command(store: Store) -> str:
    return f"voxbatch merge {shlex.quote(store.place)}"
