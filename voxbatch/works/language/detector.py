"""The engine that detects languages: Whisper's detector, through faster-whisper.

Whisper was trained to name the language of a window of 30 s before it writes its text. So one step of the decoder gives
the probability of each language, and no text is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from voxbatch.engines import Feed, Registration
from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.engines.results import Result, failure_of
from voxbatch.records import NO_WINDOWS, SAMPLING_RATE, Chunk, Hypothesis
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.voice import SPEECH_PROBABILITY, speech_probabilities
from voxbatch.works.language.options import DEFAULT_MODEL

WINDOW_S = 30
DETECTORS = {
    "faster-whisper": Registration(
        class_path="voxbatch.works.language.detector:WhisperDetector",
        needs=("faster_whisper",),
        install="pip install 'voxbatch[cpu]'",
        use="on a CPU",
    ),
}
"""The engines that detect languages."""


class WhisperDetector(FasterWhisperEngine):
    """Names the language of each chunk, which is at most a window long. See `Engine` for the methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        super().__init__(model or DEFAULT_MODEL, options, stores)
        spec = self.spec
        self.spec = replace(
            spec,
            max_chunk_samples=WINDOW_S * SAMPLING_RATE,
            prefetch=0,
            languages=spec.languages if spec.only_language else None,  # the `lang` of a row does not matter
            windows=NO_WINDOWS,
            takes_hints=False,
            translates=False,
            word_times=False,
            confidence=False,
            decoding={name: value for name, value in spec.decoding.items() if name != "beam_size"},
        )

    def results(self, model: Any, chunk: Chunk, feed: Feed) -> Iterator[Result]:
        """Yield the result of a chunk. Any error in it becomes its ChunkFailure.

        Raises:
            EngineError: a limit of this machine is to blame, and not the chunk.
        """
        try:
            yield detect(model, chunk)
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            yield failure_of("faster-whisper", chunk, e)


def detect(model: Any, chunk: Chunk) -> Hypothesis:
    """Return the probabilities of the languages of a chunk; none if nobody speaks.

    Args:
        model: a multilingual faster_whisper.WhisperModel.
    """
    from voxbatch.engines.whisper_chunk import TAGS
    from voxbatch.engines.whisper_input import encoded_window, in_16_bits, spectrogram

    samples = in_16_bits(chunk.samples)
    if speech_probabilities(samples).max(initial=0.0) < SPEECH_PROBABILITY:
        return Hypothesis(chunk.item, chunk.index, "")
    # The spectrogram ends in a frame of padding.
    (ranked,) = model.model.detect_language(encoded_window(model, spectrogram(model, samples)[:, :-1]))
    languages = tuple((TAGS.get(token[2:-2], token[2:-2]), probability) for token, probability in ranked)
    return Hypothesis(chunk.item, chunk.index, "", languages=languages)
