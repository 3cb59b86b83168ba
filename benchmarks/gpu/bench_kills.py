"""Kill the engine, a worker and the whole run on a GPU (SIGKILL), and compare the transcripts with an undisturbed run.

    python benchmarks/gpu/bench_kills.py MODEL_DIR [--engine transducers] [--hours H] [--engine-option NAME=VALUE …]
    python benchmarks/gpu/bench_kills.py MODEL_DIR --engine vllm --manifest M.jsonl --copies 10 --kills 20 --workers 2
        --engine-option reproducible=true

The recordings are those of bench_run.py. `engine` kills the engine's process twice in one run; `run` kills all
processes of a run, and starts the same command again; `worker` kills one of two workers (with two GPUs). Moments are
counted in finished recordings. Each line says how many recordings have the same transcript as in the undisturbed run,
how many were lost or are there twice, and how long the disturbed run took. On a GPU texts of random weights depend on
what a clip shares its batch with, so `undisturbed, again` gives what two runs without a kill have in common.

With --kills, the recordings are those of a manifest, each several times. SIGKILL reaches the engine's process, the
whole run and (with --workers 2, on two GPUs) a worker in turn, each after an equal share of the recordings, until there
were as many kills. A run that ends before is followed by another one. Transcripts, failures and subtitles must be the
bytes of an undisturbed run with one worker, and so must those of an undisturbed run with more. `digest` is the same for
the same bytes, also on another card.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import psutil
from bench_run import recordings
from shared import ROOT, environment, tell

sys.path.append(str(ROOT / "tests" / "support"))

from outputs import difference, outputs

from voxbatch.storage import Stores

MOMENTS = (0.25, 0.6)
"""Shares of the recordings after which something is killed."""
PART_ITEMS = 20
KILL_ITEMS = 5
"""Recordings of a part with --kills."""
ENGINES = ("engine_program", "EngineCore")
"""Parts of the command line of an engine's process: voxbatch's own one, and vLLM's."""
Kill = Callable[[psutil.Process], bool]


def command(given: argparse.Namespace, manifest: Path, out: Path, workers: int, *flags: str) -> list[str]:
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
        str(KILL_ITEMS if given.kills else PART_ITEMS),
        *flags,
    ]
    return found + [word for option in given.engine_option for word in ("--engine-option", option)]


def killed(
    words: list[str], kills_in_turn: Iterator[Kill], out: Path, log: Path, moments: list[float], part_items: int
) -> tuple[int, int]:
    """Run a command, kill something at each moment, and return its exit code and the number of kills.

    Args:
        words: the command.
        kills_in_turn: each kills something below the command's process, and says whether it found it.
        out: OUT of the command.
        log: file for its standard error.
        moments: numbers of recordings after which it kills. Those that are reached are removed.
        part_items: recordings of a part.
    """
    kills, kill = 0, next(kills_in_turn)
    with log.open("a") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=file)
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            if moments and done(out, part_items) >= moments[0] and kill(parent):
                kills, kill = kills + 1, next(kills_in_turn)
                moments.pop(0)
            time.sleep(0.02)
    return process.returncode, kills


def done(out: Path, part_items: int) -> int:
    """Return the number of recordings in the parts of OUT, but for those of the last part."""
    return part_items * max(0, len(list(out.glob("parts/*/part-*.jsonl"))) - 1)


def descendants(parent: psutil.Process, parts: tuple[str, ...]) -> list[psutil.Process]:
    """Return the processes below `parent` whose command line has one of `parts`."""
    found = []
    for each in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(part in " ".join(each.cmdline()) for part in parts):
                found.append(each)
    return found


def kill_one(*parts: str) -> Kill:
    """Return a function that kills the first process whose command line has one of `parts`."""

    def kill(parent: psutil.Process) -> bool:
        found = descendants(parent, parts)
        for each in found[:1]:
            each.kill()
        return bool(found)

    return kill


def until(deadline: float, kill: Kill) -> Kill:
    """Return a function that kills nothing from a moment of the monotonic clock on."""
    return lambda parent: time.monotonic() < deadline and kill(parent)


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
    parser.add_argument("--manifest", type=Path, help="with --kills")
    parser.add_argument("--copies", type=int, default=10, help="of each recording of --manifest")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="with --kills")
    parser.add_argument("--limit-s", type=float, default=180.0, help="seconds after which no kill follows")
    given = parser.parse_args()
    if given.kills:
        with tempfile.TemporaryDirectory() as scratch:
            for line in many_kills(given, Path(scratch)):
                tell(line, given.out)
        return
    scenarios: dict[str, tuple[int, Callable[[psutil.Process], bool] | None]] = {
        "undisturbed, again": (1, None),
        "engine": (1, kill_one(*ENGINES)),
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


def many_kills(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the line of each undisturbed run, of each round of kills, and of all."""
    manifest, log = copied(given.manifest, given.copies, folder), folder / "run.log"
    total, began = given.copies * len(given.manifest.read_text().splitlines()), time.monotonic()

    def words(name: str, workers: int) -> list[str]:
        return command(given, manifest, folder / name, workers, "--formats", "srt", "--allow-outside")

    def merged(name: str) -> dict[str, bytes | None]:
        return outputs(Stores().out(str(folder / name)))

    for name, workers in (("whole", 1), ("workers", given.workers)):
        if name == "whole" or workers > 1:
            code, _ = killed(words(name, workers), repeat(kill_all), folder / name, log, [], KILL_ITEMS)
            line = {"scenario": name, "workers": workers, "recordings": total, "exit_code": code}
            if code not in (0, 3):
                yield {**line, "error": log.read_text()[-3000:]}
                return
            content = merged(name)
            digest = hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()[:16]
            wall_s = round(time.monotonic() - began, 1)
            yield {**line, "wall_s": wall_s, "digest": digest, "differs": difference(content, merged("whole"))}
    kinds = [kill_one(*ENGINES), kill_all, *[kill_one("voxbatch.runner.workers")] * (given.workers > 1)]
    deadline = began + given.limit_s
    in_turn = cycle([until(deadline, kill) for kill in kinds])
    kills, rounds, runs, code, differs = 0, 0, 0, 0, list[str]()
    while kills < given.kills and time.monotonic() < deadline:
        name, rounds, code = f"round-{rounds}", rounds + 1, -1
        moments = [total * (number + 0.5) / given.kills for number in range(given.kills - kills)]
        while code not in (0, 3) and runs < 3 * given.kills:
            code, more = killed(words(name, given.workers), in_turn, folder / name, log, moments, KILL_ITEMS)
            kills, runs = kills + more, runs + 1
        differs.append(difference(merged(name), merged("whole")))
        yield {"scenario": name, "kills": kills, "runs": runs, "exit_code": code, "differs": differs[-1]}
    yield {
        "scenario": "kills", "kills": kills, "rounds": rounds, "runs": runs, "workers": given.workers,
        "recordings": total, "wall_s": round(time.monotonic() - began, 1), "differs": next(filter(None, differs), ""),
        "equal_bytes": not any(differs),
    }  # fmt: skip


def copied(manifest: Path, copies: int, folder: Path) -> Path:
    """Write a manifest with each recording of another one several times, and return it."""
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    place = folder / "manifest.jsonl"
    with place.open("w") as file:
        for copy in range(copies):
            for row in rows:
                path = str((manifest.parent / row["audio_filepath"]).resolve())
                line = {**row, "audio_filepath": path, "id": f"{copy}/{row['audio_filepath']}"}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return place


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
        code, more = killed(words, repeat(kill or kill_all), out, log, moments, PART_ITEMS)
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
