"""Voxtral TTS: a text and a voice become one request, and its frames of 80 ms a speech.

The model is one stage of vLLM (`voxbatch.vllm.plugin.speech`, which has the ids of its tokens). The engine's process
returns the samples with a finished request; see `VllmProcess`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.audio import ffmpeg
from voxbatch.engines.pieces import Piece, SpokenPiece
from voxbatch.errors import ConfigError
from voxbatch.process.child import for_program
from voxbatch.records import Samples, Speech
from voxbatch.records import TextPiece as Text
from voxbatch.vllm.engine.families import Family, Request, TokenScores, UnsupportedPiece, UnusableAnswer
from voxbatch.vllm.engine.model import Model, licence_warning, voice_rows
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.engine.tekken import Tekken, load_tekken, require_agreement
from voxbatch.vllm.plugin import speech

TEXT_TOKENS = 128
"""Positions that the text of a piece takes at most, with its control tokens: 15 s of English have about 50."""
TYPICAL_FRAMES = 190
"""Frames of a piece: 15 s."""
MIN_FRAMES = 250
"""Least number of frames that the context must hold: 20 s."""
KV_BYTES = 2
"""Bytes of a number in the K/V cache."""


class Speaking(Family):
    """The family of Voxtral TTS: see `Family` for its methods."""

    languages = frozenset({"ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt"})
    uses_language = True
    sampling_rate = speech.SAMPLING_RATE
    scripts = ("Latin", "Arabic", "Devanagari")
    max_requests = speech.MAX_REQUESTS

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        self._rows, shape = voice_rows(model), model.shape()
        self.warning = licence_warning(model)
        self.voices = tuple(self._rows)
        self.proof = SpokenPiece(np.zeros(0, np.float32), spoken=Text("Yes.", self.voices[0], 0))
        self.prompt_tokens = max(self._rows.values()) + TEXT_TOKENS
        self.max_chunk_samples = (settings.max_model_len - self.prompt_tokens) * speech.FRAME
        if self.max_chunk_samples < MIN_FRAMES * speech.FRAME:
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; a voice and a text take {self.prompt_tokens} positions, "
                f"and a second of speech 12.5 more: give at least {self.prompt_tokens + MIN_FRAMES}"
            )
        numbers = 2 * shape["n_layers"] * shape["n_kv_heads"] * shape["head_dim"]
        self.request_bytes = numbers * KV_BYTES * (self.prompt_tokens + TYPICAL_FRAMES)

    def load(self, folder: Path) -> None:
        """Load the tokenizer, and check its counts; see `Family.load`."""
        self._tekken: Tekken = load_tekken(folder)
        for voice, rows in self._rows.items():
            tokens = self._tokens("Yes.", voice)
            audio = tokens.count(self._tekken.audio_encoder.audio_token)
            require_agreement(
                audio == rows and tokens[-1] == speech.BEGIN_AUDIO,
                folder,
                f"voice {voice} has {audio} tokens and the last one is {tokens[-1]}, and voxbatch counts {rows} and "
                f"{speech.BEGIN_AUDIO}",
            )

    def request(self, piece: Piece) -> Request:
        """Return the request of a text; see `Family.request`. Its last token is replaced by the slot."""
        assert isinstance(piece, SpokenPiece)
        text = piece.spoken
        names = list(self._rows)
        row = speech.FIRST_ROW + sum(self._rows[name] for name in names[: names.index(text.voice)])
        first_token = speech.FIRST_ROW + sum(self._rows.values())
        prompt, audio = [], self._tekken.audio_encoder.audio_token
        for token in self._tokens(text.text, text.voice):
            prompt.append(row if token == audio else first_token + token)
            row += token == audio
        if (frames := self.max_model_len - len(prompt)) < MIN_FRAMES:
            raise UnsupportedPiece(
                f"the text has {len(prompt):,} tokens with its voice, of {self.max_model_len:,} positions: divide it"
            )
        return Request({"prompt_token_ids": prompt}, max_tokens=frames, seed=text.seed)

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None) -> Speech:
        """Return the speech; see `Family.read`."""
        from voxbatch.speech.sound import MAX_SPEED, overlong, speed_to_fit, trimmed

        assert isinstance(piece, SpokenPiece)
        text = piece.spoken
        if finish_reason != "stop":
            seconds = len(token_ids) * speech.FRAME / speech.SAMPLING_RATE
            raise UnusableAnswer(f"the speech of {text.text[:80]!r} did not end within {seconds:.0f} s; give a --seed")
        if not len(piece.samples):
            raise UnusableAnswer(f"no sound came of {text.text[:80]!r}")
        samples, rate = trimmed(piece.samples, self.sampling_rate), self.sampling_rate
        if (speed := speed_to_fit(samples, rate, text.longest_s)) > 1:
            samples = trimmed(faster(samples, rate, min(MAX_SPEED, speed)), rate)
        return Speech(0, 0, text, samples, overlong(samples, rate, text.longest_s))

    def _tokens(self, text: str, voice: str) -> list[int]:
        from mistral_common.protocol.speech.request import SpeechRequest

        request: Any = SpeechRequest(input=text, voice=voice)
        return list(self._tekken.instruct.encode_speech_request(request).tokens)


def faster(samples: Samples, sampling_rate: int, speed: float) -> Samples:
    """Return speech that is faster and has the same pitch, by ffmpeg's filter atempo.

    Args:
        speed: 2.0 halves the length.

    Raises:
        AudioError: there is no ffmpeg.
        CalledProcessError: it fails.
    """
    form = ("-f", "f32le", "-ar", str(sampling_rate), "-ac", "1")
    command = [ffmpeg.executable(), "-v", "error", *form, "-i", "-", "-af", f"atempo={speed:.4f}", *form, "-"]
    done = subprocess.run(
        command, input=samples.tobytes(), capture_output=True, check=True, env=for_program(os.environ)
    )
    return np.frombuffer(done.stdout, np.float32)
