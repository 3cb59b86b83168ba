"""Cut a Transcript into readable cues: at most two lines and seven seconds, with breaks that follow the speech.

Of all ways to cut, the one with the lowest total cost is taken. The module writes no file format; subtitles.py does.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from voxbatch.records import Segment, Transcript, Word

LINE_WIDTH = 42
"""Columns of a line. A wide character (Chinese, Japanese, Korean) takes two columns, so 21 of them fill a line."""
MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""Shortest time of a cue, if the gap to the next cue allows it."""
COLUMNS_PER_SECOND = 20
"""Comfortable reading speed. A cue outlasts its speech if a reader needs more time and the gap after it allows it."""
PAUSE_S = 0.5
"""Shortest gap between two words that counts as a pause."""
_SENTENCE_END = re.compile(r"[.?!…。？！．｡।॥؟۔።]['\"”’»)\]」』）]*$")
_ABBREVIATION = re.compile(r"(^|\s)(Mrs?|Ms|Dr|St|Prof|[A-HJ-Z])\.$")
"""Titles and initials. A name follows them, so their full stop ends no sentence."""
_CLAUSE_END = re.compile(r"[,;:،؛、，；：–—]['\"”’»)\]」』）]*$")


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    """One or two lines."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A unit that no line break divides, never wider than a line. It includes its leading space, if it has one."""

    text: str
    start: float
    end: float


def split_into_cues(transcript: Transcript) -> list[Cue]:
    """Return the text of the transcript as readable cues: two lines of 42 columns, 7 s, in order, never overlapping.

    Of all ways to cut, the one with the lowest total cost (`_costs`) is taken, so that a sentence's last word is not
    left alone in a cue. The joined lines of the cues are the text, apart from white space and control characters. A
    word that is wider than a line is split. Times come from the words. Without word times they come from the segments,
    each spread over its characters.
    """
    pieces = list(_pieces(transcript))
    groups = [pieces[i:j] for i, j in _cheapest_partition(pieces)]
    starts = list(accumulate((round(group[0].start * 1000) for group in groups), lambda a, b: max(a + 1, b)))
    nexts = [*starts[1:], *(start + MAX_CUE_MS for start in starts[-1:])]
    result = []
    for group, start, following in zip(groups, starts, nexts, strict=True):
        columns = sum(_width(piece.text) for piece in group)
        readable = start + max(MIN_CUE_MS, columns * 1000 // COLUMNS_PER_SECOND)
        spoken = round(max(piece.end for piece in group) * 1000)
        end = min(max(readable, spoken), start + MAX_CUE_MS, following)
        result.append(Cue(start, end, _lines(group)))
    return result


def _pieces(transcript: Transcript) -> Iterator[_Piece]:
    now = 0.0
    for (text, start, end), following in pairwise([*_timed_text(transcript), ("", math.inf, math.inf)]):
        now = max(now, start)
        parts = [part for token in re.findall(r"\s*\S+", text) for part in _fit_to_line(token)]
        step = max(0.0, min(end, following[1]) - now) / max(1, sum(map(len, parts)))
        for part in parts:
            yield _Piece(part, now, now + step * len(part))
            now += step * len(part)


def _timed_text(transcript: Transcript) -> Iterator[tuple[str, float, float]]:
    """Yield (text, start, end) of the words, else of the segments, else of the whole: the first that spells the text.

    The slices are cut from the text itself, because only the text says where spaces are.
    """
    text = without_control_characters(transcript.text)
    visible = [i for i, char in enumerate(text) if not char.isspace()]
    whole = Segment(text, 0.0, transcript.audio_duration)
    position = count = 0
    for source in complete_sources(transcript.words, text) or complete_sources(transcript.segments, text) or (whole,):
        count += len(visible_text(source.text))
        end = visible[count - 1] + 1 if count else 0
        yield text[position:end], source.start, source.end
        position = end


def complete_sources(sources: Sequence[Word] | Sequence[Segment], text: str) -> Sequence[Word] | Sequence[Segment]:
    """Return the sources if they, joined, are the text; else nothing, because a subtitle must not leave out speech."""
    return sources if "".join(visible_text(source.text) for source in sources) == visible_text(text) else ()


def without_control_characters(text: str) -> str:
    """Replace control characters by spaces."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)


def visible_text(text: str) -> str:
    """Return the text without white space and control characters."""
    return "".join(without_control_characters(text).split())


def _fit_to_line(token: str) -> Iterator[str]:
    """Yield a token whole if it fits a line, else its characters one by one. Marks and closing punctuation stay with
    the character before them."""
    token = " " * token[0].isspace() + token.strip()
    if _width(token.strip()) <= LINE_WIDTH:
        yield token
        return
    part = ""
    for char in token:
        category = unicodedata.category(char)
        attaches = category[0] == "M" or category in {"Cf", "Po", "Pe", "Pf", "Pd"}
        if part.strip() and not (attaches and _width(part + char) <= LINE_WIDTH):
            yield part
            part = ""
        part += char
    yield part


def _width(text: str) -> int:
    """Return the columns of a text."""
    return len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def _cheapest_partition(pieces: Sequence[_Piece]) -> list[tuple[int, int]]:
    """Return the cheapest partition of the pieces into cues, as [i, j) pairs. It is a shortest path over all pieces
    that fit a cue."""
    widths = [0, *accumulate(_width(piece.text) for piece in pieces)]
    edges, inner = _costs(pieces)
    small = LINE_WIDTH / 2  # a cue of less than half a line costs more: up to 1, like another cue
    best, origin = [0.0], [0]
    for j in range(1, len(pieces) + 1):
        cost, i = min(
            (best[i] + edges[j] + inner[j - 1] - inner[i] + max(0.0, 1.0 - (widths[j] - widths[i]) / small), i)
            for i in _possible_starts(pieces, widths, j)
        )
        best.append(cost)
        origin.append(i)
    cuts = [len(pieces)]
    while cuts[-1]:
        cuts.append(origin[cuts[-1]])
    return list(pairwise(reversed(cuts)))


def _costs(pieces: Sequence[_Piece]) -> tuple[list[float], list[float]]:
    """Return the cost to end a cue after j pieces, and the running sum of the costs to continue.

    The unit is a cue: one more cue costs 1. An end is free at the end of a sentence, cheap at a comma or pause,
    expensive elsewhere, and most expensive within a word. To continue over a pause costs more, the longer the pause is.
    """
    edges, inner = [0.0], [0.0]
    for before, after in pairwise([*pieces, None]):
        pause = after.start - before.end if before and after else 0.0
        edge = 1.0 + _break_penalty(before.text, after.text if after else " ", pause) if before else 0.0
        edges.append(edge)
        inner.append(inner[-1] + (2.5 * pause if pause >= PAUSE_S else 0.0) + 0.3 * (edge == 1.0))
    return edges, inner


def _break_penalty(before: str, after: str, pause: float) -> float:
    """Return how much a break between two pieces disturbs a reader, from 0 at the end of a sentence to 3
    within a word."""
    if _SENTENCE_END.search(before) and not _ABBREVIATION.search(before):
        return 0.0 if after[0] == " " or not after[0].isalnum() or _width(after[0]) == 2 else 1.5
    if _CLAUSE_END.search(before) or pause >= PAUSE_S:
        return 0.6
    wide = _width(before[-1]) == 2 or _width(after[0]) == 2
    return 1.5 if after[0] == " " or wide else 3.0


def _possible_starts(pieces: Sequence[_Piece], widths: Sequence[int], j: int) -> Iterator[int]:
    """Yield every i for which the pieces [i, j) fit a cue. j - 1 always fits: a piece fits a line, and its time can be
    cut."""
    yield j - 1
    second = j - 1
    for i in range(j - 2, -1, -1):
        if (pieces[j - 1].end - pieces[i].start) * 1000 > MAX_CUE_MS:
            return
        if _line_width(pieces, widths, i, j) <= LINE_WIDTH:
            second = i  # the second line takes as many pieces as fit, from the end
        elif _line_width(pieces, widths, i, second) > LINE_WIDTH:
            return
        yield i


def _line_width(pieces: Sequence[_Piece], widths: Sequence[int], i: int, j: int) -> int:
    return widths[j] - widths[i] - (pieces[i].text[0] == " ")


def _lines(group: Sequence[_Piece]) -> tuple[str, ...]:
    """Return one line if it fits, else two lines of similar width, with a preference for a break at punctuation."""
    text = "".join(piece.text for piece in group).strip()
    if _width(text) <= LINE_WIDTH:
        return (text,)
    choices = []
    for k in range(1, len(group)):
        first = "".join(piece.text for piece in group[:k]).strip()
        second = "".join(piece.text for piece in group[k:]).strip()
        widths = _width(first), _width(second)
        penalty = _break_penalty(group[k - 1].text, group[k].text, group[k].start - group[k - 1].end)
        choices.append((max(widths) > LINE_WIDTH, abs(widths[0] - widths[1]) + 20 * penalty, first, second))
    return min(choices)[2:]
