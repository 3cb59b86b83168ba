"""Measure the memory of each phase of a run for manifests of up to 10 million rows, and its growth in bytes a row.

The phases are those of `voxbatch run`, called in one process as `runner.run` calls them: survey with the search for
duplicates, shard membership, reserve (the list), resume, merge with the summary. Nothing is decoded and no engine
runs: the parts hold lines of the scripted engine's form, and are committed through the real Checkpoint. The
peak is the kernel's (VmHWM), which is reset before each phase; it counts all memory of the process, so the growth is
the difference to the smallest manifest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import Bars, machine

ROW = '{{"id": "call-{0:09d}", "audio_filepath": "2026/11/{0:09d}.flac", "duration": {1:.2f}, "lang": "en"}}\n'
PEAK_MB = 500
"""Maximum peak memory, calculated for ROWS rows by the growth."""
ROWS = 100_000_000
TASKS = 1000
"""Tasks of the run of which one is measured."""
PART_ITEMS = 5000
"""Items of a part. Runs have 200, but each part is synced to the disk."""


def write_manifest(path: Path, rows: int) -> None:
    """Write a manifest of rows whose durations differ."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(ROW.format(n, 1 + n * 7919 % 2900 / 100) for n in range(rows))


@contextmanager
def phase(name: str, found: dict[str, dict[str, float]]) -> Iterator[None]:
    """Record the peak memory and the CPU seconds of a phase."""
    Path("/proc/self/clear_refs").write_text("5")
    began = time.process_time()
    yield
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1000
    found[name] = {"mb": peak, "cpu_s": time.process_time() - began}


def measure(folder: Path, rows: int, shards: int) -> dict[str, dict[str, float]]:
    """Measure the phases of one task. It runs in a process of its own."""
    from voxbatch.config import Config
    from voxbatch.engines import EngineCache
    from voxbatch.log import Log
    from voxbatch.manifest import items
    from voxbatch.output.lines import transcript_line
    from voxbatch.output.parts import PartEntry
    from voxbatch.output.stored_json import json_bytes
    from voxbatch.records import Transcript
    from voxbatch.runner import finish
    from voxbatch.runner.prepare import open_manifest, prepare
    from voxbatch.runner.shard import members
    from voxbatch.runner.transcribe import resume

    found: dict[str, dict[str, float]] = {}
    place, out = str(folder / f"{rows}.jsonl"), str(folder / f"out-{rows}-{shards}")
    config = Config(source=place, out=out, engine="scripted", shards=shards, report=False)
    log = Log(quiet=True)
    with open_manifest(config) as source:
        with phase("survey, duplicates, list", found):
            job = prepare(config, source, EngineCache(), log)
        with phase("membership", found):
            mine = members(job.durations, 0, shards)
        with phase("resume of nothing", found):
            work = resume(job, mine, time.monotonic())
        with phase("commits (simulated results)", found):
            batch: list[PartEntry] = []
            for item in items(source, job.path_policy, None, work.items):
                outcome = Transcript(f"call {item.index}", audio_duration=item.duration or 0.0)
                line = transcript_line(item, outcome, "scripted", "none", "en", None)
                batch.append(PartEntry(item.index, "transcript", json_bytes(line)))
                if len(batch) == PART_ITEMS:
                    work.checkpoint.commit(batch, 1.0)
                    batch = []
            work.checkpoint.commit(batch, 1.0)
        with phase("resume of all", found):
            work = resume(job, mine, time.monotonic())
            assert not work.items.any()
        if shards == 1:
            with phase("merge, summary", found):
                assert finish(job, work, log) is not None
    return found


def measure_columns(folder: Path, rows: int, tasks: int) -> dict[str, dict[str, float]]:
    """Measure what follows the survey, with columns of random keys and of durations in place of a manifest's."""
    import numpy as np

    from voxbatch.output.checkpoint import Checkpoint
    from voxbatch.output.run_file import EngineFacts, Run, RunFacts, create_list
    from voxbatch.runner.progress import known_audio
    from voxbatch.runner.shard import members
    from voxbatch.storage import open_store
    from voxbatch.storage.columns import BLOCK, Column, repeated_hashes

    found: dict[str, dict[str, float]] = {}
    random, durations, keys = np.random.default_rng(0), Column("<f4"), Column("<u8", width=2)
    store = open_store(str(folder / f"columns-{rows}-{tasks}"))
    engine = EngineFacts("made up", "none", "none", "made up", {}, {})
    facts = RunFacts(engine, voxbatch="0", python="3", libraries={}, machine="none", workers=1, config={})
    run = Run(run_id="0" * 12, identity={}, language=None, manifest="", items=rows, folder=None, facts=facts)
    with phase("columns", found):
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            durations.append(random.uniform(1, 30, count))
            keys.append(random.integers(0, 2**63, (count, 2), np.uint64))
    with phase("duplicates", found):
        assert not len(repeated_hashes(keys))
    with phase("list", found):
        create_list(store, run, keys)
    with phase("membership", found):
        mine = members(durations, 0, tasks)
    with phase("resume", found):
        checkpoint = Checkpoint(store, run, keys, 0, tasks)
        checkpoint.load()
        remaining = mine - checkpoint.done
        assert known_audio(durations, remaining)[1] == 0
    return found


def measured(folder: Path, rows: int, tasks: int, columns: bool) -> dict[str, dict[str, float]]:
    """Return the figures of `measure` or of `measure_columns`, in a new process."""
    command = [sys.executable, __file__, "--folder", folder, "--rows", rows, "--tasks", tasks]
    done = subprocess.run(
        [*map(str, command), *(["--columns"] if columns else [])], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--full", action="store_true", help="also 10,000,000 rows")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, TASKS])
    parser.add_argument("--columns", action="store_true", help="only what follows the survey, with random columns")
    given = parser.parse_args()
    if given.rows:
        call = measure_columns if given.columns else measure
        print(json.dumps(call(given.folder, given.rows, given.tasks[0])))
        return
    bars = Bars()
    print(machine())
    sizes = [*given.sizes, *([10_000_000] if given.full else [])]
    with tempfile.TemporaryDirectory(prefix="voxbatch-large-") as name:
        for rows in sizes if not given.columns else ():
            write_manifest(Path(name) / f"{rows}.jsonl", rows)
        for tasks in given.tasks:
            found = {rows: measured(Path(name), rows, tasks, given.columns) for rows in sizes}
            for what in found[sizes[0]]:
                for rows in sizes:
                    mb, cpu_s = found[rows][what].values()
                    print(
                        f"1 task of {tasks:,}, {rows:>10,} rows, {what}: {mb:.0f} MB, {cpu_s:.1f} s of CPU", flush=True
                    )
                first, last = found[sizes[0]][what]["mb"], found[sizes[-1]][what]["mb"]
                growth = (last - first) * 1e6 / (sizes[-1] - sizes[0])
                print(f"{what}: {growth:.2f} bytes a row")
                bars.at_most(
                    f"1 task of {tasks:,}, {what}, for {ROWS:,} rows", first + growth * ROWS / 1e6, PEAK_MB, "MB"
                )
    bars.leave()


if __name__ == "__main__":
    main()
