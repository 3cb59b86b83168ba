"""Figures of a summary beside its error rates: an estimate without references, the speakers, the times of words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EstimatedWer:
    """An estimate of the WER of a run without references; see the module `calibration`."""

    wer: float
    interval: tuple[float, float]
    """95 % interval, for recordings like those of the calibration."""
    items: int
    """Number of transcripts that it is about."""
    left_out: int
    """Number of transcripts without word confidences, or in languages that were not calibrated."""
    calibration: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Absolute differences in seconds."""

    mean: float
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class SpeakerErrors:
    """The errors of who said what in sessions with speakers; see the module `speakers`."""

    cpwer: float | None
    """None if the references have no words."""
    errors: int
    substitutions: int
    insertions: int
    deletions: int
    reference_words: int
    sessions: int
    missed_speakers: int
    false_alarm_speakers: int

    def __str__(self) -> str:
        """Return a line for people."""
        rate = "no rate" if self.cpwer is None else f"{self.cpwer:.2%}"
        return (
            f"cpWER {rate}, {self.errors:,} of {self.reference_words:,} words in {self.sessions:,} sessions; speakers: "
            f"{self.missed_speakers:,} missed, {self.false_alarm_speakers:,} too many"
        )


@dataclass(frozen=True, slots=True)
class TimeAccuracy:
    """Differences between the word times of a corpus and those of its reference."""

    reference_words: int
    matched: int
    """Number of them that were recognised. Only their times are compared."""
    start: Differences | None
    """None if no word matched."""
    end: Differences | None

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON. `matched_share` is `matched` / `reference_words`.

        {"reference_words": 4, "matched": 3, "matched_share": 0.75, "start": {"mean": 0.02, …}, "end": {…}}
        """
        return {
            "reference_words": self.reference_words,
            "matched": self.matched,
            "matched_share": round(self.matched / self.reference_words, 6),
            "start": self.start and asdict(self.start),
            "end": self.end and asdict(self.end),
        }
