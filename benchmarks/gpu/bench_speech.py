"""Measure Voxtral TTS on one GPU: the engine with 1, 16 and 32 clients, a batch, and the command.

    python benchmarks/gpu/bench_speech.py MODEL_DIR [--only NAME …] [--option NAME=VALUE …] [--out FILE]

MODEL_DIR comes from `full_size.py --shape voxtral-4b-tts`. The module `fixed_ends` gives each speech its length. Each
part runs in its own process and prints JSON lines as it goes:

eager, graphs  1, 16 and 32 clients, each of which asks for one speech of 500 characters after the other: seconds until
               a speech is there as a whole, the real-time factor, and the share of speeches that were slower than real
               time (the wait rate). `graphs` then speaks a batch of pieces of CHARACTERS characters, with as many
               requests as the engine takes.
command        `voxbatch speak` over TEXTS texts.

voxbatch must be installed as a package. On a machine without a GPU everything is a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import bench_run
import fixed_ends
import numpy as np
from shared import fed, measured_lines, print_results, tell, watched

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "graphs": {"max_num_seqs": "512"},
    "eager": {"max_num_seqs": "32", "enforce_eager": "true"},
    "command": {"max_num_seqs": "512"},
}
CLIENTS = (1, 16, 32)
CLIENT_CHARACTERS = 500
CHARACTERS = (120, 280)
"""Range of the characters of a piece: voxbatch divides texts into pieces of about 15 s."""
WORDS = (
    "the river runs through a small town where people meet each morning before work and talk about weather music "
    "their children old friends or what they will cook tonight while boats carry stone wood grain from distant hills "
    "toward harbour markets under bright summer sky"
)
SILENCE = np.zeros(0, np.float32)


def texts(count: int, shortest: int, longest: int, seed: int) -> list[str]:
    """Return different texts of about `shortest` to `longest` characters."""
    choice, known, found = random.Random(seed), WORDS.split(), list[str]()
    for _ in range(count):
        length, words = choice.randint(shortest, longest), list[str]()
        while sum(map(len, words)) + len(words) < length:
            words.append(choice.choice(known))
        found.append(" ".join(words).capitalize() + ".")
    return found


class Speaker:
    """A loaded engine."""

    def __init__(self, model: str, options: dict[str, str]):
        from voxbatch.engines import create
        from voxbatch.records import Chunk, Span, TextPiece

        began = time.monotonic()
        engine: Any = create("vllm", model, {"task": "speak", **options})
        self._family, self._voice = engine._family, engine.spec.voices[0]
        self.requests: int = engine.spec.concurrency
        for _ in fed(engine, [Chunk(0, 0, SILENCE, Span(0, 0, 0, 0), piece=TextPiece("Yes.", self._voice, 10**9))]):
            pass
        self.process: Any = engine._process
        self.ready_s = round(time.monotonic() - began, 1)

    def speak(self, given: Sequence[str], clients: int, first_seed: int) -> dict[str, Any]:
        """Speak texts, `clients` at a time, and return the figures."""
        from voxbatch.engines.pieces import SpokenPiece
        from voxbatch.records import TextPiece

        pieces = [
            SpokenPiece(SILENCE, spoken=TextPiece(text, self._voice, first_seed + number))
            for number, text in enumerate(given)
        ]
        waiting = deque(enumerate(pieces))
        started, seconds, waits = dict[str, float](), list[float](), list[float]()
        with watched() as figures:
            began = time.monotonic()
            while waiting or started:
                while waiting and len(started) < clients:
                    number, piece = waiting.popleft()
                    started[str(first_seed + number)] = time.monotonic()
                    request = self._family.request(piece)
                    self.process.add(str(first_seed + number), request, dict(request.prompt))
                for finished in self.process.step():
                    waits.append(time.monotonic() - started.pop(finished.id))
                    assert finished.samples is not None
                    seconds.append(len(finished.samples) / self._family.sampling_rate)
                    assert seconds[-1], f"no sound: {finished.finish_reason}"
            wall = time.monotonic() - began
        factors = [wait / audio for wait, audio in zip(waits, seconds, strict=True)]
        characters = sum(map(len, given))
        return {
            "clients": clients, "speeches": len(pieces), "characters": characters, "audio_s": round(sum(seconds)),
            "wall_s": round(wall, 2), "latency_p50_s": round(median(waits), 3), "rtf_p50": round(median(factors), 4),
            "frame_p50_ms": round(80 * median(factors), 2),
            "wait_rate": round(sum(factor > 1 for factor in factors) / len(factors), 3),
            "characters_per_s": round(characters / wall), "audio_s_per_s": round(sum(seconds) / wall, 1), **figures,
        }  # fmt: skip


def engine(given: argparse.Namespace, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of the clients, and those of the batch."""
    speaker = Speaker(given.model, options)
    yield {"ready_s": speaker.ready_s, "described": speaker.process.describe()}
    clients = [number for number in given.clients if number <= speaker.requests]
    speaker.speak(texts(max(clients), 20, 60, 0), max(clients), 10**9)  # kernels are loaded now
    for number in clients:
        some = texts(number * given.rounds, CLIENT_CHARACTERS, CLIENT_CHARACTERS, number)
        yield speaker.speak(some, number, 10_000 * number)
    if given.one != "eager":
        count = int(given.batch_rounds * speaker.requests)
        speaker.speak(texts(speaker.requests, 40, 80, 1), speaker.requests, 2 * 10**9)
        waiting = speaker.requests + max(1, speaker.requests // 8)  # as many as the request loop holds ahead
        yield {"batch": True, **speaker.speak(texts(count, *CHARACTERS, seed=2), waiting, 3 * 10**9)}
    yield {"end": speaker.process.describe()}
    speaker.process.close()


# -- the command -------------------------------------------------------------------------------------------------------


def command(given: argparse.Namespace, options: dict[str, str]) -> dict[str, Any]:
    """Return the figures of `voxbatch speak`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "texts.jsonl")
        some = texts(given.texts, 40, CHARACTERS[1], 3)
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
        with watched() as figures:
            ran = bench_run.whole(source, given.model, options, 0, None, "--accept-licence", verb="speak")
        rate = {}
        if "error" not in ran:
            rate = {"characters_per_s": round(sum(map(len, some)) / ran["engine_s"])}
        return {"texts": len(some), "characters": sum(map(len, some)), **rate, **ran, **figures}


def main() -> None:
    given = parsed()
    extra = dict(pair.split("=", 1) for pair in given.option)
    if given.one:
        print_results(engine(given, {**CONFIGURATIONS[given.one], **extra}))
    with tempfile.TemporaryDirectory() as temporary:
        _install(Path(temporary))
        for name in given.only:
            lines = measured_lines(__file__, name)
            if name == "command":
                lines = iter([command(given, {**CONFIGURATIONS[name], **extra})])
            for line in lines:
                tell({"name": name, **line}, given.out)


def _install(folder: Path) -> None:
    """Let vLLM's processes find `fixed_ends`."""
    info = folder / "bench_speech-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-speech\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfixed_ends = fixed_ends:register\n")
    paths = [os.environ.get("PYTHONPATH", ""), str(folder), str(Path(__file__).parent)]
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), fixed_ends.SWITCH: "1"}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS))
    parser.add_argument("--rounds", type=int, default=1, help="speeches of each client")
    parser.add_argument("--batch-rounds", type=float, default=4.0, help="speeches of the batch, by requests at a time")
    parser.add_argument("--texts", type=int, default=2_000, help="of the command")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
