"""Tests that the pictures of the documentation show what the program does today, and load nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import make_cloud_pictures
import make_costs_chart
import make_models_chart
import make_report_picture
import make_run_picture
import make_speech_pictures
import pytest
from conftest import environment
from deployments import deployed
from make_terminals import TERMINALS, Terminal, cut, demo, without_times

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
PICTURES = sorted(IMAGES.glob("*.svg"))
LAST_LINE = (
    "Your own recordings: .venv/bin/voxbatch run talk.mp3; better models than the demo's: .venv/bin/voxbatch models\n"
)
SHOWN = (DOCS / "quickstart.md").read_text().split("$ make demo\n")[1].split(LAST_LINE)[0]
"""The output of the demo's command in the quickstart, without the line that the Makefile adds."""


def lines_of(picture: str) -> list[str]:
    """Return the texts of a picture."""
    texts = ET.parse(IMAGES / picture).getroot().iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).rstrip() for text in texts]


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder with the outputs of the demo, what its command printed, and a second run without a beam.

    Commands see a deployment.
    """
    folder = tmp_path_factory.mktemp("demo")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "printed.txt").write_text(printed(demo(), folder))
    printed("voxbatch run examples/manifest.jsonl -o greedy.voxbatch --engine-option beam_size=1", folder)
    with deployed(folder) as (_, variables), pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield folder


def printed(command: str, folder: Path, columns: int = 80) -> str:
    """Return what a shell command prints, in a terminal of so many columns."""
    shell = ["bash", "-c", f'voxbatch() {{ "{sys.executable}" -m voxbatch "$@"; }}; {command}']
    done = subprocess.run(
        shell, cwd=folder, env=environment(COLUMNS=str(columns)), capture_output=True, text=True, check=True
    )
    return without_times(done.stdout)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_loads_nothing(picture: Path) -> None:
    """A picture has no font, image or style of another place, and no path of the machine that drew it."""
    drawn = picture.read_text()
    assert re.findall(r"url\((?!#)|@import|<image|@font-face|<script|/home/|/work/|/tmp/", drawn) == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_stands_on_a_page(picture: Path) -> None:
    """Each picture is shown by a page of the documentation."""
    assert any(f"(images/{picture.name})" in page.read_text() for page in DOCS.glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("terminal", TERMINALS, ids=lambda terminal: terminal.name)
def test_a_terminal_shows_what_its_command_prints(terminal: Terminal, demo_folder: Path) -> None:
    """Each line of a terminal is printed by its command, except for numbers and a few words: docs/make_terminals.py."""
    if terminal.name == "redact":
        pytest.importorskip("stdnum", reason="takes voxbatch[redact]")
    _, typed, *shown = lines_of(f"terminal-{terminal.name}.svg")
    assert typed == f"$ {terminal.command}"
    output = cut(printed(f"{terminal.command} 2>&1", demo_folder, terminal.columns), terminal.first, terminal.last)
    lines = [re.sub(r"\d", "0", line) for line in output.splitlines()]
    for line in filter(None, shown):
        length = len(line) if line.rstrip("”").endswith("…") else None  # a terminal cuts a text, a pipe does not
        others = [other[:length] for other in lines]
        assert max(SequenceMatcher(None, re.sub(r"\d", "0", line), other).ratio() for other in others) > 0.85, line


@pytest.mark.parametrize(
    ("picture", "draw"),
    [
        ("run.svg", make_run_picture.picture),
        ("cloud-run.svg", partial(make_cloud_pictures.picture, "cloud-run")),
        ("sagemaker.svg", partial(make_cloud_pictures.picture, "sagemaker")),
        ("costs.svg", make_costs_chart.chart),
        ("models.svg", make_models_chart.chart),
        ("models-cpu.svg", make_models_chart.cpu_chart),
    ],
)
def test_a_picture_is_what_its_script_draws(picture: str, draw: Callable[[], str]) -> None:
    """A picture is what its script draws from the tables of today."""
    assert (IMAGES / picture).read_text() == draw()


def test_the_picture_of_the_report_is_of_today() -> None:
    """Neither the report's style sheet, page nor charts have changed since docs/make_report_picture.py drew it."""
    assert make_report_picture.DIGEST.read_text().strip() == make_report_picture.digest()


def test_the_pictures_of_the_report_have_one_size() -> None:
    """The report is as long in the dark as in the light: each picture shows its own page to the end, and no more."""
    sizes = set[tuple[int, int]]()
    for name in ("light", "dark"):
        head = (IMAGES / f"report-{name}.webp").read_bytes()[:30]
        is_extended = head[12:16] == b"VP8X"  # 3 bytes each, less one; else 2 bytes each
        width, height = (head[24:27], head[27:30]) if is_extended else (head[26:28], head[28:30])
        sizes.add((int.from_bytes(width, "little") + is_extended, int.from_bytes(height, "little") + is_extended))
    assert len(sizes) == 1, sizes


@pytest.mark.slow
def test_the_subtitles_of_the_picture_are_real(demo_folder: Path) -> None:
    """docs/images/subtitle.svg has the subtitles of the demo, except for a few words and times."""
    cues = make_speech_pictures.cues(demo_folder / "demo.voxbatch" / "srt" / "museum.srt")
    assert similarity("subtitle.svg", make_speech_pictures.subtitle(cues)) > 0.95


@pytest.mark.slow
def test_the_turns_of_the_picture_are_real(speaker_networks: Path) -> None:
    """docs/images/call.svg has the speakers and the texts of a run, except for a few words and times."""
    assert similarity("call.svg", make_speech_pictures.call(make_speech_pictures.turns(speaker_networks))) > 0.95


def similarity(picture: str, drawn: str) -> float:
    """Return how much of a picture is the same in another one, from 0 to 1, whatever the numbers are."""
    lines, other = (re.sub(r"[\d.]+", "0", text).splitlines() for text in ((IMAGES / picture).read_text(), drawn))
    return SequenceMatcher(None, lines, other, autojunk=False).ratio()


# ── the demo ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_picture_shows_the_demo() -> None:
    """docs/images/demo.svg shows the lines of the quickstart."""
    lines = lines_of("demo.svg")
    first = next(number for number, line in enumerate(lines) if line.startswith("weather"))
    assert "\n".join(lines[first:]).rstrip() == SHOWN.rstrip()


def test_pages_show_one_word_error_rate_of_the_demo() -> None:
    """All pictures and the quickstart show the word error rate of one run: docs/make_terminals.py writes them. The
    comparison of two models over the same recordings begins with this rate and its errors.
    """
    shown = SHOWN + "\n".join(
        line
        for name in ("demo", "terminal-resume", "terminal-status", "terminal-score")
        for line in lines_of(f"{name}.svg")
    )
    rates = re.findall(r"(?:WER |^all +)([\d.]+%)", shown, re.MULTILINE)
    assert len(rates) == 5
    assert len({*rates}) == 1
    substitutions, insertions, deletions, words = re.findall(r"(\d+) (?:[sid]\w+ions|words)", SHOWN)
    row = r"^WER +([\d.]+%)|^word errors +\d+ (of \d+)|^ +sub/del/ins +(\S+ / \S+ / \S+)"
    compared = re.findall(row, (DOCS / "compare.md").read_text(), re.MULTILINE)
    errors = f"{substitutions} / {deletions} / {insertions}"
    assert ["".join(cells) for cells in compared[:3]] == [rates[0], f"of {words}", errors]


@pytest.mark.slow
def test_the_demo_output_shown_is_real(demo_folder: Path) -> None:
    """The demo's command prints what the quickstart shows, except for times and a few words."""
    heads, rest = split((demo_folder / "printed.txt").read_text())
    shown_heads, shown_rest = split(SHOWN)
    assert rest == shown_rest
    assert [head.partition(": ")[0] for head in heads] == [head.partition(": ")[0] for head in shown_heads]
    assert f'@echo "{LAST_LINE.strip()}"'.replace(".venv/bin", "$(BIN)") in (ROOT / "Makefile").read_text()
    # 8-bit arithmetic rounds differently on other processors, so that one word in fifty may differ
    pairs = [(head[: len(shown) - 1], shown[:-1]) for head, shown in zip(heads, shown_heads, strict=True)]
    assert all(SequenceMatcher(None, head, shown).ratio() > 0.8 for head, shown in pairs)
    assert error_rate((demo_folder / "printed.txt").read_text()) == pytest.approx(error_rate(SHOWN), abs=1.0)


def split(output: str) -> tuple[list[str], list[str]]:
    """Return the first lines of the transcripts, and all other lines without values that vary between runs."""
    lines = re.sub(r"in [\d:. s]+, RTFx [\d.]+|(?<=P\d\d )[\d.]+ s", "…", output).splitlines()
    lines = [re.sub(r"^WER .* over", "WER … over", line) for line in lines]
    # 8-bit arithmetic rounds differently on other processors: without AVX-512, one transcript is flagged.
    lines = [line for line in lines if "flagged as doubtful" not in line and "better than tiny.en" not in line]
    more = next(i for i, line in enumerate(lines) if line.startswith("… and"))
    return lines[:more], lines[more:]


def error_rate(output: str) -> float:
    """Return the WER in percent that the output shows."""
    found = re.search(r"^WER ([\d.]+)%", output, re.MULTILINE)
    assert found
    return float(found[1])
