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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.config import check_beside
from voxbatch.errors import CheckpointError, StorageError
from voxbatch.formats import WRITERS
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.layout import FAILURES, REPORT, RUN_FILE, SUMMARY, item_file
from voxbatch.output.lines import parse_line, read_transcript
from voxbatch.output.merged_file import Change, MergedFile
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Ownership, Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import FileDigest, Summary, Totals, digest_of, read_whole_summary, summarise
from voxbatch.storage import DEFAULT_STORE_OPTIONS, Store, StoreOptions, is_remote, parallel_map, remove_command

if TYPE_CHECKING:
    from voxbatch.output.beside import Beside
    from voxbatch.output.item_names import ItemNames
    from voxbatch.scoring.calibration import CalibrationFile


def kinds_of(run: Run) -> dict[str, str]:
    """Return the kind of the entries of each merged output of a run."""
    return {run.transcripts: "transcript", FAILURES: "failure"}


def merge(
    store: Store,
    run: Run,
    files: ItemFiles,
    log: Log | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
    calibration: CalibrationFile | None = None,
) -> Summary:
    """Write the merged outputs that do not exist yet, and replace those of earlier runs and lists.

    Args:
        run: the run whose items are in the parts. Its facts become those of the summary.
        log: gets what was written beside the recordings, and what was not.

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
        _erase_leftovers(store, run, owner)
    recorded = latest if latest is not None and latest.is_of(run) else None
    entries, totals, kinds = Entries(store, run), Totals.of(run), kinds_of(run)
    if calibration is not None:
        from voxbatch.scoring.calibration import Estimator

        totals.estimator = Estimator(calibration)
    with contextlib.ExitStack() as stack:
        merged = {
            name: stack.enter_context(MergedFile(store, name, owner, _change_of(store, name, run, recorded)))
            for name in kinds
        }
        sinks: list[Sink] = [totals, *(_Lines(merged[name], kind) for name, kind in kinds.items())]
        report = None
        if files.report:
            from voxbatch.output.report import ReportSink

            report = ReportSink(store, run, recorded, log)
            sinks.append(report)
        since = None if run.list_number == 1 or recorded else latest.list if latest else 0
        contents = item_files(store, entries, run, files, sinks, since)
        beside = None
        if files.beside:
            from voxbatch.output.beside import Beside

            beside = Beside(store_options)
        _put_item_files(store, contents, owner, beside, log)
        _put_joined_recordings(store, run, entries, files, owner)
        digests = {run.transcripts: totals.transcripts.digest(), FAILURES: totals.failures.digest()}
        for name, digest in digests.items():
            if not merged[name].finish():
                _put_again(store, run, name, digest, entries, owner, recorded, log)
    known = ItemFiles.of(recorded.facts.config).formats if recorded else ()
    config = files.to_config(known)
    run = replace(run, facts=replace(run.facts, config={**run.facts.config, **config}))
    summary = summarise(totals, run, entries.measurements, digests)
    if report and (page := report.page(summary, entries)) is not None:
        owner.check_again()
        if not store.create(REPORT, [page], durable=False):
            store.write(REPORT, owner.checked([page]), durable=False)
    store.sync()
    return _put_summary(store, owner, summary, recorded, config)


def _check_second_pass(store: Store, run: Run) -> None:
    """Raise CheckpointError if the run is a cascade whose second pass is not complete."""
    if not run.has_second_pass:
        return
    from voxbatch.output.cascade import is_second_pass_complete

    if not is_second_pass_complete(store, run):
        reason = "the second pass of the cascade is not done yet"
        raise CheckpointError(f"{store.place}: {reason}; run again to finish it", reason)


def _put_item_files(store: Store, files: Iterator[ItemFile], owner: Ownership, beside: Beside | None, log: Log) -> None:
    """Write the files of single items that do not exist with the same content."""

    def put(file: ItemFile) -> None:
        name, content = file.name, file.content
        if content is None:
            store.delete(name, owner.check_again)
            return
        owner.check_again()
        if beside and file.beside:
            beside.write(file.beside, content, store.read(name))
        elif beside:
            beside.leave_out(file.name)
        if not store.create(name, [content], durable=False) and store.read(name) != content:
            store.write(name, owner.checked([content]), durable=False)

    for _ in parallel_map(store.concurrency, put, files):
        pass
    if beside:
        beside.sync()
        beside.report(log, store.place)


def _put_joined_recordings(store: Store, run: Run, entries: Entries, files: ItemFiles, owner: Ownership) -> None:
    """Write the files that a run that speaks makes of all recordings together."""
    if run.speaks:
        from voxbatch.output.recordings import finish

        finish(store, run, entries, files.audio, owner)


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
    with MergedFile(store, name, owner, Change.REPLACE) as file:
        for entry in entries:
            if entry.kind == kinds_of(run)[name]:
                file.add(entry.line)
        file.finish()


def _erase_leftovers(store: Store, run: Run, owner: Ownership) -> None:
    """Delete what a killed `--overwrite`, or a late process of an earlier run, has left. Nothing reads these files, so
    a store that does not permit to delete them is no obstacle."""
    from voxbatch.output.erase import erase, find_old_files

    with contextlib.suppress(StorageError):
        old = find_old_files(store, keep=run.generation)
        # After the listing: of a run that takes OUT over later, only its first list may be among the files. That run
        # creates the list again.
        owner.check()
        erase(store, old, owner)


class Sink(Protocol):
    """A consumer of the entries of a run."""

    def add(self, entry: PartEntry, line: Mapping[str, Any], /) -> None:
        """Take an entry, whose line is also given as its JSON object."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of one kind go into a merged output."""

    file: MergedFile
    kind: str

    def add(self, entry: PartEntry, line: Mapping[str, Any]) -> None:
        if entry.kind == self.kind:
            self.file.add(entry.line)


def _put_summary(
    store: Store, owner: Ownership, summary: Summary, recorded: Summary | None, config: Mapping[str, Any]
) -> Summary:
    """Create summary.json, or replace one that is damaged, or of an earlier run, or of parts that were removed. Return
    the stored summary, which another shard may have written first, with the settings of the files of single items in
    `config`."""
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
        summary = replace(stored, facts=facts, estimated_wer=summary.estimated_wer or stored.estimated_wer)
    if summary != stored:
        store.write(SUMMARY, owner.checked([_summary_bytes(summary)]))
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
    with run_file.takeover_explained(store, run):
        summary = read_whole_summary(store)
        latest = summary if summary is not None and summary.key == run.key else run
        by_default = {"report": not is_remote(store.place)}  # a run of an older version did not know it
        files = ItemFiles.of({**by_default, **latest.facts.config, **(changes or {})})
        if files.beside:
            check_beside(files.formats)
        calibrated = None
        if calibration:
            from voxbatch.scoring.calibration import calibration_for

            run.require_one_model(store.place)
            engine = run.facts.engine
            calibrated = calibration_for(calibration, engine.name, engine.model, engine.decoding, store_options)
        return merge(store, run, files, log, store_options, calibrated)


@dataclass(frozen=True, slots=True)
class ItemFile:
    """A file of one item."""

    name: str
    """Name in OUT."""
    content: bytes | None
    """None for a file that is to be deleted, because it is of an earlier transcript of the item."""
    beside: str | None = None
    """Path or address beside the recording, if the file can be there."""


def item_files(
    store: Store, entries: Entries, run: Run, files: ItemFiles, sinks: Iterable[Sink], since: int | None = None
) -> Iterator[ItemFile]:
    """Give all entries to the sinks, and yield the file of each transcript in each format.

    Args:
        since: number of the list that was merged last. Entries of later lists may be of items that had files before, in
            formats that are not written now: these files are deleted. None if this list was merged last.

    Raises:
        CheckpointError: items are missing. The error comes after the last entry.
    """
    ids, recordings = _names(store, entries, files)
    encoder = None
    if run.speaks:
        from voxbatch.output.recordings import Encoder

        encoder = Encoder(store, files.audio)
    others = [] if since is None else [form for form in WRITERS if store.exists(f"{form}/")]
    newer = set() if since is None else {part.name for part in entries.parts if part.list_number > since}
    missing = run.items
    for entry in entries:
        missing -= 1
        line = parse_line(store, entry)
        for sink in sinks:
            sink.add(entry, line)
        written = set[str]()
        if encoder and entry.audio:
            yield from (ItemFile(name, content) for name, content in encoder.files(entry, line["id"]))
        if ids and entry.kind == "transcript":
            from voxbatch.formats.document import Document

            name = ids.name(line["id"])
            document = Document(line["id"], read_transcript(line), name, files.limits)
            place = recordings.place_beside(line) if recordings else None
            for form in files.formats:
                content = WRITERS[form].write(document).encode("utf-8", "surrogateescape")
                yield ItemFile(item_file(name, form), content, place and f"{place}.{WRITERS[form].extension}")
                written.add(item_file(name, form))
        if others and entry.part in newer:
            from voxbatch.output.item_names import distinct_name, short_name

            names = [line["id"], distinct_name(line["id"])]
            if not entries.has_id(short := short_name(line["id"])):  # otherwise, it is the name of another item
                names.append(short)
            stale = {item_file(name, form) for name in names for form in others} - written
            yield from (ItemFile(name, None) for name in sorted(stale))
    if missing:
        reason = f"{missing:,} of {run.items:,} items are not done yet"
        raise CheckpointError(f"{store.place}: {reason}; run again (each shard) to finish them", reason)


def _names(store: Store, entries: Entries, files: ItemFiles) -> tuple[ItemNames | None, ItemNames | None]:
    """Return the names of the items' files by their ids, and by the paths of their recordings, if they are needed."""
    if not files.formats:
        return None, None
    from voxbatch.output.item_names import ItemNames

    folds_case = store.exists(RUN_FILE.upper())
    ids, recordings = ItemNames(folds_case=folds_case), ItemNames(folds_case=folds_case)
    for entry in entries:
        line = parse_line(store, entry)
        ids.add(line["id"])
        if files.beside:
            recordings.add(line[AUDIO_KEY])
    return ids, recordings if files.beside else None
