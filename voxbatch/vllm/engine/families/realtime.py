"""Voxtral Realtime with whole chunks of audio: the model writes one token of text for each 80 ms."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxbatch.engines.model_files import cache_folder
from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Word
from voxbatch.vllm.engine import memory, realtime_limits
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.families.voxtral import Voxtral
from voxbatch.vllm.engine.linked_folder import linked_folder
from voxbatch.vllm.engine.model import DEFAULT_DELAY_MS, REALTIME, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.engine.tekken import Tekken, load_tekken, require_agreement
from voxbatch.vllm.engine.word_times import (
    TOKEN_S,
    decode_groups,
    longest_pause,
    text_after_end,
    timed_words,
    with_leading_space,
    word_confidences,
)


class Realtime(Voxtral):
    """The family of Voxtral Realtime: see `Family` for its methods."""

    name, profile = REALTIME, "ctx512-batch"
    plugin_by_default = True
    reproducible_dtype = "bfloat16"
    is_reproducible_in_8_bits = True
    encoder_has_kv = True
    has_speed_forecast = True
    memory_type = memory.StreamingFootprint
    word_times = True

    @classmethod
    def check(cls, model: Model, settings: VllmSettings, prefilled: bool) -> None:
        """Check the attention backend and the CUDA graphs; see `Family.check`."""
        # vLLM can build the encoder on three attention backends (model_executor/models/whisper_causal.py). One of them
        # is for AMD GPUs. vLLM itself refuses unknown names.
        if settings.attention_backend.upper() == "FLASHINFER":
            raise ConfigError(
                f"engine option attention_backend=FLASHINFER: vLLM cannot build the encoder of {model.name} on it; "
                "give FLASH_ATTN or TRITON_ATTN, or leave the option out"
            )
        if settings.cudagraph_mode == "FULL" and not prefilled:
            raise ConfigError(
                f"engine option cudagraph_mode=FULL: vLLM cannot capture full CUDA graphs of {model.name}, because its "
                "forward pass contains the encoder; give FULL_AND_PIECEWISE or NONE, or leave the option out"
            )

    @classmethod
    def serving_folder(cls, model: Model, settings: VllmSettings, aligns_stream: bool = False) -> Path:
        """Return a folder with the delay of the settings; see `Family.serving_folder`."""
        return linked_folder(model, settings.delay_ms, cache_folder() / "served", aligns_stream)

    @classmethod
    def longest_chunk_s(cls, settings: VllmSettings) -> float:
        """Return the length with the settings' delay, or the published one; see `Family.longest_chunk_s`."""
        delay = realtime_limits.delay_tokens(settings.delay_ms or DEFAULT_DELAY_MS)
        return realtime_limits.longest_chunk(settings.max_model_len, delay) / SAMPLING_RATE

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        audio = model.audio_settings()
        self._ignore_eos = settings.ignore_eos
        self._delay_ms = settings.delay_ms or round(audio["transcription_delay_ms"])
        self._delay = realtime_limits.delay_tokens(self._delay_ms)
        self._left_pad = int(audio["streaming_n_left_pad_tokens"])
        self.prompt_tokens = realtime_limits.prompt_tokens(self._delay, self._left_pad)
        self.max_chunk_samples = realtime_limits.longest_chunk(settings.max_model_len, self._delay, self._left_pad)
        self.decoding = {"delay_ms": self._delay_ms, "ignore_eos": settings.ignore_eos}
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
        require_agreement(
            len(self._prompt) == self.prompt_tokens,
            folder,
            f"the prompt has {len(self._prompt)} tokens, and voxbatch counts {self.prompt_tokens}",
        )
        token = realtime_limits.SAMPLES_PER_TOKEN
        for samples in (0, 1, token, token + 1, self.max_chunk_samples):
            silence = np.zeros(samples, np.int8)  # one byte per sample: small even for a long context
            padded = len(self._tekken.audio_encoder.pad(silence, SAMPLING_RATE))
            counted = realtime_limits.positions(samples, self._delay, self._left_pad) * token
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
                f"context of {self.max_model_len}"
            )
        padded = self._tekken.audio_encoder.pad(piece.samples, SAMPLING_RATE)
        return Request(
            {"prompt_token_ids": self._prompt, "multi_modal_data": {"audio": [(padded, None)]}},
            max_tokens=realtime_limits.max_tokens(samples, self._delay, self._left_pad),
            ignore_eos=self._ignore_eos,
        )

    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText:
        """Return the text with word times, confidences, pauses and early ends; see `Family.read`."""
        duration = len(piece.samples) / SAMPLING_RATE
        groups = decode_groups(token_ids, self._tekken.token_bytes)
        pieces = [(group.at, group.text) for group in groups]
        words = timed_words(with_leading_space(pieces), duration)
        if scores is not None:
            confidences = word_confidences(groups, token_ids, scores.probabilities(), self._tekken.token_bytes)
            pairs = zip(words, confidences, strict=True)
            words = [Word(word.text, word.start, word.end, confidence) for word, confidence in pairs]
        text = "".join(group.text for group in groups)
        ended_at = len(token_ids) * TOKEN_S
        untranscribed = (ended_at, duration) if finish_reason == "stop" and ended_at < duration else None
        went_on = text_after_end(token_ids, groups)
        after_end = ((min((went_on[0] + 1) * TOKEN_S, duration), went_on[1]),) if went_on else ()
        return PieceText(
            text, tuple(words), longest_pause(token_ids, duration), untranscribed, text_after_eos=after_end
        )
