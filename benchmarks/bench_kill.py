"""Kill −9: a run that was killed at random moments and resumed gives the bytes of one that nothing disturbed.

Real recordings through the embedded engine, some rows naming missing files; then the same with the stand-in engine and
ten times the kills, two processes on one shard at once, and four shards side by side of which one is killed. After each
kill it also counts what was done in vain (finished items that are in no part, and chunks the engine had in hand), looks
for items that are in two parts, and for processes left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from common import TRACED, VOXBATCH, Bars, english_rows, machine, tree, write_manifest

from voxbatch.ledger import part_names, read_part
from voxbatch.storage import open_store

SHORT_S = (1.0, 6.0)
MISSING = 8
LEAST_WORK_S = 0.5
"""Of the longest-lived victims, so that they commit something; what is done before all kills are is begun anew."""
ORPHANS_S = 10.0
"""How long a decoder may live after its run was killed."""


@dataclass(frozen=True, slots=True)
class Job:
    """The same work for every run of a scenario; `options` may differ in how it is done, not in what comes out."""

    manifest: Path
    engine: tuple[str, ...]
    part_items: int

    def arguments(self, out: Path, *extra: str) -> list[str]:
        return [
            "run", str(self.manifest), "-o", str(out), "--allow-outside", "--formats", "srt", "--log-format", "json",
            "--part-items", str(self.part_items), *self.engine, *extra,
        ]  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What the kills of a scenario did."""

    moments: Counter[str] = field(default_factory=Counter)
    in_vain: list[int] = field(default_factory=list)
    in_hand: list[int] = field(default_factory=list)
    twice: int = 0
    orphans: int = 0

    @property
    def kills(self) -> int:
        return sum(self.moments.values())


# ── outputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def outputs(out: Path) -> dict[str, bytes]:
    """The merged outputs and the subtitles, by name."""
    files = [out / "transcripts.jsonl", out / "failures.jsonl", *sorted((out / "srt").rglob("*.srt"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.exists()}


def difference(found: dict[str, bytes], wanted: dict[str, bytes]) -> str:
    """The first file that is missing, too many or other, and where; "" where all bytes are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        ours, theirs = found.get(name), wanted.get(name)
        if ours is None or theirs is None:
            return f"{name} is {'missing' if ours is None else 'too many'}"
        if ours != theirs:
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            return f"{name} differs from byte {at}: {ours[at : at + 60]!r} for {theirs[at : at + 60]!r}"
    return ""


def committed(out: Path) -> Counter[int]:
    """How often each item is in a part."""
    store = open_store(str(out))
    return Counter(entry.index for name in part_names(store) for entry in read_part(store, name))


def leftovers(out: Path) -> int:
    """Temporary files that killed writers left."""
    return sum(1 for _ in out.rglob(".tmp-*"))


# ── one process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def start(job: Job, out: Path, *extra: str, trace: Path | None = None) -> subprocess.Popen[bytes]:
    command = [*TRACED, "--items", str(trace)] if trace else VOXBATCH
    return subprocess.Popen(
        [*command, *job.arguments(out, *extra)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def read_trace(trace: Path) -> Iterator[tuple[str, int, float]]:
    """(what, item, clock time)"""
    if trace.exists():
        for line in trace.read_text().splitlines():
            what, item, clock = line.split()
            yield what, int(item), float(clock)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    outputs: dict[str, bytes]
    start_s: float
    """Until the engine took its first chunk."""
    work_s: float
    merge_s: float

    def lines(self, name: str) -> int:
        return self.outputs[name].count(b"\n")


def undisturbed(job: Job, folder: Path) -> Undisturbed:
    out, trace = folder / "undisturbed", folder / "undisturbed.trace"
    began = time.time()
    code = start(job, out, trace=trace).wait()
    ended = time.time()
    if code != 3:
        raise SystemExit(f"the undisturbed run ended with {code}, not with 3 (some failed)")
    clocks = {what: clock for what, _, clock in reversed(list(read_trace(trace)))}
    return Undisturbed(
        outputs(out), clocks["taken"] - began, clocks["merging"] - clocks["taken"], ended - clocks["merging"]
    )


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill_until_done(job: Job, out: Path, calm: Undisturbed, wanted: int, dice: random.Random, tally: Tally) -> int:
    """Start and kill until `wanted` kills have landed, then let it finish. Gives the last process's exit code."""
    while tally.kills < wanted:
        trace = out.with_name(f"{out.name}-{tally.kills}.trace")
        process = start(job, out, trace=trace)
        family = _live_until(process, out, calm, wanted, dice)
        if family is None:
            return int(process.wait())  # it finished before its moment came
        process.kill()
        process.wait()
        _judge(out, trace, family, tally)
    return int(start(job, out).wait())


def _live_until(
    process: subprocess.Popen[bytes], out: Path, calm: Undisturbed, wanted: int, dice: random.Random
) -> list[psutil.Process] | None:
    """Wait for a random moment: while it loads, works or, once all is committed, merges. None when it ended before."""
    marker = out / "parts" / "shard-00000-of-00001" / "complete.json"
    merging = marker.exists()
    moment = time.monotonic() + (
        dice.uniform(0, calm.start_s + calm.merge_s)
        if merging
        else dice.uniform(0.7 * calm.start_s, calm.start_s + max(2 * calm.work_s / wanted, LEAST_WORK_S))
    )
    while time.monotonic() < moment:
        if process.poll() is not None:
            return None
        if not merging and marker.exists():
            merging, moment = True, time.monotonic() + dice.uniform(0, calm.merge_s)
        time.sleep(0.001)
    family = tree(process.pid)
    return family if process.poll() is None else None


def _judge(out: Path, trace: Path, family: list[psutil.Process], tally: Tally) -> None:
    """What one kill cost."""
    events = list(read_trace(trace))
    taken = Counter(item for what, item, _ in events if what == "taken")
    finished = {item for what, item, _ in events if what == "finished"}
    parts = committed(out)
    kinds = {what for what, *_ in events}
    tally.moments["merging" if "merging" in kinds else "working" if kinds else "starting"] += 1
    tally.in_vain.append(len(finished - parts.keys()))
    tally.in_hand.append(sum(n for item, n in taken.items() if item not in finished and item not in parts))
    tally.twice += sum(n > 1 for n in parts.values())
    _, alive = psutil.wait_procs(family, timeout=ORPHANS_S)
    tally.orphans += len(alive)


def killed(name: str, job: Job, folder: Path, wanted: int, dice: random.Random, bars: Bars) -> None:
    """A scenario: as many rounds of killing as `wanted` takes, each compared with the undisturbed run."""
    calm = undisturbed(job, folder)
    print(
        f"undisturbed: {calm.start_s:.2f} s until the engine's first chunk, {calm.work_s:.2f} s of work, "
        f"{calm.merge_s:.3f} s to merge; {calm.lines('transcripts.jsonl')} transcripts, "
        f"{calm.lines('failures.jsonl')} failures, {len(calm.outputs) - 2} subtitles"
    )
    tally, rounds, differs = Tally(), 0, ""
    while tally.kills < wanted:
        rounds += 1
        out = folder / f"round-{rounds}"
        code = kill_until_done(job, out, calm, wanted, dice, tally)
        differs = differs or difference(outputs(out), calm.outputs)
        print(f"round {rounds}: exit {code} after {tally.kills} kills, {leftovers(out)} temporary files left in OUT")
    print(f"{tally.kills} kills: {', '.join(f'{n} while {what}' for what, n in tally.moments.items())}")
    print(
        f"done in vain a kill: finished items {_spread(tally.in_vain)}; chunks in the engine {_spread(tally.in_hand)}"
    )
    bars.holds(f"{name}: bytes equal to the undisturbed run's", not differs, differs)
    bars.at_most(f"{name}: finished items done in vain by one kill", max(tally.in_vain), job.part_items)
    bars.at_most(f"{name}: items in two parts", tally.twice, 0)
    bars.at_most(f"{name}: processes left behind", tally.orphans, 0)


def _spread(counts: list[int]) -> str:
    return f"{sum(counts) / len(counts):.1f} on average, at most {max(counts)}"


# ── company ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def two_at_once(name: str, job: Job, folder: Path, bars: Bars) -> None:
    out = folder / "two"
    codes = [process.wait() for process in [start(job, out), start(job, out)]]
    print(f"two processes on one shard: exits {codes}")
    differs = difference(outputs(out), outputs(folder / "undisturbed"))
    bars.holds(f"{name}: two on one shard give the same bytes", not differs, differs)
    bars.at_most(f"{name}: items in two parts", sum(n > 1 for n in committed(out).values()), 0)


def four_shards(name: str, job: Job, folder: Path, dice: random.Random, bars: Bars) -> None:
    out, unlucky = folder / "four", dice.randrange(4)
    shards = [start(job, out, "--shard", f"{i}/4") for i in range(4)]
    _wait_for_part(out / "parts" / f"shard-{unlucky:05d}-of-00004", shards[unlucky])
    shards[unlucky].kill()
    codes = [process.wait() for process in shards]
    codes.append(start(job, out, "--shard", f"{unlucky}/4").wait())
    print(f"four shards, shard {unlucky} killed after its first part and started again: exits {codes}")
    differs = difference(outputs(out), outputs(folder / "undisturbed"))
    bars.holds(f"{name}: four shards give the same bytes", not differs, differs)


def _wait_for_part(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not (folder / "part-00000.jsonl").exists():
        time.sleep(0.005)


# ── the two engines ───────────────────────────────────────────────────────────────────────────────────────────────────


def rows(recordings: int, copies: int = 1) -> list[dict[str, object]]:
    """Short English recordings, and MISSING rows between them whose files do not exist."""
    short = [row for row in english_rows() if SHORT_S[0] <= row["duration"] <= SHORT_S[1]][:recordings]
    found: list[dict[str, object]] = [{**row, "id": f"{n}/{row['id']}"} for n in range(copies) for row in short]
    for n in range(MISSING):
        place = (n + 1) * len(found) // (MISSING + 1)
        found.insert(place, {"id": f"missing-{n}", "audio_filepath": f"missing-{n}.wav", "text": "gone", "lang": "en"})
    return found


def scenario(name: str, job: Job, wanted: int, seed: int, bars: Bars) -> None:
    lines = len(job.manifest.read_text().splitlines())
    print(f"\n== {name}: {lines} rows, a part every {job.part_items} items, {wanted} kills")
    with tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as folder:
        dice = random.Random(seed)
        killed(name, job, Path(folder), wanted, dice, bars)
        two_at_once(name, job, Path(folder), bars)
        four_shards(name, job, Path(folder), dice, bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=80)
    parser.add_argument("--kills", type=int, default=20, help="with the embedded engine")
    parser.add_argument("--scripted-kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as name:
        real = write_manifest(Path(name) / "real.jsonl", rows(given.recordings))
        many = write_manifest(Path(name) / "many.jsonl", rows(100, copies=10))
        embedded = ("--engine", "faster-whisper", "--engine-option", "beam_size=1")
        slow = ("--engine", "scripted", "--engine-option", "delay_s=0.1", "--engine-option", "shuffle=true")
        if given.kills:
            scenario("faster-whisper", Job(real, embedded, 5), given.kills, given.seed, bars)
        if given.scripted_kills:
            scenario("stand-in", Job(many, slow, 5), given.scripted_kills, given.seed, bars)
    print(f"\nprocesses of this benchmark still alive: {len(tree(os.getpid())) - 1}")
    bars.leave()


if __name__ == "__main__":
    main()
