"""Measure the published latency table of `ctx512` with `voxbatch run`, and the same for `ctx512-batch`.

    python benchmarks/gpu/bench_latency.py MODEL_DIR [--clips N] [--batch-clips N] [--median-s S] [--manifest FILE]
                                           [--profiles NAME …] [--engine-option NAME=VALUE …] [--out FILE]

Without --manifest the clips are swelling noise, the weights are random and the watchdogs are off: latency, speed and
memory count, texts do not matter, and there is no WER. The lengths of the clips follow the published latencies. These
are proportional to the lengths if one request runs at a time: log-normal, P90 / P50 = 6.26 / 2.64. The median is an
assumption: 2.64 s at 3.6 times real time, which `ctx512` reached on an H200. Any number of clips has the same
percentiles of length. No clip is longer than 30 s, so each clip is one chunk and one request.

With --manifest the first N recordings of that manifest are transcribed with the weights in MODEL_DIR, and the WER is
that of their references.

Every figure comes from the run's summary.json, whose percentiles are exact to 1 %. Only RTFx comes from the engine,
from its first chunk to its last result, because the run's own RTFx includes the loading. If the plugin is used,
voxbatch must be installed as a package.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import soundfile
from bench_run import DUMMY, whole
from shared import RATE, swelling_noise, tell

MEDIAN_S = 9.5
"""Default seconds of the median clip: 2.64 s × 3.6."""
SPREAD = math.log(6.26 / 2.64) / NormalDist().inv_cdf(0.9)
"""Standard deviation of the logarithm: 0.674."""
SHORTEST_S, LONGEST_S = 1.0, 30.0


def lengths(clips: int, median_s: float) -> list[float]:
    """Return the seconds of each clip: evenly spaced quantiles of the distribution, in mixed order."""
    quantiles = (NormalDist().inv_cdf((i + 0.5) / clips) for i in range(clips))
    seconds = [min(LONGEST_S, max(SHORTEST_S, median_s * math.exp(SPREAD * each))) for each in quantiles]
    return [round(seconds[i], 2) for i in np.random.default_rng(0).permutation(clips)]


def clips(folder: Path, seconds: list[float]) -> Path:
    """Write a FLAC file of each length and return their manifest."""
    rows = []
    for index, each in enumerate(seconds):
        count = round(each * RATE)
        name = f"c{index:04d}.flac"
        soundfile.write(folder / name, swelling_noise(count, index), RATE, subtype="PCM_16")
        rows.append({"audio_filepath": name, "duration": round(count / RATE, 3)})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def measured(profile: str, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run the profile over `count` clips and return its line, or the error."""
    options = dict(each.split("=", 1) for each in given.engine_option)
    options = options if given.manifest else {**DUMMY, **options}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = given.manifest or clips(folder, lengths(count, given.median_s))
        flags = ("--profile", profile, "--limit", str(count), "--workers", "1", "--exit-zero")
        ran = whole(manifest, given.model, options, 0, folder / "out", *flags)
        if "error" in ran:
            return {"name": profile, "error": ran["error"]}
        summary = json.loads((folder / "out" / "summary.json").read_text())
    chunk, score, peak = summary["latency"]["chunk"], summary["score"], summary["peak_gpu_bytes"]
    return {
        "name": profile, "clips": summary["items"], "completion_rate": summary["completion_rate"],
        "requests": chunk["count"], "wer": score["wer"] if score else None, "p50_s": chunk["p50_s"],
        "p90_s": chunk["p90_s"], "p95_s": chunk["p95_s"], "peak_gb": None if peak is None else round(peak / 1e9, 1),
        "rtfx": ran["rtfx"], "audio_s": summary["audio_s"], "ready": ran["ready"],
    }  # fmt: skip


def main() -> None:
    given = parsed()
    lines = []
    for profile in given.profiles:
        lines.append(measured(profile, given.clips if profile == "ctx512" else given.batch_clips, given))
        tell({"measure": "latency", **lines[-1]}, given.out)
    if any("error" in line for line in lines):
        sys.exit("some runs failed: see the errors above")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--clips", type=int, default=24, help="for ctx512, which transcribes 3.6 s a second")
    parser.add_argument("--batch-clips", type=int, default=500, help="for every other profile")
    parser.add_argument("--median-s", type=float, default=MEDIAN_S, help="seconds of the median clip")
    parser.add_argument("--manifest", type=lambda name: Path(name).resolve(), help="recordings with references")
    parser.add_argument("--profiles", nargs="+", default=["ctx512", "ctx512-batch"])
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
