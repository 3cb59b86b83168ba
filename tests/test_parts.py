"""The table of the plugin's optimisations covers the plugin, and RESULTS.md has it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text()
TOLERANCE = 0.5
"""Share by which a number of lines may differ from RESULTS.md before the table must be printed again."""


@pytest.fixture
def bench_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return benchmarks/gpu/bench_parts.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "gpu")
    yield importlib.import_module("bench_parts")
    del sys.modules["bench_parts"]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return benchmarks/gpu/parts.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "gpu")
    yield importlib.import_module("parts")
    del sys.modules["parts"]


def test_every_module_of_the_plugin_has_one_part(parts: Any) -> None:
    """Each module of the plugin belongs to one part, or is named as no optimisation."""
    modules = [str(path.relative_to(parts.PLUGIN).with_suffix("")) for path in parts.PLUGIN.rglob("*.py")]
    named = [*parts.NO_OPTIMISATION, *(module for part in parts.PARTS for module in part.modules)]
    assert sorted(named) == sorted(modules), "change PARTS or NO_OPTIMISATION in benchmarks/gpu/parts.py"


def test_results_have_the_table(parts: Any) -> None:
    """RESULTS.md has a row for each part, whose numbers of lines are about right and whose gains are these."""
    for part in parts.PARTS:
        line, *_ = [each for each in RESULTS.splitlines() if each.startswith(f"| {part.name}: ")]
        *_, code, tests, gain, l4 = [cell.strip() for cell in line.strip("|").split("|")]
        for found, now in zip(map(int, (code, tests)), parts.lines(part), strict=True):
            assert abs(found - now) <= TOLERANCE * now, (part.name, "run python benchmarks/gpu/parts.py")
        assert parts.row(part).endswith(f"| {gain} | {l4} |")


def test_places_of_measurements_exist(parts: Any) -> None:
    """Each gain says where it was measured, by a heading of RESULTS.md, unless it was not measured."""
    headings = [line for line in RESULTS.splitlines() if re.match("#+ ", line)]
    for part in parts.PARTS:
        known = part.where == parts.HISTORY or any(part.where in heading for heading in headings)
        assert known if part.where else part.h200 == "not measured alone", part.name


def test_edits_apply_to_the_sources(bench_parts: Any, tmp_path: Path) -> None:
    """Each part's edits apply to the plugin as it is, and the copy without the part compiles."""
    for name in bench_parts.PARTS:
        _, without = bench_parts.sides(name)
        bench_parts.make(tmp_path / "copy", without.removed)
        changed = [
            path
            for path in (tmp_path / "copy" / bench_parts.PLUGIN).rglob("*.py")
            if path.read_text() != (ROOT / path.relative_to(tmp_path / "copy")).read_text()
        ]
        edits = [edit for each in without.removed for edit in bench_parts.PARTS[each].edits]
        assert {path.relative_to(tmp_path / "copy" / bench_parts.PLUGIN).as_posix() for path in changed} == {
            edit.file for edit in edits
        }
        for path in changed:
            compile(path.read_text(), path, "exec")


def test_edit_of_an_unknown_text_is_an_error(bench_parts: Any, tmp_path: Path) -> None:
    """An edit whose text is missing, or is there twice, names the file, the text and how often it is there."""
    for old, count in (("no such text", 0), ("ops.norm(", 2)):
        part = bench_parts.Part((bench_parts.Edit("encoder.py", old, ""),))
        with pytest.raises(ValueError, match=rf"encoder\.py has '{re.escape(old)}' {count} times"):
            bench_parts.make(tmp_path / "copy", ["part"], {"part": part})


def test_line_of_a_part(bench_parts: Any) -> None:
    """A part that works only with another is compared without the other one, and each engine start counts."""
    plain, removed = bench_parts.sides("silence")
    assert (plain.removed, removed.removed) == (("encoder_graphs",), ("encoder_graphs", "silence"))
    assert bench_parts.sides("encoder_graphs") == (bench_parts.Copy(), plain)

    def run(*rtfx: float) -> dict[str, Any]:
        return {"runs": [{"rtfx": each} for each in rtfx], "mhz": 1_800, "ready_s": 60}

    line = bench_parts.row("silence", {plain: [run(110, 130), run(90)], removed: [run(100), run(100)]})
    assert (line["with"], line["without"], line["ratio"]) == (110, 100, 1.1)
    assert line["each"] == [[110, 130, 90], [100, 100]]
    assert (line["beside"], line["mhz"]) == (["encoder_graphs"], [1_800, 1_800])
    assert "watts" not in line
