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
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.errors import CheckpointError
from voxbatch.log import Log
from voxbatch.output.beside import Beside
from voxbatch.output.entries import Entries, complete_entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.layout import FAILURES, REPORT, SUMMARY
from voxbatch.output.lines import parse_line
from voxbatch.output.merged_file import Change, MergedFile
from voxbatch.output.own_files import OwnFiles, key_of, sha256
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Ownership, Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import FileDigest, Summary, Totals, digest_of, read_whole_summary, summarise
from voxbatch.safe_text import counted
from voxbatch.storage import DEFAULT_STORES, Store, Stores

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
    latest = _latest_summary(store, run, owner, log)
    recorded = latest if latest is not None and latest.is_of(run) else None
    entries = complete_entries(store, run, shards, log) if shards else Entries(store, run)
    totals, kinds = Totals.of(run), kinds_of(run)
    if calibration is not None:
        from voxbatch.scoring.calibration import Estimator

        totals.estimator = Estimator(calibration)
    own = known_files(store, entries, latest)
    with contextlib.ExitStack() as stack:
        merged = {
            name: stack.enter_context(
                MergedFile(store, name, kind, owner, _change_of(store, name, latest, recorded, own))
            )
            for name, kind in kinds.items()
        }
        sinks: list[Sink] = [totals, *merged.values()]
        report = None
        if files.report:
            from voxbatch.output.report import ReportSink

            report = ReportSink(store, run, recorded, log)
            sinks.append(report)
        lost = entries.lost_corrections() if recorded is None else None
        sinks += [lost] if lost else []
        since = None if run.list_number == 1 or recorded else latest.list if latest else 0
        lines, beside = lines_of(store, entries, run, sinks), Beside(stores, own, store.place) if files.beside else None
        if files.formats or files.audio or since is not None:
            from voxbatch.output.item_writer import item_files, write_item_files

            write_item_files(store, item_files(store, run, files, entries, lines, since), owner, own, beside)
        else:
            deque(lines, maxlen=0)  # the sinks take them all
        run.products.finish(store, run, entries, files, owner, own)
        digests = {run.transcripts: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
        errors = _put_merged(store, run, merged, digests, entries, owner, own, log)
    known = ItemFiles.of(recorded.facts.config).formats if recorded else ()
    config = files.to_config(known)
    facts = recorded.facts if recorded is not None and recorded.outputs in ({}, digests) else run.facts
    run = replace(run, facts=replace(facts, config={**facts.config, **config}))
    summary = summarise(totals, run, entries.measurements, digests)
    if report and (page := report.page(summary, entries)) is not None:
        owner.check_again()
        _put_report(store, page, owner, own)
    summary = replace(summary, digests=own.number)
    store.sync()
    for told in (beside, own, lost):
        if told:
            told.report(log, _advice(store, run))
    if errors:
        raise errors[0]
    return _put_summary(store, owner, summary, recorded, config)


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


def _advice(store: Store, run: Run) -> str:
    """Return what takes in the changes of files, for the end of a message; "" if nothing does."""
    return f"; to take the changes in: {correct_command(store)}" if run.takes_corrections else ""


def correct_command(store: Store) -> str:
    """Return the command that takes in what people have changed in OUT."""
    return f"voxbatch correct {shlex.quote(store.place)}"


def _change_of(store: Store, name: str, latest: Summary | None, recorded: Summary | None, own: OwnFiles) -> Change:
    """Return how a merge writes a merged output.

    Args:
        latest: the summary of this run and of any list, if there is one. A file in a bucket that is marked as the one
            that it names is not read.
        recorded: the summary of this run and list, if the run has finished before. Then the file probably has the
            lines of this merge already.
    """
    if not store.exists(name):
        return Change.CREATE
    if recorded is None:
        named = latest.outputs.get(name) if latest else None
        is_marked = named is not None and own.has_mark(name, _same(store, name, named))
        if is_marked or own.has(name, digest_of(store, name).sha256):
            return Change.REPLACE
    return Change.KEEP


def _put_merged(
    store: Store,
    run: Run,
    merged: Mapping[str, MergedFile],
    wanted: Mapping[str, FileDigest],
    entries: Entries,
    owner: Ownership,
    own: OwnFiles,
    log: Log,
) -> list[CheckpointError]:
    """Write the merged outputs. Return an error for each that somebody has changed, and which stays as it is."""
    own.record((name, digest.sha256) for name, digest in wanted.items())
    present = [name for name, file in merged.items() if not file.finish()]
    ended = [_put_again(store, run, name, wanted[name], entries, owner, own, log) for name in present]
    errors = [error for error in ended if error is not None]
    if not errors:
        own.mark((name, mark) for name, digest in wanted.items() if (mark := _same(store, name, digest)))
    return errors


def _put_again(
    store: Store,
    run: Run,
    name: str,
    wanted: FileDigest,
    entries: Entries,
    owner: Ownership,
    own: OwnFiles,
    log: Log,
) -> CheckpointError | None:
    """Write a merged output that existed, unless it has the wanted content. If somebody has changed it, leave it, and
    return the error with which the merge ends."""
    if own.has_mark(name, _same(store, name, wanted)):
        return None
    present = digest_of(store, name)
    if present == wanted:
        return None
    if not present.bytes:
        log.warning("output", text=f"{store.place}/{name} is empty; it is written again from the parts")
    elif not own.has(name, present.sha256):
        return CheckpointError(
            f"{store.place}/{name} was changed or damaged: it has {present.bytes:,} bytes, and the run's file has "
            f"{wanted.bytes:,} and another checksum. It stays as it is{_advice(store, run)}. If it is moved away, the "
            "next run writes it again from the parts"
        )
    # An earlier list wrote it, or parts were removed since and their items were transcribed again.
    with MergedFile(store, name, kinds_of(run)[name], owner, Change.REPLACE) as file:
        for entry in entries:
            file.add(entry)
        file.finish()
    return None


def _same(store: Store, name: str, digest: FileDigest) -> str:
    """Return the mark of a merged output that has a digest: the checksum that the store keeps of it. By the mark, a
    later merge knows the file without reading it. A local file has none, and is read."""
    checksum = store.checksum(name)
    return f"{digest.sha256} is {checksum}" if checksum else ""


def _put_report(store: Store, page: bytes, owner: Ownership, own: OwnFiles) -> None:
    """Write the report, unless somebody has changed the one that is there."""
    own.record([(REPORT, sha256(page))])
    if store.create(REPORT, [page], durable=False):
        return
    from voxbatch.output.report import may_replace

    if may_replace(own, store.read(REPORT), page):
        store.write(REPORT, owner.checked([page]), durable=False)
    else:
        own.leave(REPORT)


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
