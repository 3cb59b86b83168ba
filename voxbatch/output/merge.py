"""Merge the parts of all shards: transcripts and failures in the order of the list, one file per item, a report, and a
summary.

One pass over the entries feeds all of them. Only the names of the items' files need a pass before, because they depend
on all ids. Parts are read in parallel and streamed, so memory grows neither with the manifest nor with the number of
parts.

All outputs are built from committed bytes, and created if absent. An existing file with other bytes is replaced only
while the run is the owner of OUT. So a process that merges late, twice, or at the same time as another changes nothing,
and a process of an earlier run does not change the outputs of a later one. `summary.json` is written last, when all
other files are durable: if it exists, the run is finished. It has the sizes and checksums of the merged files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.errors import CheckpointError
from voxbatch.log import Log
from voxbatch.output.beside import Beside
from voxbatch.output.entries import Entries, complete_entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.layout import SUMMARY
from voxbatch.output.lines import parse_line
from voxbatch.output.merged_outputs import MergedOutputs, correction_advice, put_report
from voxbatch.output.own_files import OwnFiles, key_of
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import Summary, read_whole_summary, summarise
from voxbatch.output.totals import Totals
from voxbatch.safe_text import counted
from voxbatch.storage import DEFAULT_STORES, Store, Stores

if TYPE_CHECKING:
    from voxbatch.output.report import ReportSink
    from voxbatch.scoring.calibration import CalibrationFile


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
    latest = _latest_summary(store, run, owner, log)
    recorded = latest if latest is not None and latest.is_of(run) else None
    entries = complete_entries(store, run, shards, log) if shards else Entries(store, run)
    own = known_files(store, entries, latest)
    totals = Totals.of(run, calibration)
    beside = Beside(stores, own, store.place) if files.beside else None
    report = _report_sink(store, run, recorded, log) if files.report else None
    lost = entries.lost_corrections() if recorded is None else None
    with MergedOutputs(store, run, owner, own, latest) as outputs:
        sinks: list[Sink | None] = [totals, outputs, report, lost]
        lines = lines_of(store, entries, run, [sink for sink in sinks if sink is not None])
        since = None if run.list_number == 1 or recorded else latest.list if latest else 0
        if files.formats or files.audio or since is not None:
            from voxbatch.output.item_writer import item_files, write_item_files

            write_item_files(store, item_files(store, run, files, entries, lines, since), owner, own, beside)
        else:
            deque(lines, maxlen=0)  # the sinks take them all
        run.products.finish(store, run, entries, files, owner, own)
        digests = totals.digests(run)
        errors = outputs.finish(digests, entries, log)
    config = files.to_config(ItemFiles.of(recorded.facts.config).formats if recorded else ())
    facts = recorded.facts if recorded is not None and recorded.outputs in ({}, digests) else run.facts
    run = replace(run, facts=replace(facts, config={**facts.config, **config}))
    summary = summarise(totals, run, entries.measurements, digests)
    if report and (page := report.page(summary, entries)) is not None:
        put_report(store, page, owner, own)
    summary = replace(summary, digests=own.number)
    store.sync()
    for told in (beside, own, lost):
        if told:
            told.report(log, correction_advice(store, run))
    if errors:
        raise errors[0]
    return _put_summary(store, owner, summary, recorded, config)


def _report_sink(store: Store, run: Run, recorded: Summary | None, log: Log) -> ReportSink:
    """Return the report of a merge. Its modules are imported here, because most runs have none."""
    from voxbatch.output.report import ReportSink

    return ReportSink(store, run, recorded, log)


def _latest_summary(store: Store, run: Run, owner: Ownership, log: Log) -> Summary | None:
    """Return the summary that the run has written last. Without one, delete what an earlier run has left."""
    latest = read_whole_summary(store, log)
    if latest is not None and latest.key == run.key:
        return latest
    # An earlier run wrote it, and a killed --overwrite or a late process left it.
    if run.generation:
        from voxbatch.output.erase import erase_leftovers

        erase_leftovers(store, run, owner)
    return None


def known_files(store: Store, entries: Entries, latest: Summary | None) -> OwnFiles:
    """Return the files that a merge may replace: those of the logs of digests, those from which corrections were taken,
    and the merged outputs of the latest summary."""
    own = OwnFiles(store, latest.digests if latest else 0)
    for keys, number in entries.corrections.taken_files if entries.corrections else ():
        own.know(keys, number)
    if latest is not None:
        own.know((key_of(name, digest.sha256) for name, digest in latest.outputs.items()), max(1, latest.digests))
    return own


def _check_second_pass(store: Store, run: Run) -> None:
    """Raise CheckpointError if the run is a cascade whose second pass is not complete, or has lost a part."""
    if (second_pass := run.second_pass) and (missing := second_pass.missing(store, run)) != 0:
        reason = "the second pass of the cascade is not done yet"
        if missing:
            reason = f"a part of the second pass of the cascade is missing, with {counted(missing, 'item')}"
        raise CheckpointError(f"{store.place}: {reason}; run again to finish it", reason)


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
        estimated = summary.estimated_wer or stored.estimated_wer
        summary = replace(written, facts=facts, estimated_wer=estimated, digests=summary.digests)
    if summary != stored:
        store.write(SUMMARY, owner.checked([_summary_bytes(summary)]))
    owner.check_again()  # another run may have deleted outputs meanwhile
    return summary


def _summary_bytes(summary: Summary) -> bytes:
    return json_bytes(summary.to_dict(), indent=2) + b"\n"
