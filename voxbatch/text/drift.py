"""Find the stretches of a transcript that are in another language than the one asked for.

A model that takes no language can drift: a French recording becomes English words in its middle. Two judges must agree.
The first one looks for stretches where the common words of other languages outnumber those of the language asked for:

    asked for fr:  il   faut  que    we  have  to  look   at  the  problem
                  -0.3  -0.05 -0.3   +1   +1   +1  -0.05  +1  +1   -0.05

The sum of these values is cut off at 0, and reaches ALARM in a stretch that is suspected (a CUSUM test, Page 1954). The
second judge is py3langid. It is loaded when the first stretch is suspected, because it takes 80 MB and up to a second.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from voxbatch.languages import language_name
from voxbatch.records import OTHER_LANGUAGE, Flag, Transcript
from voxbatch.text.common_words import COMMON_WORDS
from voxbatch.text.stitching import SENTENCE_END

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

OWN_WORD = -1.0
"""Value of a word that is common in the language asked for alone."""
SHARED_WORD = -0.3
"""Value of a word that is common in the language asked for and in others, such as "de" in French, Spanish and Dutch."""
UNKNOWN_WORD = -0.05
"""Value of a word that is in no list. Of 12 English words 5 are common ones, of 12 Czech or Finnish words 3."""
ALARM = 3.0
"""Sum at which a stretch is suspected: that of three words that are common in other languages."""
EDGE = 0.5
"""Sum that the words around a stretch may take away from it: one shared word and three unknown ones, for example."""
MIN_WORDS = 10
"""Fewest words of a stretch that is judged, from its first to its last common word, so that it has some 12 in all.
Numbers, names and words of the language asked for do not count. py3langid 0.4 names the language of each of 889 windows
of 12 words of 371 references in five languages; of windows of 8 and 5 words, 0.4 % and 2 % are wrong."""
BLOCK_WORDS = 36
"""Words of a long stretch that are judged at a time, by the half in their middle. This bounds the time for languages
without a list, whose right texts are suspected, too. There, a drift of 54 words always fills the middle of a block."""

_SAME = {"nb": "no", "nn": "no", "sh": "hr", "fil": "tl"}
"""Languages for which py3langid or the lists have another code."""
_CLOSE = tuple(
    frozenset(group.split())
    for group in ("da no sv", "cs sk", "bs hr sl sr", "bg mk", "be ru uk", "ca es gl pt", "id ms", "af nl", "de lb")
)
"""Languages that are not told from each other. They share most of their common words, right texts mix them (Ukrainian
and Russian), or py3langid confuses them: in 12 words of the Declaration of Human Rights, Bosnian and Croatian in 42 %,
Indonesian and Malay in 29 %, Norwegian and Danish in 1 %."""
_CONSONANTS = frozenset("bcdfghjklmnpqrstvwxz")
_NO_WORD = re.compile(r"\S*(?:@|://|www\.|\d)\S*")
"""Numbers and addresses."""
_WORD = re.compile(r"([^\W\d_]+)(\W*)")


@dataclass(frozen=True, slots=True)
class _Token:
    """A word of letters, with the position of the Word or Segment that has it."""

    text: str
    following: str
    """Punctuation and spaces up to the next word."""
    start: float
    end: float
    is_name: bool
    """True if the word has a capital letter and does not begin a sentence."""
    value: float
    """See OWN_WORD."""

    @property
    def ends_sentence(self) -> bool:
        return self.following.rstrip().endswith(SENTENCE_END)


@dataclass(frozen=True, slots=True)
class _Drift:
    """A stretch in another language, as positions of tokens."""

    start: int
    end: int
    language: str


def drift_flags(transcript: Transcript, asked: str) -> Iterator[Flag]:
    """Yield a flag for each stretch of a transcript that is in another language than the one asked for.

    Args:
        transcript: a text, as the model wrote it. Without words, a flag has the times of the segments.
        asked: primary subtag of the language asked for. A language that py3langid does not know is not judged.
    """
    asked = _SAME.get(asked, asked)
    values = _values(asked)
    words = re.findall(r"[^\W\d_]+", transcript.text.lower())
    if sum(values.get(word, 0.0) > 0 for word in words) < ALARM:  # nearly every right text ends here
        return
    tokens = [*_tokens(transcript, values)]
    for drift in _joined(_drifts(tokens, asked)):
        stretch = tokens[drift.start : drift.end]
        reason = f"{len(stretch):,} words are probably {language_name(drift.language)}; {asked} was asked for"
        yield Flag(OTHER_LANGUAGE, reason, stretch[0].start, stretch[-1].end)


@functools.lru_cache(maxsize=100)
def _values(asked: str) -> dict[str, float]:
    """Return the value of each common word.

    A word of a close language counts nothing. Nor does a consonant by itself, unless it is a word of the language asked
    for: it may be an abbreviation, or what an apostrophe leaves.
    """
    own = COMMON_WORDS.get(asked, frozenset[str]())
    close = frozenset[str]().union(*(words for other, words in COMMON_WORDS.items() if is_close(other, asked)))
    others = frozenset[str]().union(*(words for other, words in COMMON_WORDS.items() if not is_close(other, asked)))
    return (
        dict.fromkeys(others, 1.0)
        | dict.fromkeys(close | _CONSONANTS, 0.0)
        | dict.fromkeys(own & others, SHARED_WORD)
        | dict.fromkeys(own - others, OWN_WORD)
    )


def is_close(language: str, other: str) -> bool:
    """Return whether two languages are the same, or are not told from each other."""
    return language == other or any({language, other} <= group for group in _CLOSE)


def _tokens(transcript: Transcript, values: dict[str, float]) -> Iterator[_Token]:
    """Yield the words of a transcript that have letters only."""
    may_be_name = False
    for part in transcript.words or transcript.segments:
        for match in _WORD.finditer(_NO_WORD.sub(" ", part.text)):
            text, following = match.groups()
            is_name, value = may_be_name and text.istitle(), values.get(text.lower(), UNKNOWN_WORD)
            token = _Token(text, following, part.start, part.end, is_name, value)
            may_be_name = not token.ends_sentence
            yield token


def _drifts(tokens: Sequence[_Token], asked: str) -> Iterator[_Drift]:
    """Yield the suspected stretches that py3langid judges to be in another language."""
    for first, last in _suspected([token.value for token in tokens]):
        if sum(token.value > SHARED_WORD and not token.is_name for token in tokens[first:last]) < MIN_WORDS:
            continue
        num_blocks = max((last - first) // BLOCK_WORDS, 1)
        inner = [first + (last - first) * number // num_blocks for number in range(1, num_blocks)]
        start, end = _widened(tokens, first, last)
        for block_start, block_end in pairwise((start, *inner, end)):
            block = tokens[max(block_start, first) : min(block_end, last)]
            if (language := _language_of(block)) and not is_close(language, asked) and _is_known(asked):
                yield _Drift(block_start, block_end, language)


def _suspected(values: Iterable[float]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each stretch whose sum reaches ALARM. It begins and ends with a word that is
    common in another language. A sum that has fallen by ALARM ends a stretch.

    With an ALARM of 3, [-1, 1, 1, -0.05, 1, 1, -1, -1, -1]  →  (1, 6)
    """
    total = peak = 0.0
    start = end = 0
    for i, value in enumerate(values):
        total += value
        if total <= 0 or peak - total >= ALARM:
            if peak >= ALARM:
                yield start, end
            total, peak, start = 0.0, 0.0, i + 1
        elif total > peak:
            peak, end = total, i + 1
    if peak >= ALARM:
        yield start, end


def _widened(tokens: Sequence[_Token], start: int, end: int) -> tuple[int, int]:
    """Return a stretch with the words around it that may belong to it: up to the end of a sentence, and to EDGE."""
    left = EDGE
    while start > 0 and not tokens[start - 1].ends_sentence and (left := left + tokens[start - 1].value) > 0:
        start -= 1
    left = EDGE
    while end < len(tokens) and not tokens[end - 1].ends_sentence and (left := left + tokens[end].value) > 0:
        end += 1
    return start, end


def _language_of(block: Sequence[_Token]) -> str | None:
    """Return the language that py3langid names for the middle of a block, if the block's common words agree. Of close
    languages, the words decide."""
    identifier = _identifier()
    if identifier is None:
        return None
    margin = len(block) // 4 if len(block) >= 2 * MIN_WORDS else 0
    text = "".join(f"{token.text}{token.following or ' '}" for token in block[margin : len(block) - margin])
    label, _ = identifier.classify(text.lower() if sum(map(str.isupper, text)) > len(text) // 2 else text)
    words = Counter(token.text.lower() for token in block)
    common = {other: sum(words[word] for word in listed & words.keys()) for other, listed in COMMON_WORDS.items()}
    language = max(common, key=lambda other: common[other])
    return language if is_close(language, _SAME.get(label, label)) else None


def _is_known(language: str) -> bool:
    """Return whether py3langid knows a language, so that it could have named it."""
    identifier = _identifier()
    return identifier is not None and language in identifier.labels


@functools.cache
def _identifier() -> LanguageIdentifier | None:
    """Return py3langid with its model. None if it is not installed, as `voxbatch doctor` tells, or if no temporary file
    can be written, into which it unpacks its model: nothing is judged then."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    except (ImportError, OSError):
        return None


def _joined(drifts: Iterator[_Drift]) -> Iterator[_Drift]:
    """Join neighbours in the same language that fewer than MIN_WORDS words divide."""
    before: _Drift | None = None
    for drift in drifts:
        if before and drift.language == before.language and drift.start - before.end < MIN_WORDS:
            before = _Drift(before.start, drift.end, drift.language)
            continue
        if before:
            yield before
        before = drift
    if before:
        yield before
