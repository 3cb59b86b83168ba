"""Measure how far the times of recognised words are from those of a reference.

The words of both texts are aligned. The times of words that are equal are compared; times of a word that was not
recognised, or that the reference does not have, say nothing. Each word is normalised alone, by the rules of the
language: "three" and "3" are equal in English, but "twenty" "one" and "21" are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from voxbatch.scoring.normalize import DEFAULT_RULES, Rules, normalizer
from voxbatch.scoring.records import Differences, TimeAccuracy

_PERCENTILES = {"median": 0.5, "p95": 0.95}


class TimedWord(NamedTuple):
    """A word and its times in seconds."""

    text: str
    start: float
    end: float


@dataclass(slots=True)
class WordTimes:
    """Sum over the items that have word times in the reference. Differences are counted by the millisecond, so memory
    does not grow with the number of words."""

    rules: Rules = DEFAULT_RULES
    reference_words: int = 0
    starts: Counter[int] = field(default_factory=Counter)
    """Number of matched words by the difference of their starts, in milliseconds."""
    ends: Counter[int] = field(default_factory=Counter)

    def add(self, reference: Sequence[TimedWord], hypothesis: Sequence[TimedWord], lang: str | None) -> None:
        """Add the words of an item. An item that was not transcribed has no words in the hypothesis."""
        if not reference:
            return
        from voxbatch.scoring.alignment import align

        reference_words, hypothesis_words = (
            _comparable(reference, lang, self.rules),
            _comparable(hypothesis, lang, self.rules),
        )
        self.reference_words += len(reference_words)
        for edit in align([text for text, _ in reference_words], [text for text, _ in hypothesis_words]):
            if edit.kind == "equal" and edit.reference is not None and edit.hypothesis is not None:
                reference_word, hypothesis_word = (
                    reference_words[edit.reference][1],
                    hypothesis_words[edit.hypothesis][1],
                )
                self.starts[round(abs(reference_word.start - hypothesis_word.start) * 1000)] += 1
                self.ends[round(abs(reference_word.end - hypothesis_word.end) * 1000)] += 1

    def accuracy(self) -> TimeAccuracy | None:
        """Return the figures. None if no reference has word times."""
        if not self.reference_words:
            return None
        matched = self.starts.total()
        return TimeAccuracy(self.reference_words, matched, _differences(self.starts), _differences(self.ends))


def timed_words(value: object) -> list[TimedWord]:
    """Return the words of a list of objects with `word`, `start` and `end`, as the rows of manifests and outputs have
    them. Entries without times are left out; a value of another kind has no words."""
    words = []
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and isinstance(text := entry.get("word", entry.get("text")), str):
            start, end = entry.get("start"), entry.get("end")
            if isinstance(start, int | float) and isinstance(end, int | float):
                words.append(TimedWord(text.strip(), float(start), float(end)))
    return words


def _comparable(words: Iterable[TimedWord], lang: str | None, rules: Rules) -> list[tuple[str, TimedWord]]:
    """Return each word with its normalised text. Words of which nothing is left, such as punctuation, are left out."""
    return [(text, word) for word in words if (text := _normalized(word.text, lang, rules))]


@lru_cache(maxsize=1 << 16)
def _normalized(word: str, lang: str | None, rules: Rules) -> str:
    return normalizer(lang, rules)(word)


def _differences(counts: Counter[int]) -> Differences | None:
    total = counts.total()
    if not total:
        return None
    values = sorted(counts)
    percentiles = {}
    for name, part in _PERCENTILES.items():
        below = 0
        for value in values:
            below += counts[value]
            if below >= part * total:
                percentiles[name] = value / 1000
                break
    mean = sum(value * count for value, count in counts.items()) / total / 1000
    return Differences(round(mean, 6), **percentiles)
