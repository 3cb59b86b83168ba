"""Answer questions about recordings with voxbatch's vLLM engine, fed as in a run."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines import EngineMessage, Feed, create
from voxbatch.records import AnswerOptions, Chunk, ChunkFailure, Question, Span


def answers(
    model: Path, recordings: dict[str, np.ndarray], asked: list[dict[str, Any]], options: dict[str, str]
) -> dict[str, Any]:
    """Return the results of a run over questions.

    Args:
        asked: for each question "prompt", "recordings" (their names) and any fields of AnswerOptions.

    Returns:
        "answers": for each question "tokens", and "answer" (the fields of Answer) or "failure"; and "notices".
    """
    longest = max(question["max_tokens"] for question in asked)
    engine: Any = create("vllm", str(model), {"task": "ask", "max_answer_tokens": str(longest), **options})
    feed = Feed(100 * engine.spec.max_chunk_samples)
    found: dict[str, Any] = {"answers": [{} for _ in asked], "notices": []}
    chunks = [_chunk(i, each, recordings) for i, each in enumerate(asked)]
    threading.Thread(target=_fill, args=(feed, chunks), daemon=True).start()
    read, numbers = engine._family.read, {id(chunk.question): chunk.item for chunk in chunks}

    def recording(piece: Any, token_ids: list[int], *others: Any) -> Any:
        found["answers"][numbers[id(piece.question)]]["tokens"] = token_ids
        return read(piece, token_ids, *others)

    engine._family.read = recording
    for result in engine.stream(feed):
        if isinstance(result, EngineMessage):
            found["notices"].append(result.text)
        elif isinstance(result, ChunkFailure):
            found["answers"][result.item]["failure"] = result.message
        else:
            assert result.text == result.answer.text
            assert not result.flags
            assert not result.words
            found["answers"][result.item]["answer"] = dataclasses.asdict(result.answer)
    engine.close()
    return found


def _chunk(item: int, asked: dict[str, Any], recordings: dict[str, np.ndarray]) -> Chunk:
    options = {key: value for key, value in asked.items() if key not in ("prompt", "recordings")}
    parts = [recordings[name] for name in asked["recordings"]]
    samples = np.concatenate([*parts, np.zeros(0, np.float32)])
    question = Question(asked["prompt"], AnswerOptions(**options))
    span = Span(0, len(samples), 0, len(samples))
    return Chunk(item, 0, samples, span, None, question, tuple(map(len, parts)))


def _fill(feed: Feed, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        feed.put(chunk)
    feed.close()
