"""Add up what the page's tables and charts show, one item or one part at a time.

The confusions of words are those of the first MAX_WORDS words of the references of items with errors, because each of
these texts is normalised and aligned once more. They depend only on the items and their order.

Memory does not grow with the run: groups, pairs of (errors, length) and the time line are bounded. The numbers of items
and of seconds are in the summary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from voxbatch.failure_kinds import FailureKind
from voxbatch.report.selection import Row
from voxbatch.safe_text import escape_controls
from voxbatch.scoring import NO_VALUE, ErrorCounts, Tally, Unit, error_unit, scored_language
from voxbatch.scoring.alignment import align
from voxbatch.scoring.counts import tokens

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
CONFIDENCE_CLASSES = 20
"""Classes of confidence, from 0 to 1."""
MAX_GROUPS = 2_000
"""Groups of one key that are added up. Items of further groups count as OTHER."""
OTHER = "(other values)"
TIME_CLASSES = 60
"""Steps of the chart of the work."""


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


@dataclass(frozen=True, slots=True)
class PartSpeed:
    """The work in one part."""

    sharding: str
    """The number of shards, by which a run may have been continued: shardings come one after the other."""
    process: str
    """The process that made the part; the processes of a sharding run side by side."""
    wall_s: float
    audio_s: float
    committed_at: float | None = None
    """Time of the commit in seconds since 1970. None if an earlier version wrote the part."""


class Figures:
    """The sums over a run.

    Args:
        keys: keys of the manifest's lines by whose values the errors are grouped, besides the language.
        language: language of items that name none.
    """

    def __init__(self, keys: Sequence[str], language: str | None):
        self._language = language
        self.by_language: dict[tuple[str, Unit], Tally] = {}
        """Sums by (language, unit)."""
        self.by_key: dict[str, dict[tuple[str, Unit], Tally]] = {key: {} for key in keys}
        """Sums by (value, unit), for each key."""
        self.by_duration: dict[tuple[int, Unit], Tally] = {}
        """Sums by (class of DURATIONS_S, unit)."""
        self.rates: Counter[int] = Counter()
        """Items by the class of their error rate."""
        self.confidences: Counter[int] = Counter()
        """Items by the class of their confidence."""
        self.confidence_sum, self.with_confidence = 0.0, 0
        self.flagged = 0
        """Items with flags. A summary of an old version does not have it."""
        self.flags: Counter[str] = Counter()
        """Items by kind of flag."""
        self.failures: Counter[FailureKind] = Counter()
        self.confusions = Confusions()

    def language_of(self, line: Mapping[str, Any]) -> str | None:
        """Return the language by which an item is scored."""
        return line.get("lang") or self._language

    def add_transcript(self, line: Mapping[str, Any], counts: ErrorCounts | None, row: Row) -> None:
        """Add an item with a transcript.

        Args:
            counts: its errors; None without a reference.
        """
        self.flagged += bool(row.flags)
        self.flags.update(row.flags)
        if row.confidence is not None:
            self.confidence_sum += row.confidence
            self.with_confidence += 1
            self.confidences[min(CONFIDENCE_CLASSES - 1, int(row.confidence * CONFIDENCE_CLASSES))] += 1
        if counts is None:
            return
        for tally in self._tallies(line):
            tally.add(counts, missing=False)
        unit, duration = error_unit(self.language_of(line)), line["audio_duration"]
        at = max(i for i, least in enumerate(DURATIONS_S) if duration >= least)
        self.by_duration.setdefault((at, unit), Tally()).add(counts, missing=False)
        if counts.errors:
            self.confusions.add(line["text"], line["pred_text"], self.language_of(line))
        if (rate := counts.rate) is not None:
            self.rates[min(RATE_CLASSES + 1, math.ceil(rate / RATE_STEP - 1e-9))] += 1

    def add_failure(self, line: Mapping[str, Any], counts: ErrorCounts | None, kind: FailureKind) -> None:
        """Add an item that failed. Its whole reference counts as deleted."""
        self.failures[kind] += 1
        if counts is not None:
            for tally in self._tallies(line):
                tally.add(counts, missing=True)

    def _tallies(self, line: Mapping[str, Any]) -> Iterator[Tally]:
        """Yield the sums to which an item belongs: that of its language, and one for each key."""
        lang = self.language_of(line)
        unit = error_unit(lang)
        yield self.by_language.setdefault((scored_language(lang), unit), Tally())
        for key, groups in self.by_key.items():
            value = line.get(key)
            name = NO_VALUE if value is None or value == "" else str(value)[:200]
            if (name, unit) not in groups and len(groups) >= MAX_GROUPS:
                name = OTHER
            yield groups.setdefault((name, unit), Tally())

    def total(self, unit: Unit) -> Tally:
        """Return the sum over the languages that are counted in a unit."""
        total = Tally()
        for (_, tally_unit), tally in self.by_language.items():
            if tally_unit == unit:
                total.merge(tally)
        return total


def work_over_time(parts: Sequence[PartSpeed]) -> list[tuple[float, float]]:
    """Return (seconds since the first work, seconds of audio done by then), the sum over all processes.

    Only committed work counts, as in the summary: pauses between two starts, and work that was lost, do not show.
    """
    spans, begin = list[tuple[float, float, float]](), 0.0  # (start, end, audio seconds per second)
    for sharding in dict.fromkeys(part.sharding for part in parts):
        ends: dict[str, float] = {}
        for part in parts:
            if part.sharding == sharding:
                start = ends.get(part.process, begin)
                ends[part.process] = start + part.wall_s
                if part.wall_s > 0:
                    spans.append((start, start + part.wall_s, part.audio_s / part.wall_s))
        begin = max(ends.values())
    if not spans:
        return []
    width = begin / TIME_CLASSES
    sums = [0.0] * TIME_CLASSES
    for start, end, speed in spans:
        for at in range(int(start / width), min(TIME_CLASSES, math.ceil(end / width))):
            overlap = min(end, (at + 1) * width) - max(start, at * width)
            sums[at] += speed * max(0.0, overlap) / width
    return [(0.0, 0.0), *(((at + 1) * width, work_s) for at, work_s in enumerate(accumulate(s * width for s in sums)))]
