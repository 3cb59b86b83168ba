"""Compare voxbatch with stock vLLM on one GPU: speed, and tokens.

    python benchmarks/gpu/bench_plugin.py MODEL_DIR [--speed | --tokens] [--only NAME …] [--option NAME=VALUE …]

MODEL_DIR comes from full_size.py, without weights, or is a real model. Every configuration runs in its own process,
through voxbatch's engine, and prints JSON lines.

--speed    seconds of audio per second: for Voxtral Realtime in chunks of 30 s, 20 to 35 s and 2 to 35 s, for any other
           model in windows of 30 s with exactly --text-tokens tokens of text (read speech has about 100). Each length
           is run REPEATS times through one engine. `rtfx` is the median over the whole runs, including their start and
           end; `steady` is the median over the middle half of the finished chunks. Each run has mean clocks and watts.
--tokens   the share of positions at which two configurations produce the same token, with random weights of such sizes
           that outputs vary. Plugin and stock are compared, and stock alone with stock in company, which differ only
           by rounding. In float32 (--only plugin stock "plugin, float32" "stock, float32") both must produce the same
           tokens, and in bfloat16 both must be equally far from float32.

plugin          voxbatch's scheduler, and the plugin, which is for Voxtral alone.
without plugin  voxbatch's scheduler and settings with vLLM's model.
stock           vLLM's own scheduler, with the best settings that are known for Voxtral Realtime (RESULTS.md), and with
                vLLM's own ones for this GPU for the other models. `--option max_num_seqs=N` tries others.
… L4 memory     the same within the memory that a run may fill on an L4. This is not the speed of an L4.

`--option fp8=decoder,encoder,kv` measures 8 bits. Small 24B needs `--option tensor_parallel_size=2`. voxbatch must be
installed as a package, or vLLM does not find the plugin. On a machine without a GPU everything runs as a rehearsal,
with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from shared import RATE, fed, measured_lines, print_results, tell, watched

LENGTHS = {"30": (30.0, 30.0), "20-35": (20.0, 35.0), "2-35": (2.0, 35.0)}
"""Range of the seconds of chunks, evenly distributed, by name."""
DUMMY = {"load_format": "dummy", "watch": "false", "ignore_eos": "true", "delay_ms": "0"}
PLUGIN, WITHOUT = {"prefill_encoder": "true"}, {"prefill_encoder": "false"}
STOCK = {**WITHOUT, "lift_encoder_cache": "false"}
SMALL = {"gpu_memory_gb": "22.94"}
"""Memory limit of the default on an L4 of 24.15 GB; vLLM plans with 21.1 GB of it."""
EXACT = {"dtype": "float32", "enforce_eager": "true", "max_num_seqs": "64", "max_num_batched_tokens": "4096"}
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "plugin": PLUGIN,
    "without plugin": WITHOUT,
    "stock": {**STOCK, "max_num_seqs": "128", "max_num_batched_tokens": "65536"},
    "plugin, L4 memory": {**PLUGIN, **SMALL},
    "without plugin, L4 memory": {**WITHOUT, **SMALL},
    "stock, L4 memory": {**STOCK, **SMALL, "max_num_seqs": "64", "max_num_batched_tokens": "0"},
    "plugin, float32": {**PLUGIN, **EXACT},
    "stock, float32": {**STOCK, **EXACT},
}
"""Options by configuration. Names contain no quotes: PyTorch's compiler copies the arguments of --only unchanged into
the Python that it generates."""
OF_WINDOWS = {
    "stock": {"max_num_seqs": "1024", "max_num_batched_tokens": "16384"},
    "stock, L4 memory": {"max_num_seqs": "256", "max_num_batched_tokens": "8192"},
}
"""Other options for the models that take windows: those of vLLM's LLM class (engine/arg_utils.py), for an H200 and for
an L4."""


def sounds(count: int, lengths: str, longest: int) -> list[np.ndarray]:
    """Return `count` pieces of noise, float32, of at most `longest` samples."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(RATE * 36).astype(np.float32) * 0.1
    return [noise[: min(longest, int(s * RATE))] for s in rng.uniform(*LENGTHS[lengths], count)]


def chunks(samples: Sequence[np.ndarray]) -> list[Any]:
    """Return a chunk for each piece of sound."""
    from voxbatch.records import Chunk, Span

    return [Chunk(index, 0, each, Span(0, len(each), 0, len(each))) for index, each in enumerate(samples)]


def created(model: str, options: dict[str, str]) -> tuple[Any, bool]:
    """Return the engine, and whether its model is Voxtral Realtime."""
    from voxbatch.engines import create
    from voxbatch.vllm.engine.model import REALTIME, locate

    is_realtime = locate(model, None).family == REALTIME
    name, extra = options["name"], {key: value for key, value in options.items() if key != "name"}
    given = {**DUMMY, **CONFIGURATIONS[name], **({} if is_realtime else OF_WINDOWS.get(name, {})), **extra}
    return create("vllm", model, given), is_realtime


# -- speed -------------------------------------------------------------------------------------------------------------


class FixedText:
    """A family whose requests all get the same number of text tokens.

    Args:
        family: the family of the model.
        tokens: number of text tokens.
        lang: language of all pieces; None leaves them as they are.
    """

    def __init__(self, family: Any, tokens: int, lang: str | None):
        self._family, self._tokens, self._lang = family, tokens, lang

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def request(self, piece: Any) -> Any:
        """Return the family's request with the fixed number of tokens."""
        return replace(self._family.request(self._in_language(piece)), max_tokens=self._tokens, ignore_eos=True)

    def read(self, piece: Any, *tokens: Any) -> Any:
        """Return the family's text."""
        return self._family.read(self._in_language(piece), *tokens)

    def _in_language(self, piece: Any) -> Any:
        return replace(piece, lang=self._lang) if self._lang else piece


def speed(given: argparse.Namespace, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Measure --speed."""
    from voxbatch.vllm.engine.model import INSTRUCT

    engine, is_realtime = created(given.model, options)
    if not is_realtime:
        lang = None if engine._model.family == INSTRUCT else "en"
        engine._family = FixedText(engine._family, given.text_tokens, lang)
    requests, longest = engine.spec.concurrency, engine.spec.max_chunk_samples
    began = time.monotonic()
    run(engine, sounds(requests + 8, "2-35", longest))  # compiles, captures graphs and allocates
    yield {"first_run_s": round(time.monotonic() - began, 1), "described": engine._process.describe()}
    names = given.lengths or (list(LENGTHS) if is_realtime else ["30"])
    for lengths, rounds in zip(names, chain(given.rounds, repeat(given.rounds[-1])), strict=False):
        samples = sounds(max(8, int(requests * rounds)), lengths, longest)
        runs = list[dict[str, float]]()
        for _ in range(given.repeats):
            with watched() as gpu:
                figures = run(engine, samples)
            runs.append({**figures, **gpu})
            # yield at once: a time limit then loses no finished run
            yield {"lengths": lengths, "repeat": len(runs), **runs[-1]}
        yield {
            "lengths": lengths, **{name: median(figures[name] for figures in runs) for name in runs[0]},
            "rtfx_by_repeat": [figures["rtfx"] for figures in runs], "chunks": len(samples), "requests": requests,
        }  # fmt: skip


def run(engine: Any, samples: list[np.ndarray]) -> dict[str, float]:
    """Transcribe pieces of sound, and return the figures."""
    from voxbatch.records import Hypothesis

    began, cpu = time.monotonic(), time.process_time()
    finishes = [
        (when, len(samples[result.item]) / RATE)
        for when, result in fed(engine, chunks(samples))
        if isinstance(result, Hypothesis)
    ]
    quarter, wall = len(finishes) // 4, finishes[-1][0] - began
    middle = finishes[quarter : 3 * quarter + 1]
    span = middle[-1][0] - middle[0][0]
    return {
        "rtfx": round(sum(seconds for _, seconds in finishes) / wall, 1),
        "steady": round(sum(seconds for _, seconds in middle[1:]) / span, 1) if span else 0.0,
        "wall_s": round(wall, 2),
        "feeding_cpu": round((time.process_time() - cpu) / wall, 2),
    }


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


def tokens(given: argparse.Namespace, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Measure --tokens: the tokens of one engine, in company and alone."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    weigh_dummies()
    engine, _ = created(given.model, options)
    longest_s = engine.spec.max_chunk_samples / RATE
    lengths = np.random.default_rng(0).permutation(np.linspace(2, 34, given.chunks))
    samples = [babble(index, min(seconds, longest_s)) for index, seconds in enumerate(lengths)]
    said, read = dict[int, list[int]](), engine._family.read

    def recorded(piece: Any, token_ids: list[int], *others: Any) -> Any:
        said[id(piece.samples)] = token_ids
        return read(piece, token_ids, *others)

    engine._family.read = recorded
    for how, batches in (("in company", [samples]), ("alone", [[each] for each in samples[: given.alone]])):
        texts = []
        for batch in batches:
            for _ in fed(engine, chunks(batch)):
                pass
            texts += [said[id(each)] for each in batch]
        yield {"how": how, **variety(texts), "tokens": texts, "described": engine._process.describe()}


def variety(texts: list[list[int]]) -> dict[str, Any]:
    """Return how much the tokens vary, because tokens that do not vary prove nothing."""
    every = [token for text in texts for token in text]
    repeated = [a == b for text in texts for a, b in pairwise(text)]
    return {
        "positions": len(every), "distinct_tokens": len(set(every)),
        "repeated": round(float(np.mean(repeated)), 4) if repeated else 0.0,
    }  # fmt: skip


def weigh_dummies() -> None:
    """Make vLLM's loader of dummy weights set weights as a trained model might have them, the same for parameters of
    the same name: a matrix keeps the size of its input, norms leave it unchanged, and the audio determines the output.

    vLLM's own dummy weights are within a thousandth, and the same numbers in every matrix of a shape: a stack of such
    layers produces one token for all audio. The weights are changed here before anything is derived from them.
    """
    import torch
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def weigh(_: Any, model: Any, model_config: Any) -> None:
        for name, weight in model.named_parameters():
            weight.data.copy_(_made(name, weight))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # otherwise vLLM counts the temporary tensors

    DummyModelLoader.load_weights = weigh


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


def babble(seed: int, seconds: float) -> np.ndarray:
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


def compared(texts: dict[str, list[list[int]]], done: int) -> Iterator[dict[str, Any]]:
    """Yield the share of positions with equal tokens of each two results, except two that are both among the first
    `done`."""
    for (i, one), (j, other) in combinations(enumerate(texts), 2):
        if max(i, j) < done:
            continue
        pairs = list(zip(texts[one], texts[other], strict=False))
        same = [a == b for left, right in pairs for a, b in zip(left, right, strict=False)]
        yield {
            "of": [one, other], "chunks": len(pairs), "positions": len(same),
            "equal_share": round(float(np.mean(same)), 4),
        }  # fmt: skip


# -- the whole ---------------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"speed": speed, "tokens": tokens}
USUAL = {"speed": ("plugin", "stock", "plugin, L4 memory", "stock, L4 memory"), "tokens": ("plugin", "stock")}
"""Default configurations of each measure."""


def main() -> None:
    given = parsed()
    if given.one:
        print_results(MEASURES[given.measure](given, json.loads(given.one)))
    texts: dict[str, list[list[int]]] = {}
    for name in given.only or USUAL[given.measure]:
        options, done = {"name": name, **dict(pair.split("=", 1) for pair in given.option)}, len(texts)
        for line in measured_lines(__file__, json.dumps(options)):
            if "tokens" in line:
                texts[f"{name} {line['how']}"] = line.pop("tokens")
            tell({"measure": given.measure, "name": name, "model": Path(given.model).name, **line}, given.out)
        for line in compared(texts, done):
            tell({"measure": "tokens", **line}, given.out)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    for measure in MEASURES:
        parser.add_argument(f"--{measure}", dest="measure", action="store_const", const=measure, default="speed")
    parser.add_argument("--only", nargs="*", choices=CONFIGURATIONS, help="names of configurations")
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, help="default: all of them for Voxtral Realtime")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds", type=float, nargs="+", default=[4.0], help="chunks of a run, by requests at a time, for each length"
    )
    parser.add_argument("--text-tokens", type=int, default=100, help="of each window")
    parser.add_argument("--chunks", type=int, default=64, help="of --tokens")
    parser.add_argument("--alone", type=int, default=8, help="of these, decoded alone")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the lines there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
