"""The file summary.json: counts, speed, score and the facts of a run. It is written last.

The figures come from the headers of the parts and from one pass over their entries, which the module `merge` makes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.latency import LatencyPercentiles
from voxbatch.output.layout import SUMMARY, VERSION
from voxbatch.output.lines import REFERENCE_SEGMENTS_KEY, REFERENCE_WORDS_KEY, word_confidences
from voxbatch.output.parts import Measurements, PartEntry
from voxbatch.output.products import PRODUCTS, OwnSums, Products
from voxbatch.output.run_file import Run, RunFacts, RunKey
from voxbatch.output.stored_json import Count, Number, parse_json, record_of
from voxbatch.scoring.records import EstimatedWer, SpeakerErrors, TimeAccuracy
from voxbatch.scoring.units import scored_language
from voxbatch.storage import Store, remove_command

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import Estimator
    from voxbatch.scoring.corpus import CorpusScore
    from voxbatch.scoring.speakers import SpeakerScore
    from voxbatch.scoring.word_times import WordTimes
else:
    CorpusScore = Any
    """msgspec, which looks for the name, leaves the score to CorpusScore.from_dict."""


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


def digest_of(store: Store, name: str) -> FileDigest:
    """Return the digest of a file in OUT. A missing file has the digest of an empty one."""
    digest = RunningDigest()
    if store.exists(name):
        for line in store.lines(name):
            digest.add(line)
    return digest.digest()


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
    score: CorpusScore | None = None
    """None while no item has a reference."""
    word_times: WordTimes | None = None
    """None while no reference has word times."""
    speakers: SpeakerScore | None = None
    """None while no reference names speakers."""
    failures_by_kind: Counter[FailureKind] = field(default_factory=Counter)
    failures_by_error: Counter[str] = field(default_factory=Counter)
    transcripts: RunningDigest = field(default_factory=RunningDigest)
    failures: RunningDigest = field(default_factory=RunningDigest)
    language: str | None = None
    """Language of lines that name none."""
    products: Products = PRODUCTS
    sums: OwnSums | None = None
    """The sums that only this kind of work has."""

    @classmethod
    def of(cls, run: Run) -> Totals:
        """Return the sums of a run, without entries."""
        products = run.products
        return cls(language=run.language, products=products, sums=products.sums())

    def add(self, entry: PartEntry, line: Mapping[str, Any]) -> None:
        """Add an entry, whose line is also given as its JSON object."""
        lang = line.get("lang") or self.language
        if entry.kind == "transcript":
            self._add_transcript(line, lang)
            self.transcripts.add(entry.line + b"\n")
        else:
            self._add_failure(line, lang)
            self.failures.add(entry.line + b"\n")

    def _add_transcript(self, line: Mapping[str, Any], lang: str | None) -> None:
        self.done += 1
        self.audio_s += line["audio_duration"]
        self.with_warnings += bool(line["warnings"])
        self.flags.add({flag["kind"] for flag in line["flags"]})
        if self.estimator is not None:
            self.estimator.add(scored_language(lang), word_confidences(line))
        if counts := self.products.counts(line):
            from voxbatch.scoring.counts import count_characters

            characters = count_characters(line["text"], line["pred_text"], lang)
            self._corpus_score().add(lang, counts, characters=characters)
        if self.sums is not None:
            self.sums.add(line)
        self._add_parts(line, line.get("words", ()), line.get("segments"), lang)

    def _add_failure(self, line: Mapping[str, Any], lang: str | None) -> None:
        self.failed += 1
        self.failures_by_kind[FailureKind.of_line(line)] += 1
        self.failures_by_error[line["error"]] += 1
        if line.get("text") is not None and self.products.counts_missing:
            self._corpus_score().add_missing(lang, line["text"])
        self._add_parts(line, (), None, lang)

    def _corpus_score(self) -> CorpusScore:
        from voxbatch.scoring.corpus import CorpusScore

        self.score = self.score or CorpusScore()
        return self.score

    def _add_parts(self, line: Mapping[str, Any], words: object, segments: object, lang: str | None) -> None:
        """Add the times and the speakers of a line whose reference has them."""
        if line.get(REFERENCE_WORDS_KEY):
            from voxbatch.scoring.word_times import WordTimes, timed_words

            self.word_times = self.word_times or WordTimes()
            self.word_times.add(timed_words(line[REFERENCE_WORDS_KEY]), timed_words(words), lang)
        if line.get(REFERENCE_SEGMENTS_KEY):
            from voxbatch.scoring.speakers import SpeakerScore, texts_of_speakers

            self.speakers = self.speakers or SpeakerScore()
            reference, heard = texts_of_speakers(line[REFERENCE_SEGMENTS_KEY]), texts_of_speakers(segments)
            self.speakers.add(reference, heard, lang)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of summary.json, in its order. docs/outputs.md describes the fields."""

    run: str
    """RunKey.run_id."""
    generation: str
    """RunKey.generation."""
    list: Count
    """Run.list_number."""
    outputs: Mapping[str, FileDigest] = field(default_factory=dict)
    """Size and checksum of transcripts.jsonl and failures.jsonl, by name."""
    digests: Count = 0
    """Number of the merge in the logs of digests; see the module `own_files`."""
    items: Count
    done: Count
    failed: Count
    completion_rate: Number | None
    failures_by_error: Mapping[str, Count]
    failures_by_kind: Mapping[str, Count]
    """The most frequent first, by the names of FailureKind."""
    with_warnings: Count
    flags: FlagCounts
    audio_s: Number
    wall_s: Number
    process_s: Number
    rtfx: Number | None
    latency: LatencyPercentiles
    peak_gpu_bytes: Count | None
    usd: Number | None
    score: CorpusScore | None
    estimated_wer: EstimatedWer | None = None
    """None without a calibration."""
    of_kind: Mapping[str, Any] = field(default_factory=dict)
    """The keys that only this kind of work has; see products.OwnSums."""
    word_times: TimeAccuracy | None = None
    """None if no row of the manifest has word times."""
    speakers: SpeakerErrors | None = None
    """None unless rows of the manifest and transcripts name speakers."""
    facts: RunFacts

    @property
    def key(self) -> RunKey:
        """The key of the run."""
        return RunKey(self.run, self.generation)

    def is_of(self, run: Run) -> bool:
        """Return whether this is the summary of a run with its latest list."""
        return (self.key, self.list) == (run.key, run.list_number)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values for JSON."""
        values = dict[str, Any]()
        for name in self.__slots__:
            if name != "facts":
                values |= self.of_kind if name == "of_kind" else {name: getattr(self, name)}
        records = {
            "outputs": {name: asdict(digest) for name, digest in self.outputs.items()},
            "flags": self.flags.to_dict(),
            "latency": asdict(self.latency),
            "score": self.score and self.score.to_dict(),
            "estimated_wer": self.estimated_wer and asdict(self.estimated_wer),
            "word_times": self.word_times and self.word_times.to_dict(),
            "speakers": self.speakers and asdict(self.speakers),
        }
        return {"version": VERSION, **values, **records, **self.facts.to_dict()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Summary:
        """Rebuild the record from JSON. Unknown keys are those of the kind of work.

        Raises:
            ValueError: another version of voxbatch wrote the file, or a value has another type.
            KeyError, TypeError, AttributeError: a key of a score is missing, or a record there has another type.
        """
        if stored["version"] != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        known = {"version", *cls.__slots__, *RunFacts.__slots__}
        of_kind = {key: value for key, value in stored.items() if key not in known}
        summary = record_of({**stored, "facts": stored, "score": None, "of_kind": of_kind}, cls)
        if stored.get("score") is None:
            return summary
        from voxbatch.scoring.corpus import CorpusScore

        return replace(summary, score=CorpusScore.from_dict(stored["score"]))


def summarise(
    totals: Totals, run: Run, measured: Measurements, outputs: Mapping[str, FileDigest] | None = None
) -> Summary:
    """Return the summary of a run whose items are all committed.

    Wall time counts committed work only: work that a killed process lost is in no part. Shards of the same sharding,
    and the workers of a shard, are assumed to run in parallel, so the longest counts. Different shardings are assumed
    to run one after the other. The workers of a shard share its machine, which is paid for once.

    Latencies are added up over the parts that have them. The peak of GPU memory is the highest of any part.
    """
    by_shard = _longest((shard, seconds) for (shard, _), seconds in measured.wall_s.items())
    longest = _longest((shard.partition("/")[2], seconds) for shard, seconds in by_shard.items())
    wall_s = sum(longest.values(), 0.0)
    facts, items = run.facts, run.items
    price = facts.config.get("usd_per_hour")
    return Summary(
        items=items,
        done=totals.done,
        failed=totals.failed,
        completion_rate=totals.done / items if items else None,
        failures_by_error=dict(sorted(totals.failures_by_error.items())),
        failures_by_kind={kind.value: count for kind, count in totals.failures_by_kind.most_common()},
        with_warnings=totals.with_warnings,
        audio_s=round(totals.audio_s, 3),
        wall_s=round(wall_s, 3),
        process_s=round(sum(measured.wall_s.values(), 0.0), 3),
        rtfx=round(totals.audio_s / wall_s, 2) if wall_s else None,
        latency=measured.latency.percentiles(),
        peak_gpu_bytes=measured.peak_gpu_bytes,
        usd=None if price is None else round(sum(by_shard.values()) / 3600 * price, 6),
        score=totals.score,
        facts=facts,
        run=run.run_id,
        generation=run.generation,
        list=run.list_number,
        flags=totals.flags,
        estimated_wer=None if totals.estimator is None else totals.estimator.estimate(),
        of_kind={} if totals.sums is None else totals.sums.to_dict(),
        word_times=None if totals.word_times is None else totals.word_times.accuracy(),
        speakers=None if totals.speakers is None else totals.speakers.errors(),
        outputs=outputs or {},
    )


def _longest(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for name, duration in seconds:
        longest[name] = max(longest.get(name, 0.0), duration)
    return longest


def read_summary(store: Store) -> Summary | None:
    """Return the content of summary.json, or None if there is none.

    Raises:
        CheckpointError: the file is not a summary of this version of voxbatch.
    """
    if (stored := store.read(SUMMARY)) is None:
        return None
    try:
        return Summary.from_dict(parse_json(stored))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        remedy = "delete it and run again, so that it is written again from the parts"
        command = remove_command(store.place, SUMMARY)
        raise CheckpointError(f"{store.place}/{SUMMARY} is damaged; {remedy}: {command}", "damaged") from e


def read_whole_summary(store: Store, log: Log | None = None) -> Summary | None:
    """Return the content of summary.json. None if it is missing or damaged, which is logged: a merge writes it again
    from the parts."""
    try:
        return read_summary(store)
    except CheckpointError:
        if log is not None:
            log.warning("summary", text=f"{store.place}/{SUMMARY} is damaged; it is written again from the parts")
        return None


def is_finished(store: Store) -> bool:
    """Return whether the run in OUT is finished. summary.json is written last, and names its run.

    Raises:
        CheckpointError: run.json or summary.json is damaged.
    """
    run, summary = run_file.read(store), read_summary(store)
    return run is not None and summary is not None and summary.is_of(run)
