"""Align a reference with a transcript for the eye: the errors are counted on normalised words, and shown on the words
as they were written.

    reference   "Mr. Smith would go"
    transcript  "mister Smith will"          →  "2=SD": Mr./mister and Smith equal, would/will substituted, go deleted

The normaliser works on whole texts, and may join or split words ("twenty one" → "21"). Each of its words is traced to
the written words that it came from, by aligning it with the written words normalised one by one. A cell is the smallest
group of written words of both sides that no normalised word crosses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from voxbatch.scoring.alignment import Edit, align
from voxbatch.scoring.counts import tokens
from voxbatch.scoring.units import error_unit
from voxbatch.scoring.word_errors import Origin, trace

Cell = tuple[str, int, int]
"""(kind, words of the reference, words of the transcript). The kinds: "=" equal, "S" substitution, "D" deletion, "I"
insertion, "." not compared, because the normaliser removes the words."""


def align_written(reference: Sequence[str], transcript: Sequence[str], lang: str | None, *, equal: bool) -> list[Cell]:
    """Return the cells of two lists of written words, in order. They cover all words of both lists.

    Args:
        lang: the language by which the errors were counted.
        equal: the item is known to have no errors. Then words that are as many on both sides need no alignment.
    """
    if equal and len(reference) == len(transcript):
        return [("=", 1, 1)] * len(reference)
    reference_tokens, reference_origins = _traced(reference, lang)
    transcript_tokens, transcript_origins = _traced(transcript, lang)
    return list(
        _cells(
            align(reference_tokens, transcript_tokens),
            reference_origins,
            transcript_origins,
            len(reference),
            len(transcript),
        )
    )


def encode(cells: Sequence[Cell]) -> str:
    """Return the cells as short text: [("=", 1, 1), ("=", 1, 1), ("S", 1, 2)] → "2=S1:2".

    A number before a kind repeats it; counts follow only if they are not the kind's usual ones.
    """
    parts: list[str] = []
    at = 0
    while at < len(cells):
        cell, run = cells[at], 1
        while at + run < len(cells) and cells[at + run] == cell:
            run += 1
        kind, num_reference, num_transcript = cell
        sizes = "" if (num_reference, num_transcript) == _USUAL[kind] else f"{num_reference}:{num_transcript};"
        parts.append(f"{run if run > 1 else ''}{kind}{sizes}")
        at += run
    return "".join(parts)


_USUAL = {"=": (1, 1), "S": (1, 1), "D": (1, 0), "I": (0, 1), ".": (0, 1)}


def _traced(words: Sequence[str], lang: str | None) -> tuple[list[str], list[Origin]]:
    """Return the normalised words of a text, and the written words that each of them came from."""
    joined = tokens(("" if error_unit(lang) == "character" else " ").join(words), lang)
    return joined, trace(words, joined, lang)


@dataclass(slots=True)
class _GrowingCell:
    """A cell that is being collected: words [reference_start, reference_end) of the reference, and likewise of the
    transcript."""

    reference_start: int
    reference_end: int
    transcript_start: int
    transcript_end: int
    kinds: set[str]

    def cell(self) -> Cell:
        """Return the cell."""
        num_reference, num_transcript = (
            self.reference_end - self.reference_start,
            self.transcript_end - self.transcript_start,
        )
        if self.kinds == {"equal"}:
            return "=", num_reference, num_transcript
        return ("D" if not num_transcript else "I" if not num_reference else "S"), num_reference, num_transcript


def _cells(
    edits: Sequence[Edit],
    reference_origins: Sequence[Origin],
    transcript_origins: Sequence[Origin],
    num_reference: int,
    num_transcript: int,
) -> Iterator[Cell]:
    """Yield the cells that the edits of normalised words make of the written words."""
    group = _GrowingCell(0, 0, 0, 0, set())
    for edit in edits:
        reference_origin = None if edit.reference is None else reference_origins[edit.reference]
        transcript_origin = None if edit.hypothesis is None else transcript_origins[edit.hypothesis]
        if (reference_origin is None or reference_origin[0] >= group.reference_end) and (
            transcript_origin is None or transcript_origin[0] >= group.transcript_end
        ):
            if group.kinds:
                yield group.cell()
            before = group
            reference_start = before.reference_end if reference_origin is None else reference_origin[0]
            transcript_start = before.transcript_end if transcript_origin is None else transcript_origin[0]
            yield from [(".", 1, 0)] * (reference_start - before.reference_end)
            yield from [(".", 0, 1)] * (transcript_start - before.transcript_end)
            group = _GrowingCell(reference_start, reference_start, transcript_start, transcript_start, set())
        group.kinds.add(edit.kind)
        if reference_origin is not None:
            group.reference_end = max(group.reference_end, reference_origin[1])
        if transcript_origin is not None:
            group.transcript_end = max(group.transcript_end, transcript_origin[1])
    if group.kinds:
        yield group.cell()
    yield from [(".", 1, 0)] * (num_reference - group.reference_end)
    yield from [(".", 0, 1)] * (num_transcript - group.transcript_end)
