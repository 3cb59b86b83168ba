"""Compare the word error rate, the speed and the memory of `voxbatch run` with other programs on the same recordings.

The peer is faster-whisper, called as its README shows, with its own defaults: `model.transcribe(path, language="en")`.
So it gives each window the text before as context, and samples again after a bad decode. The model, the number format,
the normaliser and the counting are the same. faster-whisper decodes the file itself (PyAV) and takes a recording of 14
minutes as a whole. voxbatch decodes, resamples and cuts the recording itself. Both use all cores, with one file or one
chunk on each core.

`--race PYTHON` adds faster-whisper's BatchedInferencePipeline, called in the same way, and whisper.cpp at the defaults
of pywhispercpp, which the interpreter PYTHON must have. whisper.cpp gets the same weights as ggml (float16), and the
recordings as WAV at 16 kHz; neither conversion is measured.

`--words` adds the batched pipeline alone, and both peers then give word times, as voxbatch always does.

`--onnx PYTHON` adds voxbatch's engine onnx-asr with the same weights as ONNX (whisper_onnx.py, not measured), in the
environment of PYTHON, which must have torch, transformers, onnx and onnx-asr, such as .venv-vllm. onnx-asr decodes
greedily, with the prompt of multilingual models and without a cache of keys and values. A Parakeet with made-up
weights has no word error rate, so it has no row.

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
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import ROOT, VOXBATCH, Bars, Ran, english_rows, is_long, machine, measured, parser, write_manifest

from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.records import SAMPLING_RATE
from voxbatch.scoring.counts import ErrorCounts, count_errors

MARGIN_POINTS = 0.1
"""Maximum points of WER by which voxbatch may be worse."""
MIN_SPEED = 0.9
"""Smallest share of the baseline's speed that voxbatch must reach."""
RACE_BARS = {True: 0.6, False: 0.5}
"""Largest share of the fastest other program's wall time that voxbatch may take, for long and for short recordings."""
WORDS_BAR = 0.9
"""The same share if the other programs give word times, too."""
OURS, BASELINE, PEER, BATCHED, WHISPER_CPP = "voxbatch run", "baseline", "faster-whisper", "batched", "whisper.cpp"
ONNX = "onnx-asr"
Rows = list[dict[str, Any]]

CPP = """
import json, sys, wave
import numpy as np
from pywhispercpp.model import Model
weights, manifest, out, cores = sys.argv[1:]
model = Model(weights, n_threads=int(cores), print_progress=False, redirect_whispercpp_logs_to=None)
with open(out, "w") as file:
    for row in map(json.loads, open(manifest)):
        with wave.open(row["audio_filepath"]) as recording:
            samples = np.frombuffer(recording.readframes(recording.getnframes()), np.int16)
        segments = model.transcribe(samples.astype(np.float32) / 32768, language=row["lang"])
        print(json.dumps({"id": row["id"], "pred_text": " ".join(s.text for s in segments)}), file=file)
"""
"""The program that has whisper.cpp transcribe a manifest. It runs without voxbatch."""


@dataclass(frozen=True, slots=True)
class Side:
    """The run and the transcripts of one of the programs."""

    ran: Ran
    """The loading of the model counts."""
    texts: dict[str, str]
    """Texts by id; an item that failed is missing, and all its words count as deleted."""

    def total(self, rows: Rows) -> ErrorCounts:
        """Return the error counts of rows."""
        return sum((count_errors(row["text"], self.texts.get(row["id"], ""), "en") for row in rows), ErrorCounts())

    def points(self, rows: Rows) -> float:
        """Return the WER of rows, in percent."""
        return 100 * (self.total(rows).rate or 0.0)


def side(command: Sequence[object], transcripts: Path, checkout: Path = ROOT) -> Side:
    """Run a program that writes transcripts as JSON lines, and return its side."""
    ran = measured(command, checkout=checkout)
    lines = [json.loads(line) for line in transcripts.read_text(encoding="utf-8").splitlines()]
    return Side(ran, {line["id"]: line["pred_text"] for line in lines})


def ours(rows: Rows, folder: Path, checkout: Path = ROOT) -> Side:
    """Transcribe with `voxbatch run` of a checkout."""
    return _ours(rows, folder, [*VOXBATCH, "run", "--engine", "faster-whisper"], checkout)


def by_onnx(rows: Rows, folder: Path, python: str) -> Side:
    """Transcribe with `voxbatch run --engine onnx-asr`, by another interpreter."""
    if not (weights := folder / "onnx").exists():
        tokenizer = FasterWhisperEngine(None, {})._located.path / "tokenizer.json"
        convert = Path(__file__).with_name("whisper_onnx.py")
        measured([python, convert, ggml_file(folder), tokenizer, weights])
    return _ours(rows, folder, [python, "-m", "voxbatch", "run", "--engine", "onnx-asr", "--model", weights])


def _ours(rows: Rows, folder: Path, command: Sequence[object], checkout: Path = ROOT) -> Side:
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / "out"
    return side([*command, manifest, "-o", out, "--overwrite", "--allow-outside"], out / "transcripts.jsonl", checkout)


def ggml_file(folder: Path) -> Path:
    """Return the weights as ggml, which are converted once."""
    from ggml import write_ggml

    if not (weights := folder / "ggml.bin").exists():
        write_ggml(FasterWhisperEngine(None, {})._located.path, weights)
    return weights


def alone(name: str, rows: Rows, folder: Path, words: bool) -> Side:
    """Transcribe with faster-whisper in a process of its own, which runs `transcribe_alone`."""
    manifest, texts = write_manifest(folder / "rows.jsonl", rows), folder / "texts.jsonl"
    return side([sys.executable, __file__, "--alone", name, manifest, texts, *["--words"][:words]], texts)


def whisper_cpp(rows: Rows, folder: Path, python: str) -> Side:
    """Transcribe with whisper.cpp, one recording after the other on all cores."""
    manifest, texts = write_manifest(folder / "rows.jsonl", as_wav(rows, folder, None)), folder / "texts.jsonl"
    return side([python, "-c", CPP, ggml_file(folder), manifest, texts, len(os.sched_getaffinity(0))], texts)


def as_wav(rows: Rows, folder: Path, seed: int | None) -> Rows:
    """Write the recordings as 16-bit WAV at 16 kHz, dithered (triangular) if there is a seed, and return their rows."""
    from faster_whisper.audio import decode_audio

    dither = np.random.default_rng(seed)
    written = []
    for number, row in enumerate(rows):
        samples = decode_audio(row["audio_filepath"]) * 32_768
        if seed is not None:
            samples = samples + dither.triangular(-1, 0, 1, len(samples))
        path = folder / f"{number}-{seed}.wav"
        soundfile.write(path, np.rint(samples).clip(-32_768, 32_767).astype(np.int16), SAMPLING_RATE)
        written.append({**row, "audio_filepath": str(path)})
    return written


def transcribe_alone(name: str, manifest: Path, texts: Path, words: bool) -> None:
    """Transcribe a manifest with faster-whisper alone, at its own defaults, one file on each core."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    engine = FasterWhisperEngine(None, {})
    cores = len(os.sched_getaffinity(0))
    model: Any = WhisperModel(
        str(engine._located.path),
        compute_type=engine.spec.decoding["compute_type"],
        device="cpu",
        cpu_threads=1,
        num_workers=cores,
    )
    if name == BATCHED:
        model = BatchedInferencePipeline(model)

    def hear(row: dict[str, Any]) -> dict[str, str]:
        segments, _ = model.transcribe(row["audio_filepath"], language=row["lang"], word_timestamps=words)
        return {"id": row["id"], "pred_text": "".join(segment.text for segment in segments).strip()}

    with open(manifest, encoding="utf-8") as file:
        longest_first = sorted(map(json.loads, file), key=lambda row: -row["duration"])
    with ThreadPoolExecutor(cores) as pool:
        write_manifest(texts, pool.map(hear, longest_first))


def compare(rows: Rows, sides: dict[str, list[Side]], bars: Bars) -> None:
    """Print the table of one group of recordings, and check the bars."""
    what = "long recordings" if is_long(rows[0]) else "short recordings"
    seconds = sum(row["duration"] for row in rows)
    print(f"\n{what}: {len(rows)}, {seconds / 60:.1f} min; medians of {len(sides[OURS])}; model load included")
    print(f"  {'':<15}{'WER %':>8}{'sub':>6}{'ins':>6}{'del':>6}{'wall s':>9}{'RTFx':>7}{'CPU s':>8}{'peak MB':>9}")
    wall = {name: statistics.median(side.ran.wall_s for side in runs) for name, runs in sides.items()}
    cpu = {name: statistics.median(side.ran.cpu_s for side in runs) for name, runs in sides.items()}
    for name, runs in sides.items():
        rate = statistics.mean(side.points(rows) for side in runs)
        counts, peak_mb = runs[-1].total(rows), max(side.ran.peak_mb for side in runs)
        print(
            f"  {name:<15}{rate:8.3f}{counts.substitutions:6}{counts.insertions:6}{counts.deletions:6}"
            f"{wall[name]:9.1f}{seconds / wall[name]:7.1f}{cpu[name]:8.1f}{peak_mb:9.0f}"
        )
    worse = [us.points(rows) - them.points(rows) for us, them in zip(sides[OURS], sides[PEER], strict=True)]
    print(f"  {OURS} less the peer, by round: {', '.join(f'{difference:+.3f}' for difference in worse)}")
    if len(worse) > 1:
        print(f"  standard error of their mean: {statistics.stdev(worse) / len(worse) ** 0.5:.3f}")
    bars.at_most(f"  {what}: voxbatch's WER less the peer's", statistics.mean(worse), MARGIN_POINTS, "points")
    if BASELINE in sides:
        bars.at_least(f"  {what}: speed by CPU seconds / baseline's", cpu[BASELINE] / cpu[OURS], MIN_SPEED)
    if BATCHED in sides:
        fastest = min(wall[name] for name in (PEER, BATCHED, WHISPER_CPP) if name in wall)
        bar = RACE_BARS[is_long(rows[0])] if WHISPER_CPP in sides else WORDS_BAR
        bars.at_most(f"  {what}: wall / the fastest other's", wall[OURS] / fastest, bar)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only-long", action="store_true", help="longform/ only")
    options.add_argument("--only-short", action="store_true", help="all others only")
    options.add_argument("--clips", type=int, metavar="N", help="only so many of the short recordings, evenly chosen")
    options.add_argument("--race", type=os.path.abspath, metavar="PYTHON", help="also the other programs; see above")
    options.add_argument("--words", action="store_true", help="also the batched pipeline; the peers give word times")
    options.add_argument("--onnx", type=os.path.abspath, metavar="PYTHON", help="also the engine onnx-asr; see above")
    options.add_argument("--baseline", type=Path, metavar="DIR", help="an older checkout of voxbatch to compare with")
    options.add_argument("--rounds", type=int, default=1, metavar="N", help="runs of each side, with another dither")
    options.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.alone:
        return transcribe_alone(given.alone[0], *map(Path, given.alone[1:]), given.words)
    bars = Bars()
    print(machine())
    rows = english_rows()
    short, long = ([row for row in rows if is_long(row) == wanted] for wanted in (False, True))
    if given.clips:
        short = [short[number * len(short) // given.clips] for number in range(given.clips)]
    for group in [long] if given.only_long else [short] if given.only_short else [short, long]:
        sides: dict[str, list[Side]] = {}
        for number in range(given.rounds):
            with tempfile.TemporaryDirectory(prefix="voxbatch-truth-") as name:
                folder = Path(name)
                heard = as_wav(group, folder, number) if number else group
                sides.setdefault(OURS, []).append(ours(heard, folder))
                if given.baseline:
                    sides.setdefault(BASELINE, []).append(ours(heard, folder, given.baseline.resolve()))
                sides.setdefault(PEER, []).append(alone(PEER, heard, folder, given.words))
                if given.race or given.words:
                    sides.setdefault(BATCHED, []).append(alone(BATCHED, heard, folder, given.words))
                if given.race and not given.words:
                    sides.setdefault(WHISPER_CPP, []).append(whisper_cpp(heard, folder, given.race))
                if given.onnx:
                    sides.setdefault(ONNX, []).append(by_onnx(heard, folder, given.onnx))
        compare(group, sides, bars)
    return bars.leave()


if __name__ == "__main__":
    main()
