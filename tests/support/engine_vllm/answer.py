"""Answer questions (json) about recordings (npz) with voxbatch's vLLM engine, fed as in a run.

    python answer.py MODEL_DIR RECORDINGS.npz QUESTIONS.json OUT.json [NAME=VALUE …]

The questions are a list of objects with "prompt", "recordings" (names in the npz) and any fields of AnswerOptions. The
output holds a list with an object for each question: "tokens", "answer" (the fields of Answer) or "failure"; and
"notices".
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from stream import ENVIRONMENT

from voxbatch.answer_options import AnswerOptions
from voxbatch.engines import EngineMessage, Feed, create
from voxbatch.records import Chunk, ChunkFailure, Question, Span


def main(model: str, npz: str, questions: str, out: str, *options: str) -> None:
    """Answer the questions with the model in the folder `model`, and write the results to `out`."""
    os.environ.update(ENVIRONMENT)
    with np.load(npz) as archive:
        recordings = {name: archive[name] for name in archive.files}
    asked = json.loads(Path(questions).read_text())
    longest = max((each.get("max_tokens", 0) for each in asked), default=0) or AnswerOptions().max_tokens
    given = {"task": "ask", "max_answer_tokens": str(longest)} | dict(option.split("=", 1) for option in options)
    Path(out).write_text(json.dumps(answers(model, recordings, asked, given)))


def answers(
    model: str, recordings: dict[str, np.ndarray], asked: list[dict[str, Any]], options: dict[str, str]
) -> dict[str, Any]:
    """Return the answers, failures and notices of a run over the questions."""
    engine: Any = create("vllm", model, options)
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


if __name__ == "__main__":
    main(*sys.argv[1:])
