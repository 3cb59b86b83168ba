"""Voxtral Realtime's tokens → words with times.

The model says one token each 80 ms: [STREAMING_PAD] while it listens, [STREAMING_WORD] when it has heard a word to its
end, and then that word's text. The prompt holds the left pads and the delay, so its last position has heard
80 × (delay + 1) ms of the audio, and the k-th token said (from 0) speaks of what ended 80 × (k + 1) ms after the
chunk's first sample: the delay has been taken off already. A word's end is therefore known to about ±0.1 s; its start
is an estimate from its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from voxbatch.engines.vllm.limits import TOKEN_MS
from voxbatch.records import Word

EOS, STREAMING_PAD, STREAMING_WORD = 2, 32, 33
FIRST_TEXT_ID = 1000
"""Ids below are control tokens: tekken.json, config.default_num_special_tokens."""
CHARACTER_S = 0.07
"""Read English has about 14 characters a second."""
SHORTEST_S = 0.1
LONGEST_S = 1.5

TOKEN_S = TOKEN_MS / 1000

TORN = "\N{REPLACEMENT CHARACTER}"
"""What bytes decode to that are no whole character."""


def groups(token_ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Text tokens that belong together, with the index of the token that opened them: [STREAMING_WORD], or their own
    first one where there was none."""
    opened, ids = 0, list[int]()
    for k, token in enumerate(token_ids):
        if token >= FIRST_TEXT_ID:
            opened = opened if ids else _opened_at(token_ids, k)
            ids.append(token)
        elif ids:
            yield opened, ids
            ids = []
    if ids:
        yield opened, ids


def _opened_at(token_ids: Sequence[int], first: int) -> int:
    return first - 1 if first and token_ids[first - 1] == STREAMING_WORD else first


def decoded(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[tuple[int, str]]:
    """Each group's opening index and text. Groups that one character's bytes lie in become one, opened where the last
    of them was; so the texts join to the text of all ids."""
    found: list[tuple[int, str]] = []
    last: list[int] = []
    for at, ids in groups(token_ids):
        text = decode(ids)
        if found and found[-1][1].endswith(TORN) and (both := decode([*last, *ids])) != found[-1][1] + text:
            found[-1], last = (at, both), [*last, *ids]
        else:
            found.append((at, text))
            last = ids
    return found


def timed_words(pieces: Sequence[tuple[int, str]], duration: float) -> Iterator[Word]:
    """(index of the opening token, text) → words in order, inside [0, duration], each starting where the last one
    ended or later. A text of several words shares its stretch out by their lengths; white space alone waits for the
    next word."""
    free_from, blank, last = 0.0, "", int(duration * 1000) / 1000
    for k, text in pieces:
        tokens = split_words(blank + text)
        if not tokens:
            blank += text
            continue
        end, blank = min(max((k + 1) * TOKEN_S, free_from), duration), ""
        lengths = [min(max(len(token) * CHARACTER_S, SHORTEST_S), LONGEST_S) for token in tokens]
        start = max(free_from, end - sum(lengths))
        scale = (end - start) / sum(lengths)
        for token, length in zip(tokens, lengths, strict=True):
            yield Word(token, min(round(start, 3), last), min(round(start + length * scale, 3), last))
            start += length * scale
        free_from = end


def text_after_end(token_ids: Sequence[int], pieces: Sequence[tuple[int, str]]) -> tuple[int, int] | None:
    """(index of the first EOS, characters of text after it); None where no text follows an EOS.

    Args:
        pieces: what `decoded` makes of the ids.
    """
    if EOS not in token_ids:
        return None
    end = token_ids.index(EOS)
    characters = len("".join(text for at, text in pieces if at > end).strip())
    return (end, characters) if characters else None


def spaced(pieces: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first word with a space before it, as all others have, so that it does not stick to the chunk before; but
    not in scripts that put none between words."""
    first = pieces[0][1][:1] if pieces else ""
    if not first or first.isspace() or _stands_close(first):
        return list(pieces)
    return [(pieces[0][0], f" {pieces[0][1]}"), *pieces[1:]]


def _stands_close(character: str) -> bool:
    """Chinese and Japanese characters are wide; so are Korean ones, but Korean has spaces."""
    return unicodedata.east_asian_width(character) in "WF" and "HANGUL" not in unicodedata.name(character, "")


def split_words(text: str) -> list[str]:
    """ " one two" → [" one", " two"]: joined they give the text. White space at the end stays with the last word; a
    text that has nothing else has no words. No-break spaces do not part words."""
    words: list[str] = re.findall(r"\s*\S+", text, re.ASCII) if text.strip() else []
    if words:
        words[-1] += text[sum(map(len, words)) :]
    return words


def longest_pause(token_ids: Sequence[int], duration: float) -> tuple[float, float]:
    """The longest stretch of the audio, in seconds, that no text speaks of; (0, 0) for none."""
    spoken = [k for k, token in enumerate(token_ids) if token >= FIRST_TEXT_ID]
    ends = [0.0, *(min((k + 1) * TOKEN_S, duration) for k in spoken), duration]
    return max(pairwise(ends), key=lambda stretch: stretch[1] - stretch[0])
