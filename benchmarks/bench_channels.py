"""Measure `--channels split` on calls of two readers of LibriSpeech, with and without crosstalk.

The readers of a call speak in turn, with pauses and overlaps, each in a channel. Then each channel also gets the other
one, 12 ms late, at -15 and at -25 dB. The bar: the error rate of both sides is within a point of that of the clean
channels, each transcribed by a row with `channel`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import VOXBATCH, Bars, english_rows, machine, write_manifest

from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.scoring import ErrorCounts, count_errors

DELAY = round(0.012 * SAMPLING_RATE)
NOISE_DB = -65.0
LEVELS_DB = (None, -15.0, -25.0)
"""Levels of the crosstalk. None is a clean call."""
MARGIN_POINTS = 1.0
"""Largest distance of an error rate from that of the clean channels."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of two readers."""

    samples: Samples
    """Shape (frames, 2), at 16 kHz."""
    texts: tuple[str, str]
    """The reference of each channel."""


def calls(count: int) -> list[Call]:
    """Return calls of the readers with the most audio, two in each."""
    by_reader: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in english_rows():
        if row["id"].startswith("librispeech_test_other/") and row["id"].endswith(".flac"):
            by_reader[Path(row["id"]).name.partition("-")[0]].append(row)
    readers = sorted(by_reader.values(), key=lambda rows: -sum(row["duration"] for row in rows))
    random = np.random.default_rng(1)
    return [_call(readers[2 * number], readers[2 * number + 1], random) for number in range(count)]


def _call(first: list[dict[str, Any]], second: list[dict[str, Any]], random: np.random.Generator) -> Call:
    queues, placed, texts, at, side = (list(first), list(second)), [], ([], []), SAMPLING_RATE // 2, 0
    while any(queues):
        if queues[side]:
            row = queues[side].pop(0)
            samples, _ = soundfile.read(row["audio_filepath"], dtype="float32")
            placed.append((at, side, samples))
            texts[side].append(row["text"])
            at += len(samples) + round(random.uniform(-0.3, 0.8) * SAMPLING_RATE)
        side = 1 - side
    size = max(start + len(samples) for start, _, samples in placed) + SAMPLING_RATE
    mixed = random.normal(0, 10 ** (NOISE_DB / 20), (size, 2)).astype(np.float32)
    for start, side, samples in placed:
        mixed[start : start + len(samples), side] += samples
    return Call(mixed, (" ".join(texts[0]), " ".join(texts[1])))


def with_crosstalk(samples: Samples, level_db: float | None) -> Samples:
    """Return the channels of a call, each with the other one."""
    heard = samples.copy()
    if level_db is not None:
        heard[DELAY:] += np.float32(10 ** (level_db / 20)) * samples[:-DELAY, ::-1]
    return heard


def transcribed(folder: Path, rows: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """Return the lines of a run over rows."""
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / "out"
    command = [*VOXBATCH, "run", manifest, "-o", out, "--engine", "faster-whisper", "--language", "en", "--overwrite"]
    done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"voxbatch ended with {done.returncode}:\n{done.stderr[-3000:]}")
    with open(out / "transcripts.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4, choices=range(1, 6), help="number of calls (default: 4)")
    recordings = calls(parser.parse_args().calls)
    print(machine())
    print(f"{len(recordings)} calls, {sum(len(call.samples) for call in recordings) / SAMPLING_RATE:.0f} s")
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for level_db in LEVELS_DB:
            rows = []
            for number, call in enumerate(recordings):
                path = folder / f"{number}.wav"
                soundfile.write(path, with_crosstalk(call.samples, level_db), SAMPLING_RATE, subtype="FLOAT")
                rows.append({"id": str(number), "audio_filepath": str(path)})
            if level_db is None:
                channels = [{**row, "id": f"{row['id']}-{side}", "channel": side} for row in rows for side in (0, 1)]
                alone = ErrorCounts()
                for line, text in zip(
                    transcribed(folder, channels), [t for c in recordings for t in c.texts], strict=True
                ):
                    alone += count_errors(text, line["pred_text"], "en")
                print(f"each clean channel alone: {100 * alone.rate:.2f} % of {alone.reference_length} words")
            split = ErrorCounts()
            for line, call in zip(transcribed(folder, rows, "--channels", "split"), recordings, strict=True):
                starts = [word["start"] for word in line["words"]]
                bars.holds(f"times of call {line['id']} are monotone", starts == sorted(starts))
                for side, text in enumerate(call.texts):
                    words = [word["word"] for word in line["words"] if word["speaker"] == f"Speaker {side + 1}"]
                    split += count_errors(text, " ".join(words), "en")
            title = "clean" if level_db is None else f"crosstalk at {level_db:g} dB"
            print(f"split, {title}: {100 * split.rate:.2f} %, {split.insertions} inserted, {split.deletions} deleted")
            bars.at_most(
                f"points beside the clean channels, {title}", 100 * abs(split.rate - alone.rate), MARGIN_POINTS
            )
    bars.leave()


if __name__ == "__main__":
    main()
