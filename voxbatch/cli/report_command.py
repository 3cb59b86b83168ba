"""`voxbatch report`: write the report of a run, also while it is in progress, or a table of its items."""

from __future__ import annotations

import os

import click

from voxbatch.cli.options import FolderOrAddress, comma, store_options
from voxbatch.safe_text import escape_controls
from voxbatch.storage.options import StoreOptions


@click.command(short_help="Write a page that shows how good the transcripts are.")
@click.argument("out", type=FolderOrAddress())
@click.option("-o", "--output", metavar="FILE", help="File or address of the page. Default: report.html in OUT.")
@click.option(
    "--by",
    default="",
    callback=comma,
    metavar="KEYS",
    help="Also show the error rates by the values of these keys of the manifest, e.g. speaker,source.",
)
@click.option(
    "--export",
    metavar="FILE",
    help="Write a table with a row for each item, in place of the page: a file that ends in .csv or .parquet.",
)
@store_options
def report(out: str, output: str | None, by: tuple[str, ...], export: str | None, store_options: StoreOptions) -> None:
    """Write report.html for the run in OUT: error rates by group and duration, flags, failures, and every item with its
    text, errors and audio. Nothing in the page is loaded from elsewhere.

    A run that is not finished is reported as far as it is committed.
    """
    from voxbatch.output.export import export_items
    from voxbatch.output.report import write_report
    from voxbatch.storage import open_store

    store = open_store(out, store_options)
    if export:
        export_items(store, export, store_options)
        click.echo(escape_controls(export))
        return
    place = output or os.path.join(out, "report.html")
    write_report(store, place, by, store_options)
    click.echo(escape_controls(place))
