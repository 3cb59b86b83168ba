"""Measure seconds of audio per second of the vLLM engine on this GPU, by configuration, and of stock vLLM at its best.

    python benchmarks/gpu/bench_engine.py MODEL_DIR [--only NAME …] [--out FILE]

MODEL_DIR is a Voxtral Realtime with weights, or one without weights from full_size.py. Each configuration runs in its
own process, so that none inherits another's memory. It prints one line: RTFx of the whole run, RTFx of the middle half
of the finished chunks (the steady state), engine steps per second, simultaneous requests, K/V blocks, peak memory, and
the seconds until the engine was ready. Texts do not matter: watchdogs are off, and the model must produce every token
of the audio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

RATE = 16_000
WARM_UP = 8
"""Chunks that do not count, because the first steps compile and capture graphs."""
STOCK = {"max_num_seqs": 128, "max_num_batched_tokens": 65_536}
"""The best settings of stock vLLM that are known for an H200."""

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ctx512": {"profile": "ctx512", "chunks": 3},
    "stock best": {"stock": STOCK, "chunks": 384},
    "ctx512-batch": {"profile": "ctx512-batch", "chunks": 1100},
    "ctx512-batch, mixed lengths": {"profile": "ctx512-batch", "chunks": 1100, "mix": True},
    "stock at 22 GB": {"stock": {"max_num_seqs": 64}, "gb": 22, "chunks": 128},
    "ctx512-batch at 22 GB": {"profile": "ctx512-batch", "gb": 22, "chunks": 200},
    "ctx512-batch at 22 GB, mixed lengths": {"profile": "ctx512-batch", "gb": 22, "chunks": 200, "mix": True},
}


def sounds(count: int, mix: bool) -> Iterator[np.ndarray]:
    """Yield `count` chunks of swelling noise, float32 of shape (samples,).

    Each has 30 s, or with `mix` 4 to 35 s, as chunks of calls have.
    """
    rng = np.random.default_rng(0)
    longest = rng.standard_normal(RATE * 36).astype(np.float32) * 0.1
    for _ in range(count):
        seconds = min(35.0, max(4.0, rng.gamma(9, 3))) if mix else 30.0
        yield longest[: int(seconds * RATE)]


def engine(model: str, spec: dict[str, Any], samples: list[np.ndarray]) -> dict[str, Any]:
    """Measure voxbatch's own engine, driven as in a run."""
    from voxbatch.config import load_profile
    from voxbatch.engines import EngineMessage, Feed, create
    from voxbatch.records import Chunk, Span

    options = {name: str(value) for name, value in load_profile(spec["profile"])["engine_options"].items()}
    options |= {"load_format": "dummy", "watch": "false", "ignore_eos": "true", **spec.get("options", {})}
    if "gb" in spec:
        options["gpu_memory_gb"] = str(spec["gb"])
    made = create("vllm", model, options)
    feed = Feed(made.spec.prefetch * made.spec.max_chunk_samples)
    parts = [each[: made.spec.max_chunk_samples] for each in samples]

    def fill() -> None:
        for index, part in enumerate(parts):
            feed.put(Chunk(index, 0, part, Span(0, len(part), 0, len(part))))
        feed.close()

    threading.Thread(target=fill, daemon=True).start()
    watched = _Watched()
    watched.install()
    ready = []
    for result in made.stream(feed):
        if isinstance(result, EngineMessage):
            ready.append(result.text)
        else:
            watched.finished(len(parts[result.item]) / RATE)
    made.close()
    return {**watched.figures(), "ready": ready, "starved_s": feed.starved_s, "short_s": feed.short_s}


def stock(model: str, spec: dict[str, Any], samples: list[np.ndarray]) -> dict[str, Any]:
    """Measure vLLM alone: all requests are passed to `LLM.generate` at once, in the form of the official prompt."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # by default 0.26 uses the second one, and crashes
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from vllm import LLM, SamplingParams

    watched = _Watched()
    watched.install()
    llm = LLM(
        model=model, config_format="mistral", load_format="dummy", tokenizer_mode="mistral", dtype="bfloat16",
        max_model_len=512, limit_mm_per_prompt={"audio": 1}, enable_prefix_caching=False, mm_processor_cache_gb=0,
        gpu_memory_utilization=_share(spec), compilation_config={"cudagraph_mode": "PIECEWISE"},
        disable_log_stats=False, **spec["stock"],
    )  # fmt: skip
    tokenizer = MistralTokenizer.from_file(f"{model}/tekken.json").instruct_tokenizer
    encoder = tokenizer.audio_encoder
    prompt = tokenizer.start() + encoder.encode_streaming_tokens()
    requests, params = [], []
    for each in samples:
        padded = encoder.pad(each, RATE)
        requests.append({"prompt_token_ids": prompt, "multi_modal_data": {"audio": [(padded, None)]}})
        tokens = len(padded) // 1280 - len(prompt) - 1
        params.append(SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False))
    llm.generate(requests[:WARM_UP], params[:WARM_UP], use_tqdm=False)
    watched.restart()
    llm.generate(requests, params, use_tqdm=False)
    watched.audio_s = [len(each) / RATE for each in samples]
    return watched.figures(whole=True)


def _share(spec: dict[str, Any]) -> float:
    from voxbatch.engines.vllm.gpu import visible_gpus

    return spec["gb"] * 1e9 / visible_gpus()[0].total_bytes if "gb" in spec else 0.9


class _Watched:
    """Counts the outputs of vLLM's engine, step by step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int, float]] = []
        """Time, running requests and share of the K/V blocks in use, for each step."""
        self.finishes: list[float] = []
        self.audio_s: list[float] = []
        self.blocks = 0
        self.ready_s = 0.0
        self.began = time.monotonic()

    def install(self) -> None:
        """Record each step of the next LLMEngine that is created."""
        from vllm.v1.engine.llm_engine import LLMEngine

        init, took = LLMEngine.__init__, time.monotonic()
        seen = self

        def watched_init(self: Any, *args: Any, **kwargs: Any) -> None:
            kwargs["log_stats"] = True
            init(self, *args, **kwargs)
            seen.ready_s = time.monotonic() - took
            seen.blocks = self.vllm_config.cache_config.num_gpu_blocks
            get = self.engine_core.get_output

            def get_output() -> Any:
                outputs = get()
                if (stats := outputs.scheduler_stats) is not None:
                    seen.steps.append((time.monotonic(), stats.num_running_reqs, stats.kv_cache_usage))
                return outputs

            self.engine_core.get_output = get_output
            seen.restart()

        LLMEngine.__init__ = watched_init  # type: ignore[method-assign]

    def restart(self) -> None:
        """Begin the measurement; forget all earlier steps."""
        self.began = time.monotonic()
        self.steps.clear()

    def finished(self, seconds: float) -> None:
        """Record a finished chunk."""
        self.finishes.append(time.monotonic())
        self.audio_s.append(seconds)

    def figures(self, whole: bool = False) -> dict[str, Any]:
        """Return the figures of the measurement.

        Args:
            whole: end at the last step, not at the last finished chunk.
        """
        wall = (self.steps[-1][0] if whole else self.finishes[-1]) - self.began
        quarter = len(self.finishes) // 4
        steady = 0.0
        if quarter:
            span = self.finishes[3 * quarter] - self.finishes[quarter]
            steady = sum(self.audio_s[quarter + 1 : 3 * quarter + 1]) / span
        middle = self.steps[len(self.steps) // 4 : 3 * len(self.steps) // 4] or self.steps
        return {
            "rtfx": round(sum(self.audio_s) / wall, 1), "steady_rtfx": round(steady, 1),
            "audio_s": round(sum(self.audio_s)), "wall_s": round(wall, 1),
            "steps_per_s": round(len(self.steps) / wall, 1), "running": round(mean(step[1] for step in middle), 1),
            "kv_usage": round(max(step[2] for step in self.steps), 3), "kv_blocks": self.blocks,
            "ready_s": round(self.ready_s, 1),
        }  # fmt: skip


class _Memory:
    """The peak of the GPU's used memory, read from NVML ten times a second."""

    def __init__(self) -> None:
        self.peak_gb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        from voxbatch.engines.vllm.gpu import visible_gpus

        while found := visible_gpus():
            self.peak_gb = max(self.peak_gb, (found[0].total_bytes - found[0].free_bytes) / 1e9)
            time.sleep(0.1)


def one(model: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one configuration in this process."""
    memory = _Memory()
    samples = list(sounds(spec["chunks"], spec.get("mix", False)))
    figures = stock(model, spec, samples) if "stock" in spec else engine(model, spec, samples)
    return {**figures, "peak_gb": round(memory.peak_gb, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--only", nargs="*", help="names of configurations, or JSON of one's own")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the lines there too")
    given = parser.parse_args()
    if given.one:
        print("RESULT " + json.dumps(one(given.model, json.loads(given.one))), flush=True)
        return
    for name in given.only or CONFIGURATIONS:
        spec = json.loads(name) if name.startswith("{") else CONFIGURATIONS[name]
        command = [sys.executable, __file__, given.model, "--one", json.dumps(spec)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
        result = json.loads(found[-1][7:]) if found else {"failed": (ended.stderr or ended.stdout)[-1500:]}
        line = json.dumps({"name": spec.get("name", name), **result})
        print(line, flush=True)
        if given.out:
            with given.out.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
