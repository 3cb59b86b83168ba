"""Add up a corpus one item at a time: errors over reference length, overall and by language.

It keeps sums only, so a million items take no more memory than ten. It keeps no rate of a single item and never
averages rates. Any other way of grouping is one more dictionary of `Tally`, beside the one by language.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from voxbatch.score.counts import ErrorCounts, count_errors
from voxbatch.score.normalize import language, unit

RATE_DIGITS = 6
"""Decimal places of a rate as reported: one error in a million words still shows."""


@dataclass(slots=True)
class Tally:
    """The sum over some items that are counted in the same unit."""

    counts: ErrorCounts = field(default_factory=ErrorCounts)
    items: int = 0
    missing: int = 0

    def add(self, counts: ErrorCounts, *, missing: bool) -> None:
        self.counts += counts
        self.items += not missing
        self.missing += missing

    def merge(self, other: Tally) -> None:
        self.counts += other.counts
        self.items += other.items
        self.missing += other.missing

    def to_dict(self, lang_unit: str) -> dict[str, Any]:
        rate = self.counts.rate
        return {
            "wer" if lang_unit == "word" else "cer": None if rate is None else round(rate, RATE_DIGITS),
            "errors": self.counts.errors,
            "substitutions": self.counts.substitutions,
            "insertions": self.counts.insertions,
            "deletions": self.counts.deletions,
            f"reference_{lang_unit}s": self.counts.reference_length,
            "items": self.items,
            "missing": self.missing,
        }


@dataclass(slots=True)
class CorpusScore:
    """Feed it every item that has a reference: `add` where it was transcribed, `add_missing` where it was not."""

    by_language: dict[str, Tally] = field(default_factory=dict)

    def add(self, lang: str | None, counts: ErrorCounts) -> None:
        self._tally(lang).add(counts, missing=False)

    def add_missing(self, lang: str | None, reference: str) -> ErrorCounts:
        """An item that has a reference and no transcript: its whole reference counts as deleted."""
        counts = count_errors(reference, "", lang)
        self._tally(lang).add(counts, missing=True)
        return counts

    def total(self, lang_unit: str) -> Tally:
        """The sum over the languages counted in words, or over those counted in characters: the two do not add up."""
        total = Tally()
        for lang, tally in self.by_language.items():
            if unit(lang) == lang_unit:
                total.merge(tally)
        return total

    def to_dict(self) -> dict[str, Any]:
        """For a summary: `wer` over the languages with words, `cer` over those without, None where there is nothing.

        {"wer": 0.25, "cer": null, "items": 2, "missing": 0,
         "words": {"wer": 0.25, "errors": 2, …, "reference_words": 8, "items": 2, "missing": 0},
         "characters": {"cer": null, "errors": 0, …},
         "by_language": {"en": {"wer": 0.25, …}}}
        """
        words = self.total("word").to_dict("word")
        characters = self.total("character").to_dict("character")
        return {
            "wer": words["wer"],
            "cer": characters["cer"],
            "items": words["items"] + characters["items"],
            "missing": words["missing"] + characters["missing"],
            "words": words,
            "characters": characters,
            "by_language": {lang: self.by_language[lang].to_dict(unit(lang)) for lang in sorted(self.by_language)},
        }

    def _tally(self, lang: str | None) -> Tally:
        return self.by_language.setdefault(language(lang), Tally())
