"""Remove all that runs have written to an OUT, and nothing else. It implements `--overwrite`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.output.checkpoint import part_names, read_part
from voxbatch.output.layout import FAILURES, RUN_FILE, SUMMARY, TRANSCRIPTS, item_file, names_in_parts
from voxbatch.storage import Store, parallel_map


def erase(store: Store) -> None:
    """Remove the files of all runs.

    run.json is removed last: a place that has a run.json belongs to voxbatch, so an interrupted erasure can be
    repeated.
    """
    if not store.exists(RUN_FILE):
        return
    formats = [extension for extension in WRITERS if store.exists(f"{extension}/")]
    item_files = (item_file(item_id, extension) for item_id in _item_ids(store) for extension in formats)
    for names in (
        item_files if formats else (),
        (SUMMARY, TRANSCRIPTS, FAILURES),
        names_in_parts(store),
        (RUN_FILE,),
    ):
        for _ in parallel_map(store.concurrency, store.delete, names):
            pass


def _item_ids(store: Store) -> Iterator[str]:
    """Yield the ids of all transcripts in the parts. If a part is damaged, also yield the ids in transcripts.jsonl.

    The files of an item that is in neither stay. A later run of this item overwrites them.
    """
    is_damaged = False
    for part in part_names(store):
        try:
            for entry in read_part(store, part):
                if entry.kind == "transcript":
                    yield json.loads(entry.line)["id"]
        except CheckpointError:
            is_damaged = True
    if is_damaged and store.exists(TRANSCRIPTS):
        for line in store.lines(TRANSCRIPTS):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                yield str(json.loads(line)["id"])
