"""Cut a Transcript into readable cues of few lines and at most seven seconds, with breaks that follow the speech.

Of all ways to cut, the one with the lowest total cost is taken. The module writes no file format; subtitles.py does.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from voxbatch.records import Segment, Transcript, Word

MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""Shortest time of a cue, if the gap to the next cue allows it."""
PAUSE_S = 0.5
"""Shortest gap between two words that counts as a pause."""
_SENTENCE_END = re.compile(r"[.?!…。？！．｡।॥؟۔።]['\"”’»)\]」』）]*$")
_ABBREVIATION = re.compile(r"(^|\s)(Mrs?|Ms|Dr|St|Prof|[A-HJ-Z])\.$")
"""Titles and initials. A name follows them, so their full stop ends no sentence."""
_CLAUSE_END = re.compile(r"[,;:،؛、，；：–—]['\"”’»)\]」』）]*$")


_CONJUNCTION_WORDS = (
    "but because although though unless until while whereas which who whose if when where since "
    "aber sondern denn weil dass obwohl wenn während mais donc parce puisque lorsque quand "
    "pero porque aunque cuando sino oppure perché mentre quando"
)
_CONJUNCTIONS = frozenset(_CONJUNCTION_WORDS.split())
"""Words in English, German, French, Spanish and Italian that begin a clause. A break before one of them disturbs less
than any other break within a clause."""


@dataclass(frozen=True, slots=True)
class CueLimits:
    """The shape of cues. The defaults are those of Netflix's Timed Text Style Guide for adult programmes in English: 42
    characters, 2 lines, 20 characters per second."""

    max_line: int = 42
    """Columns of a line. A wide character (Chinese, Japanese, Korean) takes two columns, so 21 of them fill 42."""
    max_lines: int = 2
    """Lines of a cue."""
    max_cps: float = 20.0
    """Reading speed in columns per second. A cue outlasts its speech if a reader needs more time and the gap after it
    allows it. Faster speech is not cut."""


DEFAULT_LIMITS = CueLimits()


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit that no line break divides, never wider than a line. It includes its leading space, if it has one."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    """At most CueLimits.max_lines lines."""
    pieces: tuple[tuple[Piece, ...], ...] = field(default=(), compare=False, repr=False)
    """The pieces of each line."""


def split_into_cues(transcript: Transcript, limits: CueLimits = DEFAULT_LIMITS) -> list[Cue]:
    """Return the text of the transcript as readable cues within the limits, in order, never overlapping.

    Of all ways to cut, the one with the lowest total cost (`_costs`) is taken, so that a sentence's last word is not
    left alone in a cue. The joined lines of the cues are the text, apart from white space and control characters. A
    word that is wider than a line is split. Times come from the words. Without word times they come from the segments,
    each spread over its characters.
    """
    pieces = list(_pieces(transcript, limits.max_line))
    groups = [pieces[i:j] for i, j in _cheapest_partition(pieces, limits)]
    starts = list(accumulate((round(group[0].start * 1000) for group in groups), lambda a, b: max(a + 1, b)))
    nexts = [*starts[1:], *(start + MAX_CUE_MS for start in starts[-1:])]
    result = []
    for group, start, following in zip(groups, starts, nexts, strict=True):
        columns = sum(_width(piece.text) for piece in group)
        readable = start + max(MIN_CUE_MS, int(columns * 1000 // limits.max_cps))
        spoken = round(max(piece.end for piece in group) * 1000)
        end = min(max(readable, spoken), start + MAX_CUE_MS, following)
        lines = _lines(group, limits.max_line)
        result.append(Cue(start, end, tuple(map(_joined, lines)), lines))
    return result


def _pieces(transcript: Transcript, max_line: int) -> Iterator[Piece]:
    now = 0.0
    for (text, start, end), following in pairwise([*_timed_text(transcript), ("", math.inf, math.inf)]):
        now = max(now, start)
        parts = [part for token in re.findall(r"\s*\S+", text) for part in _fit_to_line(token, max_line)]
        step = max(0.0, min(end, following[1]) - now) / max(1, sum(map(len, parts)))
        for part in parts:
            yield Piece(part, now, now + step * len(part))
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


def _fit_to_line(token: str, max_line: int) -> Iterator[str]:
    """Yield a token whole if it fits a line, else its characters one by one. Marks and closing punctuation stay with
    the character before them."""
    token = " " * token[0].isspace() + token.strip()
    if _width(token.strip()) <= max_line:
        yield token
        return
    part = ""
    for char in token:
        category = unicodedata.category(char)
        attaches = category[0] == "M" or category in {"Cf", "Po", "Pe", "Pf", "Pd"}
        if part.strip() and not (attaches and _width(part + char) <= max_line):
            yield part
            part = ""
        part += char
    yield part


def _width(text: str) -> int:
    """Return the columns of a text."""
    return len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def _cheapest_partition(pieces: Sequence[Piece], limits: CueLimits) -> list[tuple[int, int]]:
    """Return the cheapest partition of the pieces into cues, as [i, j) pairs. It is a shortest path over all pieces
    that fit a cue."""
    widths = [0, *accumulate(_width(piece.text) for piece in pieces)]
    edges, inner = _costs(pieces)
    small = limits.max_line / 2  # a cue of less than half a line costs more: up to 1, like another cue
    best, origin = [0.0], [0]
    for j in range(1, len(pieces) + 1):
        cost, i = min(
            (best[i] + edges[j] + inner[j - 1] - inner[i] + max(0.0, 1.0 - (widths[j] - widths[i]) / small), i)
            for i in _possible_starts(pieces, widths, j, limits)
        )
        best.append(cost)
        origin.append(i)
    cuts = [len(pieces)]
    while cuts[-1]:
        cuts.append(origin[cuts[-1]])
    return list(pairwise(reversed(cuts)))


def _costs(pieces: Sequence[Piece]) -> tuple[list[float], list[float]]:
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
    if after[0] != " " and not wide:
        return 3.0
    return 1.1 if after.strip().casefold() in _CONJUNCTIONS else 1.5


def _possible_starts(pieces: Sequence[Piece], widths: Sequence[int], j: int, limits: CueLimits) -> Iterator[int]:
    """Yield every i for which the pieces [i, j) fit a cue. j - 1 always fits: a piece fits a line, and its time can be
    cut."""
    yield j - 1
    line_end, lines = j, 1  # each line takes as many pieces as fit, from the end
    for i in range(j - 2, -1, -1):
        if (pieces[j - 1].end - pieces[i].start) * 1000 > MAX_CUE_MS:
            return
        if _line_width(pieces, widths, i, line_end) > limits.max_line:
            line_end, lines = i + 1, lines + 1
            if lines > limits.max_lines:
                return
        yield i


def _line_width(pieces: Sequence[Piece], widths: Sequence[int], i: int, j: int) -> int:
    return widths[j] - widths[i] - (pieces[i].text[0] == " ")


def _joined(line: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in line).strip()


def _lines(group: Sequence[Piece], max_line: int) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of a cue as few lines of similar width, with a preference for breaks at punctuation.

    Of all ways to divide into the least number of lines, the one with the lowest total cost is taken: the difference
    of each line from the mean width, and 20 columns for each unit of `_break_penalty`.
    """
    widths = [0, *accumulate(_width(piece.text) for piece in group)]
    n = len(group)
    fits = [[j for j in range(i + 1, n + 1) if _line_width(group, widths, i, j) <= max_line] for i in range(n)]
    count, end = 0, 0
    while end < n:
        count, end = count + 1, max(fits[end])
    mean = _width(_joined(group)) / count
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}  # by the end of the lines so far
    for number in range(1, count + 1):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for i, (cost, cuts) in best.items():
            for j in fits[i] if i < n else ():
                if (j == n) != (number == count):
                    continue
                pause = group[j].start - group[j - 1].end if j < n else 0.0
                penalty = _break_penalty(group[j - 1].text, group[j].text, pause) if j < n else 0.0
                total = cost + abs(_line_width(group, widths, i, j) - mean) + 20 * penalty
                longer[j] = min(longer.get(j, (math.inf, ())), (total, (*cuts, j)))
        best = longer
    return tuple(tuple(group[i:j]) for i, j in pairwise(best[n][1]))
