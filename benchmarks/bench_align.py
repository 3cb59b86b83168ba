"""Word times of `voxbatch align` against TextGrids, on joined digits, and on one long recording.

    python benchmarks/bench_align.py --textgrids FOLDER [--hours 1] [--model FOLDER]

FOLDER holds X.TextGrid beside X.wav, with a tier "words", as tests/data of the Montreal Forced Aligner has; labels in
brackets are no words. The digits are those of the test recordings, eleven in a row with pauses of 0.3 s. The long
recording is read speech of the test recordings, joined with pauses of half a second, and repeated; only the start of
each utterance is known, by its level. CPU time and memory are those of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from common import english_rows, machine, run, write_manifest
from praatio import textgrid

RATE = 16_000
Words = list[tuple[str, float]]
"""Words with their starts in seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--textgrids", type=Path)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    print(machine())
    print("| set | words | found | mean ms | median ms | at most 50 ms | CPU s per hour | peak MB |")
    model = ["--model", arguments.model] if arguments.model else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sets = {"digits": list(digits(folder)), "long": [long_recording(folder, arguments.hours)]}
        if arguments.textgrids:
            sets = {"TextGrids": list(from_textgrids(arguments.textgrids)), **sets}
        for name, recordings in sets.items():
            print(measured(name, recordings, folder / name, model), flush=True)


def from_textgrids(folder: Path) -> Iterator[tuple[Path, Words]]:
    """Yield the recordings of a folder with their words."""
    for path in sorted(folder.glob("*.TextGrid")):
        grid = textgrid.openTextgrid(str(path), includeEmptyIntervals=False)
        audio = path.with_suffix(".wav")
        if "words" in grid.tierNames and audio.exists():
            entries = grid.getTier("words").entries
            yield audio, [(entry.label, entry.start) for entry in entries if entry.label[0] not in "[<"]


def digits(folder: Path) -> Iterator[tuple[Path, Words]]:
    """Yield joined recordings of digits."""
    rows = [row for row in english_rows() if "fsdd" in row["id"]]
    for index in range(0, len(rows), 11):
        yield joined(folder / f"digits-{index}.wav", rows[index : index + 11], 0.3)


def long_recording(folder: Path, hours: float) -> tuple[Path, Words]:
    """Return one recording of many utterances. Of each, the first word has a time, and the others have none."""
    rows = [row for row in english_rows() if row["id"].startswith(("librispeech", "ljspeech_flac"))]
    repeats = round(hours * 3600 / sum(row["duration"] + 0.5 for row in rows)) or 1
    return joined(folder / "long.flac", rows * repeats, 0.5)


def joined(path: Path, rows: Iterable[dict[str, Any]], pause_s: float) -> tuple[Path, Words]:
    """Write recordings in a row, and return the file and its words."""
    words: Words = []
    position = 0
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for row in rows:
            samples, rate = soundfile.read(row["audio_filepath"], dtype="float32")
            samples = soxr.resample(samples, rate, RATE)
            first, *others = row["text"].split()
            start = float(np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max())[0])
            words += [(first, (position + start) / RATE), *((word, np.nan) for word in others)]
            samples = np.append(samples, np.zeros(round(pause_s * RATE), np.float32))
            file.write(samples)
            position += len(samples)
    return path, words


def measured(name: str, recordings: list[tuple[Path, Words]], out: Path, model: list[str]) -> str:
    """Align recordings, and return a line of figures."""
    hours = sum(soundfile.info(path).duration for path, _ in recordings) / 3600
    rows = [{"id": path.stem, "audio_filepath": str(path), "text": text_of(words)} for path, words in recordings]
    manifest = write_manifest(out.with_suffix(".jsonl"), rows)
    result = run(["align", manifest, "-o", out, "--no-report", *model], traced=True)
    lines = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    errors = list[float]()
    for line, (_, words) in zip(lines, recordings, strict=True):
        assert line["pred_text"] == text_of(words)
        timed = [(word["word"].strip(), word["start"]) for word in line["words"]]
        pairs = SequenceMatcher(None, [word for word, _ in words], [word for word, _ in timed], autojunk=False)
        for a, b, length in pairs.get_matching_blocks():
            errors += [abs(timed[b + n][1] - words[a + n][1]) for n in range(length)]
    known = 1000 * np.array([error for error in errors if error == error])
    cpu_s = result.usage["cpu_s"] + result.usage["children_cpu_s"]
    return (
        f"| {name} | {sum(len(words) for _, words in recordings):,} | {len(errors):,} | {known.mean():.0f} "
        f"| {np.median(known):.0f} | {(known <= 50).mean():.0%} | {cpu_s / hours:.0f} | {result.tree_mb:.0f} |"
    )


def text_of(words: Words) -> str:
    """Return the text of words."""
    return " ".join(word for word, _ in words)


if __name__ == "__main__":
    main()
