"""Tests that the queries and commands of docs/nightly.md run on the table of a real run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Voxbatch

PAGE = (ROOT / "docs" / "nightly.md").read_text()
COMMANDS = re.findall(r"(?:^\$ |`)voxbatch (.+?)(?:`|$)", PAGE, re.MULTILINE)
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = ("weather.flac", "museum.wav", "recipe.mp3")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_run_and_each_query_has_an_answer(
    voxbatch: Voxbatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the page run, and each query has rows, on real recordings of which one is damaged."""
    duckdb: Any = pytest.importorskip("duckdb")
    folder = tmp_path / "calls"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes((ROOT / "examples" / "recordings" / name).read_bytes())
    (folder / "damaged.wav").write_bytes(b"no audio")
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        done = voxbatch(*shlex.split(command.replace("/data/", "")))
        assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    answers = [duckdb.sql(query).fetchall() for query in QUERIES]
    (totals, failures, new, words, doubtful, speed, speakers) = answers
    assert totals[0][:2] == (4, 1)
    assert failures[0][:2] == ("not_audio", 1)
    assert len(new) == len(FILES) + 1
    assert [row[0] for row in words] == ["weather.flac"]
    assert 0 < words[0][1] < 2
    assert len(doubtful) == len(speed) == len(speakers) == len(FILES)
    assert all(0 < share <= 1 for _, _, share in speed)
