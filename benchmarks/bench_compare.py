"""Measure `voxbatch compare` and `voxbatch report --export` on large runs: seconds and memory.

Both runs are made up, with the same references. The second one has lost a word in every tenth item. So the counts in
the lines are taken, as for any two runs of one version; with --rescore, the second run was scored by other rules.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

from bench_report import make_out
from common import Bars, machine, run

LONGEST_S, PEAK_MB = 30, 500


def change(before: Path, after: Path, *, rescore: bool) -> None:
    """Write the outputs of a run that has lost the last word of every tenth item."""
    after.mkdir()
    lines = []
    for index, text in enumerate((before / "transcripts.jsonl").read_bytes().splitlines()):
        line = json.loads(text)
        if index % 10 == 0:
            line["pred_text"] = line["pred_text"].rpartition(" ")[0]
            line["deletions"] += 1
        lines.append(json.dumps(line).encode() + b"\n")
    content = b"".join(lines)
    summary = json.loads((before / "summary.json").read_text())
    summary["outputs"]["transcripts.jsonl"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if rescore:
        summary["score"]["by_language"]["en"]["normalizer"] = "other rules"
    (after / "transcripts.jsonl").write_bytes(content)
    (after / "summary.json").write_text(json.dumps(summary))
    (after / "run.json").write_bytes((before / "run.json").read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--rescore", action="store_true", help="count the errors of the second run again; no bar")
    given, bars = parser.parse_args(), Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-compare-") as name:
        first, second = Path(name, "first"), Path(name, "second")
        make_out(first, given.items, given.words)
        change(first, second, rescore=given.rescore)
        commands = {
            "compare": ["compare", first, second],
            "csv": ["report", first, "--export", Path(name, "items.csv")],
            "parquet": ["report", first, "--export", Path(name, "items.parquet")],
        }
        ran = {what: run(command, traced=True, cores=2) for what, command in commands.items()}
    for what, each in ran.items():
        seconds = f"{each.wall_s:.1f} s, CPU {each.usage['cpu_s']:.1f} s"
        print(f"{what:<8} {given.items:,} items of {given.words} words: {seconds}, {each.usage['peak_mb']:.0f} MB")
    if not given.rescore:
        bars.at_most("compare", ran["compare"].wall_s, LONGEST_S, "s")
    bars.at_most("peak memory", max(each.usage["peak_mb"] for each in ran.values()), PEAK_MB, "MB")
    bars.leave()


if __name__ == "__main__":
    main()
