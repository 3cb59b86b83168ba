"""Draw docs/images/demo.svg, and write the same lines into docs/quickstart.md: the demo, run in a real terminal.

    .venv/bin/python docs/make_demo_picture.py

The script runs the command of `make demo` inside tmux (`apt-get install tmux`), reads the screen when the command has
ended, and has rich draw it. The picture names only fonts of the reader's system, so that it loads nothing. A word error
rate of the demo that a page shows is that of this run: 8-bit arithmetic rounds differently on other processors.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
QUICKSTART = ROOT / "docs" / "quickstart.md"
WIDTH, HEIGHT = 116, 25
LONGEST_S = 300
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def demo() -> str:
    """Return the shell command of `make demo`, with this Python in place of the environment's."""
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"voxbatch (run examples/.*)", makefile)
    assert found, "the Makefile has no demo"
    return f"{shlex.quote(sys.executable)} -m voxbatch {found[1]}"


def screen(command: str) -> str:
    """Run a command in a terminal of WIDTH columns; return the lines on the screen, with their colours."""
    with tempfile.TemporaryDirectory() as folder:
        socket, ended = f"{folder}/socket", Path(folder, "ended")
        tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
        shell = f"printf '$ make demo\\n'; {command}; touch {ended}; sleep {LONGEST_S}"
        size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
        subprocess.run([*tmux, "new-session", "-d", "-s", "demo", *size, shell], cwd=ROOT, check=True)
        try:
            deadline = time.monotonic() + LONGEST_S
            while not ended.exists():
                assert time.monotonic() < deadline, f"the demo did not end within {LONGEST_S} s"
                time.sleep(0.2)
            capture = [*tmux, "capture-pane", "-t", "demo", "-p", "-e", "-J"]
            return subprocess.run(capture, check=True, capture_output=True, text=True).stdout.rstrip()
        finally:
            subprocess.run([*tmux, "kill-server"], check=True)


def picture(text: str) -> str:
    """Return the SVG of a terminal that shows `text`."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # rich's fonts come from the network
    svg = re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def quickstart(page: str, text: str) -> str:
    """Return the page with the screen as its first block, and the last line of `make demo`."""
    lines = [line.rstrip() for line in Text.from_ansi(text).plain.splitlines()]
    printed = lines[next(number for number, line in enumerate(lines) if line.startswith("weather: ")) :]
    makefile = (ROOT / "Makefile").read_text()
    last = re.search(r"voxbatch run examples.*\n\t@echo \"(.*)\"", makefile)
    assert last, "the Makefile says nothing after the demo"
    block = "\n".join(["```console\n$ make demo", *printed, last[1].replace("$(BIN)", ".venv/bin"), "```"])
    return re.sub(r"```console\n\$ make demo\n.*?\n```", lambda _: block, page, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    shown = screen(demo())
    PICTURE.write_text(picture(shown))
    QUICKSTART.write_text(quickstart(QUICKSTART.read_text(), shown))
