"""Score who said what: the concatenated minimum-permutation word error rate (cpWER) of sessions with speakers.

The texts of each speaker of a session are joined. The speakers of the hypothesis are assigned to those of the reference
so that the errors are fewest, because their names say nothing. A speaker without a counterpart counts as deleted or
inserted. The definition is of S. Watanabe et al., "CHiME-6 Challenge" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from voxbatch.scoring.counts import ErrorCounts, count_token_errors, tokens
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules
from voxbatch.scoring.records import SpeakerErrors
from voxbatch.scoring.units import error_unit

Speakers = Mapping[str, Sequence[str]]
"""The texts of each speaker, in order."""


@dataclass(slots=True)
class SpeakerScore:
    """Sum over sessions. Those in languages that are counted in characters are left out."""

    rules: Rules = DEFAULT_RULES
    counts: ErrorCounts = field(default_factory=ErrorCounts)
    sessions: int = 0
    missed: int = 0
    """Speakers of references that have no counterpart."""
    false_alarms: int = 0
    names_speakers: bool = False
    """True if any hypothesis names a speaker."""

    def add(self, reference: Speakers, hypothesis: Speakers, lang: str | None) -> None:
        """Add a session, unless its reference names no speakers."""
        self.names_speakers |= bool(hypothesis)
        if not reference or error_unit(lang) == "character":
            return
        spoken, heard = (
            [tokens(" ".join(texts), lang, self.rules) for texts in speakers.values()]
            for speakers in (reference, hypothesis)
        )
        # A speaker without a counterpart is paired with silence.
        silence = [list[str]()] * abs(len(spoken) - len(heard))
        self.sessions += 1
        self.missed += max(0, len(spoken) - len(heard))
        self.false_alarms += max(0, len(heard) - len(spoken))
        spoken, heard = (spoken + silence, heard) if len(spoken) < len(heard) else (spoken, heard + silence)
        counts = [[count_token_errors(words, others) for others in heard] for words in spoken]
        for row, column in enumerate(assignment([[pair.errors for pair in row] for row in counts])):
            self.counts += counts[row][column]

    def errors(self) -> SpeakerErrors | None:
        """Return the figures. None if no hypothesis names a speaker, or no reference."""
        if not (self.names_speakers and self.sessions):
            return None
        counts = self.counts
        return SpeakerErrors(
            counts.reported_rate, counts.errors, counts.substitutions, counts.insertions, counts.deletions,
            counts.reference_length, self.sessions, self.missed, self.false_alarms,
        )  # fmt: skip


def texts_of_speakers(segments: object) -> dict[str, list[str]]:
    """Return the texts of each speaker of a list of objects with `speaker` and `text`, as the rows of manifests and
    outputs have them. Other entries are left out; a value of another kind has no speakers."""
    speakers: dict[str, list[str]] = {}
    for segment in segments if isinstance(segments, list) else ():
        if isinstance(segment, dict) and isinstance(segment.get("speaker"), str):
            speakers.setdefault(segment["speaker"], []).append(str(segment.get("text", "")))
    return speakers


def assignment(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return the column of each row of a square matrix so that the sum of the costs is least.

        [[4, 1], [2, 0]]  →  [1, 0]

    Each row is added by the cheapest path of exchanges, with costs reduced by prices (R. Jonker and A. Volgenant,
    1987). scipy has the same function, and 140 MB.
    """
    import numpy as np

    size = len(costs)
    row_prices, column_prices = np.zeros(size), np.zeros(size + 1)
    row_of = np.full(size + 1, -1)  # the row of each column; the last column is the start of each path
    for row in range(size):
        column, row_of[size] = size, row
        distances, before = np.full(size + 1, np.inf), np.full(size, size)
        done = np.zeros(size + 1, np.bool_)
        while row_of[column] >= 0:
            done[column] = True
            reduced = costs[row_of[column]] - row_prices[row_of[column]] - column_prices[:size]
            nearer = np.flatnonzero((reduced < distances[:size]) & ~done[:size])
            distances[nearer], before[nearer] = reduced[nearer], column
            column = int(np.where(done, np.inf, distances).argmin())
            step = distances[column]
            row_prices[row_of[done]] += step
            column_prices[done] -= step
            distances[~done] -= step
        while column != size:
            row_of[column], column = row_of[before[column]], before[column]
    return [int(column) for column in row_of[:size].argsort()]
