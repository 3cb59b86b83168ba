"""Voxtral Realtime with whole chunks of audio: the model writes one token of text for each 80 ms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines.vllm import realtime_limits
from voxbatch.engines.vllm.families import Piece, PieceText, Request, UnsupportedPiece
from voxbatch.engines.vllm.model import Model
from voxbatch.engines.vllm.settings import VllmSettings
from voxbatch.engines.vllm.tekken import Tekken, load_tekken, require_agreement
from voxbatch.engines.vllm.word_times import TOKEN_S, decoded, longest_pause, spaced, text_after_end, timed_words
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE


class Realtime:
    """The family of Voxtral Realtime: see `Family` for its methods."""

    languages: frozenset[str] | None = None
    uses_language = False
    word_times = True

    def __init__(self, model: Model, settings: VllmSettings):
        audio = model.audio_settings()
        self._settings = settings
        self._delay_ms = settings.delay_ms or round(audio["transcription_delay_ms"])
        self._delay = realtime_limits.delay_tokens(self._delay_ms)
        self._left_pad = int(audio["streaming_n_left_pad_tokens"])
        self.prompt_tokens = realtime_limits.prompt_tokens(self._delay, self._left_pad)
        self.max_chunk_samples = realtime_limits.longest_chunk(settings.max_model_len, self._delay, self._left_pad)
        self.decoding: Mapping[str, Any] = {"delay_ms": self._delay_ms, "ignore_eos": settings.ignore_eos}
        if self.max_chunk_samples <= 0:
            pads = realtime_limits.positions(0, self._delay, self._left_pad)
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; the pads of a delay of {self._delay_ms} ms alone take "
                f"{pads} positions, and a second of audio 12.5 more: give at least 512"
            )

    def load(self, folder: Path) -> None:
        """Load the tokenizer and check its counts; see `Family.load`."""
        self._tekken: Tekken = load_tekken(folder)
        self._prompt = self._tekken.start + self._tekken.audio_encoder.encode_streaming_tokens()
        self._check_counts(folder)

    def _check_counts(self, folder: Path) -> None:
        """Check that the prompt and the pads of mistral-common have the lengths that `realtime_limits` calculates.

        Raises:
            EngineError: a length differs.
        """
        require_agreement(
            len(self._prompt) == self.prompt_tokens,
            folder,
            f"the prompt has {len(self._prompt)} tokens, and voxbatch counts {self.prompt_tokens}",
        )
        for samples in (
            0,
            1,
            realtime_limits.SAMPLES_PER_TOKEN,
            realtime_limits.SAMPLES_PER_TOKEN + 1,
            self.max_chunk_samples,
        ):
            silence = np.zeros(samples, np.int8)  # one byte per sample: small even for a long context
            padded = len(self._tekken.audio_encoder.pad(silence, SAMPLING_RATE))
            counted = (
                realtime_limits.positions(samples, self._delay, self._left_pad) * realtime_limits.SAMPLES_PER_TOKEN
            )
            require_agreement(
                padded == counted,
                folder,
                f"{samples} samples are padded to {padded} samples, and voxbatch counts {counted}",
            )

    def request(self, piece: Piece) -> Request:
        """Return a request with padded audio; see `Family.request`."""
        samples = len(piece.samples)
        if samples > self.max_chunk_samples:
            raise UnsupportedPiece(
                f"{samples / SAMPLING_RATE:.2f} s of audio; {self.max_chunk_samples / SAMPLING_RATE:.2f} s fit into a "
                f"context of {self._settings.max_model_len}"
            )
        padded = self._tekken.audio_encoder.pad(piece.samples, SAMPLING_RATE)
        return Request(
            {"prompt_token_ids": self._prompt, "multi_modal_data": {"audio": [(padded, None)]}},
            max_tokens=realtime_limits.max_tokens(samples, self._delay, self._left_pad),
            ignore_eos=self._settings.ignore_eos,
        )

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str) -> PieceText:
        """Return the text with word times, pauses and early ends; see `Family.read`."""
        duration = len(piece.samples) / SAMPLING_RATE
        pieces = decoded(token_ids, self._tekken.decode)
        words = tuple(timed_words(spaced(pieces), duration))
        text = "".join(text for _, text in pieces)
        unheard = _unheard(token_ids, finish_reason, duration)
        went_on = text_after_end(token_ids, pieces)
        after_end = ((min((went_on[0] + 1) * TOKEN_S, duration), went_on[1]),) if went_on else ()
        return PieceText(text, words, longest_pause(token_ids, duration), unheard, after_end=after_end)


def _unheard(token_ids: list[int], finish_reason: str, duration: float) -> tuple[float, float] | None:
    stopped = len(token_ids) * TOKEN_S
    return (stopped, duration) if finish_reason == "stop" and stopped < duration else None
