"""`voxbatch forget`: erase items from an OUT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from voxbatch.cli.options import FolderOrAddress, store_options
from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.manifest.recording_path import LIST_MARK
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import COPIED_OUT, Stores

if TYPE_CHECKING:
    from voxbatch.output.run_file import Run
    from voxbatch.storage import Store
    from voxbatch.works.forget.traces import Traces


@click.command(short_help="Erase items from OUT, because somebody asks for it.")
@click.argument("out", type=FolderOrAddress())
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--dry-run", is_flag=True, help="Show what would be erased, and change nothing.")
@store_options
def forget(out: str, ids: tuple[str, ...], dry_run: bool, stores: Stores) -> None:
    """Erase items from the run in OUT: texts, speakers, names of recordings, files in all formats and beside the
    recordings. ID is an `id` or `audio_filepath` of transcripts.jsonl or failures.jsonl, or @FILE with one a line.

    \b
    Examples:
      voxbatch forget out calls/0017.wav --dry-run
      voxbatch forget out @ids.txt

    The items count as failures of the kind "forgotten". Further runs do not transcribe them. If it is killed, the same
    command continues. The recordings themselves stay, and the items in other OUTs: the last lines say how to find them
    in a redacted copy.
    """
    from voxbatch.cli.outcome import print_outcome
    from voxbatch.output.ownership import existing_run
    from voxbatch.works.forget.erasing import erase
    from voxbatch.works.forget.traces import find

    names, store, log = [*_names(ids)], stores.out(out, COPIED_OUT), Log()
    with existing_run(store, "" if dry_run else "forget", log) as run:
        traces = find(store, run, stores, names)
        if dry_run:
            for line in (*_lines(traces, run), *_elsewhere(store, traces)):
                click.echo(escape_controls(line))
            return
        summary = erase(store, run, traces, stores, log)
    before = "" if traces.parts or traces.positions else " before; nothing of it was left in the parts"
    click.echo(f"{counted(len(traces.ids), 'item')} forgotten{before}")
    if summary is not None:
        print_outcome(summary, out, stores, shows_items=False)
    else:
        click.echo("the run is not finished; the command that started it resumes it and writes the outputs")
    for line in _elsewhere(store, traces):
        click.echo(line)


def _names(ids: Sequence[str]) -> Iterator[str]:
    """Yield the names of items, also those in files."""
    for name in ids:
        if not name.startswith(LIST_MARK):
            yield name
            continue
        try:
            lines = Path(name.removeprefix(LIST_MARK)).read_text("utf-8", "surrogateescape").splitlines()
        except OSError as e:
            raise ConfigError(f"{name}: the list of IDs cannot be read: {e.strerror}; give @FILE, or an ID") from e
        yield from filter(None, lines)


def _lines(traces: Traces, run: Run) -> Iterator[str]:
    """Yield the lines about what would be erased."""
    yield f"{counted(len(traces.ids), 'item')} to forget"
    for verb, names in (("write again", traces.parts), ("delete", (*traces.files, *traces.beside))):
        yield from (f"  {verb}: {name}" for name in names)
    yield f"  merge again: {run.transcripts} and all outputs of several items"


def _elsewhere(store: Store, traces: Traces) -> Iterator[str]:
    """Yield the lines about what stays, and the command that forgets the items in a redacted copy of OUT."""
    from voxbatch.works.redact.key import copied_ids

    yield "not erased: recordings, lines of manifests, other OUTs, exports, logs, backups"
    if copies := copied_ids(store, traces.ids):
        yield f"in copies of voxbatch redact: voxbatch forget COPY {' '.join(copies)}"
