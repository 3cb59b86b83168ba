"""Add up a corpus one item at a time: errors over reference length, overall and by language.

Only sums are kept, so a million items take no more memory than ten. Rates of single items are not kept, and rates are
never averaged. Another way of grouping needs one more dictionary of `Tally`, next to the one by language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.languages import language_tag
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.normalize import error_unit, normalizer_name, scored_language

RATE_DIGITS = 6
"""Decimal places of a reported rate: one error in a million words still shows."""

DETECTED_LANGUAGE = "detected_language"
"""Key of an output line for the language that the engine detected. A line has it if nobody gave the language. Its
`lang` is the same language then."""


def line_language(line: Mapping[str, Any], language: str | None) -> str | None:
    """Return the language by which a line is scored: the `lang` that was given, else `language`, else the detected one.

    Args:
        line: an output line, a line of a manifest, or any line with `lang`.
        language: language of lines for which none was given.
    """
    lang = line.get("lang")
    tag = language_tag(lang) if isinstance(lang, str) else ""
    return (language or tag) if line.get(DETECTED_LANGUAGE) else (tag or language)


@dataclass(slots=True)
class Tally:
    """The sum over items that are counted in the same unit."""

    counts: ErrorCounts = field(default_factory=ErrorCounts)
    items: int = 0
    """Number of items with a transcript."""
    missing: int = 0
    """Number of items with a reference but without a transcript."""

    def add(self, counts: ErrorCounts, *, missing: bool) -> None:
        """Add the counts of one item. `missing` means that the item has no transcript."""
        self.counts += counts
        self.items += not missing
        self.missing += missing

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        self.counts += other.counts
        self.items += other.items
        self.missing += other.missing

    @property
    def rate(self) -> float | None:
        """Errors / reference length, as it is reported. None without a reference text."""
        rate = self.counts.rate
        return None if rate is None else round(rate, RATE_DIGITS)

    def to_dict(self, lang_unit: str) -> dict[str, Any]:
        """Return the sums and the rate as values for JSON: `wer` if `lang_unit` is "word", else `cer`."""
        return {
            "wer" if lang_unit == "word" else "cer": self.rate,
            "errors": self.counts.errors,
            "substitutions": self.counts.substitutions,
            "insertions": self.counts.insertions,
            "deletions": self.counts.deletions,
            f"reference_{lang_unit}s": self.counts.reference_length,
            "items": self.items,
            "missing": self.missing,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], lang_unit: str) -> Tally:
        """Rebuild a tally from the result of `to_dict`.

        Raises:
            KeyError, TypeError: `to_dict` did not write this value.
        """
        errors = stored["substitutions"], stored["insertions"], stored["deletions"]
        return cls(ErrorCounts(*errors, stored[f"reference_{lang_unit}s"]), stored["items"], stored["missing"])


@dataclass(slots=True)
class CorpusScore:
    """The score of a corpus. Give it every item that has a reference: `add` with a transcript, `add_missing`
    without."""

    by_language: dict[str, Tally] = field(default_factory=dict)

    def add(self, lang: str | None, counts: ErrorCounts) -> None:
        """Add the counts of an item with a transcript."""
        self._tally(lang).add(counts, missing=False)

    def add_missing(self, lang: str | None, reference: str) -> ErrorCounts:
        """Add an item with a reference and no transcript: the whole reference counts as deleted. Return its counts."""
        counts = count_errors(reference, "", lang)
        self._tally(lang).add(counts, missing=True)
        return counts

    def total(self, lang_unit: str) -> Tally:
        """Return the sum over the languages that are counted in words, or in characters. The two cannot be added."""
        total = Tally()
        for lang, tally in self.by_language.items():
            if error_unit(lang) == lang_unit:
                total.merge(tally)
        return total

    @property
    def wer(self) -> float | None:
        """Word error rate over the languages that are counted in words; None without such a reference."""
        return self.total("word").rate

    def to_dict(self) -> dict[str, Any]:
        """Return the score for a summary: `wer` over languages with words, `cer` over others, None without items.

        {"wer": 0.25, "cer": null, "items": 2, "missing": 0,
         "words": {"wer": 0.25, "errors": 2, …, "reference_words": 8, "items": 2, "missing": 0},
         "characters": {"cer": null, "errors": 0, …},
         "by_language": {"en": {"wer": 0.25, …, "normalizer": "Whisper's English rules (…)"}}}
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
            "by_language": {
                lang: {**self.by_language[lang].to_dict(error_unit(lang)), "normalizer": normalizer_name(lang)}
                for lang in sorted(self.by_language)
            },
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> CorpusScore:
        """Rebuild a score from the result of `to_dict`.

        Raises:
            KeyError, TypeError, AttributeError: `to_dict` did not write this value.
        """
        return cls({lang: Tally.from_dict(each, error_unit(lang)) for lang, each in stored["by_language"].items()})

    def _tally(self, lang: str | None) -> Tally:
        return self.by_language.setdefault(scored_language(lang), Tally())
