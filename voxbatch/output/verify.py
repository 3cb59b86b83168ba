"""Verify an OUT: read every part and every output, and find what is damaged, missing, or of another run.

The outputs of a finished run are compared with what its parts give. Nothing is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.output import run_file
from voxbatch.output.checkpoint import is_complete
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import ItemFile, item_files
from voxbatch.output.layout import (
    FAILURES,
    FIRST,
    PARTS,
    REPORT,
    SECOND,
    SUMMARY,
    complete_names,
    correction_names,
    list_name,
    list_names,
    part_names,
)
from voxbatch.output.lists import ItemList
from voxbatch.output.merge import correct_command, lines_of
from voxbatch.output.parts import read_part
from voxbatch.output.report import is_report_of
from voxbatch.output.run_file import Run, read_keys
from voxbatch.output.summary import FileDigest, Summary, Totals, digest_of, read_summary
from voxbatch.storage import Store, parallel_map, remove_command

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
    problems = _problems_in_parts(store, run)
    try:
        summary = read_summary(store)
    except CheckpointError as e:
        return [*problems, Problem(SUMMARY, e.reason, _made_again(store, SUMMARY))]
    if summary is not None and not summary.is_of(run):
        latest = f"list {run.list_number} of run {run.key}, which is not finished"
        text = f"it is of list {summary.list} of run {summary.key}; OUT belongs to {latest}"
        return [*problems, Problem(SUMMARY, text, (RUN_AGAIN,))]
    if summary is None or problems:
        return problems
    return list(_problems_in_outputs(store, run, summary))


def _problems_in_parts(store: Store, run: Run) -> list[Problem]:
    """Return the problems of all parts, of the records that shards are complete, and of the latest list."""
    latest: ItemList | None = ItemList(store, run)

    def check(name: str) -> Problem | None:
        try:
            if name == listed:
                read_keys(store, name, run.key)
            elif not name.endswith(".jsonl"):
                is_complete(store, name, run.key)
            else:
                for _ in latest.read_part(name) if latest else read_part(store, name, run.key):
                    pass
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


def _problems_in_outputs(store: Store, run: Run, summary: Summary) -> Iterator[Problem]:
    """Yield the problems of the outputs of a finished run whose parts are sound."""
    latest = ItemFiles.of(summary.facts.config)
    formats = [form for form in WRITERS if form in {*latest.formats, *run.facts.formats}]
    files = replace(latest, formats=tuple(formats), beside=False)
    totals, damaged = Totals.of(run), dict[str, list[str]]()

    def is_equal(file: ItemFile) -> tuple[str, bool]:
        return file.name, store.read(file.name) == file.content

    try:
        entries = Entries(store, run)
        contents = item_files(store, run, files, entries, lines_of(store, entries, run, [totals]))
        for name, equal in parallel_map(store.concurrency, is_equal, contents):
            if not equal:
                damaged.setdefault(name.partition("/")[0], []).append(name)
    except CheckpointError as e:
        yield Problem(PARTS, e.reason, (RUN_AGAIN,))
        return
    digests = {run.transcripts: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
    yield from _problems_in_merged(store, digests)
    if latest.report and not is_report_of(store, run):
        yield Problem(REPORT, "missing, damaged, or of another run", (f"voxbatch report {shlex.quote(store.place)}",))
    for extension, names in damaged.items():
        text = f"{len(names):,} files are missing, changed or damaged; the first is {names[0]}"
        if run.takes_corrections:
            text += f"; if a person changed them: {correct_command(store)}"
        yield Problem(f"{extension}/", text, (f"{correct_command(store)} --drop {extension}/",))
    counts = (summary.items, summary.done, summary.failed)
    if counts != (run.items, totals.done, totals.failed) or (summary.outputs and summary.outputs != digests):
        yield Problem(SUMMARY, "its counts or checksums are not those of the parts", _made_again(store, SUMMARY))


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
