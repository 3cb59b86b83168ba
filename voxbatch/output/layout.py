"""Names of the files and folders that runs write into OUT.

run.json                                       the run that OUT belongs to: written first
parts/shard-00003-of-00016/part-00007.jsonl    the checkpoint; see the module `checkpoint`
parts/shard-00003-of-00016/complete.json
parts/items.bin                                the keys of the run's items; see the module `items_file`
parts/next.json                                the run that continues this run with another list of recordings
parts/generation-0123456789ab/…                the same of a run that took OUT over from an earlier run
transcripts.jsonl, failures.jsonl              the merged outputs
srt/, vtt/, json/, …                           one folder for each format, with one file for each item
report.html                                    the report; see the module `report`
summary.json                                   written last
starts/start-00001.json                        the executions that a dispatcher started; see the module `starts`
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxbatch.formats import WRITERS, output_name
from voxbatch.manifest.named import LIST_MARK, common_folder, is_list, is_pattern
from voxbatch.manifest.source import without_suffix
from voxbatch.storage import Store, is_remote
from voxbatch.storage.address import is_bucket_address, is_folder, name_of, scheme_of

VERSION = 1
"""Version of all written files."""
RUN_FILE, SUMMARY = "run.json", "summary.json"
TRANSCRIPTS, FAILURES = "transcripts.jsonl", "failures.jsonl"
REPORT = "report.html"
LEASE = "claim.json"
"""Lease of a listener that works on the run. It is there only during the work; see the module `lease`."""
STARTS = "starts"
"""Folder of the starts of executions elsewhere."""
PARTS = "parts"
"""Folder of the shards' folders."""
COMPLETE = "complete.json"
"""File in a shard's folder that says that each item of the shard is in a part."""

ITEMS = "items.bin"
"""File in the folder of a generation with the keys of its items."""
NEXT = "next.json"
"""File in the folder of a generation with the run.json of the run that continues it. It is created before run.json is
replaced, so that of several processes exactly one decides which run that is."""

GENERATION = "[0-9a-f]{12}"
"""Pattern of the id of a generation."""
_SHARD = r"/shard-\d{5}-of-\d{5}"
_PART_FILE, _COMPLETE_FILE = r"/part-\d{5,9}\.jsonl", f"/{re.escape(COMPLETE)}"
_IN_GENERATION = rf"({_SHARD}({_PART_FILE}|{_COMPLETE_FILE})|/{re.escape(ITEMS)}|/{re.escape(NEXT)})"
_IN_PARTS = re.compile(rf"{PARTS}(/generation-{GENERATION})?{_IN_GENERATION}")


def generation_folder(generation: str) -> str:
    """Return the folder of the shards of a generation: "" → "parts", "0123456789ab" →
    "parts/generation-0123456789ab".

    So a run that takes OUT over never takes the name of a part that another process of an earlier run may still write.
    """
    return f"{PARTS}/generation-{generation}" if generation else PARTS


def items_name(generation: str) -> str:
    """Return the name of the file with the keys of a generation's items."""
    return f"{generation_folder(generation)}/{ITEMS}"


def next_name(generation: str) -> str:
    """Return the name of the file that says which run continues a generation."""
    return f"{generation_folder(generation)}/{NEXT}"


def shard_folder(shard: int, shards: int, generation: str = "") -> str:
    """Return the folder of a shard: (3, 16) → "parts/shard-00003-of-00016"."""
    return f"{generation_folder(generation)}/shard-{shard:05d}-of-{shards:05d}"


def part_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of all parts of a generation, of all shards, sorted.

    No other file below the folder of the parts is a part, for example the files of another OUT that lies there.
    """
    return _matching(store, generation, _PART_FILE)


def complete_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of the files that say that a shard is complete, of a generation, sorted."""
    return _matching(store, generation, _COMPLETE_FILE)


def names_of_generation(store: Store, generation: str) -> list[str]:
    """Return the names of all files of one generation, sorted."""
    return _matching(store, generation, "", _IN_GENERATION)


def _matching(store: Store, generation: str, file: str, below: str = _SHARD) -> list[str]:
    folder = generation_folder(generation)
    pattern = re.compile(f"{folder}{below}{file}")
    return [name for name in store.names(folder) if pattern.fullmatch(name)]


def item_file(name: str, form: str) -> str:
    """Return the file of one item, whose name ItemNames gives: ("day1/talk", "srt") → "srt/day1/talk.srt"."""
    return f"{form}/{output_name(name, WRITERS[form].extension)}"


def names_in_parts(store: Store) -> list[str]:
    """Return the names of all files below the folder of the parts that runs of any generation wrote, sorted."""
    return [name for name in store.names(PARTS) if _IN_PARTS.fullmatch(name)]


def layout_names_in(place: str) -> Iterator[tuple[str, str]]:
    """Yield (folder, name) for each part of a path, or of an address, that has the name of a file or folder in an OUT.

        "gs://b/day/parts/x" → ("gs://b/day", "parts")

    If the folder is an OUT, the path leads into its files.
    """
    names = {RUN_FILE, SUMMARY, TRANSCRIPTS, FAILURES, REPORT, LEASE, STARTS, PARTS, *WRITERS}
    steps = place.split("/")
    for i, step in enumerate(steps):
        if i and step in names:
            yield "/".join(steps[:i]) or "/", step


def foreign_outputs(store: Store) -> list[str]:
    """Return the names of merged outputs in an OUT without run.json. A merge would take these files for its own."""
    if store.exists(RUN_FILE):
        return []
    return [name for name in (TRANSCRIPTS, FAILURES, REPORT, SUMMARY) if store.exists(name)]


def default_out(source: str | Sequence[str]) -> str:
    """Return the default OUT of a source: a folder beside the source, or in the common folder of several.

        "jobs/calls.jsonl.gz" → "jobs/calls.voxbatch"        "gs://b/day/" → "gs://b/day.voxbatch"
        "calls/talk.mp3" → "calls/talk.voxbatch"             "calls/*.mp3" → "calls/calls.voxbatch"

    OUT is in the current directory if nothing can be written beside the source: "-" → "stdin.voxbatch", "gs://b/" →
    "b.voxbatch", and for web servers.
    """
    names = [source] if isinstance(source, str) else list(source)
    if len(names) > 1 or is_pattern(names[0]):
        folder = common_folder(names)
        return _inside(folder, f"{os.path.basename(folder.rstrip('/')) or 'root'}.voxbatch")
    name = names[0].removeprefix(LIST_MARK) if is_list(names[0]) else names[0]
    if name == "-":
        return "stdin.voxbatch"
    if is_remote(name):
        *above, last = name_of(name).rstrip("/").split("/")
        out = f"{(last if is_folder(name) else without_suffix(last)) or 'root'}.voxbatch"
        return "/".join([f"{scheme_of(name)}:/", *above, out]) if above and is_bucket_address(name) else out
    path = Path(os.path.abspath(name))
    stem = path.name if path.is_dir() else without_suffix(path.name)
    return str(path.with_name(f"{stem or 'root'}.voxbatch"))


def _inside(folder: str, name: str) -> str:
    """Return a path in a folder, or in the current directory if nothing can be written in the folder."""
    return (
        name if folder == "/" or (is_remote(folder) and not is_bucket_address(folder)) else os.path.join(folder, name)
    )


def existing_outputs(store: Store) -> list[tuple[str, str]]:
    """Return (label, name) of each merged output and each folder of a format that exists, in the order of display."""
    names = [("transcripts", TRANSCRIPTS), ("failures", FAILURES), ("summary", SUMMARY), ("report", REPORT)]
    names += [(form, f"{form}/") for form in WRITERS]
    return [(label, name) for label, name in names if store.exists(name)]
