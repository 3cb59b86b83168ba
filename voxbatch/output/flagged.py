"""Find the transcripts of a run that have flags, the worst first, also while the run is in progress."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.lines import read_transcript
from voxbatch.output.merge import read_entries
from voxbatch.output.summary import FlagCounts
from voxbatch.records import (
    CUT_OFF,
    LOST_SPEECH,
    LOW_CONFIDENCE,
    OTHER_LANGUAGE,
    REPETITION,
    SPEAKING_RATE,
    TEXT_OVER_SILENCE,
    Flag,
)
from voxbatch.storage import Store

SEVERITY = {
    LOST_SPEECH: 3,
    REPETITION: 3,
    OTHER_LANGUAGE: 3,
    TEXT_OVER_SILENCE: 2,
    SPEAKING_RATE: 2,
    CUT_OFF: 2,
    LOW_CONFIDENCE: 1,
}
"""Weight of a second of each kind: 3 if all of the text is lost or invented there, 2 if a part of it may be, 1 if the
words are only doubtful."""


@dataclass(frozen=True, slots=True)
class FlaggedItem:
    """A transcript that has flags."""

    index: int
    """Position among the manifest's items."""
    id: str
    audio: str
    text: str
    confidence: float | None
    severity: float
    """Sum over the flags of the weight of the kind × the seconds of the stretch."""
    flags: tuple[Flag, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the item as values for JSON, with the names of an output line."""
        return {
            "id": self.id,
            AUDIO_KEY: self.audio,
            "severity": round(self.severity, 3),
            "confidence": self.confidence,
            "flags": [asdict(flag) for flag in self.flags],
            "pred_text": self.text,
        }


@dataclass(slots=True)
class Flagged:
    """The flags of a run so far."""

    items: int = 0
    """Number of items of the run."""
    transcripts: int = 0
    """Number of transcripts that are committed."""
    without_flags_key: int = 0
    """Number of these that an earlier version of voxbatch wrote, which knew no flags."""
    counts: FlagCounts = field(default_factory=FlagCounts)
    worst: list[FlaggedItem] = field(default_factory=list)
    """The items with the highest severity, the worst first. Equal ones are in the order of the manifest."""


def find_flagged(store: Store, limit: int | None, kind: str | None = None) -> Flagged:
    """Return the flags of the run in OUT, of the items that are committed so far.

    Args:
        store: OUT.
        limit: the maximum number of items to return; None returns all of them.
        kind: the only kind of flag that counts.

    Raises:
        ConfigError: there is no run in OUT.
        CheckpointError: run.json or a part is damaged.
        StorageError: OUT cannot be read.
    """
    run = run_file.read_existing(store)
    found = Flagged(run.items)

    def items() -> Iterator[FlaggedItem]:
        for entry in read_entries(store, run.key):
            if entry.kind != "transcript":
                continue
            line = json.loads(entry.line)
            transcript = read_transcript(line)
            flags = tuple(flag for flag in transcript.flags if kind in (None, flag.kind))
            found.transcripts += 1
            found.without_flags_key += "flags" not in line
            found.counts.add({flag.kind for flag in flags})
            if flags:
                severity = sum(SEVERITY.get(flag.kind, 1) * _seconds(flag, transcript.audio_duration) for flag in flags)
                names = line["id"], line[AUDIO_KEY], transcript.text, line.get("confidence")
                yield FlaggedItem(entry.index, *names, severity, flags)

    def rank(item: FlaggedItem) -> tuple[float, int]:
        return -item.severity, item.index

    found.worst = sorted(items(), key=rank) if limit is None else heapq.nsmallest(limit, items(), key=rank)
    return found


def _seconds(flag: Flag, duration: float) -> float:
    """Return the seconds of the stretch that a flag is about."""
    return duration if flag.start is None or flag.end is None else flag.end - flag.start
