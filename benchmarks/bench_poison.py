"""Transcribe items that crash the engine, while an operator kills processes of the run: only these items may fail.

Each round chooses items that crash the engine with a signal (the first, a middle, the last, both ends, or two others),
one process, three workers or eight shards, and random kills (SIGTERM, SIGKILL) of the run or of its engine. In some
rounds the crash ends the run, too, as when the kernel ends a container: without further kills, each item then costs
four starts, and the run a fifth. A run that ended is started again until it is finished. Each transcript must be that
of the undisturbed run, and each failure a crash. At the end of a round, `--retry-failed all` without crashes must
transcribe the failed items.

With the scripted engine, commands and their child processes are forks (tests/support/forked_children.py), because the
starts of interpreters would take almost all of the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import soundfile
from common import ROOT, Bars, import_path, machine, parser, tree, write_manifest

sys.path.append(str(ROOT / "tests" / "support"))
from fork_server import ForkServer

PROGRAM = "engine_program"
"""Part of the command line of an engine's process, or its name."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL)
"""Signals with which the engine crashes. The last one is that of the OOM killer."""
GAP_S = (0.1, 1.0)
"""Range of the time between two kills."""
SHARES = (60, 25, 15)
"""Percentages of the rounds with one process, three workers and eight shards. A round with shards takes the longest."""
KILL_ALL = -2
"""See `crash_signal` of the scripted engine."""
MAX_STARTS = 100
"""Number of starts after which a run counts as endless."""
LENGTHS = 16_000, 17_600
"""Samples of the recording of most items, and of that at which faster-whisper crashes."""
CRASHING_WHISPER = f"""
import os, sys
if "{PROGRAM}" in sys.orig_argv[-2]:
    from voxbatch.engines import whisper_chunk
    windows = whisper_chunk.windows
    def crashing(model, samples, *arguments):
        if len(samples) == {LENGTHS[1]} and "BENCH_CRASH" in os.environ:
            os.kill(os.getpid(), int(os.environ["BENCH_CRASH"]))
        return windows(model, samples, *arguments)
    whisper_chunk.windows = crashing
"""
"""sitecustomize.py of the engine's process."""


@dataclass(frozen=True, slots=True)
class Round:
    """The choices of one round."""

    poison: list[int]
    """Indexes of the items that crash the engine."""
    number: signal.Signals
    """Signal of the crash."""
    ends_run: bool
    """True if the crash also ends the process of the run."""
    workers: int
    shards: int

    @classmethod
    def choose(cls, engine: str, items: int, dice: random.Random) -> Round:
        """Return the choices of a random round."""
        two = sorted(dice.sample(range(items), 2))
        poison = dice.choice([[0], [items // 2], [items - 1], [0, items - 1], two])
        if engine == "scripted" and dice.random() < 0.15:
            return cls(poison, signal.SIGKILL, True, dice.choice((1, 3)), 1)
        workers, shards = dice.choices([(1, 1), (3, 1), (1, 8)], SHARES)[0] if engine == "scripted" else (1, 1)
        return cls(poison, dice.choice(CRASHES), False, workers, shards)

    def options(self, engine: str) -> list[str]:
        """Return the options of voxbatch that make the engine crash."""
        if engine != "scripted":
            return ["--engine", engine]
        options = {
            "own_process": str(not self.ends_run).lower(), "concurrency": "4", "delay_s": "0.02",
            "crash_items": ",".join(map(str, self.poison)),
            "crash_signal": str(KILL_ALL if self.ends_run else int(self.number)),
            "workers": str(self.workers),
        }  # fmt: skip
        return ["--engine", engine, *(word for pair in options.items() for word in ("--engine-option", "=".join(pair)))]


class Bench:
    """The commands of a benchmark, which run in forks of one process, and the kills that were sent."""

    def __init__(self, folder: Path, engine: str, dice: random.Random):
        (folder / "sitecustomize.py").write_text(CRASHING_WHISPER)
        path = import_path(folder, ROOT)
        self._environment = {**os.environ, "PYTHONPATH": path}
        self._server = ForkServer(self._environment)
        self._folder, self._engine, self._dice = folder, engine, dice
        self.sent = Counter[str]()
        self.starts = 0
        """Number of starts of runs under kills."""

    def start(self, out: Path, options: list[str], crash: signal.Signals | None = None) -> subprocess.Popen[str]:
        """Start a run."""
        arguments = ["run", str(self._folder / f"{out.name}.jsonl"), "-o", str(out), "--decoders", "1", "--quiet"]
        crashing = {} if crash is None or self._engine == "scripted" else {"BENCH_CRASH": str(int(crash))}
        return self._server.start(
            [*arguments, "--part-items", "5", *options],
            {**self._environment, **crashing},
            self._folder,
            subprocess.DEVNULL,
            subprocess.DEVNULL,
            forks_children=self._engine == "scripted",
        )

    def run_under_kills(self, out: Path, choices: Round, shard: int, num_kills: int) -> int:
        """Start a process again and again, with some kills, until it ends by itself. Return its exit code, or -1."""
        options = [*choices.options(self._engine), *(["--shard", f"{shard}/{choices.shards}"] * (choices.shards > 1))]
        for _ in range(MAX_STARTS):
            self.starts += 1
            process = self.start(out, options, choices.number)
            while process.poll() is None and num_kills:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self._dice.uniform(*GAP_S))
                num_kills -= self._kill(process.pid)
            code = process.wait()
            if code in (0, 3):
                return code
        return -1

    def _kill(self, pid: int) -> bool:
        """Send a signal to some processes of a run. Return whether there were any."""
        engines = [child for child in tree(pid)[1:] if PROGRAM in " ".join(_words(child))]
        role, victims = self._dice.choice((("run", tree(pid)[:1]), ("engine", engines), ("everything", tree(pid))))
        number = self._dice.choice((signal.SIGTERM, signal.SIGKILL))
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
        self.sent[f"{number.name} to {role}"] += bool(victims)
        return bool(victims)

    def close(self) -> None:
        """End the process that runs the commands."""
        self._server.close()


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return [process.name(), *process.cmdline()]
    return []


def lines(path: Path) -> dict[int, bytes]:
    """Return the lines of a merged output by the number of their item."""
    rows = path.read_bytes().splitlines() if path.exists() else []
    return {int(json.loads(row)["id"].removeprefix("i")): row for row in rows}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--engine", choices=("scripted", "faster-whisper"), default="scripted")
    options.add_argument("--items", type=int, default=40)
    options.add_argument("--kills", type=int, default=4, help="most kills in a round")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = options.parse_args()
    bars, dice, engine, count = Bars(), random.Random(given.seed), given.engine, given.items
    print(machine())
    print(f"seed {given.seed}")
    innocent = missed = different = endless = untried = superfluous = 0
    with tempfile.TemporaryDirectory(prefix="voxbatch-poison-") as name, contextlib.ExitStack() as stack:
        folder, bench = Path(name), Bench(Path(name), engine, dice)
        stack.callback(bench.close)
        for length in LENGTHS:
            loudness = 0.1 * (1 + np.sin(np.arange(length) / 640)) ** 2  # as of speech
            noise = np.random.default_rng(length).normal(0, loudness)
            soundfile.write(folder / f"{length}.wav", noise.clip(-1, 1), 16_000)
        for number in range(given.rounds):
            began, out, choices = time.monotonic(), folder / f"round-{number}", Round.choose(engine, count, dice)
            crashing = choices.poison if engine == "faster-whisper" else ()
            audio = [str(folder / f"{LENGTHS[item in crashing]}.wav") for item in range(count)]
            rows = [{"audio_filepath": path, "id": f"i{item}"} for item, path in enumerate(audio)]
            calm = folder / "-".join(("calm", *map(str, crashing)))
            for run in (out, calm):
                write_manifest(folder / f"{run.name}.jsonl", rows)
            if not calm.exists():
                assert bench.start(calm, ["--engine", engine]).wait() == 0
            transcripts = lines(calm / "transcripts.jsonl")
            victims = [dice.randrange(choices.shards) for _ in range(dice.randint(0, given.kills))]
            if choices.ends_run and dice.random() < 0.5:
                victims = []
            kills = [victims.count(shard) for shard in range(choices.shards)]
            before = bench.starts
            codes = [bench.run_under_kills(out, choices, shard, num) for shard, num in enumerate(kills)]
            if choices.ends_run and not victims:
                superfluous += max(0, bench.starts - before - 4 * len(choices.poison) - 1)
            failed = lines(out / "failures.jsonl")
            innocent += len(failed.keys() - set(choices.poison))
            missed += len(set(choices.poison) - failed.keys())
            different += sum(transcripts[item] != row for item, row in lines(out / "transcripts.jsonl").items())
            endless += codes.count(-1)
            retried = bench.start(out, ["--engine", engine, "--retry-failed", "all"]).wait()
            untried += retried != 0 or lines(out / "transcripts.jsonl") != transcripts
            print(
                f"round {number + 1}: {choices}, kills {kills}, exits {codes}, {len(failed)} failed; so far {innocent} "
                f"innocent, {missed} missed, {different} different, {endless} endless, {untried} not tried again, "
                f"{superfluous} starts too many; {bench.starts - before} starts, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"kills: {', '.join(f'{count} {what}' for what, count in sorted(bench.sent.items()))}")
    bars.at_most("innocent items that failed", innocent, 0)
    bars.at_most("crashing items without a failure", missed, 0)
    bars.at_most("transcripts that differ", different, 0)
    bars.at_most("runs that do not end", endless, 0)
    bars.at_most("starts above four for each item that ends the run, and one", superfluous, 0)
    bars.at_most("rounds whose failures --retry-failed all does not transcribe", untried, 0)
    bars.leave()


if __name__ == "__main__":
    main()
