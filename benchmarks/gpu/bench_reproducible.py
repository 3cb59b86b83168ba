"""Compare the bits of the results of the same clips in other company, and time them.

    python benchmarks/gpu/full_size.py --shape SHAPE MODEL_DIR
    python benchmarks/gpu/bench_reproducible.py MODEL_DIR --run default= --run mode=reproducible=true [--out FILE]
    python benchmarks/gpu/bench_reproducible.py MODEL_DIR --run graphs=reproducible=true,cudagraph_mode=FULL_DECODE_ONLY

MODEL_DIR is any shape of full_size.py, or a model with weights and `--option load_format=auto`. Each --run is a name
and the engine options of one process, joined with commas (a + stands for a comma within a value); --option holds for
all. What the engine refuses with reproducible=true is measured all the same: this script switches that check off. One
more option belongs to this script: tiles=own leaves FlashAttention its tiles (patches/flash_attn_varlen_func).

The last line of JSON of a run (--out keeps those before it, too) has, for CLIPS clips of made-up sound (or texts, for a
model that speaks):

twice  the clips twice in one batch; `again` is the same batch again; `mixed` is another order with half the company;
       `alone` is one clip at a time; `beside_hints` are the clips in a batch whose every third one has a prompt of more
       than 64 tokens (for Whisper), and `hints_alone` are those with a prompt, there and alone; `many` is --many clips
       in one batch. Each gives the number of equal results (`tokens`), of those whose probabilities have the same bits
       too (`bits`), of all (`of`), and the share of equal positions.
s      seconds for the batch of both copies, --repeats times; `median_s`; the GPU's mean watts and its peak memory.

A transducer gives tokens, times and probabilities; a model that speaks gives samples. On a machine without a GPU
everything runs as a rehearsal, with a tiny model. vLLM runs in the process of each run, which a time limit ends.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import fixed_ends
import numpy as np
from bench_plugin import DUMMY, FixedText, babble, variety, weigh_dummies
from bench_speech import SILENCE, texts
from shared import RATE, fed, measured_lines, print_results, watched

CLIPS, ALONE = 48, 8
SHORTEST_S, LONGEST_S = 2.0, 34.0
HINTED = 3
"""Every third clip has hints."""
HINT = " ".join(f"Term{number}" for number in range(60))
"""A prompt of more than 64 tokens, from which FlashAttention 3 takes other tiles (hopper/tile_size.h)."""
CHARACTERS = (40, 200)
"""Range of the characters of a text."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a clip."""

    tokens: list[int]
    bits: bytes
    """Everything that must be equal: probabilities, times or samples."""


# -- engines -----------------------------------------------------------------------------------------------------------


class Transcriber:
    """An engine of vLLM that transcribes. A clip is its samples and its hints, or None."""

    def __init__(self, given: argparse.Namespace, options: dict[str, str]):
        from voxbatch.engines import create
        from voxbatch.vllm.engine.model import INSTRUCT, REALTIME

        weigh_dummies()
        self.engine: Any = create("vllm", given.model, {**DUMMY, **options})
        family = self.engine._model.family
        if family != REALTIME:
            self.engine._family = FixedText(
                self.engine._family, given.text_tokens, None if family == INSTRUCT else "en"
            )
        self._outputs: dict[int, Output] = {}
        self._read = self.engine._family.read
        self.engine._family.read = self._kept

    def _kept(self, piece: Any, token_ids: list[int], reason: str, scores: Any = None) -> Any:
        columns = () if scores is None else (scores.logprobs, scores.entropies)
        bits = b"".join(np.asarray(column).tobytes() for column in columns if column is not None)
        self._outputs[id(piece.samples)] = Output(list(token_ids), bits)
        return self._read(piece, token_ids, reason, scores)

    @property
    def takes_hints(self) -> bool:
        return bool(self.engine.spec.takes_hints)

    def clips(self) -> list[Any]:
        """Return the clips."""
        longest_s = min(LONGEST_S, self.engine.spec.max_chunk_samples / RATE)
        lengths = np.random.default_rng(0).permutation(np.linspace(SHORTEST_S, LONGEST_S, CLIPS))
        return [(babble(seed, min(seconds, longest_s)), None) for seed, seconds in enumerate(lengths)]

    def outputs(self, clips: Sequence[Any]) -> list[Output]:
        """Return the results of clips that are offered together."""
        from voxbatch.records import Chunk, Span

        samples = [audio.copy() for audio, _ in clips]  # each object is one clip
        chunks = [
            Chunk(number, 0, audio, Span(0, len(audio), 0, len(audio)), hints=hints)
            for number, (audio, (_, hints)) in enumerate(zip(samples, clips, strict=True))
        ]
        for _ in fed(self.engine, chunks):
            pass
        return [self._outputs[id(audio)] for audio in samples]

    def described(self) -> str:
        return str(self.engine._process.describe())


class Transducer(Transcriber):
    """The engine of Parakeet."""

    def __init__(self, given: argparse.Namespace, options: dict[str, str]):
        from voxbatch.transducers import TransducersEngine

        self.engine: Any = TransducersEngine(given.model, options)
        self._outputs: dict[int, Output] = {}
        self._hypothesis = self.engine._hypothesis
        self.engine._hypothesis = self._kept_tokens

    def _kept_tokens(self, chunk: Any, tokens: Any) -> Any:
        columns = (tokens.ids, tokens.starts, tokens.ends, tokens.probabilities)
        bits = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
        self._outputs[id(chunk.samples)] = Output(tokens.ids.tolist(), bits)
        return self._hypothesis(chunk, tokens)

    def described(self) -> str:
        return str(self.engine.spec.decoding)


class Speaker:
    """An engine of vLLM that speaks. A clip is its text and its seed."""

    takes_hints = False

    def __init__(self, given: argparse.Namespace, options: dict[str, str]):
        from voxbatch.engines import create

        os.environ[fixed_ends.SWITCH] = "1"
        fixed_ends.register()
        self.engine: Any = create("vllm", given.model, {"task": "speak", **options})

    def clips(self) -> list[Any]:
        """Return the texts."""
        return list(zip(texts(CLIPS, *CHARACTERS, seed=0), range(CLIPS), strict=True))

    def outputs(self, clips: Sequence[Any]) -> list[Output]:
        """Return the speeches of texts that are offered together. A token is a sample."""
        from voxbatch.records import Chunk, Span, Speech, TextPiece

        voice = self.engine.spec.voices[0]
        chunks = [
            Chunk(number, 0, SILENCE, Span(0, 0, 0, 0), piece=TextPiece(text, voice, seed))
            for number, (text, seed) in enumerate(clips)
        ]
        speeches = {result.item: result.samples for _, result in fed(self.engine, chunks) if isinstance(result, Speech)}
        return [
            Output((speeches[number] * 2**15).astype(int).tolist(), speeches[number].tobytes())
            for number in range(len(clips))
        ]

    def described(self) -> str:
        return str(self.engine._process.describe())


def loaded(given: argparse.Namespace, options: dict[str, str]) -> Transcriber | Speaker:
    """Return the engine of the model, without the check of reproducible runs."""
    from voxbatch import transducers
    from voxbatch.vllm.engine import checks, environment
    from voxbatch.vllm.engine.model import SPEECH, locate
    from voxbatch.vllm.plugin.patches import flash_attn_varlen_func

    is_reproducible, tiles = options.get("reproducible") == "true", options.pop("tiles", "")
    if transducers.model.recognises(Path(given.model)):
        return Transducer(given, options)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    checks._why_not_reproducible = lambda *_: ""
    environment.set_environment(plugin=False, reproducible=is_reproducible)  # before anything imports vLLM
    if tiles == "own":
        flash_attn_varlen_func.LONG_QUERY = 0
    is_speech = locate(given.model, None).family == SPEECH
    return (Speaker if is_speech else Transcriber)(given, options)


# -- measures ----------------------------------------------------------------------------------------------------------


def compared(results: Sequence[Output], others: Sequence[Output]) -> dict[str, Any]:
    """Return how many results are equal."""
    pairs = list(zip(results, others, strict=True))
    positions = [a == b for one, other in pairs for a, b in zip(one.tokens, other.tokens, strict=False)]
    return {
        "tokens": sum(one.tokens == other.tokens for one, other in pairs),
        "bits": sum(one == other for one, other in pairs), "of": len(pairs),
        "equal_positions": round(float(np.mean(positions)), 4) if positions else 0.0,
    }  # fmt: skip


def measured(given: argparse.Namespace, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the line of a run, each time with more in it."""
    began = time.monotonic()
    engine = loaded(given, options)
    clips = engine.clips()[: given.clips]
    both = engine.outputs([*clips, *clips])
    count = len(clips)
    wanted = both[:count]
    line: dict[str, Any] = {
        "clips": count, "start_and_first_s": round(time.monotonic() - began, 1), "described": engine.described(),
        "variety": variety([output.tokens for output in wanted]), "has_bits": all(output.bits for output in wanted),
        "twice": compared(wanted, both[count:]),
    }  # fmt: skip
    yield line
    seconds = list[float]()
    with watched() as gpu:
        for _ in range(given.repeats):
            began = time.monotonic()
            again = engine.outputs([*clips, *clips])
            seconds.append(round(time.monotonic() - began, 2))
    line |= {"again": compared(wanted, again[:count]), "s": seconds, "median_s": round(median(seconds), 2), **gpu}
    yield line
    order = np.random.default_rng(1).permutation(count)
    mixed = engine.outputs([clips[number] for number in order])
    line |= {"mixed": compared([wanted[number] for number in order], mixed)}
    alone = [engine.outputs([clip])[0] for clip in clips[:ALONE]]
    line |= {"alone": compared(wanted[:ALONE], alone)}
    yield line
    if engine.takes_hints and given.hints:
        yield line | (hinted := hints_measured(engine, clips, wanted))
        line |= hinted
    if given.many:
        many = [clips[number % count] for number in range(given.many)]
        began = time.monotonic()
        results = engine.outputs(many)
        took = round(time.monotonic() - began, 2)
        line |= {"many": compared([wanted[number % count] for number in range(given.many)], results), "many_s": took}
    yield {**line, "complete": True}


def hints_measured(engine: Transcriber | Speaker, clips: Sequence[Any], wanted: Sequence[Output]) -> dict[str, Any]:
    """Return the comparisons of clips with hints and of those without beside them."""
    from voxbatch.records import Hints

    hints = Hints(prompt=HINT)
    with_hints = [(audio, None if number % HINTED else hints) for number, (audio, _) in enumerate(clips)]
    results = engine.outputs(with_hints)
    without = [number for number in range(len(clips)) if number % HINTED]
    chosen = [number for number in range(len(clips)) if not number % HINTED][:ALONE]
    alone = [engine.outputs([with_hints[number]])[0] for number in chosen]
    return {
        "beside_hints": compared([wanted[number] for number in without], [results[number] for number in without]),
        "hints_alone": compared([results[number] for number in chosen], alone),
    }


# -- the whole ---------------------------------------------------------------------------------------------------------


def options_of(given: argparse.Namespace, run: str) -> dict[str, str]:
    """Return the engine options of a run: "mode=reproducible=true,fp8=kv+encoder" has two."""
    pairs = [*given.option, *filter(None, run.partition("=")[2].split(","))]
    return {name: value.replace("+", ",") for name, value in (pair.split("=", 1) for pair in pairs)}


def main() -> None:
    """Measure each run in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()), metavar="MODEL_DIR")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=OPTIONS")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--clips", type=int, default=CLIPS, help=f"at most {CLIPS}")
    parser.add_argument("--repeats", type=int, default=4, help="timed batches")
    parser.add_argument("--many", type=int, default=0, help="clips of one large batch, e.g. 768")
    parser.add_argument("--no-hints", dest="hints", action="store_false")
    parser.add_argument("--text-tokens", type=int, default=100, help="of each window, but for Realtime")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds of a run")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print_results(measured(given, options_of(given, given.one)))
    for run in given.run or ["default=", "reproducible=reproducible=true"]:
        line: dict[str, Any] = {"model": Path(given.model).name, "run": run}
        for further in measured_lines(__file__, run, given.timeout):
            line |= further
            if given.out:  # at once: a call that is cut off loses only what was not measured
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        print("RESULT", json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
