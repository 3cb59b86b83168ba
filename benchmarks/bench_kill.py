"""Kill runs at random moments (SIGKILL) and resume them: the outputs must be the bytes of an undisturbed run.

Real recordings run through the embedded engine; some rows name missing files. The same happens with the stand-in engine
and more kills. After each kill the benchmark counts lost work (finished items that are in no part), and looks for items
in two parts and for processes that are left behind. Input and output are in a local folder, then in buckets of a Cloud
Storage server and of an S3 server.

In the last scenario, random signals (SIGTERM, SIGKILL, SIGSTOP and later SIGCONT) reach random processes of a run: the
main process, a worker, a decoder, ffmpeg, or all of them. The run is resumed whenever it ended. The outputs must be the
bytes of an undisturbed run, so that no signal becomes an item's failure.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from common import Bars, english_rows, machine, parser, tree
from stores import KINDS, Place, committed, difference, outputs, place

from voxbatch.audio.ffmpeg import executable
from voxbatch.storage import Store

TRACED = Path(__file__).with_name("traced.py")
SHORT_S = (1.0, 6.0)
"""Range of durations of the recordings."""
RECORDINGS, SIGNALLED = 40, 80
"""Numbers of recordings of the embedded engine, and in the scenario of signals."""
MISSING = 8
"""Rows whose file does not exist."""
PART_ITEMS = 5
LEAST_WORK_S = 0.5
"""Seconds of work that the latest of the first kills allow, so that some items are committed. The second half of the
kills come at any moment of the work, so that runs also come to their merge. A run that finishes before all kills have
happened is started anew."""
STARTING = 0.2
"""Share of the kills that come before the engine takes its first chunk."""
LOOK_S = 0.002
"""Seconds between two looks at the trace of a run."""
ORPHANS_S = 10.0
"""Seconds that a decoder process may live after its run was killed."""
HANG_S = 2.0
"""Seconds after which a decoder hangs in the scenario of signals, so that processes are also stopped for longer. It
holds for the decoders of the main process, and not for those of workers."""
NO_HANG_S = 120.0
STOPPED_S = (0.1, 3.0)
"""Range of the time between SIGSTOP and SIGCONT."""
GAP_S = (0.1, 0.8)
"""Range of the time between two signals."""
SETTLED_S = 3.0
"""Age from which a decoder is killed. A younger one may have the item of a decoder that was killed. An item whose
decoder is killed twice fails, which tests/core/test_run.py checks."""
COMING_S = 5.0
"""Seconds for which the scenario waits for a process to signal."""
END_S = 120.0
"""Seconds in which a run must end after its last signal."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Job:
    """The work that all runs of a scenario share. Options may change how the work is done, but not the output."""

    name: str
    place: Place
    """It has the manifest, m.jsonl."""
    engine: tuple[str, ...]

    def start(self, out: str, *extra: str, trace: str | Path = os.devnull, hang_s: float = NO_HANG_S) -> psutil.Popen:
        """Start a run with a trace of its items."""
        arguments = [
            "run", self.place / "m.jsonl", "-o", self.place / out, "--allow-outside", "--formats", "srt",
            "--part-items", PART_ITEMS, *self.engine, *extra,
        ]  # fmt: skip
        return psutil.Popen(
            list(map(str, [sys.executable, TRACED, trace, hang_s, *arguments])),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def outputs(self, out: str) -> dict[str, bytes | None]:
        """Return the merged outputs and subtitles of a run."""
        return outputs(self.place.store(out))


@dataclass(slots=True)
class Tally:
    """The kills or signals of a scenario, and their effects."""

    sent: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    in_vain: list[int] = field(default_factory=list)
    """Finished items that each kill lost."""
    killed_sizes: set[int] = field(default_factory=set)
    """Sizes of the recordings whose ffmpeg was killed in this round. None is killed twice: see SETTLED_S."""
    differs: str = ""
    twice: int = 0
    orphans: int = 0
    endless: int = 0

    def add_end(self, store: Store, family: Iterable[psutil.Process]) -> None:
        """Count the items in two parts, and the processes of an ended run that are left behind."""
        _, alive = psutil.wait_procs(list(family), timeout=ORPHANS_S)
        self.orphans += sum(child.status() != psutil.STATUS_ZOMBIE for child in alive if child.is_running())
        self.twice += sum(n > 1 for n in committed(store).values())

    def judge(self, name: str, bars: Bars) -> None:
        """Print the tally, and check the bars of both kinds of scenarios."""
        print(f"{self.sent.total()} in all: {', '.join(f'{n} {what}' for what, n in sorted(self.sent.items()))}")
        bars.holds(f"{name}: bytes equal to the undisturbed run's", not self.differs, self.differs)
        bars.at_most(f"{name}: items in two parts", self.twice, 0)
        bars.at_most(f"{name}: processes left behind", self.orphans, 0)


def read_trace(trace: Path) -> Iterator[tuple[str, int, float]]:
    """Yield (event, item, clock time) of each line of a trace."""
    if trace.exists():
        for line in trace.read_text().splitlines():
            what, item, clock = line.split()
            yield what, int(item), float(clock)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The outputs and the times of an undisturbed run."""

    outputs: dict[str, bytes | None]
    start_s: float
    """Seconds until the engine took its first chunk."""
    work_s: float
    merge_s: float


def undisturbed(job: Job, folder: Path) -> Undisturbed:
    """Perform the undisturbed run."""
    trace, began = folder / "undisturbed.trace", time.time()
    code = job.start("undisturbed", trace=trace).wait()
    ended = time.time()
    if code != 3:
        raise SystemExit(f"the undisturbed run ended with {code}, not with 3 (some failed)")
    clocks = {what: clock for what, _, clock in reversed(list(read_trace(trace)))}
    start_s, work_s = clocks["taken"] - began, clocks["merging"] - clocks["taken"]
    calm = Undisturbed(job.outputs("undisturbed"), start_s, work_s, ended - clocks["merging"])
    print(
        f"undisturbed: {calm.start_s:.2f} s until the engine's first chunk, {calm.work_s:.2f} s of work, "
        f"{calm.merge_s:.3f} s to merge"
    )
    return calm


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def killed(job: Job, folder: Path, wanted: int, dice: random.Random, bars: Bars) -> None:
    """Perform a scenario: as many rounds of kills as `wanted` needs, each compared with the undisturbed run."""
    print(f"\n== {job.name}: a part every {PART_ITEMS} items, {wanted} kills")
    calm, tally, rounds = undisturbed(job, folder), Tally(), 0
    while tally.sent.total() < wanted:
        rounds += 1
        out = f"round-{rounds}"
        code = kill_until_done(job, out, folder, calm, wanted, dice, tally)
        tally.differs = tally.differs or difference(job.outputs(out), calm.outputs)
        print(f"round {rounds}: exit {code} after {tally.sent.total()} kills")
    tally.judge(job.name, bars)
    print(f"finished items done in vain by a kill: {sum(tally.in_vain) / len(tally.in_vain):.1f} on average")
    bars.at_most(f"{job.name}: finished items done in vain by one kill", max(tally.in_vain), PART_ITEMS)


def kill_until_done(
    job: Job, out: str, folder: Path, calm: Undisturbed, wanted: int, dice: random.Random, tally: Tally
) -> int:
    """Start and kill runs until `wanted` kills have landed, then let the run finish; return the last process's exit
    code.
    """
    store = job.place.store(out)
    while tally.sent.total() < wanted:
        trace = folder / f"{out}-{tally.sent.total()}.trace"
        process = job.start(out, trace=trace)
        share = 2 / wanted if tally.sent.total() < wanted / 2 else 1.0
        family = _live_until(process, trace, calm, share, dice)
        if family is None:
            return int(process.wait())  # the run finished before the moment of its kill
        process.kill()
        process.wait()
        tally.sent[f"while {_phase(trace)}"] += 1
        items: dict[str, set[int]] = {"taken": set(), "finished": set(), "merging": set()}
        for what, item, _ in read_trace(trace):
            items[what].add(item)
        # The engine has never taken a missing recording, which costs no work.
        tally.in_vain.append(len((items["finished"] & items["taken"]) - committed(store).keys()))
        tally.add_end(store, family)
    return int(job.start(out).wait())


def _phase(trace: Path) -> str:
    """Return the phase that a run has reached."""
    events = trace.read_bytes() if trace.exists() else b""
    return "merging" if b"merging" in events else "working" if events else "starting"


def _live_until(
    process: psutil.Popen, trace: Path, calm: Undisturbed, share: float, dice: random.Random
) -> list[psutil.Process] | None:
    """Wait for a random moment of a phase of the run.

    Args:
        share: share of the undisturbed run's work within which the run is killed, if it is not merging.

    Returns:
        The processes of the run; None if it ended before the moment.
    """
    lengths_s = {
        "starting": calm.start_s / STARTING,
        "working": max(share * calm.work_s, LEAST_WORK_S),
        "merging": calm.merge_s,
    }
    phase, moment = "", 0.0
    while process.poll() is None:
        if (reached := _phase(trace)) != phase:
            phase, moment = reached, time.monotonic() + dice.uniform(0, lengths_s[reached])
        if time.monotonic() >= moment:
            family = tree(process.pid)
            return family if process.poll() is None else None
        time.sleep(LOOK_S)
    return None


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────


ROLES = {"worker": "runner.workers.worker", "decoder": "decoding.decoder", "ffmpeg": "pipe:1"}
"""Roles of child processes, each with a part of its command line."""
RESUMABLE = {1, 3, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL}
"""Exit codes that a run may have here."""


def signalled(job: Job, folder: Path, wanted: int, dice: random.Random, bars: Bars) -> None:
    """Perform the scenario: as many rounds as `wanted` signals need, each compared with an undisturbed run."""
    print(f"\n== {job.name}: a part every {PART_ITEMS} items, {wanted} signals")
    calm, tally, rounds = undisturbed(job, folder), Tally(), 0
    while tally.sent.total() < wanted:
        rounds += 1
        out = f"round-{rounds}"
        tally.killed_sizes.clear()
        while signal_until_end(job, out, wanted, dice, tally) != 3 and not tally.endless:
            pass
        tally.differs = tally.differs or difference(job.outputs(out), calm.outputs)
        print(f"round {rounds}: {tally.sent.total()} signals so far")
    tally.judge(job.name, bars)
    print(f"exit codes: {', '.join(f'{n} times {code}' for code, n in sorted(tally.codes.items()))}")
    bars.holds(f"{job.name}: every run can be resumed", tally.codes.keys() <= RESUMABLE)
    bars.at_most(f"{job.name}: runs that do not end", tally.endless, 0)


def signal_until_end(job: Job, out: str, wanted: int, dice: random.Random, tally: Tally) -> int:
    """Start a run, in one process or with two workers, and send it signals until it ends. Return its exit code."""
    workers = dice.choice((1, 2))
    process = job.start(out, "--engine-option", f"workers={workers}", hang_s=HANG_S)
    family: set[psutil.Process] = set()
    while process.poll() is None and tally.sent.total() < wanted:
        time.sleep(dice.uniform(*GAP_S))
        family.update(tree(process.pid))
        send_signal(process, dice, tally, [role for role in ROLES if role != "worker" or workers > 1])
    family.update(tree(process.pid))
    try:
        code = process.wait(END_S)
    except psutil.TimeoutExpired:
        tally.endless += 1
        for member in tree(process.pid):
            member.kill()
        code = process.wait()
    tally.codes[code] += 1
    tally.add_end(job.place.store(out), family - {process})
    return int(code)


def send_signal(run: psutil.Popen, dice: random.Random, tally: Tally, roles: list[str]) -> None:
    """Send a random signal to a random process of a run, or to all; none if such a process does not come.

    Args:
        roles: the roles of the child processes that the run has.
    """
    number = dice.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP))
    role = dice.choice(("main", "all", *2 * roles))
    victims = _victims(run, role, number, tally)
    if role != "all":
        victims = dice.sample(victims, min(1, len(victims)))
    if not victims:
        return
    dice.shuffle(victims)
    for victim in victims:
        if role == "ffmpeg" and number != signal.SIGSTOP:
            tally.killed_sizes.add(_recording_size(victim))
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
    if number == signal.SIGSTOP:
        time.sleep(dice.uniform(*STOPPED_S))
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.resume()
    tally.sent[f"{signal.Signals(number).name} to {role}"] += 1


def _victims(run: psutil.Popen, role: str, number: int, tally: Tally) -> list[psutil.Process]:
    """Return the processes that the signal may reach. A child process is waited for: an ffmpeg lives for a tenth of a
    second."""
    if role in ("main", "all"):
        return tree(run.pid)[: 1 if role == "main" else None]
    kills = number == signal.SIGKILL or (number == signal.SIGTERM and role == "ffmpeg")
    limit = time.monotonic() + COMING_S
    while time.monotonic() < limit and run.poll() is None:
        victims = []
        for child in tree(run.pid)[1:]:
            with suppress(psutil.Error, OSError):
                young = role == "decoder" and time.time() - child.create_time() < SETTLED_S
                again = role == "ffmpeg" and _recording_size(child) in tally.killed_sizes
                if ROLES[role] in " ".join(child.cmdline()) and not (kills and (young or again)):
                    victims.append(child)
        if victims:
            return victims
        time.sleep(0.01)
    return []


def _recording_size(ffmpeg: psutil.Process) -> int:
    """Return the size of the recording that an ffmpeg reads, by which the recordings of this benchmark differ."""
    with suppress(psutil.Error, OSError, StopIteration):
        name = next(word for word in ffmpeg.cmdline() if word.startswith("file:/dev/fd/"))
        return os.stat(f"/proc/{ffmpeg.pid}/fd/{name.rpartition('/')[2]}").st_size
    return 0


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def speech(recordings: int, copies: int = 1) -> Rows:
    """Return short English recordings, with MISSING rows between them whose files do not exist."""
    short = [row for row in english_rows() if SHORT_S[0] <= row["duration"] <= SHORT_S[1]][:recordings]
    rows = [{**row, "id": f"{n}/{row['id']}"} for n in range(copies) for row in short]
    for n in range(MISSING):
        index = (n + 1) * len(rows) // (MISSING + 1)
        rows.insert(index, {"id": f"missing-{n}", "audio_filepath": f"missing-{n}.wav", "text": "gone", "lang": "en"})
    return rows


def recoded(rows: Rows, folder: Path) -> Rows:
    """Return rows of which two thirds name recordings that only ffmpeg decodes, m4a and mka, written into a folder."""
    for n, row in enumerate(rows):
        kind, codec = ((None, ""), (".m4a", "aac"), (".mka", "flac"))[n % 3]
        if kind and os.path.exists(row["audio_filepath"]):
            path = str(folder / f"{n}{kind}")
            subprocess.run([executable(), "-v", "error", "-i", row["audio_filepath"], "-c:a", codec, path], check=True)
            row["audio_filepath"] = path
    return rows


def put(place: Place, rows: Rows) -> Place:
    """Write the manifest and, into a bucket, its recordings."""
    if place.kind != "local":
        paths = {row["audio_filepath"] for row in rows}
        place.put((_short(path), Path(path).read_bytes()) for path in paths if os.path.exists(path))
        rows = [{**row, "audio_filepath": _short(row["audio_filepath"])} for row in rows]
    place.put_rows("m.jsonl", rows)
    return place


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=4, help="with the embedded engine, on each store")
    options.add_argument("--scripted-kills", type=int, default=20, help="on each store")
    options.add_argument("--signals", type=int, default=10, help="on each store")
    options.add_argument("--stores", nargs="+", choices=KINDS, default=["local", "gcs", "seaweedfs"])
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = options.parse_args()
    bars = Bars()
    print(machine())
    print(f"seed {given.seed}")
    embedded = ("--engine", "faster-whisper", "--engine-option", "beam_size=1")
    slow = ("--engine", "scripted", "--engine-option", "delay_s=0.1", "--engine-option", "shuffle=true")
    slower = ("--engine", "scripted", "--engine-option", "delay_s=0.4")
    with tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as name:
        mixed = recoded(speech(SIGNALLED), Path(name))
        for kind in given.stores:
            for title, perform, engine, rows, wanted in (
                ("faster-whisper", killed, embedded, speech(RECORDINGS), given.kills),
                ("stand-in", killed, slow, speech(100, copies=10), given.scripted_kills),
                ("signals", signalled, slower, mixed, given.signals),
            ):
                if wanted:
                    with place(kind) as where, tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as traces:
                        job = Job(f"{kind}, {title}", put(where, rows), engine)
                        perform(job, Path(traces), wanted, random.Random(given.seed), bars)
    print(f"\nprocesses of this benchmark still alive: {len(tree(os.getpid())) - 1}")
    bars.leave()


if __name__ == "__main__":
    main()
