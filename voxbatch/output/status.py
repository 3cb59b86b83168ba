"""The progress of the run in an OUT, read from its parts."""

from __future__ import annotations

from typing import Any

from voxbatch.output import run_file
from voxbatch.output.checkpoint import part_names, read_headers
from voxbatch.output.layout import COMPLETE, SUMMARY
from voxbatch.storage import Store


def read_status(store: Store) -> dict[str, Any]:
    """Return the progress of the run in OUT.

        {"items": …, "committed": …, "finished": …, "shards": [{"shard": "0/4", "items": …, "parts": …, "complete": …}]}

    Raises:
        ConfigError: no run was started there.
    """
    recorded = run_file.read_existing(store)
    shards: dict[str, dict[str, Any]] = {}
    names = part_names(store)
    for name, header in zip(names, read_headers(store, names), strict=True):
        marker = f"{name.rpartition('/')[0]}/{COMPLETE}"
        shard = shards.setdefault(header.shard, {"shard": header.shard, "items": 0, "parts": 0, "complete": marker})
        shard["items"] += header.items
        shard["parts"] += 1
    for shard in shards.values():
        shard["complete"] = store.exists(shard["complete"])
    return {
        "items": recorded["items"],
        "committed": sum(shard["items"] for shard in shards.values()),
        "finished": store.exists(SUMMARY),
        "shards": sorted(shards.values(), key=lambda shard: int(shard["shard"].partition("/")[0])),
    }
