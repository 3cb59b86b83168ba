"""Tests for the words of transducers: their texts, joined, are what the tokenizers library decodes; their times are in
order and inside the clip; and punctuation belongs to the word that it touches.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from conftest import environment
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders

from voxbatch.records import Word
from voxbatch.transducers.words import Vocabulary

SPECIAL = ["<unk>", "<pad>", "<blk>", "</s>", "<|startoftranscript|>", "<|es|>"]
BYTES = [f"<0x{number:02X}>" for number in "ä你𝄞é".encode()]
PIECES = [
    *SPECIAL, *BYTES, "▁", "▁▁", "▁very", "▁Hola", "ola", "H", "s", "▁¡", "¡", "▁¿", "¿", "!", "?", ".", ",", "'", "-",
    "(", ")", "“", "”", "„", "«", "»", "▁-", "$", "▁$", "5", "0", "%", "▁2", "你", "好", "▁你", "，", "。", "カ", "タ",
    "สวัส", "ดี", "ำ", "ี", "เ", "ក", "안", "▁안녕", "д", "▁да", "ß", "á", "́", "\N{NO-BREAK SPACE}", "…",
]  # fmt: skip
VOCABULARY = Vocabulary(PIECES)
DECODER = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
FRAME_S = 0.08


def decoded(pieces: list[str]) -> str:
    """Return the text of the tokenizers library."""
    return str(DECODER.decode([piece for piece in pieces if piece not in SPECIAL]))


def words_of(pieces: list[str], duration_s: float = 60.0, vocabulary: Vocabulary | None = None) -> tuple[Word, ...]:
    """Return the words of pieces, each of one frame that follows the frame of the piece before."""
    ids = range(len(pieces)) if vocabulary is None else [PIECES.index(piece) for piece in pieces]
    starts = [k * FRAME_S for k in range(len(pieces))]
    ends = [start + FRAME_S for start in starts]
    return (vocabulary or Vocabulary(pieces)).words(ids, starts, ends, None, duration_s)


def texts(pieces: list[str]) -> list[str]:
    return [word.text for word in words_of(pieces)]


@given(st.lists(st.sampled_from([piece for piece in PIECES if piece not in BYTES]), max_size=30))
@example(["▁▁", "▁very"])
@example(["▁Hola", ".", "¿", "H", "▁$", "5"])
@example(["▁very", "▁very", "s"])
def test_the_words_joined_are_the_text_of_the_tokenizer(pieces: list[str]) -> None:
    """No space is added, removed or merged, except before the first letter: one space stands before a text that begins
    with a letter of a script with spaces, and the tokenizer drops all marks of the first piece ("▁▁")."""
    joined, expected = "".join(word.text for word in words_of(pieces, vocabulary=VOCABULARY)), decoded(pieces)
    if not expected.strip():
        assert joined == ""
    else:
        assert joined.lstrip(" ") == expected.lstrip(" ")
    assert VOCABULARY.text([PIECES.index(piece) for piece in pieces]) == joined


@given(st.text(st.sampled_from("ä你𝄞é"), min_size=1, max_size=6))
def test_bytes_are_joined_to_characters(text: str) -> None:
    """Characters that are written as bytes come out whole, and each Chinese one is a word."""
    words = words_of([f"<0x{number:02X}>" for number in text.encode()])
    assert "".join(word.text for word in words).strip() == text == decoded([f"<0x{n:02X}>" for n in text.encode()])
    assert sum(word.text.strip().startswith("你") for word in words) == text.count("你")


def test_an_incomplete_character_is_a_replacement_for_each_byte() -> None:
    """As in SentencePiece, each byte that belongs to no character gives one U+FFFD."""
    assert texts(["▁a", "<0xE4>", "<0xBD>", "▁b"]) == [" a\ufffd\ufffd", " b"]


tokens = st.tuples(st.integers(0, len(PIECES) - 1), st.integers(0, 3), st.integers(0, 4), st.floats(0, 1))


@given(st.lists(tokens, max_size=30), st.floats(0.02, 4.0))
def test_words_are_in_order_and_inside_the_clip(rows: list[tuple[int, int, int, float]], duration_s: float) -> None:
    """No word begins before the one before it has ended, or ends after its clip, whatever durations the tokens have."""
    frame, starts, ends = 0, [], []
    for _, step, duration, _ in rows:
        frame += step
        starts.append(frame * FRAME_S)
        ends.append((frame + duration) * FRAME_S)
    words = VOCABULARY.words([row[0] for row in rows], starts, ends, [row[3] for row in rows], duration_s)
    assert all(0 <= word.start <= word.end <= duration_s for word in words)
    assert all(before.end <= word.start for before, word in pairwise(words))
    assert all(word.confidence is not None and 0 <= word.confidence <= 1 for word in words)
    assert all(word.text.strip() for word in words)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["▁", "¡", "H", "ola", "!", "▁que"], [" ¡Hola!", " que"]),
        (["▁Hola", ".", "▁¿", "Qu", "é", "▁tal", "?"], [" Hola.", " ¿Qué", " tal?"]),
        (["▁Hola", ".", "¿", "Qué", "?", "¡", "Bien", "!"], [" Hola.", "¿Qué?", "¡Bien!"]),
        (["▁cuesta", "▁$", "5", ",", "0", "▁hoy"], [" cuesta", " $5,0", " hoy"]),
        (["▁cuesta", "$", "5"], [" cuesta$5"]),
        (["▁don", "'", "t", "▁f", "(", "x", ")"], [" don't", " f(x)"]),
        (["▁„", "Hallo", "“", "▁sagte", "▁er", "."], [" „Hallo“", " sagte", " er."]),
        (["▁«", "Да", "»", ",", "▁—", "▁он"], [" «Да»,", " —", " он"]),
        (["▁", "你", "好", "，", "世界", "。"], [" 你", "好，", "世界。"]),
        (["他", "说", "：", "“", "你", "好", "”"], ["他", "说：", "“你", "好”"]),
        (["我", "用", "Py", "thon", "编"], ["我", "用", "Python", "编"]),
        (["สวัส", "ดี", "น", "ำ"], ["สวัส", "ดี", "นำ"]),
        (["เ", "ก็บ", "ของ"], ["เก็บ", "ของ"]),
        (["▁안", "녕", "▁세계"], [" 안녕", " 세계"]),
        (["▁very", "▁very", "▁good"], [" very", " very", " good"]),
        (["▁a", "▁", "▁"], [" a  "]),
        (["<|en|>", "▁a", "<unk>", "▁b", "</s>"], [" a", " b"]),
        (["and"], [" and"]),
        (["▁", "▁"], []),
        ([], []),
    ],
)
def test_words(pieces: list[str], expected: list[str]) -> None:
    """Punctuation belongs to the word that it touches, and scripts without spaces have a word for each piece."""
    assert texts(pieces) == expected


def test_punctuation_has_no_time() -> None:
    """A word lasts from its first letter to its last one, however early or late its punctuation was written.
    Punctuation alone has its own time."""
    vocabulary = Vocabulary(["▁¡", "Hola", "!", "▁—", "▁tú"])
    words = vocabulary.words([0, 1, 2, 3, 4], [0.0, 1.0, 4.0, 5.0, 6.0], [0.2, 1.4, 4.2, 5.2, 6.2], None, 10.0)
    assert [(word.start, word.end) for word in words] == [(1.0, 1.4), (5.0, 5.2), (6.0, 6.2)]


def test_the_confidence_is_the_mean_of_the_tokens() -> None:
    """Punctuation counts, special tokens do not, and a token without a probability leaves its word without one."""
    vocabulary = Vocabulary(["▁a", "b", ".", "<blk>", "▁c"])
    words = vocabulary.words([0, 1, 2, 3, 4], range(5), range(1, 6), [0.9, 0.6, 0.3, 0.0, float("nan")], 10.0)
    assert [word.confidence for word in words] == [0.6, None]


def test_importing_the_words_imports_no_torch() -> None:
    """The engine for CPUs uses the words on machines without PyTorch."""
    script = "import sys, voxbatch.transducers.words; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
