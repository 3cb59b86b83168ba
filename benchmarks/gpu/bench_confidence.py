"""Measure what word confidences cost on a GPU: the speed of one engine with and without the scores of its tokens.

    python benchmarks/gpu/bench_confidence.py MODEL_DIR [--pairs N] [--rounds R] [--lengths 30] [--out FILE]
                                              [--only kernel tokens speed]

MODEL_DIR is a Voxtral Realtime without weights from full_size.py, or a real one. Each part runs in its own process and
prints JSON lines. With the defaults the three parts take 6 to 7 minutes on an H200.

kernel   the scores of the CUDA kernel beside PyTorch's log-softmax in float64 on logits in bfloat16 and float32, and
         its milliseconds for 1,024 requests of 131,072 logits, beside those of the argmax and of float32's log-softmax.
tokens   with made-up weights whose tokens vary: the same chunks, decoded together without scores, with, and without
         again, in one process. All three must give the same tokens, and each token a score.
speed    seconds of audio per second through one engine, whose scores are switched on and off between the runs. A pair
         of runs is one with and one without, in alternating order, so that clocks and temperature are alike. `ratio` is
         the median over the pairs; the bar is 0.98. Clocks and watts are means over a run.

Scores switched off here cost one comparison a step; with `--engine-option confidence=false` a run has none of it.
voxbatch must be installed as a package. On a machine without a GPU everything runs as a rehearsal, without the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import bench_plugin  # it also puts the checkout on the path
import numpy as np
from gpu_watch import watched

BAR = 0.98
"""Lowest ratio of the speed with scores to the speed without them."""
ROWS, VOCABULARY = 1_024, 131_072
CHUNKS = 64
"""Number of chunks of the part `tokens`."""


def kernel(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the kernel with PyTorch, and time it."""
    import torch

    from voxbatch.vllm_plugin.token_scores import score

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, vocabulary = (ROWS, VOCABULARY) if device == "cuda" else (16, VOCABULARY)
    made = torch.Generator(device).manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.empty((rows, vocabulary), device=device).normal_(generator=made).mul_(4).to(dtype)
        logits[1, 1_000:] = -torch.inf
        tokens = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        scores, worst = score(logits, tokens), 0.0
        for begin in range(0, rows, 16):
            exact = logits[begin : begin + 16].double().log_softmax(-1)
            wanted = torch.cat(
                (exact.gather(1, tokens[begin : begin + 16].long()),
                 torch.special.entr(exact.exp()).sum(-1, keepdim=True)), dim=1)  # fmt: skip
            worst = max(worst, float((scores[begin : begin + 16].double() - wanted).abs().max()))
        yield {
            "logits": f"{rows} x {vocabulary} {dtype}", "largest_error": worst, "right": worst < 2e-4,
            "score_ms": _milliseconds(partial(score, logits, tokens)),
            "argmax_ms": _milliseconds(partial(logits.argmax, dim=-1)),
            "log_softmax_ms": _milliseconds(partial(logits.log_softmax, dim=-1, dtype=torch.float32)),
        }  # fmt: skip


def _milliseconds(work: Callable[[], Any], times: int = 20) -> float:
    """Return the median duration of `work` on the GPU, or of this thread without one."""
    import torch

    spent = list[float]()
    for _ in range(times if torch.cuda.is_available() else 3):
        if torch.cuda.is_available():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            spent.append(begin.elapsed_time(end))
        else:
            began = time.monotonic()
            work()
            spent.append((time.monotonic() - began) * 1000)
    return round(median(spent), 3)


def tokens(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the tokens of an engine with and without scores."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    bench_plugin.weigh_dummies()
    bench = bench_plugin.Bench(given.model, _options(given))
    lengths = np.random.default_rng(0).permutation(np.linspace(2, 34, given.chunks))
    longest = bench.longest / bench_plugin.RATE
    samples = [bench_plugin._babble(index, min(seconds, longest)) for index, seconds in enumerate(lengths)]
    without, scores = _said(bench, samples, "before")
    assert not scores
    if reason := bench.core.score_tokens(True):
        raise RuntimeError(reason)
    found, scores = _said(bench, samples, "with")
    bench.core.score_tokens(False)
    again, _ = _said(bench, samples, "after")
    pairs = [(a, b) for one, other in zip(without, found, strict=True) for a, b in zip(one, other, strict=True)]
    probabilities = np.exp(np.concatenate([each.logprobs for each in scores]))
    entropies = np.concatenate([each.entropies for each in scores])
    yield {
        "chunks": len(samples), **bench_plugin.variety(found), "same_tokens": without == found,
        "same_without": without == again, "equal_share": round(fmean(a == b for a, b in pairs), 6),
        "scored": len(probabilities), "mean_probability": round(float(probabilities.mean()), 4),
        "mean_entropy": round(float(entropies.mean()), 3),
        "right": without == found and len(probabilities) == len(pairs) and bool(np.isfinite(entropies).all())
        and bool(((probabilities >= 0) & (probabilities <= 1 + 1e-5)).all()),
    }  # fmt: skip


def _said(bench: Any, samples: list[np.ndarray], name: str) -> tuple[list[list[int]], list[Any]]:
    """Return the tokens of each chunk, and the scores of those that have some."""
    from voxbatch.engines.vllm.families import Piece

    found: dict[str, Any] = {}
    for index, each in enumerate(samples):
        bench.core.add(f"{name} {index}", bench.made._family.request(Piece(each)))
    while bench.core._engine.has_unfinished_requests():
        found |= {output.id: output for output in bench.core.step()}
    outputs = [found[f"{name} {index}"] for index in range(len(samples))]
    return [each.token_ids for each in outputs], [each.scores for each in outputs if each.scores is not None]


def speed(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure pairs of runs with and without scores."""
    bench = bench_plugin.Bench(given.model, _options(given))
    yield {"ready_s": bench.ready_s, "described": bench.core.describe()}
    for on in (True, False):  # the first runs compile, capture graphs and allocate
        bench.core.score_tokens(on)
        bench.feed(bench_plugin.sounds(bench.requests // (1 if on else 4) + 8, "2-35", bench.longest))
    samples = bench_plugin.sounds(max(8, int(bench.requests * given.rounds)), given.lengths, bench.longest)
    runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for pair in range(given.pairs):
        for on in (False, True) if pair % 2 == 0 else (True, False):
            bench.core.score_tokens(on)
            with watched() as gpu:
                run = bench.feed(samples)
            runs[on].append(run)
            yield {"scores": on, "pair": pair, **run, **gpu}
    ratios = {
        name: [with_[name] / without[name] for with_, without in zip(runs[True], runs[False], strict=True)]
        for name in ("rtfx", "steady")
    }
    yield {
        "requests": bench.requests, "chunks": len(samples), "lengths": given.lengths,
        "rtfx_without": median(run["rtfx"] for run in runs[False]),
        "rtfx_with": median(run["rtfx"] for run in runs[True]),
        "ratio": round(median(ratios["rtfx"]), 4), "ratios": [round(each, 4) for each in ratios["rtfx"]],
        "steady_ratio": round(median(ratios["steady"]), 4), "right": median(ratios["rtfx"]) >= BAR or not _has_gpu(),
    }  # fmt: skip
    bench.core.close()


def _options(given: argparse.Namespace) -> dict[str, str]:
    return {**bench_plugin.PLUGIN, **dict(pair.split("=", 1) for pair in given.option)}


def _has_gpu() -> bool:
    from voxbatch.engines.vllm.gpu import visible_gpus

    return bool(visible_gpus())


PARTS = {"kernel": kernel, "tokens": tokens, "speed": speed}


def main() -> int:
    given = parsed()
    if given.part:
        for line in PARTS[given.part](given):
            print("RESULT " + json.dumps(line), flush=True)
        os._exit(0)  # an engine in this process would end slowly
    is_right = True
    for part in given.only:
        said = list(lines(part, given))
        is_right = is_right and bool(said) and all(line.get("right", "failed" not in line) for line in said)
    return 0 if is_right else 1


def lines(part: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of a part, which runs in its own process, as they are printed."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}  # vLLM inspects a model's class in another process
    began, errors = time.monotonic(), list[str]()
    process = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--part", part],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    stderr = process.stderr
    reader = threading.Thread(target=lambda: errors.extend(stderr), daemon=True)
    reader.start()
    for text in process.stdout:
        if text.startswith("RESULT "):
            line = {"part": part, **json.loads(text[7:]), "after_s": round(time.monotonic() - began)}
            bench_plugin.tell(line, given.out)
            yield line
    if process.wait():
        reader.join(5)
        line = {"part": part, "failed": "".join(errors)[-3000:]}
        bench_plugin.tell(line, given.out)
        yield line


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=4, help="of runs, for speed")
    parser.add_argument("--rounds", type=float, default=2.0, help="chunks of a run, by requests at a time")
    parser.add_argument("--lengths", choices=bench_plugin.LENGTHS, default="30")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="for tokens")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the lines there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
