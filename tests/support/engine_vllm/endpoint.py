"""Transcribe clips with voxbatch's family `Transcription` and with vLLM's endpoint, on one engine.

The endpoint is the code behind `vllm serve`'s /v1/audio/transcriptions. It gets the clips as WAV files, and an engine
client that runs voxbatch's engine.
"""

from __future__ import annotations

import asyncio
import io
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from stream import record

from voxbatch.engines import Feed, create
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Span
from voxbatch.vllm.engine.families.choice import FAMILIES
from voxbatch.vllm.engine.families.transcription import Transcription


def transcribe_both_ways(
    model: Path, clips: dict[str, np.ndarray], language: str | None, options: dict[str, str]
) -> dict[str, Any]:
    """Return "tokens" (those of the last request) and "texts" by the clip's name, for "generic", "endpoint" and "own".

    "own" is the family that voxbatch has for this model; it is missing if voxbatch has none. If there is no such
    folder, a tiny random model is made there, of the class that the folder's name names (see speech_models).
    """
    import speech_models

    if not model.exists():
        speech_models.MODELS[model.name](model)
    own = dict(FAMILIES)
    FAMILIES.update(dict.fromkeys(own, Transcription))
    engine: Any = create("vllm", str(model), options)
    results: dict[str, Any] = {"generic": stream(engine, clips, language)}
    results["endpoint"] = asyncio.run(serve(engine, clips, language))
    if (family := own[engine._model.family]) is not Transcription:
        engine._family = family(engine._model, engine._settings)
        engine._family.load(engine._folder)
        results["own"] = stream(engine, clips, language)
    engine.close()
    return results


def stream(engine: Any, clips: dict[str, np.ndarray], language: str | None) -> dict[str, Any]:
    """Return the tokens and texts of the clips by voxbatch's engine, which keeps running."""
    names, feed = list(clips), Feed(100 * engine.spec.max_chunk_samples)
    requests: dict[str, Any] = {name: defaultdict(list) for name in ("tokens", "logprobs", "entropies")}
    results: dict[str, Any] = {"texts": {}, "failures": {}}
    record(engine, {id(clip): name for name, clip in clips.items()}, requests)
    for item, clip in enumerate(clips.values()):
        feed.put(Chunk(item, 0, clip, Span(0, len(clip), 0, len(clip)), language))
    feed.close()
    for result in engine.stream(feed):
        if isinstance(result, Hypothesis):
            results["texts"][names[result.item]] = result.text
        elif isinstance(result, ChunkFailure):
            results["failures"][names[result.item]] = result.message
    return {**results, "tokens": {name: tokens[-1] for name, tokens in requests["tokens"].items()}}


class Client:
    """vLLM's EngineClient, as far as the endpoint uses it, over an engine that runs already."""

    errored = False

    def __init__(self, engine: Any):
        self._engine = engine
        self.vllm_config, self.model_config = engine.vllm_config, engine.model_config
        self.renderer, self.input_processor = engine.renderer, engine.input_processor
        self.tokens: list[int] = []
        """The tokens of the last request."""

    def check_admission(self, n: int) -> None:
        """Admit everything."""

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        """Run one request to its end."""
        self._engine.add_request(request_id, prompt, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    self.tokens = list(output.outputs[0].token_ids)
                    yield output


async def serve(engine: Any, clips: dict[str, np.ndarray], language: str | None) -> dict[str, Any]:
    """Return the tokens and texts of the clips by vLLM's endpoint."""
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest, UploadFile
    from vllm.entrypoints.speech_to_text.transcription.serving import OpenAIServingTranscription

    client: Any = Client(engine._process._llm.llm_engine)
    models = OpenAIServingModels(client, [BaseModelPath("model", str(engine._folder))])
    serving = OpenAIServingTranscription(client, models, request_logger=None)
    results: dict[str, Any] = {"tokens": {}, "texts": {}}
    for name, clip in clips.items():
        wav = io.BytesIO()
        soundfile.write(wav, clip, SAMPLING_RATE, "FLOAT", format="WAV")
        request = TranscriptionRequest(
            file=UploadFile(io.BytesIO()),
            model="model",
            language=language,
            temperature=0.0,
            max_completion_tokens=engine._family._max_tokens,
        )
        response: Any = await serving.create_transcription(wav.getvalue(), request)
        results["texts"][name], results["tokens"][name] = response.text, client.tokens
    return results
