"""Convert the tokens of Voxtral Realtime into words with times.

The model writes one token for each 80 ms of audio: [STREAMING_PAD] while it listens, [STREAMING_WORD] when it has heard
a word to its end, and then the text of that word. The prompt holds the left pads and the delay, so the last position of
the prompt has heard 80 × (delay + 1) ms of the audio. The k-th token of the text (from 0) therefore describes audio
that ended 80 × (k + 1) ms after the first sample of the chunk: the delay is already subtracted. So the end of a word is
known to about ±0.1 s. The start of a word is an estimate from its length.

The confidence of a word is the mean probability of its text tokens. This is the definition of Whisper's word
probabilities (openai/whisper, timing.py: find_alignment), so it is that of faster-whisper too.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import isnan, nan
from typing import NamedTuple

from voxbatch.records import Word
from voxbatch.rounding import rounded
from voxbatch.vllm.engine.realtime_limits import TOKEN_MS

EOS, STREAMING_PAD, STREAMING_WORD = 2, 32, 33
FIRST_TEXT_ID = 1000
"""The lowest id of a text token. Lower ids are control tokens: tekken.json, config.default_num_special_tokens."""
CHARACTER_S = 0.07
"""Estimated seconds per character of a word. English that is read aloud has about 14 characters per second."""
SHORTEST_S = 0.1
LONGEST_S = 1.5

TOKEN_S = TOKEN_MS / 1000

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""The character to which incomplete bytes of a character are decoded."""
KEPT_TEXTS, KEPT_LENGTH = 1 << 14, 40
"""Number of texts whose words are kept, and the length of the longest: 4 MB. Most groups are one word that comes
again."""


class Group(NamedTuple):
    """Text that the model wrote without a control token in between: mostly one word."""

    at: int
    """Index of the token that opens the group; see `token_groups`."""
    text: str
    tokens: list[int]
    """Indexes of the text tokens."""


def token_groups(token_ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the indexes of each group of consecutive text tokens, after the index of the token that opens the group.

    The opening token is [STREAMING_WORD]. If there is none before the group, it is the first text token of the group.
    """
    opened, group = 0, list[int]()
    for k, token in enumerate(token_ids):
        if token >= FIRST_TEXT_ID:
            if not group:
                opened = k - 1 if k and token_ids[k - 1] == STREAMING_WORD else k
            group.append(k)
        elif group:
            yield opened, group
            group = []
    if group:
        yield opened, group


def decode_groups(token_ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> list[Group]:
    """Return the groups of a text.

    If the bytes of one character are spread over several groups, these groups become one, with the opening index of the
    last of them. So the texts, joined, are the text of all ids.

    Args:
        token_bytes: returns the bytes in UTF-8 of a text token; they may begin or end within a character.
    """
    groups: list[Group] = []
    for at, tokens in token_groups(token_ids):
        text = _decode(token_ids[tokens[0] : tokens[-1] + 1], token_bytes)
        if groups and (last := groups[-1]).text.endswith(INCOMPLETE):
            joined = [*last.tokens, *tokens]
            if (joined_text := _decode([token_ids[k] for k in joined], token_bytes)) != last.text + text:
                groups[-1] = Group(at, joined_text, joined)
                continue
        groups.append(Group(at, text, tokens))
    return groups


def _decode(token_ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> str:
    return b"".join(map(token_bytes, token_ids)).decode(errors="replace")


def word_confidences(
    groups: Sequence[Group],
    token_ids: Sequence[int],
    probabilities: Sequence[float],
    token_bytes: Callable[[int], bytes],
) -> list[float | None]:
    """Return the confidence of each word that `timed_words` returns for the same groups: the mean probability of its
    text tokens, rounded to three digits, or None if a token has no probability.

    If a group has several words, a token counts for each word that it has characters of. A token that completes no
    character counts for the word with the next character.

    Args:
        groups: the result of `decode_groups`.
        probabilities: the probability of each token, or NaN.
        token_bytes: see `decode_groups`.
    """
    means = list[float]()
    for group in groups:
        words, chances = split_words(group.text), [probabilities[k] for k in group.tokens]
        if len(words) == 1:
            means.append(sum(chances) / len(chances))
        elif words:
            starts = _starts([token_bytes(token_ids[k]) for k in group.tokens])
            ends = [max(start + 1, end) for start, end in zip(starts, [*starts[1:], len(group.text)], strict=True)]
            means += _means(words, starts, ends, chances)
    sure = iter(rounded([mean for mean in means if not isnan(mean)]))
    return [None if isnan(mean) else next(sure) for mean in means]


def _starts(pieces: Sequence[bytes]) -> list[int]:
    """Return the number of complete characters before each piece of a text in UTF-8.

    Replacement characters at the end of the pieces before do not count, because the next piece may complete them.
    """
    decoder, starts, decoded, complete = codecs.getincrementaldecoder("utf-8")("replace"), list[int](), 0, 0
    for piece in pieces:
        starts.append(complete)
        characters = decoder.decode(piece)
        if solid := len(characters.rstrip(INCOMPLETE)):
            complete = decoded + solid
        decoded += len(characters)
    return starts


def _means(
    words: Sequence[str], starts: Sequence[int], ends: Sequence[int], chances: Sequence[float]
) -> Iterator[float]:
    """Yield the mean probability of the tokens of each word, or NaN if it has none.

    Args:
        starts, ends: the characters [start, end) of each token, in the words joined. Neither goes back.
        chances: the probability of each token.
    """
    token = 0
    for begin, end in pairwise(accumulate(map(len, words), initial=0)):
        while token < len(ends) and ends[token] <= begin:
            token += 1
        after = token
        while after < len(starts) and starts[after] < end:
            after += 1
        yield sum(chances[token:after]) / (after - token) if after > token else nan  # invalid bytes may leave none


def timed_words(pieces: Sequence[tuple[int, str]], duration: float) -> list[Word]:
    """Return the words in order, with times in seconds inside [0, duration].

    Each word starts at the end of the word before, or later. The words of a text with several words share its time by
    their lengths. A text of white space only is put before the next word.

    Args:
        pieces: (index of the opening token, text) of each group; see `decode_groups`.
    """
    texts, starts, ends = list[str](), list[float](), list[float]()
    free_from, blank, last = 0.0, "", int(duration * 1000) / 1000
    for k, text in pieces:
        words = split_words(blank + text)
        if not words:
            blank += text
            continue
        end, blank = min(max((k + 1) * TOKEN_S, free_from), duration), ""
        lengths = [min(max(len(word) * CHARACTER_S, SHORTEST_S), LONGEST_S) for word in words]
        start = max(free_from, end - sum(lengths))
        scale = (end - start) / sum(lengths)
        for length in lengths:
            starts.append(start)
            start += length * scale
            ends.append(start)
        texts += words
        free_from = end
    times = [min(time, last) for time in rounded([*starts, *ends])]
    return list(map(Word, texts, times, times[len(texts) :]))


def text_after_end(token_ids: Sequence[int], groups: Sequence[Group]) -> tuple[int, int] | None:
    """Return the index of the first EOS and the number of characters of text after it.

    Returns:
        None if no text follows an EOS.
    """
    if EOS not in token_ids:
        return None
    end = token_ids.index(EOS)
    characters = len("".join(group.text for group in groups if group.at > end).strip())
    return (end, characters) if characters else None


def with_leading_space(pieces: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the pieces with a space before the first word, as all other words have one.

    Without the space, the word would stick to the last word of the chunk before. Scripts that put no spaces between
    words are left unchanged.
    """
    first = pieces[0][1][:1] if pieces else ""
    # Chinese and Japanese characters are wide. Korean characters are wide too, but Korean has spaces.
    is_wide = bool(first) and unicodedata.east_asian_width(first) in "WF"
    if not first or first.isspace() or (is_wide and "HANGUL" not in unicodedata.name(first, "")):
        return list(pieces)
    return [(pieces[0][0], f" {pieces[0][1]}"), *pieces[1:]]


def split_words(text: str) -> tuple[str, ...]:
    """Split a text into words that, joined, give the text: " one two" → (" one", " two").

    White space at the end stays with the last word. A text of white space only has no words. No-break spaces do not
    separate words.
    """
    return _split_kept(text) if len(text) <= KEPT_LENGTH else _split(text)


def _split(text: str) -> tuple[str, ...]:
    words: list[str] = re.findall(r"\s*\S+", text, re.ASCII) if text.strip() else []
    if words:
        words[-1] += text[sum(map(len, words)) :]
    return tuple(words)


_split_kept = functools.lru_cache(KEPT_TEXTS)(_split)


def longest_pause(token_ids: Sequence[int], duration: float) -> tuple[float, float]:
    """Return the start and end, in seconds, of the longest stretch of audio without text."""
    spoken = [k for k, token in enumerate(token_ids) if token >= FIRST_TEXT_ID]
    ends = [0.0, *(min((k + 1) * TOKEN_S, duration) for k in spoken), duration]
    return max(pairwise(ends), key=lambda stretch: stretch[1] - stretch[0])
