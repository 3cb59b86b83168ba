"""Cut a Transcript into readable cues of few lines and at most seven seconds, with breaks that follow the speech.

Of all ways to cut, the one with the lowest total cost is taken. The module writes no file format; subtitles.py does.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, chain, pairwise

import regex

from voxbatch.formats import DEFAULT_LIMITS, CueLimits
from voxbatch.formats.document import complete_sources, visible_text, without_control_characters
from voxbatch.formats.function_words import CONJUNCTIONS, EVERY_CONJUNCTION, EVERY_LEANING_WORD, LEANING_WORDS
from voxbatch.languages import primary_subtag
from voxbatch.records import Segment, Transcript
from voxbatch.speech.abbreviations import is_abbreviation

MAX_CUE_MS = 7000
MIN_CUE_MS = 1000
"""Shortest time of a cue, if the gap to the next cue allows it."""
FLASH_S = 5 / 6
"""A cue below this length is a flash that nobody can read (Netflix's shortest time)."""
SHORTEST_OPEN_GAP_S = 0.5
"""A gap between two cues is the shortest allowed one, or at least this long: a shorter blank looks like a flicker."""
PAUSE_S = 0.5
"""Shortest gap between two words that counts as a pause."""
_SENTENCE_END = re.compile(r"[.?!…。？！．｡।॥؟۔።]['\"”’»)\]」』）]*$")
_CLAUSE_END = re.compile(r"[,;:،؛、，；：–—]['\"”’»)\]」』）]*$")


_CLUSTER = regex.compile(
    r"[\u0e40-\u0e44\u0ec0-\u0ec4]*\X"  # Thai and Lao vowels that are written before their consonant
    r"(?:[\p{M}\u0e2f-\u0e33\u0e45\u0e46\u0eaf-\u0eb3\u0ebd\u0ec6"  # those after it, and signs of repetition
    r"\u0f08\u0f0b-\u0f14]"  # Tibetan marks between syllables
    r"|(?<=[\u1039\u17d2])\X"  # Burmese and Khmer consonants that are stacked
    r"|(?=[\u1000-\u1021]\u1037?\u103a)\X)*"  # Burmese consonants that end a syllable
)
"""A grapheme cluster of Unicode, and in scripts without spaces what belongs to it: no line may begin with a sign that
needs the letter before it."""

_NEEDS_DICTIONARY = regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
"""Scripts without spaces, in which only a dictionary tells the words."""


NO_WORD = 2000
"""Characters that no word has. The longest of Sanskrit and of chemistry, written out, have fewer."""
_SPACELESS = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{East_Asian_Width=W}\p{East_Asian_Width=F}"
_NO_WORD = regex.compile(rf"[^{_SPACELESS}]{{{NO_WORD}}}")
"""So many characters of other scripts than those without spaces, in which a whole text may be one token."""


@dataclass(frozen=True, slots=True)
class LinePiece:
    """A unit that no line break divides, never wider than a line. It includes its leading space, if it has one."""

    text: str
    start: float
    end: float
    speaker: str | None = None
    is_label: bool = False
    """True for the label of a speaker, or a part of it, apart from the words."""


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle, of one speaker."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    """At most CueLimits.max_lines lines."""
    pieces: tuple[tuple[LinePiece, ...], ...] = field(default=(), compare=False, repr=False)
    speaker: str | None = None
    """See Word. None if speakers are not told apart."""
    styles: tuple[str, ...] = ()
    """Styles of the visible characters of the lines; see the module `styles`. Empty if there are none."""


def split_into_cues(transcript: Transcript, limits: CueLimits = DEFAULT_LIMITS, has_labels: bool = False) -> list[Cue]:
    """Return the text of the transcript as readable cues within the limits, in order, with gaps that do not flicker.

    Of all ways to cut, the one with the lowest total cost (`_CuttingPlan`) is taken, so that a sentence's last word is
    not left alone in a cue. The joined lines of the cues are the text, apart from white space and control characters. A
    word that is wider than a line is split. Times come from the words, rounded to frames. Without word times they come
    from the segments, each spread over its characters.

    Args:
        has_labels: begin the text of a speaker with the speaker's label: "Speaker 1: Hello."
    """
    limits = replace(limits, max_line=limits.columns(transcript.aspect_ratio))
    pieces = list(pieces_of(transcript, limits.max_line))
    if has_labels:
        pieces = list(_labelled(pieces, limits.max_line))
    rate = limits.frames_per_second(transcript.frame_rate)
    plan = _CuttingPlan(pieces, limits, rate, transcript.language)
    cues = plan.cheapest_cues()
    lines = [plan.lines(i, j) for i, j in cues]
    times = _frames_on_screen([pieces[i:j] for i, j in cues], limits, rate)
    return [
        Cue(
            round(start * 1000 / rate),
            round(end * 1000 / rate),
            tuple(map(_joined, line)),
            line,
            line[0][0].speaker,
        )
        for (start, end), line in zip(times, lines, strict=True)
    ]


def _frames_on_screen(
    groups: Sequence[Sequence[LinePiece]], limits: CueLimits, rate: float
) -> Iterator[tuple[int, int]]:
    """Yield the first frame of each cue, and the first frame after it, of so many frames per second."""
    gap = limits.min_gap
    shortest, longest, open_gap = (
        math.ceil(MIN_CUE_MS * rate / 1000),
        math.floor(MAX_CUE_MS * rate / 1000),
        max(gap, round(SHORTEST_OPEN_GAP_S * rate)),
    )
    spoken_starts = (math.floor(group[0].start * rate + 1e-6) for group in groups)
    starts = list(accumulate(spoken_starts, lambda earlier, start: max(earlier + gap + 1, start)))
    for group, start, following in zip(groups, starts, [*starts, math.inf][1:], strict=True):
        columns = sum(_width(piece.text) for piece in group)
        spoken_end = math.ceil(max(piece.end for piece in group) * rate - 1e-6)
        readable_end = start + max(shortest, math.ceil(columns * rate / limits.max_cps))
        end = min(max(readable_end, spoken_end), start + longest, following - gap)
        if following - end < open_gap:
            end = following - gap if following - gap <= start + longest else following - open_gap
        yield start, int(end)


def pieces_of(transcript: Transcript, max_line: int) -> Iterator[LinePiece]:
    """Yield the words of a transcript, of which those that are wider than a line are divided, with their times."""
    now = 0.0
    for (text, start, end, speaker), following in pairwise([*_timed_text(transcript), ("", math.inf, math.inf, None)]):
        now = max(now, start)
        parts = [part for token in re.findall(r"\s*\S+", text) for part in _fit_to_line(token, max_line)]
        step = max(0.0, min(end, following[1]) - now) / max(1, sum(map(len, parts)))
        for part in parts:
            yield LinePiece(part, now, now + step * len(part), speaker)
            now += step * len(part)


def _labelled(pieces: Iterable[LinePiece], max_line: int) -> Iterator[LinePiece]:
    """Yield the pieces. The first one of a speaker follows the speaker's label, in one piece with it if there is room
    in a line."""
    before = None
    for piece in pieces:
        if piece.speaker in (None, before):
            yield piece
        elif _width(text := f" {piece.speaker}: {piece.text.strip()}") - 1 <= max_line:
            yield replace(piece, text=text)
        else:
            label = f" {' '.join(without_control_characters(piece.speaker).split())}:"
            tokens = [label] if _width(label) - 1 <= max_line else re.findall(r"\s*\S+", label)
            labels = (part for token in tokens for part in _fit_to_line(token, max_line))
            yield from (LinePiece(part, piece.start, piece.start, piece.speaker, is_label=True) for part in labels)
            yield replace(piece, text=f" {piece.text.strip()}")
        before = piece.speaker


def _timed_text(transcript: Transcript) -> Iterator[tuple[str, float, float, str | None]]:
    """Yield (text, start, end, speaker) of the words, else of the segments, else of the whole: the first that spells
    the text.

    The slices are cut from the text itself, because only the text says where spaces are.
    """
    text = without_control_characters(transcript.text)
    visible = [i for i, char in enumerate(text) if not char.isspace()]
    full_text = Segment(text, 0.0, transcript.audio_duration)
    position = count = 0
    ends = range(len(text) + 1) if text.isascii() else [0, *accumulate(map(len, _units(text)))]
    for source in (
        complete_sources(transcript.words, text) or complete_sources(transcript.segments, text) or (full_text,)
    ):
        count += len(visible_text(source.text))
        end = visible[count - 1] + 1 if count else 0
        end = max(position, ends[bisect_left(ends, end)])  # Whisper's words may end within one
        yield text[position:end], source.start, source.end, source.speaker
        position = end


def _fit_to_line(token: str, max_line: int) -> Iterator[str]:
    """Yield a token whole if it fits a line, else its units one by one. Closing punctuation stays with the unit before
    it. One that is no word of any language is cut where lines are full: a plan of cuts between all of its characters
    would take minutes."""
    token = " " * token[0].isspace() + token.strip()
    if _width(token.strip()) <= max_line:
        yield token
        return
    part, columns, is_word = "", 0, not _NO_WORD.search(token)
    for unit in chain.from_iterable(_divided(unit, max_line) for unit in _units(token)):
        width = _width(unit)
        attaches = not is_word or unicodedata.category(unit[0]) in {"Cf", "Po", "Pe", "Pf", "Pd"}
        if part.strip() and not (attaches and columns + width <= max_line):
            yield part
            part, columns = "", 0
        part, columns = part + unit, columns + width
    yield part


def _units(text: str) -> list[str]:
    """Return the parts of a text that no break divides: words of scripts without spaces, if ICU is installed, else
    clusters."""
    if text.isascii():
        return list(text)
    breaker = _icu_line_breaker() if _NEEDS_DICTIONARY.search(text) else None
    if breaker is None:
        return list(_CLUSTER.findall(text))
    return [unit for segment in breaker(text, "th") for unit in re.findall(r"\S+|\s+", segment)]


def _divided(unit: str, max_line: int) -> Iterator[str]:
    """Yield a unit whole if it fits a line, else its clusters, or characters."""
    for cluster in [unit] if _width(unit) <= max_line else _CLUSTER.findall(unit):
        yield from [cluster] if _width(cluster) <= max_line else cluster


@cache
def _icu_line_breaker() -> Callable[[str, str], Iterable[str]] | None:
    """Return ICU's class of line breaks, which has dictionaries of words; None if it is not installed."""
    try:
        from icu4py.breakers import LineBreaker
    except ImportError:
        return None
    breaker: Callable[[str, str], Iterable[str]] = LineBreaker
    return breaker


def _width(text: str) -> int:
    """Return the columns of a text."""
    return len(text) if text.isascii() else len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


class _CuttingPlan:
    """The costs of all ways to cut pieces into cues and lines.

    The unit is a cue: one more cue costs 1. To that come, for each cue,

    - its end (`_break_penalty`): free at the end of a sentence, cheap at a comma or pause, expensive elsewhere, most
      expensive after a word that leans on the next one and within a word;
    - each line end within it that is worse than between two usual words;
    - each pause and each end of a sentence within it, because they are good places to end a cue;
    - a length below half a line, and too little time to read it before the next cue begins.
    """

    def __init__(self, pieces: Sequence[LinePiece], limits: CueLimits, rate: float, language: str | None):
        self._pieces, self._limits, self._gap_s = pieces, limits, limits.min_gap / rate
        self._widths = [0, *accumulate(_width(piece.text) for piece in pieces)]
        words = _breaking_words(language)
        self._penalties = [0.0]
        """Penalty of a break before each piece, and at the end."""
        self._inner = [0.0]
        """Running sum of the costs to continue after each piece."""
        for before, after in pairwise([*pieces, None]):
            if before is None:
                continue
            pause = after.start - before.end if after else 0.0
            penalty = _break_penalty(before.text, after.text if after else " ", pause, words, language or "en")
            penalty = LABEL_PENALTY if before.is_label else penalty
            self._penalties.append(penalty)
            to_continue = 2.5 * pause if pause >= PAUSE_S else 0.0
            self._inner.append(self._inner[-1] + to_continue + 0.5 * (penalty == 0.0))

    def cheapest_cues(self) -> list[tuple[int, int]]:
        """Return the cues as [i, j) pairs of pieces. It is a shortest path over all pieces that fit a cue."""
        best, origin = [0.0], [0]
        for j in range(1, len(self._pieces) + 1):
            lowest, start = math.inf, j - 1
            end_cost = 1.0 + self._penalties[j] + self._inner[j - 1]
            for i, num_lines in self._possible_starts(j):
                cost = best[i] + end_cost - self._inner[i]
                if cost < lowest:
                    cost += self._size_cost(i, j)
                if cost < lowest and num_lines > 1:
                    cost += self._line_ends_cost(i, j, num_lines)
                if cost < lowest:
                    lowest, start = cost, i
            best.append(lowest)
            origin.append(start)
        cuts = [len(self._pieces)]
        while cuts[-1]:
            cuts.append(origin[cuts[-1]])
        return list(pairwise(reversed(cuts)))

    def lines(self, i: int, j: int) -> tuple[tuple[LinePiece, ...], ...]:
        """Return the pieces [i, j) of a cue as few lines of similar width, with a preference for good breaks."""
        num_lines = next(lines for start, lines in self._possible_starts(j) if start == i)
        ends = self._line_ends(i, j, num_lines, self._width(i, j) / num_lines)[1]
        return tuple(tuple(self._pieces[start:end]) for start, end in pairwise((i, *ends)))

    def _possible_starts(self, j: int) -> Iterator[tuple[int, int]]:
        """Yield every i for which the pieces [i, j) fit a cue, with the least number of lines. j - 1 always fits: a
        piece fits a line, and its time can be cut. Pieces of two speakers never fit."""
        yield j - 1, 1
        line_end, num_lines = j, 1  # each line takes as many pieces as fit, from the end
        for i in range(j - 2, -1, -1):
            first, last = self._pieces[i], self._pieces[j - 1]
            if first.speaker != last.speaker or (last.end - first.start) * 1000 > MAX_CUE_MS:
                return
            if self._width(i, line_end) > self._limits.max_line:
                line_end, num_lines = i + 1, num_lines + 1
                if num_lines > self._limits.max_lines:
                    return
            yield i, num_lines

    def _width(self, i: int, j: int) -> int:
        """Return the columns of the pieces [i, j) in a line."""
        return self._widths[j] - self._widths[i] - (self._pieces[i].text[0] == " ")

    def _size_cost(self, i: int, j: int) -> float:
        """Return the cost of a cue that is short, or that is shown for too little time."""
        columns = self._widths[j] - self._widths[i]
        cost = max(0.0, 1.0 - columns / (self._limits.max_line / 2))
        if j < len(self._pieces):
            shown_s = self._pieces[j].start - self._pieces[i].start - self._gap_s
            cost += max(0.0, 1.5 - 1.5 * shown_s / FLASH_S)
            cost += min(2.0, max(0.0, columns - self._limits.max_cps * shown_s) / 20)
        return cost

    def _line_ends_cost(self, i: int, j: int, num_lines: int) -> float:
        """Return the cost of the line ends within a cue that are worse than one between two usual words."""
        ends = self._line_ends(i, j, num_lines, self._width(i, j) / num_lines)[1]
        penalties = (self._penalties[end] for end in ends[:-1] if not self._pieces[end - 1].is_label)
        return sum(max(0.0, penalty - USUAL_PENALTY) for penalty in penalties)

    def _line_ends(self, i: int, j: int, num_lines: int, mean: float) -> tuple[float, tuple[int, ...]]:
        """Return the cost and the ends of the best lines of the pieces [i, j).

        The cost is the difference of each line from the mean width in columns, and 20 columns for each unit of penalty.
        """
        if num_lines == 1:
            width = self._width(i, j)
            return (abs(width - mean), (j,)) if width <= self._limits.max_line else (math.inf, (j,))
        lowest: tuple[float, tuple[int, ...]] = (math.inf, ())
        for end in range(i + 1, j - num_lines + 2):
            width = self._width(i, end)
            if width > self._limits.max_line:
                break
            if self._width(end, j) <= (num_lines - 1) * (self._limits.max_line + 1):
                rest, ends = self._line_ends(end, j, num_lines - 1, mean)
                lowest = min(lowest, (rest + abs(width - mean) + 20 * self._penalties[end], (end, *ends)))
        return lowest


_BreakingWords = tuple[frozenset[str], frozenset[str], bool]
"""Words before which a break is good, words after which it is bad, and whether capitals mark names."""


def _breaking_words(language: str | None) -> _BreakingWords:
    """Return the words of a language; those of all languages if it is unknown."""
    if language is None:
        return EVERY_CONJUNCTION, EVERY_LEANING_WORD, False
    language = primary_subtag(language)
    none = frozenset[str]()
    return CONJUNCTIONS.get(language, none), LEANING_WORDS.get(language, none), language != "de"


USUAL_PENALTY = 1.5
"""Penalty of a break between two usual words."""
LABEL_PENALTY = 100.0
"""Penalty of the end of a cue after a label: higher than what any way to cut its words costs. A line may end there, and
must, because a label that is a piece of its own fills its line."""


def _break_penalty(before: str, after: str, pause: float, words: _BreakingWords, language: str) -> float:
    """Return how much a break between two pieces disturbs a reader, from 0 at the end of a sentence to 3
    within a word."""
    is_abbreviated = is_abbreviation(before.strip(), after.strip(), primary_subtag(language))
    if _SENTENCE_END.search(before) and (not is_abbreviated or before.strip() == "I."):
        return 0.0 if after[0] == " " or not after[0].isalnum() or _width(after[0]) == 2 else USUAL_PENALTY
    conjunctions, leaning, capitals_are_names = words
    leans = before.strip().casefold().rstrip("'’") in leaning
    if _CLAUSE_END.search(before) or pause >= PAUSE_S:
        return 3.0 if leans else 0.6
    wide = _width(before[-1]) == 2 or _width(after[0]) == 2
    if after[0] != " " and not wide:
        return 3.0
    if leans:
        return 5.0
    following = after.strip().casefold()
    if capitals_are_names and before.strip()[:1].isupper() and after.strip()[:1].isupper() and following != "i":
        return 2.2
    if following in conjunctions:
        return 1.1
    return 1.4 if following in leaning else USUAL_PENALTY


def _joined(line: Sequence[LinePiece]) -> str:
    return "".join(piece.text for piece in line).strip()
