"""Measure the engine for Parakeet alone, beside transformers' own `generate` on the same clips.

    python benchmarks/gpu/full_size.py --shape parakeet-tdt-0.6b-v3 MODEL_DIR
    python benchmarks/gpu/bench_transducers.py MODEL_DIR [--hours H] [--lengths 20-35 2-35] [--out FILE]

Clips of swelling noise, whose lengths are uniform in each range, go into the engine as chunks from memory, so that
nothing is decoded. `compiled` is the engine with its encoder compiled before the clock starts, `eager` without.
`transformers` is `ParakeetForTDT.generate` over batches of 256 clips in the order of the manifest, padded to the
longest; the time of its extractor, on the CPU, is left out. It gets a tenth of the hours. Weights are random: texts do
not matter.

`precision` measures no speed: it is the share of words that two runs over 600 clips have in common, for float32 and
bfloat16, in the same order and in another one, in which each clip has other company.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from shared import RATE, fed, measured_lines, print_results, swelling_noise, tell, watched

CONFIGURATIONS = ("transformers", "eager", "compiled", "precision")
BATCH = 256
DISTINCT = 200
"""Different clips; further ones are the same samples."""


def clips(span: str, hours: float) -> list[np.ndarray]:
    """Return clips of at least so many hours, with lengths in a range such as "2-35" seconds."""
    shortest, longest = (float(part) for part in span.split("-"))
    random = np.random.default_rng(7)
    noise = swelling_noise(int(60 * RATE), 1, 2.1).astype(np.float32)
    distinct = []
    for _ in range(DISTINCT):
        length, first = round(random.uniform(shortest, longest) * RATE), random.integers(0, 20 * RATE)
        distinct.append(noise[first : first + length])
    found: list[np.ndarray] = []
    total = 0
    while total < hours * 3600 * RATE:
        found.append(distinct[len(found) % DISTINCT])
        total += len(found[-1])
    return found


def by_engine(options: argparse.Namespace, compiles: bool) -> Iterator[dict[str, Any]]:
    from voxbatch.records import Chunk, Hypothesis, Span
    from voxbatch.transducers import TransducersEngine

    given_options = dict(option.split("=", 1) for option in options.engine_option)
    after = {"compile_after_s": "0" if compiles else "1e9"}
    engine = TransducersEngine(options.model, {**given_options, **after})
    for span in options.lengths:
        for hours in (min(2.0, options.hours), options.hours):  # the first round compiles
            samples = clips(span, hours)
            chunks = [Chunk(i, 0, clip, Span(0, len(clip), 0, len(clip))) for i, clip in enumerate(samples)]
            audio_s = sum(map(len, samples)) / RATE
            words, firsts, cpu, began = 0, list[float](), time.process_time(), time.monotonic()
            with watched() as figures:
                for at, result in fed(engine, chunks):
                    if isinstance(result, Hypothesis):
                        words += len(result.words)
                        firsts.append(at)
            wall = time.monotonic() - began
            cpu = time.process_time() - cpu
        yield {
            "configuration": "compiled" if compiles else "eager", "lengths": span, "hours": round(audio_s / 3600, 2),
            "clips": len(chunks), "wall_s": round(wall, 2), "rtfx": round(audio_s / wall),
            "first_s": round(firsts[0] - began, 2), "words_a_second_of_audio": round(words / audio_s, 2),
            "cpu_ms_a_clip": round(1e3 * cpu / len(chunks), 2),
            "joules_an_audio_hour": round(figures.get("watts", 0) * wall / audio_s * 3600), **figures,
        }  # fmt: skip


def by_transformers(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import torch
    import transformers

    model = transformers.ParakeetForTDT.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    extractor = transformers.ParakeetFeatureExtractor(feature_size=128)
    blank = model.config.blank_token_id
    model.generation_config.decoder_start_token_id = blank
    model.generation_config.suppress_tokens = list(range(blank + 1, blank + 6))
    for span in options.lengths:
        samples = clips(span, options.hours / 10)
        batches = [samples[i : i + BATCH] for i in range(0, len(samples), BATCH)]
        wall = 0.0
        for number, batch in enumerate(batches[:1] + batches):
            inputs = extractor(batch, sampling_rate=RATE, return_tensors="pt")
            inputs = {name: value.cuda() for name, value in inputs.items()}
            inputs["input_features"] = inputs["input_features"].bfloat16()
            torch.cuda.synchronize()
            began = time.monotonic()
            with torch.inference_mode():
                output = model.generate(**inputs, max_new_tokens=2000)
            torch.cuda.synchronize()
            if number:
                wall += time.monotonic() - began
        audio_s = sum(map(len, samples)) / RATE
        yield {"configuration": "transformers", "lengths": span, "clips": len(samples), "wall_s": round(wall, 2),
               "rtfx": round(audio_s / wall), "steps": output.sequences.shape[1]}  # fmt: skip


def precision(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield how much of the texts two runs have in common."""
    from rapidfuzz.distance import Indel

    from voxbatch.records import Chunk, Hypothesis, Span
    from voxbatch.transducers import TransducersEngine

    samples = clips("2-35", 3.0)[:DISTINCT] * 3
    texts: dict[tuple[str, bool], list[list[str]]] = {}
    for dtype in ("float32", "bfloat16"):
        engine = TransducersEngine(options.model, {"dtype": dtype, "compile_after_s": "1e9"})
        for shuffled in (False, True):
            order = np.random.default_rng(3).permutation(len(samples)) if shuffled else np.arange(len(samples))
            chunks = [Chunk(int(i), 0, samples[i], Span(0, len(samples[i]), 0, len(samples[i]))) for i in order]
            found = {
                result.item: result.text.split() for _, result in fed(engine, chunks) if isinstance(result, Hypothesis)
            }
            texts[dtype, shuffled] = [found[i] for i in range(len(samples))]
        engine.close()
    for one, other in ((("float32", False), ("float32", True)), (("bfloat16", False), ("bfloat16", True)),
                       (("float32", False), ("bfloat16", False))):  # fmt: skip
        pairs = list(zip(texts[one], texts[other], strict=True))
        words = sum(len(a) + len(b) for a, b in pairs)
        yield {
            "configuration": "precision", "of": [f"{dtype}{', shuffled' * order}" for dtype, order in (one, other)],
            "clips": len(pairs), "words": words // 2, "equal_clips": sum(a == b for a, b in pairs),
            "common_words": round(1 - sum(Indel.distance(a, b) for a, b in pairs) / words, 5),
        }  # fmt: skip


def one(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.one == "transformers":
        yield from by_transformers(options)
    elif options.one == "precision":
        yield from precision(options)
    else:
        yield from by_engine(options, options.one == "compiled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("--hours", type=float, default=50.0)
    parser.add_argument("--lengths", nargs="+", default=["20-35", "2-35"])
    parser.add_argument("--only", nargs="+", default=CONFIGURATIONS[:3], choices=CONFIGURATIONS)
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print_results(one(given))
    print(f"{os.cpu_count()} cores", flush=True)
    for configuration in given.only:
        for line in measured_lines(__file__, configuration):
            tell(line, given.out)
