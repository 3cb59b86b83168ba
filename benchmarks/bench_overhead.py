"""Measure the time that voxbatch adds to the engine's own, and the speed of its pipeline alone.

(a) The whole `run`, from the start of Python to the merged outputs, is compared with the embedded engine alone, which
receives the same chunks, decoded beforehand. Loading the model counts on both sides; decoding and the start of Python
count only for voxbatch. The two sides take turns.

(b) `run` with the stand-in engine at zero delay is pinned to one core and to two cores, on long recordings in four
formats. CPU seconds show the parts of the work. Decoding, resampling and cutting happen in worker processes, of which
there may be as many as cores. Regrouping, stitching and committing happen in the one main process, so its CPU cost per
second of audio is a ceiling.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from common import Bars, corpus, english_rows, machine, parser, run, write_manifest

from voxbatch.storage import Stores

OVERHEAD = 1.1
"""Maximum time of a whole run, relative to the engine alone."""
CEILING = 2400
"""Seconds of audio per second that 16 cores must one day deliver to a GPU."""
CORES = 16
AUDIO_S = 480
"""Seconds of audio of (a)."""
RECORDING_S = 600
"""Seconds of a recording of (b)."""
RATE = 16_000


# ── (a) beside the engine alone ───────────────────────────────────────────────────────────────────────────────────────


def speech_rows() -> list[dict[str, Any]]:
    """Return two long recordings and short ones between them: AUDIO_S of audio in all."""
    rows = english_rows()
    names = ("ljspeech_LJ001_0001-0032.mp3", "us_weekly_address_2018_ms13.mp3")
    chosen = [row for row in rows if row["id"].endswith(names)]
    short = [row for row in rows if row["ref_quality"] == "A" and 3 <= row["duration"] <= 20]
    while short and sum(row["duration"] for row in chosen) < AUDIO_S:
        chosen.append(short.pop(0))
    return [*chosen[2:], *chosen[:2]]


def engine_alone(manifest: str) -> None:
    """Print the seconds that the engine needs for all chunks, including its loading. Runs in its own process."""
    from voxbatch.decoding import DecodeTask
    from voxbatch.decoding.decoder import chunks
    from voxbatch.decoding.voices import VoiceListener
    from voxbatch.engines import Feed, create
    from voxbatch.records import Chunk, Hypothesis

    engine = create("faster-whisper", None, {})
    feed, count = Feed(1 << 40), 0
    with open(manifest, encoding="utf-8") as file:
        for index, line in enumerate(file):
            row = json.loads(line)
            task = DecodeTask(
                index, row["audio_filepath"], 0.0, row["duration"], None, "en", engine.spec.max_chunk_samples
            )
            with contextlib.closing(Stores().recording(task.audio)) as recording:
                for number, (samples, span) in enumerate(chunks(task, recording, [], VoiceListener())):
                    feed.put(Chunk(index, number, np.array(samples), span, "en"))
                    count += 1
    feed.close()
    began = time.monotonic()
    results = [result for result in engine.stream(feed) if isinstance(result, Hypothesis)]  # others tell progress
    print(json.dumps({"seconds": time.monotonic() - began, "chunks": count}))
    assert len(results) == count
    sys.stdout.flush()
    os._exit(0)


def beside_engine(times: int, bars: Bars) -> None:
    """Measure part (a)."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-overhead-") as name:
        folder = Path(name)
        rows = speech_rows()
        manifest = write_manifest(folder / "rows.jsonl", rows)
        audio_s = sum(row["duration"] for row in rows)
        print(f"\n(a) {len(rows)} recordings, {audio_s:.0f} s of audio, {times} turns, model load on both sides")
        ratios = [_one_turn(folder, manifest, n, audio_s) for n in range(times)]
    bars.at_most("whole run over the engine alone, median", statistics.median(ratios), OVERHEAD)


def _one_turn(folder: Path, manifest: Path, turn: int, audio_s: float) -> float:
    out = folder / f"out-{turn}"
    ran = run(["run", manifest, "-o", out, "--engine", "faster-whisper", "--allow-outside", "--log-format", "json"])
    command = [sys.executable, __file__, "--engine-alone", str(manifest)]
    alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    event = ran.event("run_finished")
    print(
        f"    run {ran.wall_s:.2f} s (RTFx {audio_s / ran.wall_s:.1f}; engine {event['engine_s']:.2f} s, of these "
        f"starved {event['starved_s']:.2f}; decoding {event['decode_cpu_s']:.2f} CPU s), engine alone "
        f"{alone['seconds']:.2f} s for {alone['chunks']} chunks: {ran.wall_s / alone['seconds']:.3f}"
    )
    return float(ran.wall_s / alone["seconds"])


# ── (b) the pipeline alone ────────────────────────────────────────────────────────────────────────────────────────────


def speech(seconds: int) -> np.ndarray:
    """Return read speech at 16 kHz, repeated to the given length."""
    folder = corpus() / "speech" / "librispeech_test_other"
    read = np.concatenate([soundfile.read(path, dtype="float32")[0] for path in sorted(folder.glob("*.flac"))])
    return np.resize(read, seconds * RATE)


def stereo(mono: np.ndarray) -> np.ndarray:
    """Return the samples at 44.1 kHz in two channels; the second one is fainter and has its own noise."""
    wide = soxr.resample(mono, RATE, 44_100)
    noise = np.random.default_rng(0).normal(0, 0.001, len(wide)).astype(np.float32)
    return np.stack([wide, 0.7 * wide + noise], axis=1)


@dataclass(frozen=True, slots=True)
class Format:
    """A format of the recordings."""

    name: str
    file: str
    bar: float
    """Minimum seconds of audio per wall second and core."""
    write: Callable[[Path, np.ndarray], None]
    copies: int
    """Number of copies of the recording in the manifest for one core, so that a run lasts about ten seconds."""


FORMATS = (
    Format("WAV 16 kHz", "a.wav", 400, lambda path, mono: soundfile.write(path, mono, RATE), 60),
    Format("FLAC 16 kHz", "a.flac", 400, lambda path, mono: soundfile.write(path, mono, RATE), 40),
    Format("MP3 44.1 kHz stereo", "a.mp3", 150, lambda path, mono: soundfile.write(path, stereo(mono), 44_100), 6),
    Format("FLAC 44.1 kHz stereo", "b.flac", 150, lambda path, mono: soundfile.write(path, stereo(mono), 44_100), 8),
)


def pipeline_alone(bars: Bars) -> None:
    """Measure part (b)."""
    print(f"\n(b) stand-in engine, zero delay; recordings of {RECORDING_S} s")
    with tempfile.TemporaryDirectory(prefix="voxbatch-overhead-") as name:
        mono = speech(RECORDING_S)
        for form in FORMATS:
            form.write(Path(name) / form.file, mono)
            _measure(form, Path(name), bars)


def _measure(form: Format, folder: Path, bars: Bars) -> None:
    """Run over one format on one core and on two, and check the bars. The costs are those of the last run."""
    speeds = []
    for cores in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
        copies = form.copies * cores
        rows = [{"id": f"copy-{n}", "audio_filepath": form.file} for n in range(copies)]
        manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / f"{form.file}-{cores}"
        ran = run(["run", manifest, "-o", out, "--engine", "scripted", "--log-format", "json"], cores=cores)
        audio_s, decoders_s = copies * RECORDING_S, ran.cpu_s - ran.main_cpu_s
        speeds.append(audio_s / ran.wall_s / cores)
        print(
            f"    {form.name:<20} {cores} core(s): {audio_s / 3600:4.1f} h in {ran.wall_s:4.1f} s, "
            f"{speeds[-1]:6,.0f} audio s/s a core; CPU s: workers {decoders_s:.1f} (decoding, cutting, handing over "
            f"{ran.event('run_finished')['decode_cpu_s']:.1f}), main process {ran.main_cpu_s:.1f}"
        )
    ceiling = audio_s / ran.main_cpu_s
    many = min(ceiling, (CORES - 1) * audio_s / decoders_s, CORES * audio_s / ran.cpu_s)
    bars.at_least(f"    {form.name}, a core", min(speeds), form.bar, "audio s/s")
    bars.at_least(f"    {form.name}, what one main process can take", ceiling, CEILING, "audio s/s")
    print(f"    {form.name}, {CORES} cores by these costs: {many:,.0f} audio s/s")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--engine-alone", metavar="MANIFEST", help=argparse.SUPPRESS)
    options.add_argument("--times", type=int, default=3, help="turns of (a); 0 leaves it out")
    given = options.parse_args()
    if given.engine_alone:
        engine_alone(given.engine_alone)
    bars = Bars()
    print(machine())
    if given.times:
        beside_engine(given.times, bars)
    pipeline_alone(bars)
    bars.leave()


if __name__ == "__main__":
    main()
