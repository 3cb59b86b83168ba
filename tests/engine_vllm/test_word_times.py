"""Tokens become words in order, inside the audio, that join to the text; times follow from the tokens' positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.records import Word
from voxbatch.vllm.engine.word_times import (
    EOS,
    FIRST_TEXT_ID,
    STREAMING_PAD,
    STREAMING_WORD,
    decode_groups,
    longest_pause,
    split_words,
    text_after_end,
    timed_words,
    with_leading_space,
    word_confidences,
)

P, W = STREAMING_PAD, STREAMING_WORD
A, B, C = 1000, 1001, 1002

tokens = st.lists(st.sampled_from((P, P, P, W, A, B, C)), max_size=80)
texts = st.text(st.sampled_from(" \n.aé你नि🙂"), max_size=40)


def spelt(text: str) -> list[int]:
    """Return one token for each byte: the finest possible tokenizer."""
    return [FIRST_TEXT_ID + byte for byte in text.encode()]


def byte(token: int) -> bytes:
    """Return the byte of a token."""
    return bytes([token - FIRST_TEXT_ID])


def decoded(ids: Sequence[int]) -> str:
    """Decode the bytes of the tokens."""
    return b"".join(map(byte, ids)).decode(errors="replace")


def test_text_after_eos_is_counted() -> None:
    """All text characters after the first EOS count; white space alone and control tokens are no text."""
    ids = [W, *spelt("one"), P, EOS, P, W, *spelt(" two"), EOS, *spelt(" 你")]
    assert text_after_end(ids, decode_groups(ids, byte)) == (5, 5)
    for ids in ([W, *spelt("one"), P], [W, *spelt("one"), EOS], [*spelt("one"), EOS, P, W, *spelt(" ")]):
        assert text_after_end(ids, decode_groups(ids, byte)) is None


def test_word_times_of_an_example() -> None:
    """[STREAMING_WORD] at k means that the word ended 80 × (k + 1) ms after the start, and began 70 ms a character
    before."""
    pieces = [(9, " one"), (24, " three"), (30, " four")]
    assert timed_words(pieces, 10.0) == [
        Word(" one", 0.52, 0.8),
        Word(" three", 1.58, 2.0),
        Word(" four", 2.13, 2.48),
    ]


def test_the_words_of_a_group_share_its_time() -> None:
    """The words of a group share its time by their length, up to its end; fast words begin at the end of the word
    before."""
    pair = timed_words([(24, " one three")], 10.0)
    assert pair == [Word(" one", 1.3, 1.58), Word(" three", 1.58, 2.0)]
    close = timed_words([(9, " zero"), (10, " one three")], 10.0)
    assert close == [Word(" zero", 0.45, 0.8), Word(" one", 0.8, 0.832), Word(" three", 0.832, 0.88)]


def test_words_in_the_pads_end_with_the_audio() -> None:
    """Words that the model says during the pads after the audio have times inside the audio."""
    assert timed_words([(11, " late"), (20, " later")], 1.0) == [
        Word(" late", 0.61, 0.96),
        Word(" later", 0.96, 1),
    ]


@given(st.lists(st.tuples(st.integers(1, 9), texts), max_size=12), st.integers(1, 50_000))
def test_word_times_are_ordered_and_inside_the_audio(steps: list[tuple[int, str]], num_samples: int) -> None:
    """Times never go back and never leave the audio, and the words join to the text."""
    places = np.cumsum([step for step, _ in steps]).tolist()
    pieces = [(at, text) for at, (_, text) in zip(places, steps, strict=True)]
    duration = num_samples / 16_000
    words = timed_words(pieces, duration)
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert all(0 <= time <= duration for time in times)
    assert all(word.text.strip() for word in words)
    assert "".join(word.text for word in words).rstrip() == "".join(text for _, text in pieces).rstrip()


@given(texts)
def test_split_words_join_again(text: str) -> None:
    """Split words join to the text, no word is blank, and none has a space inside."""
    words = split_words(text)
    assert "".join(words) == (text if text.strip() else "")
    assert all(word.strip() and " " not in word.strip() for word in words)


@pytest.mark.parametrize("first", ["one", "é", "один", "एक", "'t", "안녕"])
def test_the_first_word_gets_a_space(first: str) -> None:
    """The first word gets a space, as all others have, so that it does not join the chunk before."""
    assert with_leading_space([(3, first), (5, " two")]) == [(3, f" {first}"), (5, " two")]


@pytest.mark.parametrize("first", [" one", "\none", "你好", "こ", "カ", "。", ""])
def test_the_first_word_gets_no_space(first: str) -> None:
    """The first word gets no space if it has one, or in scripts without spaces between words."""
    assert with_leading_space([(3, first), (5, "x")]) == [(3, first), (5, "x")]
    assert with_leading_space([]) == []


def test_groups_that_share_a_character_become_one() -> None:
    """Two groups that share a character become one, at the later position, and all others keep their own."""
    one, dumpling, end = spelt(" one"), spelt(" 🥟"), spelt(" end")
    said = [P, W, *one, P, W, *dumpling[:3], P, W, *dumpling[3:], W, *end]
    late = said.index(W, said.index(dumpling[2]))
    groups = decode_groups(said, byte)
    assert [group[:2] for group in groups] == [(1, " one"), (late, " 🥟"), (len(said) - 5, " end")]
    assert [said[k] for k in groups[1].tokens] == dumpling


def test_invalid_bytes_do_not_delay_later_text() -> None:
    """Bytes that are no character do not delay the text after them."""
    said = [W, *spelt(" one"), FIRST_TEXT_ID + 0xFF, P, W, *spelt(" two")]
    assert [group[:2] for group in decode_groups(said, byte)] == [(0, " one�"), (7, " two")]


@given(texts, st.lists(st.integers(0, 200), max_size=30))
def test_groups_decode_to_the_text(text: str, breaks: list[int]) -> None:
    """Groups join to the text of all ids, wherever they are split: no character is lost or broken."""
    said = spelt(text)
    for at in breaks:
        said.insert(min(at, len(said)), P)
    assert "".join(group.text for group in decode_groups(said, byte)) == text


def confidences(said: list[int], probabilities: Sequence[float]) -> list[float | None]:
    """Return the confidences of the words of these tokens."""
    return word_confidences(decode_groups(said, byte), said, probabilities, byte)


def test_confidence_is_the_mean_probability_of_a_words_tokens() -> None:
    """Only the word's own text tokens count: no pad, no [STREAMING_WORD], no blank group, no other word of the group.

    Bytes of a character that is not complete count for the word of that character, and the mean has three digits.
    """
    said = [P, W, *spelt(" a"), P, W, *spelt(" b cd"), W, *spelt(" "), P, W, *spelt(" 你")]
    of_tokens = [0, 0, 0.5, 0.6667, 0, 0, 0.1, 0.3, 0.9, 0.9, 0.6, 0, 0, 0, 0, 1, 0.2, 0.3, 0.4]
    assert confidences(said, of_tokens) == [0.583, 0.2, 0.8, 0.475]
    pair = [W, *spelt(" 你 a")]
    assert confidences(pair, [0, 0.4, 0.1, 0.2, 0.3, 0.5, 0.7]) == [0.25, 0.6]


def test_words_without_a_probability_have_no_confidence() -> None:
    """A word has no confidence if one of its tokens has no probability. Other words keep theirs."""
    assert confidences([W, *spelt(" a b")], [0, 0.5, math.nan, 0.25, 0.75]) == [None, 0.5]


@given(texts, st.lists(st.integers(0, 200), max_size=30), st.data())
def test_each_word_has_a_confidence_between_its_probabilities(
    text: str, breaks: list[int], data: st.DataObject
) -> None:
    """There is one confidence for each timed word, wherever the groups are split, and none leaves [0, 1]."""
    said = spelt(text)
    for at in breaks:
        said.insert(min(at, len(said)), P)
    probabilities = data.draw(st.lists(st.floats(0, 1), min_size=len(said), max_size=len(said)))
    words = timed_words([group[:2] for group in decode_groups(said, byte)], 10.0)
    found = confidences(said, probabilities)
    assert len(found) == len(words)
    assert all(each is not None and 0 <= each <= 1 for each in found)
    assert set(confidences(said, [0.25] * len(said))) <= {0.25}


@given(st.binary(max_size=40) | texts.map(str.encode), st.data())
def test_tokens_count_for_the_words_of_their_characters(text: bytes, data: st.DataObject) -> None:
    """The tokens of a word are those that add or complete one of its characters, whatever bytes the model writes."""
    said = [FIRST_TEXT_ID + value for value in (*b"first ", *text)]
    probabilities = data.draw(st.lists(st.floats(0, 1), min_size=len(said), max_size=len(said)))
    places = [len(decoded(said[:k]).rstrip("�")) for k in range(len(said))] + [len(decoded(said))]
    means, begin = list[float | None](), 0
    for word in (words := split_words(decoded(said))):
        reach = range(begin, begin := begin + len(word))
        own = [
            probability
            for (start, end), probability in zip(pairwise(places), probabilities, strict=True)
            if start < reach.stop and max(start + 1, end) > reach.start
        ]
        means.append(round(sum(own) / len(own), 3) if own else None)
    assert confidences(said, probabilities) == means or len(words) == 1


def test_the_longest_pause_of_an_example() -> None:
    """The longest pause is between texts, before the first or after the last, in seconds of the audio."""
    assert longest_pause([P] * 100, 8.0) == (0.0, 8.0)
    assert longest_pause([A, *[P] * 49, A, *[P] * 10], 5.0) == pytest.approx((0.08, 4.08))
    assert longest_pause([*[P] * 9, A], 10.0) == pytest.approx((0.8, 10.0))
    assert longest_pause([*[P] * 90, A], 2.0) == pytest.approx((0.0, 2.0))
    assert longest_pause([], 3.0) == (0.0, 3.0)


@given(tokens, st.integers(0, 200_000))
def test_the_longest_pause_is_inside_the_audio(token_ids: list[int], num_samples: int) -> None:
    """The longest pause is inside the audio, and at least the duration divided by the number of text tokens plus
    one."""
    duration = num_samples / 16_000
    start, end = longest_pause(token_ids, duration)
    spoken = sum(each >= FIRST_TEXT_ID for each in token_ids)
    assert 0 <= start <= end <= duration
    assert end - start >= duration / (spoken + 1) - 1e-9


def test_read_gives_word_times_with_the_real_tokenizer(tmp_path: Path) -> None:
    """Realtime.read gives right times if an emoji's bytes lie in two groups, and its words join to the text."""
    pytest.importorskip("mistral_common")
    from checkpoints import write_tekken

    from voxbatch.engines.pieces import Piece
    from voxbatch.vllm.engine.families.realtime import Realtime
    from voxbatch.vllm.engine.model import REALTIME, Model
    from voxbatch.vllm.engine.settings import VllmSettings

    write_tekken(tmp_path)
    family = Realtime(Model("m", tmp_path, REALTIME, is_mistral=True), VllmSettings())
    family.load(tmp_path)
    one, emoji, end = (family._tekken.encode(text) for text in ("one", " 🥟", " end"))
    assert len(emoji) > 1
    said = [*[P] * 20, W, *one, *[P] * 60, W, *emoji[:-1], P, W, *emoji[-1:], *[P] * 30, W, *end]
    heard = family.read(Piece(np.zeros(16_000 * 20, np.float32)), said, "length")
    assert heard.text == "one 🥟 end"
    assert [word.text for word in heard.words] == [" one", " 🥟", " end"]
    assert heard.words[0].end == pytest.approx(21 * 0.08)
    assert heard.words[1].end == pytest.approx((20 + 1 + len(one) + 60 + 1 + len(emoji) + 1) * 0.08)
    assert heard.words[2].end == pytest.approx((len(said) - len(end)) * 0.08)
