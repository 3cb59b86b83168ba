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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.errors import CheckpointError
from voxbatch.formats import WRITERS, output_name
from voxbatch.latency import Latency
from voxbatch.output import run_file
from voxbatch.output.checkpoint import PartEntry, PartHeader, part_names, read_headers, read_part
from voxbatch.output.layout import FAILURES, SUMMARY, TRANSCRIPTS, VERSION
from voxbatch.output.lines import read_transcript
from voxbatch.scoring import CorpusScore, ErrorCounts
from voxbatch.storage import Store, parallel_map


@dataclass(slots=True)
class Totals:
    """Sums over all entries, from one pass."""

    done: int = 0
    failed: int = 0
    with_warnings: int = 0
    audio_s: float = 0.0
    score: CorpusScore = field(default_factory=CorpusScore)
    errors: dict[str, int] = field(default_factory=dict)
    """Number of failures by class name."""


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


def merge(
    store: Store, items: int, formats: Iterable[str], language: str | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the merged outputs that do not exist yet.

    Args:
        items: number of items in the manifest; every item must be in a part.
        formats: formats of the files of single items, from config.FORMATS.
        language: language of items that do not name one, for the score.
        facts: further entries of the summary: engine, versions, config.

    Returns:
        The summary, as stored in summary.json.

    Raises:
        CheckpointError: a shard is not finished, so items are missing; or a part or an existing output is damaged.
    """
    _allow_open_files()
    parts = part_names(store)  # list once: a later part, from a run with other shards, adds no item
    totals = _survey(store, parts, items, list(formats), language)
    for name, kind, count in ((TRANSCRIPTS, "transcript", totals.done), (FAILURES, "failure", totals.failed)):
        if store.exists(name) or not store.create(name, _lines(store, parts, kind)):
            _check_lines(store, name, count)
    summary = summarise(totals, items, read_headers(store, parts), facts)
    store.create(SUMMARY, [json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n"])
    return _stored_summary(store) or summary


def merge_again(store: Store, formats: tuple[str, ...] = ()) -> dict[str, Any]:
    """Merge the parts of the run that is recorded in OUT, and write further formats.

    Args:
        formats: formats of the files of single items. () means those of the run.

    Raises:
        ConfigError: no run was started there.
        CheckpointError: see `merge`.
    """
    recorded = run_file.read_existing(store)
    wanted = formats or tuple(recorded["facts"]["config"]["formats"])
    return merge(store, recorded["items"], wanted, recorded["language"], recorded["facts"])


def _lines(store: Store, parts: list[str], kind: str) -> Iterator[bytes]:
    return (entry.line + b"\n" for entry in read_entries(store, parts) if entry.kind == kind)


def _stored_summary(store: Store) -> dict[str, Any] | None:
    """Return the content of summary.json, which another shard may have written first.

    Raises:
        CheckpointError: the file is not a summary of this version of voxbatch.
    """
    if (stored := store.read(SUMMARY)) is None:
        return None
    try:
        found: dict[str, Any] = json.loads(stored)
        if found["version"] == VERSION and {"items", "done", "failed", "engine", "rtfx"} <= found.keys():
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise CheckpointError(
        f"{store.place}/{SUMMARY} is damaged; delete it and run again: it is made anew from the parts"
    )


def _check_lines(store: Store, name: str, count: int) -> None:
    """Check the number of lines of an existing merged file.

    Another process, or this one before a kill, may have merged the file: then it is the same. Otherwise it is foreign.

    Raises:
        CheckpointError: the file has another number of lines.
    """
    if (found := sum(1 for _ in store.lines(name))) != count:
        raise CheckpointError(
            f"{store.place}/{name} has {found:,} lines and not {count:,}; move it away and merge again"
        )


def _allow_open_files() -> None:
    """Raise the limit of open files to the most that this user may have. The parts of all shards may be open at a time,
    and a shell's usual limit is too low for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _survey(store: Store, parts: list[str], items: int, formats: list[str], language: str | None) -> Totals:
    """Add up all entries, and write the files of each item in the same pass."""
    totals = Totals()
    transcripts = _added(store, parts, items, language, totals)
    for _ in parallel_map(store.concurrency, lambda file: store.write(*file), _files(transcripts, formats)):
        pass
    assert totals.done + totals.failed == items
    return totals


def _added(
    store: Store, parts: list[str], items: int, language: str | None, totals: Totals
) -> Iterator[dict[str, Any]]:
    """Yield the line of each transcript after adding it to the totals. Failures are added and not yielded.

    Raises:
        CheckpointError: items are missing.
    """
    missing, following = 0, 0
    for entry in read_entries(store, parts):
        missing += entry.index - following
        following = entry.index + 1
        line = json.loads(entry.line)
        if entry.kind == "transcript":
            _add_transcript(totals, line, language)
            yield line
        else:
            _add_failure(totals, line, language)
    missing += items - following
    if missing:
        raise CheckpointError(
            f"{store.place}: {missing:,} of {items:,} items are not done yet; run again (each shard) to finish them"
        )


def _add_transcript(totals: Totals, line: dict[str, Any], language: str | None) -> None:
    totals.done += 1
    totals.audio_s += line["audio_duration"]
    totals.with_warnings += bool(line["warnings"])
    if line.get("text") is not None:
        counts = ErrorCounts(line["substitutions"], line["insertions"], line["deletions"], line["reference_length"])
        totals.score.add(line.get("lang") or language, counts)


def _add_failure(totals: Totals, line: dict[str, Any], language: str | None) -> None:
    totals.failed += 1
    totals.errors[line["error"]] = totals.errors.get(line["error"], 0) + 1
    if line.get("text") is not None:
        totals.score.add_missing(line.get("lang") or language, line["text"])


def _files(lines: Iterable[dict[str, Any]], formats: list[str]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (name, content) of each transcript in each format."""
    for line in lines:
        transcript = read_transcript(line) if formats else None
        for extension in formats:
            writer: Callable[..., str] = WRITERS[extension]
            text = writer(line["id"], transcript)
            yield f"{extension}/{output_name(line['id'], extension)}", [text.encode("utf-8", "surrogateescape")]


def summarise(totals: Totals, items: int, headers: Iterable[PartHeader], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of summary.json.

    Wall time counts committed work only: work that a killed process lost is in no part. Shards of the same sharding,
    and the workers of a shard, are assumed to run in parallel, so the longest counts. Different shardings are assumed
    to run one after the other. The workers of a shard share its machine, which is paid for once.

    Latencies are added up over the parts that have them. The peak of GPU memory is the highest of any part.
    """
    by_worker: dict[tuple[str, int], float] = {}
    latency, peak_gpu_bytes = Latency(), None
    for header in headers:
        at = header.shard, header.worker
        by_worker[at] = by_worker.get(at, 0.0) + header.wall_s
        if header.latency is not None:
            latency.update(header.latency)
        if header.peak_gpu_bytes is not None:
            peak_gpu_bytes = max(peak_gpu_bytes or 0, header.peak_gpu_bytes)
    by_shard = _longest((shard, seconds) for (shard, _), seconds in by_worker.items())
    longest = _longest((shard.partition("/")[2], seconds) for shard, seconds in by_shard.items())
    wall_s = sum(longest.values())
    return {
        "version": VERSION,
        "items": items,
        "done": totals.done,
        "failed": totals.failed,
        "completion_rate": totals.done / items if items else None,
        "failures_by_error": dict(sorted(totals.errors.items())),
        "with_warnings": totals.with_warnings,
        "audio_s": round(totals.audio_s, 3),
        "wall_s": round(wall_s, 3),
        "process_s": round(sum(by_worker.values()), 3),
        "rtfx": round(totals.audio_s / wall_s, 2) if wall_s else None,
        "latency": latency.describe(),
        "peak_gpu_bytes": peak_gpu_bytes,
        "usd": _usd(sum(by_shard.values()), facts),
        "score": totals.score.to_dict() if totals.score.by_language else None,
        **facts,
    }


def _longest(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the longest time of each name."""
    found: dict[str, float] = {}
    for name, each in seconds:
        found[name] = max(found.get(name, 0.0), each)
    return found


def _usd(machine_s: float, facts: Mapping[str, Any]) -> float | None:
    """Return the cost of `machine_s` seconds of machine time at the price in the config, or None without a price."""
    price = facts.get("config", {}).get("usd_per_hour")
    return None if price is None else round(machine_s / 3600 * price, 6)
