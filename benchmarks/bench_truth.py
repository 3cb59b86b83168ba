"""Compare the word error rate of `voxbatch run` with faster-whisper called directly on each file.

The model, the decoding options, the normaliser and the counting are the same. faster-whisper receives each file's path
and decodes the file itself (PyAV). It gets a recording of 14 minutes as a whole and moves its window by its own
timestamps. voxbatch decodes, resamples and cuts the recording itself. Both use all cores, with one file or one chunk on
each core.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Bars, english_rows, is_long, machine, run, write_manifest

from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.scoring import ErrorCounts, count_errors

MARGIN_POINTS = 0.1
"""Maximum points of WER by which voxbatch may be worse."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """The transcripts of one of the two sides."""

    texts: dict[str, str]
    """Texts by id; an item that failed is missing, and all its words count as deleted."""
    wall_s: float
    """Seconds, including the loading of the model."""

    def counts(self, row: dict[str, Any]) -> ErrorCounts:
        """Return the error counts of one row."""
        return count_errors(row["text"], self.texts.get(row["id"], ""), "en")


def ours(rows: Rows, folder: Path) -> Side:
    """Transcribe with `voxbatch run`."""
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / "out"
    ran = run(
        ["run", manifest, "-o", out, "--engine", "faster-whisper", "--allow-outside", "--log-format", "json"],
        ok=(0, 3),
    )
    with open(out / "transcripts.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return Side({line["id"]: line["pred_text"] for line in lines}, ran.wall_s)


def peer(rows: Rows) -> Side:
    """Transcribe with faster-whisper alone."""
    from faster_whisper import WhisperModel

    engine = FasterWhisperEngine(None, {})
    cores = len(os.sched_getaffinity(0))
    options = {
        "beam_size": engine.spec.decoding["beam_size"],
        "temperature": 0.0,
        "condition_on_previous_text": False,
        "word_timestamps": True,
    }
    began = time.monotonic()
    model = WhisperModel(
        str(engine._located.path),
        compute_type=engine.spec.decoding["compute_type"],
        device="cpu",
        cpu_threads=1,
        num_workers=cores,
    )

    def hear(row: dict[str, Any]) -> tuple[str, str]:
        segments, _ = model.transcribe(row["audio_filepath"], language=row["lang"], **options)
        return row["id"], "".join(segment.text for segment in segments).strip()

    longest_first = sorted(rows, key=lambda row: -row["duration"])
    with ThreadPoolExecutor(cores) as pool:
        texts = dict(pool.map(hear, longest_first))
    return Side(texts, time.monotonic() - began)


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


def compare(what: str, rows: Rows, ours: Side, theirs: Side, bars: Bars | None) -> None:
    """Print both sides, and check the margin."""
    seconds = sum(row["duration"] for row in rows)
    print(f"\n{what}: {len(rows)} recordings, {seconds / 60:.1f} min")
    print_side("voxbatch run", ours, rows)
    print_side("faster-whisper", theirs, rows)
    if bars is not None:
        worse = points(ours, rows) - points(theirs, rows)
        bars.at_most(f"  {what}: voxbatch's WER less the peer's", worse, MARGIN_POINTS, "points")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-long", action="store_true", help="longform/ only")
    parser.add_argument("--differences", type=int, default=16, metavar="N", help="recordings shown that differ most")
    parser.add_argument("--save", type=Path, metavar="FILE", help="both texts of every recording, as JSON lines")
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    rows = [row for row in english_rows() if is_long(row) or not given.only_long]
    with tempfile.TemporaryDirectory(prefix="voxbatch-truth-") as folder:
        us = ours(rows, Path(folder))
    them = peer(rows)
    if given.save:
        both = ({**row, "ours": us.texts.get(row["id"]), "peer": them.texts[row["id"]]} for row in rows)
        write_manifest(given.save, both)
    seconds = sum(row["duration"] for row in rows)
    print(f"RTFx, model load included: voxbatch {seconds / us.wall_s:.1f}, faster-whisper {seconds / them.wall_s:.1f}")
    if not given.only_long:
        compare("English rows of speech/", rows, us, them, bars)
        compare("of these, the short ones", [row for row in rows if not is_long(row)], us, them, None)
    compare("longform/ alone", [row for row in rows if is_long(row)], us, them, bars)
    print_differences(rows, us, them, given.differences)
    bars.leave()


if __name__ == "__main__":
    main()
