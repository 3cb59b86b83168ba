"""The progress of the run in an OUT, read from its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.output import run_file
from voxbatch.output.checkpoint import part_names, read_headers
from voxbatch.output.layout import COMPLETE
from voxbatch.output.summary import is_finished
from voxbatch.storage import Store


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The progress of one shard that has committed a part."""

    shard: str
    """Shard number and number of shards, for example "3/16"."""
    items: int
    """Number of committed items."""
    parts: int
    complete: bool
    """True if each item of the shard is committed."""


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a run."""

    items: int
    """Number of items in the manifest."""
    committed: int
    """Number of committed items."""
    finished: bool
    """True if the outputs are merged."""
    shards: tuple[ShardStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the status as values for JSON.

        {"items": …, "committed": …, "finished": …, "shards": [{"shard": "0/4", "items": …, "parts": …, "complete": …}]}
        """
        return asdict(self)


def read_status(store: Store) -> Status:
    """Return the progress of the run in OUT.

    Raises:
        ConfigError: no run was started there.
        CheckpointError: run.json, summary.json or the header of a part is damaged, or a part belongs to another run.
    """
    run = run_file.read_existing(store)
    items, parts, folders = Counter[str](), Counter[str](), dict[str, str]()
    for header in read_headers(store, part_names(store, run.generation), run.key):
        items[header.shard] += header.items
        parts[header.shard] += 1
        folders[header.shard] = header.folder
    shards = [
        ShardStatus(shard, items[shard], parts[shard], store.exists(f"{folder}/{COMPLETE}"))
        for shard, folder in folders.items()
    ]
    shards.sort(key=lambda each: int(each.shard.partition("/")[0]))
    return Status(run.items, items.total(), is_finished(store), tuple(shards))
