"""`voxbatch find`: print where something was said, and make a page with players."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.columns import clock
from voxbatch.cli.options import FolderOrAddress, name_value, store_options
from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.output.layout import RUN_FILE
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import Stores, is_remote

if TYPE_CHECKING:
    from voxbatch.analysis.find.search import FoundPlaces, Query

SHOWN_PLACES = 20
"""Number of places that are listed without --limit."""
PAGE_PLACES = 500
"""Number of places on a page without --limit."""


@click.command(short_help="Find where something was said.")
@click.argument("out")
@click.argument("phrases", metavar="TEXT...", nargs=-1, required=True)
@click.option("--any", "is_any", is_flag=True, help="Items with any of the texts. Default: with all of them.")
@click.option("--near", type=click.IntRange(min=0), metavar="N", help="At most N words between the texts.")
@click.option("--without", multiple=True, metavar="TEXT", help="Leave out items with this text. May be repeated.")
@click.option(
    "--where",
    "members",
    multiple=True,
    callback=name_value,
    metavar="KEY=VALUE",
    help="Items whose line in the manifest has this value, or lang=…, model=…. May be repeated.",
)
@click.option("--speaker", metavar="NAME", help="Only what this speaker said.")
@click.option("--min-confidence", type=click.FloatRange(0, 1), metavar="P", help="Only words at least so certain.")
@click.option("--max-confidence", type=click.FloatRange(0, 1), metavar="P", help="Only words at most so certain.")
@click.option("--from", "start", type=click.FloatRange(min=0), metavar="S", help="Not before this second.")
@click.option("--to", "end", type=click.FloatRange(min=0), metavar="S", help="Not after this second.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Places to list. Default: {SHOWN_PLACES}, {PAGE_PLACES} on a page, all as JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each place, for programs.")
@click.option("--html", "page", metavar="FILE", help="Write a page with players of the recordings.")
@store_options
@click.pass_context
def find(
    ctx: click.Context, /, out: str, as_json: bool, page: str | None, limit: int | None, stores: Stores, **settings: Any
) -> None:
    """Find where TEXT was said in the recordings of the run in OUT, with the time of each place.

    Each TEXT is a phrase; a * at its end stands for the rest of a word. Upper and lower case and accents do not matter.
    The first search of an OUT makes an index of its texts in your cache folder; later ones read only what is new. The
    run may still be in progress, and corrections count. As with grep, OUT may come last, and exit code 1 means that
    nothing was found.
    """
    from voxbatch.analysis.find.search import Query, find_places

    phrases = settings["phrases"]
    is_out = is_remote(phrases[-1]) or os.path.isfile(os.path.join(phrases[-1], RUN_FILE))
    if is_out and not (os.path.isdir(out) or is_remote(out)):  # in the order of grep
        out, settings["phrases"] = phrases[-1], (out, *phrases[:-1])
    out = FolderOrAddress().convert(out, ctx.command.params[0], ctx)
    query = Query(**settings)
    if query.near is not None and (query.is_any or len(query.phrases) == 1):
        raise ConfigError("--near takes two texts or more, without --any: voxbatch find OUT refund policy --near 5")
    with _index(out, stores) as database:
        matches = find_places(database, query)
        first = list(islice(matches.places, 1))
        matches = replace(matches, places=chain(first, matches.places))
        most = limit or (PAGE_PLACES if page else None if as_json else SHOWN_PLACES)
        if page:
            _write_page(matches, query, page, most or PAGE_PLACES, stores)
        elif as_json:
            for place in islice(matches.places, most):
                click.echo(json.dumps(asdict(place)))
        else:
            for line in _lines(matches, query, most or SHOWN_PLACES):
                click.echo(line)
        if not first:
            sys.exit(1)


@contextlib.contextmanager
def _index(out: str, stores: Stores) -> Iterator[sqlite3.Connection]:
    """Open the index of an OUT, up to date.

    Raises:
        ConfigError: no run was started there, or its kind has no texts.
        StorageError: OUT or the index cannot be read, or the index is damaged.
    """
    from voxbatch.analysis.find.index import index_path, open_index, update
    from voxbatch.output import run_file

    store = stores.out(out)
    run = run_file.read_existing(store)
    run.check_reader("find", store.place)
    path = index_path(store)
    try:
        with open_index(path) as database:
            update(database, path, store, run, Log())
            yield database
    except sqlite3.DatabaseError as e:
        path.unlink(missing_ok=True)
        raise StorageError(f"{path}: {e}; the index was removed, and the same command makes it again") from e


def _lines(matches: FoundPlaces, query: Query, most: int) -> Iterator[str]:
    """Yield the lines for people: how many items match, and the places of each."""
    if not matches.items:
        yield "not found; a * at the end of a text stands for the rest of a word"
        return
    yield _facts(matches, query)
    for item, places in groupby(islice(matches.places, most), lambda place: place.id):
        yield from ("", escape_controls(item))
        for place in places:
            at = "" if place.start is None else clock(place.start)
            speaker = f"{place.speaker}: " if place.speaker else ""
            begin, end = (escape_controls(text) for text in (speaker + place.before, place.after))
            yield f"{at:>9}  {begin}{click.style(escape_controls(place.match), bold=True)}{end}"
    if next(matches.places, None) is not None:
        yield from ("", f"… and more; --limit {10 * most} lists further ones, --json all")


def _facts(matches: FoundPlaces, query: Query) -> str:
    bounded = ", before the bounds for speaker, confidence and time" if query.filters_places else ""
    return f"{counted(matches.items, 'item')} found{bounded}"


def _write_page(matches: FoundPlaces, query: Query, path: str, most: int, stores: Stores) -> None:
    """Write the page, and print where it is."""
    from voxbatch.analysis import open_target
    from voxbatch.report.places import ShownItem, ShownPlace, render_places

    target, name = open_target(path, stores)
    items, number = list[ShownItem](), 0
    for (item, audio), places in groupby(islice(matches.places, most), lambda place: (place.id, place.audio)):
        shown = [
            ShownPlace(
                "" if place.start is None else clock(place.start),
                place.start or 0.0,
                place.speaker or "",
                place.before,
                place.match,
                place.after,
            )
            for place in places
        ]
        items.append(ShownItem(item, audio, shown))
        number += len(shown)
    folder = None if is_remote(path) else os.path.dirname(os.path.abspath(path))
    facts = f"{_facts(matches, query)}; {counted(number, 'place')} shown"
    target.write(name, [render_places(", ".join(query.phrases), facts, items, folder)])
    click.echo(f"page  {escape_controls(path)}")
