"""All other transcription models that vLLM serves: the model's class in vLLM gives prompt, limits, languages and text.

vLLM's classes with the interface `SupportsTranscription` do this for its endpoint /v1/audio/transcriptions. This family
asks the same classes for the same things, so it knows nothing about any model. It gives no word times.

The limits are known only when vLLM is imported. So it takes some seconds to make this family.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import ConfigError
from voxbatch.languages import language_name
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.environment import set_environment
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.model import TRANSCRIPTION, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.plugin.scheduler.admission import EXPECTED_TEXT

CONTEXT = 2_048
"""Largest context that is taken if `max_model_len` gives none. It holds 30 s of audio and their text with every class
of vLLM 0.32. A class that takes longer clips gets the longest one that fits."""
TEXT_TOKENS_PER_S = 224 / 30
"""Number of tokens for the text of a second of audio for which the context must have room (openai/whisper,
decoding.py: sample_len)."""
MOST_TEXT_TOKENS_PER_S = 448 / 30
"""Number of tokens that the text of a second of audio may have, if the context has room; see instruct.TEXT_TOKENS."""


class Transcription(Family):
    """The family of all classes of vLLM that transcribe: see `Family` for its methods."""

    name, profile = TRANSCRIPTION, "transcription"
    chooses_context = True
    max_inputs: Mapping[str, int] = {"audio": 1, "image": 0, "video": 0}
    computes_spectrograms = True

    def __init__(self, model: Model, settings: VllmSettings):
        """Ask the model's class for its limits.

        Raises:
            ConfigError: vLLM cannot serve the model with these settings, or the context is too short for it.
        """
        super().__init__(model, settings)
        self._config = _model_config(model, settings)
        with _errors_as_config_errors(model.name):
            from vllm.model_executor.model_loader import get_model_cls
            from vllm.multimodal import MULTIMODAL_REGISTRY
            from vllm.tokenizers import cached_tokenizer_from_config

            self._class: Any = get_model_cls(self._config)
            self._tokenizer: Any = cached_tokenizer_from_config(self._config)
            self._processor: Any = MULTIMODAL_REGISTRY.create_processor(self._config, tokenizer=self._tokenizer)
            self._speech: Any = self._class.get_speech_to_text_config(self._config, "transcribe")
        if self._speech.sample_rate != SAMPLING_RATE:
            raise ConfigError(f"{model.name} takes {self._speech.sample_rate:g} Hz, and voxbatch gives {SAMPLING_RATE}")
        self._controls = frozenset(self._tokenizer.all_special_ids)
        self._detects_language = bool(self._class.supports_explicit_language_detection)
        self.languages = frozenset(self._class.supported_languages)
        self.uses_language = self._detects_language or self._depends_on_language()
        self.default_language: str | None = self._class.validate_language(None) if self.uses_language else None
        """The language that the class takes for audio whose language is not given. None if the model hears it."""
        if self.default_language is not None:
            self.warning = (
                f"{model.name} must be told the language of each recording, and takes "
                f"{language_name(self.default_language)} where none is given: give --language, or lang in the manifest"
            )
        self.max_model_len = self.max_model_len or min(CONTEXT, self._config.max_model_len)
        clip_s = self._longest_clip_s()
        self.max_chunk_samples = clip_s * SAMPLING_RATE
        positions = self._positions(clip_s)
        encoder_positions = getattr(self._config.hf_config, "max_source_positions", 0)
        self.prompt_tokens = max(positions, encoder_positions if self._config.is_encoder_decoder else 0)
        self._max_tokens = min(math.ceil(MOST_TEXT_TOKENS_PER_S * clip_s), self.max_model_len - positions)
        self._repetition_penalty = float(self._config.get_diff_sampling_param().get("repetition_penalty", 1.0))
        # An encoder-decoder has a second cache, for the audio, whose size vLLM does not state.
        if not self._config.is_encoder_decoder and not self._config.use_mla:
            heads, layers = self._config.get_total_num_kv_heads(), self._config.get_total_num_hidden_layers()
            position_bytes = 2 * 2 * layers * heads * self._config.get_head_size()  # keys and values, in 16 bits
            self.request_bytes = position_bytes * (self.prompt_tokens + EXPECTED_TEXT)

    def request(self, piece: Piece) -> Request:
        """Return a request; see `Family.request`.

        If the language is unknown, and the class detects it by a request of its own, this is that request.
        """
        if len(piece.samples) > self.max_chunk_samples:
            raise UnsupportedPiece(
                f"{len(piece.samples) / SAMPLING_RATE:.2f} s of audio; {self._name} takes "
                f"{self.max_chunk_samples // SAMPLING_RATE} s"
            )
        if piece.lang is None and self._detects_language:
            return Request(
                self._class.get_language_detection_prompt(piece.samples, self._speech),
                max_tokens=1,
                ignore_eos=True,
                allowed_token_ids=tuple(self._class.get_language_token_ids(self._tokenizer) or ()),
            )
        try:
            prompt = self._prompt(piece.samples, piece.lang)
        except ValueError as e:
            raise UnsupportedPiece(str(e)) from e
        return Request(prompt, max_tokens=self._max_tokens, repetition_penalty=self._repetition_penalty)

    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText | Piece:
        """Return the text and its confidence; or the piece with its language, if the request asked for the language."""
        if piece.lang is None and self._detects_language:
            return replace(piece, lang=self._class.parse_language_detection_output(token_ids, self._tokenizer))
        raw_text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        text = self._class.post_process_output(raw_text.rstrip("\ufffd"))  # vLLM gives no incomplete last character
        if self._class.supports_diarized_transcription and (turns := self._class.parse_diarized_transcript(text)):
            text = " ".join(turn.text for turn in turns)
        confidence = scores.confidence(token_ids, self._controls) if scores else None
        return PieceText(text, truncated=finish_reason == "length", confidence=confidence)

    def _prompt(self, samples: Samples, lang: str | None) -> Any:
        """Return the prompt of vLLM's endpoint.

        Raises:
            ValueError: the class does not know the language.
        """
        from vllm.config.speech_to_text import SpeechToTextParams

        language = self._class.validate_language(lang)
        return self._class.get_generation_prompt(SpeechToTextParams(samples, self._speech, self._config, language))

    def _depends_on_language(self) -> bool:
        """Return whether the prompts of two languages differ."""
        second = np.zeros(SAMPLING_RATE, np.float32)
        prompts = (self._prompt(second, lang) for lang in sorted(self._class.supported_languages)[:2])
        return len({str({**prompt, "multi_modal_data": None}) for prompt in prompts}) > 1

    def _longest_clip_s(self) -> int:
        """Return the length of the longest clip: that of the class, or a shorter one that fits into the context.

        Raises:
            ConfigError: not even a second fits.
        """
        limit_s = int(self.max_model_len / TEXT_TOKENS_PER_S)
        if self._speech.max_audio_clip_s is not None:
            limit_s = min(limit_s, int(self._speech.max_audio_clip_s))
        if self._fits(limit_s):
            return limit_s
        clip_s = bisect.bisect_left(range(1, limit_s), True, key=lambda seconds: not self._fits(seconds))
        if clip_s == 0:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}; a second of audio takes {self._positions(1)} positions with "
                f"{self._name}: give at least {CONTEXT}, or 0 for a context that suffices"
            )
        return clip_s

    def _fits(self, seconds: int) -> bool:
        return self._positions(seconds) + TEXT_TOKENS_PER_S * seconds <= self.max_model_len

    def _positions(self, seconds: int) -> int:
        """Return the number of positions of a prompt with this much audio."""
        from vllm.multimodal.processing import ProcessorInputs, TimingContext
        from vllm.renderers.inputs.preprocess import parse_enc_dec_prompt

        language = self.default_language or min(self._class.supported_languages)
        prompt = self._prompt(np.zeros(seconds * SAMPLING_RATE, np.float32), language)
        audio = prompt.get("multi_modal_data")
        if self._config.is_encoder_decoder:
            parts = parse_enc_dec_prompt(prompt)
            prompt = parts["decoder_prompt"] or parts["encoder_prompt"]
        ids: list[int] = prompt.get("prompt_token_ids") or self._tokenizer.encode(prompt["prompt"])
        if self._config.is_encoder_decoder:
            return len(ids)
        items = self._processor.info.parse_mm_data(audio)
        processed = self._processor.apply(ProcessorInputs(ids, items), TimingContext(enabled=False))
        return len(processed["prompt_token_ids"])


def _model_config(model: Model, settings: VllmSettings) -> Any:
    """Return vLLM's ModelConfig.

    Raises:
        ConfigError: vLLM cannot serve the model with these settings.
    """
    set_environment(plugin=False)
    with _logging_nothing(), _errors_as_config_errors(model.name):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.models import ModelRegistry

        for architecture in model.shape().get("architectures", ()):
            ModelRegistry.models[architecture].load_model_cls()  # vLLM's own error would not name a missing package
        arguments = Transcription.arguments(settings)
        with compat.model_class_in_this_process():
            return EngineArgs(model=str(model.path), **arguments).create_model_config()


@contextlib.contextmanager
def _errors_as_config_errors(name: str) -> Iterator[None]:
    """Raise ConfigError for errors of vLLM and transformers about the files of a model, or about missing packages."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OSError, ImportError, RuntimeError) as e:
        reason = " ".join(str(e).split())[:600]
        raise ConfigError(f"vLLM cannot serve {name} with these settings: {reason}") from e


@contextlib.contextmanager
def _logging_nothing() -> Iterator[None]:
    """Let vLLM configure no log while it is imported: standard output belongs to the results. VllmProcess configures it
    when the engine starts."""
    variable = "VLLM_CONFIGURE_LOGGING"
    chosen = os.environ.get(variable)
    os.environ[variable] = "0"
    logger = logging.getLogger("vllm")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    try:
        yield
    finally:
        os.environ.pop(variable)
        os.environ.update({variable: chosen} if chosen is not None else {})
