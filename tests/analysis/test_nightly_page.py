"""Tests that the queries and commands of docs/nightly.md run on the table of a real run."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import servers
from conftest import ROOT, Voxbatch, environment

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
    commands = [command for command in COMMANDS if "gs://" not in command]
    assert len(commands) == 3
    for command in commands:
        done = voxbatch(*shlex.split(command.replace("/data/", "")))
        assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    answers = [duckdb.sql(query).fetchall() for query in QUERIES]
    (totals, failures, new, words, doubtful, speakers) = answers
    assert totals[0][:2] == (4, 1)
    assert failures[0][:2] == ("not_audio", 1)
    assert len(new) == len(FILES) + 1
    assert [row[0] for row in words] == ["weather.flac"]
    assert 0 < words[0][1] < 2
    assert len(doubtful) == len(speakers) == len(FILES)


@pytest.mark.slow
def test_the_script_of_cron_logs_no_transcripts(tmp_path: Path) -> None:
    """The script finds voxbatch in cron's environment, writes both outputs, and no word of a recording into the log."""
    pytest.importorskip("pyarrow")
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "calls").mkdir()
    for name in FILES:
        (tmp_path / "calls" / name).write_bytes((ROOT / "examples" / "recordings" / name).read_bytes())
    here = {"/data": tmp_path, "/run/lock/calls": tmp_path / "lock", "/opt/voxbatch/bin": Path(sys.executable).parent}
    for place, path in here.items():
        assert place in script
        script = script.replace(place, str(path))
    (tmp_path / "job").write_text(script)
    cron = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/sh",
        "PYTHONPATH": environment()["PYTHONPATH"],
    }
    command = ["/bin/sh", "-e", "job"]
    done = subprocess.run(command, cwd=tmp_path, env=cron, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = [json.loads(line) for line in (tmp_path / "calls.voxbatch/transcripts.jsonl").read_text().splitlines()]
    assert len(texts) == len(FILES)
    log = done.stdout + done.stderr
    assert all(line["pred_text"][:20] not in log and line["id"] not in log for line in texts), log
    assert (tmp_path / "calls.parquet").stat().st_size


@pytest.mark.slow
def test_the_commands_for_buckets_run_each_night(voxbatch: Voxbatch, place: servers.Place, tmp_path: Path) -> None:
    """A second night transcribes the new recording alone, and the table has the items of both."""
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    commands = [command for command in COMMANDS if "gs://" in command]
    assert len(commands) == 2
    tables = []
    for name in FILES[:2]:
        place.put(f"in/{name}", (ROOT / "examples" / "recordings" / name).read_bytes())
        for command in commands:
            addresses = {"gs://calls-out/all": f"{place.uri}/all", "gs://calls/in/": f"{place.uri}/in/"}
            arguments = [addresses.get(argument, argument) for argument in shlex.split(command)]
            done = voxbatch(*arguments, env={"VOXBATCH_ENGINE": "scripted"})
            assert done.returncode == 0, done.stderr
        tables.append((tmp_path / "calls.parquet").read_bytes())
    rows = [parquet.read_table(io.BytesIO(table)).to_pylist() for table in tables]
    assert [[row["id"] for row in night] for night in rows] == [["weather.flac"], ["museum.wav", "weather.flac"]]
    (before,), after = rows
    assert before in after
