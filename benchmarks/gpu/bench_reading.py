"""Measure the CPU time in which the process that feeds vLLM makes requests and reads finished ones, without a GPU.

    python benchmarks/gpu/bench_reading.py [--checkouts DIR …] [--chunks N] [--times N]

The request loop and the family of Voxtral Realtime run as in a run, over an engine whose requests finish at once with
made-up tokens: those of speech (three words a second, each behind its [STREAMING_WORD]), and text tokens in a row, as
made-up weights write them. vLLM's own work on a request is not measured. Several checkouts are measured in turn, and
the hypotheses of all must be equal. It needs mistral-common, but neither vLLM nor a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from full_size import REALTIME, write
from shared import RATE, ROOT

CHUNK_S = 28.0
POSITIONS = 357
"""Number of tokens that the model writes for such a chunk."""
CONCURRENCY = 256
PAD, WORD, FIRST_TEXT_ID, NUM_TOKENS = 32, 33, 1000, 131_072
VOCABULARY = ("the", "of", "and", "to", "speech", "was", "question.", "international", "we", "Ångström", "你好")


class FinishedEngine:
    """An engine whose requests have finished; see VllmProcess for the methods. Each gets the next of the texts."""

    def __init__(self, texts: list[list[int]]):
        rng = np.random.default_rng(0)
        self._texts = [(text, rng.uniform(-1, 0, POSITIONS).astype(np.float32)) for text in texts]
        self._unread, self._num_requests = list[tuple[str, int]](), 0

    def describe(self) -> str:
        """Return a name for the log."""
        return "finished"

    def prompt(self, request: Any) -> Future[Any]:
        """Return the prompt, which is ready."""
        prompt: Future[Any] = Future()
        prompt.set_result(dict(request.prompt))
        return prompt

    def add(self, request_id: str, _request: Any, _prompt: Any) -> None:
        """Take a request."""
        self._unread.append((request_id, self._num_requests % len(self._texts)))
        self._num_requests += 1

    def step(self) -> list[Any]:
        """Return the requests that were added last, with the scores of their tokens."""
        from voxbatch.vllm.engine.families.request import TokenScores
        from voxbatch.vllm.engine.vllm_process import FinishedRequest

        unread, self._unread = self._unread, []
        return [
            FinishedRequest(request_id, self._texts[text][0], "length", TokenScores(self._texts[text][1]))
            for request_id, text in unread
        ]

    def close(self) -> None:
        """Do nothing: there is no process."""


def speech(encode: Callable[[str], list[int]], rng: np.random.Generator) -> list[int]:
    """Return tokens as the model writes them for speech: pads, and a word every four positions."""
    tokens = [PAD] * POSITIONS
    at = 3
    while at < POSITIONS - 12:
        word = [WORD, *encode(f" {VOCABULARY[rng.integers(len(VOCABULARY))]}")]
        tokens[at : at + len(word)] = word
        at += len(word) + int(rng.integers(0, 5))
    return tokens


def run_here(num_chunks: int) -> Iterator[dict[str, Any]]:
    """Measure both kinds of text in this process."""
    from voxbatch.engines import Feed
    from voxbatch.records import Chunk, Hypothesis, Span
    from voxbatch.vllm.engine.families.realtime import Realtime
    from voxbatch.vllm.engine.model import Model
    from voxbatch.vllm.engine.request_loop import EngineStarter, RequestLoop
    from voxbatch.vllm.engine.settings import VllmSettings

    with tempfile.TemporaryDirectory() as name:
        write(folder := Path(name))
        family = Realtime(Model("made-up", folder, REALTIME, is_mistral=True), VllmSettings(max_model_len=512))
        family.load(folder)
    rng = np.random.default_rng(0)
    texts = {
        "speech": [speech(family._tekken.encode, rng) for _ in range(num_chunks)],
        "text tokens": [rng.integers(FIRST_TEXT_ID, NUM_TOKENS, POSITIONS).tolist() for _ in range(num_chunks)],
    }
    samples = (rng.standard_normal(int(CHUNK_S * RATE)) * 0.1).astype(np.float32)
    for kind, tokens in texts.items():
        feed = Feed(sys.maxsize)
        for item in range(num_chunks):
            feed.put(Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples))))
        feed.close()
        engine = FinishedEngine(tokens)
        loop = RequestLoop(family, EngineStarter(lambda _, engine=engine: engine, CONCURRENCY, 0), watched=False)
        began = time.process_time()
        hypotheses = [result for result in loop.run(feed) if isinstance(result, Hypothesis)]
        cpu_s = time.process_time() - began
        digest = hashlib.sha256(repr(hypotheses).encode()).hexdigest()[:16]
        yield {"kind": kind, "us": cpu_s * 1e6 / num_chunks / CHUNK_S, "digest": digest,
               "words": sum(len(hypothesis.words) for hypothesis in hypotheses)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[ROOT], metavar="DIR")
    parser.add_argument("--chunks", type=int, default=300, help="chunks of each kind of text")
    parser.add_argument("--times", type=int, default=3, help="turns, of which the median counts")
    parser.add_argument("--run-here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_here:
        sys.path.insert(0, str(options.run_here))  # before the folder that `shared` has put there
        for line in run_here(options.chunks):
            print(json.dumps(line))
        return
    runs: dict[tuple[str, Path], list[float]] = {}
    digests: dict[str, set[str]] = {}
    for _ in range(options.times):
        for checkout in options.checkouts:
            command = [sys.executable, __file__, "--run-here", str(checkout.resolve()), "--chunks", str(options.chunks)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            for line in map(json.loads, output.splitlines()):
                runs.setdefault((line["kind"], checkout), []).append(line["us"])
                digests.setdefault(f"{line['kind']}, {line['words']:,} words", set()).add(line["digest"])
    for (kind, checkout), costs in runs.items():
        cost = statistics.median(costs)
        print(f"{kind}, {checkout}: {cost:.1f} µs of CPU for a second of audio ({min(costs):.1f} to {max(costs):.1f}); "
              f"at 2,300 × real time {cost * 2300 / 1e6:.2f} of a core")  # fmt: skip
    for kind, different in digests.items():
        print(f"{kind}: {'equal hypotheses' if len(different) == 1 else 'HYPOTHESES DIFFER'}")
    sys.exit(any(len(different) > 1 for different in digests.values()))


if __name__ == "__main__":
    main()
