"""The file summary.json: counts, speed, score and the facts of a run. It is written last.

The figures come from the headers of the parts and from one pass over their entries, which the module `merge` makes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from voxbatch.calibration import EstimatedWer, Estimator
from voxbatch.errors import CheckpointError
from voxbatch.latency import Latency, LatencyPercentiles
from voxbatch.output import run_file, stored_json
from voxbatch.output.checkpoint import PartHeader
from voxbatch.output.layout import SUMMARY, VERSION
from voxbatch.output.lines import word_confidences
from voxbatch.output.run_file import RunFacts, RunFile, RunKey
from voxbatch.scoring import CorpusScore, ErrorCounts, count_characters, scored_language
from voxbatch.scoring.word_times import REFERENCE_WORDS_KEY, TimeAccuracy, WordTimes, timed_words
from voxbatch.storage import Store, remove_command


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and the checksum of a file."""

    bytes: int
    sha256: str
    """SHA-256, in hexadecimal digits."""


class RunningDigest:
    """The digest of a file whose lines come one by one."""

    def __init__(self) -> None:
        self._size, self._sha256 = 0, hashlib.sha256()

    def add(self, line: bytes) -> None:
        """Add a line."""
        self._size += len(line)
        self._sha256.update(line)

    def digest(self) -> FileDigest:
        """Return the digest of the lines so far."""
        return FileDigest(self._size, self._sha256.hexdigest())


@dataclass(slots=True)
class FlagCounts:
    """Numbers of transcripts that have flags."""

    items: int = 0
    """Number of transcripts with at least one flag."""
    by_kind: dict[str, int] = field(default_factory=dict)
    """Number of transcripts with a flag of each kind."""

    def add(self, kinds: Set[str]) -> None:
        """Add a transcript with flags of these kinds."""
        self.items += bool(kinds)
        for kind in kinds:
            self.by_kind[kind] = self.by_kind.get(kind, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as values for JSON, sorted by kind."""
        return {"items": self.items, "by_kind": dict(sorted(self.by_kind.items()))}


@dataclass(slots=True)
class Totals:
    """Sums over all entries, from one pass."""

    done: int = 0
    failed: int = 0
    with_warnings: int = 0
    flags: FlagCounts = field(default_factory=FlagCounts)
    estimator: Estimator | None = None
    """Estimates the WER from confidences, if there is a calibration."""
    audio_s: float = 0.0
    score: CorpusScore = field(default_factory=CorpusScore)
    word_times: WordTimes = field(default_factory=WordTimes)
    errors: dict[str, int] = field(default_factory=dict)
    """Number of failures by class name."""
    transcripts: RunningDigest = field(default_factory=RunningDigest)
    """Digest of transcripts.jsonl."""
    failures: RunningDigest = field(default_factory=RunningDigest)
    """Digest of failures.jsonl."""

    def add_transcript(self, line: Mapping[str, Any], language: str | None) -> None:
        """Add the output line of a transcript. `language` is the language of a line that names none."""
        self.done += 1
        self.audio_s += line["audio_duration"]
        self.with_warnings += bool(line["warnings"])
        self.flags.add({flag["kind"] for flag in line.get("flags") or ()})  # an earlier version wrote no flags
        lang = line.get("lang") or language
        if self.estimator is not None:
            self.estimator.add(scored_language(lang), word_confidences(line))
        if line.get("text") is not None:
            counts = ErrorCounts(line["substitutions"], line["insertions"], line["deletions"], line["reference_length"])
            self.score.add(lang, counts, characters=count_characters(line["text"], line["pred_text"], lang))
        reference_words = timed_words(line.get(REFERENCE_WORDS_KEY))
        self.word_times.add(reference_words, timed_words(line["words"]) if reference_words else (), lang)

    def add_failure(self, line: Mapping[str, Any], language: str | None) -> None:
        """Add the output line of a failure. `language` is the language of a line that names none."""
        self.failed += 1
        self.errors[line["error"]] = self.errors.get(line["error"], 0) + 1
        if line.get("text") is not None:
            self.score.add_missing(line.get("lang") or language, line["text"])
        self.word_times.add(timed_words(line.get(REFERENCE_WORDS_KEY)), (), line.get("lang") or language)


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
    run: str = ""
    """RunKey.run_id. Empty if an old version wrote the file, like the next two fields."""
    generation: str = ""
    """RunKey.generation."""
    flags: FlagCounts | None = None
    """None if an old version wrote the file."""
    estimated_wer: EstimatedWer | None = None
    """None without a calibration."""
    word_times: TimeAccuracy | None = None
    """None if no row of the manifest has word times."""
    outputs: Mapping[str, FileDigest] = field(default_factory=dict)
    """Size and checksum of transcripts.jsonl and failures.jsonl, by name."""

    @property
    def key(self) -> RunKey:
        """The key of the run."""
        return RunKey(self.run, self.generation)

    def is_of(self, run: RunKey) -> bool:
        """Return whether this is the summary of a run. An old version did not write the run, and had no generations."""
        return self.key == run or (not self.run and not run.generation)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values for JSON."""
        return {
            "version": VERSION,
            "run": self.run,
            "generation": self.generation,
            "outputs": {name: asdict(digest) for name, digest in self.outputs.items()},
            "items": self.items,
            "done": self.done,
            "failed": self.failed,
            "completion_rate": self.completion_rate,
            "failures_by_error": dict(self.failures_by_error),
            "with_warnings": self.with_warnings,
            "flags": self.flags and self.flags.to_dict(),
            "audio_s": self.audio_s,
            "wall_s": self.wall_s,
            "process_s": self.process_s,
            "rtfx": self.rtfx,
            "latency": self.latency and self.latency.to_dict(),
            "peak_gpu_bytes": self.peak_gpu_bytes,
            "usd": self.usd,
            "score": self.score and self.score.to_dict(),
            "estimated_wer": self.estimated_wer and self.estimated_wer.to_dict(),
            "word_times": self.word_times and self.word_times.to_dict(),
            **self.facts.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Summary:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            ValueError: another version of voxbatch wrote the file.
            KeyError, TypeError, AttributeError: a key is missing, or a value has another type.
        """
        if stored_json.field(stored, "version", int) != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        latency, score, estimated = stored.get("latency"), stored["score"], stored.get("estimated_wer")
        outputs = stored_json.optional(stored, "outputs", dict) or {}
        return cls(
            items=stored_json.count(stored, "items"),
            done=stored_json.count(stored, "done"),
            failed=stored_json.count(stored, "failed"),
            completion_rate=_optional_number(stored, "completion_rate"),
            failures_by_error={
                name: stored_json.count(stored["failures_by_error"], name)
                for name in stored_json.field(stored, "failures_by_error", dict)
            },
            with_warnings=stored_json.count(stored, "with_warnings"),
            audio_s=stored_json.number(stored, "audio_s"),
            wall_s=stored_json.number(stored, "wall_s"),
            process_s=stored_json.number(stored, "process_s"),
            rtfx=_optional_number(stored, "rtfx"),
            latency=None if latency is None else LatencyPercentiles.from_dict(latency),
            peak_gpu_bytes=stored_json.optional(stored, "peak_gpu_bytes", int),
            usd=_optional_number(stored, "usd"),
            score=None if score is None else CorpusScore.from_dict(score),
            facts=RunFacts.from_dict(stored),
            run=stored_json.optional(stored, "run", str) or "",
            generation=stored_json.optional(stored, "generation", str) or "",
            flags=_flag_counts(stored),
            estimated_wer=None if estimated is None else EstimatedWer.from_dict(estimated),
            word_times=None if stored.get("word_times") is None else TimeAccuracy.from_dict(stored["word_times"]),
            outputs={
                name: FileDigest(stored_json.count(each, "bytes"), stored_json.field(each, "sha256", str))
                for name, each in outputs.items()
            },
        )


def _flag_counts(stored: Mapping[str, Any]) -> FlagCounts | None:
    flags = stored_json.optional(stored, "flags", dict)
    if flags is None:
        return None
    by_kind = stored_json.field(flags, "by_kind", dict)
    return FlagCounts(stored_json.count(flags, "items"), {kind: stored_json.count(by_kind, kind) for kind in by_kind})


def _optional_number(stored: Mapping[str, Any], name: str) -> float | None:
    return None if stored.get(name) is None else stored_json.number(stored, name)


def summarise(
    totals: Totals, run: RunFile, headers: Iterable[PartHeader], outputs: Mapping[str, FileDigest] | None = None
) -> Summary:
    """Return the summary of a run whose items are all committed.

    Wall time counts committed work only: work that a killed process lost is in no part. Shards of the same sharding,
    and the workers of a shard, are assumed to run in parallel, so the longest counts. Different shardings are assumed
    to run one after the other. The workers of a shard share its machine, which is paid for once.

    Latencies are added up over the parts that have them. The peak of GPU memory is the highest of any part.
    """
    by_worker: dict[tuple[str, int], float] = {}
    latency, peak_gpu_bytes = Latency(), None
    for header in headers:
        at = header.measured_shard, header.worker
        by_worker[at] = by_worker.get(at, 0.0) + header.wall_s
        if header.latency is not None:
            latency.update(header.latency)
        if header.peak_gpu_bytes is not None:
            peak_gpu_bytes = max(peak_gpu_bytes or 0, header.peak_gpu_bytes)
    by_shard = _longest((shard, seconds) for (shard, _), seconds in by_worker.items())
    longest = _longest((shard.partition("/")[2], seconds) for shard, seconds in by_shard.items())
    wall_s = sum(longest.values())
    facts, items = run.facts, run.items
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
        run=run.run_id,
        generation=run.generation,
        flags=totals.flags,
        estimated_wer=None if totals.estimator is None else totals.estimator.estimate(),
        word_times=totals.word_times.accuracy(),
        outputs=outputs or {},
    )


def _longest(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the longest time of each name."""
    found: dict[str, float] = {}
    for name, each in seconds:
        found[name] = max(found.get(name, 0.0), each)
    return found


def read_summary(store: Store) -> Summary | None:
    """Return the content of summary.json, or None if there is none.

    Raises:
        CheckpointError: the file is not a summary of this version of voxbatch.
    """
    if (stored := store.read(SUMMARY)) is None:
        return None
    try:
        return Summary.from_dict(json.loads(stored))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        remedy = "delete it and run again, so that it is written again from the parts"
        command = remove_command(store.place, SUMMARY)
        raise CheckpointError(f"{store.place}/{SUMMARY} is damaged; {remedy}: {command}", "damaged") from e


def is_finished(store: Store) -> bool:
    """Return whether the run in OUT is finished. summary.json is written last, and names its run.

    Raises:
        CheckpointError: run.json or summary.json is damaged.
    """
    run, summary = run_file.read(store), read_summary(store)
    return run is not None and summary is not None and summary.is_of(run.key)
