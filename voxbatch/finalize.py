"""The parts of all shards → merged outputs in manifest order: transcripts, failures, one file an item, the summary.

Everything is written create-if-absent from committed bytes, so that whoever comes last, twice or at the same time as
another writes the same. `summary.json` comes last: where it is, the run is finished. Parts are read side by side and
streamed, so memory grows neither with the manifest nor with the number of parts.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import re
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.errors import LedgerError
from voxbatch.formats import WRITERS, output_name
from voxbatch.latency import Latency
from voxbatch.ledger import FOLDER, Entry, Header, part_names, read_headers, read_part
from voxbatch.lines import read_transcript
from voxbatch.score import CorpusScore, ErrorCounts
from voxbatch.storage import Store, at_once

VERSION = 1
TRANSCRIPTS, FAILURES, SUMMARY, RUN = "transcripts.jsonl", "failures.jsonl", "summary.json", "run.json"
_OURS = re.compile(rf"{FOLDER}/shard-\d{{5}}-of-\d{{5}}/(part-\d{{5,}}\.jsonl|complete\.json)")


@dataclass(slots=True)
class Totals:
    """What one pass over all entries adds up."""

    done: int = 0
    failed: int = 0
    with_warnings: int = 0
    audio_s: float = 0.0
    score: CorpusScore = field(default_factory=CorpusScore)
    errors: dict[str, int] = field(default_factory=dict)
    """Failures by class name."""


def entries(store: Store, parts: list[str] | None = None) -> Iterator[Entry]:
    """All committed entries (of these parts) in manifest order, each item once.

    A part is opened when the order reaches its first item. Where runs with different numbers of shards both did an
    item, the first part by name counts.

    Raises:
        LedgerError: a part is damaged.
    """
    names = part_names(store) if parts is None else parts
    firsts = [header.first for header in read_headers(store, names)]
    waiting = deque(sorted(zip(firsts, names, strict=True)))
    heap: list[tuple[int, str, Entry, Iterator[Entry]]] = []
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


def _advance(heap: list[tuple[int, str, Entry, Iterator[Entry]]], name: str, part: Iterator[Entry]) -> None:
    entry = next(part, None)
    if entry is not None:
        heapq.heappush(heap, (entry.index, name, entry, part))


def merge(
    store: Store, items: int, formats: Iterable[str], language: str | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the merged outputs that are not there yet.

    Args:
        items: how many the manifest has; every one must be in a part.
        language: of items that do not say, for the score.
        facts: what else the summary tells: engine, versions, config.

    Returns:
        The summary, as it stands in summary.json.

    Raises:
        LedgerError: items are missing: some shard is not finished.
    """
    _allow_open_files()
    parts = part_names(store)  # once: a part that comes later, from a run with other shards, holds nothing new
    totals = _survey(store, parts, items, list(formats), language)
    for name, kind, count in ((TRANSCRIPTS, "transcript", totals.done), (FAILURES, "failure", totals.failed)):
        if store.exists(name) or not store.create(name, _lines(store, parts, kind)):
            _check_lines(store, name, count)
    summary = summarise(totals, items, read_headers(store, parts), facts)
    store.create(SUMMARY, [json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n"])
    return _stored_summary(store) or summary


def _lines(store: Store, parts: list[str], kind: str) -> Iterator[bytes]:
    return (entry.line + b"\n" for entry in entries(store, parts) if entry.kind == kind)


def _stored_summary(store: Store) -> dict[str, Any] | None:
    """What stands in summary.json: another shard may have been first.

    Raises:
        LedgerError: it is no summary of ours.
    """
    if (stored := store.read(SUMMARY)) is None:
        return None
    try:
        found: dict[str, Any] = json.loads(stored)
        if found["version"] == VERSION and {"items", "done", "failed", "engine", "rtfx"} <= found.keys():
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise LedgerError(f"{store.place}/{SUMMARY} is damaged; delete it and run again: it is made anew from the parts")


def _check_lines(store: Store, name: str, count: int) -> None:
    """What stands there was merged by another process, or before a kill: the same, or somebody else's."""
    if (found := sum(1 for _ in store.lines(name))) != count:
        raise LedgerError(f"{store.place}/{name} has {found:,} lines and not {count:,}; move it away and merge again")


def _allow_open_files() -> None:
    """Parts of all shards are open at a time: as many as this user may open, not the few that a shell allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _survey(store: Store, parts: list[str], items: int, formats: list[str], language: str | None) -> Totals:
    """Add everything up, and write each item's files on the way."""
    totals = Totals()
    transcripts = _added(store, parts, items, language, totals)
    for _ in at_once(store, lambda file: store.write(*file), _files(transcripts, formats)):
        pass
    assert totals.done + totals.failed == items
    return totals


def _added(
    store: Store, parts: list[str], items: int, language: str | None, totals: Totals
) -> Iterator[dict[str, Any]]:
    """The transcripts' lines, when each is added to the totals. Raises LedgerError where items are missing."""
    missing, following = 0, 0
    for entry in entries(store, parts):
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
        raise LedgerError(
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
    """(name, content) of each transcript in each format."""
    for line in lines:
        transcript = read_transcript(line) if formats else None
        for extension in formats:
            writer: Callable[..., str] = WRITERS[extension]
            text = writer(line["id"], transcript)
            yield f"{extension}/{output_name(line['id'], extension)}", [text.encode("utf-8", "surrogateescape")]


def summarise(totals: Totals, items: int, headers: Iterable[Header], facts: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json.

    Wall time counts committed work only: what a killed process did in vain is not in any part. Shards of one sharding,
    and the workers of a shard, are taken to have run side by side (the longest counts), different shardings one after
    the other. A shard's workers share its machine, which is paid for once.

    Latencies are added up over the parts that hold them. The peak of GPU memory is the highest of any part.
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
    found: dict[str, float] = {}
    for name, each in seconds:
        found[name] = max(found.get(name, 0.0), each)
    return found


def _usd(machine_s: float, facts: Mapping[str, Any]) -> float | None:
    """What the shards' machines cost for so long together, at the price that the config knows of one."""
    price = facts.get("config", {}).get("usd_per_hour")
    return None if price is None else round(machine_s / 3600 * price, 6)


def erase(store: Store) -> None:
    """Remove what runs have written to this place, and nothing else: for --overwrite.

    Files of items are known by the parts that name them. run.json goes last: a place that has one is ours, so an
    erasure that was cut short can be repeated.
    """
    if not store.exists(RUN):
        return
    parts = part_names(store)
    formats = [extension for extension in WRITERS if store.exists(f"{extension}/")]
    ids = (item_id for part in parts if formats for item_id in _ids(store, part))
    files = (f"{extension}/{output_name(item_id, extension)}" for item_id in ids for extension in formats)
    ours = (name for name in store.names(FOLDER) if _OURS.fullmatch(name))
    for names in (files, (SUMMARY, TRANSCRIPTS, FAILURES), ours, (RUN,)):
        for _ in at_once(store, store.delete, names):
            pass


def _ids(store: Store, part: str) -> Iterator[str]:
    """The ids of a part's transcripts, as far as it can be read: what is left behind is written anew."""
    with contextlib.suppress(LedgerError):
        for entry in read_part(store, part):
            if entry.kind == "transcript":
                yield json.loads(entry.line)["id"]


def strangers(store: Store) -> list[str]:
    """Names of merged outputs that stand in a place where nothing was run: merging would take them for its own."""
    if store.exists(RUN):
        return []
    return [name for name in (TRANSCRIPTS, FAILURES, SUMMARY) if store.exists(name)]


def write_run(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    """Record what a place is used for, or read what it was: the run.json that stands there in the end."""
    store.create(RUN, [json.dumps(run, indent=2, ensure_ascii=False).encode() + b"\n"])
    return read_run(store) or run


def read_run(store: Store) -> dict[str, Any] | None:
    """run.json; None where nothing was run.

    Raises:
        LedgerError: it is no run.json of ours.
    """
    stored = store.read(RUN)
    if stored is None:
        return None
    try:
        run: dict[str, Any] = json.loads(stored)
        if run["version"] == VERSION and {"run", "identity", "items", "language", "facts"} <= run.keys():
            return run
    except (ValueError, KeyError, TypeError):
        pass
    raise LedgerError(f"{store.place}/{RUN} was not written by this version of voxbatch; choose another OUT with -o")
