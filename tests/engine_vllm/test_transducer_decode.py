"""The words of a transducer, joined, are the text that SentencePiece itself decodes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

sentencepiece = pytest.importorskip("sentencepiece")

from voxbatch.transducers.words import Vocabulary  # noqa: E402

TEXT = Path(__file__).read_text().splitlines()
SPOKEN = ["¡Hola! ¿Qué tal?", "cuesta $5, ¡bien!", "very very good", "Über „Straßen“ fährt er.", "он сказал: «да»"]
"""Texts of which the model learns pieces. Other characters become bytes."""


def trained() -> tuple[object, Vocabulary]:
    """Return a model with bytes for unknown characters, and its vocabulary."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXT, *SPOKEN * 4]), model_writer=written, vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return model, Vocabulary(model.id_to_piece(number) for number in range(model.get_piece_size()))


MODEL, VOCABULARY = trained()


def joined(ids: list[int]) -> str:
    """Return the text of the words, with tokens that follow each other."""
    starts = np.arange(len(ids)) * 0.08
    return "".join(word.text for word in VOCABULARY.words(ids, starts, starts + 0.08, None, 60.0))


@given(st.one_of(st.sampled_from(SPOKEN), st.text(st.sampled_from("ab ¿¡$5.,'Üß你好да𝄞"), min_size=1, max_size=20)))
def test_texts_come_back(text: str) -> None:
    """Words give back each text that SentencePiece encodes, with its bytes, spaces and signs."""
    ids = MODEL.encode(text)  # type: ignore[attr-defined]
    decoded = MODEL.decode(ids)  # type: ignore[attr-defined]
    assert joined(ids).removeprefix(" ") == (decoded if decoded.strip() else "")


@example([MODEL.piece_to_id("▁"), MODEL.piece_to_id("▁"), 3])  # type: ignore[attr-defined]
@given(st.lists(st.integers(3, MODEL.get_piece_size() - 1), min_size=1, max_size=12))  # type: ignore[attr-defined]
def test_any_tokens_have_the_text_of_sentencepiece(ids: list[int]) -> None:
    """Any tokens, also bytes that are no character, have the text that SentencePiece gives."""
    decoded = MODEL.decode(ids)  # type: ignore[attr-defined]
    if decoded.strip():
        assert joined(ids) in (f" {decoded}", decoded)
