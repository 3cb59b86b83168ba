"""Test that both sides of a call with crosstalk are recognised as well as its clean channels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, environment
from whisper_base import needs_tiny_en


@pytest.mark.long
@needs_tiny_en
def test_crosstalk_costs_at_most_a_point(corpus: Path) -> None:
    """The benchmark exits with 1 if an error rate at -15 or -25 dB is a point off, or if a word goes back in time."""
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_channels.py"), "--calls", "2", "--copies", "2"]
    done = subprocess.run(command, env=environment(VOXBATCH_TEST_DATA=str(corpus)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "split, crosstalk at -25 dB: " in done.stdout
