"""Draw docs/images/subtitle.svg and call.svg: the subtitles of one of the examples on a picture, and who speaks when in
another one.

    .venv/bin/python docs/make_speech_pictures.py

It takes the networks that tell speakers apart: `make speakers` writes them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pysubs2
import soundfile
import svg

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECORDINGS = ROOT / "examples" / "recordings"
NETWORKS = ROOT / "build" / "speakers"
FILM, CALL = RECORDINGS / "museum.wav", RECORDINGS / "where-is-my-order.flac"
SHOWN = 1
"""The subtitle that is on the picture."""
LEFT, WIDTH = 20.0, 600.0
"""Left edge and width of a time line."""
BAR_S, BAR = 0.08, 2.6
"""Seconds of audio of a bar of a waveform, and its width."""
SPEAKERS = {"Speaker 1": "accent", "Speaker 2": "second"}
"""Roles of the colours of the speakers."""


@dataclass(frozen=True)
class Cue:
    """A text with its start and end in seconds, and its speaker."""

    start: float
    end: float
    text: str
    speaker: str = ""


def cues(subtitles: Path) -> list[Cue]:
    """Return the cues of a file in SubRip's format."""
    return [Cue(line.start / 1000, line.end / 1000, line.plaintext) for line in pysubs2.load(str(subtitles))]


def turns(networks: Path) -> list[Cue]:
    """Return the segments of the call with their speakers, as `voxbatch run --speakers 2` finds them."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--speakers", "2", "--speaker-model", str(networks), "-o", f"{folder}/out", "-q"]
        subprocess.run([sys.executable, "-m", "voxbatch", "run", str(CALL), *options], cwd=ROOT, check=True)
        line = json.loads(Path(folder, "out", "transcripts.jsonl").read_text())
    return [Cue(part["start"], part["end"], part["text"], part["speaker"]) for part in line["segments"]]


def subtitle(texts: list[Cue]) -> str:
    """Return a picture with one of the subtitles, and all of them below it on a time line."""
    horizon = "M20 218H620V340a8 8 0 0 1 -8 8H28a8 8 0 0 1 -8 -8z"
    waves = "".join(f"M{x} {y}q14 -9 28 0t28 0" for x, y in ((60, 250), (470, 244), (180, 284), (520, 296), (40, 310)))
    drawn = [
        svg.box(20, 10, 600, 338, "sky"),
        '<circle cx="520" cy="84" r="36" class="sun"/>',
        f'<path d="{horizon}" class="sea"/>',
        svg.path(waves, "wave", 3),
        '<path d="M236 212h168l-30 44H262z" class="hull"/><path d="M312 62v142h-66z" class="sail"/>',
        '<path d="M328 84v120h62z" class="sail"/><path d="M318 50h5v164h-5z" class="hull"/>',
    ]
    rows = texts[SHOWN].text.split("\n")
    top = 330 - 34 * len(rows)
    drawn += [svg.box(90, top - 8, 460, 34 * len(rows) + 12, "caption", 4)]
    drawn += [svg.text(320, top + 20 + 34 * number, row, "spoken", "middle") for number, row in enumerate(rows)]
    duration = texts[-1].end
    for number, cue in enumerate(texts):
        x, length = LEFT + WIDTH * cue.start / duration, WIDTH * (cue.end - cue.start) / duration
        drawn += [svg.box(x, 366, length, 30, "fill-accent" if number == SHOWN else "fill-soft", 4)]
        words = " ".join(cue.text.split())
        drawn += [svg.text(LEFT, 430 + 30 * number, _clock(cue.start), "mono fill-quiet")]
        drawn += [svg.text(90, 430 + 30 * number, words, "fill-accent" if number == SHOWN else "")]
    colours = (
        ".sky{fill:#f4b183}.sun{fill:#fff1c9}.sea{fill:#2f6f86}.wave{stroke:#5c9bb0;fill:none}.hull{fill:#3a2a2a}"
        ".sail{fill:#fdf6ec}.caption{fill:#000;fill-opacity:.68}text.spoken{font-size:24px;fill:#fff}"
    )
    title = f"A drawn boat on the sea with the subtitle: {texts[SHOWN].text}. Below: all subtitles on a time line"
    return svg.picture(drawn, 440 + 30 * (len(texts) - 1), title, extra=colours)


def call(segments: list[Cue]) -> str:
    """Return the waveform of the call with a row for each speaker, and the texts below."""
    samples, rate = soundfile.read(CALL, always_2d=True)
    duration = len(samples) / rate
    drawn = []
    for row, (speaker, role) in enumerate(SPEAKERS.items()):
        y = 62 + 92 * row
        drawn += [svg.text(LEFT, y - 34, speaker, f"bold fill-{role}"), svg.path(f"M20 {y}H620", "line-line", 1)]
        for segment in segments:
            if segment.speaker == speaker:
                drawn += [svg.path(_waveform(samples.mean(1), rate, segment, y, duration), f"line-{role}", BAR)]
    for second in range(0, int(duration) + 1, 2):
        drawn += [
            svg.text(
                LEFT + WIDTH * second / duration, 218, _clock(second), "fill-quiet", "middle" if second else "start"
            )
        ]
    for number, segment in enumerate(segments):
        y = 262 + 30 * number
        drawn += [svg.text(LEFT, y, segment.speaker, f"bold fill-{SPEAKERS[segment.speaker]}")]
        drawn += [svg.text(132, y, segment.text)]
    title = "A call on a time line: two speakers in turns, each with the waveform of what they say, and the four texts"
    return svg.picture(drawn, 272 + 30 * (len(segments) - 1), title)


def _waveform(samples: np.ndarray, rate: int, segment: Cue, y: float, duration: float) -> str:
    """Return the bars of a segment as an SVG path. A bar is as long as the samples are loud."""
    bars = []
    for start in np.arange(segment.start, segment.end, BAR_S):
        piece = samples[int(start * rate) : int((start + BAR_S) * rate)]
        size = round(1.5 + 110 * float(np.sqrt(np.mean(piece**2))), 1)
        x = round(LEFT + WIDTH * float(start) / duration, 1)
        bars.append(f"M{x:g} {y - size:g}v{2 * size:g}")
    return "".join(bars)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


def main() -> None:
    """Transcribe the two recordings and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", str(FILM), "-o", f"{folder}/out", "--formats", "srt", "-q"]
        subprocess.run([sys.executable, "-m", "voxbatch", *command], cwd=ROOT, check=True)
        (IMAGES / "subtitle.svg").write_text(subtitle(cues(Path(folder, "out", "srt", "museum.srt"))))
    (IMAGES / "call.svg").write_text(call(turns(NETWORKS)))


if __name__ == "__main__":
    main()
