"""Compare the word error rate and the speed of `voxbatch run` with faster-whisper called directly on each file.

The peer is called as its README shows, with its own defaults: `model.transcribe(path, language="en")`. So it gives each
window the text before as context, and samples again after a bad decode. The model, the number format, the normaliser
and the counting are the same. faster-whisper decodes the file itself (PyAV) and takes a recording of 14 minutes as a
whole. voxbatch decodes, resamples and cuts the recording itself. Both use all cores, with one file or one chunk on each
core.

int8 is chaotic: one differing bit of a spectrogram changes words of its window, and so the rate of these recordings by
up to half a point. So with `--rounds N` each round after the first hears the recordings with another dither of a 16-bit
sample, and the bar is for the mean difference of all rounds.

`--baseline DIR` also runs an older checkout of voxbatch, in turn with this one, and compares the medians of the
speeds. CPU seconds are shown beside wall seconds, because they suffer less from other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import ROOT, Bars, english_rows, is_long, machine, write_manifest

from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.records import SAMPLING_RATE
from voxbatch.scoring.counts import ErrorCounts, count_errors

MARGIN_POINTS = 0.1
"""Maximum points of WER by which voxbatch may be worse."""
MIN_SPEED = 0.9
"""Smallest share of the baseline's speed that voxbatch must reach."""
OURS, BASELINE, PEER = "voxbatch run", "baseline", "faster-whisper"
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """The transcripts of one of the two sides."""

    texts: dict[str, str]
    """Texts by id; an item that failed is missing, and all its words count as deleted."""
    wall_s: float
    """Seconds, including the loading of the model."""
    cpu_s: float
    """CPU seconds of the process and its children."""

    def counts(self, row: dict[str, Any]) -> ErrorCounts:
        """Return the error counts of one row."""
        return count_errors(row["text"], self.texts.get(row["id"], ""), "en")


def ours(rows: Rows, folder: Path, checkout: Path = ROOT) -> Side:
    """Transcribe with `voxbatch run` of a checkout."""
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / "out"
    command = [sys.executable, "-m", "voxbatch", "run", manifest, "-o", out, "--engine", "faster-whisper"]
    began, cpu_s = time.monotonic(), _children_cpu_s()
    done = subprocess.run(
        [*command, "--overwrite", "--allow-outside", "--log-format", "json"],
        env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall_s, cpu_s = time.monotonic() - began, _children_cpu_s() - cpu_s
    if done.returncode not in (0, 3):
        sys.exit(f"voxbatch of {checkout} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    with open(out / "transcripts.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return Side({line["id"]: line["pred_text"] for line in lines}, wall_s, cpu_s)


def dithered(rows: Rows, folder: Path, seed: int) -> Rows:
    """Write the recordings as 16-bit WAV at 16 kHz with triangular dither, and return rows of them."""
    from faster_whisper.audio import decode_audio

    dither = np.random.default_rng(seed)
    written = []
    for number, row in enumerate(rows):
        samples = decode_audio(row["audio_filepath"]) * 32_768
        samples = np.rint(samples + dither.triangular(-1, 0, 1, len(samples))).clip(-32_768, 32_767)
        path = folder / f"{number}.wav"
        soundfile.write(path, samples.astype(np.int16), SAMPLING_RATE)
        written.append({**row, "audio_filepath": str(path)})
    return written


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def peer(rows: Rows) -> Side:
    """Transcribe with faster-whisper alone, at its own defaults."""
    from faster_whisper import WhisperModel

    engine = FasterWhisperEngine(None, {})
    cores = len(os.sched_getaffinity(0))
    began, cpu_s = time.monotonic(), time.process_time()
    model = WhisperModel(
        str(engine._located.path),
        compute_type=engine.spec.decoding["compute_type"],
        device="cpu",
        cpu_threads=1,
        num_workers=cores,
    )

    def hear(row: dict[str, Any]) -> tuple[str, str]:
        segments, _ = model.transcribe(row["audio_filepath"], language=row["lang"])
        return row["id"], "".join(segment.text for segment in segments).strip()

    longest_first = sorted(rows, key=lambda row: -row["duration"])
    with ThreadPoolExecutor(cores) as pool:
        texts = dict(pool.map(hear, longest_first))
    return Side(texts, time.monotonic() - began, time.process_time() - cpu_s)


def total(side: Side, rows: Rows) -> ErrorCounts:
    """Return the summed error counts of one side."""
    return sum((side.counts(row) for row in rows), ErrorCounts())


def points(side: Side, rows: Rows) -> float:
    """Return the WER of one side, in percent."""
    return 100 * (total(side, rows).rate or 0.0)


def print_side(name: str, side: Side, rows: Rows) -> None:
    """Print the WER and the counts of one side."""
    counts = total(side, rows)
    print(
        f"  {name:<15} WER {points(side, rows):6.3f} %: {counts.errors} errors in {counts.reference_length:,} words, "
        f"{counts.substitutions} substitutions, {counts.insertions} insertions, {counts.deletions} deletions"
    )


def compare(what: str, rows: Rows, sides: dict[str, list[Side]], bars: Bars | None) -> None:
    """Print both sides of each round, and check the margin of the mean."""
    seconds = sum(row["duration"] for row in rows)
    print(f"\n{what}: {len(rows)} recordings, {seconds / 60:.1f} min")
    for number in range(len(sides[OURS])):
        for name, runs in sides.items():
            print_side(name, runs[number], rows)
    for name in sides.keys() - {PEER}:
        worse = [points(us, rows) - points(them, rows) for us, them in zip(sides[name], sides[PEER], strict=True)]
        print(f"  {name} less the peer, by round: {', '.join(f'{difference:+.3f}' for difference in worse)}")
        if bars is not None and name == OURS:
            bars.at_most(f"  {what}: voxbatch's WER less the peer's", statistics.mean(worse), MARGIN_POINTS, "points")


def print_differences(rows: Rows, ours: Side, theirs: Side, shown: int) -> None:
    """Print the recordings with the largest differences: voxbatch's worst ones first, its best ones last."""
    gaps = [(ours.counts(row).errors - theirs.counts(row).errors, row) for row in rows]
    differing = sorted(((gap, row) for gap, row in gaps if gap), key=lambda pair: (-pair[0], pair[1]["id"]))
    worse, better = sum(gap for gap, _ in differing if gap > 0), -sum(gap for gap, _ in differing if gap < 0)
    print(f"\nrecordings that differ: {len(differing)}; {worse} errors more there, {better} fewer here")
    half = shown // 2
    for gap, row in differing if len(differing) <= shown else [*differing[:half], *differing[-half:]]:
        counts, peers = ours.counts(row), theirs.counts(row)
        print(f"  {gap:+4d}  {row['id']} ({row['duration']:.0f} s): {_short(counts)}, peer {_short(peers)}")


def _short(counts: ErrorCounts) -> str:
    return f"{counts.substitutions}s {counts.insertions}i {counts.deletions}d of {counts.reference_length}"


def compare_speed(rows: Rows, sides: dict[str, list[Side]], bars: Bars) -> None:
    """Print the median speed of each side, and check ours against the baseline's."""
    seconds = sum(row["duration"] for row in rows)
    wall = {name: statistics.median(side.wall_s for side in runs) for name, runs in sides.items()}
    cpu = {name: statistics.median(side.cpu_s for side in runs) for name, runs in sides.items()}
    print("\nspeed, model load included")
    for name, runs in sides.items():
        shown = f"RTFx {seconds / wall[name]:5.1f}, {wall[name]:6.1f} s, {cpu[name]:6.1f} CPU s"
        print(f"  {name:<15} {shown} (median of {len(runs)})")
    if BASELINE in wall:
        bars.at_least("  speed by CPU seconds, relative to the baseline", cpu[BASELINE] / cpu[OURS], MIN_SPEED)
        print(f"  speed by wall seconds, relative to the baseline: {wall[BASELINE] / wall[OURS]:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-long", action="store_true", help="longform/ only")
    parser.add_argument("--differences", type=int, default=16, metavar="N", help="recordings shown that differ most")
    parser.add_argument("--save", type=Path, metavar="FILE", help="both texts of every recording, as JSON lines")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="an older checkout of voxbatch to compare with")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="runs of each side, each with its own dither"
    )
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    rows = [row for row in english_rows() if is_long(row) or not given.only_long]
    sides: dict[str, list[Side]] = {}
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="voxbatch-truth-") as folder:
            heard = dithered(rows, Path(folder), number) if number else rows
            sides.setdefault(OURS, []).append(ours(heard, Path(folder)))
            if given.baseline:
                sides.setdefault(BASELINE, []).append(ours(heard, Path(folder), given.baseline.resolve()))
            sides.setdefault(PEER, []).append(peer(heard))
    us, them = sides[OURS][-1], sides[PEER][-1]
    if given.save:
        both = ({**row, "ours": us.texts.get(row["id"]), "peer": them.texts[row["id"]]} for row in rows)
        write_manifest(given.save, both)
    compare("long recordings (longform/)", [row for row in rows if is_long(row)], sides, bars)
    if not given.only_long:
        compare("short recordings", [row for row in rows if not is_long(row)], sides, bars)
        compare("all", rows, sides, None)
    compare_speed(rows, sides, bars)
    print_differences(rows, us, them, given.differences)
    bars.leave()


if __name__ == "__main__":
    main()
