"""Measure memory and lines per second of `validate`, `--dry-run` and a stand-in run, for 100,000 to 1,000,000 lines.

Every line names the same recording of 0.1 s under its own id, so that the cost of a line is measured. The main
process's peak comes from the kernel (VmHWM). The tree's peak is sampled, and counts shared pages once in each process.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from common import Bars, Ran, machine, run

SECONDS = 0.1
LINE = f'{{"id": "call-%07d", "audio_filepath": "short.wav", "duration": {SECONDS}, "lang": "en"}}\n'
PEAK_MB = 300
"""Maximum peak memory of the main process."""
GROWTH = 40
"""Maximum bytes of peak memory for one more line.

What a line needs is in temporary files, apart from some bits. The rest is buffers, which grow up to a bound: see
bench_large_manifest.py.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """The figures of one command."""

    main_mb: float
    tree_mb: float
    lines_per_s: float


def write_source(folder: Path, lines: int) -> Path:
    """Write a manifest of `lines` items that all name one recording."""
    recording = folder / "short.wav"
    noise = np.random.default_rng(0).normal(0, 0.05, round(16_000 * SECONDS))
    soundfile.write(recording, noise, 16_000)
    path = folder / f"manifest-{lines}.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(LINE % n for n in range(lines))
    return path


def figure(ran: Ran, lines: int) -> Figure:
    """Return the figures of a run over `lines` lines."""
    return Figure(ran.usage["peak_mb"], ran.tree_mb, lines / ran.wall_s)


def merge_seconds(out: Path) -> float:
    """Return the seconds between the marker of the last committed part and the summary."""
    marker = next(out.glob("parts/*/complete.json"))
    return (out / "summary.json").stat().st_mtime - marker.stat().st_mtime


def measure(what: str, source: Path, lines: int, out: Path) -> Figure:
    """Run one of the three commands and print its figures."""
    commands = {
        "validate": ["validate", source],
        "--dry-run": ["run", source, "-o", out, "--engine", "scripted", "--dry-run"],
        "stand-in run": ["run", source, "-o", out, "--engine", "scripted", "--log-format", "json"],
    }
    ran = run(commands[what], traced=True)
    found = figure(ran, lines)
    print(
        f"{what:<12} {lines:>9,} lines: {ran.wall_s:7.1f} s, {found.lines_per_s:>8,.0f} lines/s, "
        f"main process {found.main_mb:.0f} MB, with its children {found.tree_mb:.0f} MB"
    )
    if (out / "summary.json").exists():
        print(
            f"             CPU: main process {ran.usage['cpu_s']:.1f} s, decoders "
            f"{ran.usage['children_cpu_s']:.1f} s; the merge took {merge_seconds(out):.1f} s"
        )
    return found


def compare(what: str, sizes: list[int], bars: Bars) -> None:
    """Measure a command for each number of lines, and check the peak and its growth."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-scale-") as name:
        folder = Path(name)
        figures = [measure(what, write_source(folder, n), n, folder / f"out-{n}") for n in sizes]
    bars.at_most(f"{what}, peak of the main process", max(f.main_mb for f in figures), PEAK_MB, "MB")
    grown = (figures[-1].main_mb - figures[0].main_mb) * 1e6 / (sizes[-1] - sizes[0])
    bars.at_most(f"{what}, from {sizes[0]:,} to {sizes[-1]:,} lines", grown, GROWTH, "bytes a line")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000, help="for validate and --dry-run")
    parser.add_argument("--run-large", type=int, default=300_000, help="for the stand-in run; --full takes --large")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", choices=("validate", "--dry-run", "stand-in run"))
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    for what in ("validate", "--dry-run", "stand-in run"):
        if given.only in (None, what):
            run_large = given.large if given.full else given.run_large
            compare(what, [given.small, run_large if what == "stand-in run" else given.large], bars)
    bars.leave()


if __name__ == "__main__":
    main()
