"""A quick run, its outputs, and an OUT that belongs to a run that was never made."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxbatch.output.layout import part_names
from voxbatch.output.parts import read_part
from voxbatch.output.run_file import EngineFacts, ItemKeys, Run, RunFacts, create_list
from voxbatch.output.verify import Problem, verify
from voxbatch.storage import Store

FAST = ("--engine", "scripted", "--decoders", "1", "--formats", "srt")
FACTS = RunFacts(
    engine=EngineFacts("scripted", "count", "Apache-2.0", "built in", {"words": True}, {"scripted": "1"}, ("slow",)),
    voxbatch="0.1.0",
    python="3.11.2",
    libraries={"ffmpeg": "7.0"},
    machine="Linux x86_64, 2 CPUs",
    workers=1,
    config={"formats": [], "usd_per_hour": None},
)
RUN = Run(
    run_id="run",
    identity={"model": "count"},
    language="en",
    manifest="lines",
    items=2,
    folder="/day",
    facts=FACTS,
)


def keys(items: int) -> ItemKeys:
    """Return the keys of items 0, 1, …"""
    return np.arange(2 * items, dtype=np.uint64).reshape(items, 2)


def owned(store: Store, run_id: str = "run", items: int = 2) -> Run:
    """Make a run the owner of OUT, unless it belongs to a run already. Return this run."""
    run = replace(RUN, run_id=run_id, items=items)
    if store.create("run.json", [run.to_bytes()]):
        create_list(store, run, keys(items))
    return run


def problems(store: Store) -> list[Problem]:
    """Return the problems of an OUT, besides that the id of RUN is invented."""
    return [problem for problem in verify(store) if problem.file != "run.json"]


def outputs(store: Store) -> dict[str, bytes | None]:
    """Return the merged outputs and subtitles."""
    return {name: store.read(name) for name in ("transcripts.jsonl", "failures.jsonl", *store.names("srt"))}


def difference(found: dict[str, bytes | None], wanted: dict[str, bytes | None]) -> str:
    """Return the first file that is missing, unexpected or different, and the place; "" if all bytes are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        ours, theirs = found.get(name), wanted.get(name)
        if ours == theirs:  # also None: neither run has the file
            continue
        if ours is None or theirs is None:
            return f"{name} is {'missing' if ours is None else 'too many'}"
        at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
        return f"{name} differs from byte {at}: {ours[at : at + 60]!r} for {theirs[at : at + 60]!r}"
    return ""


def committed(store: Store) -> Counter[int]:
    """Return the number of parts that contain each item, by the index of the item."""
    return Counter(entry.index for name in part_names(store) for entry in read_part(store, name))


def output_files(out: Path) -> dict[str, bytes]:
    """Return the merged lines and the texts of the items, which are the same for every course of a run."""
    files = [*sorted(out.glob("*.jsonl")), *sorted(out.glob("srt/*")), *sorted(out.glob("txt/*"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def committed_items(out: Path) -> list[bytes]:
    """Return the committed items of all parts, sorted as text. An item that was committed twice appears twice."""
    parts = [path.read_bytes().splitlines()[1:] for path in out.glob("parts/*/part-*.jsonl")]
    return sorted(line.split(b",")[0] for part in parts for line in part)
