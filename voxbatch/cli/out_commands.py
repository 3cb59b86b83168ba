"""The commands of an OUT: `status`; `merge`; and `report`, which writes a page about the run, also while it is in
progress, or a table of its items."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from voxbatch.analysis.dataset_options import DatasetOptions
from voxbatch.cli.commands import WithFormats
from voxbatch.cli.options import (
    FolderOrAddress,
    PathOrAddress,
    combined,
    comma,
    language,
    merge_options,
    setting_option,
    store_options,
    video_options,
)
from voxbatch.config import check_formats, checked_limits
from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import in_words
from voxbatch.log import Log
from voxbatch.safe_text import counted, escape_controls
from voxbatch.settings import settings_of
from voxbatch.storage import COPIED_OUT, Stores

if TYPE_CHECKING:
    from voxbatch.analysis.status import Status

_RESUMES = "the same command resumes the run"
WATCH_S = 10.0
"""Seconds between two looks of `status --watch`."""


@click.command()
@click.argument("out", type=FolderOrAddress())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option(
    "--verify",
    is_flag=True,
    help="Check the parts and the outputs; show what is damaged, and the commands that repair it. Exit code 1 if "
    "there is a problem.",
)
@click.option("--watch", is_flag=True, help=f"Show it again every {WATCH_S:.0f} seconds, until the run is finished.")
@store_options
def status(out: str, as_json: bool, verify: bool, watch: bool, stores: Stores) -> None:
    """Show the progress of a run: items, failures, WER, time left."""
    from voxbatch.analysis.status import StatusReader
    from voxbatch.output.verify import verify as verify_out

    store = stores.out(out)
    problems = verify_out(store) if verify else []
    reader = StatusReader(store)
    progress: Status | None = None
    while watch and not (progress := reader.read()).finished:
        if sys.stdout.isatty():
            click.clear()
        lines = [json.dumps(progress.to_dict())] if as_json else _progress_lines(out, progress)
        for line in lines:
            click.echo(escape_controls(line))
        time.sleep(WATCH_S)
    try:
        progress = progress or reader.read()
    except CheckpointError:
        if not problems:  # otherwise the error is among them
            raise
    if as_json:
        listed = {"problems": [asdict(problem) for problem in problems]} if verify else {}
        click.echo(json.dumps({**(progress.to_dict() if progress else {}), **listed}))
        sys.exit(1 if problems else 0)
    lines = [] if progress is None else list(_progress_lines(out, progress))
    for problem in problems:
        lines.append(f"problem: {problem.file}: {problem.problem}")
        lines += [f"  repair: {step}" for step in problem.repair]
    if verify and not problems:
        lines.append("verified: no problem found")
    for line in lines:
        click.echo(escape_controls(line))
    sys.exit(1 if problems else 0)


def _progress_lines(out: str, progress: Status) -> Iterator[str]:
    """Yield the lines about a run for people."""
    from voxbatch.display import format_duration

    state = "finished" if progress.finished else "not finished"
    yield f"{out}: {progress.committed:,} of {progress.items:,} items committed, {state}"
    kinds = in_words(progress.failures_by_kind)
    done = progress.committed - progress.failed
    rate = "" if progress.wer is None else f", WER {progress.wer:.2%}"
    yield f"{done:,} done + {progress.failed:,} failed{f' ({kinds})' if kinds else ''}{rate}"
    if progress.last_commit is not None:
        yield f"last commit {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(progress.last_commit))}"
    is_at_work = any(worker.lives for worker in progress.workers)
    if not progress.finished and progress.remaining_s is not None:
        audio_s = progress.remaining_audio_s
        audio = "" if audio_s is None else f"about {format_duration(audio_s)} of audio left, "
        until = "from the last commit on" if is_at_work else "of work"
        yield f"{audio}about {format_duration(progress.remaining_s)} {until}, at the speed so far"
    if progress.second_items is not None:
        yield f"second pass: {progress.second_committed:,} of {counted(progress.second_items, 'item')} committed"
    for shard in progress.shards:
        sizes = f"{counted(shard.items, 'item')} in {counted(shard.parts, 'part')}"
        yield f"shard {shard.shard}: {sizes}, {'complete' if shard.complete else 'open'}"
    if not progress.finished:
        yield from _worker_lines(progress)


def _worker_lines(progress: Status) -> Iterator[str]:
    """Yield the lines about the processes at work on a run that is not finished, and about those that were killed."""
    from voxbatch.output.lease import heartbeat_in_words, process_in_words

    for worker in progress.workers:
        shard = "" if worker.shard.endswith("/1") else f", shard {worker.shard}"
        name = f"{process_in_words(worker.pid, worker.host, worker.since)}{shard}"
        heartbeat = heartbeat_in_words(worker.heartbeat)
        if worker.by_clock:
            heartbeat += " by the clock of this machine"
        if worker.lives:
            yield f"at work: {name}, {heartbeat}"
        elif worker.by_clock:
            yield f"probably not at work: {name}, {heartbeat}; if it was killed, {_RESUMES}"
        else:
            yield f"not at work: {name} was killed; {_RESUMES}"
    if not progress.workers:
        yield f"no process works on it; {_RESUMES}"


@click.command(cls=WithFormats, short_help="Merge OUT by hand, or write more formats later.")
@click.argument("out", type=FolderOrAddress())
@merge_options
@video_options
@store_options
def merge(
    out: str,
    formats: tuple[str, ...],
    beside: bool | None,
    report: bool | None,
    calibration: str | None,
    videos: str,
    stores: Stores,
    **limits: Any,
) -> None:
    """Merge the parts in OUT by hand, or write more formats later. The last shard of a run merges by itself.

    An option that is not given keeps the value of the last merge.
    """
    from voxbatch.cli.outcome import print_outcome
    from voxbatch.cli.session import EXIT_SOME_FAILED, write_copies
    from voxbatch.output.merge_again import merge_again
    from voxbatch.output.ownership import existing_run

    check_formats(formats)
    values = {"formats": formats or None, "beside": beside, "report": report, **checked_limits(limits)}
    changes = {name: value for name, value in values.items() if value is not None}
    store, log = stores.out(out, COPIED_OUT), Log()
    with existing_run(store, "merge", log):
        summary = merge_again(store, changes, log, stores, calibration)
        if videos or any(limit is not None for limit in limits.values()):
            write_copies(out, stores, videos, log)
    print_outcome(summary, out, stores)
    sys.exit(EXIT_SOME_FAILED if summary.failed_in_work else 0)


@click.command(short_help="Write a page that shows how good the transcripts are.")
@click.argument("out", type=PathOrAddress(exists=True))
@click.option("-o", "--output", metavar="FILE", help="File or address of the page. Default: report.html in OUT.")
@click.option(
    "--ref", type=PathOrAddress(exists=True), help="References, if OUT is a file or folder as `score` takes it."
)
@click.option("--language", metavar="LANG", callback=language, help="Language of items that name none, e.g. en.")
@click.option(
    "--by",
    default="",
    callback=comma,
    metavar="KEYS",
    help="Also score each value of these keys of the manifest, e.g. speaker,source.",
)
@click.option(
    "--export",
    metavar="FILE",
    help="Write a table of the items, .csv or .parquet, in place of the page.",
)
@store_options
def report(
    out: str,
    output: str | None,
    ref: str | None,
    language: str | None,
    by: tuple[str, ...],
    export: str | None,
    stores: Stores,
) -> None:
    """Write report.html for the run in OUT: error rates by group and duration, flags, failures, and every item with its
    text, errors and audio. Nothing in the page is loaded from elsewhere.

    A run that is not finished is reported as far as it is committed. OUT may also be a file or folder with transcripts
    and references, or with transcripts beside --ref, as `voxbatch score` takes them; the page is then beside it.
    """
    from voxbatch.analysis.export import export_items
    from voxbatch.analysis.report import write_file_report, write_report
    from voxbatch.analysis.score import is_run

    if not export and (ref or not (is_run(out) or os.path.isdir(out))):
        place = output or f"{out.rstrip('/')}.html"
        write_file_report(out, ref, place, by, language, stores)
        click.echo(escape_controls(place))
        return
    store = stores.out(out)
    if export:
        export_items(store, export, stores)
        click.echo(escape_controls(export))
        return
    place = output or os.path.join(out, "report.html")
    write_report(store, place, by, stores)
    click.echo(escape_controls(place))


@click.command(short_help="Write a run as a data set for training.")
@click.argument("out", type=FolderOrAddress())
@click.option("-o", "--output", required=True, metavar="PLACE", help="Folder or address of the data set.")
@combined(*map(setting_option, settings_of(DatasetOptions).values()))
@store_options
def export(out: str, output: str, stores: Stores, **settings: Any) -> None:
    """Write the transcripts of the run in OUT and their audio as a data set for training: cuts of 3 to 30 s (or
    others), in FLAC at 16 kHz, in shards that WebDataset, NeMo, Lhotse or Hugging Face's datasets read.

    If it is killed, the same command continues. No shard is written twice.
    """
    from voxbatch.analysis.dataset import export_dataset
    from voxbatch.display import format_duration

    exported = export_dataset(stores.out(out), output, DatasetOptions(**settings), stores)
    for split, shards in exported.shards.items():
        cuts, seconds = counted(exported.cuts[split], "cut"), exported.seconds[split]
        amount = f"{seconds / 3600:,.2f} h" if seconds >= 3600 else format_duration(seconds)
        click.echo(f"{split:<5}  {counted(shards, 'shard')}, {cuts}, {amount}")
    for reason, count in exported.left_out.most_common():
        click.echo(f"left out {counted(count, 'cut')} {reason}")
    if exported.unnamed:
        text = f"--split-by speaker divides {counted(exported.unnamed, 'cut')} without a speaker by recording"
        click.echo(f"Warning: {text}; run with --speakers, or give the manifest's rows a `speaker`", err=True)
    for name in exported.damaged:
        click.echo(escape_controls(f"{name} was damaged, and is written again"))
    click.echo(escape_controls(output))
