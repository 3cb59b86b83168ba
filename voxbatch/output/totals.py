"""The sums over all entries of a run, which a merge, a report and a status make in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from voxbatch.failure_kinds import FailureKind
from voxbatch.output.file_digest import FileDigest, RunningDigest
from voxbatch.output.layout import FAILURES
from voxbatch.output.lines import REFERENCE_SEGMENTS_KEY, REFERENCE_WORDS_KEY, word_confidences
from voxbatch.output.parts import PartEntry
from voxbatch.output.products import PRODUCTS, OwnSums, Products
from voxbatch.output.run_file import Run
from voxbatch.scoring.units import scored_language

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import CalibrationFile, Estimator
    from voxbatch.scoring.corpus import CorpusScore
    from voxbatch.scoring.speakers import SpeakerScore
    from voxbatch.scoring.word_times import WordTimes


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
    def of(cls, run: Run, calibration: CalibrationFile | None = None) -> Totals:
        """Return the sums of a run, without entries.

        Args:
            calibration: by it, the WER of transcripts without a reference is estimated.
        """
        estimator = None
        if calibration is not None:
            from voxbatch.scoring.calibration import Estimator

            estimator = Estimator(calibration)
        products = run.products
        return cls(language=run.language, products=products, sums=products.sums(), estimator=estimator)

    def digests(self, run: Run) -> dict[str, FileDigest]:
        """Return the digest of each merged output of a run."""
        return {run.transcripts: self.transcripts.digest(), FAILURES: self.failures.digest()}

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
