"""Voxtral Mini 3B and Small 24B: whole windows of 30 s in an instruct prompt that may name the language."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import ConfigError
from voxbatch.languages import ISO_639_1
from voxbatch.records import SAMPLING_RATE
from voxbatch.vllm.engine import memory
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.families.voxtral import Voxtral
from voxbatch.vllm.engine.model import INSTRUCT, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.engine.tekken import Tekken, load_tekken, require_agreement
from voxbatch.vllm.engine.word_times import FIRST_TEXT_ID
from voxbatch.vllm.plugin.scheduler.admission import burst_size

WINDOW_S = 30
WINDOW = WINDOW_S * SAMPLING_RATE
WINDOW_TOKENS = 375
"""Number of audio tokens of each window of 30 s, full or not: 12.5 per second."""
PROMPT_TOKENS = 8
"""The largest number of prompt tokens besides the audio: [BOS] [INST] [BEGIN_AUDIO] [/INST], two or three tokens of
`lang:xx`, [TRANSCRIBE]."""
TEXT_TOKENS = 448
"""Number of tokens allowed for the text of 30 s. Whisper's decoder has as many, and the fastest speaker needs a
third of them."""
SERVED_RECORDINGS = 5
"""Number of recordings that a question to a server may have: vLLM takes no more (
VoxtralProcessingInfo.get_supported_mm_limits), also if a serving.properties says 8, as the published one does."""


class WindowedVoxtral(Voxtral):
    """The part of the interface that both tasks of Voxtral Mini 3B and Small 24B share."""

    name, profile = INSTRUCT, "mini-3b"

    @classmethod
    def step_tokens(cls, requests: int, prefilled: bool, on_cpu: bool) -> int:
        """Return the number of positions in a step, a multiple of 1,024; see `Family.step_tokens`.

        A step holds a position of each request. With the plugin it also holds the prompts of a whole burst, so that the
        steps between two bursts only decode. Without it, each step replaces the requests that ended in the step before:
        one in 100, because the text of 30 s has about 100 tokens. A larger step would only take memory
        (memory.STEP_BYTES).
        """
        prompts = burst_size(requests) if prefilled else math.ceil(requests / 100)
        return max(memory.STEP, math.ceil((requests + prompts * memory.INSTRUCT_PROMPT) / 1024) * 1024)


class Instruct(WindowedVoxtral):
    """The family of Voxtral Mini 3B and Small 24B that transcribe: see `Family` for its methods."""

    reproducible_dtype = "bfloat16"
    languages = ISO_639_1
    uses_language = True
    max_chunk_samples = WINDOW
    prompt_tokens = WINDOW_TOKENS + PROMPT_TOKENS

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        needed = self.prompt_tokens + TEXT_TOKENS
        if settings.max_model_len < needed:
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; {model.name} takes whole windows of {WINDOW_S} s, which "
                f"are {self.prompt_tokens} tokens before the first word: give at least {needed}, or 1024"
            )

    @classmethod
    def serving_arguments(cls) -> dict[str, Any]:
        """Return what lets a server answer questions and call tools; see `Family.serving_arguments`."""
        return {
            "limit_mm_per_prompt": {"audio": SERVED_RECORDINGS},
            "enable_auto_tool_choice": True,
            "tool_call_parser": "mistral",
        }

    def load(self, folder: Path) -> None:
        """Load the tokenizer and check its counts; see `Family.load`."""
        self._tekken: Tekken = load_tekken(folder)
        require_windows(self._tekken.audio_encoder, folder)
        besides = len(self.prompt(WINDOW, None)) - WINDOW_TOKENS  # a language has 2 or 3 tokens, by the vocabulary
        require_agreement(
            besides <= PROMPT_TOKENS,
            folder,
            f"a prompt has {besides} tokens beside the audio, and voxbatch counts at most {PROMPT_TOKENS}",
        )

    def request(self, piece: Piece) -> Request:
        """Return a request with a whole window of audio; see `Family.request`."""
        if len(piece.samples) > WINDOW:
            raise UnsupportedPiece(f"{len(piece.samples) / SAMPLING_RATE:.2f} s of audio; {WINDOW_S} s are one window")
        padded = self._tekken.pad(piece.samples)
        prompt = self.prompt(len(padded), piece.lang)
        return Request(
            {"prompt_token_ids": prompt, "multi_modal_data": {"audio": [(padded, SAMPLING_RATE)]}},
            max_tokens=min(TEXT_TOKENS, self.max_model_len - len(prompt)),
        )

    def prompt(self, num_samples: int, lang: str | None) -> list[int]:
        """Return the token ids of a transcription prompt, as mistral-common makes them.

        They are those of InstructTokenizerV7.encode_transcription, for audio that is already padded.

        Args:
            num_samples: length of the padded audio.
            lang: primary subtag of the language; None leaves the language out.
        """
        instruct, encoder = self._tekken.instruct, self._tekken.audio_encoder
        audio = [encoder.audio_token] * encoder.audio_config.num_audio_tokens(num_samples)
        language_tokens = self._tekken.encode(f"lang:{lang}") if lang else []
        begin = [*self._tekken.start, instruct.BEGIN_INST, encoder.begin_audio_token]
        return [*begin, *audio, instruct.END_INST, *language_tokens, instruct.TRANSCRIBE]

    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText:
        """Return the text and its confidence, without times; see `Family.read`."""
        confidence = scores.confidence(token_ids, range(FIRST_TEXT_ID)) if scores else None
        return PieceText(self._tekken.decode(token_ids), truncated=finish_reason == "length", confidence=confidence)


def require_windows(encoder: Any, folder: Path) -> None:
    """Check that mistral-common pads audio to whole windows and counts their tokens as voxbatch does.

    Args:
        encoder: the AudioEncoder of mistral-common.
        folder: the folder of tekken.json, for the message.

    Raises:
        EngineError: the counts differ.
    """
    for samples in (1, SAMPLING_RATE, WINDOW - 1, WINDOW, WINDOW + 1):
        padded = len(encoder.pad(np.zeros(samples, np.int8), SAMPLING_RATE))
        tokens, counted = encoder.audio_config.num_audio_tokens(padded), -(-samples // WINDOW) * WINDOW_TOKENS
        require_agreement(
            tokens == counted,
            folder,
            f"audio of {samples:,} samples has {tokens} tokens, and voxbatch counts {counted}",
        )
