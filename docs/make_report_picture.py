"""Draw docs/images/report-light.webp and report-dark.webp: the report of examples/, in a real browser.

    .venv/bin/python docs/make_report_picture.py

It takes Chromium (`apt-get install chromium`), and writes the digest of what gives the report its look beside them.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

IMAGES = ROOT / "docs" / "images"
DIGEST = IMAGES / "report.sha256"
WIDTH = 760
OPENED = "where-is-my-order"
"""Item that is shown with its text."""
CHANGES = """
document.querySelectorAll('section:has(#confusions-title), .charts > :nth-child(n + 2), footer')
    .forEach((part) => part.remove());
[...document.querySelectorAll('h2')].find((title) => title.textContent === 'Flags').parentElement.remove();
document.querySelector('.command code').textContent = 'voxbatch run examples/manifest.jsonl';
document.querySelector('.player bdi').textContent = '…/recordings/where-is-my-order.flac';
[...document.querySelectorAll('.detail')].find((line) => line.textContent.includes('real time')).remove();
document.querySelector('.about').textContent = document.querySelector('.about').textContent.replace(/ · [^·]*$/, '');
"""
"""The picture is long enough without some sections. Paths and times are those of the machine that draws."""


def digest() -> str:
    """Return the digest of the files that give the report its look."""
    files = ("page.css", "page.html.jinja", "charts.py")
    return hashlib.sha256(b"".join((ROOT / "voxbatch" / "report" / name).read_bytes() for name in files)).hexdigest()


def main() -> None:
    """Transcribe the examples, open the report with one item and its waveform, and write the pictures."""
    from browser import browser

    with tempfile.TemporaryDirectory() as folder, browser() as shown:
        out = Path(folder, "examples")
        command = ["run", "examples/manifest.jsonl", "-o", str(out), "--engine", "faster-whisper", "-q"]
        subprocess.run([sys.executable, "-m", "voxbatch", *command], cwd=ROOT, check=True)
        shown.call("Emulation.setScrollbarsHidden", hidden=True)
        for dark, name in enumerate(("light", "dark")):
            shown.open(out / "report.html", WIDTH, 100, dark=bool(dark))
            shown.wait("!!document.querySelector('.rows')")
            shown.evaluate(f"[...document.querySelectorAll('.open')].find((b) => b.textContent === '{OPENED}').click()")
            shown.choose("input[type=file]", ROOT / "examples" / "recordings")
            shown.wait("!!document.querySelector('.text.drawn')")
            shown.evaluate(CHANGES)
            shown.screenshot(IMAGES / f"report-{name}.webp", whole=True)
    DIGEST.write_text(digest() + "\n")


if __name__ == "__main__":
    main()
