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
from common import Bars, Ran, corpus, english_rows, machine, run, write_manifest

OVERHEAD = 1.1
"""Maximum time of a whole run, relative to the engine alone."""
CEILING = 2400
"""Seconds of audio per second that 16 cores must one day deliver to a GPU."""
CORES = 16
RATE = 16_000


# ── (a) beside the engine alone ───────────────────────────────────────────────────────────────────────────────────────


def speech_rows(seconds: float) -> list[dict[str, Any]]:
    """Return two long recordings and short ones between them: `seconds` of audio in all, or all recordings."""
    rows = english_rows()
    names = ("ljspeech_LJ001_0001-0032.mp3", "us_weekly_address_2018_ms13.mp3")
    chosen = [row for row in rows if row["id"].endswith(names)]
    short = [row for row in rows if row["ref_quality"] == "A" and 3 <= row["duration"] <= 20]
    while short and sum(row["duration"] for row in chosen) < seconds:
        chosen.append(short.pop(0))
    return [*chosen[2:], *chosen[:2]]


def engine_alone(manifest: str) -> None:
    """Print the seconds that the engine needs for all chunks, including its loading. Runs in its own process."""
    from voxbatch.decoding import Task
    from voxbatch.decoding.decoder import chunks
    from voxbatch.decoding.voices import Listener
    from voxbatch.engines import Feed, create
    from voxbatch.records import Chunk
    from voxbatch.storage.recording import open_recording

    engine = create("faster-whisper", None, {})
    feed, count = Feed(1 << 40), 0
    with open(manifest, encoding="utf-8") as file:
        for index, line in enumerate(file):
            row = json.loads(line)
            task = Task(index, row["audio_filepath"], 0.0, row["duration"], None, "en", engine.spec.max_chunk_samples)
            with contextlib.closing(open_recording(task.audio)) as recording:
                for number, (samples, span) in enumerate(chunks(task, recording, [], Listener())):
                    feed.put(Chunk(index, number, np.array(samples), span, "en"))
                    count += 1
    feed.close()
    began = time.monotonic()
    results = list(engine.stream(feed))
    print(json.dumps({"seconds": time.monotonic() - began, "chunks": count}))
    assert len(results) == count
    sys.stdout.flush()
    os._exit(0)


def beside_engine(seconds: float, times: int, bars: Bars) -> None:
    """Measure part (a)."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-overhead-") as name:
        folder = Path(name)
        rows = speech_rows(seconds)
        manifest = write_manifest(folder / "rows.jsonl", rows)
        audio_s = sum(row["duration"] for row in rows)
        print(f"\n(a) {len(rows)} recordings, {audio_s:.0f} s of audio, {times} turns, model load on both sides")
        ratios = [_one_turn(folder, manifest, n, audio_s) for n in range(times)]
    bars.at_most("whole run over the engine alone, median", statistics.median(ratios), OVERHEAD)


def _one_turn(folder: Path, manifest: Path, turn: int, audio_s: float) -> float:
    out = folder / f"out-{turn}"
    arguments = ["run", manifest, "-o", out, "--engine", "faster-whisper", "--allow-outside", "--log-format", "json"]
    ran = run(arguments)
    command = [sys.executable, __file__, "--engine-alone", str(manifest)]
    alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    event = ran.event("run_finished")
    print(
        f"    run {ran.wall_s:.2f} s (RTFx {audio_s / ran.wall_s:.1f}; engine {event['engine_s']:.2f} s, of these "
        f"starved {event['starved_s']:.2f}; decoding {event['decode_cpu_s']:.2f} CPU s), engine alone "
        f"{alone['seconds']:.2f} s for {alone['chunks']} chunks: {ran.wall_s / alone['seconds']:.3f}"
    )
    return ran.wall_s / alone["seconds"]


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


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one run."""

    per_core: float
    main_cost: float
    """CPU seconds of the main process per second of audio."""
    decode_cost: float
    """CPU seconds of the decoder processes per second of audio."""


def pipeline_alone(seconds: int, scale: float, bars: Bars) -> None:
    """Measure part (b)."""
    most = len(os.sched_getaffinity(0))
    print(f"\n(b) stand-in engine, zero delay; recordings of {seconds} s")
    with tempfile.TemporaryDirectory(prefix="voxbatch-overhead-") as name:
        mono = speech(seconds)
        for form in FORMATS:
            form.write(Path(name) / form.file, mono)
            copies = max(1, round(form.copies * scale))
            speeds = [_speed(form, Path(name), copies * cores, seconds, cores) for cores in sorted({1, min(2, most)})]
            _judge(form, speeds, bars)


def _speed(form: Format, folder: Path, copies: int, seconds: int, cores: int) -> Speed:
    rows = [{"id": f"copy-{n}", "audio_filepath": form.file} for n in range(copies)]
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / f"{form.file}-{cores}"
    ran = run(["run", manifest, "-o", out, "--engine", "scripted", "--log-format", "json"], traced=True, cores=cores)
    return _shown(form, ran, copies * seconds, cores)


def _shown(form: Format, ran: Ran, audio_s: int, cores: int) -> Speed:
    main_s, decoders_s = ran.usage["cpu_s"], ran.usage["children_cpu_s"]
    decoding_s = ran.event("run_finished")["decode_cpu_s"]
    print(
        f"    {form.name:<20} {cores} core(s): {audio_s / 3600:4.1f} h in {ran.wall_s:4.1f} s, "
        f"{audio_s / ran.wall_s / cores:6,.0f} audio s/s a core; CPU s: workers {decoders_s:.1f} "
        f"(decoding, cutting, handing over {decoding_s:.1f}), main process {main_s:.1f}"
    )
    return Speed(audio_s / ran.wall_s / cores, main_s / audio_s, decoders_s / audio_s)


def _judge(form: Format, speeds: list[Speed], bars: Bars) -> None:
    best = speeds[-1]
    ceiling = 1 / best.main_cost
    many = min(ceiling, (CORES - 1) / best.decode_cost, CORES / (best.main_cost + best.decode_cost))
    bars.at_least(f"    {form.name}, a core", min(speed.per_core for speed in speeds), form.bar, "audio s/s")
    bars.at_least(f"    {form.name}, what one main process can take", ceiling, CEILING, "audio s/s")
    print(f"    {form.name}, {CORES} cores by these costs: {many:,.0f} audio s/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-alone", metavar="MANIFEST", help=argparse.SUPPRESS)
    parser.add_argument("--audio-seconds", type=float, default=480, help="for (a)")
    parser.add_argument("--times", type=int, default=3, help="for (a); 0 leaves it out")
    parser.add_argument("--recording-seconds", type=int, default=600, help="for (b)")
    parser.add_argument("--scale", type=float, default=1.0, help="for (b): times as much audio; 0 leaves it out")
    given = parser.parse_args()
    if given.engine_alone:
        engine_alone(given.engine_alone)
    bars = Bars()
    print(machine())
    if given.times:
        beside_engine(given.audio_seconds, given.times, bars)
    if given.scale:
        pipeline_alone(given.recording_seconds, given.scale, bars)
    bars.leave()


if __name__ == "__main__":
    main()
