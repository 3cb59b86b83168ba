"""Compare voxbatch's plugin (the encoder once per chunk) with stock vLLM on one GPU: speed, and tokens.

    python benchmarks/gpu/bench_plugin.py MODEL_DIR [--speed | --tokens] [--only NAME …] [--out FILE]

MODEL_DIR is a Voxtral Realtime without weights from full_size.py, or a real one. Every engine runs in its own process;
each prints JSON lines.

--speed    seconds of audio per second by the engine's own driver, for chunks of 30 s, 20 to 35 s and 2 to 35 s, each
           REPEATS times through one engine; `rtfx` is the median over the whole runs, including their start and end;
           `steady` is the median over the middle half of the finished chunks. Each run has mean clocks and watts.
--tokens   the share of positions at which two configurations produce the same token, with random weights of such sizes
           that outputs vary. Plugin and stock are compared, and stock alone with stock in company, which differ only
           by rounding. In float32 (--only plugin stock "plugin, float32" "stock, float32") both must produce the same
           tokens, and in bfloat16 both must be equally far from float32.

voxbatch must be installed as a package, or vLLM does not find the plugin. On a machine without a GPU everything runs as
a rehearsal, with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from shared import RATE, measured_lines, tell, watched

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
    "stock": {**STOCK, "max_num_seqs": "128", "max_num_batched_tokens": "65536"},
    "plugin, L4 memory": {**PLUGIN, **SMALL},
    "plugin, float32": {**PLUGIN, **EXACT},
    "stock, float32": {**STOCK, **EXACT},
    "stock, L4 memory": {**STOCK, **SMALL, "max_num_seqs": "64", "max_num_batched_tokens": "0"},
}
"""Options by configuration. Stock has the best settings that are known, see RESULTS.md.

Names contain no quotes: PyTorch's compiler copies the arguments of --only unchanged into the Python that it generates.
"""


def sounds(count: int, lengths: str, longest: int) -> list[np.ndarray]:
    """Return `count` pieces of noise, float32, of at most `longest` samples."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(RATE * 36).astype(np.float32) * 0.1
    return [noise[: min(longest, int(s * RATE))] for s in rng.uniform(*LENGTHS[lengths], count)]


class Bench:
    """A loaded engine that can be fed several times."""

    def __init__(self, model: str, options: dict[str, str], profile: str = "ctx512-batch"):
        from voxbatch.engines import create
        from voxbatch.engines.vllm.arguments import llm_arguments, serving_folder
        from voxbatch.engines.vllm.vllm_process import VllmProcess
        from voxbatch.profiles import load_profile

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
    bench = Bench(model, options)
    # the first run compiles, captures graphs and allocates
    bench.feed(sounds(bench.requests + 8, "2-35", bench.longest))
    for lengths, rounds in with_rounds(given.lengths, given.rounds):
        count = max(8, int(bench.requests * rounds))
        samples = sounds(count, lengths, bench.longest)
        runs = list[dict[str, float]]()
        for _ in range(given.repeats):
            with watched() as gpu:
                run = bench.feed(samples)
            runs.append({**run, **gpu})
            # yield at once: a time limit then loses no finished run
            yield {"lengths": lengths, "repeat": len(runs), **runs[-1]}
        yield {
            "lengths": lengths, **{name: median(run[name] for run in runs) for name in runs[0]},
            "runs": runs, "chunks": count, "requests": bench.requests,
            "ready_s": bench.ready_s, "described": bench.core.describe(),
        }  # fmt: skip
    bench.core.close()


def with_rounds(lengths: Sequence[str], rounds: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Pair lengths with rounds; the last number of rounds applies to all further lengths."""
    return zip(lengths, chain(rounds, repeat(rounds[-1])), strict=False)


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
    worker: Any = bench.core._engine.engine_core.engine_core.model_executor.driver_worker
    runner = type(getattr(worker, "worker", worker).model_runner).__module__
    yield {"ready_s": bench.ready_s, "described": bench.core.describe(), "runner": runner}
    lengths = np.random.default_rng(0).permutation(np.linspace(2, 34, given.chunks))
    samples = [_babble(index, min(seconds, bench.longest / RATE)) for index, seconds in enumerate(lengths)]
    for how, some in (("in company", samples), ("alone", samples[: given.alone])):
        began = time.monotonic()
        said = _said(bench, some, together=how == "in company")
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


def _said(bench: Bench, samples: list[np.ndarray], together: bool) -> list[list[int]]:
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

MEASURES: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"speed": speed, "tokens": tokens}
USUAL = {"speed": tuple(name for name in CONFIGURATIONS if not name.endswith("float32")), "tokens": ("plugin", "stock")}
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
        for line in measured_lines(__file__, json.dumps(options)):
            if "tokens" in line:
                said[f"{name} {line['how']}"] = line.pop("tokens")
            tell({"measure": given.measure, "name": name, **line}, given.out)
        for line in compared(said, done):
            tell({"measure": "tokens", **line}, given.out)
        if said and given.out:  # for a comparison with the tokens of another day
            given.out.with_suffix(".tokens.json").write_text(json.dumps(said))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    for measure in MEASURES:
        parser.add_argument(f"--{measure}", dest="measure", action="store_const", const=measure, default="speed")
    parser.add_argument("--only", nargs="*", choices=CONFIGURATIONS, help="names of configurations")
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds", type=float, nargs="+", default=[4.0], help="chunks of a run, by requests at a time, for each length"
    )
    parser.add_argument("--chunks", type=int, default=64, help="of --tokens")
    parser.add_argument("--alone", type=int, default=8, help="of these, decoded alone")
    parser.add_argument(
        "--scale", action=argparse.BooleanOptionalAction, default=True, help="the weights, for --tokens"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the lines there too; tokens go to FILE.tokens.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
