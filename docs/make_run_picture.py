"""Draw docs/images/run.svg: the way of a run from its sources to its outputs, with a machine that is lost meanwhile.

python docs/make_run_picture.py
"""

from __future__ import annotations

from pathlib import Path

import svg

PLACE = Path(__file__).parent / "images" / "run.svg"
TITLE = (
    "The way of a run: recordings are decoded and transcribed side by side, and committed as parts; a run that was "
    "killed reads its parts and does only what is missing; the last commit is merged into the outputs"
)
HEIGHT = 590.0
BOXES = (
    ("Sources", ("folder, list,", "bucket, web,", "Parquet, tar")),
    ("Work", ("decode, on all", "cores, and", "transcribe")),
    ("Outputs", ("commit a part", "every 30 s;", "never rewritten")),
)
"""The boxes of the first row, from left to right."""
FILES = ("transcripts.jsonl", "srt, vtt, txt …", "report.html", "summary.json")
SIZE, STEP = 44.0, 57.0
"""Side of a part, and the distance between the left sides of two."""
NUM_PARTS, NUM_BEFORE = 8, 4
"""Parts of the run, and those that were committed when it was killed."""


def picture() -> str:
    """Return the picture."""
    return svg.picture([*_steps(), *_killed(), *_continued(), *_merged()], HEIGHT, TITLE)


def _steps() -> list[str]:
    """Return the first row: what happens to each recording."""
    drawn = []
    for number, (name, lines) in enumerate(BOXES):
        x = 20 + 212 * number
        drawn += [svg.box(x, 12, 176, 128), svg.text(x + 16, 42, name, "bold fill-accent")]
        drawn += [svg.text(x + 16, 70 + 26 * row, line) for row, line in enumerate(lines)]
        drawn += [svg.arrow(x - 34, 76, x - 3, 76)] if number else []
    return drawn


def _killed() -> list[str]:
    """Return the second row: the parts of a process that is killed while it works on the fifth."""
    y = 200.0
    drawn = [svg.text(20, y - 16, "voxbatch run calls/", "mono bold")]
    drawn += [part for number in range(NUM_BEFORE) for part in _part(number, y, "fill-soft", "line-accent")]
    x = 20 + STEP * NUM_BEFORE
    drawn += [svg.box(x + 1, y + 1, SIZE - 2, SIZE - 2, "fill-faint line-second", 6)]
    drawn += [svg.path(f"M{x + 13:g} {y + 13:g}l18 18m0 -18l-18 18", "line-bad", 3.5)]
    return [*drawn, svg.text(x + STEP + 4, y + 29, "killed, or the machine lost", "fill-bad bold")]


def _continued() -> list[str]:
    """Return the third row: the same command reads the parts, and does only what is missing."""
    y = 314.0
    drawn = [svg.text(20, y - 16, "voxbatch run calls/", "mono bold")]
    drawn += [svg.text(230, y - 16, "the same command continues")]
    for number in range(NUM_PARTS):
        before = number < NUM_BEFORE
        drawn += _part(number, y, "fill-panel" if before else "fill-soft", "line-quiet" if before else "line-accent")
    middle, end = 20 + STEP * NUM_BEFORE - 6, 20 + STEP * NUM_PARTS - 13
    drawn += [svg.path(f"M20 {y + 56:g}H{middle - 8:g}", "line-quiet", 3), svg.text(20, y + 80, "read, not done again")]
    return [
        *drawn,
        svg.path(f"M{middle + 6:g} {y + 56:g}H{end:g}", "line-accent", 3),
        svg.text(middle + 6, y + 80, "done now", "fill-accent"),
        svg.path(f"M{end + 14:g} {y + 22:g}H560", "line-quiet"),
        svg.path(f"M560 {y + 22:g}V{y + 120:g}", "line-quiet"),
        svg.text(548, y + 80, "merge", "bold", "end"),
        svg.arrow(560, y + 100, 560, y + 134),
    ]


def _part(number: int, y: float, fill: str, mark: str) -> list[str]:
    """Return a committed part: a box with a tick."""
    x = 20 + STEP * number
    return [
        svg.box(x, y, SIZE, SIZE, fill, 6),
        svg.path(f"M{x + 12:g} {y + 23:g}l7 8l14 -17", mark, 3),
    ]


def _merged() -> list[str]:
    """Return the last row: the files of the run."""
    y = 452.0
    drawn = [svg.box(20, y, 600, 76)]
    drawn += [
        svg.text(36 + 300 * (number % 2), y + 32 + 28 * (number // 2), name, "mono")
        for number, name in enumerate(FILES)
    ]
    return [*drawn, svg.text(20, y + 108, "The same bytes as without the kill.", "bold fill-accent")]


if __name__ == "__main__":
    PLACE.write_text(picture())
