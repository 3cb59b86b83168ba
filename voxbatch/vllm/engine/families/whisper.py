"""Whisper in Hugging Face's format, with windows of 30 s. If the language is unknown, the model itself detects it.

Hints stand before each window, in the place of the text before it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxbatch.engines.known_models import is_trained_to_translate
from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.engines.whisper_input import HOTWORD_TOKENS, fitting_hotwords
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Hints
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.model import WHISPER, Model
from voxbatch.vllm.engine.settings import VllmSettings

WINDOW_S = 30
"""Length of the audio that Whisper's encoder always takes (openai/whisper, audio.py: CHUNK_LENGTH)."""
CONTEXT = 448
"""Number of positions of Whisper's decoder (openai/whisper, n_text_ctx)."""
ENCODER_POSITIONS = 1500
"""Number of encoder positions of a window (openai/whisper, n_audio_ctx). All are computed in one step, because vLLM
does not split the input of an encoder."""
ENGLISH_VOCABULARY = 51_864
"""Number of tokens of an English-only Whisper (openai/whisper, tokenizer.py). Multilingual ones have more."""
TEXT_TOKENS = CONTEXT // 2
"""Number of tokens allowed for the text of a window, as in openai/whisper (decoding.py: sample_len)."""
MIN_CONTEXT = TEXT_TOKENS + 1
START_TOKENS = 5
"""Largest number of tokens with a meaning of their own before the text: startofprev, startoftranscript, the language,
the task and notimestamps."""


KEPT_HINTS = 64
"""Number of hints whose tokens are kept. Those of a run stand before every window, and a row may have its own."""


class Whisper(Family):
    """The family of Whisper: see `Family` for its methods."""

    name, profile = WHISPER, "whisper"
    reproducible_dtype = "float16"
    compiles_reproducibly = False  # no step that encodes a recording has compiled code
    uses_language = True
    takes_hints = True
    max_chunk_samples = WINDOW_S * SAMPLING_RATE
    prompt_tokens = ENCODER_POSITIONS
    computes_spectrograms = True

    @classmethod
    def step_tokens(cls, requests: int, prefilled: bool, on_cpu: bool) -> int:
        """Return a whole window for a few requests, whose contexts together are shorter, and which vLLM would take as
        the step; see `Family.step_tokens`."""
        return ENCODER_POSITIONS if requests * MIN_CONTEXT < ENCODER_POSITIONS else 0

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        self._hint_room = max(0, settings.max_model_len - TEXT_TOKENS - START_TOKENS)
        """Number of tokens that hints may have."""
        if model.shape().get("vocab_size") == ENGLISH_VOCABULARY:
            self.languages = frozenset({"en"})
        self.translates = self.languages is None and is_trained_to_translate(model.name)
        if not MIN_CONTEXT <= settings.max_model_len <= CONTEXT:
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; a Whisper decoder takes {MIN_CONTEXT} to {CONTEXT}"
            )

    def load(self, folder: Path) -> None:
        """Load the tokenizer and the special tokens; see `Family.load`."""
        from transformers import AutoTokenizer

        generation = json.loads((folder / "generation_config.json").read_text())
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._controls = frozenset(self._tokenizer.all_special_ids)
        self._start = json.loads((folder / "config.json").read_text())["decoder_start_token_id"]
        self._languages: dict[str, int] = generation.get("lang_to_id", {})
        """Ids of the language tokens, e.g. {"<|en|>": 50259}. Empty for an English-only model."""
        self._tasks: dict[str, int] = generation["task_to_id"] if self._languages else {}
        """Ids of the tokens of TASKS. Empty for an English-only model."""
        self._previous = self._tokenizer.convert_tokens_to_ids("<|startofprev|>")
        self._no_timestamps = generation["no_timestamps_token_id"]
        self._suppressed = tuple(generation.get("suppress_tokens") or ())
        self._hint_tokens = functools.lru_cache(KEPT_HINTS)(self._tokens_of_hints)

    def request(self, piece: Piece) -> Request:
        """Return a request; see `Family.request`.

        If the model is multilingual and the language of the piece is unknown, the request asks for the language only.
        """
        if len(piece.samples) > self.max_chunk_samples:
            raise UnsupportedPiece(f"{len(piece.samples) / SAMPLING_RATE:.2f} s of audio; {WINDOW_S} s are one window")
        if self._languages and piece.lang is None:
            ids = tuple(self._languages.values())
            return Request(_prompt(piece, [self._start]), max_tokens=1, ignore_eos=True, allowed_token_ids=ids)
        spoken = [self._language(piece.lang), self._tasks[piece.task]] if self._languages and piece.lang else []
        hints, warning = self._hint_tokens(piece.hints) if piece.hints else ([], None)
        prompt = _prompt(piece, [*hints, self._start, *spoken, self._no_timestamps])
        return Request(prompt, max_tokens=TEXT_TOKENS, suppressed_token_ids=self._suppressed, warning=warning)

    def _tokens_of_hints(self, hints: Hints) -> tuple[list[int], str | None]:
        """Return the first hotwords and the end of the prompt, as far as they have room, as tokens before the text. The
        second value is a warning if hotwords are left out."""
        hotwords, warning = fitting_hotwords(self._encoded, hints.hotwords or "", min(HOTWORD_TOKENS, self._hint_room))
        tokens, prompt = self._encoded(hotwords), self._encoded(hints.prompt or "")
        room = self._hint_room - len(tokens)
        return [self._previous, *tokens, *prompt[max(0, len(prompt) - room) :]], warning

    def _encoded(self, text: str) -> list[int]:
        """Return the tokens of a text that stands before others."""
        ids: list[int] = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False) if text.strip() else []
        return ids

    def _language(self, lang: str) -> int:
        try:
            return self._languages[f"<|{lang}|>"]
        except KeyError:
            language_codes = ", ".join(sorted(token.strip("<|>") for token in self._languages))
            raise UnsupportedPiece(
                f"this Whisper does not know the language {lang!r}; it knows {language_codes}"
            ) from None

    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText | Piece:
        """Return the text and its confidence; or the piece with its language, if the request asked for the language."""
        if self._languages and piece.lang is None:
            tokens = {token_id: token for token, token_id in self._languages.items()}
            return replace(piece, lang=tokens[token_ids[0]].strip("<|>"))
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        confidence = scores.confidence(token_ids, self._controls) if scores else None
        return PieceText(text, truncated=finish_reason == "length", confidence=confidence)


def _prompt(piece: Piece, decoder: list[int]) -> dict[str, Any]:
    audio = {"prompt": "", "multi_modal_data": {"audio": (piece.samples, SAMPLING_RATE)}}
    return {"encoder_prompt": audio, "decoder_prompt": {"prompt_token_ids": decoder}}
