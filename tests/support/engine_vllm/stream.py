"""Transcribe chunks (npz) with voxbatch's vLLM engine, fed as in a run, into tokens, texts and failures (json).

    python stream.py MODEL_DIR CHUNKS.npz OUT.json [NAME=VALUE …]

It is the counterpart of generate.py: all chunks are offered at once, and results come in any order. The JSON holds, by
the chunk's name, "tokens" (a list for each request made for the chunk), "texts", "confidences", "words" (text and
confidence) and "failures"; and for each request with scores "logprobs" and "entropies". It also holds "notices".
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines import EngineMessage, Feed, create
from voxbatch.records import Chunk, ChunkFailure, Span

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
LANGUAGE = "en"


def main(model: str, npz: str, out: str, *options: str) -> None:
    """Transcribe the chunks of `npz` with the model in the folder `model`, and write the results to `out`."""
    os.environ.update(ENVIRONMENT)
    with np.load(npz) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    given = dict(option.split("=", 1) for option in options)
    Path(out).write_text(json.dumps(transcribe(model, waveforms, given)))


def transcribe(model: str, waveforms: dict[str, np.ndarray], options: dict[str, str]) -> dict[str, Any]:
    """Return the tokens, texts, failures and notices of a run over the waveforms."""
    engine: Any = create("vllm", model, options)
    names = list(waveforms)
    feed = Feed(100 * engine.spec.max_chunk_samples)
    threading.Thread(target=_fill, args=(feed, list(waveforms.values())), daemon=True).start()
    found: dict[str, Any] = {name: defaultdict(list) for name in ("tokens", "logprobs", "entropies")}
    found |= {"texts": {}, "confidences": {}, "words": {}, "failures": {}, "notices": []}
    _record(engine, {id(waveform): name for name, waveform in waveforms.items()}, found)
    for result in engine.stream(feed):
        if isinstance(result, EngineMessage):
            found["notices"].append(result.text)
        elif isinstance(result, ChunkFailure):
            found["failures"][names[result.item]] = result.message
        else:
            assert names[result.item] not in found["texts"]
            found["texts"][names[result.item]] = result.text
            found["confidences"][names[result.item]] = result.confidence
            found["words"][names[result.item]] = [(word.text, word.confidence) for word in result.words]
    engine.close()
    return found


def _fill(feed: Feed, waveforms: list[np.ndarray]) -> None:
    for item, samples in enumerate(waveforms):
        feed.put(Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)), LANGUAGE))
    feed.close()


def _record(engine: Any, names: dict[int, str], found: dict[str, Any]) -> None:
    """Record the token ids that the engine's family reads from now on, and their scores, by the chunk's name."""
    read = engine._family.read

    def recording(piece: Any, token_ids: list[int], finish_reason: str, scores: Any) -> Any:
        name = names.get(id(piece.samples), "pieces")
        found["tokens"][name].append(token_ids)
        if scores is not None:
            found["logprobs"][name].append(scores.logprobs.tolist())
        if scores is not None and scores.entropies is not None:
            found["entropies"][name].append(scores.entropies.tolist())
        return read(piece, token_ids, finish_reason, scores)

    engine._family.read = recording


if __name__ == "__main__":
    main(*sys.argv[1:])
