"""`voxbatch flags` lists the transcripts to distrust, and `voxbatch calibrate` makes a calibration of confidences."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from voxbatch.cli.columns import clock, line_width, table
from voxbatch.cli.options import FolderOrAddress, PathOrAddress, store_options
from voxbatch.errors import ConfigError
from voxbatch.failure_kinds import in_words
from voxbatch.records import FLAG_KINDS, by_stretch
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import Stores

if TYPE_CHECKING:
    from voxbatch.analysis.flagged import Flagged, FlaggedItem
    from voxbatch.records import Flag

SHOWN_ITEMS = 20
"""Number of items that are listed without --limit."""


@click.command(short_help="List the transcripts to distrust, the worst first.")
@click.argument("place", metavar="OUT", type=PathOrAddress(exists=True))
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help=f"Items to list. Default: {SHOWN_ITEMS}.")
@click.option("--kind", metavar="KIND", help="Only flags of this kind, e.g. lost_speech.")
@click.option("--warnings", is_flag=True, help="List the warnings of all items in place of the flags.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs, with all items.")
@store_options
def flags(place: str, limit: int | None, kind: str | None, warnings: bool, as_json: bool, stores: Stores) -> None:
    """List the transcripts of the run in OUT that have flags, the worst first, with the reason and the place. OUT may
    also be a transcripts.jsonl.

    The order is by severity: the weight of the kind times the seconds of the stretch. The run may still be in progress.
    """
    from voxbatch.analysis.flagged import find_flagged, warnings_of
    from voxbatch.analysis.score import is_run

    if kind not in (None, *FLAG_KINDS):
        raise ConfigError(f"--kind {kind!r} is no kind of flag; known are {', '.join(FLAG_KINDS)}")
    shown = SHOWN_ITEMS if limit is None and not as_json else limit
    folder, name = (place, None) if os.path.isdir(place) or is_run(place) else os.path.split(place)
    store = stores.out(folder or ".")
    if warnings:
        for item_id, texts in warnings_of(store, name):
            click.echo(escape_controls(f"{item_id}: {'; '.join(texts)}"))
        return
    flagged = find_flagged(store, shown, kind, name)
    if as_json:
        heads = {"items": flagged.items, "transcripts": flagged.transcripts, "flags": flagged.counts.to_dict()}
        listed = [item.to_dict() for item in flagged.worst]
        click.echo(json.dumps({**heads, "worst": listed}))
        return
    for line in _lines(flagged, place):
        click.echo(escape_controls(line))


@click.command(short_help="Make a calibration of word confidences from a run with references.")
@click.argument("out", type=FolderOrAddress())
@click.option("-o", "path", default="calibration.json", show_default=True, metavar="FILE", help="File to write.")
@click.option("--cluster", metavar="KEY", help="Key of the manifest whose values belong together, e.g. speaker.")
@store_options
def calibrate(out: str, path: str, cluster: str | None, stores: Stores) -> None:
    """Learn from the run in OUT, which has references, how often words of each confidence are right.

    Runs of the same model without references then estimate their word error rate: voxbatch run --calibration FILE, or
    voxbatch merge OUT --calibration FILE for a finished run.

    With --cluster, the interval of an estimate allows for other speakers, for example, and not only for other
    recordings of the same speakers.
    """
    from voxbatch.analysis.calibrate import calibrate_run, write_calibration

    made = calibrate_run(stores.out(out), cluster)
    write_calibration(made, path, stores)
    clusters = f" in {made.clusters:,} clusters" if cluster else ""
    words = f"{made.words:,} words of which {made.wrong:,} are wrong"
    rows = [["confidence of a word", "words", "mean", "right"]]
    for part in made.reliability:
        right = f"{part.right / part.words:.1%}"
        rows.append([f"{part.least:.2f} to {part.most:.2f}", f"{part.words:,}", f"{part.mean:.1%}", right])
    lines = (
        f"{counted(made.items, 'item')}{clusters}, {words}, WER {made.wer:.2%}",
        f"languages {', '.join(made.languages)}; engine {made.engine}, model {made.model}",
        *table(rows, line_width()),
        f"calibration  {path}",
    )
    for line in lines:
        click.echo(escape_controls(line))


def _lines(flagged: Flagged, out: str) -> Iterator[str]:
    """Yield the lines for people: how many items are flagged, the worst ones, and how to list the others."""
    flag_kinds = sorted(flagged.counts.by_kind.items(), key=lambda pair: -pair[1])
    by_kind = f": {', '.join(f'{kind} {count:,}' for kind, count in flag_kinds)}" if flag_kinds else ""
    yield from _wrapped(f"{flagged.counts.items:,} of {counted(flagged.transcripts, 'transcript')} flagged{by_kind}")
    if flagged.transcripts < flagged.items:
        failed = flagged.failures_by_kind.total()
        kinds = in_words(dict(flagged.failures_by_kind.most_common()))
        open_items = flagged.items - flagged.transcripts - failed
        counts = f"{counted(failed, 'item')} failed{f' ({kinds})' if kinds else ''}, {open_items:,} not done yet"
        yield from (*_wrapped(counts), f"  see: voxbatch status {shlex.quote(out)}")
    for item in flagged.worst:
        yield ""
        yield from _item(item)
    if left := flagged.counts.items - len(flagged.worst):
        yield ""
        yield f"… and {left:,} more; --limit {flagged.counts.items} lists all"


def _item(item: FlaggedItem) -> Iterator[str]:
    yield item.id
    for flag in by_stretch(item.flags):
        yield from _wrapped(f"  {flag.kind}{_place(flag)}: {flag.reason}")
    text = textwrap.shorten(item.excerpt, line_width() - 4, placeholder=" …")
    yield f"  “{text}”" if text else "  (no text)"


def _place(flag: Flag) -> str:
    """Return the stretch of a flag for people: " at 1:02.5 to 1:15.0"; "" for the whole recording."""
    if flag.start is None or flag.end is None:
        return ""
    return f" at {clock(flag.start)} to {clock(flag.end)}"


def _wrapped(text: str) -> Iterator[str]:
    width = line_width()
    yield from textwrap.wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
