"""Kill the engine, a worker and the whole run on a GPU (SIGKILL), and compare the transcripts with an undisturbed run.

    python benchmarks/gpu/bench_kills.py MODEL_DIR [--engine transducers] [--hours H] [--engine-option NAME=VALUE …]

The recordings are those of bench_run.py. `engine` kills the engine's process twice in one run; `run` kills all
processes of a run, and starts the same command again; `worker` kills one of two workers (with two GPUs). Moments are
counted in finished recordings. Each line says how many recordings have the same transcript as in the undisturbed run,
how many were lost or are there twice, and how long the disturbed run took. On a GPU texts of random weights depend on
what a clip shares its batch with, so `undisturbed, again` gives what two runs without a kill have in common.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from bench_run import recordings
from shared import ROOT, environment, tell

MOMENTS = (0.25, 0.6)
"""Shares of the recordings after which something is killed."""
PART_ITEMS = 20


def command(given: argparse.Namespace, manifest: Path, out: Path, workers: int) -> list[str]:
    """Return the command of a run."""
    found = [sys.executable, "-m", "voxbatch", "run", str(manifest), "-o", str(out), "--engine", given.engine]
    found += [
        "--model",
        given.model,
        "--log-format",
        "json",
        "--workers",
        str(workers),
        "--part-items",
        str(PART_ITEMS),
    ]
    return found + [word for option in given.engine_option for word in ("--engine-option", option)]


def killed(
    words: list[str], kill: Callable[[psutil.Process], bool], out: Path, log: Path, moments: list[float]
) -> tuple[int, int]:
    """Run a command, call `kill` at each moment, and return its exit code and the number of kills.

    Args:
        words: the command.
        kill: kills something below the command's process, and says whether it found it.
        out: OUT of the command.
        log: file for its standard error.
        moments: numbers of recordings after which it kills. Those that are reached are removed.
    """
    kills = 0
    with log.open("w") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=file)
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            if moments and done(out) >= moments[0] and kill(parent):
                kills += 1
                moments.pop(0)
            time.sleep(0.05)
    return process.returncode, kills


def done(out: Path) -> int:
    """Return the number of recordings in the parts of OUT, but for those of the last part."""
    return PART_ITEMS * max(0, len(list(out.glob("parts/*/part-*.jsonl"))) - 1)


def descendants(parent: psutil.Process, part: str) -> list[psutil.Process]:
    """Return the processes below `parent` whose command line has `part`."""
    found = []
    for each in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if part in " ".join(each.cmdline()):
                found.append(each)
    return found


def kill_one(part: str) -> Callable[[psutil.Process], bool]:
    """Return a function that kills the first process whose command line has `part`."""

    def kill(parent: psutil.Process) -> bool:
        found = descendants(parent, part)
        for each in found[:1]:
            each.kill()
        return bool(found)

    return kill


def kill_all(parent: psutil.Process) -> bool:
    """Kill a run and all its processes."""
    for each in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(each.pid, signal.SIGKILL)
    return True


def transcripts(out: Path) -> dict[str, tuple[str, int]]:
    """Return the text of each recording, and how often it is there."""
    rows = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    times = Counter(row["id"] for row in rows)
    return {row["id"]: (row["pred_text"], times[row["id"]]) for row in rows}


def main() -> None:
    """Run all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--engine", default="transducers")
    parser.add_argument("--hours", type=float, default=40.0)
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--scenarios", nargs="+", default=["undisturbed, again", "engine", "run"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    scenarios: dict[str, tuple[int, Callable[[psutil.Process], bool] | None]] = {
        "undisturbed, again": (1, None),
        "engine": (1, kill_one("engine_program")),
        "run": (1, kill_all),
        "worker": (2, kill_one("voxbatch.runner.workers")),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        manifest = recordings(folder, given.hours, "wav")
        total = len(manifest.read_text().splitlines())
        subprocess.run(command(given, manifest, folder / "whole", 1), cwd=ROOT, env=environment(), check=True,
                       stdout=subprocess.DEVNULL, stderr=(folder / "whole.log").open("w"))  # fmt: skip
        whole = transcripts(folder / "whole")
        for name in given.scenarios:
            workers, kill = scenarios[name]
            tell(scenario(given, name, (manifest, total), folder, (workers, kill), whole), given.out)


def scenario(
    given: argparse.Namespace, name: str, listed: tuple[Path, int], folder: Path,
    what: tuple[int, Callable[[psutil.Process], bool] | None], whole: dict[str, tuple[str, int]],
) -> dict[str, Any]:  # fmt: skip
    """Run one scenario, again and again until it ends, and compare it with the undisturbed run."""
    (manifest, total), (workers, kill) = listed, what
    out, log = folder / name.replace(", ", "-"), folder / "run.log"
    words, began, kills, runs = command(given, manifest, out, workers), time.monotonic(), 0, 0
    code, moments = -1, [share * total for share in MOMENTS] if kill else []
    while code < 0 and runs < 4:
        code, more = killed(words, kill or kill_all, out, log, moments)
        kills, runs = kills + more, runs + 1
    if not (out / "transcripts.jsonl").exists():
        return {"scenario": name, "code": code, "error": log.read_text()[-3000:]}
    found = transcripts(out)
    return {
        "scenario": name, "recordings": total, "kills": kills, "runs": runs, "exit_code": code,
        "lost": len(whole.keys() - found.keys()), "twice": sum(times > 1 for _, times in found.values()),
        "equal": sum(found.get(key, ("", 0))[0] == text for key, (text, _) in whole.items()),
        "wall_s": round(time.monotonic() - began, 1),
        "said": [json.loads(line)["text"][:200] for line in log.read_text().splitlines()
                 if '"WARNING"' in line and '"text"' in line][:6],
    }  # fmt: skip


if __name__ == "__main__":
    main()
