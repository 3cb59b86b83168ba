"""The file summary.json: counts, speed, score and the facts of a run. It is written last.

The figures come from the headers of the parts and from one pass over their entries, which the module `merge` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.file_digest import FileDigest
from voxbatch.output.latency import LatencyPercentiles
from voxbatch.output.layout import SUMMARY, VERSION
from voxbatch.output.parts import Measurements
from voxbatch.output.run_file import Run, RunFacts, RunKey
from voxbatch.output.stored_json import Count, Number, parse_json, record_of
from voxbatch.output.totals import FlagCounts, Totals
from voxbatch.scoring.records import EstimatedWer, SpeakerErrors, TimeAccuracy
from voxbatch.storage import Store, remove_command

if TYPE_CHECKING:
    from voxbatch.scoring.corpus import CorpusScore
else:
    CorpusScore = Any
    """msgspec, which looks for the name, leaves the score to CorpusScore.from_dict."""


CORRECTIONS = "corrections"
"""Key of the sums over the items that a person has corrected, in `of_kind`."""


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
    """`engine`, `config`, `machine` and versions: top-level keys of summary.json."""

    def __repr__(self) -> str:
        """Return the counts, the speed and the score on one line; `to_dict` has everything."""
        score = f", {self.score.rates}" if self.score and self.score.rates else ""
        rtfx = f", RTFx {self.rtfx:g}" if self.rtfx else ""
        return f"Summary({self.done:,} done, {self.failed:,} failed, {self.audio_s:,.1f} s of audio{rtfx}{score})"

    @property
    def key(self) -> RunKey:
        """The key of the run."""
        return RunKey(self.run, self.generation)

    @property
    def failed_in_work(self) -> int:
        """Number of failed items without those that `voxbatch forget` has erased: nobody has to mend these."""
        return self.failed - self.failures_by_kind.get(FailureKind.FORGOTTEN, 0)

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
