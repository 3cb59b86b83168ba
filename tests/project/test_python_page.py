"""Tests that the Python interface works as its page and its notebook show it, with a real model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, environment

import voxbatch
from voxbatch.api.keyword_types import RunKeywords

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", PAGE, re.MULTILINE | re.DOTALL)
"""The code of each block of the page, and the output that the page shows below it."""
BETWEEN = "---\n"
LIKE = 0.8
"""Least likeness of two outputs. 8-bit arithmetic rounds differently on other processors, so that one word in fifty may
differ."""


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Return a copy of the folder examples/."""
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


@pytest.mark.timeout(600)
def test_the_page_shows_what_its_code_prints(examples: Path) -> None:
    """Each block of the page runs after the ones before it, and prints what the page shows."""
    program = examples / "page.py"
    program.write_text(f"\nprint({BETWEEN!r}, end='')\n".join(code for code, _ in BLOCKS))
    done = subprocess.run(
        [sys.executable, program], cwd=examples, env=environment(), capture_output=True, text=True, timeout=500
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.split(BETWEEN)
    assert len(printed) == len(BLOCKS)
    for (code, shown), found in zip(BLOCKS, printed, strict=True):
        if shown:
            assert len(found.splitlines()) == len(shown.splitlines()), found
            assert SequenceMatcher(None, found, shown).ratio() > LIKE, (code, found)


def test_the_page_names_every_option_and_every_name() -> None:
    """The page explains all keyword arguments and names all that the package offers."""
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert {name for name in RunKeywords.__annotations__ if f"`{name}`" not in rows} == set()
    missing = {name for name in voxbatch.__all__ if not re.search(rf"\b{name}\b", PAGE)}
    results = {"BackgroundRun", "ChangedItem", "Compared", "Comparison", "CorpusScore", "Progress", "Result", "Summary"}
    assert missing == {"__version__", "Segment", "Word", *results}


# ── the notebook ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def kernel(examples: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that runs a notebook in a real kernel, in the folder of the examples."""
    nbclient = pytest.importorskip("nbclient")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def execute(notebook: Any) -> None:
        resources = {"metadata": {"path": str(examples)}}
        nbclient.NotebookClient(notebook, timeout=400, kernel_name="python3", resources=resources).execute()

    return execute


@pytest.mark.timeout(600)
def test_the_notebook_runs_in_a_kernel(kernel: Callable[[Any], None], examples: Path) -> None:
    """Every cell of the notebook runs, and shows what it is about. voxbatch writes nothing to standard error."""
    some = ("weather.flac", "recipe.mp3", "museum.wav")
    for path in (examples / "recordings").iterdir():
        if path.name not in some:
            path.unlink()
    rows = (examples / "manifest.jsonl").read_text().splitlines(keepends=True)
    (examples / "manifest.jsonl").write_text("".join(row for row in rows if any(name in row for name in some)))
    notebook = pytest.importorskip("nbformat").read(examples / "transcribe.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the file has no outputs"
    kernel(notebook)
    shown = []
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"]:
        errors = [output["text"] for output in cell["outputs"] if output.get("name") == "stderr"]
        rest = [output for output in cell["outputs"] if output.get("name") != "stderr"]
        shown.append("".join(part.get("text") or part.get("data", {}).get("text/plain", "") for part in rest))
        assert not [text for text in errors if "ipywidgets" not in text]  # tqdm asks for them when it is imported
    assert re.match(r"\d+\.\d s transcribedTranscript\('Here is the weather for the north coast\.", shown[0])
    page = notebook.cells[2]["outputs"][-1]["data"]["text/html"]
    assert page.count("<audio") == 1
    assert page.count("<span") + page.count("<mark") == 32
    assert "3 / 3 items" in shown[2]
    assert shown[3].startswith("3 done, 0 failed, WER ")
    assert len(shown[4].splitlines()) == 3
    assert shown[7] == "3"
    assert shown[8] == "0.4"
    assert (examples / "notebook.voxbatch" / "summary.json").exists()


@pytest.mark.timeout(600)
def test_the_stop_button_of_a_notebook_stops_a_run(kernel: Callable[[Any], None]) -> None:
    """An interrupt of the kernel ends the cell with KeyboardInterrupt, and the next cell continues the run."""
    nbformat = pytest.importorskip("nbformat")
    run = "voxbatch.run('recordings/', 'out', on_progress=show, engine='scripted', engine_options=options)"
    sources = [
        "import os, voxbatch\noptions = {'delay_s': 1, 'concurrency': 1}",
        "def show(progress):\n    if progress.done: os.kill(os.getpid(), 2)",
        f"try:\n    {run}\nexcept KeyboardInterrupt:\n    print(len(list(voxbatch.read_results('out'))) < 9)",
        f"def show(progress):\n    pass\nprint({run}.done)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    kernel(notebook)
    assert notebook.cells[2].outputs[0].text == "True\n"
    assert notebook.cells[3].outputs[0].text == "9\n"


@pytest.mark.timeout(600)
def test_a_notebook_shows_the_progress_of_a_run(kernel: Callable[[Any], None]) -> None:
    """A cell shows one line that changes in place, to the last item; with an own `on_progress` it shows nothing. One
    recording has such a line, too."""
    nbformat = pytest.importorskip("nbformat")
    options = "engine='scripted', limit=5, report=False"
    sources = [
        f"import voxbatch\nsummary = voxbatch.run('recordings/', 'out', {options})",
        f"summary = voxbatch.run('recordings/', 'out2', {options}, on_progress=lambda progress: None)",
        "text = voxbatch.transcribe('recordings/weather.flac', engine='scripted').text",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    kernel(notebook)
    shown = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert len(shown) == 1
    assert " · 5 / 5 items · RTFx " in shown[0].data["text/plain"]
    assert " left" not in shown[0].data["text/plain"]
    assert shown[0].data["text/html"].startswith('<progress value="1.000"></progress> ')
    assert notebook.cells[1].outputs == []
    (shown,) = [output for output in notebook.cells[2].outputs if output.output_type == "display_data"]
    assert re.fullmatch(r"\d+\.\d s transcribed", shown.data["text/plain"])
