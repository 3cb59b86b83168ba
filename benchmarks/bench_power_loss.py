"""Copy the disk of a run at many moments, as a loss of power would leave it, and continue from each copy: the outputs
must be the bytes of an undisturbed run.

OUT lies on a file system of its own, in an image behind a loop device. The image is a file on XFS, where a copy is a
reflink: it has, at one moment, what the file system has written to its disk. Before every second copy, another program
syncs a file of its own on the same file system: this commits the names of all files, and not yet their bytes. strace
delays each call that changes a name or syncs, so that copies fall between these calls.

Each copy is mounted, which replays its journal. If OUT there differs from that in the copies before, the same command
continues on it. Two OUTs count as equal if each of their folders, and each file in OUT itself, is in the same
conditions: with files that are whole, missing, empty, damaged or as before the run. After the end of a run, the copies
must have all outputs.

It needs root, loop devices, strace, mkfs.xfs (xfsprogs) and mkfs.btrfs (btrfs-progs).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from common import ROOT, VOXBATCH, Bars, machine

sys.path.append(str(ROOT / "tests" / "support"))
from fork_server import ForkServer

FILE_SYSTEMS = {"ext4": "", "ext4 noauto_da_alloc": "noauto_da_alloc", "xfs": "", "btrfs": ""}
"""Name of each file system, the first word of which is its type → its options."""
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}
KINDS = ("fresh", "update", "grown", "retry", "overwrite", "merge")
IMAGE_BYTES = 320 << 20
"""Size of an image, of which little is used. mkfs.xfs makes no smaller ones."""
HOST_BYTES = 8 << 30
CALLS = "link,linkat,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,fsync,fdatasync,syncfs"
DELAY_US = 15_000
"""Time that a call waits after it has changed a name or synced."""
GAP_S = 0.04
"""Time between two copies."""
AFTER_END = 4
"""Number of copies after the end of a run."""
Signature = frozenset[tuple[str, str]]
"""Folders of an OUT and files in it, and their conditions."""
FICLONE = 0x40049409
"""ioctl that makes a file a reflink of another one (linux/fs.h)."""
OPTIONS = ["--engine", "scripted", "--decoders", "1", "--formats", "srt", "--part-items", "10", "--quiet"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of run."""

    command: list[str]
    """Arguments of voxbatch for the run whose disk is copied."""
    continuing: list[str]
    """Arguments of the run that continues on a copy."""
    before: Path | None
    """OUT before the run. None if there is none."""


def outputs(out: Path) -> dict[str, bytes]:
    """Return the outputs that are the same in each run: the transcripts, the failures and the subtitles."""
    return {str(path.relative_to(out)): path.read_bytes() for path in (*out.glob("*.jsonl"), *out.rglob("*.srt"))}


def contents(out: Path) -> dict[str, bytes]:
    """Return all files of OUT."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def signature(files: dict[str, bytes], before: dict[str, bytes], after: dict[str, bytes]) -> Signature:
    """Return the conditions of the files of each folder. OUTs with the same signature count as equal."""
    found = set()
    for name, data in files.items():
        conditions = {"empty": b"", "before": before.get(name), "whole": after.get(name)}
        condition = next((text for text, wanted in conditions.items() if data == wanted), "damaged")
        found.add((os.path.dirname(name) or name, condition))
    missing = {os.path.dirname(name) or name for name in after.keys() - files.keys()}
    return frozenset((*found, *((folder, "missing") for folder in missing)))


def prepare(kind: str, folder: Path, out: Path, items: int, server: ForkServer) -> Scenario:
    """Make the recordings of a kind of run, and OUT as it is before the run. `out` is the place of OUT in the run."""
    calls, manifest, before = folder / "calls", folder / "m.jsonl", folder / "before"
    calls.mkdir()
    rng = np.random.default_rng(0)
    for i in range(items):
        soundfile.write(calls / f"{i:03}.wav", rng.normal(0, 0.1, 4800).clip(-1, 1), 16_000)
    (calls / "broken.wav").write_bytes(b"no audio")
    if kind in ("update", "fresh"):
        manifest.write_text("".join(f'{{"audio_filepath": "{path}"}}\n' for path in sorted(calls.iterdir())))
    source = str(manifest if manifest.exists() else calls)
    run = ["run", source, "-o", str(out), *OPTIONS]
    if kind == "fresh":
        return Scenario(run, run, None)
    assert server.run(run, os.environ, folder).returncode == 3
    shutil.move(out, before)
    if kind == "merge":
        for path in (*before.glob("*.jsonl"), before / "summary.json"):
            path.unlink()
        shutil.rmtree(before / "srt")
        return Scenario(["merge", str(out)], ["merge", str(out)], before)
    if kind in ("update", "grown"):
        shutil.copy(calls / "000.wav", calls / "new.wav")
    if kind == "update":
        manifest.write_text(manifest.read_text() + f'{{"audio_filepath": "{calls}/new.wav"}}\n')
    if kind == "retry":
        shutil.copy(calls / "001.wav", calls / "broken.wav")
    extra = {"update": ["--update"], "retry": ["--retry-failed", "all"], "overwrite": ["--overwrite"]}.get(kind, [])
    return Scenario([*run, *extra], run if kind == "overwrite" else [*run, *extra], before)


@contextlib.contextmanager
def mounted(image: Path, place: Path, file_system: str) -> Iterator[Path]:
    """Mount an image within this context, and yield the place of OUT on it."""
    options = ",".join(filter(None, ("loop", FILE_SYSTEMS.get(file_system, ""))))
    subprocess.run(["mount", "-o", options, image, place], check=True)
    try:
        yield place / "out"
    finally:
        subprocess.run(["umount", place], check=True)


def copy_during(command: list[str], image: Path, place: Path, copies: Path) -> tuple[int, list[Path], int]:
    """Run a command, and copy the image of its disk again and again.

    Returns:
        The exit code of the command, the copies in the order of time, and the number of those before its end.
    """
    inject = ["-e", f"trace={CALLS}", "-e", f"inject={CALLS}:delay_exit={DELAY_US}"]
    delayed = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", *inject, *command]
    process = subprocess.Popen(delayed, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    paths: list[Path] = []
    num_before_end = 0
    while len(paths) < num_before_end + AFTER_END:
        time.sleep(GAP_S)
        if process.poll() is None:
            num_before_end = len(paths) + 1
        if len(paths) % 2:
            (place / "other").write_text(str(len(paths)))
            with open(place / "other") as other:
                os.fsync(other.fileno())
        paths.append(copies / f"{len(paths):05}.img")
        with open(image, "rb") as source, open(paths[-1], "wb") as copy:
            fcntl.ioctl(copy, FICLONE, source.fileno())
    return process.wait(), paths, num_before_end


def measure(
    scenario: Scenario, file_system: str, moments: int, host: Path, server: ForkServer, seen: set[Signature]
) -> tuple[int, int, int]:
    """Copy the disk of one run, and continue from the copies whose OUT has not been seen.

    Returns:
        The numbers of copies that were mounted, of OUTs that were new, and of wrong copies.
    """
    place, image, copies = host.with_name("disk"), host / "disk.img", host / "copies"
    copies.mkdir()
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([*MAKE[file_system.split(maxsplit=1)[0]], image], check=True, capture_output=True)
    with mounted(image, place, file_system) as out:
        if scenario.before:
            shutil.copytree(scenario.before, out)
        before = contents(out)
        os.sync()
        code, paths, num_before_end = copy_during([*VOXBATCH, *scenario.command], image, place, copies)
        expected, after = outputs(out), contents(out)
    assert code in (0, 3), code
    steps = np.linspace(0, num_before_end - 1, min(moments, num_before_end)).round().astype(int)
    late = paths[num_before_end:]
    num_new = wrong = 0
    for path in (*(paths[step] for step in steps), *late):
        with mounted(path, place, file_system) as out:
            state = contents(out)
            problem = ""
            if path in late and (outputs(out) != expected or not state.get("summary.json")):
                problem = "outputs are missing after the end"
            elif (found := signature(state, before, after)) not in seen:
                seen.add(found)
                num_new += 1
                done = server.run(scenario.continuing, os.environ, host, timeout=600)
                if done.returncode != code or outputs(out) != expected or not contents(out).get("summary.json"):
                    problem = f"exit {done.returncode}, {done.stderr[-500:]}"
        path.unlink()
        if problem:
            wrong += 1
            print(f"  {path.name}: {problem}\n  { {name: len(data) for name, data in state.items()} }", flush=True)
    shutil.rmtree(copies)
    image.unlink()
    return len(steps) + len(late), num_new, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=80)
    parser.add_argument("--moments", type=int, default=100, help="most copies of a run that are mounted")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--file-systems", nargs="+", choices=FILE_SYSTEMS, default=list(FILE_SYSTEMS))
    arguments = parser.parse_args()
    if os.geteuid() or not all(map(shutil.which, ("strace", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"))):
        sys.exit("skipped: this takes root, strace, mkfs.ext4, mkfs.xfs and mkfs.btrfs")
    bars, server = Bars(), ForkServer(os.environ)
    print(machine())
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="voxbatch-power-") as name:
        host, image = Path(name, "host"), Path(name, "host.img")
        for folder in (host, Path(name, "disk")):
            folder.mkdir()
        with open(image, "wb") as file:
            file.truncate(HOST_BYTES)
        subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
        with mounted(image, host, "xfs"):
            print(f"{'run':10} {'file system':22} copies  new OUTs  wrong  seconds")
            for kind in arguments.kinds:
                with tempfile.TemporaryDirectory(prefix="voxbatch-power-") as recordings:
                    out, seen = host.with_name("disk") / "out", set[Signature]()
                    scenario = prepare(kind, Path(recordings), out, arguments.items, server)
                    for file_system in arguments.file_systems:
                        began = time.monotonic()
                        counts = measure(scenario, file_system, arguments.moments, host, server, seen)
                        wrong += counts[2]
                        row = "{:6}  {:8}  {:5}".format(*counts)
                        print(f"{kind:10} {file_system:22} {row}  {time.monotonic() - began:7.0f}", flush=True)
    server.close()
    bars.at_most("copies that do not continue with the same bytes", wrong, 0)
    bars.leave()


if __name__ == "__main__":
    main()
