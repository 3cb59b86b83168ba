"""Remove all that runs have written to an OUT, and nothing else. It implements `--overwrite`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS, output_name
from voxbatch.output.checkpoint import part_names, read_part
from voxbatch.output.layout import FAILURES, RUN_FILE, SUMMARY, TRANSCRIPTS, names_in_parts
from voxbatch.storage import Store, parallel_map


def erase(store: Store) -> None:
    """Remove the files of all runs.

    The files of items are found through the parts, which name the items. run.json is removed last: a place that has a
    run.json belongs to voxbatch, so an interrupted erasure can be repeated.
    """
    if not store.exists(RUN_FILE):
        return
    parts = part_names(store)
    formats = [extension for extension in WRITERS if store.exists(f"{extension}/")]
    ids = (item_id for part in parts if formats for item_id in _ids(store, part))
    files = (f"{extension}/{output_name(item_id, extension)}" for item_id in ids for extension in formats)
    for names in (files, (SUMMARY, TRANSCRIPTS, FAILURES), names_in_parts(store), (RUN_FILE,)):
        for _ in parallel_map(store.concurrency, store.delete, names):
            pass


def _ids(store: Store, part: str) -> Iterator[str]:
    """Yield the ids of a part's transcripts, as far as the part can be read. Files of the other items stay. A
    later run of these items overwrites them."""
    with contextlib.suppress(CheckpointError):
        for entry in read_part(store, part):
            if entry.kind == "transcript":
                yield json.loads(entry.line)["id"]
