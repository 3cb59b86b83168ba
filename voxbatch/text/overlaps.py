"""Find the words that two chunks keep at a forced cut, around which both hold the audio.

Their words there are paired by text and time. The transcript changes from one chunk to the other at the pair that both
chunks spell alike and that is nearest to the cut. If no pair is spelled alike, the nearest pair counts. If no words
pair, each word goes to the chunk whose core holds its middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxbatch.records import SAMPLING_RATE, Span, Word

SAME_WORD_SECONDS = 1.0
"""Distance of the same word in two chunks, middle to middle, below which both are the same utterance. Engines place
words about 0.1 s off inside a chunk, and up to one second off at its edges."""


def switch_point(left: list[Word], right: list[Word], a: Span, b: Span) -> tuple[int, int]:
    """Return the words to keep at a forced cut: (number of words of the left chunk, index of the first word of the
    right one)."""
    begin, cut = b.start / SAMPLING_RATE, a.core_end / SAMPLING_RATE
    slack = SAME_WORD_SECONDS / 2  # one chunk may place a word that both heard outside the overlap
    overlap_start = next((i for i, word in enumerate(left) if word.end > begin - slack), len(left))
    right_near_cut = [word for word in right if not is_behind_cut(word, a)]
    pairs = [(overlap_start + i, j) for i, j in _align(left[overlap_start:], right_near_cut)]
    equal = [(i, j) for i, j in pairs if _normalized(left[i]) == _normalized(right[j]) != ""]
    if pairs:
        i, j = min(equal or pairs, key=lambda pair: abs(_middle(left[pair[0]]) + _middle(right[pair[1]]) - 2 * cut))
        return (i + 1, j + 1) if _middle(left[i]) + _middle(right[j]) <= 2 * cut else (i, j)
    keep = next((i for i, word in enumerate(left) if _middle(word) >= cut), len(left))
    first = next((i for i, word in enumerate(right) if _middle(word) >= cut), len(right))
    if overlap_start == len(left):  # only the right chunk has words around the cut
        first = 0
    elif not right_near_cut:  # only the left chunk has words around the cut
        keep = len(left)
    return keep, first


def may_be_at_cut(word: Word, span: Span) -> bool:
    """Return whether a chunk may lose a word, and those after it, at the forced cut at its end."""
    overlap = span.end - span.core_end
    return overlap > 0 and word.end > (span.core_end - overlap) / SAMPLING_RATE - SAME_WORD_SECONDS / 2


def is_behind_cut(word: Word, span: Span) -> bool:
    """Return whether a word of the next chunk is too late to be at the forced cut at the end of a chunk."""
    return word.start >= span.end / SAMPLING_RATE + SAME_WORD_SECONDS / 2


@dataclass(frozen=True, slots=True)
class _PairChain:
    """An alignment that is built from its start. The last pair is stored first."""

    similarity: float = 0.0
    pair: tuple[int, int] = (-1, -1)
    before: _PairChain | None = None

    def pairs(self) -> list[tuple[int, int]]:
        """Return all pairs, in order."""
        pairs, path = [], self
        while path.before is not None:
            pairs.append(path.pair)
            path = path.before
        return pairs[::-1]


def _align(left: Sequence[Word], right: Sequence[Word]) -> list[tuple[int, int]]:
    """Return pairs (index in left, index in right) of words that are probably one utterance heard twice, in order.

    Of all alignments, the one with the highest sum of similarities is taken.
    """
    row = [_PairChain()] * (len(right) + 1)
    for i, left_word in enumerate(left):
        above, row = row, [_PairChain()]
        for j, right_word in enumerate(right):
            best = max(row[j], above[j + 1], key=lambda path: path.similarity)
            paired = above[j].similarity + _similarity(left_word, right_word)
            row.append(
                _PairChain(paired, (i, j), above[j]) if paired > max(best.similarity, above[j].similarity) else best
            )
    return row[-1].pairs()


def _similarity(left: Word, right: Word) -> float:
    """Return 1 to 2 for the same word nearby, up to 0.5 for different words at the same time (one is misheard),
    else 0."""
    distance = abs(_middle(left) - _middle(right))
    if _normalized(left) and _normalized(left) == _normalized(right):
        return 2 - distance / SAME_WORD_SECONDS if distance < SAME_WORD_SECONDS else 0.0
    common = min(left.end, right.end) - max(left.start, right.start)
    shorter = min(left.end - left.start, right.end - right.start)
    return common / shorter / 2 if shorter > 0 and common >= shorter / 2 else 0.0


def _middle(word: Word) -> float:
    return (word.start + word.end) / 2


def _normalized(word: Word) -> str:
    """Return the form of a word that is compared: lower case, without punctuation."""
    return "".join(c for c in word.text.casefold() if c.isalnum())
