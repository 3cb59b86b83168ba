"""Tests that ARCHITECTURE.md names only files, modules and names that exist."""

from __future__ import annotations

import re
from functools import cache

import pytest
from conftest import ROOT

TEXT = re.sub(r"^```.*?^```$", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE | re.DOTALL)
"""The text without blocks of code."""
NAMES = sorted(set(re.findall(r"`@?([A-Za-z_][\w./-]*\w/?)`", TEXT)))
WRITTEN_BY_RUNS = re.compile(r"(parts|lists|srt)/.*|[a-z]+\.(jsonl|html|json)")


@cache
def project_paths() -> tuple[str, ...]:
    """Return the paths of all files and folders, and those of modules also without ".py"."""
    paths = [
        path for folder in ("voxbatch", "tests", "docs", "jobs", "benchmarks") for path in (ROOT / folder).rglob("*")
    ]
    return tuple(f"/{path.relative_to(ROOT)}".removesuffix(".py") for path in paths)


@cache
def identifiers() -> frozenset[str]:
    """Return all words of the package's code."""
    return frozenset(re.findall(r"\w+", "".join(path.read_text() for path in (ROOT / "voxbatch").rglob("*.py"))))


def exists(name: str) -> bool:
    """Return whether this is a path, the end of one, or a name in the code: "storage/retry", "jobs/cloudrun/deploy.sh",
    "Checkpoint.commit"."""
    if any(path.endswith(f"/{name.rstrip('/').removesuffix('.py')}") for path in project_paths()):
        return True
    return "/" not in name and identifiers().issuperset(name.split("."))


@pytest.mark.parametrize("name", [name for name in NAMES if not WRITTEN_BY_RUNS.fullmatch(name)])
def test_names_of_the_architecture_exist(name: str) -> None:
    """Each quoted name is that of a file, a folder, a module, or of something that the code defines."""
    assert exists(name)


def test_rows_are_complete() -> None:
    """No row of a table is cut off, and each quotation ends on its line."""
    for line in TEXT.splitlines():
        assert line.count("`") % 2 == 0, line
        assert not line.startswith("|") or line.endswith("|"), line


def test_stale_names_are_noticed() -> None:
    """Neither a file nor a name that does not exist passes."""
    assert not exists("output/continuation")
    assert not exists("Checkpoint.rewrite_everything")
