"""Draw docs/images/report.png: the report of examples/, in a real browser.

    .venv/bin/python docs/make_report_picture.py

It takes Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH = 1120
OPENED = "where-is-my-order"
"""Item that is shown with its text."""


def main() -> None:
    """Transcribe the examples, open the report with one item and its waveform, and write the picture."""
    from browser import browser

    with tempfile.TemporaryDirectory() as folder, browser() as shown:
        out = Path(folder, "examples")
        command = ["run", "examples/manifest.jsonl", "-o", str(out), "--engine", "faster-whisper", "-q"]
        subprocess.run([sys.executable, "-m", "voxbatch", *command], cwd=ROOT, check=True)
        shown.call("Emulation.setScrollbarsHidden", hidden=True)
        shown.open(out / "report.html", WIDTH)
        shown.wait("!!document.querySelector('.rows')")
        shown.evaluate(f"[...document.querySelectorAll('.open')].find((b) => b.textContent === '{OPENED}').click()")
        shown.choose("input[type=file]", ROOT / "examples" / "recordings")
        shown.wait("!!document.querySelector('.text.drawn')")
        # The picture is long enough.
        shown.evaluate("document.getElementById('confusions-title').parentElement.remove()")
        # Paths are those of the machine that draws the picture.
        shown.evaluate("document.querySelector('.command code').textContent = 'voxbatch run examples/manifest.jsonl'")
        shown.evaluate("document.querySelector('.player bdi').textContent = '…/recordings/where-is-my-order.flac'")
        shown.screenshot(PICTURE, whole=True)


if __name__ == "__main__":
    main()
