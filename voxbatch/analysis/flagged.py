"""Find the transcripts that have flags, the worst first: those of a run, also while it is in progress, or of a file."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from voxbatch.errors import CheckpointError, ConfigError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.layout import TRANSCRIPTS
from voxbatch.output.lines import parse_line, parse_merged_line
from voxbatch.output.outcomes import flags_of
from voxbatch.output.products import PRODUCTS
from voxbatch.output.run_file import Run
from voxbatch.output.totals import FlagCounts
from voxbatch.records import (
    CUT_OFF,
    LOST_SPEECH,
    LOW_CONFIDENCE,
    MISHEARD,
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
    MISHEARD: 3,
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
    excerpt: str
    """The text that the flags are about; see `_excerpt`."""

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
    """Number of items of the run, or of lines of the file."""
    transcripts: int = 0
    """Number of transcripts that are committed."""
    failures_by_kind: Counter[str] = field(default_factory=Counter)
    """Number of items that failed, by FailureKind."""
    counts: FlagCounts = field(default_factory=FlagCounts)
    worst: list[FlaggedItem] = field(default_factory=list)
    """The items with the highest severity, the worst first. Equal ones are in the order of the manifest."""


def find_flagged(store: Store, limit: int | None, kind: str | None = None, file: str | None = None) -> Flagged:
    """Return the flags of the run in OUT, of the items that are committed so far; or those of a file of transcripts.

    Args:
        store: OUT, or the folder of the file.
        file: name of a file with lines of a transcripts.jsonl.

    Raises:
        ConfigError: there is no run in OUT, or the file has other lines.
        CheckpointError: run.json or a part is damaged.
        StorageError: OUT or the file cannot be read.
    """
    flagged, products = Flagged(), PRODUCTS
    if file is None:
        run = run_file.read_existing(store)
        products, lines = run.products, _run_lines(store, run, flagged)
    else:
        lines = _file_lines(store, file, flagged)

    def items() -> Iterator[FlaggedItem]:
        for index, line in lines:
            flags = tuple(flag for flag in flags_of(line) if kind in (None, flag.kind))
            flagged.transcripts += 1
            flagged.counts.add({flag.kind for flag in flags})
            if flags:
                severity = sum(SEVERITY.get(flag.kind, 1) * _seconds(flag, line["audio_duration"]) for flag in flags)
                recording = f"{products.recordings_place(store.place)}{line[AUDIO_KEY]}"
                text = line.get(products.text_key) or ""
                names = line["id"], recording, text, line.get("confidence")
                yield FlaggedItem(index, *names, severity, flags, _excerpt(text, line.get("segments", ()), flags))

    def rank(item: FlaggedItem) -> tuple[float, int]:
        return -item.severity, item.index

    flagged.worst = sorted(items(), key=rank) if limit is None else heapq.nsmallest(limit, items(), key=rank)
    return flagged


def warnings_of(store: Store, file: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the id and the warnings of each transcript that has some, of a run or of a file; see `find_flagged`."""
    run = run_file.read_existing(store) if file is None else None
    lines = _run_lines(store, run, Flagged()) if run else _file_lines(store, file or "", Flagged())
    yield from ((line["id"], line["warnings"]) for _, line in lines if line.get("warnings"))


def _run_lines(store: Store, run: Run, flagged: Flagged) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index and the line of each transcript of a run, and count the items."""
    flagged.items = run.items
    for entry in Entries(store, run):
        line = parse_line(store, entry, run.products)
        if entry.kind == "transcript":
            yield entry.index, line
        else:
            flagged.failures_by_kind[FailureKind.of_line(line)] += 1


def _file_lines(store: Store, name: str, flagged: Flagged) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index and the line of each transcript of a file, and count them."""
    for index, text in enumerate(store.lines(name)):
        flagged.items += 1
        try:
            yield index, parse_merged_line(store, TRANSCRIPTS, index + 1, text)
        except CheckpointError as e:
            reason = f"line {index + 1:,} is no transcript with flags; give the OUT of a run, or its {TRANSCRIPTS}"
            raise ConfigError(f"{store.place}/{name}: {reason}") from e


def _excerpt(text: str, segments: Sequence[dict[str, Any]], flags: Sequence[Flag]) -> str:
    """Return the segments that the flags are about, with … for the others. Return the whole text if a flag is about the
    whole recording, or if no segment is at the place of a flag."""
    stretches = [(flag.start, flag.end) for flag in flags if flag.start is not None and flag.end is not None]
    shown = [
        segment["text"] if any(segment["start"] < end and segment["end"] > start for start, end in stretches) else "…"
        for segment in segments
    ]
    if len(stretches) < len(flags) or {*shown} <= {"…"}:
        return text
    return " ".join(part for shown_text, same in groupby(shown) for part in (["…"] if shown_text == "…" else same))


def _seconds(flag: Flag, duration: float) -> float:
    """Return the seconds of the stretch that a flag is about."""
    return duration if flag.start is None or flag.end is None else flag.end - flag.start
