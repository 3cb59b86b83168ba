"""An OUT that belongs to a run, made without a run."""

from __future__ import annotations

from dataclasses import replace

from voxbatch.output.run_file import EngineFacts, RunFacts, RunFile, RunKey
from voxbatch.storage import Store

FACTS = RunFacts(
    engine=EngineFacts("scripted", "count", "Apache-2.0", "built in", {"words": True}, {"scripted": "1"}, ("slow",)),
    voxbatch="0.1.0",
    python="3.11.2",
    libraries={"ffmpeg": "7.0"},
    machine="Linux x86_64, 2 CPUs",
    workers=1,
    config={"formats": [], "usd_per_hour": None},
)
RUN = RunFile(run_id="run", identity={"model": "count"}, items=2, language="en", folder="/day", facts=FACTS)


def owned(store: Store, run_id: str = "run", items: int = 2, generation: str = "") -> RunKey:
    """Make a run the owner of OUT, unless it belongs to a run already. Return the key of this run."""
    run = replace(RUN, run_id=run_id, items=items, generation=generation)
    store.create("run.json", [run.to_bytes()])
    return run.key
