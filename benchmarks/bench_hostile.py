"""Measure the peak memory of `validate`, `--dry-run` and a stand-in run over manifests that are made to exhaust it.

Each manifest is small as gzip, or wrong in one way: an endless line, deep nesting, values that need many times their
bytes once they are parsed, huge ids, names, languages, numbers and references. A refused manifest must end with exit
code 2, any other with 0. The peak is the summed RSS of the process and its children, sampled; it counts shared pages
once in each process.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from common import Bars, machine, run

from voxbatch.manifest import MAX_TEXT_CHARACTERS
from voxbatch.manifest.json_line import MAX_LINE_BYTES, MAX_VALUES

PEAK_MB = 500
"""Maximum peak memory of the process tree."""
LINES = 8
"""Lines of a manifest of long lines."""
DECODERS = 2
COMMANDS = ("validate", "--dry-run", "stand-in run")
HEAD = '"audio_filepath": "short.wav", "id": "call-{number}"'
MB = 1_000_000

Blocks = Callable[[], Iterator[bytes]]


def filled(unit: str, begin: str, end: str, size: int = MAX_LINE_BYTES, lines: int = LINES) -> Blocks:
    """Return a function that yields lines of almost `size` bytes: `begin`, `unit` again and again, `end`.

    "{number}" in these texts becomes the number of the line, and "{n}" in `unit` the number of its repetition.
    """

    def blocks() -> Iterator[bytes]:
        for number in range(lines):
            head, tail = (text.replace("{number}", str(number)) for text in (begin, end))
            count = (size - len(head.encode()) - len(tail.encode())) // len(unit.replace("{n}", "000000").encode())
            body = "".join(unit.replace("{n}", f"{n:06}") for n in range(count)) if "{n}" in unit else unit * count
            yield (head + body.rstrip(",") + tail + "\n").encode()

    return blocks


def values(unit: str, cost: int, lines: int = LINES) -> Blocks:
    """Return the same for lines with a list `x` of as many units as a line may hold.

    `cost` is the number of commas and brackets of a unit.
    """
    size = min(MAX_LINE_BYTES, (MAX_VALUES - 100) // cost * len(unit.replace("{n}", "000000").encode()))
    return filled(unit, "{" + HEAD + ', "x": [', "]}", size, lines)


def endless(unit: bytes, size: int) -> Iterator[bytes]:
    """Yield `size` bytes without a line end."""
    block = unit * (MB // len(unit))
    for _ in range(size // len(block)):
        yield block


def tiny() -> Iterator[bytes]:
    """Yield a million short lines."""
    for start in range(0, MB, 1000):
        yield b"".join(b'{"id":%d,"audio_filepath":"short.wav"}\n' % n for n in range(start, start + 1000))


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile manifest."""

    name: str
    blocks: Blocks
    """Function that yields the bytes of the manifest."""
    code: int = 0
    """Exit code of every command."""
    commands: tuple[str, ...] = COMMANDS
    is_gzip: bool = True


LINE = "{" + HEAD
KEYS = filled('"k{n}":"v{n}",', LINE + ",", "}")
CASES = (
    # refused
    Case("60 lines of 10 MB of empty lists", filled("[],", LINE + ', "x": [', "]}", lines=60), 2),
    Case("an endless line of 1 GB", partial(endless, b"a", 1000 * MB), 2),
    Case("an endless line of 1 GB, plain", partial(endless, b"\0", 1000 * MB), 2, is_gzip=False),
    Case("an endless list of 200 MB", partial(endless, b"[", 200 * MB), 2),
    Case("nesting 9 MB deep", filled("[", LINE + ', "x": ', "", 9 * MB), 2),
    Case("nesting as deep as values are allowed", filled("[", LINE + ', "x": ', "]", MAX_VALUES - 100), 2),
    Case("ids of 9 MB", filled("i", '{"audio_filepath": "short.wav", "id": "{number}', '"}', 9 * MB), 2),
    Case("file names of 9 MB", filled("f", '{"id": "{number}", "audio_filepath": "', '"}', 9 * MB), 2),
    Case("addresses of 9 MB", filled("?a=", '{"id": "{number}", "audio_filepath": "https://h/', '"}', 9 * MB), 2),
    Case("languages of 9 MB", filled("l", LINE + ', "lang": "', '"}', 9 * MB), 2),
    Case("whole numbers of 9 MB", filled("7", LINE + ', "x": ', "}", 9 * MB), 2),
    Case("references of 9 MB", filled("ab cd ", LINE + ', "text": "', '"}', 9 * MB), 2),
    Case("one line of 60 MB with thousands of keys", filled('"k{n}": "v{n}",', "{" + HEAD + ",", "}", 60 * MB, 1), 2),
    Case("references that NFKC makes too long", filled("\ufdfa", LINE + ', "text": "', '"}', 6 * MB), 2),
    Case("no JSON, 9 MB a line", filled('"', "{", "", 9 * MB), 2),
    # valid, at the limits
    Case("a million short lines", tiny, commands=COMMANDS[:2]),
    Case("empty lists", values("[],", 2)),
    Case("objects with one key", values('{"a":0},', 2)),
    Case("different keys", KEYS),
    Case("one key again and again", filled('"k":[1],', "{" + HEAD + ",", "}", MAX_VALUES // 2 * 8 - 100)),
    Case("numbers", values("1e300,", 1)),
    Case("numbers of 4,000 digits", values("7" * 4000 + ",", 1)),
    Case("a text of 10 MB with one emoji", filled("ab cd ", LINE + ', "x": "🎉', '"}')),
    Case("a text of 10 MB of escaped emojis", filled("\\ud83c\\udf89", LINE + ', "x": "', '"}')),
    Case("references of as many words", filled("ab cd ", LINE + ', "text": "', '"}', MAX_TEXT_CHARACTERS)),
    Case(
        "references in English, digits",
        filled("1 2 ", LINE + ', "lang": "en", "text": "🎉', '"}', MAX_TEXT_CHARACTERS, lines=4),
    ),
    Case("references in Chinese", filled("中", LINE + ', "lang": "zh", "text": "', '"}', 3 * MAX_TEXT_CHARACTERS)),
    Case(
        "references that NFKC makes longer",  # one character of three bytes becomes 18
        filled("\ufdfa", LINE + ', "text": "', '"}', MAX_TEXT_CHARACTERS // 6 - 100),
    ),
)  # fmt: skip


def measure(case: Case, folder: Path, bars: Bars) -> None:
    """Run the commands over a case, print the figures, and check the peak."""
    source = folder / f"manifest.jsonl{'.gz' if case.is_gzip else ''}"
    with gzip.open(source, "wb", 1) if case.is_gzip else open(source, "wb") as file:
        file.writelines(case.blocks())
    print(f"{case.name}: {os.path.getsize(source) / MB:.1f} MB")
    for what in case.commands:
        out = folder / f"out-{case.name}-{what}"
        options = ["-o", out, "--engine", "scripted", "--decoders", DECODERS, "--log-format", "json", "--quiet"]
        command = {
            "validate": ["validate", source],
            "--dry-run": ["run", source, *options, "--dry-run"],
            "stand-in run": ["run", source, *options],
        }[what]
        ran = run(command, ok=(case.code,), traced=True)
        bars.at_most(f"  {what}, {ran.wall_s:.0f} s, peak of all processes", ran.tree_mb, PEAK_MB, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="take only the cases whose names contain this text")
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    for case in CASES:
        if given.only in case.name:
            with tempfile.TemporaryDirectory(prefix="voxbatch-hostile-") as name:
                folder = Path(name)
                soundfile.write(folder / "short.wav", np.random.default_rng(0).normal(0, 0.05, 16_000), 16_000)
                measure(case, folder, bars)
    bars.leave()


if __name__ == "__main__":
    main()
