"""Prompts built from arrays equal mistral-common's official prompts, token for token and sample for sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import noise

from voxbatch import engines
from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.families.instruct import Instruct
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.families.request import UnsupportedPiece
from voxbatch.vllm.engine.model import locate

pytest_plugins = ["engine_runs"]

LENGTHS = (1, 159, 160, 1_279, 1_280, 1_281, 16_000, 100_001, 479_999, 480_000)
"""Samples: around a token, around a mel frame, and up to a whole window."""


def official(model: Path, samples: np.ndarray, lang: str | None) -> Any:
    """Return the official prompt and audio."""
    from mistral_common.protocol.transcription.request import StreamingMode, TranscriptionRequest
    from mistral_common.tokens.tokenizers.audio import Audio
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tokenizer = MistralTokenizer.from_file(str(model / "tekken.json")).instruct_tokenizer
    audio = Audio(samples, 16_000, format="wav").to_base64("wav")
    streaming = tokenizer.audio_encoder.audio_config.is_streaming
    mode = StreamingMode.OFFLINE if streaming else StreamingMode.DISABLED
    return tokenizer.encode_transcription(TranscriptionRequest(audio=audio, language=lang, streaming=mode))


@pytest.mark.parametrize("delay_ms", [80, 480, 1200, 2400])
def test_the_realtime_prompt_is_the_official_one(tmp_path: Path, delay_ms: int) -> None:
    """The prompt is the official one at each length and delay, and the request asks for all tokens of the
    audio."""
    from checkpoints import write_realtime

    write_realtime(tmp_path, delay_ms=delay_ms)
    family = Realtime(locate(str(tmp_path), None), resolve("realtime", {"delay_ms": "0"}))
    family.load(tmp_path)
    for length in (*LENGTHS, family.max_chunk_samples):
        request = family.request(Piece(noise(length)))
        expected = official(tmp_path, noise(length), None)
        assert request.prompt["prompt_token_ids"] == expected.tokens
        ((samples, rate),) = request.prompt["multi_modal_data"]["audio"]
        assert rate is None
        np.testing.assert_array_equal(samples, expected.audios[0].audio_array)
        assert samples.dtype == np.float32
        assert request.max_tokens == len(samples) // 1_280 - len(expected.tokens) - 1
        assert len(samples) // 1_280 <= 512
    with pytest.raises(UnsupportedPiece, match="fit into a context of 512"):
        family.request(Piece(noise(family.max_chunk_samples + 1)))


def test_text_after_eos_is_kept_with_its_time(tmp_path: Path) -> None:
    """Text after the first EOS is kept, with the time of that EOS, inside the audio, and the number of characters."""
    from checkpoints import write_realtime

    write_realtime(tmp_path)
    family = Realtime(locate(str(tmp_path), None), resolve("realtime", {"delay_ms": "0"}))
    family.load(tmp_path)
    eos, one, two = family._tekken.instruct.tokenizer.eos_id, 1_065, 1_066
    heard = family.read(Piece(noise(160_000)), [33, one, 32, eos, 33, two, two], "length")
    assert isinstance(heard, PieceText)
    ((duration, tokens),) = heard.text_after_eos
    assert duration == pytest.approx(0.32)
    assert tokens == 2
    assert len(heard.text.strip()) == 3
    (ended,) = family.read(Piece(noise(1_600)), [33, one, 32, eos, 33, two], "length").text_after_eos
    assert ended == (0.1, 1)
    assert family.read(Piece(noise(160_000)), [33, one, eos], "stop").text_after_eos == ()


@pytest.mark.parametrize("lang", [None, "en", "pt", "hi"])
def test_the_instruct_prompt_is_the_official_one(voxtral: Path, lang: str | None) -> None:
    """The prompt is the official one at each length, with and without a language, and leaves space for the text. The
    samples of the chunk are not changed, because they are needed again after a death of the engine."""
    family = Instruct(locate(str(voxtral), None), resolve("instruct", {}))
    family.load(voxtral)
    for length in LENGTHS:
        request = family.request(piece := Piece(noise(length), lang))
        np.testing.assert_array_equal(piece.samples, noise(length))
        expected = official(voxtral, noise(length), lang)
        assert request.prompt["prompt_token_ids"] == expected.tokens
        ((samples, _),) = request.prompt["multi_modal_data"]["audio"]
        np.testing.assert_array_equal(samples, expected.audios[0].audio_array)
        assert len(expected.tokens) + request.max_tokens <= 1_024
    with pytest.raises(UnsupportedPiece, match="30 s are one window"):
        family.request(Piece(noise(480_001)))


def test_languages_of_the_families(voxtral: Path, realtime: Path) -> None:
    """An instruct model accepts mistral-common's languages; Realtime does not get the language, and so refuses none."""
    import pycountry

    spec = engines.create("vllm", str(voxtral), {}).spec
    assert spec.languages == frozenset(each.alpha_2 for each in pycountry.languages if hasattr(each, "alpha_2"))
    assert spec.uses_language
    spec = engines.create("vllm", str(realtime), {}).spec
    assert spec.languages is None
    assert not spec.uses_language
