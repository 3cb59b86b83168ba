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
