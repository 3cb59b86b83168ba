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
from functools import lru_cache
from itertools import groupby

from voxbatch.scoring import error_unit
from voxbatch.scoring.alignment import Edit, align
from voxbatch.scoring.counts import tokens

Cell = tuple[str, int, int]
"""(kind, words of the reference, words of the transcript). The kinds: "=" equal, "S" substitution, "D" deletion, "I"
insertion, "." not compared, because the normaliser removes the words."""


def written_words(text: str, lang: str | None) -> list[str]:
    """Return the words of a text as they were written, or its characters if the language is written without spaces."""
    words = text.split()
    return list("".join(words)) if error_unit(lang) == "character" else words


def align_written(reference: Sequence[str], transcript: Sequence[str], lang: str | None, *, equal: bool) -> list[Cell]:
    """Return the cells of two lists of written words, in order. They cover all words of both lists.

    Args:
        reference: words of the reference.
        transcript: words of the transcript.
        lang: the language by which the errors were counted.
        equal: the item is known to have no errors. Then words that are as many on both sides need no alignment.
    """
    if equal and len(reference) == len(transcript):
        return [("=", 1, 1)] * len(reference)
    wanted, wanted_from = _traced(reference, lang)
    found, found_from = _traced(transcript, lang)
    return list(_cells(align(wanted, found), wanted_from, found_from, len(reference), len(transcript)))


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
        kind, wanted, found = cell
        sizes = "" if (wanted, found) == _USUAL[kind] else f"{wanted}:{found};"
        parts.append(f"{run if run > 1 else ''}{kind}{sizes}")
        at += run
    return "".join(parts)


_USUAL = {"=": (1, 1), "S": (1, 1), "D": (1, 0), "I": (0, 1), ".": (0, 1)}


def _traced(words: Sequence[str], lang: str | None) -> tuple[list[str], list[_Origin]]:
    """Return the normalised words of a text, and the written words that each of them came from."""
    single, owners = list[str](), list[int]()
    for position, word in enumerate(words):
        for token in _tokens_of_word(word, lang):
            single.append(token)
            owners.append(position)
    joined = tokens(("" if error_unit(lang) == "character" else " ").join(words), lang)
    if joined == single:
        return joined, [(owner, owner + 1) for owner in owners]
    traced, last = list[_Origin](), (0, 0)
    for is_equal, run in groupby(align(joined, single), key=lambda edit: edit.kind == "equal"):
        edits = list(run)
        from_words = [owners[edit.hypothesis] for edit in edits if edit.hypothesis is not None]
        if is_equal:
            traced += [(owner, owner + 1) for owner in from_words]
        else:  # the words between two equal ones became these together
            last = (from_words[0], from_words[-1] + 1) if from_words else last
            traced += [last for edit in edits if edit.reference is not None]
        last = traced[-1] if traced else last
    return joined, traced


_Origin = tuple[int, int]
"""Written words [first, end) from which a normalised word came."""


@lru_cache(maxsize=100_000)
def _tokens_of_word(word: str, lang: str | None) -> tuple[str, ...]:
    return tuple(tokens(word, lang))


@dataclass(slots=True)
class _Group:
    """A cell that is being collected: [wanted, wanted_end) of the reference, [found, found_end) of the transcript."""

    wanted: int
    wanted_end: int
    found: int
    found_end: int
    kinds: set[str]

    def cell(self) -> Cell:
        """Return the cell."""
        wanted, found = self.wanted_end - self.wanted, self.found_end - self.found
        if self.kinds == {"equal"}:
            return "=", wanted, found
        return ("D" if not found else "I" if not wanted else "S"), wanted, found


def _cells(
    edits: Sequence[Edit],
    wanted_from: Sequence[_Origin],
    found_from: Sequence[_Origin],
    num_wanted: int,
    num_found: int,
) -> Iterator[Cell]:
    """Yield the cells that the edits of normalised words make of the written words."""
    group = _Group(0, 0, 0, 0, set())
    for edit in edits:
        wanted = None if edit.reference is None else wanted_from[edit.reference]
        found = None if edit.hypothesis is None else found_from[edit.hypothesis]
        if (wanted is None or wanted[0] >= group.wanted_end) and (found is None or found[0] >= group.found_end):
            if group.kinds:
                yield group.cell()
            before = group
            first_wanted = before.wanted_end if wanted is None else wanted[0]
            first_found = before.found_end if found is None else found[0]
            yield from [(".", 1, 0)] * (first_wanted - before.wanted_end)
            yield from [(".", 0, 1)] * (first_found - before.found_end)
            group = _Group(first_wanted, first_wanted, first_found, first_found, set())
        group.kinds.add(edit.kind)
        if wanted is not None:
            group.wanted_end = max(group.wanted_end, wanted[1])
        if found is not None:
            group.found_end = max(group.found_end, found[1])
    if group.kinds:
        yield group.cell()
    yield from [(".", 1, 0)] * (num_wanted - group.wanted_end)
    yield from [(".", 0, 1)] * (num_found - group.found_end)
