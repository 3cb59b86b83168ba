"""Kill runs at random moments (SIGKILL) and resume them: the outputs must be the bytes of an undisturbed run.

Real recordings run through the embedded engine; some rows name missing files. The same happens with the stand-in engine
and ten times the kills, with two processes on one shard at once, and with four shards side by side of which one is
killed.

After each kill the benchmark counts lost work (finished items that are in no part, and chunks that the engine had), and
looks for items in two parts and for processes that are left behind. Input and output are in a local folder, then in
buckets of a Cloud Storage server and of an S3 server.

In the last scenario, random signals (SIGTERM, SIGKILL, SIGSTOP and later SIGCONT) reach random processes of a run: the
main process, a worker, a decoder, ffmpeg, or all of them. The run is resumed whenever it ended. The outputs must be the
bytes of an undisturbed run, so that no signal becomes an item's failure.

Other options go to the runs of the embedded engine, for example `--speakers auto --speaker-model FOLDER`. With
`--channels`, its recordings are stereo.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from common import TRACED, VOXBATCH, Bars, english_rows, machine, tree
from stores import KINDS, Place, committed, outputs, place

from voxbatch.audio.ffmpeg import executable
from voxbatch.storage import Store

SHORT_S = (1.0, 6.0)
"""Range of durations of the recordings."""
SIGNALLED = 210
"""Number of recordings in the scenario of signals."""
MISSING = 8
"""Rows whose file does not exist."""
LEAST_WORK_S = 0.5
"""Seconds of work that the latest kills allow, so that some items are committed.

A run that finishes before all kills have happened is started anew.
"""
LOOK_S = 0.02
"""Seconds between two requests to a bucket."""
ORPHANS_S = 10.0
"""Seconds that a decoder process may live after its run was killed."""
HANG_S = 2.0
"""Seconds after which a decoder hangs in the scenario of signals, so that processes are also stopped for longer. It
holds for the decoders of the main process, and not for those of workers."""
STOPPED_S = (0.1, 3.0)
"""Range of the time between SIGSTOP and SIGCONT."""
GAP_S = (0.1, 0.8)
"""Range of the time between two signals."""
SETTLED_S = 3.0
"""Age from which a decoder is killed. A younger one may have the item of a decoder that was killed. An item whose
decoder is killed twice fails, which tests/test_run.py checks."""
COMING_S = 5.0
"""Seconds for which the scenario waits for a process to signal."""
END_S = 120.0
"""Seconds in which a run must end after its last signal."""


@dataclass(frozen=True, slots=True)
class Job:
    """The work that all runs of a scenario share. Options may change how the work is done, but not the output."""

    place: Place
    manifest: str
    """Name of the manifest in the place."""
    lines: int
    engine: tuple[str, ...]
    part_items: int

    def arguments(self, out: str, *extra: str) -> list[str]:
        """Return the arguments of voxbatch for a run into `out`."""
        return [
            "run", self.place / self.manifest, "-o", self.place / out, "--allow-outside", "--formats", "srt",
            "--log-format", "json", "--part-items", str(self.part_items), *self.engine, *extra,
        ]  # fmt: skip


@dataclass(slots=True)
class Tally:
    """The effects of all kills of a scenario."""

    moments: Counter[str] = field(default_factory=Counter)
    in_vain: list[int] = field(default_factory=list)
    in_hand: list[int] = field(default_factory=list)
    twice: int = 0
    orphans: int = 0

    @property
    def kills(self) -> int:
        """Return the number of kills."""
        return sum(self.moments.values())


# ── outputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def difference(found: dict[str, bytes | None], wanted: dict[str, bytes | None]) -> str:
    """Return the first file that is missing, unexpected or different, and the place; "" if all bytes are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        ours, theirs = found.get(name), wanted.get(name)
        if ours is None or theirs is None:
            return f"{name} is {'missing' if ours is None else 'too many'}"
        if ours != theirs:
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            return f"{name} differs from byte {at}: {ours[at : at + 60]!r} for {theirs[at : at + 60]!r}"
    return ""


def leftovers(job: Job, out: str) -> int:
    """Return the number of temporary files that killed writers left; in a bucket, of objects that do not belong to a
    run.
    """
    if job.place.kind == "local":
        return sum(1 for _ in Path(job.place / out).rglob(".tmp-*"))
    ours = re.compile(r"(parts|srt)/.*|(transcripts|failures)\.jsonl|(summary|run)\.json")
    return sum(not ours.fullmatch(name) for name in job.place.store(out).names(""))


# ── one process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def start(job: Job, out: str, *extra: str, trace: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a run, with a trace of its items if `trace` is given."""
    command = [*TRACED, "--items", str(trace)] if trace else VOXBATCH
    return subprocess.Popen(
        [*command, *job.arguments(out, *extra)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


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

    def lines(self, name: str) -> int:
        """Return the number of lines of an output."""
        return self.outputs[name].count(b"\n")


def undisturbed(job: Job, folder: Path) -> Undisturbed:
    """Perform the undisturbed run."""
    out, trace = "undisturbed", folder / "undisturbed.trace"
    began = time.time()
    code = start(job, out, trace=trace).wait()
    ended = time.time()
    if code != 3:
        raise SystemExit(f"the undisturbed run ended with {code}, not with 3 (some failed)")
    clocks = {what: clock for what, _, clock in reversed(list(read_trace(trace)))}
    return Undisturbed(
        outputs(job.place.store(out)),
        clocks["taken"] - began,
        clocks["merging"] - clocks["taken"],
        ended - clocks["merging"],
    )


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill_until_done(
    job: Job, out: str, folder: Path, calm: Undisturbed, wanted: int, dice: random.Random, tally: Tally
) -> int:
    """Start and kill runs until `wanted` kills have landed, then let the run finish; return the last process's exit
    code.
    """
    while tally.kills < wanted:
        trace = folder / f"{out}-{tally.kills}.trace"
        process = start(job, out, trace=trace)
        family = _live_until(process, job.place.store(out), calm, wanted, dice)
        if family is None:
            return int(process.wait())  # the run finished before the moment of its kill
        process.kill()
        process.wait()
        _judge(job.place.store(out), trace, family, tally)
    return int(start(job, out).wait())


def _live_until(
    process: subprocess.Popen[bytes], store: Store, calm: Undisturbed, wanted: int, dice: random.Random
) -> list[psutil.Process] | None:
    """Wait for a random moment while the run loads, works or (after its last commit) merges.

    Returns:
        The processes of the run; None if it ended before the moment.
    """
    marker = "parts/shard-00000-of-00001/complete.json"
    merging = store.exists(marker)
    moment = time.monotonic() + (
        dice.uniform(0, calm.start_s + calm.merge_s)
        if merging
        else dice.uniform(0.7 * calm.start_s, calm.start_s + max(2 * calm.work_s / wanted, LEAST_WORK_S))
    )
    while time.monotonic() < moment:
        if process.poll() is not None:
            return None
        if not merging and store.exists(marker):
            merging, moment = True, time.monotonic() + dice.uniform(0, calm.merge_s)
        time.sleep(LOOK_S if store.concurrency > 1 else 0.001)
    family = tree(process.pid)
    return family if process.poll() is None else None


def _judge(store: Store, trace: Path, family: list[psutil.Process], tally: Tally) -> None:
    """Add the cost of one kill to the tally."""
    events = list(read_trace(trace))
    taken = Counter(item for what, item, _ in events if what == "taken")
    finished = {item for what, item, _ in events if what == "finished"}
    parts = committed(store)
    kinds = {what for what, *_ in events}
    tally.moments["merging" if "merging" in kinds else "working" if kinds else "starting"] += 1
    tally.in_vain.append(len(finished - parts.keys()))
    tally.in_hand.append(sum(n for item, n in taken.items() if item not in finished and item not in parts))
    tally.twice += sum(n > 1 for n in parts.values())
    _, alive = psutil.wait_procs(family, timeout=ORPHANS_S)
    tally.orphans += len(alive)


def killed(name: str, job: Job, folder: Path, wanted: int, dice: random.Random, bars: Bars) -> None:
    """Perform a scenario: as many rounds of kills as `wanted` needs, each compared with the undisturbed run."""
    calm = undisturbed(job, folder)
    print(
        f"undisturbed: {calm.start_s:.2f} s until the engine's first chunk, {calm.work_s:.2f} s of work, "
        f"{calm.merge_s:.3f} s to merge; {calm.lines('transcripts.jsonl')} transcripts, "
        f"{calm.lines('failures.jsonl')} failures, {len(calm.outputs) - 2} subtitles"
    )
    tally, rounds, differs = Tally(), 0, ""
    while tally.kills < wanted:
        rounds += 1
        out = f"round-{rounds}"
        code = kill_until_done(job, out, folder, calm, wanted, dice, tally)
        differs = differs or difference(outputs(job.place.store(out)), calm.outputs)
        left = leftovers(job, out)
        print(f"round {rounds}: exit {code} after {tally.kills} kills, {left} temporary files left in OUT")
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


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────


ROLES = {"worker": "runner.workers.worker", "decoder": "decoding.decoder", "ffmpeg": "pipe:1"}
"""Roles of child processes, each with a part of its command line."""
RESUMABLE = {1, 3, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL}
"""Exit codes that a run may have here."""


@dataclass(slots=True)
class Signals:
    """Signals that were sent, and their effects."""

    sent: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    killed_sizes: set[int] = field(default_factory=set)
    """Sizes of the recordings whose ffmpeg was killed in this round. None is killed twice: see SETTLED_S."""
    twice: int = 0
    orphans: int = 0
    endless: int = 0

    @property
    def total(self) -> int:
        """Return the number of signals."""
        return sum(self.sent.values())


def signalled(name: str, job: Job, folder: Path, wanted: int, dice: random.Random, bars: Bars) -> None:
    """Perform the scenario: as many rounds as `wanted` signals need, each compared with an undisturbed run."""
    calm, signals, rounds, differs = undisturbed(job, folder), Signals(), 0, ""
    while signals.total < wanted:
        rounds += 1
        out = f"round-{rounds}"
        signals.killed_sizes.clear()
        while signal_until_end(job, out, wanted, dice, signals) != 3 and not signals.endless:
            pass
        differs = differs or difference(outputs(job.place.store(out)), calm.outputs)
        print(f"round {rounds}: {signals.total} signals so far, {leftovers(job, out)} temporary files left in OUT")
    print(f"{signals.total} signals: {', '.join(f'{n} {what}' for what, n in sorted(signals.sent.items()))}")
    print(f"exit codes: {', '.join(f'{n} times {code}' for code, n in sorted(signals.codes.items()))}")
    bars.holds(f"{name}: bytes equal to the undisturbed run's", not differs, differs)
    bars.holds(f"{name}: every run can be resumed", signals.codes.keys() <= RESUMABLE)
    bars.at_most(f"{name}: runs that do not end", signals.endless, 0)
    bars.at_most(f"{name}: items in two parts", signals.twice, 0)
    bars.at_most(f"{name}: processes left behind", signals.orphans, 0)


def signal_until_end(job: Job, out: str, wanted: int, dice: random.Random, signals: Signals) -> int:
    """Start a run, in one process or with two workers, and send it signals until it ends. Return its exit code."""
    workers = dice.choice((1, 2))
    arguments = job.arguments(out, "--engine-option", f"workers={workers}")
    process = psutil.Popen(
        [*TRACED, "--hang-s", str(HANG_S), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    family: set[psutil.Process] = set()
    while process.poll() is None and signals.total < wanted:
        time.sleep(dice.uniform(*GAP_S))
        family.update(tree(process.pid))
        send_signal(process, dice, signals, [role for role in ROLES if role != "worker" or workers > 1])
    family.update(tree(process.pid))
    try:
        code = process.wait(END_S)
    except psutil.TimeoutExpired:
        signals.endless += 1
        for each in tree(process.pid):
            each.kill()
        code = process.wait()
    _, alive = psutil.wait_procs(family - {process}, timeout=ORPHANS_S)
    signals.orphans += sum(each.status() != psutil.STATUS_ZOMBIE for each in alive if each.is_running())
    signals.codes[code] += 1
    signals.twice += sum(n > 1 for n in committed(job.place.store(out)).values())
    return int(code)


def send_signal(run: psutil.Popen, dice: random.Random, signals: Signals, roles: list[str]) -> None:
    """Send a random signal to a random process of a run, or to all; none if such a process does not come.

    Args:
        roles: the roles of the child processes that the run has.
    """
    number = dice.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP))
    role = dice.choice(("main", "all", *2 * roles))
    victims = _victims(run, role, number, signals)
    if role != "all":
        victims = dice.sample(victims, min(1, len(victims)))
    if not victims:
        return
    dice.shuffle(victims)
    for victim in victims:
        if role == "ffmpeg" and number != signal.SIGSTOP:
            signals.killed_sizes.add(_recording_size(victim))
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
    if number == signal.SIGSTOP:
        time.sleep(dice.uniform(*STOPPED_S))
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.resume()
    signals.sent[f"{signal.Signals(number).name} to {role}"] += 1


def _victims(run: psutil.Popen, role: str, number: int, signals: Signals) -> list[psutil.Process]:
    """Return the processes that the signal may reach. A child process is waited for: an ffmpeg lives for a tenth of a
    second."""
    if role in ("main", "all"):
        return tree(run.pid)[: 1 if role == "main" else None]
    kills = number == signal.SIGKILL or (number == signal.SIGTERM and role == "ffmpeg")
    limit = time.monotonic() + COMING_S
    while time.monotonic() < limit and run.poll() is None:
        found = []
        for each in tree(run.pid)[1:]:
            with suppress(psutil.Error, OSError):
                young = role == "decoder" and time.time() - each.create_time() < SETTLED_S
                again = role == "ffmpeg" and _recording_size(each) in signals.killed_sizes
                if ROLES[role] in " ".join(each.cmdline()) and not (kills and (young or again)):
                    found.append(each)
        if found:
            return found
        time.sleep(0.01)
    return []


def _recording_size(ffmpeg: psutil.Process) -> int:
    """Return the size of the recording that an ffmpeg reads, by which the recordings of this benchmark differ."""
    with suppress(psutil.Error, OSError, StopIteration):
        name = next(each for each in ffmpeg.cmdline() if each.startswith("file:/dev/fd/"))
        return os.stat(f"/proc/{ffmpeg.pid}/fd/{name.rpartition('/')[2]}").st_size
    return 0


# ── company ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def two_at_once(name: str, job: Job, bars: Bars) -> None:
    """Run two processes on one shard, and compare the outputs."""
    out, store = "two", job.place.store("two")
    codes = [process.wait() for process in [start(job, out), start(job, out)]]
    print(f"two processes on one shard: exits {codes}")
    differs = difference(outputs(store), outputs(job.place.store("undisturbed")))
    bars.holds(f"{name}: two on one shard give the same bytes", not differs, differs)
    bars.at_most(f"{name}: items in two parts", sum(n > 1 for n in committed(store).values()), 0)


def four_shards(name: str, job: Job, dice: random.Random, bars: Bars) -> None:
    """Run four shards, kill one after its first part, start it again, and compare the outputs."""
    out, unlucky = "four", dice.randrange(4)
    store = job.place.store(out)
    shards = [start(job, out, "--shard", f"{i}/4") for i in range(4)]
    _wait_for(store, f"parts/shard-{unlucky:05d}-of-00004/part-00000.jsonl", shards[unlucky])
    shards[unlucky].kill()
    codes = [process.wait() for process in shards]
    codes.append(start(job, out, "--shard", f"{unlucky}/4").wait())
    print(f"four shards, shard {unlucky} killed after its first part and started again: exits {codes}")
    differs = difference(outputs(store), outputs(job.place.store("undisturbed")))
    bars.holds(f"{name}: four shards give the same bytes", not differs, differs)


def _wait_for(store: Store, name: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not store.exists(name):
        time.sleep(0.005)


# ── the two engines ───────────────────────────────────────────────────────────────────────────────────────────────────


def rows(recordings: int, copies: int = 1) -> list[dict[str, object]]:
    """Return short English recordings, with MISSING rows between them whose files do not exist."""
    short = [row for row in english_rows() if SHORT_S[0] <= row["duration"] <= SHORT_S[1]][:recordings]
    found: list[dict[str, object]] = [{**row, "id": f"{n}/{row['id']}"} for n in range(copies) for row in short]
    for n in range(MISSING):
        place = (n + 1) * len(found) // (MISSING + 1)
        found.insert(place, {"id": f"missing-{n}", "audio_filepath": f"missing-{n}.wav", "text": "gone", "lang": "en"})
    return found


def recoded(found: list[dict[str, object]], folder: Path) -> list[dict[str, object]]:
    """Return rows of which two thirds name recordings that only ffmpeg decodes, m4a and mka, written into a folder."""
    for n, row in enumerate(found):
        kind, codec = ((None, ""), (".m4a", "aac"), (".mka", "flac"))[n % 3]
        if kind and os.path.exists(str(row["audio_filepath"])):
            path = folder / f"{n}{kind}"
            command = [executable(), "-v", "error", "-i", str(row["audio_filepath"]), "-c:a", codec, str(path)]
            subprocess.run(command, check=True)
            row["audio_filepath"] = str(path)
    return found


def paired(found: list[dict[str, object]], folder: Path) -> list[dict[str, object]]:
    """Return rows whose recordings, written into a folder, have the recording of the row on the left, and the one of
    the row before on the right."""
    other, mono = None, "aresample=16000,aformat=channel_layouts=mono"
    for n, row in enumerate(found):
        audio = str(row["audio_filepath"])
        if os.path.exists(audio):
            path, merged = str(folder / f"{n}.wav"), f"[0]{mono}[left];[1]{mono},apad[right];[left][right]amerge"
            inputs = ["-i", audio, "-i", other or audio]
            subprocess.run([executable(), "-v", "error", *inputs, "-filter_complex", merged, path], check=True)
            row["audio_filepath"], other = path, audio
    return found


def put(place: Place, name: str, found: list[dict[str, object]]) -> int:
    """Write the manifest and, into a bucket, its recordings; return the number of lines."""
    if place.kind != "local":
        paths = {str(row["audio_filepath"]) for row in found}
        place.put((_short(path), Path(path).read_bytes()) for path in paths if os.path.exists(path))
        found = [{**row, "audio_filepath": _short(str(row["audio_filepath"]))} for row in found]
    place.put(iter([(name, "".join(f"{json.dumps(row)}\n" for row in found).encode())]))
    return len(found)


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


def scenario(engine: str, job: Job, wanted: int, seed: int, bars: Bars) -> None:
    """Perform all scenarios with one engine and one place."""
    name = f"{job.place.kind}, {engine}"
    print(f"\n== {name}: {job.lines} rows, a part every {job.part_items} items, {wanted} kills")
    with tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as folder:
        dice = random.Random(seed)
        killed(name, job, Path(folder), wanted, dice, bars)
        two_at_once(name, job, bars)
        four_shards(name, job, dice, bars)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--recordings", type=int, default=80)
    parser.add_argument("--kills", type=int, default=20, help="with the embedded engine")
    parser.add_argument("--scripted-kills", type=int, default=200)
    parser.add_argument("--signals", type=int, default=200, help="on all stores together")
    parser.add_argument("--stores", nargs="+", choices=KINDS, default=["local", "gcs", "seaweedfs"])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given, extra = parser.parse_known_args()
    bars = Bars()
    print(machine())
    print(f"seed {given.seed}")
    embedded = ("--engine", "faster-whisper", "--engine-option", "beam_size=1", *extra)
    slow = ("--engine", "scripted", "--engine-option", "delay_s=0.1", "--engine-option", "shuffle=true")
    slower = ("--engine", "scripted", "--engine-option", "delay_s=0.4")
    for kind in given.stores:
        if given.kills:
            with place(kind) as real, tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as folder:
                found = rows(given.recordings)
                lines = put(real, "real.jsonl", paired(found, Path(folder)) if "--channels" in extra else found)
                scenario("faster-whisper", Job(real, "real.jsonl", lines, embedded, 5), given.kills, given.seed, bars)
        if given.scripted_kills:
            with place(kind) as many:
                lines = put(many, "many.jsonl", rows(100, copies=10))
                scenario("stand-in", Job(many, "many.jsonl", lines, slow, 5), given.scripted_kills, given.seed, bars)
    if given.signals:
        with tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as folder:
            found = recoded(rows(SIGNALLED), Path(folder))
            for n, kind in enumerate(given.stores):
                wanted = given.signals * (n + 1) // len(given.stores) - given.signals * n // len(given.stores)
                with place(kind) as mixed, tempfile.TemporaryDirectory(prefix="voxbatch-kill-") as traces:
                    job = Job(mixed, "mixed.jsonl", put(mixed, "mixed.jsonl", found), slower, 5)
                    print(f"\n== {kind}, signals: {job.lines} rows, a part every 5 items, {wanted} signals")
                    signalled(f"{kind}, signals", job, Path(traces), wanted, random.Random(given.seed), bars)
    print(f"\nprocesses of this benchmark still alive: {len(tree(os.getpid())) - 1}")
    bars.leave()


if __name__ == "__main__":
    main()
