"""The outputs of a run that transcribes: the sums over what a person has corrected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voxbatch.output.lines import recogniser_keys
from voxbatch.output.products import Products
from voxbatch.output.summary import CORRECTIONS, Summary
from voxbatch.safe_text import counted
from voxbatch.scoring.corpus import CorpusScore
from voxbatch.scoring.counts import ErrorCounts, count_characters
from voxbatch.scoring.units import RATES


class CorrectionSums:
    """The items that a person has corrected, and the errors of the recogniser there; see products.OwnSums."""

    def __init__(self) -> None:
        self._items = self._estimated_words = 0
        self._score = CorpusScore()

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line, if a person has corrected it."""
        if recognised := recogniser_keys(line):
            lang = line.get("lang")
            self._items += 1
            self._estimated_words += recognised["estimated_words"]
            characters = count_characters(line["pred_text"], recognised["pred_text"], lang)
            self._score.add(lang, ErrorCounts.of_line(recognised), characters=characters)

    def to_dict(self) -> dict[str, Any]:
        """Return the number of items, that of words without times of their own, and the score of the recogniser's texts
        against the corrections."""
        if not self._items:
            return {}
        sums = {"items": self._items, "estimated_words": self._estimated_words, "score": self._score.to_dict()}
        return {CORRECTIONS: sums}


class TranscriptProducts(Products):
    """The outputs of a run that transcribes."""

    def sums(self) -> CorrectionSums:
        """See Products."""
        return CorrectionSums()

    def outcome_lines(self, summary: Summary) -> Iterator[str]:
        """See Products."""
        if corrections := summary.of_kind.get(CORRECTIONS):
            score = CorpusScore.from_dict(corrections["score"])
            rates = ((name, score.total(unit).rate) for name, unit in RATES.items())
            shown = "".join(f", {name} of the recogniser {rate:.2%}" for name, rate in rates if rate is not None)
            yield f"{counted(corrections['items'], 'item')} corrected by hand{shown}"


PRODUCTS = TranscriptProducts()
