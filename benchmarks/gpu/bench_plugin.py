"""Compare voxbatch's plugin (the encoder once per chunk) with stock vLLM on one GPU: speed, use of time, and tokens.

    python benchmarks/gpu/bench_plugin.py MODEL_DIR [--speed | --soak [H] | --profile | --idle | --tokens]
                                          [--only NAME …] [--out FILE]

MODEL_DIR is a Voxtral Realtime without weights from full_size.py, or a real one. Every engine runs in its own process;
each prints JSON lines.

--speed    seconds of audio per second by the engine's own driver, for chunks of 30 s, 20 to 35 s and 2 to 35 s, each
           REPEATS times through one engine; `rtfx` is the median over the whole runs, including their start and end;
           `steady` is the median over the middle half of the finished chunks. Each run has mean clocks and watts.
           With --look also what --idle measures, through the same engine.
--soak H   H hours of audio (20) in chunks of 2 to 35 s through one engine that always has work: for each twentieth of
           them one line with seconds of audio per second, host memory and GPU memory; drift and growth at the end.
--profile  GPU time by kind of work: of the encoder alone, per chunk; of steps that only decode, by their number of
           requests and by position; of the running mixture, with the share of wall time in which the GPU is idle; and
           the functions that take the host's time. The engine runs in this process, so that everything is visible.
--idle     the share of two seconds in the middle of a run in which the GPU is idle, and the work that follows each
           pause. Requests come from another process, as when voxbatch runs; in the mixture of --profile they are
           created between the steps.
--tokens   the share of positions at which two configurations produce the same token, with random weights of such sizes
           that outputs vary. Plugin and stock are compared, and stock alone with stock in company, which differ only
           by rounding. In float32 (--only plugin stock "plugin, float32" "stock, float32") both must produce the same
           tokens, and in bfloat16 both must be equally far from float32.

"plugin, second runner" is the plugin in vLLM's second model runner: --tokens --only plugin "plugin, second runner".

"plugin, whole prompts" shows the gain of copying the shared prefix of each prompt, and that the copy changes no more
than rounding does. `shared_positions` in the mixture of --profile shows that the prefix was copied.

voxbatch must be installed as a package, or vLLM does not find the plugin. On a machine without a GPU everything runs as
a rehearsal, with a tiny model.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any

import bench_engine  # it also puts the checkout on the path
import gpu_watch
import numpy as np
import take_second_runner

RATE = bench_engine.RATE
LENGTHS = {"30": (30.0, 30.0), "20-35": (20.0, 35.0), "2-35": (2.0, 35.0)}
"""Range of the seconds of chunks, evenly distributed, by name."""
DUMMY = {"load_format": "dummy", "watch": "false", "ignore_eos": "true", "delay_ms": "0"}
STOCK = {"prefill_encoder": "false", "lift_encoder_cache": "false"}
PLUGIN = {"prefill_encoder": "true"}
SMALL = {"gpu_memory_gb": "22.94"}
"""Memory limit of the default on an L4 of 24.15 GB; vLLM plans with 21.1 GB of it."""
EXACT = {"dtype": "float32", "enforce_eager": "true", "max_num_seqs": "64", "max_num_batched_tokens": "4096"}
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "plugin": PLUGIN,
    "plugin, whole prompts": {**PLUGIN, "scheduler_cls": "whole_prompts.WholePrompts"},
    "stock": {**STOCK, "max_num_seqs": "128", "max_num_batched_tokens": "65536"},
    "plugin, L4 memory": {**PLUGIN, **SMALL},
    "plugin, second runner": {**PLUGIN, "runner": "second"},
    "plugin, float32": {**PLUGIN, **EXACT},
    "plugin, second runner, float32": {**PLUGIN, **EXACT, "runner": "second"},
    "stock, float32": {**STOCK, **EXACT},
    "stock, L4 memory": {**STOCK, **SMALL, "max_num_seqs": "64", "max_num_batched_tokens": "0"},
}
"""Options by configuration. "runner" is no option, but vLLM's model runner (see take_second_runner). Stock has the best
settings that are known, see RESULTS.md.

Names contain no quotes: PyTorch's compiler copies the arguments of --only unchanged into the Python that it generates.
"""
KINDS = {
    "attention": ("_attend", "flash", "attention", "attn", "reshape_and_cache"),
    "matrix products": ("gemm", "gemv", "nvjet", "cutlass", "splitk", "wgmma", "cublas", "::mm", "addmm", "linear"),
    "convolution, Fourier": ("conv", "fft", "cudnn", "implicit", "regular_", "vector_"),
    "norms": ("norm",),
    "rotary": ("rotary", "rope", "_place"),  # the last one is our kernel, which also moves keys and values
    "activation": ("silu", "gelu", "act_and_mul"),
    "sampling": ("argmax", "sample", "softmax", "topk", "reduce"),
    "copies": ("memcpy", "memset", "copy", "cat", "index", "gather", "fill", "embedding"),
}
"""Kinds of work by a part of the kernel's name; the first match counts."""


def sounds(count: int, lengths: str, longest: int) -> list[np.ndarray]:
    """Return `count` pieces of noise, float32, of at most `longest` samples."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(RATE * 36).astype(np.float32) * 0.1
    return [noise[: min(longest, int(s * RATE))] for s in rng.uniform(*LENGTHS[lengths], count)]


CONTEXT = 250
"""Positions that a request has computed on average, in a run over chunks of 20 to 35 s."""


class Bench:
    """A loaded engine that can be fed several times."""

    def __init__(self, model: str, options: dict[str, str], profile: str = "ctx512-batch"):
        options = dict(options)
        if options.pop("runner", "") == "second":
            take_second_runner.take()
        from voxbatch.config import load_profile
        from voxbatch.engines import create
        from voxbatch.engines.vllm.arguments import llm_arguments, serving_folder
        from voxbatch.engines.vllm.vllm_process import VllmProcess

        defaults = {name: str(value) for name, value in load_profile(profile)["engine_options"].items()}
        self.made: Any = create("vllm", model, {**defaults, **DUMMY, **options})
        folder = serving_folder(self.made._model, self.made._settings)
        self.made._family.load(folder)
        self.requests: int = self.made.spec.concurrency
        began = time.monotonic()
        given = llm_arguments(self.made._model, self.made._settings, self.made._prefilled, folder, self.requests)
        # scores are switched on by `score_tokens`, or, where vLLM's own scheduler runs, by this option
        scores = options.get("confidence") == "true"
        self.core: Any = VllmProcess(given, self.made._prefilled, scores)
        self.ready_s = round(time.monotonic() - began, 1)
        self.longest: int = self.made.spec.max_chunk_samples

    def feed(self, samples: list[np.ndarray]) -> dict[str, float]:
        """Perform one run through voxbatch's own driver."""
        began, cpu = time.monotonic(), time.process_time()
        finishes = list(self.finishes(samples))
        return {
            **_rates(began, finishes),
            "feeding_cpu": round((time.process_time() - cpu) / (finishes[-1][0] - began), 2),
        }

    def finishes(self, samples: Iterable[np.ndarray]) -> Iterator[tuple[float, float]]:
        """Yield (time, seconds of audio) of each finished chunk. Only a few of `samples` are held at a time."""
        from voxbatch.engines import EngineMessage, Feed
        from voxbatch.engines.vllm.request_loop import EngineStarter, RequestLoop
        from voxbatch.records import Chunk, ChunkFailure, Span

        feed, lengths = Feed(self.made.spec.prefetch * self.longest), dict[int, float]()

        def fill() -> None:
            for index, each in enumerate(samples):
                lengths[index] = len(each) / RATE
                feed.put(Chunk(index, 0, each, Span(0, len(each), 0, len(each))))
            feed.close()

        threading.Thread(target=fill, daemon=True).start()
        driver = RequestLoop(
            self.made._family, EngineStarter(lambda _: _Kept(self.core), self.requests, 0), watched=False
        )
        for result in driver.run(feed):
            if isinstance(result, ChunkFailure):
                raise RuntimeError(result.message)
            if not isinstance(result, EngineMessage):
                yield time.monotonic(), lengths.pop(result.item)


class _Kept:
    """An engine that outlives its driver."""

    def __init__(self, core: Any):
        self.add, self.step, self.describe = core.add, core.step, core.describe

    def close(self) -> None:
        """Leave the engine open."""


def _rates(began: float, finishes: list[tuple[float, float]]) -> dict[str, float]:
    quarter = len(finishes) // 4
    middle = finishes[quarter : 3 * quarter + 1]
    span = middle[-1][0] - middle[0][0]
    audio = sum(seconds for _, seconds in finishes)
    wall = finishes[-1][0] - began
    steady = sum(seconds for _, seconds in middle[1:]) / span if span else 0.0
    return {
        "rtfx": round(audio / wall, 1),
        "steady": round(steady, 1),
        "wall_s": round(wall, 2),
        "audio_s": round(audio),
    }


# -- speed -------------------------------------------------------------------------------------------------------------


def speed(model: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure --speed."""
    if given.look:
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions of this file are sent to the engine's process
    bench = Bench(model, options)
    # the first run compiles, captures graphs and allocates
    bench.feed(sounds(bench.requests + 8, "2-35", bench.longest))
    for lengths, rounds in with_rounds(given.lengths, given.rounds):
        count = max(8, int(bench.requests * rounds))
        samples = sounds(count, lengths, bench.longest)
        runs = list[dict[str, float]]()
        for _ in range(given.repeats):
            with gpu_watch.watched() as gpu:
                run = bench.feed(samples)
            runs.append({**run, **gpu})
            # yield at once: a time limit then loses no finished run
            yield {"lengths": lengths, "repeat": len(runs), **runs[-1]}
        yield {
            "lengths": lengths, **{name: median(run[name] for run in runs) for name in runs[0]},
            "runs": runs, "chunks": count, "requests": bench.requests,
            "ready_s": bench.ready_s, "described": bench.core.describe(),
        }  # fmt: skip
        if given.look:
            yield {"lengths": lengths, "look": _looked_into(bench, lengths)}
    bench.core.close()


def with_rounds(lengths: Sequence[str], rounds: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Pair lengths with rounds; the last number of rounds applies to all further lengths."""
    return zip(lengths, chain(rounds, repeat(rounds[-1])), strict=False)


# -- soak --------------------------------------------------------------------------------------------------------------

STRETCHES = 20
"""Number of parts of a soak test."""


def soak(model: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure --soak: the speed of each part, and the memory at its end."""
    bench = Bench(model, options)
    yield {"ready_s": bench.ready_s, "described": bench.core.describe(), "hours": given.hours}
    bench.feed(sounds(bench.requests + 8, "2-35", bench.longest))
    enough, audio, stretches = threading.Event(), 0.0, list[dict[str, Any]]()
    began = time.monotonic()
    for when, seconds in bench.finishes(_until(enough, "2-35", bench.longest)):
        audio += seconds
        if audio >= given.hours * 3600 / STRETCHES and len(stretches) < STRETCHES:
            rtfx = round(audio / (when - began), 1)
            stretches.append({"stretch": len(stretches) + 1, "rtfx": rtfx, **_held(bench)})
            yield stretches[-1]
            audio, began = 0.0, when
        if len(stretches) == STRETCHES:
            enough.set()  # chunks that are in progress do not count
    yield _drift(stretches)
    bench.core.close()


def _until(enough: threading.Event, lengths: str, longest: int) -> Iterator[np.ndarray]:
    """Yield chunks until `enough` is set; all share the same noise, so that they take no memory."""
    pool = sounds(997, lengths, longest)
    while not enough.is_set():
        yield pool[0]
        pool.append(pool.pop(0))


def _held(bench: Bench) -> dict[str, int]:
    """Return bytes of memory: of this process, of the engine's processes, and of the GPU."""
    import psutil

    from voxbatch.engines.vllm import compat
    from voxbatch.engines.vllm.gpu import visible_gpus

    engines = [psutil.Process(process.pid) for process in compat.processes(bench.core._engine)]
    tree = [each for engine in engines for each in (engine, *engine.children(recursive=True))]
    return {
        "this_rss": psutil.Process().memory_info().rss, "engine_rss": sum(each.memory_info().rss for each in tree),
        "gpu_used": sum(card.total_bytes - card.free_bytes for card in visible_gpus()[:1]),
    }  # fmt: skip


def _drift(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the last quarter with the second one, because the first one fills the engine."""
    quarter = STRETCHES // 4
    second, last = stretches[quarter : 2 * quarter], stretches[3 * quarter :]
    rates = [STRETCHES / 4 / sum(1 / each["rtfx"] for each in part) for part in (second, last)]
    held = ("this_rss", "engine_rss", "gpu_used")
    return {
        "what": "drift", "rtfx_second_quarter": round(rates[0], 1), "rtfx_last_quarter": round(rates[1], 1),
        "ratio": round(rates[1] / rates[0], 4),
        "growth": {name: last[-1][name] - second[0][name] for name in held},
        "growth_last_half": {name: last[-1][name] - second[-1][name] for name in held},
    }  # fmt: skip


# -- idle --------------------------------------------------------------------------------------------------------------

SWING, LOOK_S = 2.2, 2.0
"""Rounds of simultaneous requests that finish before the measurement begins; seconds of the measurement."""


def idle(model: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure --idle."""
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions of this file are sent to the engine's process
    bench = Bench(model, options)
    bench.feed(sounds(bench.requests + 8, "2-35", bench.longest))
    for lengths in given.lengths:
        yield {"lengths": lengths, "requests": bench.requests, **_looked_into(bench, lengths)}
    bench.core.close()


def _looked_into(bench: Bench, lengths: str, swing: float = SWING) -> dict[str, Any]:
    """Profile the GPU for LOOK_S seconds in the middle of a run, after `swing` rounds of requests."""
    engine, enough = bench.core._engine, threading.Event()
    audio, began, found = 0.0, 0.0, dict[str, Any]()
    for finished, (when, seconds) in enumerate(bench.finishes(_until(enough, lengths, bench.longest))):
        if began and not found:
            audio += seconds
            if when - began >= LOOK_S:
                [seen] = engine.collective_rpc(_look_away)
                found = {"audio_s": round(audio), "looked_s": round(when - began, 2), **seen}
                enough.set()
        elif not began and finished >= bench.requests * swing:
            engine.collective_rpc(_look)
            began = time.monotonic()
    return found


def _look(worker: Any) -> None:
    """Start to record the GPU's work, in the engine's process. The CPU's work is not recorded, because that would slow
    it down.
    """
    import torch
    from torch.profiler import ProfilerActivity

    kind = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    worker.looking = torch.profiler.profile(activities=[kind])
    worker.looking.start()


def _look_away(worker: Any) -> dict[str, Any]:
    """Stop recording; return the GPU's busy and idle times, and the work that followed the pauses, longest first."""
    import torch

    seen = worker.looking
    seen.stop()
    spans = _spans(seen, torch.cuda.is_available())
    wall = (max(until for _, until, _ in spans) - spans[0][0]) / 1000
    busy, gaps = _waits(spans)
    kinds, names = defaultdict[str, float](float), defaultdict[str, float](float)
    for begin, end, name in spans:
        kinds[_kind(name)] += (end - begin) / 1000
        names[name[:90]] += (end - begin) / 1000
    long = sorted(gaps, key=lambda gap: -gap[0])[:12]
    counted = {f"over {least} us": [len(these), round(sum(us for us, *_ in these) / 1000, 1)]
               for least in (0, 20, 200, 2_000) if (these := [gap for gap in gaps if gap[0] > least])}  # fmt: skip
    return {
        "wall_ms": round(wall, 1), "busy_ms": round(busy / 1000, 1), "idle_share": round(1 - busy / 1000 / wall, 4),
        "kinds_ms": _dearest(kinds), "names_ms": _dearest(names), "gaps": counted,
        "longest": [[round(us / 1000, 2), before, after] for us, before, after in long],
        "idle_before": {name: round(us / 1000, 2) for name, us in list(_by_next(gaps).items())[:14]},
    }  # fmt: skip


def _dearest(spent: dict[str, float], count: int = 16) -> dict[str, float]:
    """Return the names with the most milliseconds, longest first."""
    return {name: round(ms, 2) for name, ms in sorted(spent.items(), key=lambda item: -item[1])[:count]}


# -- profile -----------------------------------------------------------------------------------------------------------


def profile(model: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure --profile."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    bench = Bench(model, options)
    inside = Inside(bench)
    bench.feed(sounds(bench.requests, "2-35", bench.longest))
    if "prefill_encoder" in options and options["prefill_encoder"] == "true":
        yield from inside.encoder()
    yield inside.mixture()
    yield inside.host()
    sizes = [size for size in sorted({1, 32, 64, 128, 256, 384, bench.requests}) if size <= bench.requests]
    for requests in sizes:
        yield from inside.decoding(requests, (0, CONTEXT) if requests in sizes[-2:] else (0,))


class Inside:
    """An engine that runs in this process, with access to its parts."""

    def __init__(self, bench: Bench):
        self._bench, self._ids = bench, 0
        self._core: Any = bench.core._engine.engine_core.engine_core
        worker = self._core.model_executor.driver_worker
        runner = getattr(worker, "worker", worker).model_runner
        self.model: Any = runner.get_model()
        self.runner = type(runner).__module__

    def encoder(self) -> Iterator[dict[str, Any]]:
        """Measure a chunk of 30 s alone, and in batches as large as the encoder's."""
        import torch

        encoder = self.model._encoder
        samples = self._bench.made._family._tekken.audio_encoder.pad(np.zeros(30 * RATE, np.float32), RATE)
        for chunks in (1, 4, 16):
            audio = [torch.from_numpy(samples) for _ in range(chunks)]  # on the host, as the audio of a step is

            def once(audio: list[Any] = audio) -> None:
                with torch.inference_mode():
                    encoder(audio)

            once()
            seen = _profiled(once, 3)
            yield {"what": "encoder", "chunks": chunks, "wall_ms_per_chunk": round(seen["wall_ms"] / chunks, 2),
                   "gpu_ms_per_chunk": {kind: round(ms / chunks, 3) for kind, ms in seen["kinds"].items()}}  # fmt: skip

    def decoding(self, requests: int, contexts: Sequence[int], steps: int = 30) -> Iterator[dict[str, Any]]:
        """Measure steps in which `requests` requests decode and none is admitted.

        Each measurement begins when the requests have about as many positions on average as `contexts` says, and after
        at least 40 steps.
        """
        for samples in sounds(requests, "30", self._bench.longest):
            self._add(samples)
        self._steps(40)  # then all requests are admitted, and well into their text
        for context in contexts:
            while 0 < self._context() < context - steps:
                self._steps(4)
            before = self._context()
            began = time.monotonic()
            self._steps(steps)
            wall = (time.monotonic() - began) / steps * 1000
            seen = _profiled(lambda: self._steps(1), steps)
            yield {"what": "decode step", "requests": requests, "context": round((before + self._context()) / 2),
                   "wall_ms": round(wall, 2), "profiled": seen}  # fmt: skip
        self._drain()

    def _context(self) -> float:
        """Return the average number of computed positions of the running requests; 0 if none runs."""
        running = self._core.scheduler.running
        return sum(each.num_computed_tokens for each in running) / max(1, len(running))

    def mixture(self, steps: int = 150, seen_steps: int = 60) -> dict[str, Any]:
        """Measure steps of a full run, including admissions; two bursts' worth of steps are profiled."""
        feed = self._endless()
        self._swing(feed, 450)
        before, began = self._ids, time.monotonic()
        self._swing(feed, steps)
        wall = (time.monotonic() - began) / steps * 1000
        middle, context = self._ids, self._context()
        seen = _profiled(lambda: self._swing(feed, 1), seen_steps)
        chunks = [round((middle - before) / steps, 3), round((self._ids - middle) / seen_steps, 3)]
        self._drain()
        idle = 1 - seen["busy_ms"] / seen["wall_ms"]
        return {"what": "mixture", "requests": self._bench.requests, "context": round(context),
                "chunks_a_step": chunks, "wall_ms": round(wall, 2), "profiled": seen,
                "idle_share": round(idle, 3), "shared_positions": self._shared()}  # fmt: skip

    def _shared(self) -> int:
        """Return the number of positions of a prompt that are copied and not computed."""
        prefix = getattr(self._core.scheduler, "_prefix", None)
        return prefix.positions if prefix else 0

    def host(self, steps: int = 300) -> dict[str, Any]:
        """Measure the time of Python functions in the same kind of run."""
        feed = self._endless()
        self._swing(feed, 100)
        watch = cProfile.Profile()
        watch.enable()
        self._swing(feed, steps)
        watch.disable()
        self._drain()
        stats: Any = pstats.Stats(watch)
        rows = sorted(stats.stats.items(), key=lambda item: item[1][2], reverse=True)[:40]
        return {"what": "host", "steps": steps, "ms_a_step": {
            f"{Path(where[0]).name}:{where[1]} {where[2]}": [round(ms / steps * 1000, 3) for ms in row[2:4]]
            for where, row in rows}}  # fmt: skip

    def _endless(self) -> Iterator[np.ndarray]:
        pool = sounds(997, "20-35", self._bench.longest)
        while True:
            yield from pool

    def _swing(self, feed: Iterator[np.ndarray], steps: int) -> None:
        engine = self._bench.core._engine
        window = self._bench.requests + max(1, self._bench.requests // 8)
        for _ in range(steps):
            while engine.get_num_unfinished_requests() < window:
                self._add(next(feed))
            engine.step()

    def _add(self, samples: np.ndarray) -> None:
        from voxbatch.engines.pieces import Piece

        self._ids += 1
        self._bench.core.add(f"i{self._ids}", self._bench.made._family.request(Piece(samples)))

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._bench.core._engine.step()

    def _drain(self) -> None:
        engine = self._bench.core._engine
        engine.abort_request([f"i{i}" for i in range(self._ids + 1)], internal=False) if _aborts(engine) else None
        while engine.has_unfinished_requests():
            engine.step()


def _aborts(engine: Any) -> bool:
    import inspect

    return "internal" in inspect.signature(engine.abort_request).parameters


def _profiled(work: Callable[[], None], times: int) -> dict[str, Any]:
    """Return the GPU milliseconds of one `work` by kind, the 14 names with the most time, and the wall time.

    Without a GPU the CPU's time is measured. The wall time includes the profiler's own cost.
    """
    import torch
    from torch.profiler import ProfilerActivity

    on_gpu = torch.cuda.is_available()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        began = time.monotonic()
        for _ in range(times):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        wall = time.monotonic() - began
    kinds, names = defaultdict(float), defaultdict(float)
    for event in seen.key_averages():
        spent = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / times / 1000
        if spent and (not on_gpu or "CUDA" in str(event.device_type)):
            kinds[_kind(event.key)] += spent
            names[event.key[:90]] += spent
    dearest = dict(sorted(names.items(), key=lambda item: -item[1])[:14])
    busy, gaps = _waits(_spans(seen, on_gpu))
    return {
        "wall_ms": round(wall / times * 1000, 2),
        "busy_ms": round(busy / times / 1000, 3),
        "idle_before": {name: round(us / times / 1000, 3) for name, us in list(_by_next(gaps).items())[:14]},
        "kinds": {kind: round(ms, 3) for kind, ms in sorted(kinds.items(), key=lambda item: -item[1])},
        "names": {name: round(ms, 3) for name, ms in dearest.items()},
    }


def _spans(seen: Any, on_gpu: bool) -> list[tuple[float, float, str]]:
    """Return begin, end and name of all the GPU's work (without a GPU: of PyTorch's), in order of their begin."""
    mine = (each for each in seen.events() if not on_gpu or "CUDA" in str(each.device_type))
    return sorted((each.time_range.start, each.time_range.end, each.name) for each in mine)


def _waits(spans: Sequence[tuple[float, float, str]]) -> tuple[float, list[tuple[float, str, str]]]:
    """Return the busy microseconds, and all pauses as (length, work before, work after).

    Two streams may work at the same time; this time counts once.
    """
    end, last, busy, gaps = spans[0][0] if spans else 0.0, "", 0.0, list[tuple[float, str, str]]()
    for begin, until, name in spans:
        if begin > end:
            gaps.append((begin - end, last[:60], name[:90]))
        busy += max(0.0, until - max(begin, end))
        if until > end:
            end, last = until, name
    return busy, gaps


def _by_next(gaps: Iterable[tuple[float, str, str]]) -> dict[str, float]:
    """Return the microseconds of all pauses by the work that followed, longest first."""
    found = defaultdict[str, float](float)
    for us, _, name in gaps:
        found[name] += us
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kind(name: str) -> str:
    low = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in low for part in parts)), "other")


# -- tokens ------------------------------------------------------------------------------------------------------------

GAINS = {
    "qkv_proj": 1.5, "o_proj": 0.2, "out_proj": 0.2, "down_proj": 0.2, "ada_rms_norm": 0.5, "audio_language": 2.0,
    "conv": 8.0,
}  # fmt: skip
"""By a part of a parameter's name: the ratio of the output's size to the input's size.

The part that all positions have in common must stay small, or all positions produce the same token. At full size, 0.98
of the last hidden state was once common, and 200 positions produced 2 different tokens. With these gains 0.45 is
common, and they produce 140. Shares and sizes (root mean square) were measured at full size on a CPU.

conv: the difference between sounds is small in a spectrogram, and every layer adds a common part. With a gain of 2,
frames had the size 0.18 and the first layer alone added 0.3. With 8 they have 3 to 5, and 32 layers add 1.5. qkv_proj:
in a mean over hundreds of positions, which attention yields with 1.2, 0.9 is common. With 2, attention selects few
positions, but amplifies rounding so much that bfloat16 agrees with float32 in 0.64 of the positions; with 1.5, in 0.85.
o_proj, out_proj, down_proj: 58 layers each add little. With down_proj at 0.2 instead of 0.4, that 0.85 becomes 0.9. The
rows of the filters sum to zero: the part that all sounds have in common has no effect.
"""
EMBEDDING = 1.5
"""Size of a token's row of the embedding. The audio's row is twice as long as the root of its width.

After a different token, one in nine of the next tokens differs, too, so that a difference dies out. The head uses the
same rows: with longer rows the model would repeat its last token.
"""
BIAS = 0.02
"""Size of the biases, which are the same at all positions. With 0.1, a share of 0.6 of the first layer's MLP output is
common, not 0.4.
"""


def tokens(model: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure --tokens: the tokens of one engine, in company and alone."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if given.scale:
        weigh_dummies()
    bench = Bench(model, options)
    inside = Inside(bench)
    yield {"ready_s": bench.ready_s, "described": bench.core.describe(), "runner": inside.runner}
    lengths = np.random.default_rng(0).permutation(np.linspace(2, 34, given.chunks))
    samples = [_babble(index, min(seconds, bench.longest / RATE)) for index, seconds in enumerate(lengths)]
    for how, some in (("in company", samples), ("alone", samples[: given.alone])):
        began = time.monotonic()
        said = _said(inside, bench, some, together=how == "in company")
        seconds = round(time.monotonic() - began, 1)
        yield {"how": how, "seconds": seconds, **variety(said), "tokens": said}


def variety(said: list[list[int]]) -> dict[str, Any]:
    """Return how much the tokens vary, because tokens that do not vary prove nothing."""
    every = [token for each in said for token in each]
    same = [a == b for each in said for a, b in pairwise(each)]
    return {
        "positions": len(every), "distinct_tokens": len(set(every)),
        "said_again": round(float(np.mean(same)), 4) if same else 0.0,
    }  # fmt: skip


def weigh_dummies() -> None:
    """Make vLLM's loader of dummy weights use `weigh`, from now on.

    vLLM's own dummy weights are within a thousandth, and the same numbers in every matrix of a shape: a stack of such
    layers produces one token for all audio. The weights are changed here before anything is derived from them.
    """
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    DummyModelLoader.load_weights = lambda self, model, model_config: weigh(model)


def weigh(model: Any) -> None:
    """Set weights as a trained model might have them, the same for parameters of the same name.

    A matrix keeps the size of its input, norms leave it unchanged, and the audio determines the output.
    """
    import torch

    for name, weight in model.named_parameters():
        weight.data.copy_(_made(name, weight))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # otherwise vLLM counts the temporary tensors


def _made(name: str, like: Any) -> Any:
    """Return a parameter's values, made in float32 and rounded to bfloat16, so that both types have the same values."""
    import torch

    if like.dim() == 1 and "norm" in name:
        return torch.ones_like(like)
    seed = torch.Generator(like.device).manual_seed(zlib.crc32(name.encode()))
    made = torch.empty(like.shape, dtype=torch.float32, device=like.device).normal_(generator=seed)
    if like.dim() == 1:
        made.mul_(BIAS)
    elif "embed_tokens" in name or "lm_head" in name:
        made.mul_(EMBEDDING / like.shape[1] ** 0.5)
    else:
        gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
        made.sub_(made.mean(dim=tuple(range(1, made.dim())), keepdim=True)).mul_(gain / made[0].numel() ** 0.5)
    return made.bfloat16()


def _babble(seed: int, seconds: float) -> np.ndarray:
    """Return sound that changes about as often as speech: a new pitch and loudness every 0.4 s.

    The noise is faint: all noise sounds alike, but no two frames of it are the same, so that no token would repeat.
    """
    rng = np.random.default_rng(seed)
    each = RATE * 2 // 5
    count = int(seconds * RATE) // each + 1
    pitch, loud = rng.uniform(80, 3000, count), rng.choice([0.0, 0.02, 0.1, 0.3], count)
    phase = 2 * np.pi * np.cumsum(np.repeat(pitch, each)) / RATE
    wave = np.repeat(loud, each) * (np.sin(phase) + 0.03 * rng.standard_normal(count * each))
    return np.clip(wave[: int(seconds * RATE)], -1, 1).astype(np.float32)


def _said(inside: Inside, bench: Bench, samples: list[np.ndarray], together: bool) -> list[list[int]]:
    """Return the tokens of each chunk, transcribed together or one by one."""
    from voxbatch.engines.pieces import Piece

    found: dict[str, list[int]] = {}
    how = "t" if together else "a"
    for batch in [range(len(samples))] if together else [[i] for i in range(len(samples))]:
        for index in batch:
            bench.core.add(f"{how}{index}", bench.made._family.request(Piece(samples[index])))
        while bench.core._engine.has_unfinished_requests():
            found |= {output.id: output.token_ids for output in bench.core.step()}
    return [found[f"{how}{index}"] for index in range(len(samples))]


def compared(found: dict[str, list[list[int]]], done: int) -> Iterator[dict[str, Any]]:
    """Compare each two results, except two that are both among the first `done`.

    Yields:
        The share of positions with equal tokens, and the share of the text before the first difference.
    """
    for (i, one), (j, other) in combinations(enumerate(found), 2):
        if max(i, j) < done:
            continue
        pairs = list(zip(found[one], found[other], strict=False))
        equal = [[a == b for a, b in zip(left, right, strict=False)] for left, right in pairs]
        same = [each for text in equal for each in text]
        until = [next((k for k, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), len(x)) for x, y in pairs]
        yield {
            "of": [one, other], "chunks": len(pairs), "positions": len(same),
            "equal_share": round(float(np.mean(same)), 4), "by_third": _by_third(equal),
            "until_first_difference": round(sum(until) / max(1, sum(len(x) for x, _ in pairs)), 4),
            "distinct_tokens": len({t for x, y in pairs for t in (*x, *y)}),
        }  # fmt: skip


def _by_third(equal: list[list[bool]]) -> list[float]:
    """Return the share of equal tokens in the texts' first, middle and last thirds: an error that begins somewhere
    makes it fall.
    """
    parts = [[text[len(text) * i // 3 : len(text) * (i + 1) // 3] for text in equal] for i in range(3)]
    shares = [[each for text in part for each in text] for part in parts]
    return [round(float(np.mean(share)), 4) if share else 0.0 for share in shares]


# -- the whole ---------------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "speed": speed, "soak": soak, "profile": profile, "idle": idle, "tokens": tokens,
}  # fmt: skip
USUAL = {"speed": tuple(name for name in CONFIGURATIONS if not name.endswith(("float32", "whole prompts"))),
         "soak": ("plugin",), "profile": ("plugin",), "idle": ("plugin",), "tokens": ("plugin", "stock")}  # fmt: skip
"""Default configurations of each measure."""


def main() -> None:
    given = parsed()
    if given.one:
        for line in MEASURES[given.measure](given.model, json.loads(given.one), given):
            print("RESULT " + json.dumps(line), flush=True)
        os._exit(0)  # an engine in this process would end slowly
    said: dict[str, list[list[int]]] = {}
    for name in given.only or USUAL[given.measure]:
        options = {**CONFIGURATIONS[name], **dict(pair.split("=", 1) for pair in given.option)}
        done = len(said)
        for line in lines(name, options, given):
            if "tokens" in line:
                said[f"{name} {line['how']}"] = line.pop("tokens")
            tell({"measure": given.measure, "name": name, **line}, given.out)
        for line in compared(said, done):
            tell({"measure": "tokens", **line}, given.out)
        if said and given.out:  # for a comparison with the tokens of another day
            given.out.with_suffix(".tokens.json").write_text(json.dumps(said))


def lines(name: str, options: dict[str, str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of a measurement in its own process, as they are printed."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", json.dumps(options)]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}  # vLLM inspects a model's class in another process
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    errors: list[str] = []
    assert process.stdout
    assert process.stderr
    stderr = process.stderr
    reader = threading.Thread(target=lambda: errors.extend(stderr), daemon=True)
    reader.start()
    for line in process.stdout:
        if line.startswith("RESULT "):
            yield json.loads(line[7:])
    if process.wait():
        reader.join(5)
        yield {"failed": "".join(errors)[-3000:]}


def tell(line: dict[str, Any], out: Path | None) -> None:
    """Print a line, and append it to the file."""
    print(json.dumps(line), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    for measure in MEASURES.keys() - {"soak"}:
        parser.add_argument(f"--{measure}", dest="measure", action="store_const", const=measure)
    parser.add_argument("--soak", dest="hours", type=float, nargs="?", const=20.0, metavar="HOURS")
    parser.add_argument("--only", nargs="*", choices=CONFIGURATIONS, help="names of configurations")
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds", type=float, nargs="+", default=[4.0], help="chunks of a run, by requests at a time, for each length"
    )
    parser.add_argument("--look", action="store_true", help="with --speed: measure --idle too")
    parser.add_argument("--chunks", type=int, default=64, help="of --tokens")
    parser.add_argument("--alone", type=int, default=8, help="of these, decoded alone")
    parser.add_argument(
        "--scale", action=argparse.BooleanOptionalAction, default=True, help="the weights, for --tokens"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the lines there too; tokens go to FILE.tokens.json")
    given = parser.parse_args()
    given.measure = "soak" if given.hours else given.measure or "speed"
    return given


if __name__ == "__main__":
    main()
