"""Merge the parts of all shards: transcripts and failures in manifest order, one file per item, and a summary.

All outputs are built from committed bytes. The merged files are created only if absent; the files of single items are
replaced by the same bytes. So a process that merges late, twice, or at the same time as another changes nothing.
`summary.json` is written last: if it exists, the run is finished. Parts are read in parallel and streamed, so memory
grows neither with the manifest nor with the number of parts.
"""

from __future__ import annotations

import heapq
import json
import resource
from collections import deque
from collections.abc import Iterable, Iterator

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS
from voxbatch.output import run_file
from voxbatch.output.checkpoint import PartEntry, part_names, read_headers, read_part
from voxbatch.output.layout import FAILURES, TRANSCRIPTS, item_file
from voxbatch.output.lines import read_transcript
from voxbatch.output.run_file import RunFile
from voxbatch.output.summary import Summary, Totals, summarise, write_summary
from voxbatch.storage import Store, parallel_map


def read_entries(store: Store, parts: list[str] | None = None) -> Iterator[PartEntry]:
    """Yield all committed entries, or those of the given parts, in manifest order. Each item comes once.

    A part is opened when the order reaches its first item. If runs with different numbers of shards both committed an
    item, the first part by name wins.

    Raises:
        CheckpointError: a part is damaged.
    """
    names = part_names(store) if parts is None else parts
    firsts = [header.first for header in read_headers(store, names)]
    waiting = deque(sorted(zip(firsts, names, strict=True)))
    heap: list[tuple[int, str, PartEntry, Iterator[PartEntry]]] = []
    previous = -1
    while heap or waiting:
        while waiting and (not heap or waiting[0][0] <= heap[0][0]):
            _, name = waiting.popleft()
            _advance(heap, name, read_part(store, name))
        _, name, entry, rest = heapq.heappop(heap)
        _advance(heap, name, rest)
        if entry.index != previous:
            previous = entry.index
            yield entry


def _advance(heap: list[tuple[int, str, PartEntry, Iterator[PartEntry]]], name: str, part: Iterator[PartEntry]) -> None:
    """Push the next entry of a part onto the heap, if the part has another."""
    entry = next(part, None)
    if entry is not None:
        heapq.heappush(heap, (entry.index, name, entry, part))


def merge(store: Store, run: RunFile, formats: Iterable[str]) -> Summary:
    """Write the merged outputs that do not exist yet.

    Args:
        run: the run whose items are in the parts. Its facts become those of the summary.
        formats: formats of the files of single items, from config.FORMATS.

    Returns:
        The summary, as stored in summary.json.

    Raises:
        CheckpointError: a shard is not finished, so items are missing; or a part or an existing output is damaged.
    """
    _raise_open_file_limit()
    parts = part_names(store)  # list once: a later part, from a run with other shards, adds no item
    totals = Totals()
    for _ in parallel_map(
        store.concurrency, lambda file: store.write(*file), _item_files(store, parts, run, list(formats), totals)
    ):
        pass
    assert totals.done + totals.failed == run.items
    for name, kind, count in ((TRANSCRIPTS, "transcript", totals.done), (FAILURES, "failure", totals.failed)):
        lines = (entry.line + b"\n" for entry in read_entries(store, parts) if entry.kind == kind)
        if not store.exists(name) and store.create(name, lines):
            continue
        # If voxbatch merged it, in another process or before a kill, the existing file has the same lines.
        if (found := sum(1 for _ in store.lines(name))) != count:
            raise CheckpointError(
                f"{store.place}/{name} has {found:,} lines and not {count:,}; move it away and merge again"
            )
    return write_summary(store, summarise(totals, run.items, read_headers(store, parts), run.facts))


def merge_again(store: Store, formats: tuple[str, ...] = ()) -> Summary:
    """Merge the parts of the run that is recorded in OUT, and write further formats.

    Args:
        formats: formats of the files of single items. () means those of the run.

    Raises:
        ConfigError: no run was started there.
        CheckpointError: see `merge`.
    """
    run = run_file.read_existing(store)
    return merge(store, run, formats or run.facts.config["formats"])


def _raise_open_file_limit() -> None:
    """Raise the limit of open files to the most that this user may have. The parts of all shards may be open at a time,
    and a shell's usual limit is too low for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _item_files(
    store: Store, parts: list[str], run: RunFile, formats: list[str], totals: Totals
) -> Iterator[tuple[str, list[bytes]]]:
    """Add all entries to the totals, and yield (name, content) of each transcript in each format.

    Raises:
        CheckpointError: items are missing. The error comes after the last entry.
    """
    missing, next_index = 0, 0
    for entry in read_entries(store, parts):
        missing += entry.index - next_index
        next_index = entry.index + 1
        line = json.loads(entry.line)
        if entry.kind == "failure":
            totals.add_failure(line, run.language)
            continue
        totals.add_transcript(line, run.language)
        if formats:
            transcript = read_transcript(line)
            for extension in formats:
                text = WRITERS[extension](line["id"], transcript)
                yield item_file(line["id"], extension), [text.encode("utf-8", "surrogateescape")]
    missing += run.items - next_index
    if missing:
        raise CheckpointError(
            f"{store.place}: {missing:,} of {run.items:,} items are not done yet; run again (each shard) to finish them"
        )
