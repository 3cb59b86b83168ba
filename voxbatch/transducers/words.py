"""Convert the tokens of a transducer or a CTC model into words with times.

A token is a SentencePiece piece: "▁" stands for a space, and bytes such as <0xE4> are parts of a character. The words,
joined, are the text that the tokenizer itself decodes, behind one space:

    Vocabulary(["▁¡", "Hola", "!", "▁don", "de"]).words([0, 1, 2, 3, 4], …)  →  (" ¡Hola!", " donde")

Punctuation belongs to the word that it touches, and does not count for its times: a model writes a full stop when the
next sentence begins, and "¡" while the sentence before ends. The confidence of a word is the mean probability of its
tokens, as in `vllm.engine.word_times`.

25,000 words a second pass through here, so the facts about the pieces are computed once, and each clip is a few
operations of numpy. A word then takes 4 µs, of which 1 µs makes the `Word` (one busy core of a Xeon with AMX).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxbatch.records import Word
from voxbatch.text.word_boundaries import (
    HELD,
    LETTER_END,
    LETTER_START,
    OPENING,
    SOLID_END,
    SOLID_START,
    SPACED,
    TIMED,
    facts_of,
    with_space,
)

SPACE = "▁"
_SPECIAL = re.compile(r"<[^<>]+>")
"""A piece that is no text: <unk>, <pad>, <blk>, </s>, <|en|>, …"""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_INVALID_BYTES = dict.fromkeys(range(0xDC80, 0xDD00), "\N{REPLACEMENT CHARACTER}")
"""Half surrogates, by which Python decodes invalid bytes."""


class Vocabulary:
    """The pieces of a model, by their ids, and the facts about them."""

    def __init__(self, pieces: Iterable[str]):
        """Compute the facts.

        Args:
            pieces: as SentencePiece writes them.
        """
        given = tuple(pieces)
        special = [bool(_SPECIAL.fullmatch(piece)) for piece in given]
        self._texts = ["" if special[i] else piece.replace(SPACE, " ") for i, piece in enumerate(given)]
        self._bytes = {i: int(found[1], 16) for i, piece in enumerate(given) if (found := _BYTE.fullmatch(piece))}
        self._is_text = ~np.array(special, bool)
        self._is_text[list(self._bytes)] = True
        self._is_byte = np.zeros(len(given), bool)
        self._is_byte[list(self._bytes)] = True
        self._facts = np.array([facts_of(text) for text in self._texts], np.uint8)

    def words(
        self,
        ids: ArrayLike,
        starts: ArrayLike,
        ends: ArrayLike,
        probabilities: ArrayLike | None,
        duration_s: float,
    ) -> tuple[Word, ...]:
        """Return the words of one clip, in order, with times inside [0, duration_s]. No word begins before the one
        before it has ended.

        Args:
            ids: the tokens that the model emitted, in order, of shape (n,). Blank and other pieces that are no text are
                left out.
            starts: seconds of the first frame of each token, in order.
            ends: seconds of the end of each token's last frame, which may be that of its start (a token of duration 0).
            probabilities: 0 to 1 for each token, or NaN if it is unknown. None gives no confidences.
        """
        tokens = np.asarray(ids, np.int64)
        shown = self._is_text[tokens]
        texts, facts = self._pieces(tokens[shown])
        if not (firsts := _word_starts(texts, facts)):
            return ()
        at = np.array(firsts)
        begins, stops = _times(at, facts, np.asarray(starts, float)[shown], np.asarray(ends, float)[shown], duration_s)
        joined, places = "".join(texts), np.cumsum([0, *map(len, texts)])[at].tolist()
        cut = [joined[i:j] for i, j in zip(places, [*places[1:], None], strict=True)]
        cut[0] = with_space(cut[0])
        confidences: Sequence[float | None] = [None] * len(at)
        if probabilities is not None:
            sums = np.add.reduceat(np.asarray(probabilities, float)[shown], at)
            means = np.round(sums / np.diff(at, append=len(texts)), 3).tolist()
            confidences = [None if mean != mean else mean for mean in means]  # NaN
        return tuple(map(Word, cut, begins, stops, confidences))

    def text(self, ids: ArrayLike) -> str:
        """Return the text of tokens without times, as the tokenizer decodes it behind one space."""
        tokens = np.asarray(ids, np.int64)
        joined = "".join(self._pieces(tokens[self._is_text[tokens]])[0])
        return with_space(joined) if joined.strip() else ""

    def _pieces(self, tokens: NDArray[np.int64]) -> tuple[list[str], NDArray[np.uint8]]:
        """Return the text of each token and the facts about it. The first byte of a character has its text."""
        texts, facts = list(map(self._texts.__getitem__, tokens.tolist())), self._facts[tokens]
        if self._bytes and len(places := np.flatnonzero(self._is_byte[tokens])):
            for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                raw = bytes(self._bytes[number] for number in tokens[run].tolist())
                at = int(run[0])
                for char in raw.decode("utf-8", "surrogateescape"):
                    size = len(char.encode("utf-8", "surrogateescape"))
                    texts[at] = char.translate(_INVALID_BYTES)
                    facts[at] = facts_of(texts[at])
                    facts[at + 1 : at + size] = facts[at] & (SOLID_END | LETTER_END | TIMED)
                    at += size
        return texts, facts


def _word_starts(texts: list[str], facts: NDArray[np.uint8]) -> list[int]:
    """Return the indexes of the tokens that begin a word. The last word has the spaces after it."""
    if not len(facts):
        return []
    before, after = np.zeros_like(facts), np.zeros_like(facts)
    before[1:], after[:-1] = facts[:-1], facts[1:]
    # In scripts without spaces, each piece is a word. "他说“你好”": the opening mark goes with the piece after it.
    solid = (facts & SOLID_START > 0) | (facts & LETTER_START > 0) & (before & SOLID_END > 0)
    opening = (facts & OPENING > 0) & (after & (SOLID_START | LETTER_START) > 0)
    solid[1:] &= ~opening[:-1]
    begins = (solid | opening & (before & LETTER_END == 0) | (facts & SPACED > 0)) & (before & HELD == 0)
    begins[0] = True
    firsts: list[int] = np.flatnonzero(begins).tolist()
    if not "".join(texts[firsts[-1] :]).strip():
        firsts.pop()
    return firsts


def _times(
    at: NDArray[np.int64], facts: NDArray[np.uint8], starts: NDArray[np.float64], ends: NDArray[np.float64], last: float
) -> tuple[list[float], list[float]]:
    """Return the starts and ends of the words whose first tokens are given."""
    timed = facts & TIMED > 0
    first = np.minimum.reduceat(np.where(timed, starts, np.inf), at)
    end = np.maximum.reduceat(np.where(timed, ends, -np.inf), at)
    if not (named := np.isfinite(first)).all():  # words of punctuation alone
        first = np.where(named, first, np.minimum.reduceat(starts, at))
        end = np.where(named, end, np.maximum.reduceat(ends, at))
    limit = int(last * 1000) / 1000
    first = np.minimum(np.maximum.accumulate(np.maximum(np.round(first, 3), 0.0)), limit)
    end = np.minimum(np.maximum(np.round(end, 3), first), np.append(first[1:], limit))
    return first.tolist(), end.tolist()
