"""Add up the errors of the items with references: rates by group, by duration and by item, and the confusions of words.

The confusions are those of the first MAX_WORDS words of the references of items with errors, because each of these
texts is normalised and aligned once more. They depend only on the items and their order.

Memory does not grow with the run: groups and pairs of (errors, length) are bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxbatch.safe_text import escape_controls
from voxbatch.scoring.alignment import align
from voxbatch.scoring.corpus import NO_VALUE, CorpusScore, ScoreOptions, Tally, group_of
from voxbatch.scoring.counts import ErrorCounts, tokens
from voxbatch.scoring.units import RATES, Unit, error_unit

MAX_WORDS = 100_000
"""Most words of references that are aligned. The English rules take 0.1 ms for a word."""
MAX_CHARACTERS = 50_000
"""Longest text that is aligned: an hour of speech."""
SHOWN = 12
"""Rows of each table of confusions."""
LEAST_OCCURRENCES = 3
"""Times that a word must be in the references to be among those that are most often wrong."""
DURATIONS_S = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 1200.0, 3600.0)
"""Lower bounds of the classes of durations, in seconds."""
RATE_STEP, RATE_CLASSES = 0.05, 20
"""Classes of error rates: 0, then 20 steps of 5 percentage points, then everything above 100 %."""
MAX_GROUPS = 2_000
"""Groups of one key that are added up. Items of further groups count as OTHER."""
OTHER = "(other values)"
MAX_GROUP_ROWS = 50
"""Most groups of a key that are listed, the largest first."""
LEAST_ITEMS = 5
"""Items from which an interval is shown. The interval of fewer says nothing."""


@dataclass(frozen=True, slots=True)
class ConfusionRow:
    """A row of a table of confusions."""

    reference: str
    """The word that was spoken. Empty for an insertion."""
    transcript: str
    """The word that was written. Empty for a deletion."""
    count: int
    of: int | None = None
    """Times that the word is in the references, for a word that is often wrong."""

    @property
    def search(self) -> str:
        """The word by which the items are found."""
        return self.transcript or self.reference


class Confusions:
    """The confusions of a run."""

    def __init__(self) -> None:
        self.num_words = 0
        """Words of the references that were aligned."""
        self._pairs: Counter[tuple[str, str]] = Counter()
        """Substitutions, deletions (word, "") and insertions ("", word)."""
        self._words: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()

    def add(self, reference: str, text: str, lang: str | None) -> None:
        """Add an item with errors."""
        if self.num_words >= MAX_WORDS or max(len(reference), len(text)) > MAX_CHARACTERS:
            return
        spoken, written = tokens(reference, lang), tokens(text, lang)
        self.num_words += len(spoken)
        self._words.update(spoken)
        for edit in align(spoken, written):
            if edit.kind == "equal":
                continue
            word = "" if edit.reference is None else spoken[edit.reference]
            self._pairs[word, "" if edit.hypothesis is None else written[edit.hypothesis]] += 1
            if word:
                self._wrong[word] += 1

    def tables(self) -> Iterator[tuple[str, list[ConfusionRow]]]:
        """Yield the title and the rows of each table that has rows, the most frequent first."""
        pairs = sorted(self._pairs.items(), key=lambda entry: (-entry[1], entry[0]))
        for title, sides in (("Confused", [True, True]), ("Left out", [True, False]), ("Added", [False, True])):
            rows = [_row(*pair, count) for pair, count in pairs if [bool(word) for word in pair] == sides][:SHOWN]
            if rows:
                yield title, rows
        rates = sorted(
            ((wrong / self._words[word], word) for word, wrong in self._wrong.items()
             if self._words[word] >= LEAST_OCCURRENCES),
            key=lambda entry: (-entry[0], -self._words[entry[1]], entry[1]),
        )  # fmt: skip
        if rates:
            yield (
                "Most often wrong",
                [_row(word, "", self._wrong[word], self._words[word]) for _, word in rates[:SHOWN]],
            )


def _row(reference: str, transcript: str, count: int, of: int | None = None) -> ConfusionRow:
    return ConfusionRow(escape_controls(reference[:60]), escape_controls(transcript[:60]), count, of)


class Errors:
    """The sums over the items with references of a run."""

    def __init__(self, keys: Sequence[str]):
        """Begin without items. `keys` are those of the manifest's lines by whose values the errors are grouped."""
        self._score = CorpusScore(options=ScoreOptions(by=tuple(keys)))
        self.by_duration: dict[tuple[int, Unit], Tally] = {}
        """Sums by (class of DURATIONS_S, unit)."""
        self.rates: Counter[int] = Counter()
        """Items by the class of their error rate."""
        self.confusions = Confusions()

    def add(self, line: Mapping[str, Any], lang: str | None, counts: ErrorCounts, *, missing: bool) -> None:
        """Add an item.

        Args:
            lang: language by which it is scored.
            missing: it has no transcript.
        """
        row = {key: self._group(line, key) for key in self._score.options.by}
        self._score.add(lang, counts, row, missing=missing)
        if missing:
            return
        at = max(i for i, least in enumerate(DURATIONS_S) if line["audio_duration"] >= least)
        self.by_duration.setdefault((at, error_unit(lang)), Tally()).add(counts, missing=False)
        if counts.errors:
            self.confusions.add(line["text"], line["pred_text"], lang)
        if (rate := counts.rate) is not None:
            self.rates[min(RATE_CLASSES + 1, math.ceil(rate / RATE_STEP - 1e-9))] += 1

    def _group(self, line: Mapping[str, Any], key: str) -> str:
        """Return the group of an item by a key."""
        name, groups = group_of(line, key)[:200] or NO_VALUE, self._score.groups.get(key, {})
        return name if name in groups or len(groups) < MAX_GROUPS else OTHER

    def totals(self) -> list[tuple[str, Unit, Tally, tuple[float, float] | None]]:
        """Return (name, unit, sum, interval) of each rate."""
        return [(name, unit, tally := self._score.total(unit), _interval(tally)) for name, unit in RATES.items()]

    def groups(self) -> Iterator[tuple[str, list[GroupRow]]]:
        """Yield the rows of each table of groups, the languages first."""
        score = self._score
        yield "language", _group_rows({(lang, error_unit(lang)): tally for lang, tally in score.by_language.items()})
        for key in score.options.by:
            groups = score.groups.get(key, {}).items()
            units = ((name, group, unit) for name, group in groups for unit in set(map(error_unit, group.by_language)))
            yield key, _group_rows({(name, unit): group.total(unit) for name, group, unit in units})


def _interval(tally: Tally) -> tuple[float, float] | None:
    return tally.interval if tally.items >= LEAST_ITEMS else None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of a table of groups."""

    name: str
    unit: Unit
    tally: Tally
    interval: tuple[float, float] | None
    share: float
    """Length of the bar, from 0 to 1."""
    whisker: tuple[float, float] | None
    """The interval on the scale of the bar."""


def _group_rows(groups: Mapping[tuple[str, Unit], Tally]) -> list[GroupRow]:
    """Return the largest groups, the highest rate first."""
    largest = sorted(groups.items(), key=lambda entry: (-entry[1].counts.reference_length, entry[0]))[:MAX_GROUP_ROWS]
    intervals = [_interval(tally) for _, tally in largest]
    highest = max((tally.counts.rate or 0.0 for _, tally in largest), default=0.0)
    scale = max([highest, *(ends[1] for ends in intervals if ends)]) or 1.0
    rows = [
        GroupRow(
            name=escape_controls(name),
            unit=unit,
            tally=tally,
            interval=ends,
            share=(tally.counts.rate or 0.0) / scale,
            whisker=ends and (ends[0] / scale, ends[1] / scale),
        )
        for ((name, unit), tally), ends in zip(largest, intervals, strict=True)
    ]
    return sorted(rows, key=lambda row: (-(row.tally.counts.rate or 0.0), row.name))


def duration_class(at: int) -> str:
    """Return the name of a class of durations: "2–5 s"."""
    if at + 1 == len(DURATIONS_S):
        return f"> {DURATIONS_S[at] / 3600:g} h"
    least, most = DURATIONS_S[at], DURATIONS_S[at + 1]
    return f"{least:g}–{most:g} s" if most <= 60 else f"{least / 60:g}–{most / 60:g} min"
