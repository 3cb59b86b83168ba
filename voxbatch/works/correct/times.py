"""Find when the new words of a corrected text are spoken: by `voxbatch align`, else between their neighbours.

A stretch around each change is aligned, from the words before it to those after it, and not the whole recording. What
the aligner does not find, or cannot do, gets the time between its neighbours, and is counted as estimated.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from voxbatch import runner
from voxbatch.analysis.results import read_results
from voxbatch.config import Config
from voxbatch.engines import create
from voxbatch.engines.refusals import language_refusal
from voxbatch.errors import ConfigError, VoxbatchError
from voxbatch.formats.document import visible_text
from voxbatch.languages import primary_subtag
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.lines import SPOKEN_LANGUAGE
from voxbatch.records import ALIGN, Transcript, Word
from voxbatch.runner.steps import steps_of
from voxbatch.scoring.alignment import edit_blocks
from voxbatch.speech.pieces import unreadable
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.works.correct.draft import Draft, DraftPiece

AUTO, NONE = "auto", "none"
ANCHORS = 2
"""Words that are the same, before and after a change, which are aligned with it."""
MARGIN_S = 0.2
"""Seconds of audio around the words of a stretch."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pieces of a draft, among which are new ones, with the audio in which they are spoken."""

    pieces: Sequence[DraftPiece]
    start: float
    end: float
    """Seconds on the recording's clock."""


@dataclass(frozen=True, slots=True)
class Aligner:
    """The engine that finds times, by the options of `voxbatch align`."""

    engine: str = AUTO
    """NONE looks for no times."""
    model: str | None = None
    audio_stream: int | None = None
    """The stream of the recordings that the run has taken."""
    stores: Stores = DEFAULT_STORES

    def align(self, drafts: Iterable[tuple[Mapping[str, Any], Draft]]) -> str:
        """Set the times of new pieces that are found in the audio.

        Args:
            drafts: the line of each item and its draft.

        Returns:
            The reason why nothing is aligned; "" if something was, or if there is no new word.

        Raises:
            ConfigError: the engine or the model that was asked for cannot be used.
        """
        rows, stretches = [], list[Stretch]()
        for line, draft in drafts:
            for stretch in stretches_of(line, draft) if SPOKEN_LANGUAGE not in line else ():
                rows.append(_row(line, stretch, len(stretches)))
                stretches.append(stretch)
        if not stretches or self.engine == NONE:
            return ""
        try:
            for number, words in self._times(rows):
                _set_found(stretches[number].pieces, words)
        except VoxbatchError as e:
            if isinstance(e, ConfigError) and (self.engine, self.model) != (AUTO, None):
                raise
            return str(e)
        return ""

    def _times(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, tuple[Word, ...]]]:
        """Yield the number of each stretch and its words with times.

        Raises:
            VoxbatchError: no engine can do any of them.
        """
        with tempfile.TemporaryDirectory(prefix="voxbatch-correct-") as folder:
            manifest, out = os.path.join(folder, "stretches.jsonl"), os.path.join(folder, "out")
            config = Config(
                source=manifest,
                out=out,
                task=ALIGN,
                engine=self.engine,
                model=self.model,
                audio_stream=self.audio_stream,
                stores=self.stores,
                report=False,
                allow_outside=True,
                fail_unreachable=True,
            )
            choice = steps_of(config).choose_engine()
            with closing(create(choice.name, config.model, {}, config.stores)) as engine:
                spec = engine.spec
            able = [
                row
                for row in rows
                if not unreadable(row["text"], spec.scripts)
                and not (row["lang"] and language_refusal(spec, primary_subtag(row["lang"])))
            ]
            if not able:
                raise ConfigError(f"{spec.model} knows neither the language nor the letters of the texts; give --model")
            with open(manifest, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in able)
            runner.run(config, Log(quiet=True, write=lambda _: None))
            for result in read_results(self.stores.out(out)):
                if isinstance(result.outcome, Transcript):
                    yield int(result.id), result.outcome.words


def stretches_of(line: Mapping[str, Any], draft: Draft) -> Iterator[Stretch]:
    """Yield the stretches of a draft that have new pieces. Those that would overlap are one."""
    pieces, wanted = draft.pieces, set[int]()
    for at, piece in enumerate(pieces if draft.has_words else ()):
        if piece.is_new:
            wanted.update(range(max(0, at - ANCHORS), min(len(pieces), at + ANCHORS + 1)))
    first = float(line.get("offset") or 0.0)
    last = first + line["audio_duration"]
    for _, run in groupby(enumerate(sorted(wanted)), lambda pair: pair[1] - pair[0]):  # consecutive indexes
        indexes = [at for _, at in run]
        begin, end = pieces[indexes[0]], pieces[indexes[-1]]
        start = begin.words[0].start - MARGIN_S if begin.words else first
        stop = end.words[-1].end + MARGIN_S if end.words else last
        start, stop = max(first, start), min(last, stop)
        if stop > start:
            yield Stretch([pieces[at] for at in indexes], round(start, 3), round(stop, 3))


def _row(line: Mapping[str, Any], stretch: Stretch, number: int) -> dict[str, Any]:
    """Return the row of a stretch for a manifest of `voxbatch align`."""
    row = {
        "id": str(number),
        AUDIO_KEY: line[AUDIO_KEY],
        "offset": stretch.start,
        "duration": round(stretch.end - stretch.start, 3),
        "text": " ".join(piece.text for piece in stretch.pieces),
        "lang": line.get("lang"),
    }
    return row if line.get("channel") is None else {**row, "channel": line["channel"]}


def _set_found(pieces: Sequence[DraftPiece], words: Sequence[Word]) -> None:
    """Set the times of new pieces that are among the words with times."""
    texts = [visible_text(piece.text) for piece in pieces]
    for kind, at, number, length in edit_blocks(texts, [visible_text(word.text) for word in words]):
        for k in range(length if kind == "equal" else 0):
            if pieces[at + k].is_new:
                word = words[number + k]
                pieces[at + k].words = (Word(pieces[at + k].text, word.start, word.end),)


def set_times(draft: Draft) -> int:
    """Set the times of all new pieces: those that were found, in the order of the text, and between them the others.

    Returns:
        The number of words whose times are estimated.
    """
    estimated, latest, at = 0, 0.0, 0
    for is_new, group in groupby(draft.pieces if draft.has_words else (), lambda piece: piece.is_new):
        pieces = [*group]
        at += len(pieces)
        if is_new:
            following = draft.pieces[at].words[0].start if at < len(draft.pieces) else float("inf")
            estimated += _spread(pieces, latest, max(latest, following))
        latest = max([latest, *(word.end for piece in pieces for word in piece.words)])
    return estimated


def _spread(pieces: Sequence[DraftPiece], floor: float, ceiling: float) -> int:
    """Set the times of new pieces that follow each other, between `floor` and `ceiling`. Return how many of them are
    estimated."""
    low = min(max(floor, min(piece.low or 0.0 for piece in pieces)), ceiling)
    high = max(low, min(ceiling, max(piece.high or 0.0 for piece in pieces)))
    estimated = 0
    for is_found, group in groupby(pieces, lambda piece: bool(piece.words)):
        waiting = [*group]
        if is_found:
            for piece in waiting:
                start = min(max(piece.words[0].start, floor), ceiling)
                end = min(max(piece.words[0].end, start), ceiling)
                piece.words = (Word(piece.text, round(start, 3), round(end, 3)),)
                floor = low = end
            continue
        estimated += len(waiting)
        rest = pieces[pieces.index(waiting[-1]) + 1 :]
        stop = max(low, min(max(rest[0].words[0].start, floor), ceiling)) if rest else max(low, high)
        step = (stop - low) / sum(len(piece.text) for piece in waiting)
        for piece in waiting:
            end = low + step * len(piece.text)
            piece.words = (Word(piece.text, round(low, 3), round(end, 3)),)
            low = end
        floor = low
    return estimated
