"""Hibari, a small text-to-speech model for English: the engine that speaks on machines without a GPU.

The weights of the first voice are in the package; the others are downloaded when they are first used. Each piece is
spoken by itself, and its seed fixes the noise, so that the samples do not depend on the other pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from voxbatch.engines import EngineSpec, Feed
from voxbatch.engines.results import Result
from voxbatch.errors import ConfigError
from voxbatch.records import ChunkFailure, Samples, Speech, TextPiece
from voxbatch.settings import check_settings, parse, setting
from voxbatch.storage import DEFAULT_STORES, Stores

MODEL_SPEEDS = (0.5, 2.0)
"""Speeds that the model was made for."""


@dataclass(frozen=True, slots=True)
class HibariOptions:
    """The engine options of hibari."""

    speed: float = setting(1.0, minimum=MODEL_SPEEDS[0], maximum=MODEL_SPEEDS[1], help="1 is the pace of the voice")


class HibariEngine:
    """The engine: see `Engine` for its methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: Stores = DEFAULT_STORES):
        from hibari.dsp import SR
        from hibari.voices import VOICES

        if model is not None:
            raise ConfigError(f"--model {model}: hibari has one model for each voice; give --voice")
        self._options = parse(HibariOptions, "hibari", options)
        check_settings(self._options)
        self._voices: dict[str, Any] = {}
        """The models that are loaded, by voice."""
        self.spec = EngineSpec(
            name="hibari",
            model="hibari",
            max_chunk_samples=60 * SR,
            concurrency=1,
            languages=frozenset({"en"}),
            sampling_rate=SR,
            voices=tuple(VOICES),
            scripts=("Latin",),
            license="Apache-2.0",
            origin="the package hibari-tts, distilled from Kokoro-82M",
            versions={name: metadata.version(name) for name in ("hibari-tts", "onnxruntime")},
            decoding={"speed": self._options.speed},
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Speak the pieces of the feed one after another; see `Engine.stream`."""
        from voxbatch.speech.sound import overlong

        while chunk := feed.get():
            assert chunk.piece is not None
            try:
                samples = self._speak(chunk.piece)
            except RuntimeError as e:  # a voice that cannot be downloaded, or an error of onnxruntime
                yield ChunkFailure(chunk.item, chunk.index, str(e), retryable=True)
                continue
            if len(samples):
                warnings = overlong(samples, self.spec.sampling_rate, chunk.piece.longest_s)
                yield Speech(chunk.item, chunk.index, chunk.piece, samples, warnings)
            else:
                yield ChunkFailure(chunk.item, chunk.index, f"no sound came of {chunk.piece.text[:80]!r}")

    def _speak(self, piece: TextPiece) -> Samples:
        """Return the samples of a piece, spoken as fast as its time needs, at most at MAX_SPEED."""
        from hibari import Hibari

        from voxbatch.engines.spoken_english import spoken
        from voxbatch.speech.sound import MAX_SPEED, speed_to_fit, trimmed

        if piece.voice not in self._voices:
            self._voices[piece.voice] = Hibari(voice=piece.voice)
        speak, rate, speed = self._voices[piece.voice], self.spec.sampling_rate, self._options.speed
        text = spoken(piece.text)
        while True:
            samples = trimmed(speak(text, speed=speed, seed=piece.seed), rate)
            needed = speed_to_fit(samples, rate, piece.longest_s)
            if needed == 1 or speed >= MAX_SPEED:
                return samples
            speed = min(MAX_SPEED, speed * needed)

    def gpu_bytes(self) -> None:
        """Return None, because there is no GPU."""

    def close(self) -> None:
        """Unload the voices."""
        self._voices.clear()
