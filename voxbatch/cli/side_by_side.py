"""Show texts below their reference, word below word, in lines of a terminal's width.

    REF  the morning will be      bright       with light
    A    the morning will [guide] [right]      with light
    B    the morning will be      bright  [so] with [-]

An error is in brackets: a wrong word, an added word, or [-] for a missing word. Words are those that are scored, after
normalisation. Words far from every difference are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from voxbatch.safe_text import escape_controls
from voxbatch.scoring.alignment import align
from voxbatch.scoring.counts import tokens
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules

CONTEXT = 4
"""Words that are shown before and after a difference."""
MAX_WORD = 30
"""Columns of a word that are shown."""
_LABEL = 5
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that change the direction of the text after them, also that of other words on the line."""

Row = tuple[str, ...]
"""A column of the table: the reference's word, then that of each text."""


def side_by_side(
    reference: str,
    texts: Mapping[str, str | None],
    lang: str | None,
    width: int,
    max_blocks: int,
    rules: Rules = DEFAULT_RULES,
) -> Iterator[str]:
    """Yield the lines.

    Args:
        reference: the text that is right.
        texts: the texts to show, by their labels. None means that there is no transcript.
        lang: the language by whose rules all are normalised.
        max_blocks: most groups of lines; longer texts are cut.
        rules: the rules that were chosen.
    """
    labels, columns = word_columns(reference, texts, lang, rules)
    block: list[Row] = []
    num_blocks, used = 0, _LABEL
    for column in columns:
        needed = max(map(cell_len, column)) + 1
        if block and used + needed > width + 1:
            yield from _lines(labels, block)
            num_blocks, used, block = num_blocks + 1, _LABEL, []
            if num_blocks == max_blocks:
                yield " " * _LABEL + "…"
                break
            yield ""
        block.append(column)
        used += needed
    else:
        yield from _lines(labels, block)
    for label, text in texts.items():
        if text is None:
            yield f"{label:<{_LABEL}}(no transcript)"


def word_columns(
    reference: str, texts: Mapping[str, str | None], lang: str | None, rules: Rules = DEFAULT_RULES
) -> tuple[list[str], list[Row]]:
    """Return the labels of the rows, and the columns near the differences; see `side_by_side` for the arguments."""
    words = {label: tokens(text, lang, rules) for label, text in texts.items() if text is not None}
    columns = [tuple(map(_shown, column)) for column in _columns(tokens(reference, lang, rules), list(words.values()))]
    return ["REF", *words], list(_near_differences(columns))


def _columns(reference: Sequence[str], texts: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Yield the words that belong together. Words that a text adds come before the reference's next word."""
    added: list[list[list[str]]] = []
    """For each text and each position in the reference, the words that are added there."""
    words: list[list[str]] = []
    """For each text, the word at each position, with its mark."""
    for text in texts:
        added.append([[] for _ in range(len(reference) + 1)])
        words.append([])
        for edit in align(reference, text):
            if edit.hypothesis is None:
                words[-1].append("[-]")
            elif edit.reference is None:
                added[-1][len(words[-1])].append(f"[{text[edit.hypothesis]}]")
            else:
                word = text[edit.hypothesis]
                words[-1].append(word if edit.kind == "equal" else f"[{word}]")
    for position in range(len(reference) + 1):
        here = [row[position] for row in added]
        for k in range(max(map(len, here), default=0)):
            yield ("", *(row[k] if k < len(row) else "" for row in here))
        if position < len(reference):
            yield (reference[position], *(row[position] for row in words))


def _near_differences(columns: Sequence[Row]) -> Iterator[Row]:
    """Yield the columns near those in which the texts differ, with "…" for the others."""
    differing = [k for k, column in enumerate(columns) if len({*column[1:]}) > 1 or len(column) == 2]
    near = {k + step for k in differing for step in range(-CONTEXT, CONTEXT + 1)}
    was_near = True
    for k, column in enumerate(columns):
        if k in near:
            yield column
        elif was_near:
            yield ("…",) * len(column)
        was_near = k in near


def _lines(labels: Sequence[str], block: Sequence[Row]) -> Iterator[str]:
    widths = [max(map(cell_len, column)) for column in block]
    for row, label in enumerate(labels):
        words = (set_cell_size(column[row], width) for column, width in zip(block, widths, strict=True))
        yield f"{label:<{_LABEL}}{' '.join(words)}".rstrip()


def _shown(word: str) -> str:
    """Return a word that moves no cursor and turns no line around, with at most MAX_WORD columns."""
    word = escape_controls(_DIRECTION.sub("", word))
    return word if len(word) <= MAX_WORD else f"{word[: MAX_WORD - 2]}…{']' if word[0] == '[' else ''}"
