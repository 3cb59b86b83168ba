"""Measure the memory and the CPU time of each phase of a run for a large manifest.

The phases are those of `voxbatch run`, called in one process as `runner.run` calls them: survey with the search for
duplicates, shard membership, reserve (the list), resume, merge with the summary. Nothing is decoded and no engine
runs: the parts hold lines of the scripted engine's form, and are committed through the real Checkpoint. The
peak is the kernel's (VmHWM), which is reset before each phase; it counts all memory of the process.
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

from common import Bars, machine, parser

ROW = '{{"id": "call-{0:09d}", "audio_filepath": "2026/11/{0:09d}.flac", "duration": {1:.2f}, "lang": "en"}}\n'
FIXED_MB, ROW_BYTES = 150, 3
"""Maximum peak memory: of a process, and in addition for each row (docs/manifests.md)."""
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
    from voxbatch.runner.prepare import prepare
    from voxbatch.runner.shard import members
    from voxbatch.runner.steps import steps_of
    from voxbatch.runner.transcribe import resume

    found: dict[str, dict[str, float]] = {}
    place, out = str(folder / f"{rows}.jsonl"), str(folder / f"out-{rows}-{shards}")
    config = Config(source=place, out=out, engine="scripted", shards=shards, report=False)
    log = Log(quiet=True)
    with steps_of(config).open(config) as source:
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


def measured(folder: Path, rows: int, tasks: int) -> dict[str, dict[str, float]]:
    """Return the figures of `measure` in a new process."""
    command = [sys.executable, __file__, "--folder", folder, "--sizes", rows, "--tasks", tasks]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[1_000_000])
    options.add_argument("--tasks", type=int, nargs="+", default=[1, TASKS])
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.folder:
        print(json.dumps(measure(given.folder, given.sizes[0], given.tasks[0])))
        return
    bars = Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-large-") as name:
        for rows in given.sizes:
            write_manifest(Path(name) / f"{rows}.jsonl", rows)
        for tasks in given.tasks:
            for rows in given.sizes:
                for what, figures in measured(Path(name), rows, tasks).items():
                    title = f"1 task of {tasks:,}, {rows:,} rows, {what}"
                    print(f"{title}: {figures['cpu_s']:.1f} s of CPU")
                    bars.at_most(title, figures["mb"], FIXED_MB + ROW_BYTES * rows / 1e6, "MB")
    bars.leave()


if __name__ == "__main__":
    main()
