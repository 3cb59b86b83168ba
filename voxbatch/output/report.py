"""The file report.html: read the parts of a run, and write what the package `report` makes of them.

The parts are read one after the other, in one pass that keeps a bounded number of items, so that the speed of each part
is known. An item that is in two parts counts once, in the first part by name, as in the merge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from voxbatch.errors import CheckpointError
from voxbatch.output import run_file
from voxbatch.output.checkpoint import part_names, read_header, read_headers, read_part
from voxbatch.output.failure_reasons import reason_of
from voxbatch.output.layout import REPORT
from voxbatch.output.run_file import RunFile, RunKey
from voxbatch.output.summary import Summary, Totals, read_summary, summarise
from voxbatch.report import Report, RunTitle
from voxbatch.report.figures import PartSpeed
from voxbatch.storage import DEFAULT_STORE_OPTIONS, Store, StoreOptions, is_remote, open_store
from voxbatch.storage.local import LocalStore


def write_report(
    store: Store, place: str, keys: Sequence[str] = (), store_options: StoreOptions = DEFAULT_STORE_OPTIONS
) -> None:
    """Write the report of the run in OUT, of the items that are committed so far if the run is not finished.

    Args:
        store: the OUT of a run.
        place: file or address of the page.
        keys: keys of the manifest's lines by which errors are grouped, besides the language.
        store_options: how `place` is accessed.

    Raises:
        ConfigError: no run was started there.
        CheckpointError: run.json or a part is damaged.
        StorageError: OUT cannot be read, or the page cannot be written.
    """
    if is_remote(place):
        folder, _, name = place.rpartition("/")
        target = open_store(folder, store_options)
    else:
        folder, name = os.path.split(place)
        target = LocalStore(folder or ".", alternative="choose another file with -o")
    run = run_file.read_existing(store)
    summary = read_summary(store)
    if summary is not None and not summary.is_of(run.key):
        summary = None  # an earlier run wrote it
    page = render_report(store, run, part_names(store, run.generation), summary, keys, target.place)
    target.write(name, [page])


def is_report_of(store: Store, run: RunKey) -> bool:
    """Return whether OUT has a whole report of a run that was finished, with any groups."""
    page = store.read(REPORT) or b""
    return f'<meta name="voxbatch-run" content="{run}, finished">'.encode() in page and page.endswith(b"</html>\n")


def render_report(
    store: Store,
    run: RunFile,
    parts: Sequence[str],
    summary: Summary | None,
    keys: Sequence[str] = (),
    page_place: str | None = None,
) -> bytes:
    """Return the report of a run.

    Args:
        run: the run.
        parts: the names of its parts.
        summary: its summary. None if the run is not finished; then the figures are added up from the parts.
        keys: see `write_report`.
        page_place: folder or prefix that the page will be in. None means OUT.

    Raises:
        CheckpointError, StorageError: see `write_report`.
    """
    page_place = page_place or store.place
    folder = None if is_remote(page_place) else os.path.abspath(page_place)
    name = os.path.basename(store.place.rstrip("/")) or store.place
    title = RunTitle(name, folder, str(run.key), run.items, run.language, is_finished=summary is not None)
    report, totals, seen = Report(title, keys), Totals(), bytearray(run.items)
    for part in parts:
        header, audio_s = read_header(store, part, run.key), 0.0
        for entry in read_part(store, part, run.key):
            if entry.index >= run.items:
                reason = f"it has item {entry.index} of a manifest of {run.items:,} items"
                raise CheckpointError(f"{store.place}/{part}: {reason}", reason)
            line = json.loads(entry.line)
            audio_s += line["audio_duration"] if entry.kind == "transcript" else 0.0
            if seen[entry.index]:
                continue
            seen[entry.index] = 1
            if entry.kind == "transcript":
                report.add_transcript(entry.index, line, entry.line)
                if summary is None:
                    totals.add_transcript(line, run.language)
            else:
                report.add_failure(entry.index, line, reason_of(str(line["error"]), str(line["message"])))
                if summary is None:
                    totals.add_failure(line, run.language)
        shard, _, shards = header.measured_shard.partition("/")
        report.add_part(PartSpeed(shards, f"{shard}/{header.worker}", header.wall_s, audio_s))
    if summary is None:
        summary = summarise(totals, run, read_headers(store, parts, run.key))
    return report.render(summary.to_dict())
