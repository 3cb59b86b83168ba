"""Transcribe chunks with transformers' Whisper: the independent reference for the vLLM engine on the same weights.

Decoding is greedy, in float32, without time stamps. Each chunk is decoded by itself in its given language: without
context from chunk to chunk, and without a second attempt at another temperature. The script reads no manifests and no
references, and scores nothing.

    python tests/support/engine_vllm/whisper_reference.py MODEL_DIR CHUNKS.npz OUT.json

CHUNKS.npz holds `samples` (float32 at 16 kHz, all chunks joined), `lengths` (samples of each chunk, at most 30 s) and
`languages` (a code such as "en" for each chunk). OUT.json becomes a list with one object for each chunk, in the same
order. The object has `text`, and `tokens`, the generated ids without prompt and end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLING_RATE = 16_000
BATCH = 8
"""Chunks at a time in each process. At 16 the encoder takes a quarter more time, for page faults of its large
buffers."""

Chunks = list[NDArray[np.float32]]

_loaded: tuple[Any, Any] | None = None
"""Model and processor of this worker."""


def transcribe(model_dir: Path, chunks: Chunks, languages: list[str], workers: int) -> list[dict[str, Any]]:
    """Return {"text", "tokens"} of each chunk: float32 of shape (samples,) at 16 kHz, at most 30 s.

    Each worker process has one thread, since steps of the decoder are too short to share and threads would wait for
    each other. A batch ends with its longest transcript. So chunks of similar duration go together, the longest first.
    """
    results: list[dict[str, Any]] = [{}] * len(chunks)
    order = sorted(range(len(chunks)), key=lambda i: len(chunks[i]), reverse=True)
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_load, initargs=(model_dir,)) as pool:
        audio = ([chunks[i] for i in batch] for batch in batches)
        spoken = ([languages[i] for i in batch] for batch in batches)
        for batch, found in zip(batches, pool.map(_transcribe, audio, spoken), strict=True):
            for i, result in zip(batch, found, strict=True):
                results[i] = result
    return results


def _load(model_dir: Path) -> None:
    import torch
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    global _loaded  # noqa: PLW0603 a worker of the pool has no other place that outlives a task
    torch.set_num_threads(1)
    model = WhisperForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32)
    _loaded = model.eval(), AutoProcessor.from_pretrained(model_dir)


def _transcribe(chunks: Chunks, languages: list[str]) -> list[dict[str, Any]]:
    import torch

    assert _loaded is not None
    model, processor = _loaded
    features = processor(chunks, sampling_rate=SAMPLING_RATE, return_tensors="pt").input_features
    with torch.inference_mode():
        sequences = model.generate(
            features, language=languages, task="transcribe", return_timestamps=False, do_sample=False, num_beams=1
        )
    end = model.generation_config.eos_token_id  # and padding; the prompt is not returned
    found = [row[: row.index(end)] if end in row else row for row in sequences.tolist()]
    texts = processor.tokenizer.batch_decode(found, skip_special_tokens=True)
    return [{"text": text.strip(), "tokens": tokens} for text, tokens in zip(texts, found, strict=True)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("chunks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    given = np.load(args.chunks)
    chunks = np.split(given["samples"], np.cumsum(given["lengths"])[:-1])
    began = time.monotonic()
    results = transcribe(args.model_dir, chunks, given["languages"].tolist(), args.workers)
    args.out.write_text(json.dumps(results, ensure_ascii=False), encoding="utf-8")
    print(f"{len(chunks)} chunks in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
