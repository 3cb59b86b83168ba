"""Collect the texts of the speakers of each session from the pairs of two files, for the cpWER."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from voxbatch.analysis.readers import TextEntry, TimedText
from voxbatch.analysis.readers.entry import SESSION_KEYS, SPEAKER_KEY
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules
from voxbatch.scoring.records import SpeakerErrors
from voxbatch.scoring.speakers import SpeakerScore

Speakers = dict[str, list[str]]
"""The texts of each speaker, in order."""


@dataclass(slots=True)
class _Session:
    lang: str | None
    reference: Speakers = field(default_factory=dict)
    hypothesis: Speakers = field(default_factory=dict)


@dataclass(slots=True)
class Sessions:
    """The sessions of pairs, whose texts are held. Give it every pair of texts."""

    by_name: dict[str, _Session] = field(default_factory=dict)

    def add(self, reference: TextEntry, hypothesis: TextEntry | None, lang: str | None) -> None:
        """Add a pair, unless its reference names no speakers, or no session.

        Either the entry is a session, whose segments name their speakers, or the rows of both texts name a speaker, and
        that of the reference a session.
        """
        if any(segment.speaker for segment in reference.segments):
            session = self.by_name.setdefault(reference.id, _Session(lang))
            _add_segments(session.reference, reference.segments)
            _add_segments(session.hypothesis, hypothesis.segments if hypothesis else ())
            return
        name = next((reference.row[key] for key in SESSION_KEYS if reference.row.get(key) is not None), None)
        speaker = reference.row.get(SPEAKER_KEY)
        if name is None or speaker is None or hypothesis is reference:
            return
        session = self.by_name.setdefault(str(name), _Session(lang))
        session.reference.setdefault(str(speaker), []).append(reference.text or "")
        if hypothesis is not None and (heard := hypothesis.row.get(SPEAKER_KEY)) is not None:
            session.hypothesis.setdefault(str(heard), []).append(hypothesis.text or "")

    def errors(self, rules: Rules = DEFAULT_RULES) -> SpeakerErrors | None:
        """Return the sums; see SpeakerScore."""
        score = SpeakerScore(rules)
        for session in self.by_name.values():
            score.add(session.reference, session.hypothesis, session.lang)
        return score.errors()


def _add_segments(speakers: Speakers, segments: Iterable[TimedText]) -> None:
    for segment in segments:
        if segment.scored:
            speakers.setdefault(segment.speaker, []).append(segment.text)
