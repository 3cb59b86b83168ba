"""Tests for the line about what was not tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import skips
from conftest import ROOT


def test_reasons_are_counted() -> None:
    """The commonest reason comes first, and each has one line without pytest's own prefix."""
    reasons = ["Skipped: takes root", "Skipped: takes jq", "takes  jq\n"]
    assert skips.in_words(reasons) == " 2 × takes jq; 1 × takes root;"
    assert skips.in_words([]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["0", "2"])
def test_the_halves_append_their_reasons_to_one_file(tmp_path: Path, jobs: str) -> None:
    """pytest appends the reasons of skipped tests and modules, in one process or several, and nothing of tests that
    ran.
    """
    file = tmp_path / "not-tested"
    file.write_text(" 1 × first;")
    (tmp_path / "test_a.py").write_text(
        "import pytest\ndef test_ran(): pass\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_skipped(n): pytest.skip('takes jq')\n"
    )
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('nowhere', reason='nowhere is missing')\n")
    options = ["--confcutdir", str(ROOT), "-p", "conftest", "-p", "no:cacheprovider", "-n", jobs]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", *options, f"--append-skips={file}", tmp_path],
        cwd=ROOT / "tests", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_text() == " 1 × first; 2 × takes jq; 1 × nowhere is missing;"


@pytest.mark.slow
def test_the_option_is_known_without_a_path_of_tests(tmp_path: Path) -> None:
    """pytest knows the option also where the Makefile names no tests, so that it takes those of pyproject.toml."""
    file = tmp_path / "not-tested"
    options = [f"--append-skips={file}", "--collect-only", "--quiet", "--deselect=tests", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stderr
    assert file.exists()
