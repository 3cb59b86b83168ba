"""Diarisation on conversations with RTTM: error rate, speakers, speed and memory.

    python benchmarks/bench_speakers.py [--weights FOLDER] [--rttm FOLDER ...]
    python benchmarks/bench_speakers.py [--weights FOLDER] --rttm FOLDER --words MODEL

Each folder holds X.rttm beside X.wav or X.flac; an RTTM file may name several recordings. Without --rttm: the
conversations of the test recordings. The error rate (DER) scores overlap. The collar is on each side of a border of the
reference. Speed is audio seconds per CPU second of one process, memory the growth of its peak. Bars, at collar 0: see
BARS.

With --words, the recordings with X.stm, which has the texts of the speakers, are transcribed by `voxbatch run
--speakers`. The error rate of who said what (cpWER) is that of the run's speakers, beside the one of the same words
with the speakers of the reference's turns, and with one speaker.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
from common import ROOT, Bars, corpus, machine, parser, transcribed
from scipy.optimize import linear_sum_assignment

from voxbatch.analysis.score import score_place
from voxbatch.records import SpeakerCount, Transcript, Turn, Word
from voxbatch.scoring.corpus import ScoreOptions
from voxbatch.scoring.counts import tokens
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules
from voxbatch.speakers import Diarizer, find_weights
from voxbatch.text.speakers import with_speakers

FRAME_S = 0.005
BARS = {"call": 5.0, "AMI": 30.0, "telephone": 9.0, "synthetic": 8.0}
"""Largest DER in percent at collar 0, by set."""
MARGIN_POINTS = 0.5
"""Largest distance of the cpWER of a run from that of the true turns."""
SETS = {"sample": "call", "trn": "AMI", "tel": "telephone"}
"""Sets by the first letters of a recording's name. All others are synthetic."""
WORDS_AS_THEY_ARE = ScoreOptions(Rules("none"))
"""The words are normalised before they are written."""
Reference = list[tuple[float, float, str]]
"""Turns: start, end and speaker."""
Recordings = list[tuple[str, Path, Reference]]
"""Name, audio and turns of each recording."""


def references(folder: Path) -> Iterator[tuple[str, Path, Reference]]:
    """Yield the name, the audio and the turns of each recording of a folder."""
    turns: dict[str, list[tuple[float, float, str]]] = {}
    for path in sorted(folder.glob("*.rttm")):
        for line in path.read_text(encoding="utf-8").splitlines():
            columns = line.split()
            if columns[:1] == ["SPEAKER"]:
                start, duration = float(columns[3]), float(columns[4])
                turns.setdefault(columns[1], []).append((start, start + duration, columns[7]))
    for name, listed in turns.items():
        for path in sorted(folder.glob(f"{name}.*")):
            if path.suffix in (".wav", ".flac"):
                yield name, path, listed


def errors(reference: Reference, turns: list[Turn], seconds: float, collar: float) -> list[float]:
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


def own_turns(diarizer: Diarizer, audio: Path) -> tuple[list[Turn], float]:
    """Return the turns of a recording, and the CPU seconds that they took."""
    before = time.process_time()
    for block in soundfile.blocks(audio, 160_000, dtype="float32"):
        diarizer.add(block)
    return diarizer.turns(), time.process_time() - before


def errors_of_turns(sets: dict[str, Recordings], diarizer: Diarizer, bars: Bars) -> None:
    """Print the table of the turns of voxbatch, and of one speaker for all."""
    print("| set | turns of | DER | missed | false | confused | DER, collar 0.25 s | speakers right | x real time |")
    print("|---|---|---|---|---|---|---|---|---|")
    rates = {}
    for group, recordings in sorted(sets.items()):
        lengths = [soundfile.info(audio).duration for _, audio, _ in recordings]
        own = [own_turns(diarizer, audio) for _, audio, _ in recordings]
        systems = {"voxbatch": [turns for turns, _ in own], "one speaker": [[Turn(0.0, end, 0)] for end in lengths]}
        speed = sum(lengths) / sum(cpu_s for _, cpu_s in own)
        for system, results in systems.items():
            sums, right = np.zeros((2, 4)), 0
            for (_, _, reference), seconds, turns in zip(recordings, lengths, results, strict=True):
                sums += [errors(reference, turns, seconds, collar) for collar in (0.0, 0.25)]
                right += len({speaker for _, _, speaker in reference}) == len({turn.speaker for turn in turns})
            shares = 100 * sums / sums[:, 3:]
            rates[group, system], at_collar = shares[:, :3].sum(1)
            print(
                f"| {group} | {system} | {rates[group, system]:.1f} | {' | '.join(f'{s:.1f}' for s in shares[0, :3])} "
                f"| {at_collar:.1f} | {right}/{len(recordings)} | {f'{speed:.0f}' if system == 'voxbatch' else ''} |"
            )
    for group in sets:
        bars.at_most(f"DER of {group}", rates[group, "voxbatch"], BARS[group], "%")


def errors_of_words(recordings: Recordings, weights: str, model: str, bars: Bars) -> None:
    """Print the cpWER of a run, of the true turns and of one speaker over recordings with an stm."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-bench-") as temporary:
        folder = Path(temporary)
        rows = [{"id": name, "audio_filepath": str(audio)} for name, audio, _ in recordings]
        lines = transcribed(folder, rows, "--model", model, "--speakers", "auto", "--speaker-model", weights)
        texts: dict[str, list[str]] = {"reference": [], "voxbatch": [], "the true turns": [], "one speaker": []}
        for line, (name, audio, reference) in zip(lines, recordings, strict=True):
            words = [
                Word(f" {word['word']}", word["start"], word["end"], None, word.get("speaker"))
                for word in line["words"]
            ]
            numbers: dict[str, int] = {}
            turns = [Turn(a, b, numbers.setdefault(c, len(numbers))) for a, b, c in sorted(reference)]
            true = with_speakers(Transcript(line["pred_text"], tuple(words)), turns)
            spoken = [row.split(None, 5) for row in audio.with_suffix(".stm").read_text().splitlines()]
            texts["reference"] += stm(name, [Word(f" {row[5]}", 0.0, 0.0, None, row[2]) for row in spoken])
            texts["voxbatch"] += stm(name, words)
            texts["the true turns"] += stm(name, true.words)
            texts["one speaker"] += stm(name, [replace(word, speaker="one") for word in words])
        for system, written in texts.items():
            (folder / f"{system}.stm").write_text("".join(written))
        print("| words | speakers of | cpWER | errors | missed and false speakers |\n|---|---|---|---|---|")
        rates, reference_path = {}, str(folder / "reference.stm")
        for system in list(texts)[1:]:
            place = str(folder / f"{system}.stm")
            score = score_place(place, reference_path, "en", options=WORDS_AS_THEY_ARE).speakers
            assert score
            rates[system] = 100 * (score.cpwer or 0.0)
            counts = f"{score.errors} | {score.missed_speakers}, {score.false_alarm_speakers}"
            print(f"| {score.reference_words:,} | {system} | {rates[system]:.2f} | {counts} |")
    points = rates["voxbatch"] - rates["the true turns"]
    bars.at_most("cpWER above that of the true turns", points, MARGIN_POINTS, "points")


def stm(name: str, words: Iterable[Word]) -> Iterator[str]:
    """Yield a line of an stm for each speaker of a recording, with normalised words."""
    speakers: dict[str, list[str]] = {}
    for word in words:
        speakers.setdefault((word.speaker or "nobody").replace(" ", "_"), []).append(word.text)
    for speaker, texts in speakers.items():
        if spoken := tokens("".join(texts), "en", DEFAULT_RULES):
            yield f"{name} 1 {speaker} 0 1 {' '.join(spoken)}\n"


def peak_mib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--weights", type=Path, default=ROOT / "build" / "speakers", help="value of --speaker-model")
    options.add_argument("--rttm", type=Path, action="append", help="folder of conversations; may be repeated")
    options.add_argument("--words", metavar="MODEL", help="score the words of a Whisper model: tiny.en, or a folder")
    given = options.parse_args()
    weights = str(given.weights.resolve())
    if not given.weights.is_dir():
        print(f"skipped: no networks in {weights}; `make speakers` writes them")
        return
    sets: dict[str, Recordings] = {}
    for folder in given.rttm or [corpus() / "conversations"]:
        for name, audio, reference in references(folder.resolve()):
            group = next((group for start, group in SETS.items() if name.startswith(start)), "synthetic")
            sets.setdefault(group, []).append((name, audio, reference))
    bars = Bars()
    print(machine())
    if given.words:
        for group, recordings in sorted(sets.items()):
            if texts := [recording for recording in recordings if recording[1].with_suffix(".stm").exists()]:
                print(f"{group}: {len(texts)} recordings")
                errors_of_words(texts, weights, given.words, bars)
        bars.leave()
    diarizer = Diarizer(find_weights(weights), SpeakerCount())
    loaded = peak_mib()
    errors_of_turns(sets, diarizer, bars)
    print(f"peak memory above the loaded networks: {peak_mib() - loaded:.0f} MiB")
    bars.leave()


if __name__ == "__main__":
    main()
