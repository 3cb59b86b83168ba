"""Merge the parts of all shards: transcripts and failures in manifest order, one file per item, and a summary.

If no item failed, there is no failures.jsonl.

All outputs are built from committed bytes, and created if absent. An existing file with other bytes is replaced only
while the run is the owner of OUT. So a process that merges late, twice, or at the same time as another changes nothing,
and a process of an earlier run does not change the outputs of a later one. `summary.json` is written last: if it
exists, the run is finished. It has the sizes and checksums of the merged files. Parts are read in parallel and
streamed, so memory grows neither with the manifest nor with the number of parts.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import resource
import shlex
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from voxbatch.calibration import CalibrationFile, Estimator
from voxbatch.config import check_beside
from voxbatch.errors import CheckpointError, StorageError
from voxbatch.formats import WRITERS, Document
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.beside import Beside, place_beside
from voxbatch.output.calibration_file import calibration_for
from voxbatch.output.checkpoint import PartEntry, part_names, read_headers, read_part
from voxbatch.output.erase import erase, find_old_files
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_names import ItemNames
from voxbatch.output.layout import FAILURES, REPORT, SUMMARY, TRANSCRIPTS, item_file
from voxbatch.output.lines import read_transcript
from voxbatch.output.report import is_report_of, render_report
from voxbatch.output.run_file import Ownership, RunFile, RunKey
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import FileDigest, RunningDigest, Summary, Totals, read_summary, summarise
from voxbatch.storage import DEFAULT_STORE_OPTIONS, Store, StoreOptions, is_remote, parallel_map, remove_command


def read_entries(store: Store, run: RunKey, parts: list[str] | None = None) -> Iterator[PartEntry]:
    """Yield all committed entries of a run, or those of the given parts, in manifest order. Each item comes once.

    A part is opened when the order reaches its first item. If runs with different numbers of shards both committed an
    item, the first part by name wins.

    Raises:
        CheckpointError: a part is damaged or belongs to another run.
    """
    _raise_open_file_limit()
    names = part_names(store, run.generation) if parts is None else parts
    firsts = [header.first for header in read_headers(store, names, run)]
    waiting = deque(sorted(zip(firsts, names, strict=True)))
    heap: list[tuple[int, str, PartEntry, Iterator[PartEntry]]] = []
    previous = -1
    while heap or waiting:
        while waiting and (not heap or waiting[0][0] <= heap[0][0]):
            _, name = waiting.popleft()
            _advance(heap, name, read_part(store, name, run))
        _, name, entry, rest = heapq.heappop(heap)
        _advance(heap, name, rest)
        if entry.index != previous:
            previous = entry.index
            yield entry


def _advance(heap: list[tuple[int, str, PartEntry, Iterator[PartEntry]]], name: str, part: Iterator[PartEntry]) -> None:
    """Push the next entry of a part onto the heap, if the part has another."""
    entry = next(part, None)
    if entry is not None:
        heapq.heappush(heap, (entry.index, name, entry, part))


def merge(
    store: Store,
    run: RunFile,
    files: ItemFiles,
    log: Log | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
    calibration: CalibrationFile | None = None,
) -> Summary:
    """Write the merged outputs that do not exist yet, and replace those of earlier runs.

    Args:
        run: the run whose items are in the parts. Its facts become those of the summary.
        files: the files of single items.
        log: gets what was written beside the recordings, and what was not.
        store_options: how the places of the recordings are accessed, to write beside them.
        calibration: the calibration with which the WER is estimated.

    Returns:
        The summary, as stored in summary.json.

    Raises:
        CheckpointError: a shard is not finished, so items are missing; or a part is damaged; or somebody changed a
            merged output.
        TakenOverError: OUT belongs to another run now.
    """
    owner, log = Ownership(store, run.key), log or Log(quiet=True)
    owner.check()
    recorded = read_summary(store)
    if recorded is not None and not recorded.is_of(run.key):
        recorded = None  # an earlier run wrote it, and a killed --overwrite or a late process left it
    if recorded is None and run.generation:
        _erase_leftovers(store, run, owner)
    parts = part_names(store, run.generation)  # list once: a later part, from a run with other shards, adds no item
    totals = Totals(estimator=None if calibration is None else Estimator(calibration))
    beside = Beside(store_options) if files.beside else None

    def put(file: ItemFile) -> None:
        owner.check_again()
        name, content = file.name, file.content
        if beside and file.beside:
            beside.write(file.beside, content, store.read(name))
        elif beside:
            beside.leave_out(file.name)
        if not store.create(name, [content], durable=False) and store.read(name) != content:
            owner.check_again()
            store.write(name, [content])

    for _ in parallel_map(store.concurrency, put, item_files(store, parts, run, files, totals)):
        pass
    if beside:
        beside.report(log, store.place)
    assert totals.done + totals.failed == run.items
    digests = {TRANSCRIPTS: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
    for name, digest in digests.items():
        _put_merged(store, name, digest, run.key, parts, owner, recorded)
    known = ItemFiles.of(recorded.facts.config).formats if recorded else ()
    config = files.to_config(known)
    run = replace(run, facts=replace(run.facts, config={**run.facts.config, **config}))
    summary = summarise(totals, run, read_headers(store, parts, run.key), digests)
    _put_report(store, run, files, parts, summary, recorded, owner, log)
    return _put_summary(store, owner, summary, recorded, config)


def _put_report(
    store: Store,
    run: RunFile,
    files: ItemFiles,
    parts: list[str],
    summary: Summary,
    recorded: Summary | None,
    owner: Ownership,
    log: Log,
) -> None:
    """Write the report if it is wanted, unless nothing has changed since it was written. A run whose report cannot be
    drawn is finished all the same."""
    is_unchanged = recorded is not None and recorded.outputs == summary.outputs
    if not files.report or (is_unchanged and is_report_of(store, run.key)):
        return
    try:
        page = render_report(store, run, parts, summary)
    except (ArithmeticError, AttributeError, ImportError, LookupError, RecursionError, TypeError, ValueError) as e:
        command = f"voxbatch report {shlex.quote(store.place)}"
        log.warning("report", text=f"{REPORT} is not written: {type(e).__name__}: {e}; to try again: {command}")
        return
    owner.check_again()
    if not store.create(REPORT, [page], durable=False):
        owner.check()
        store.write(REPORT, [page])


def _put_merged(
    store: Store,
    name: str,
    wanted: FileDigest,
    run: RunKey,
    parts: list[str],
    owner: Ownership,
    recorded: Summary | None,
) -> None:
    """Write a merged output, unless it exists with the wanted content. If no item failed, there is no failures.jsonl:
    many readers of JSON lines refuse an empty file."""
    kind, is_left_out = _KINDS[name], name == FAILURES and not wanted.bytes
    if not is_left_out and not store.exists(name) and store.create(name, _lines(store, run, parts, kind, owner)):
        return
    if _is_other_content(store, name, wanted, run, recorded):
        if is_left_out:
            owner.check_again()
            store.delete(name)
        else:
            store.write(name, _lines(store, run, parts, kind, owner))


_KINDS = {TRANSCRIPTS: "transcript", FAILURES: "failure"}
"""The kind of the entries of each merged output."""


def _erase_leftovers(store: Store, run: RunFile, owner: Ownership) -> None:
    """Delete what a killed `--overwrite`, or a late process of an earlier run, has left. Nothing reads these files, so
    a store that does not permit to delete them is no obstacle. Parts that the run has still to take over stay."""
    if any(part_names(store, each.key.generation) for each in run.continues):
        return
    with contextlib.suppress(StorageError):
        old = find_old_files(store, keep=run.generation)
        owner.check()  # after the listing, so that no file of a run that takes OUT over later is in the list
        erase(store, old, owner)


def _lines(store: Store, run: RunKey, parts: list[str], kind: str, owner: Ownership) -> Iterator[bytes]:
    """Yield the lines of a merged output. The owner is checked after the last line, just before the file appears."""
    for entry in read_entries(store, run, parts):
        if entry.kind == kind:
            yield entry.line + b"\n"
    owner.check_again()


def _is_other_content(store: Store, name: str, wanted: FileDigest, run: RunKey, recorded: Summary | None) -> bool:
    """Return whether a merged output has other content than this merge would write, and must be replaced.

    Args:
        recorded: the summary of this run, if the run has finished before.

    Raises:
        CheckpointError: somebody changed the file: no run has written it.
    """
    found = digest_of(store, name)
    if found == wanted:
        return False
    if recorded is None and run.generation:
        return True  # a process of an earlier run wrote it late
    if recorded is not None and found == recorded.outputs.get(name):
        return True  # parts were removed since, and their items were transcribed again
    raise CheckpointError(
        f"{store.place}/{name} was changed or damaged: it has {found.bytes:,} bytes, and the run's file has "
        f"{wanted.bytes:,} and another checksum. Keep a copy if the change is yours; then remove the file and run "
        f"again, so that it is written again from the parts: {remove_command(store.place, name)}"
    )


def digest_of(store: Store, name: str) -> FileDigest:
    """Return the digest of a file in OUT. A missing file has the digest of an empty one."""
    digest = RunningDigest()
    if store.exists(name):
        for line in store.lines(name):
            digest.add(line)
    return digest.digest()


def _put_summary(
    store: Store, owner: Ownership, summary: Summary, recorded: Summary | None, config: Mapping[str, Any]
) -> Summary:
    """Create summary.json, or replace that of an earlier run or of parts that were removed. Return the stored summary,
    which another shard may have written first, with the settings of the files of single items in `config`."""
    stored = recorded
    if stored is None and not store.create(SUMMARY, [_summary_bytes(summary)]):
        stored = read_summary(store)
    if stored is not None and stored.is_of(summary.key) and stored.outputs in ({}, summary.outputs):
        facts = replace(stored.facts, config={**stored.facts.config, **config})
        summary = replace(stored, facts=facts, estimated_wer=summary.estimated_wer or stored.estimated_wer)
    if stored is not None and summary != stored:
        owner.check_again()
        store.write(SUMMARY, [_summary_bytes(summary)])
    owner.check_again()  # another run may have deleted outputs meanwhile
    return summary


def _summary_bytes(summary: Summary) -> bytes:
    return json_bytes(summary.to_dict(), indent=2) + b"\n"


def merge_again(
    store: Store,
    changes: Mapping[str, Any] | None = None,
    log: Log | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
    calibration: str | None = None,
) -> Summary:
    """Merge the parts of the run that is recorded in OUT, and write further files of single items.

    Args:
        changes: settings of ItemFiles that differ from those of the latest merge, or else of the run, by their names in
            a config.
        log, store_options: see `merge`.
        calibration: file of a calibration, to estimate the WER. None keeps the estimate of the latest merge.

    Raises:
        ConfigError: no run was started there, the calibration is damaged or of another model, or the formats cannot be
            beside recordings.
        CheckpointError, TakenOverError: see `merge`.
    """
    run = run_file.read_existing(store)
    with run_file.takeover_explained(store, run.key):
        summary = read_summary(store)
        latest = summary if summary is not None and summary.is_of(run.key) else run
        by_default = {"report": not is_remote(store.place)}  # a run of an older version did not know it
        files = ItemFiles.of({**by_default, **latest.facts.config, **(changes or {})})
        if files.beside:
            check_beside(files.formats)
        calibrated = calibration_for(calibration, run.facts.engine, store_options) if calibration else None
        return merge(store, run, files, log, store_options, calibrated)


def _raise_open_file_limit() -> None:
    """Raise the limit of open files to the most that this user may have. The parts of all shards may be open at a time,
    and a shell's usual limit is too low for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class ItemFile:
    """A file of one item."""

    name: str
    """Name in OUT."""
    content: bytes
    beside: str | None
    """Path or address beside the recording, if the file can be there."""


def item_files(store: Store, parts: list[str], run: RunFile, files: ItemFiles, totals: Totals) -> Iterator[ItemFile]:
    """Add all entries to the totals, and yield the file of each transcript in each format.

    Raises:
        CheckpointError: items are missing. The error comes after the last entry.
    """
    names = ItemNames(_values(store, parts, run, "id")) if files.formats else None
    recordings = ItemNames(_values(store, parts, run, AUDIO_KEY)) if files.beside else None
    missing, next_index = 0, 0
    for entry in read_entries(store, run.key, parts):
        if entry.index >= run.items:
            raise CheckpointError(f"{store.place}: a part has item {entry.index} of a manifest of {run.items:,} items")
        missing += entry.index - next_index
        next_index = entry.index + 1
        line = json.loads(entry.line)
        if entry.kind == "failure":
            totals.add_failure(line, run.language)
            totals.failures.add(entry.line + b"\n")
            continue
        totals.add_transcript(line, run.language)
        totals.transcripts.add(entry.line + b"\n")
        if names:
            name = names.name(line["id"])
            document = Document(line["id"], read_transcript(line), name, files.limits)
            place = place_beside(line, recordings) if recordings else None
            for form in files.formats:
                content = WRITERS[form].write(document).encode("utf-8", "surrogateescape")
                yield ItemFile(item_file(name, form), content, place and f"{place}.{WRITERS[form].extension}")
    missing += run.items - next_index
    if missing:
        reason = f"{missing:,} of {run.items:,} items are not done yet"
        raise CheckpointError(f"{store.place}: {reason}; run again (each shard) to finish them", reason)


def _values(store: Store, parts: list[str], run: RunFile, key: str) -> Iterator[str]:
    """Yield a value of the lines of all items."""
    for entry in read_entries(store, run.key, parts):
        yield json.loads(entry.line)[key]
