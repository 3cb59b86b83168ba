"""The file items.bin: the keys of a run's items, by which a later run finds them in another list of recordings.

    {"version": 1, "run": "…", "generation": "", "items": 3, "sha256": "…"}      a line of JSON
    16 bytes for each item: the hash of its id and the hash of its line          see manifest.Survey.keys

It is written before any part. The items of the manifest come first, in its order. The items that a run has kept from
earlier runs, and that its manifest does not name, follow them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import CheckpointError
from voxbatch.output.layout import VERSION, items_name
from voxbatch.output.run_file import RunKey
from voxbatch.output.stored_json import count, field, json_bytes
from voxbatch.storage import Store
from voxbatch.storage.columns import BLOCK, Column

ItemKeys = NDArray[np.uint64]
"""Keys of items, shape (num_items, 2): hash of the id, hash of the line."""
_BYTES = 16
"""Bytes of a key."""


def write_items(store: Store, run: RunKey, keys: ItemKeys | Column) -> None:
    """Write the file of a run, unless it is there already.

    Call this only if the run owns OUT, or if no other process knows its generation yet.
    """
    name, digest = items_name(run.generation), hashlib.sha256()
    for block in _blocks(keys):
        digest.update(block)
    fields = {
        "version": VERSION, "run": run.run_id, "generation": run.generation, "items": len(keys),
        "sha256": digest.hexdigest(),
    }  # fmt: skip
    header = json_bytes(fields) + b"\n"
    if not store.exists(name) and store.create(name, chain([header], _blocks(keys))):
        return
    with contextlib.closing(store.lines(name)) as lines:
        if next(lines, b"") == header:
            return
    # The file is of a run whose run.json was removed.
    store.write(name, chain([header], _blocks(keys)))


def _blocks(keys: ItemKeys | Column) -> Iterator[bytes]:
    """Yield the keys as bytes. A copy of a million would take 16 MB."""
    if isinstance(keys, Column):
        yield from (block.tobytes() for _, block in keys.blocks())
        return
    for start in range(0, len(keys), BLOCK):
        yield keys[start : start + BLOCK].astype("<u8", copy=False).tobytes()


def read_items(store: Store, run: RunKey) -> ItemKeys | None:
    """Return the keys of a run's items, or None if there is no such file.

    Raises:
        CheckpointError: the file is damaged, or belongs to another run.
    """
    name = items_name(run.generation)
    if (stored := store.read(name)) is None:
        return None
    line, _, data = stored.partition(b"\n")
    try:
        header = json.loads(line)
        is_sound = field(header, "version", int) == VERSION and field(header, "run", str) == run.run_id
        is_sound = is_sound and field(header, "generation", str) == run.generation
        is_sound = is_sound and field(header, "sha256", str) == hashlib.sha256(data).hexdigest()
        is_sound = is_sound and len(data) == _BYTES * count(header, "items")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        reason = f"not the list of the items of run {run}, or damaged"
        raise CheckpointError(
            f"{store.place}/{name}: {reason}, so that OUT cannot be continued with another list of recordings; choose "
            "another OUT with -o",
            reason,
        )
    return np.frombuffer(data, "<u8").reshape(-1, 2)
