"""Score who said what: the concatenated minimum-permutation word error rate (cpWER) of sessions with speakers.

The texts of each speaker of a session are joined. The speakers of the hypothesis are assigned to those of the reference
so that the errors are fewest, because their names say nothing. A speaker without a counterpart counts as deleted or
inserted. The definition is of S. Watanabe et al., "CHiME-6 Challenge" (2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxbatch.analysis.readers import Entry, TimedText
from voxbatch.analysis.readers.entry import SESSION_KEYS, SPEAKER_KEY
from voxbatch.scoring.counts import ErrorCounts, count_token_errors, tokens
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules, error_unit

Speakers = dict[str, list[str]]
"""The texts of each speaker, in order."""


class SpeakersNotScored(Exception):
    """Texts name speakers, and scipy is not installed. The message says what to do."""


@dataclass(slots=True)
class _Session:
    lang: str | None
    reference: Speakers = field(default_factory=dict)
    hypothesis: Speakers = field(default_factory=dict)


@dataclass(slots=True)
class SpeakerScore:
    """Sum over sessions, whose texts are held until `to_dict`. Give it every pair of texts."""

    rules: Rules = DEFAULT_RULES
    sessions: dict[str, _Session] = field(default_factory=dict)

    def add(self, reference: Entry, hypothesis: Entry | None, lang: str | None) -> None:
        """Add a pair, unless its reference names no speakers, or no session.

        Either the entry is a session, whose segments name their speakers, or the rows of both texts name a speaker, and
        that of the reference a session.
        """
        if any(segment.speaker for segment in reference.segments):
            session = self.sessions.setdefault(reference.id, _Session(lang))
            _add_segments(session.reference, reference.segments)
            _add_segments(session.hypothesis, hypothesis.segments if hypothesis else ())
            return
        name = next((reference.row[key] for key in SESSION_KEYS if reference.row.get(key) is not None), None)
        speaker = reference.row.get(SPEAKER_KEY)
        if name is None or speaker is None or hypothesis is reference:
            return
        session = self.sessions.setdefault(str(name), _Session(lang))
        session.reference.setdefault(str(speaker), []).append(reference.text or "")
        if hypothesis is not None and (heard := hypothesis.row.get(SPEAKER_KEY)) is not None:
            session.hypothesis.setdefault(str(heard), []).append(hypothesis.text or "")

    def to_dict(self) -> dict[str, Any] | None:
        """Return the sums as values for JSON. None if no hypothesis names a speaker.

            {"cpwer": 0.4, "errors": 2, "substitutions": 1, "insertions": 1, "deletions": 0, "reference_words": 5,
             "sessions": 1, "missed_speakers": 0, "false_alarm_speakers": 1}

        Sessions in languages that are counted in characters are left out.

        Raises:
            SpeakersNotScored: scipy is not installed.
        """
        if not any(session.hypothesis for session in self.sessions.values()):
            return None
        total, num_sessions, missed, false_alarms = ErrorCounts(), 0, 0, 0
        for session in self.sessions.values():
            if error_unit(session.lang) == "character":
                continue
            reference, hypothesis = (
                [tokens(" ".join(texts), session.lang, self.rules) for texts in speakers.values()]
                for speakers in (session.reference, session.hypothesis)
            )
            total += _fewest_errors(reference, hypothesis)
            num_sessions += 1
            missed += max(0, len(reference) - len(hypothesis))
            false_alarms += max(0, len(hypothesis) - len(reference))
        return {
            "cpwer": total.reported_rate,
            "errors": total.errors,
            "substitutions": total.substitutions,
            "insertions": total.insertions,
            "deletions": total.deletions,
            "reference_words": total.reference_length,
            "sessions": num_sessions,
            "missed_speakers": missed,
            "false_alarm_speakers": false_alarms,
        }


def _fewest_errors(reference: Sequence[Sequence[str]], hypothesis: Sequence[Sequence[str]]) -> ErrorCounts:
    """Return the errors of the best assignment of speakers, each given by their words."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        reason = "the texts name speakers, and there is no cpWER: scipy is not installed"
        raise SpeakersNotScored(f"{reason}; install it: pip install 'voxbatch[score]'") from error
    # A speaker without a counterpart is paired with silence.
    size = max(len(reference), len(hypothesis))
    reference_words = [*reference, *[()] * (size - len(reference))]
    hypothesis_words = [*hypothesis, *[()] * (size - len(hypothesis))]
    counts = [[count_token_errors(spoken, recognised) for recognised in hypothesis_words] for spoken in reference_words]
    rows, columns = linear_sum_assignment([[pair.errors for pair in row] for row in counts])
    return sum((counts[row][column] for row, column in zip(rows, columns, strict=True)), start=ErrorCounts())


def _add_segments(speakers: Speakers, segments: Iterable[TimedText]) -> None:
    for segment in segments:
        if segment.scored:
            speakers.setdefault(segment.speaker, []).append(segment.text)
