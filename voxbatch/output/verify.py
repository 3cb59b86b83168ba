"""Verify an OUT: read every part and every output, and find what is damaged, missing, or of another run.

The outputs of a finished run are compared with what its parts give. Nothing is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.output import run_file
from voxbatch.output.checkpoint import check_complete, read_part
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.items_file import read_items
from voxbatch.output.layout import FAILURES, PARTS, REPORT, SUMMARY, TRANSCRIPTS, complete_names, items_name, part_names
from voxbatch.output.merge import ItemFile, digest_of, item_files
from voxbatch.output.report import is_report_of
from voxbatch.output.run_file import RunFile
from voxbatch.output.summary import FileDigest, Summary, Totals, read_summary
from voxbatch.storage import Store, parallel_map, remove_command

RUN_AGAIN = "run the same command again, without --overwrite"


@dataclass(frozen=True, slots=True)
class Problem:
    """A file, or a folder of files, that is not as the run wrote it."""

    file: str
    """Name in OUT."""
    problem: str
    """The fault."""
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
    run = run_file.read_existing(store)
    problems = _problems_in_parts(store, run)
    try:
        summary = read_summary(store)
    except CheckpointError as e:
        return [*problems, Problem(SUMMARY, e.reason, _made_again(store, SUMMARY))]
    if summary is not None and not summary.is_of(run.key):
        text = f"run {summary.key} wrote it; OUT belongs to run {run.key}, which is not finished"
        return [*problems, Problem(SUMMARY, text, (RUN_AGAIN,))]
    if summary is None or problems:
        return problems
    return list(_problems_in_outputs(store, run, summary))


def _problems_in_parts(store: Store, run: RunFile) -> list[Problem]:
    """Return the problems of all parts, of the records that shards are complete, and of the list of the items."""

    def check(name: str) -> Problem | None:
        problem = ""
        try:
            if not name.endswith(".jsonl"):
                check_complete(store, name, run.key)
            elif outside := [entry.index for entry in read_part(store, name, run.key) if entry.index >= run.items]:
                problem = f"it has item {outside[0]} of a manifest of {run.items:,} items"
        except CheckpointError as e:
            problem = e.reason
        return Problem(name, problem, (remove_command(store.place, name), RUN_AGAIN)) if problem else None

    names = part_names(store, run.generation) + complete_names(store, run.generation)
    problems = [found for found in parallel_map(store.concurrency, check, names) if found is not None]
    try:
        read_items(store, run.key)
    except CheckpointError as e:
        name = items_name(run.generation)
        problems.append(Problem(name, e.reason, (remove_command(store.place, name), RUN_AGAIN)))
    return problems


def _problems_in_outputs(store: Store, run: RunFile, summary: Summary) -> Iterator[Problem]:
    """Yield the problems of the outputs of a finished run whose parts are sound."""
    latest = ItemFiles.of(summary.facts.config)
    formats = [each for each in WRITERS if each in {*latest.formats, *run.facts.formats}]
    files = replace(latest, formats=tuple(formats), beside=False)
    totals, damaged = Totals(), dict[str, list[str]]()

    def is_equal(file: ItemFile) -> tuple[str, bool]:
        return file.name, store.read(file.name) == file.content

    try:
        found = item_files(store, part_names(store, run.generation), run, files, totals)
        for name, equal in parallel_map(store.concurrency, is_equal, found):
            if not equal:
                damaged.setdefault(name.partition("/")[0], []).append(name)
    except CheckpointError as e:
        yield Problem(PARTS, e.reason, (RUN_AGAIN,))
        return
    digests = {TRANSCRIPTS: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
    yield from _problems_in_merged(store, digests)
    if latest.report and not is_report_of(store, run.key):
        yield Problem(REPORT, "missing, damaged, or of another run", (f"voxbatch report {shlex.quote(store.place)}",))
    for extension, names in damaged.items():
        text = f"{len(names):,} files are missing, changed or damaged; the first is {names[0]}"
        yield Problem(f"{extension}/", text, (f"{_merge_command(store)} --formats {extension}",))
    counts = (summary.items, summary.done, summary.failed)
    if counts != (run.items, totals.done, totals.failed) or (summary.outputs and summary.outputs != digests):
        yield Problem(SUMMARY, "its counts or checksums are not those of the parts", _made_again(store, SUMMARY))


def _problems_in_merged(store: Store, digests: Mapping[str, FileDigest]) -> Iterator[Problem]:
    """Yield the problems of the merged outputs, which should have these digests. If no item failed, failures.jsonl does
    not exist."""
    for name, digest in digests.items():
        if not store.exists(name):
            if name == TRANSCRIPTS or digest.bytes:
                yield Problem(name, "missing", (_merge_command(store),))
        elif (found := digest_of(store, name)) != digest:
            text = (
                f"changed or damaged: {found.bytes:,} bytes, and the parts give {digest.bytes:,} and another checksum"
            )
            yield Problem(name, text, _made_again(store, name))


def _made_again(store: Store, name: str) -> tuple[str, ...]:
    """Return the commands that make a merged output again from the parts."""
    return remove_command(store.place, name), _merge_command(store)


def _merge_command(store: Store) -> str:
    return f"voxbatch merge {shlex.quote(store.place)}"
