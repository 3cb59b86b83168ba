"""Let runs of two manifests take one OUT over from each other: it must hold the items of one run only.

In each round several processes are started at random moments, each with one of two manifests. Most have `--overwrite`.
While they run, random ones are suspended for a while (SIGSTOP and SIGCONT) or killed (SIGKILL), so that a process may
continue at any moment of another run. The manifests have the same ids, other recordings, and other rows, so that every
line and every subtitle shows which run it is of.

When all processes have ended, the benchmark reads the files of the owner, the run in run.json. Then the owner's command
runs once more without `--overwrite`, and the outputs must be the bytes of an undisturbed run, with `voxbatch status
--verify` finding no problem.
"""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import soundfile
from common import VOXBATCH, Bars, machine, parser
from stores import KINDS, Place, difference, outputs, place

from voxbatch.output import run_file
from voxbatch.output.layout import part_names
from voxbatch.output.parts import read_part
from voxbatch.storage import Store

ITEMS = 24
STARTS = 5
"""Processes in a round."""
GAP_S = (0.0, 1.0)
"""Range of seconds between two starts."""
SUSPENDED_S = (0.05, 1.5)
"""Range of seconds for which a process is suspended."""
CLEAR = {
    0: ("",),
    1: ("took OUT over with --overwrite",),
    2: ("holds another run",),
    -signal.SIGKILL: ("",),
}
"""Exit codes, and for each the texts of which one must be in the last lines of the log."""


@dataclass(slots=True)
class Tally:
    """The results of all rounds in one place."""

    ends: Counter[str] = field(default_factory=Counter)
    unclear: list[str] = field(default_factory=list)
    suspended: int = 0
    mixed: list[str] = field(default_factory=list)
    incomplete: int = 0
    """Rounds in which the owner ended with 0, and an output was missing before it was started again."""
    different: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add_end(self, out: str, process: subprocess.Popen[str]) -> int:
        """Wait for the end of a process, judge its last lines, and return its exit code."""
        log, code = process.communicate()[1], process.returncode
        self.ends[f"exit {code}" if code >= 0 else "killed"] += 1
        if "Traceback" in log or not any(text in log for text in CLEAR.get(code, ())):
            self.unclear.append(f"{out}: exit {code}: {log[-600:]}")
        return code


def wav(seconds: float) -> bytes:
    """Return a recording of noise."""
    buffer, noise = io.BytesIO(), np.random.default_rng(round(seconds * 100))
    soundfile.write(buffer, noise.normal(0, 0.3, round(seconds * 16_000)), 16_000, format="WAV")
    return buffer.getvalue()


def put_manifests(where: Place) -> None:
    """Write the recordings, and a.jsonl and b.jsonl. Every eighth item has no recording."""
    where.put((f"{name}{i}.wav", wav(0.6 + i / 20 + (name == "b") * 2)) for name in "ab" for i in range(ITEMS) if i % 8)
    for name in "ab":
        rows = ({"audio_filepath": f"{name}{i}.wav", "id": f"item{i}", "of": name} for i in range(ITEMS))
        where.put_rows(f"{name}.jsonl", rows)


def start(where: Place, name: str, out: str, *extra: str) -> subprocess.Popen[str]:
    """Start a run of a manifest."""
    command = [
        "run", where / f"{name}.jsonl", "-o", where / out, "--engine", "scripted", "--engine-option", "delay_s=0.1",
        "--engine-option", "concurrency=2", "--decoders", "1", "--part-items", "4", "--formats", "srt", "--exit-zero",
        *extra,
    ]  # fmt: skip
    return subprocess.Popen(
        [*VOXBATCH, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def race(where: Place, out: str, dice: random.Random, tally: Tally) -> dict[str, int]:
    """Perform the processes of a round, and return the exit code of the last process with `--overwrite` of each
    manifest."""
    running: list[tuple[str, subprocess.Popen[str]]] = []
    suspended: list[tuple[float, subprocess.Popen[str]]] = []
    starts = [time.monotonic()]
    for _ in range(STARTS - 1):
        starts.append(starts[-1] + dice.uniform(*GAP_S))
    codes: dict[str, int] = {}
    while starts or any(process.poll() is None for _, process in running):
        now = time.monotonic()
        if starts and starts[0] <= now:
            starts.pop(0)
            name = dice.choice("ab")
            overwrite = ("--overwrite",) if not running or dice.random() < 0.8 else ()
            running.append((name, start(where, name, out, *overwrite)))
        for until, process in list(suspended):
            if until <= now:
                process.send_signal(signal.SIGCONT)
                suspended.remove((until, process))
        asleep = {process.pid for _, process in suspended}
        awake = [process for _, process in running if process.poll() is None and process.pid not in asleep]
        if awake and dice.random() < 0.06:
            victim = dice.choice(awake)
            if dice.random() < 0.03:
                victim.kill()
            else:
                victim.send_signal(signal.SIGSTOP)
                suspended.append((now + dice.uniform(*SUSPENDED_S), victim))
                tally.suspended += 1
        time.sleep(0.02)
    for name, process in running:
        codes[name] = tally.add_end(out, process)
    return codes


def foreign_lines(store: Store, owner: str) -> list[str]:
    """Return what the outputs and the parts of the owner hold that is not of its manifest."""
    found = []
    for name in ("transcripts.jsonl", "failures.jsonl"):
        lines = (store.read(name) or b"").splitlines()
        foreign = sum(json.loads(line)["of"] != owner for line in lines)
        found += [f"{foreign} of {len(lines)} lines of {name}"] if foreign else []
    run = run_file.read_existing(store)
    for name in part_names(store, run.generation):
        foreign = sum(json.loads(entry.line)["of"] != owner for entry in read_part(store, name))
        found += [f"{foreign} entries of {name}"] if foreign else []
    return found


def perform(where: Place, rounds: int, dice: random.Random) -> Tally:
    """Perform all rounds in a place."""
    tally, calm = Tally(), dict[str, dict[str, bytes | None]]()
    put_manifests(where)
    for name in "ab":
        if start(where, name, f"calm-{name}").wait() != 0:
            sys.exit(f"the undisturbed run of {name} failed")
        calm[name] = outputs(where.store(f"calm-{name}"))
    digests = {name: run_file.read_existing(where.store(f"calm-{name}")).manifest for name in "ab"}
    for number in range(rounds):
        out = f"round-{number}"
        store = where.store(out)
        codes = race(where, out, dice, tally)
        owner = next(name for name in "ab" if digests[name] == run_file.read_existing(store).manifest)
        if store.exists("summary.json") and (foreign := foreign_lines(store, owner)):
            tally.mixed.append(f"{out}: {', '.join(foreign)}")
        if codes.get(owner) == 0 and difference(outputs(store), calm[owner]):
            tally.incomplete += 1
        if code := tally.add_end(out, start(where, owner, out)):
            tally.unclear.append(f"{out}: the last start: exit {code}")
        if differs := difference(outputs(store), calm[owner]):
            tally.different.append(f"{out}: {differs}")
        tally.mixed += [f"{out}: in the end: {foreign}" for foreign in foreign_lines(store, owner)]
        verified = subprocess.run(
            [*VOXBATCH, "status", where / out, "--verify"], capture_output=True, text=True, check=False
        )
        if verified.returncode:
            tally.problems.append(f"{out}: {verified.stdout}{verified.stderr}")
    return tally


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--stores", nargs="+", choices=KINDS, default=["local", "gcs", "seaweedfs"])
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = options.parse_args()
    bars = Bars()
    print(machine())
    print(f"seed {given.seed}")
    for kind in given.stores:
        began = time.monotonic()
        with place(kind) as where:
            tally = perform(where, given.rounds, random.Random(given.seed))
        ends = ", ".join(f"{count} {end}" for end, count in sorted(tally.ends.items()))
        print(f"\n== {kind}: {given.rounds} rounds in {time.monotonic() - began:.0f} s, ends: {ends}")
        print(f"{tally.suspended} times a process was suspended")
        for line in (*tally.mixed, *tally.different, *tally.unclear, *tally.problems):
            print(f"   {line}")
        print(f"owner ended with 0 and an output was missing or different until its next start: {tally.incomplete}")
        bars.at_most(f"{kind}: mixed outputs", len(tally.mixed), 0)
        bars.at_most(f"{kind}: outputs that differ from the undisturbed run's", len(tally.different), 0)
        bars.at_most(f"{kind}: ends without a clear message", len(tally.unclear), 0)
        bars.at_most(f"{kind}: OUTs with a problem in `status --verify`", len(tally.problems), 0)
    bars.leave()


if __name__ == "__main__":
    main()
