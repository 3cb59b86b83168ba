"""Measure `--channels split` on calls of two readers of LibriSpeech, with and without crosstalk.

The readers of a call speak in turn, with pauses and overlaps, each in a channel. Then each channel also gets the other
one, 12 ms late, at -15 and at -25 dB. The bar: the error rate of both sides is within a point of that of the clean
channels, each transcribed by a row with `channel`.

Noise that nobody hears moves an error rate by more than a point, as the calls have 928 words. Therefore there are
copies of each call, with noise of their own at -75 dB. Both rates are of the same copies, and their distance is the
mean over the copies. Its interval (95 %, of Student's t) tells what the noise leaves open; it does not allow for other
calls.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from common import Bars, english_rows, machine, parser, transcribed
from scipy import stats

from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.scoring.counts import ErrorCounts, count_errors

DELAY = round(0.012 * SAMPLING_RATE)
NOISE_DB = -65.0
"""Level of the noise of each call."""
COPY_NOISE_DB = -75.0
"""Level of the noise that a copy of a call has besides."""
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


def copy_of(samples: Samples, level_db: float | None, seed: int) -> Samples:
    """Return the channels of a call, each with the other one, and with the noise of a copy."""
    noise = np.random.default_rng(seed).normal(0, 10 ** (COPY_NOISE_DB / 20), samples.shape)
    heard = samples + noise.astype(np.float32)
    if level_db is not None:
        heard[DELAY:] += np.float32(10 ** (level_db / 20)) * samples[:-DELAY, ::-1]
    return heard


def errors(lines: Iterable[dict[str, Any]], recordings: Sequence[Call], copies: int) -> list[ErrorCounts]:
    """Return the errors of both sides of all calls, for each copy."""
    counts = [ErrorCounts()] * copies
    for line in lines:
        for side, text in enumerate(recordings[line["call"]].texts):
            if line.get("channel", side) == side:
                words = [word["word"] for word in line["words"] if word.get("speaker") in (None, f"Speaker {side + 1}")]
                counts[line["copy"]] += count_errors(text, " ".join(words), "en")
    return counts


def percent(counts: Iterable[ErrorCounts]) -> npt.NDArray[np.float64]:
    """Return the error rate of each copy in percent."""
    return np.array([100 * (copy.rate or 0.0) for copy in counts])


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--calls", type=int, default=4, choices=range(1, 6), help="number of calls (default: 4)")
    options.add_argument("--copies", type=int, default=5, choices=range(2, 33), metavar="N", help="copies (default: 5)")
    given = options.parse_args()
    recordings, copies = calls(given.calls), given.copies
    print(machine())
    print(
        f"{copies} copies of {len(recordings)} calls, {sum(len(c.samples) for c in recordings) / SAMPLING_RATE:.0f} s"
    )
    bars, alone = Bars(), np.zeros(copies)
    with tempfile.TemporaryDirectory(prefix="voxbatch-bench-") as name:
        folder = Path(name)
        for level_db in LEVELS_DB:
            rows = []
            for copy, (number, call) in itertools.product(range(copies), enumerate(recordings)):
                path = folder / f"{copy}-{number}.wav"
                samples = copy_of(call.samples, level_db, 100 * copy + number)
                soundfile.write(path, samples, SAMPLING_RATE, subtype="FLOAT")
                rows.append({"id": path.stem, "audio_filepath": str(path), "copy": copy, "call": number})
            if level_db is None:
                channels = [{**row, "id": f"{row['id']}-{side}", "channel": side} for row in rows for side in (0, 1)]
                counts = errors(transcribed(folder, channels), recordings, copies)
                alone = percent(counts)
                print(
                    f"each clean channel alone: {alone.mean():.2f} % of {counts[0].reference_length} words, "
                    f"copies {alone.min():.2f} to {alone.max():.2f} %"
                )
            lines = transcribed(folder, rows, "--channels", "split")
            for line in lines:
                starts = [word["start"] for word in line["words"]]
                bars.holds(f"times of call {line['id']} are monotone", starts == sorted(starts))
            counts = errors(lines, recordings, copies)
            distances = percent(counts) - alone
            low, high = stats.t.interval(0.95, copies - 1, distances.mean(), distances.std(ddof=1) / copies**0.5)
            total = sum(counts, ErrorCounts())
            title = "clean" if level_db is None else f"crosstalk at {level_db:g} dB"
            print(
                f"split, {title}: {percent(counts).mean():.2f} %, {total.insertions / copies:.1f} inserted, "
                f"{total.deletions / copies:.1f} deleted; {distances.mean():+.2f} points beside the clean channels "
                f"(95 %: {low:+.2f} to {high:+.2f})",
                flush=True,
            )
            bars.at_most(f"points beside the clean channels, {title}", abs(distances.mean()), MARGIN_POINTS)
    bars.leave()


if __name__ == "__main__":
    main()
