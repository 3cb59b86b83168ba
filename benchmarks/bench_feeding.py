"""Measure the CPU time that the main process spends on each chunk while an engine in a child process answers at once.

The recordings are 16 kHz WAV files of noise with the loudness and the pauses of speech: clips of one chunk, and talks
of half an hour. The engine gives 2.5 words a second with times and confidences, as a fast model on a GPU does. All
threads of the main process share one interpreter lock, so their CPU time on a chunk limits the speed of a run, however
fast the engine is. The speed of this machine, its cores and the engine's own work do not count.

On a machine with few cores, the decoders hold the main process back, and its threads spend more time on falling asleep
and waking up than on their work. `--clip-s 4` gives the words of 28 s to clips that the decoders finish early, so that
the threads have work, as they do at the limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import ROOT, Bars, machine, parser, write_manifest

from voxbatch import engines
from voxbatch.engines import EngineSpec, Feed, Registration
from voxbatch.records import SAMPLING_RATE, Chunk, Hypothesis, Word
from voxbatch.storage import DEFAULT_STORES, Stores

MAX_CPU_MS = 1.0
"""Highest CPU time of the main process for a chunk of CHUNK_S. One interpreter lock then takes 28,000 × real time."""
CHUNK_S, TALK_S = 28.0, 1800.0
WORDS_PER_S = "FEEDING_WORDS_PER_S"
"""Environment variable that tells the engine the pace of the words."""
WORDS = 70
"""Number of words in a chunk of CHUNK_S."""
CONCURRENCY = 256
DIFFERENT_CLIPS = 16
VOCABULARY = ("the", "of", "and", "to", "speech", "was", "question", "international", "we", "morning", "understanding")


class InstantEngine:
    """An engine in a child process that gives made-up words at once; see `Engine` for the methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: Stores = DEFAULT_STORES):
        self.spec = EngineSpec(
            name="instant", model=model or "words", max_chunk_samples=30 * SAMPLING_RATE, concurrency=CONCURRENCY,
            word_times=True, confidence=True, own_process=True,
        )  # fmt: skip

    def stream(self, feed: Feed) -> Iterator[Hypothesis]:
        """Yield the words of each chunk."""
        while (chunk := feed.get()) is not None:
            words = tuple(_words(chunk))
            yield Hypothesis(chunk.item, chunk.index, "".join(word.text for word in words), words, language="en")

    def gpu_bytes(self) -> None:
        """Return None: there is no GPU."""

    def close(self) -> None:
        """Do nothing: there is no model."""


def _words(chunk: Chunk) -> Iterator[Word]:
    step = 1 / float(os.environ[WORDS_PER_S])
    for n in range(int(len(chunk.samples) / SAMPLING_RATE / step)):
        at = chunk.item * 7919 + chunk.index * 104_729 + n * n
        text = VOCABULARY[at % len(VOCABULARY)] + ("." if n % 12 == 11 else "")
        yield Word(f" {text}", round(n * step, 3), round((n + 0.8) * step, 3), round(0.8 + at % 200 / 1000, 3))


def speech_like(seconds: float, seed: int) -> np.ndarray:
    """Return noise with four syllables a second, and a pause of half a second after every four seconds."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * SAMPLING_RATE)) / SAMPLING_RATE
    envelope = (0.3 + 0.7 * np.sin(np.pi * 4 * time_s) ** 2) * (time_s % 4.5 < 4)
    return (rng.normal(0, 0.08, len(time_s)) * envelope + rng.normal(0, 1e-4, len(time_s))).astype(np.float32)


# ── the run, in a process of its own ──────────────────────────────────────────────────────────────────────────────────


def run_here(manifest: str, out: str) -> None:
    """Run voxbatch in this process. Print the CPU seconds of its threads and of its child processes."""
    from voxbatch.config import Config
    from voxbatch.display import progress_events
    from voxbatch.log import Log
    from voxbatch.process.child import ChildProcess
    from voxbatch.runner import run
    from voxbatch.runner.decode_thread import DecodeThread
    from voxbatch.runner.engine_thread import EngineThread
    from voxbatch.runner.pipeline import Pipeline

    engines.ENGINES["instant"] = engines._ALL["instant"] = Registration(class_path="bench_feeding:InstantEngine")
    cpu_s, end = Counter[str](), ChildProcess.end

    def timed(function: Callable[..., Any], name: str, clock: Callable[[], float]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = clock()
            try:
                return function(*arguments)
            finally:
                cpu_s[name] += clock() - began

        return call

    def timed_end(child: ChildProcess, patience_s: float = 0.0) -> list[str]:
        kind = "decoders" if type(child) is not ChildProcess else "engine"
        return timed(end, kind, _children_cpu_s)(child, patience_s)  # type: ignore[no-any-return]

    ChildProcess.end = timed_end  # type: ignore[method-assign]
    DecodeThread.run = timed(DecodeThread.run, "decode thread", time.thread_time)  # type: ignore[method-assign]
    EngineThread.run = timed(EngineThread.run, "engine thread", time.thread_time)  # type: ignore[method-assign]
    Pipeline.run = timed(timed(Pipeline.run, "pipeline", time.process_time), "main thread", time.thread_time)  # type: ignore[method-assign]
    config = Config(source=manifest, out=out, engine="instant", language="en")
    log = Log(quiet=True)
    with progress_events(log) as observe:
        result = run(config, log, observe)
    if result.progress.failed:
        sys.exit(f"{result.progress.failed} items failed")
    cpu_s["rest"] = time.process_time() - cpu_s["pipeline"]
    print(json.dumps(cpu_s))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ── the measurement ───────────────────────────────────────────────────────────────────────────────────────────────────


def write_recordings(folder: Path, clips: int, clip_s: float, talks: int) -> Path:
    """Write the recordings, of which many rows share a file, and return their manifest."""
    for number in range(min(clips, DIFFERENT_CLIPS)):
        soundfile.write(folder / f"clip-{number}.wav", speech_like(clip_s, number), SAMPLING_RATE)
    rows = [
        {"id": f"clip-{n}", "audio_filepath": f"clip-{n % DIFFERENT_CLIPS}.wav", "duration": clip_s}
        for n in range(clips)
    ]
    if talks:
        soundfile.write(folder / "talk.wav", speech_like(TALK_S, DIFFERENT_CLIPS), SAMPLING_RATE)
        rows += [{"id": f"talk-{n}", "audio_filepath": "talk.wav", "duration": TALK_S} for n in range(talks)]
    return write_manifest(folder / "rows.jsonl", rows)


def measure(folder: Path, turn: int, checkout: Path, words_per_s: float) -> tuple[dict[str, float], int, str]:
    """Return the CPU seconds of one run, the number of its words, and the checksum of its transcripts."""
    out = folder / f"out-{turn}"
    command = [sys.executable, __file__, "--run-here", str(folder / "rows.jsonl"), str(out)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(checkout), str(Path(__file__).parent)]),
        WORDS_PER_S: str(words_per_s),
    }
    cpu_s = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
    content = (out / "transcripts.jsonl").read_bytes().replace(bytes(folder), b"")
    return cpu_s, content.count(b'"word":'), hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--run-here", nargs=2, metavar=("MANIFEST", "OUT"), help=argparse.SUPPRESS)
    options.add_argument("--clips", type=int, default=1500)
    options.add_argument("--clip-s", type=float, default=CHUNK_S, help="seconds of a clip, which has 70 words")
    options.add_argument("--talks", type=int, default=4)
    options.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR", help="the voxbatch that is measured")
    options.add_argument("--times", type=int, default=3, help="number of runs, of which the median counts")
    given = options.parse_args()
    if given.run_here:
        run_here(*given.run_here)
        return
    bars = Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-feeding-") as name:
        write_recordings(Path(name), given.clips, given.clip_s, given.talks)
        runs = [measure(Path(name), turn, given.checkout, WORDS / given.clip_s) for turn in range(given.times)]
    _, words, checksum = runs[0]
    chunks = words / WORDS
    print(f"{given.clips} clips of {given.clip_s:g} s, {given.talks} talks of {TALK_S:g} s, {words:,} words")
    print(f"transcripts.jsonl: {checksum}")
    bars.holds("all runs give the same bytes", len({run[2] for run in runs}) == 1)
    cost_ms = {kind: statistics.median(run[0][kind] for run in runs) / chunks * 1000 for kind in runs[0][0]}
    print(f"CPU ms for {WORDS} words, median of {len(runs)} runs:")
    for kind, label in LABELS.items():
        print(f"    {label:<60} {cost_ms[kind]:7.3f}")
    speed = CHUNK_S * 1000 / cost_ms["pipeline"]
    print(f"one interpreter lock allows {speed:,.0f} × real time with chunks of {CHUNK_S:g} s")
    bars.at_most("main process while it transcribes, a chunk", cost_ms["pipeline"], MAX_CPU_MS, "ms")
    bars.leave()


LABELS = {
    "decode thread": "decode thread",
    "engine thread": "engine thread",
    "main thread": "main thread",
    "pipeline": "main process while it transcribes",
    "rest": "main process before and after (imports, list, merge, report)",
    "decoders": "decoder processes",
    "engine": "process of the engine",
}


if __name__ == "__main__":
    main()
