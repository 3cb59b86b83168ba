"""Count the damaged recordings whose loss nobody reports: every format that voxbatch decodes, damaged in many ways.

The recordings are tones that are written here in each format, and one recording of each format in speech/. All
damaged files go through one `voxbatch run` with the scripted engine, whose transcripts.jsonl and failures.jsonl are
read. The items that are done are decoded once more in this process, and each 0.1 s of the original is looked for in the
result, at most 0.1 s early or late. A loss of more than 0.1 s or 1%, whichever is longer, needs a warning or a failure.
Noise that was not in the original needs one, too. A read error needs a failure with `retryable`.

False alarms are counted over the undamaged files, and over the recordings of speech/.

Four columns are not damaged: two audio streams of which the first is silent, two with sound, audio that begins later
than the video, and a gap in the timestamps. All audio must be at its time, and several streams need a warning.

A cell of the table is one of these:

    ok       all audio is there, at the right time
    warned   audio is lost, and a warning says so
    moved    the same, and other audio is at a wrong time
    failed   the item failed
    LOST     audio is lost, without a word
    (lost)   the same, where the format has no means to notice it: see `excuse`; not counted
    ALARM    a warning or a failure, although nothing is damaged
    WRONG    the read error is no failure with `retryable`; or the other content is not at its time, or not warned of
    -        the damage makes no sense for the format
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import VOXBATCH, Bars, corpus, machine, write_manifest
from damage import (
    FORMATS,
    GAP_S,
    LATE_S,
    RATE,
    SECOND,
    SOURCE,
    Format,
    corrupted,
    encode,
    encoders,
    garbage,
    speech_formats,
    stale,
    tail,
    truncated,
    variants,
    write_sources,
    write_variant,
    zeroed,
)
from numpy.typing import NDArray

from voxbatch.audio import decode
from voxbatch.audio.ffmpeg import FFMPEG_VARIABLE
from voxbatch.errors import VoxbatchError
from voxbatch.storage import open_recording

TOLERANCE_S, TOLERANCE = 0.1, 0.01
"""Seconds, and share of the recording, that may be lost, or added, without a word. The longer one counts."""
STEP_S, FRAME_S, WINDOW_S = 0.1, 0.01, 0.4
"""Steps of the original that are looked for; frames in which their times are measured; audio that is compared."""
BANDS, FFT = 16, 512
SAME, SURE = 0.6, 0.8
"""Correlations of two windows from which they hold the same audio, and from which that is certain."""
MISPLACED_S = 0.1
"""Seconds that audio may be early or late."""
MOVED_S = 2.0
"""Seconds of audio at a wrong time from which a cell tells of it. Less may be a chance likeness."""
CODEC_DELAY_S = 0.15
"""Seconds by which a codec may delay the undamaged audio: AAC's first 2,112 samples."""
UNDAMAGED, READ_ERROR = "none", "read error"
_ONLY_LEVELS = "samples reach"
"""Begin of the warning about loud samples. Noise that was decoded causes it, but it tells nobody about a loss."""
STREAMS, LATE, GAP = ("silent 1st", "two"), "late", "gap"
DAMAGES = ("truncated", "zeroed", "corrupted", "stale-", "stale+", "garbage", "tail")
COLUMNS = (UNDAMAGED, *DAMAGES, READ_ERROR, *STREAMS, LATE, GAP)
READS = "read,pread64,readv,preadv"
STRACE = ("strace", "-f", "-qq", "-e", f"trace={READS}", "-e", "signal=none")


# ── where the audio is ────────────────────────────────────────────────────────────────────────────────────────────────


def features(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the levels of the bands, 40 dB deep, for each frame. Shape (frames, BANDS)."""
    hop, size = round(FRAME_S * RATE), 400
    samples = np.pad(samples, (0, max(0, size - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), FFT)) ** 2
    edges = (250 * (3_500 / 250) ** (np.arange(BANDS + 1) / BANDS) * FFT / RATE).round().astype(int)
    bands = np.stack([power[:, a : max(b, a + 1)].sum(axis=1) for a, b in pairwise(edges)], axis=1)
    decibels = 10 * np.log10(bands + 1e-12)
    loud: NDArray[np.float32] = np.maximum(decibels - np.percentile(decibels.max(axis=1), 95), -40).astype(np.float32)
    return loud


def _windows(levels: NDArray[np.float32], seconds: float, every_s: float) -> NDArray[np.float32]:
    """Return windows of frames, each with mean 0 and norm 1. A window of silence is 0. Shape (windows, values)."""
    length, step = round(seconds / FRAME_S), round(every_s / FRAME_S)
    levels = np.pad(levels, ((0, length - 1), (0, 0)), constant_values=-40)
    windows = np.lib.stride_tricks.sliding_window_view(levels, length, axis=0)[::step].reshape(-1, length * BANDS)
    windows = windows - windows.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(windows, axis=1, keepdims=True)
    faint = norm < 3 * np.sqrt(length * BANDS)  # less than 3 dB from the mean: noise or silence, no tones
    unit: NDArray[np.float32] = np.where(faint, 0, windows / np.maximum(norm, 1e-6)).astype(np.float32)
    return unit


@dataclass(frozen=True, slots=True)
class Kept:
    """The audio that was found in a decoded recording."""

    seconds: float
    """Length of the decoded audio."""
    original_s: float
    """Length of the original."""
    wanted_s: float
    """Seconds of the original that are not silent."""
    in_place_s: float
    """Seconds of the original that are at their time."""
    moved_s: float
    """Seconds of the original that are at another time."""
    shift_s: float
    """Median of the shifts of what was moved; later is positive."""


def compare(original: NDArray[np.float32], decoded: NDArray[np.float32], slack_s: float) -> Kept:
    """Look for each step of the original in the decoded audio.

    A step is kept if it is in place, and a window that covers it, too. The window tells it from a chance likeness.
    """
    step, width, slack = (round(seconds / FRAME_S) for seconds in (STEP_S, WINDOW_S, slack_s))
    before, after = features(original), features(decoded)
    steps = _windows(before, STEP_S, STEP_S)
    step_alike = steps @ _windows(after, STEP_S, FRAME_S).T
    alike = _windows(before, WINDOW_S, STEP_S) @ _windows(after, WINDOW_S, FRAME_S).T
    shifts = (alike.argmax(axis=1) - np.arange(len(alike)) * step) * FRAME_S
    same, near, moved = (np.zeros(len(steps), bool) for _ in range(3))
    for n in range(len(steps)):
        here, covered = slice(max(0, n * step - slack), n * step + slack + 1), slice(n, n + width // step)
        same[n] = step_alike[n, here].max(initial=0.0) >= SAME
        if alike[n, here].max(initial=0.0) >= SAME:
            near[covered] = True
        elif alike[n].max(initial=0.0) >= SURE and abs(shifts[n] - shifts[n - 1]) <= STEP_S / 2:
            moved[covered] = True
    moved &= ~near
    audible = steps.any(axis=1)
    return Kept(
        seconds=len(decoded) / RATE,
        original_s=len(original) / RATE,
        wanted_s=float(audible.sum() * STEP_S),
        in_place_s=float((audible & same & near).sum() * STEP_S),
        moved_s=float(moved.sum() * STEP_S),
        shift_s=float(np.median(shifts[moved])) if moved.any() else 0.0,
    )


def decoded(path: Path) -> NDArray[np.float32]:
    """Return what voxbatch decodes."""
    with closing(open_recording(str(path))) as recording:
        blocks = [block.samples for block in decode(recording, str(path))]
    return np.concatenate(blocks)


def _close_stderr() -> None:
    """Send stderr to nowhere: libsndfile's MP3 decoder writes there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def decoded_or_source(path: Path, source: Path) -> NDArray[np.float32]:
    """Return what voxbatch decodes, or the source if it decodes nothing. Runs in a process of the pool."""
    with suppress(VoxbatchError):
        return decoded(path)
    sound: NDArray[np.float32] = soundfile.read(source, dtype="float32")[0]
    return sound


def kept(reference: Path, path: Path, slack_s: float) -> Kept:
    """Compare a decoded file with its reference. Runs in a process of the pool."""
    sound, _ = soundfile.read(reference, dtype="float32")
    return compare(sound, decoded(path), slack_s)


# ── cases ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged file, and what became of it."""

    form: Format
    damage: str
    path: Path
    line: dict[str, Any]
    """The line of transcripts.jsonl or of failures.jsonl; {} before the run."""
    kept: Kept | None = None
    """None if the item failed."""

    @property
    def id(self) -> str:
        """Return the id of the item."""
        return f"{self.form.name}:{self.damage}"

    def reference(self, folder: Path) -> Path:
        """Return the file that the decoded audio is compared with."""
        if self.damage == UNDAMAGED and self.form.recording is None:
            return folder / SOURCE
        return folder / self.form.name / f"{self.damage if self.damage in (LATE, GAP) else 'damaged'}.wav"

    @property
    def excuse(self) -> str:
        """Return why this damage of this format cannot be noticed; empty if it can."""
        form = self.form
        if self.damage == "truncated" and form.no_length:
            return "no header gives a length"
        if self.damage in ("zeroed", "corrupted") and form.any_bytes:
            return "all bytes are valid samples"
        if self.damage in ("zeroed", "corrupted") and form.no_checksum:
            return "wrong bytes, and zeros, are valid parameters"
        if self.damage in ("garbage", "tail") and form.any_bytes and form.no_length:
            return "all bytes are valid samples, and no header gives a length"
        return ""

    def loses(self) -> bool:
        """Return whether audio is missing, at a wrong time, or made up."""
        if self.kept is None:
            return False
        tolerance = max(TOLERANCE_S, TOLERANCE * self.kept.original_s)
        longest = self.kept.original_s * (2 if self.damage == "tail" else 1)
        return (
            self.kept.in_place_s < self.kept.wanted_s - tolerance
            or not self.kept.original_s - tolerance <= self.kept.seconds <= longest + tolerance
        )

    def verdict(self) -> str:
        """Return the cell of the table."""
        warned, failed = bool(self.line.get("warnings")), "error" in self.line
        if self.damage == READ_ERROR:
            return "failed" if failed and self.line["retryable"] else "WRONG"
        if self.damage == UNDAMAGED:
            return "ALARM" if warned or failed else "LOST" if self.loses() else "ok"
        if failed:
            return "failed" if self.damage in DAMAGES else "WRONG"
        if self.damage in STREAMS:
            return "WRONG" if self.loses() or not warned else "warned"
        if self.damage in (LATE, GAP):
            return "WRONG" if self.loses() else "ok"
        if not self.loses():
            return "ok"
        if any(not warning.startswith(_ONLY_LEVELS) for warning in self.line["warnings"]):
            return "moved" if self.kept and self.kept.moved_s > MOVED_S else "warned"
        return "(lost)" if self.excuse else "LOST"

    def is_bad(self) -> bool:
        """Return whether the case counts against a bar."""
        return self.verdict().isupper()

    def told(self) -> str:
        """Return one line about the case."""
        text = f"{self.id:<26} {self.verdict():<7}"
        if self.kept is not None:
            text += f" {self.kept.seconds:6.2f} s, {self.kept.in_place_s:5.1f} s in place"
            if self.kept.moved_s:
                text += f", {self.kept.moved_s:.1f} s moved by {self.kept.shift_s:+.2f} s"
        elif "audio_duration" in self.line:
            text += f" {self.line['audio_duration']:6.2f} s"
        for message in (*self.line.get("warnings", ()), self.line.get("message", "")):
            text += f"\n{'':10}{message}" if message else ""
        if self.verdict() == "(lost)":
            text += f"\n{'':10}not counted: {self.excuse}"
        return text


def write_cases(folder: Path, forms: Iterable[Format], only: re.Pattern[str]) -> Iterator[Case]:
    """Write the sources, each format undamaged and damaged, and the other contents of the format."""
    write_sources(folder)
    for form in forms:
        if not any(only.search(f"{form.name}:{column}") for column in COLUMNS):
            continue
        whole, other = (folder / form.name / name / form.file for name in (UNDAMAGED, "other"))
        if not (encode(form, folder / SOURCE, whole) and encode(form, folder / SECOND, other)):
            print(f"{form.name}: not written, because no ffmpeg here has its encoder")
            continue
        changes = {
            UNDAMAGED: lambda data: data, "truncated": truncated, "zeroed": zeroed, "corrupted": corrupted,
            "stale-": stale(0.25), "stale+": stale(2.0), "garbage": garbage, "tail": tail(other.read_bytes()),
            READ_ERROR: lambda data: data,
        }  # fmt: skip
        for damage, change in changes.items():
            data = change(whole.read_bytes())
            if data is not None and only.search(f"{form.name}:{damage}"):
                path = folder / form.name / damage / form.file
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
                yield Case(form, damage, path, {})
        for name, options in variants(form, folder).items():
            path = folder / form.name / name / {"a.m4a": "a.mp4", "a.mka": "a.mkv"}.get(form.file, form.file)
            if only.search(f"{form.name}:{name}") and write_variant(options, path):
                yield Case(form, name, path, {})


def write_references(sound: NDArray[np.float32], folder: Path) -> None:
    """Write what the decoded audio is compared with: "damaged.wav", "late.wav" and "gap.wav"."""
    begin, end = (round(second * RATE) for second in GAP_S)
    with_gap = sound.copy()
    with_gap[begin:end] = 0
    late = np.concatenate([np.zeros(round(LATE_S * RATE), np.float32), sound])
    for name, each in (("damaged", sound), (LATE, late), (GAP, with_gap)):
        soundfile.write(folder / f"{name}.wav", each, RATE, subtype="FLOAT")


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def transcribe(rows: list[dict[str, Any]], folder: Path, prefix: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Run voxbatch, and return the lines of both outputs by id. If the run stops, the items have failed with that."""
    out = folder / "out"
    manifest = write_manifest(folder / "rows.jsonl", rows)
    command = [*prefix, *VOXBATCH, "run", manifest, "-o", out, "--engine", "scripted", "--allow-outside", "--quiet"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ran.returncode not in (0, 3):
        message = f"voxbatch run ended with {ran.returncode}: {ran.stderr[-2000:]}"
        return {row["id"]: {"id": row["id"], "error": "", "message": message, "retryable": False} for row in rows}
    texts = [(out / name).read_text("utf-8") for name in ("transcripts.jsonl", "failures.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return {line["id"]: line for line in lines}


def judged(cases: list[Case], folder: Path) -> list[Case]:
    """Run all cases without a read error, and decode those that are done once more."""
    undamaged = {case.form.name: folder / case.form.name / UNDAMAGED / case.form.file for case in cases}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        lines = transcribe(_rows(cases), Path(place))
    cases = [replace(case, line=lines[case.id]) for case in cases]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=_close_stderr) as pool:
        sounds = pool.map(decoded_or_source, undamaged.values(), repeat(folder / SOURCE))
        for name, sound in zip(undamaged, sounds, strict=True):
            write_references(sound, folder / name)
        done = [case for case in cases if "error" not in case.line]
        slack = [CODEC_DELAY_S if case.damage == UNDAMAGED else MISPLACED_S for case in done]
        kepts = pool.map(kept, [case.reference(folder) for case in done], [case.path for case in done], slack)
        found = dict(zip((case.id for case in done), kepts, strict=True))
    return [replace(case, kept=found.get(case.id)) for case in cases]


def with_read_errors(cases: list[Case], folder: Path) -> list[Case]:
    """Run each case under strace, which makes all reads fail from the middle of the file on."""
    if not cases:
        return []
    if shutil.which("strace") is None:
        print("read errors: skipped, because strace is not installed")
        return []
    with tempfile.TemporaryDirectory(dir=folder) as place, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        log = Path(place) / "strace.log"
        paths = [str(case.path) for case in cases]
        command = [*STRACE, "-y", "-o", str(log), *(f"--trace-path={path}" for path in paths)]
        transcribe(_rows(cases), Path(place), command)
        at = _middle_reads(log.read_text("utf-8", "replace"))
        # Where libsndfile fails, ffmpeg reads the file, too, and must fail in spite of its fewer reads.
        loop = 'for path; do "$FFMPEG" -nostdin -v quiet -i "$path" -f null -; done'
        ffmpeg = {**os.environ, "FFMPEG": os.environ[FFMPEG_VARIABLE]}
        subprocess.run([*command, "sh", "-c", loop, "sh", *paths], check=False, env=ffmpeg)
        for path, number in _middle_reads(log.read_text("utf-8", "replace")).items():
            at[path] = min(at[path], number)
        return list(pool.map(lambda case: _with_read_error(case, at[str(case.path)], folder), cases))


def _rows(cases: Iterable[Case]) -> list[dict[str, Any]]:
    return [{"id": case.id, "audio_filepath": str(case.path)} for case in cases]


_READ = re.compile(r"^(\d+) +(p?readv?(?:64)?)\(\d+<([^>]*)>")
_RESULT = re.compile(r"^(\d+) .* = (\d+)$")


def _middle_reads(log: str) -> dict[str, int]:
    """Return for each file the number of the read from which all reads shall fail.

    strace counts the calls of each function in each thread. Of all numbers, that one is chosen whose first failing read
    begins nearest to the middle of the file's data.
    """
    reads: dict[str, list[tuple[str, int]]] = defaultdict(list)
    reading: dict[
        str, tuple[str, str]
    ] = {}  # by thread, because another thread's line may stand between a read and its result
    for line in log.splitlines():
        if match := _READ.match(line):
            reading[match[1]] = match[2], match[3]
        if match := _RESULT.match(line):
            function, path = reading[match[1]]
            reads[path].append((match[1] + function, int(match[2])))
    return {path: _middle_read(each) for path, each in reads.items()}


def _middle_read(reads: list[tuple[str, int]]) -> int:
    total = sum(size for _, size in reads)
    first_failure: dict[int, int] = {}
    counts: dict[str, int] = defaultdict(int)
    before = 0
    for counter, size in reads:
        counts[counter] += 1
        first_failure.setdefault(counts[counter], before)
        before += size
    return min(first_failure, key=lambda number: abs(first_failure[number] - total / 2))


def _with_read_error(case: Case, number: int, folder: Path) -> Case:
    inject = f"inject={READS}:error=EIO:when={number}+"
    command = [*STRACE, "-o", "/dev/null", f"--trace-path={case.path}", "-e", inject]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        readable = {"id": "readable", "audio_filepath": str(folder / SOURCE)}  # or the run stops: nothing can be read
        lines = transcribe([readable, *_rows([case])], Path(place), command)
    return replace(case, line=lines[case.id])


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def print_table(cases: list[Case]) -> None:
    """Print one line for each format, and one column for each damage."""
    cells = {(case.form.name, case.damage): case.verdict() for case in cases}
    names = list(dict.fromkeys(case.form.name for case in cases))
    damages = [damage for damage in COLUMNS if any((name, damage) in cells for name in names)]
    print(f"\n{'':<15}" + "".join(f"{damage:<11}" for damage in damages))
    for name in names:
        print(f"{name:<15}" + "".join(f"{cells.get((name, damage), '-'):<11}" for damage in damages))


def matrix(cases: list[Case], folder: Path, build: str, verbose: bool, bars: Bars) -> None:
    """Run the matrix with one ffmpeg."""
    began = time.monotonic()
    plain = judged([case for case in cases if case.damage != READ_ERROR], folder)
    cases = plain + with_read_errors([case for case in cases if case.damage == READ_ERROR], folder)
    print(f"\n{build}: {len(cases)} cases in {time.monotonic() - began:.0f} s")
    for case in cases:
        if verbose or case.is_bad():
            print(case.told())
    print_table(cases)
    print()
    counts = Counter(
        case.verdict() if case.damage in (UNDAMAGED, *DAMAGES) else case.damage for case in cases if case.is_bad()
    )
    bars.at_most(f"{build}: silent losses", counts["LOST"], 0)
    bars.at_most(f"{build}: false alarms, undamaged files", counts["ALARM"], 0)
    bars.at_most(f"{build}: read errors that are no retryable failure", counts[READ_ERROR], 0)
    streams = sum(counts[name] for name in STREAMS)
    bars.at_most(f"{build}: several audio streams, not the first with sound or no warning", streams, 0)
    bars.at_most(f"{build}: late starts at the wrong time", counts[LATE], 0)
    bars.at_most(f"{build}: gaps after which times are wrong", counts[GAP], 0)


def speech(folder: Path, build: str, bars: Bars) -> None:
    """Count the warnings and failures over the recordings of speech/."""
    place = corpus() / "speech"
    with open(place / "manifest.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line)["audio_filepath"] for line in file]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as out:
        lines = transcribe([{"id": row, "audio_filepath": str(place / row)} for row in rows], Path(out))
    alarms = [line for line in lines.values() if line.get("warnings") or "error" in line]
    print(f"\n{build}: {len(rows)} recordings of speech/ in {time.monotonic() - began:.0f} s")
    for line in alarms[:20]:
        print(f"  {line['id']}: {line.get('warnings') or line['message']}")
    bars.at_most(f"{build}: false alarms over speech/", len(alarms), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ffmpeg", nargs="+", default=encoders(), help="programs that decode; default: wheel, system")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases FORMAT:DAMAGE, such as m4a:zeroed")
    parser.add_argument("--verbose", action="store_true", help="print every case, with its lengths and messages")
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-damage-") as name:
        folder = Path(name)
        forms = [*FORMATS, *speech_formats(corpus() / "speech")]
        cases = list(write_cases(folder, forms, re.compile(given.only)))
        for program in given.ffmpeg:
            os.environ[FFMPEG_VARIABLE] = program
            version = subprocess.run([program, "-version"], check=True, capture_output=True, text=True).stdout.split()[
                2
            ]
            matrix(cases, folder, f"ffmpeg {version}", given.verbose, bars)
            if not given.only:
                speech(folder, f"ffmpeg {version}", bars)
    bars.leave()


if __name__ == "__main__":
    main()
