"""The file summary.json: counts, speed, score and the facts of a run. It is written last.

The figures come from the headers of the parts and from one pass over their entries, which the module `merge` makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.errors import CheckpointError
from voxbatch.latency import Latency, LatencyPercentiles
from voxbatch.output.checkpoint import PartHeader
from voxbatch.output.layout import SUMMARY, VERSION
from voxbatch.output.run_file import RunFacts
from voxbatch.scoring import CorpusScore, ErrorCounts
from voxbatch.storage import Store


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

    def add_transcript(self, line: Mapping[str, Any], language: str | None) -> None:
        """Add the output line of a transcript. `language` is the language of a line that names none."""
        self.done += 1
        self.audio_s += line["audio_duration"]
        self.with_warnings += bool(line["warnings"])
        if line.get("text") is not None:
            counts = ErrorCounts(line["substitutions"], line["insertions"], line["deletions"], line["reference_length"])
            self.score.add(line.get("lang") or language, counts)

    def add_failure(self, line: Mapping[str, Any], language: str | None) -> None:
        """Add the output line of a failure. `language` is the language of a line that names none."""
        self.failed += 1
        self.errors[line["error"]] = self.errors.get(line["error"], 0) + 1
        if line.get("text") is not None:
            self.score.add_missing(line.get("lang") or language, line["text"])


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of summary.json. docs/outputs.md describes the fields."""

    items: int
    done: int
    failed: int
    completion_rate: float | None
    failures_by_error: Mapping[str, int]
    with_warnings: int
    audio_s: float
    wall_s: float
    process_s: float
    rtfx: float | None
    latency: LatencyPercentiles | None
    """None if an old version wrote the file, like the next two fields."""
    peak_gpu_bytes: int | None
    usd: float | None
    score: CorpusScore | None
    facts: RunFacts

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values for JSON."""
        return {
            "version": VERSION,
            "items": self.items,
            "done": self.done,
            "failed": self.failed,
            "completion_rate": self.completion_rate,
            "failures_by_error": dict(self.failures_by_error),
            "with_warnings": self.with_warnings,
            "audio_s": self.audio_s,
            "wall_s": self.wall_s,
            "process_s": self.process_s,
            "rtfx": self.rtfx,
            "latency": self.latency and self.latency.to_dict(),
            "peak_gpu_bytes": self.peak_gpu_bytes,
            "usd": self.usd,
            "score": self.score and self.score.to_dict(),
            **self.facts.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Summary:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            ValueError: another version of voxbatch wrote the file.
            KeyError, TypeError, AttributeError: a key is missing, or a value has another type.
        """
        if stored["version"] != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        latency, score = stored.get("latency"), stored["score"]
        return cls(
            items=stored["items"],
            done=stored["done"],
            failed=stored["failed"],
            completion_rate=stored.get("completion_rate"),
            failures_by_error=stored["failures_by_error"],
            with_warnings=stored["with_warnings"],
            audio_s=stored["audio_s"],
            wall_s=stored["wall_s"],
            process_s=stored["process_s"],
            rtfx=stored["rtfx"],
            latency=None if latency is None else LatencyPercentiles.from_dict(latency),
            peak_gpu_bytes=stored.get("peak_gpu_bytes"),
            usd=stored.get("usd"),
            score=None if score is None else CorpusScore.from_dict(score),
            facts=RunFacts.from_dict(stored),
        )


def summarise(totals: Totals, items: int, headers: Iterable[PartHeader], facts: RunFacts) -> Summary:
    """Return the summary of a run whose items are all committed.

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
    price = facts.config.get("usd_per_hour")
    return Summary(
        items=items,
        done=totals.done,
        failed=totals.failed,
        completion_rate=totals.done / items if items else None,
        failures_by_error=dict(sorted(totals.errors.items())),
        with_warnings=totals.with_warnings,
        audio_s=round(totals.audio_s, 3),
        wall_s=round(wall_s, 3),
        process_s=round(sum(by_worker.values()), 3),
        rtfx=round(totals.audio_s / wall_s, 2) if wall_s else None,
        latency=latency.percentiles(),
        peak_gpu_bytes=peak_gpu_bytes,
        usd=None if price is None else round(sum(by_shard.values()) / 3600 * price, 6),
        score=totals.score if totals.score.by_language else None,
        facts=facts,
    )


def _longest(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the longest time of each name."""
    found: dict[str, float] = {}
    for name, each in seconds:
        found[name] = max(found.get(name, 0.0), each)
    return found


def write_summary(store: Store, summary: Summary) -> Summary:
    """Create summary.json if it is absent. Return the stored summary, which another shard may have written first.

    Raises:
        CheckpointError: the stored file is not a summary of this version of voxbatch.
    """
    store.create(SUMMARY, [json.dumps(summary.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n"])
    if (stored := store.read(SUMMARY)) is None:
        return summary
    try:
        return Summary.from_dict(json.loads(stored))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(
            f"{store.place}/{SUMMARY} is damaged; delete it and run again: it is written again from the parts"
        ) from e
