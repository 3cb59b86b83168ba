"""The whole `voxbatch run` over WAV files on this GPU, beside the engine alone: does decoding keep up?

    python benchmarks/gpu/bench_run.py MODEL_DIR [--hours H] [--engine-option NAME=VALUE …] [--workers N]

Writes H hours of swelling noise as 16 kHz WAV files, runs voxbatch over them as a user does, then gives the same
chunks, decoded and cut before the clock starts, to the same engine with nothing else beside it. Both walls count from
the engine's first chunk to its last result; the seconds until the engine was ready are printed apart. Watchdogs are off
and weights made up: texts are not looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

RATE = 16_000
MINUTES = (4, 7, 11, 18)
"""Lengths of the recordings, in turn."""
BAR = 1.1
DUMMY = {"load_format": "dummy", "watch": "false", "ignore_eos": "true"}


def recordings(folder: Path, hours: float) -> Path:
    """Writes the recordings and their manifest."""
    rng = np.random.default_rng(0)
    loudness = 0.02 + 0.1 * (1 + np.sin(np.arange(60 * RATE) / RATE * 2.1)) ** 2
    minute = np.clip(rng.standard_normal(60 * RATE) * loudness * 0.3, -1, 1).astype(np.float32)
    rows, left = [], hours * 60
    while left > 0:
        minutes = min(MINUTES[len(rows) % len(MINUTES)], left)
        samples = np.tile(minute, int(minutes) + 1)[: int(minutes * 60 * RATE)]
        name = f"r{len(rows):05d}.wav"
        soundfile.write(folder / name, np.roll(samples, len(rows) * 1111), RATE, subtype="PCM_16")
        rows.append({"audio_filepath": name, "duration": len(samples) / RATE})
        left -= minutes
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def whole(manifest: Path, model: str, options: dict[str, str], workers: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "voxbatch",
        "run",
        str(manifest),
        "-o",
        str(manifest.parent / "out"),
        "--overwrite",
    ]
    command += ["--engine", "vllm", "--model", model, "--log-format", "json"]
    command += [part for name, value in options.items() for part in ("--engine-option", f"{name}={value}")]
    command += ["--workers", str(workers)] if workers else []
    began = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wall = time.monotonic() - began
    events = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    finished = [event for event in events if event["message"] == "run_finished"]
    if ended.returncode or not finished:
        return {"error": ended.stderr[-1500:]}
    kept = ("audio_s", "wall_s", "engine_s", "starved_s", "short_s", "decode_cpu_s", "done", "failed")
    ready = [event["text"] for event in events if "ready" in event.get("text", "")]
    found = {"whole_wall_s": round(wall, 1), **{key: finished[-1][key] for key in kept}, "ready": ready}
    engines = max(1, len(ready))  # their times add up
    return {**found, "engines": engines, "rtfx": round(found["audio_s"] / found["engine_s"] * engines, 1)}


def chunks(manifest: Path, limit: int, overlap: int) -> Iterator[Any]:
    from voxbatch.audio import decode
    from voxbatch.chunk import cut
    from voxbatch.records import Chunk
    from voxbatch.storage import open_recording

    for item, line in enumerate(manifest.read_text().splitlines()):
        path = str(manifest.parent / json.loads(line)["audio_filepath"])
        with contextlib.closing(open_recording(path)) as recording:
            for index, (samples, span) in enumerate(cut(decode(recording, path), limit, overlap)):
                yield Chunk(item, index, samples, span)


def alone(manifest: Path, model: str, options: dict[str, str]) -> dict[str, Any]:
    from voxbatch.chunk import OVERLAP
    from voxbatch.engines import Feed, Notice, create

    engine = create("vllm", model, options)
    spec = engine.spec
    made = list(chunks(manifest, spec.max_chunk_samples, OVERLAP if spec.word_times else 0))
    feed = Feed(spec.prefetch * spec.max_chunk_samples)

    def fill() -> None:
        for chunk in made:
            feed.put(chunk)
        feed.close()

    threading.Thread(target=fill, daemon=True).start()
    results = sum(not isinstance(result, Notice) for result in engine.stream(feed))
    wall = time.monotonic() - (feed.started_at or 0.0)
    audio = sum(chunk.span.core_end - chunk.span.core_start for chunk in made) / RATE
    return {"engine_s": round(wall, 2), "audio_s": round(audio, 1), "chunks": results, "rtfx": round(audio / wall, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--skip-alone", action="store_true")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    options = {**DUMMY, **dict(each.split("=", 1) for each in given.engine_option)}
    if given.alone:
        print("RESULT " + json.dumps(alone(given.alone, given.model, options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        manifest = recordings(Path(folder), given.hours)
        ran = whole(manifest, given.model, options, given.workers)
        print(json.dumps({"name": "voxbatch run", **ran}), flush=True)
        if given.skip_alone or "error" in ran:
            return
        again = [sys.executable, __file__, given.model, "--alone", str(manifest)]
        again += [part for each in given.engine_option for part in ("--engine-option", each)]
        ended = subprocess.run(again, capture_output=True, text=True, check=False)
        found = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
        by_itself = json.loads(found[-1][7:]) if found else {"error": ended.stderr[-1500:]}
        print(json.dumps({"name": "engine alone", **by_itself}), flush=True)
        if found:
            ratio = ran["engine_s"] / by_itself["engine_s"]
            print(f"run over engine alone: {ratio:.3f} (bar {BAR}): {'met' if ratio <= BAR else 'missed'}")


if __name__ == "__main__":
    main()
