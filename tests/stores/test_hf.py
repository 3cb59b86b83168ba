"""Tests of data sets of the Hugging Face hub as sources, with the hub's own client and a server that answers it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorder, Voxbatch
from hub import COMMIT, Hub, serving
from pyarrow import Table, parquet

from voxbatch.errors import ConfigError, ManifestError, StorageError
from voxbatch.sources.opening import open_source
from voxbatch.storage import Stores, connect
from voxbatch.storage.circuit_breaker import UnusableRecording


@pytest.fixture
def data_set(tmp_path: Path, recording: Recorder) -> Path:
    """Return a folder with the card of a data set, a split for training in a table, and one for tests in an archive."""
    folder = tmp_path / "clips"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("license: cc0-1.0")
    sounds = [recording(f"sounds/{number}.wav", 1 + number) for number in range(3)]
    audio = [{"bytes": sound.read_bytes(), "path": sound.name} for sound in sounds]
    rows = [{"audio": value, "transcription": f"Satz {number}"} for number, value in enumerate(audio)]
    parquet.write_table(Table.from_pylist(rows), folder / "data" / "train-0.parquet", row_group_size=2)
    with tarfile.open(folder / "data" / "test-0.tar", "w") as archive:
        archive.add(sounds[0], "a.wav")
    return folder


@pytest.fixture
def hub(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Yield a hub with the data set o/clips, which this process and its children use."""
    with serving({"o/clips": data_set}, tmp_path / "home", gated="o/gated") as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        connect.bucket.cache_clear()
        yield running
        connect.bucket.cache_clear()


def rows(source: str) -> list[dict[str, Any]]:
    with open_source(source) as opened:
        assert COMMIT in opened.base
        return [json.loads(line) for _, line in opened.lines()]


@pytest.mark.parametrize("place", ["data/train-*.parquet", "data/train-0.parquet"])
@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}", "@topic%2Fnew%20words"])
def test_the_files_of_a_data_set_are_a_manifest(hub: Hub, place: str, revision: str) -> None:
    """A pattern and a file have the rows of the commit that the revision is."""
    found = rows(f"hf://datasets/o/clips{revision}/{place}")
    assert [(row["id"], row["text"]) for row in found] == [(f"train-0/{n + 1}", f"Satz {n}") for n in range(3)]


def test_a_run_over_a_data_set_of_the_hub(hub: Hub, data_set: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run transcribes every row once, with the token, and fetches no file as a whole. A data set is a folder: its
    card is no shard."""
    variables = {**hub.environment, "HF_TOKEN": "hf_secret"}
    options = ("--engine", "scripted")
    run = voxbatch("run", "hf://datasets/o/clips/data/train-*", *options, "-o", "out", env=variables)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert [(line["text"], line["audio_duration"]) for line in lines] == [(f"Satz {n}", 1.0 + n) for n in range(3)]
    assert hub.tokens == {"Bearer hf_secret"}
    assert "hf_secret" not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json*"))
    (data_set / "data" / "train-0.parquet").unlink()
    run = voxbatch("run", "hf://datasets/o/clips", *options, "-o", "of archives", env=variables)
    assert run.returncode == 0, run.stderr
    (line,) = (tmp_path / "of archives" / "transcripts.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "data/test-0/a"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://datasets/o/other/", "no such data set on the hub; if it is private, set HF_TOKEN"),
        ("hf://datasets/o/clips@v2/", "it has no such revision; give a branch, a tag or a commit"),
        ("hf://models/o/clips/", "the address of a data set of the hub is hf://datasets/OWNER/NAME/"),
        ("hf://datasets/clips", "the address of a data set of the hub is hf://datasets/OWNER/NAME/"),
        ("hf://datasets/o/clips/none.parquet", "does not exist"),
        ("hf://datasets/o/clips/data/none-*.parquet", "matches no file"),
        ("hf://datasets/o/clips/data/", "shards of different kinds: 1 of Parquet"),
    ],
)
def test_what_the_hub_does_not_have_is_refused(hub: Hub, source: str, message: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ManifestError) as refused:
        rows(source)
    assert message in str(refused.value)


def test_a_data_set_whose_terms_nobody_accepted_says_what_to_do(hub: Hub) -> None:
    """The message names the token."""
    with pytest.raises(UnusableRecording, match="accept its terms on its page of the hub, and set HF_TOKEN"):
        Stores().recording(f"hf://datasets/o/gated@{COMMIT}/a.wav")


def test_a_hub_that_does_not_answer_is_no_missing_data_set(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the hub."""
    hub.close()
    with pytest.raises(StorageError, match="hf://datasets/o/clips/ on the hub: the connection failed"):
        rows("hf://datasets/o/clips/")


def test_outputs_do_not_go_to_the_hub() -> None:
    """The message says where they may go."""
    with pytest.raises(ConfigError, match="the Hugging Face hub takes no outputs; give a folder, gs:// or s3://"):
        Stores().out("hf://datasets/o/clips/out")
