"""Merge the parts of all shards: transcripts and failures in the order of the list, one file per item, a report, and a
summary.

One pass over the entries feeds all of them. Only the names of the items' files need a pass before, because they depend
on all ids. If no item failed, there is no failures.jsonl.

All outputs are built from committed bytes, and created if absent. An existing file with other bytes is replaced only
while the run is the owner of OUT. So a process that merges late, twice, or at the same time as another changes nothing,
and a process of an earlier run does not change the outputs of a later one. `summary.json` is written last, when all
other files are durable: if it exists, the run is finished. It has the sizes and checksums of the merged files. Parts
are read in parallel and streamed, so memory grows neither with the manifest nor with the number of parts.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.errors import CheckpointError
from voxbatch.log import Log
from voxbatch.output.entries import Entries, complete_entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.layout import FAILURES, REPORT, SUMMARY
from voxbatch.output.lines import parse_line
from voxbatch.output.merged_file import Change, MergedFile
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Ownership, Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import FileDigest, Summary, Totals, digest_of, read_whole_summary, summarise
from voxbatch.safe_text import counted
from voxbatch.storage import DEFAULT_STORES, Store, Stores, remove_command

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import CalibrationFile


def kinds_of(run: Run) -> dict[str, str]:
    """Return the kind of the entries of each merged output of a run."""
    return {run.transcripts: "transcript", FAILURES: "failure"}


def merge(
    store: Store,
    run: Run,
    files: ItemFiles,
    log: Log | None = None,
    stores: Stores = DEFAULT_STORES,
    calibration: CalibrationFile | None = None,
    shards: int = 0,
) -> Summary:
    """Write the merged outputs that do not exist yet, and replace those of earlier runs and lists.

    Args:
        run: the run whose items are in the parts. Its facts become those of the summary.
        log: gets what was written beside the recordings, and what was not.
        shards: number of shards of the run, all of which are complete. 0 if that is not known.

    Returns:
        The summary, as stored in summary.json.

    Raises:
        CheckpointError: a shard is not finished, so items are missing; or a part is damaged; or somebody changed a
            merged output.
        TakenOverError: OUT belongs to another run now.
    """
    owner, log = Ownership(store, run), log or Log(quiet=True)
    owner.check()
    _check_second_pass(store, run)
    latest = read_whole_summary(store, log)
    if latest is not None and latest.key != run.key:
        latest = None  # an earlier run wrote it, and a killed --overwrite or a late process left it
    if latest is None and run.generation:
        from voxbatch.output.erase import erase_leftovers

        erase_leftovers(store, run, owner)
    recorded = latest if latest is not None and latest.is_of(run) else None
    entries = complete_entries(store, run, shards, log) if shards else Entries(store, run)
    totals, kinds = Totals.of(run), kinds_of(run)
    if calibration is not None:
        from voxbatch.scoring.calibration import Estimator

        totals.estimator = Estimator(calibration)
    with contextlib.ExitStack() as stack:
        merged = {
            name: stack.enter_context(MergedFile(store, name, kind, owner, _change_of(store, name, run, recorded)))
            for name, kind in kinds.items()
        }
        sinks: list[Sink] = [totals, *merged.values()]
        report = None
        if files.report:
            from voxbatch.output.report import ReportSink

            report = ReportSink(store, run, recorded, log)
            sinks.append(report)
        since = None if run.list_number == 1 or recorded else latest.list if latest else 0
        lines = lines_of(store, entries, run, sinks)
        if files.formats or files.audio or since is not None:
            from voxbatch.output.item_writer import item_files, write_item_files

            contents = item_files(store, run, files, entries, lines, since)
            write_item_files(store, contents, owner, log, stores if files.beside else None)
        else:
            deque(lines, maxlen=0)  # the sinks take them all
        run.products.finish(store, run, entries, files, owner)
        digests = {run.transcripts: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
        for name, digest in digests.items():
            if not merged[name].finish():
                _put_again(store, run, name, digest, entries, owner, recorded, log)
    known = ItemFiles.of(recorded.facts.config).formats if recorded else ()
    config = files.to_config(known)
    facts = recorded.facts if recorded is not None and recorded.outputs in ({}, digests) else run.facts
    run = replace(run, facts=replace(facts, config={**facts.config, **config}))
    summary = summarise(totals, run, entries.measurements, digests)
    if report and (page := report.page(summary, entries)) is not None:
        owner.check_again()
        if not store.create(REPORT, [page], durable=False):
            store.write(REPORT, owner.checked([page]), durable=False)
    store.sync()
    return _put_summary(store, owner, summary, recorded, config)


def _check_second_pass(store: Store, run: Run) -> None:
    """Raise CheckpointError if the run is a cascade whose second pass is not complete, or has lost a part."""
    if (second_pass := run.second_pass) and (missing := second_pass.missing(store, run)) != 0:
        reason = "the second pass of the cascade is not done yet"
        if missing:
            reason = f"a part of the second pass of the cascade is missing, with {counted(missing, 'item')}"
        raise CheckpointError(f"{store.place}: {reason}; run again to finish it", reason)


def _change_of(store: Store, name: str, run: Run, recorded: Summary | None) -> Change:
    """Return how a merge writes a merged output.

    Args:
        recorded: the summary of this run and list, if the run has finished before.
    """
    if not store.exists(name):
        return Change.CREATE
    return Change.REPLACE if _may_be_of_earlier(run, recorded) else Change.KEEP


def _may_be_of_earlier(run: Run, recorded: Summary | None) -> bool:
    """Return whether a process of an earlier list, or of an earlier run, may have written a merged output."""
    return recorded is None and (run.list_number > 1 or bool(run.generation))


def _put_again(
    store: Store,
    run: Run,
    name: str,
    wanted: FileDigest,
    entries: Entries,
    owner: Ownership,
    recorded: Summary | None,
    log: Log,
) -> None:
    """Write a merged output that existed, unless it has the wanted content.

    Args:
        recorded: the summary of this run and list, if the run has finished before.

    Raises:
        CheckpointError: somebody changed the file: no run has written it.
    """
    present = digest_of(store, name)
    if present == wanted:
        return
    is_known = recorded is not None and present == recorded.outputs.get(name)
    if not present.bytes:
        log.warning("output", text=f"{store.place}/{name} is empty; it is written again from the parts")
    elif not is_known and not _may_be_of_earlier(run, recorded):
        raise CheckpointError(
            f"{store.place}/{name} was changed or damaged: it has {present.bytes:,} bytes, and the run's file has "
            f"{wanted.bytes:,} and another checksum. Keep a copy if the change is yours; then remove the file and run "
            f"again, so that it is written again from the parts: {remove_command(store.place, name)}"
        )
    # Parts were removed since, and their items were transcribed again; or an earlier process has created the file late.
    with MergedFile(store, name, kinds_of(run)[name], owner, Change.REPLACE) as file:
        for entry in entries:
            file.add(entry)
        file.finish()


def lines_of(
    store: Store, entries: Entries, run: Run, sinks: Iterable[Sink]
) -> Iterator[tuple[PartEntry, dict[str, Any]]]:
    """Give all entries to the sinks, and yield each entry with its line as a JSON object.

    Raises:
        CheckpointError: items are missing. The error comes after the last entry.
    """
    missing = run.items
    for entry in entries:
        missing -= 1
        line = parse_line(store, entry, run.products)
        for sink in sinks:
            sink.add(entry, line)
        yield entry, line
    if missing:
        reason = f"{missing:,} of {run.items:,} items are not done yet"
        present = f"{run.items - missing:,} of {run.items:,} items"
        raise CheckpointError(f"{store.place}: {reason}; run again (each shard) to finish them", reason, present)


class Sink(Protocol):
    """A consumer of the entries of a run."""

    def add(self, entry: PartEntry, line: Mapping[str, Any], /) -> None:
        """Take an entry, whose line is also given as its JSON object."""


def _put_summary(
    store: Store, owner: Ownership, summary: Summary, recorded: Summary | None, config: Mapping[str, Any]
) -> Summary:
    """Create summary.json, or replace one that has other figures than the parts. Return the stored summary, which
    another shard may have written first, with the settings of the files of single items in `config`."""
    stored = recorded
    if stored is None and store.create(SUMMARY, [_summary_bytes(summary)]):
        stored = summary
    elif stored is None:
        stored = read_whole_summary(store)
    if (
        stored is not None
        and (stored.key, stored.list) == (summary.key, summary.list)
        and stored.outputs in ({}, summary.outputs)
    ):
        facts = replace(stored.facts, config={**stored.facts.config, **config})
        written = summary if recorded is not None else stored
        summary = replace(written, facts=facts, estimated_wer=summary.estimated_wer or stored.estimated_wer)
    if summary != stored:
        store.write(SUMMARY, owner.checked([_summary_bytes(summary)]))
    owner.check_again()  # another run may have deleted outputs meanwhile
    return summary


def _summary_bytes(summary: Summary) -> bytes:
    return json_bytes(summary.to_dict(), indent=2) + b"\n"
