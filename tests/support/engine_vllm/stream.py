"""Transcribe chunks with voxbatch's vLLM engine, fed as in a run. It is the counterpart of generate.py: all chunks are
offered at once, and results come in any order.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from voxbatch.engines import EngineMessage, Feed, create
from voxbatch.records import Chunk, ChunkFailure, Span

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
LANGUAGE = "en"


def transcribe(model: Path, waveforms: dict[str, np.ndarray], options: dict[str, str]) -> dict[str, Any]:
    """Return the results of a run over the waveforms.

    Returns:
        By the chunk's name, "tokens" (a list for each request made for the chunk), "texts", "confidences", "words"
        (text and confidence) and "failures"; and for each request with scores "logprobs" and "entropies". Also
        "notices", and "left": the command lines of the engine's processes that still run 120 s after the last result,
        before the engine is closed.
    """
    engine: Any = create("vllm", str(model), options)
    names = list(waveforms)
    feed = Feed(100 * engine.spec.max_chunk_samples, is_last=True)
    threading.Thread(target=_fill, args=(feed, list(waveforms.values())), daemon=True).start()
    found: dict[str, Any] = {name: defaultdict(list) for name in ("tokens", "logprobs", "entropies")}
    found |= {"texts": {}, "confidences": {}, "words": {}, "failures": {}, "notices": []}
    record(engine, {id(waveform): name for name, waveform in waveforms.items()}, found)
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
    helpers: set[Any] = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    processes = [child for child in psutil.Process().children(recursive=True) if child.pid not in helpers]
    _, alive = psutil.wait_procs(processes, timeout=120)
    found["left"] = [" ".join(process.cmdline()) for process in alive]
    engine.close()
    return found


def _fill(feed: Feed, waveforms: list[np.ndarray]) -> None:
    for item, samples in enumerate(waveforms):
        feed.put(Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)), LANGUAGE))
    feed.close()


def record(engine: Any, names: dict[int, str], found: dict[str, Any]) -> None:
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
