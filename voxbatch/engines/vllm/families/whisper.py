"""Whisper in Hugging Face form: 30 s windows, the language asked of the model itself where nobody says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxbatch.engines.vllm.families import Heard, Piece, Request, Unfit
from voxbatch.engines.vllm.model import Model
from voxbatch.engines.vllm.settings import Settings
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE

WINDOW_S = 30
"""Whisper's encoder always takes 30 s (openai/whisper, audio.py: CHUNK_LENGTH)."""
CONTEXT = 448
"""Whisper's decoder has so many positions (openai/whisper, n_text_ctx)."""
ENCODER_POSITIONS = 1500
"""Of a window (openai/whisper, n_audio_ctx), all in one step: vLLM does not cut an encoder's input."""
TEXT_TOKENS = CONTEXT // 2
"""What openai/whisper itself lets a window say (decoding.py: sample_len)."""


class Whisper:
    languages: frozenset[str] | None = None
    uses_language = True
    word_times = False
    max_chunk_samples = WINDOW_S * SAMPLING_RATE
    prompt_tokens = ENCODER_POSITIONS

    def __init__(self, model: Model, settings: Settings):
        self.decoding: Mapping[str, Any] = {}
        if not TEXT_TOKENS < settings.max_model_len <= CONTEXT:
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; a Whisper decoder takes {TEXT_TOKENS + 1} to {CONTEXT}"
            )

    def load(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        generation = json.loads((folder / "generation_config.json").read_text())
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._start = json.loads((folder / "config.json").read_text())["decoder_start_token_id"]
        self._languages: dict[str, int] = generation.get("lang_to_id", {})
        """By token, e.g. {"<|en|>": 50259}; empty for an English-only model."""
        self._transcribe = [generation["task_to_id"]["transcribe"]] if self._languages else []
        self._no_timestamps = generation["no_timestamps_token_id"]
        self._suppressed = tuple(generation.get("suppress_tokens") or ())

    def request(self, piece: Piece) -> Request:
        if len(piece.samples) > self.max_chunk_samples:
            raise Unfit(f"{len(piece.samples) / SAMPLING_RATE:.2f} s of audio; {WINDOW_S} s are one window")
        if self._languages and piece.lang is None:
            ids = tuple(self._languages.values())
            return Request(_prompt(piece, [self._start]), max_tokens=1, ignore_eos=True, allowed_token_ids=ids)
        spoken = [self._language(piece.lang)] if self._languages and piece.lang else []
        prompt = _prompt(piece, [self._start, *spoken, *self._transcribe, self._no_timestamps])
        return Request(prompt, max_tokens=TEXT_TOKENS, suppressed_token_ids=self._suppressed)

    def _language(self, lang: str) -> int:
        try:
            return self._languages[f"<|{lang}|>"]
        except KeyError:
            known = ", ".join(sorted(token.strip("<|>") for token in self._languages))
            raise Unfit(f"this Whisper does not know the language {lang!r}; it knows {known}") from None

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str) -> Heard | Piece:
        if self._languages and piece.lang is None:
            tokens = {token_id: token for token, token_id in self._languages.items()}
            return replace(piece, lang=tokens[token_ids[0]].strip("<|>"))
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Heard(text, truncated=finish_reason == "length")


def _prompt(piece: Piece, decoder: list[int]) -> dict[str, Any]:
    audio = {"prompt": "", "multi_modal_data": {"audio": (piece.samples, SAMPLING_RATE)}}
    return {"encoder_prompt": audio, "decoder_prompt": {"prompt_token_ids": decoder}}
