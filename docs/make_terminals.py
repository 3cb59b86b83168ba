"""Draw the terminals in docs/images/, and write the first one's lines into docs/quickstart.md: real commands over the
outputs of the demo, run in a real terminal. That of a deployment looks at a server with the API of Cloud Run.

    .venv/bin/python docs/make_terminals.py

The script runs each command inside tmux (`apt-get install tmux`), and reads the screen when the command has ended. How
long a run took is left out, because a machine that does other work at the same time tells nothing about the speed. The
word error rate is that of this run: 8-bit arithmetic rounds differently on other processors.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

import svg

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

IMAGES = ROOT / "docs" / "images"
QUICKSTART = ROOT / "docs" / "quickstart.md"
OUT = "demo.voxbatch"
COLUMNS = 64
"""Columns of a terminal, few enough for a phone."""
TALL = 400
"""Lines of the terminal in which a command runs: more than any of them prints."""
LONGEST_S = 300
LINE, CHARACTER, MARGIN, BAR = 21.0, 10.0, 14.0, 34.0
"""Height of a line and width of a character in a picture, the space around them, and the bar with the title."""
TERMINAL = f"""
.shell{{fill:#14191d;stroke:#3b474d}}
.bar{{fill:#242c31}}
text{{font:{CHARACTER / 0.602:.2f}px {svg.MONO};fill:#dde4e6}}
.typed{{fill:#7fd6a4}}
.title{{fill:#94a3aa}}
"""
"""Colours of a terminal, which is dark on light and dark pages."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
"""The marks before and after bold text, the only emphasis of voxbatch's outputs."""


@dataclass(frozen=True)
class Terminal:
    """A command, and the first and last lines of its output that a picture shows."""

    name: str
    command: str
    title: str
    first: int = 40
    last: int = 0
    columns: int = COLUMNS


MANIFEST = "examples/manifest.jsonl"
STOPPED = f"voxbatch run {MANIFEST} -o out"
"""A run that Ctrl-C ends after some seconds, and that the same command continues."""
STOP_AFTER_S = 6
TERMINALS = (
    Terminal("status", f"voxbatch status {OUT}", "the items, the error rate and each shard of a run"),
    Terminal("models", "voxbatch models", "what each model costs on this machine, and those of --quality", columns=79),
    Terminal("score", f"voxbatch score {OUT}", "the word error rate with its interval and errors"),
    Terminal(
        "compare",
        f"voxbatch compare {OUT} greedy.voxbatch --limit 1",
        "two runs, the options that differ, and whether one is better",
        first=22,
    ),
    Terminal("find", f'voxbatch find {OUT} "mill street"', "two places with their times and the words around them"),
    Terminal("flags", f"voxbatch flags {OUT}", "transcripts to distrust, with the reasons"),
    Terminal(
        "redact",
        f"voxbatch redact {OUT} -o shared --keep file_name",
        "copies of nine transcripts, in which names are replaced",
    ),
    Terminal(
        "deployment",
        "voxbatch deployment --target cloudrun",
        "what runs, what failed, what waits, and the price of the machines",
        columns=74,
    ),
    Terminal("doctor", "voxbatch doctor", "what is installed, and the model to take", 10, 5, columns=74),
)
"""The pictures beside that of the demo."""


def demo() -> str:
    """Return the command of `make demo`."""
    match = re.search(r"voxbatch run examples/.*", (ROOT / "Makefile").read_text())
    assert match, "the Makefile has no demo"
    return match[0]


class Shell:
    """A folder in which commands run as a reader would run them, with the examples and the command voxbatch."""

    def __init__(self, folder: Path):
        self._folder, self._ended = folder, folder / "ended"
        (folder / "examples").symlink_to(ROOT / "examples")
        command = folder / "bin" / "voxbatch"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {sys.executable} -m voxbatch "$@"\n')
        command.chmod(0o755)

    def run(self, command: str, columns: int = COLUMNS, *, stopped_after_s: float | None = None) -> str:
        """Run a command in a terminal; return the lines on the screen. A wrapped line is one line.

        `stopped_after_s` is when the terminal gets Ctrl-C.
        """
        self._ended.unlink(missing_ok=True)
        socket = Path(tempfile.mkdtemp(dir=self._folder), "socket")  # the server before may still be ending
        tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        shell = f"PATH={self._folder}/bin:$PATH; trap : INT; {command}; touch {self._ended}; sleep {LONGEST_S}"
        size = ["-x", str(columns), "-y", str(TALL)]
        subprocess.run([*tmux, "new-session", "-d", *size, "sh", "-c", shell], cwd=self._folder, check=True)
        try:
            start = time.monotonic()
            while not self._ended.exists():
                seconds = time.monotonic() - start
                assert seconds < LONGEST_S, f"{command} did not end within {LONGEST_S} s"
                if stopped_after_s is not None and seconds > stopped_after_s:
                    subprocess.run([*tmux, "send-keys", "C-c"], check=True)
                    stopped_after_s = None
                time.sleep(0.2)
            capture = [*tmux, "capture-pane", "-p", "-e", "-J"]
            shown = subprocess.run(capture, check=True, capture_output=True, text=True).stdout.rstrip()
            shown = shown.replace(sys.prefix, ".venv")  # no path of the machine that draws
            shown = re.sub(r"\x1b\[(?![01]m)[\d;]*m", "", shown)
            # Each word is bold by itself, so that a row may end between two of them.
            return re.sub(
                r"\x1b\[1m(.*?)\x1b\[0m",
                lambda bold: re.sub(r"\S+", rf"{BOLD}\g<0>{PLAIN}", bold[1]),
                without_times(shown),
            )
        finally:
            subprocess.run([*tmux, "kill-server"], check=True)


def without_times(shown: str) -> str:
    """Return an output in which "…" stands for how long a run took.

    >>> without_times("3:26 of audio in 14.3 s, RTFx 14.4")
    '3:26 of audio in …, RTFx …'
    """
    shown = re.sub(r"(?<=of audio in ).*", "…, RTFx …", shown)
    rows = re.compile(r"^(?:speed \(RTFx\)|wall time) .*", re.MULTILINE)
    return rows.sub(
        lambda row: re.sub(r"\d[\d.]*(?: s)?", lambda time: f"{'…':{len(time[0])}}", row[0]).rstrip(), shown
    )


def cut(shown: str, first: int, last: int) -> str:
    """Return the first and the last lines of an output, with a line that says how many are left out.

    >>> cut("a\\nb\\nc\\nd", 1, 1)
    'a\\n… 2 more lines\\nd'
    """
    lines = shown.splitlines()
    more = len(lines) - first - last
    return "\n".join([*lines[:first], f"… {more} more lines", *lines[first + more :]]) if more > 1 else shown


def draw(screens: list[tuple[str, str]], title: str, heading: str, columns: int = COLUMNS) -> str:
    """Return the picture of a terminal in which commands were typed, each with what came out of it.

    Each line of an output is one element of text, however many rows it takes.
    """
    parts, y = [], BAR + MARGIN + CHARACTER
    for command, shown in screens:
        for kind, line in [("typed", f"$ {command}"), *(("", line) for line in [*shown.splitlines(), ""])]:
            rows = _rows(line, columns)
            spans = "".join(_span(row, y + LINE * number) for number, row in enumerate(rows))
            parts.append(f'<text xml:space="preserve" class="{kind}">{spans}</text>')
            y += LINE * max(1, len(rows))
    width, height = columns * CHARACTER + 2 * MARGIN, y - LINE + MARGIN - CHARACTER
    bar = f"M1 {BAR:g}V9A8 8 0 0 1 9 1H{width - 9:g}A8 8 0 0 1 {width - 1:g} 9V{BAR:g}z"
    buttons = enumerate(("#ff5f57", "#febc2e", "#28c840"))
    frame = [
        svg.box(0.5, 0.5, width - 1, height - 1, "shell", 9),
        f'<path d="{bar}" class="bar"/>',
        *(f'<circle cx="{20 + 20 * number}" cy="{BAR / 2:g}" r="5.5" fill="{colour}"/>' for number, colour in buttons),
        svg.text(width / 2, BAR / 2 + 6, heading, "title", "middle"),
    ]
    return svg.picture([*frame, *parts], height, title, extra=TERMINAL, width=width)


def _rows(line: str, columns: int) -> list[str]:
    """Return the rows that a line takes; a row breaks after spaces, a word that is too long anywhere."""
    rows: list[str] = []
    for word in re.findall(rf"\s*\S{{1,{columns}}}\s?|\s+", line):
        if rows and len(_plain(rows[-1] + word.rstrip())) > columns:
            rows.append(word)
        else:
            rows[-1:] = ["".join([*rows[-1:], word])]
    return rows


def _plain(text: str) -> str:
    return text.replace(BOLD, "").replace(PLAIN, "")


def _span(row: str, y: float) -> str:
    """Return a row as SVG. Its length is set, because fonts differ in the width of their characters."""
    length = len(_plain(row)) * CHARACTER
    inner = escape(row, quote=False).replace(BOLD, '<tspan class="bold">').replace(PLAIN, "</tspan>")
    return f'<tspan x="{MARGIN:g}" y="{y:g}" textLength="{length:g}">{inner}</tspan>'


def quickstart(page: str, shown: str) -> str:
    """Return the page with the screen as its first block, and the last line of `make demo`."""
    lines = [line.rstrip() for line in shown.splitlines()]
    printed = lines[next(number for number, line in enumerate(lines) if line.startswith("weather: ")) :]
    last = re.search(r"voxbatch run examples.*\n\t@echo \"(.*)\"", (ROOT / "Makefile").read_text())
    assert last, "the Makefile says nothing after the demo"
    block = "\n".join(["```console\n$ make demo", *printed, last[1].replace("$(BIN)", ".venv/bin"), "```"])
    return re.sub(r"```console\n\$ make demo\n.*?\n```", lambda _: block, page, count=1, flags=re.DOTALL)


def main() -> None:
    """Run the commands and write the pictures."""
    from deployments import deployed

    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as (_, variables):
        os.environ.update(variables)
        shell = Shell(Path(folder))
        shown = shell.run(demo())
        title = "five transcripts, then the word error rate, the speed and the output files"
        (IMAGES / "demo.svg").write_text(draw([("make demo", shown)], title, "make demo"))
        QUICKSTART.write_text(quickstart(QUICKSTART.read_text(), shown))
        shell.run(f"voxbatch run {MANIFEST} -o greedy.voxbatch --engine-option beam_size=1")
        title = "a run that Ctrl-C stops, and the same command, which continues it"
        stopped = [
            (STOPPED, shell.run(STOPPED, stopped_after_s=STOP_AFTER_S)),
            (STOPPED, cut(shell.run(STOPPED), 12, 0)),
        ]
        (IMAGES / "terminal-resume.svg").write_text(draw(stopped, title, "stopped and continued"))
        for terminal in TERMINALS:
            shown = cut(shell.run(terminal.command, terminal.columns), terminal.first, terminal.last)
            drawn = draw([(terminal.command, shown)], terminal.title, f"voxbatch {terminal.name}", terminal.columns)
            (IMAGES / f"terminal-{terminal.name}.svg").write_text(drawn)


if __name__ == "__main__":
    main()
