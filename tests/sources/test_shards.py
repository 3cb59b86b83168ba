"""Tests of manifests that are many files: shards of pandas, Ray and Hugging Face's datasets, and in Spark's layout; in
folders, by patterns and in buckets.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import servers
from conftest import environment
from datasets import Dataset

from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest import items, survey
from voxbatch.sources import shards
from voxbatch.sources.opening import open_source


def refused(spec: Any) -> str:
    """Return the message with which a source is refused."""
    with pytest.raises(ManifestError) as caught, open_source(spec) as source:
        survey(source)
    return str(caught.value)


def ids(spec: Any) -> list[str]:
    with open_source(spec) as source:
        survey(source)
        return [item.id for item in items(source)]


def json_shards(folder: Path, *shards: list[str], name: str = "part-{:05}.jsonl") -> Path:
    """Write shards of JSON lines that name recordings."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, audio in enumerate(shards):
        text = "".join(json.dumps({"audio_filepath": each}) + "\n" for each in audio)
        (folder / name.format(number)).write_text(text)
    return folder


# ── what others write ─────────────────────────────────────────────────────────────────────────────────────────────────

TABLE = pd.DataFrame({"path": [f"{n}.wav" for n in range(6)], "sentence": ["ja"] * 6, "speaker": [*"aabbcc"]})


def spark(folder: Path) -> None:
    """Write the layout of Spark's DataFrame.write.parquet."""
    folder.mkdir()
    for number in range(3):
        name = f"part-{number:05}-3c1f9e2a-c000.snappy.parquet"
        TABLE[2 * number : 2 * number + 2].to_parquet(folder / name, compression="snappy")
        (folder / f".{name}.crc").write_bytes(b"crc\0")
    (folder / "_SUCCESS").touch()
    (folder / "._SUCCESS.crc").write_bytes(b"crc\0")


def spark_json(folder: Path) -> None:
    """Write the layout of Spark's DataFrame.write.json with gzip, with an empty shard and without a last line end."""
    folder.mkdir()
    rows = [{"audio_filepath": f"{n}.wav", "text": "ja", "speaker": "aabbcc"[n]} for n in range(6)]
    for number, part in enumerate((rows[:4], [], rows[4:])):
        data = "\n".join(json.dumps(row) for row in part).encode()
        (folder / f"part-{number:05}-3c1f-c000.json.gz").write_bytes(gzip.compress(data))
    (folder / "_SUCCESS").touch()


def hugging_face(folder: Path) -> None:
    """Write the shards of a dataset as a repository of the hub has them."""
    folder.mkdir()
    data = Dataset.from_pandas(TABLE)
    for number in range(2):
        shard = data.shard(2, number, contiguous=True)
        shard.to_parquet(folder / f"train-{number:05}-of-00002.parquet")


def csv_parts(folder: Path) -> None:
    folder.mkdir()
    for number in range(2):
        TABLE[3 * number : 3 * number + 3].to_csv(folder / f"part-{number}.csv", index=False)


@pytest.mark.parametrize("write", [spark, spark_json, hugging_face, csv_parts])
def test_shards_that_others_write_are_one_manifest(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """A folder of shards, a pattern and the files by name give the rows of all shards in order; columns pass through;
    marker files are left out."""
    folder = tmp_path / "day.parquet"
    write(folder)
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    for spec in (folder, f"{folder}/*[a-z]", [*map(str, visible)], [*map(str, reversed(visible))]):
        with open_source(spec) as source:
            found = survey(source)
            assert (found.items, found.with_text, source.grows) == (6, 6, False)
            rows = [json.loads(item.row) for item in items(source)]
            assert [(row["audio_filepath"], row["text"], row["speaker"]) for row in rows] == [
                (f"{n}.wav", "ja", "aabbcc"[n]) for n in range(6)
            ]
            assert all(item.audio == f"{folder}/{item.id}" for item in items(source))


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("VOXBATCH_TEST_ALL") != "1", reason="a Ray cluster starts for half a minute: VOXBATCH_TEST_ALL=1"
)
def test_parquet_of_ray_data_is_read(tmp_path: Path) -> None:
    """The folder that ray.data writes is read, with all its columns."""
    pytest.importorskip("ray", reason="ray is not installed")
    program = (
        "import sys, pandas, ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False);"
        "table = pandas.DataFrame({'path': [f'{n:02}.wav' for n in range(40)], 'n': range(40)});"
        "ray.data.from_pandas(table).repartition(4).write_parquet(sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", program, tmp_path / "day"], check=True, capture_output=True, env=environment()
    )
    assert len([*(tmp_path / "day").glob("*.parquet")]) == 4
    assert sorted(ids(tmp_path / "day")) == [f"{n:02}.wav" for n in range(40)]


def test_types_of_spark_are_read(tmp_path: Path) -> None:
    """Decimal seconds, dictionaries and nested values come out as JSON has them."""
    table = pa.table(
        {
            "path": pa.array(["a.wav"]).dictionary_encode(),
            "duration": pa.array([Decimal("1.250")], pa.decimal128(10, 3)),
            "channel": pa.array([1], pa.int8()),
            "caller": pa.array([{"name": "x", "tags": ["a", None]}]),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "part-0.parquet")
    with open_source(f"{tmp_path}/*.parquet") as source:
        (item,) = items(source)
    assert (item.duration, item.channel) == (1.25, 1)
    assert json.loads(item.row)["caller"] == {"name": "x", "tags": ["a", None]}


# ── order and places ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_shards_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    """The order is that of the characters of the names, whichever way the shards are named."""
    for name in ("b/part-1", "a/part-10", "a/part-2", "B/part-0"):
        json_shards(tmp_path / "day" / name.split("/")[0], [f"{name.replace('/', '-')}.wav"], name=f"{name[2:]}.jsonl")
    expected = ["B-part-0.wav", "a-part-10.wav", "a-part-2.wav", "b-part-1.wav"]
    assert ids(tmp_path / "day") == ids(f"{tmp_path}/day/*/*.jsonl") == ids(f"{tmp_path}/day/**/*") == expected


def test_bad_lines_are_told_by_shard_and_line(tmp_path: Path) -> None:
    """A bad line, a row that cannot be JSON and a repeated id have the shard and the line within it."""
    folder = json_shards(tmp_path / "day", ["a.wav", "b.wav"], ["c.wav"], ["d.wav", "a.wav"])
    assert "part-00002.jsonl:2: id 'a.wav' is also part-00000.jsonl:1's; give each line its own" in refused(folder)
    (folder / "part-00001.jsonl").write_text('{"audio_filepath": "c.wav"}\n\n{"audio_filepath": 3}')
    assert f"{folder}: part-00001.jsonl:3: `audio_filepath` is 3; it must be a string" in refused(folder)
    (folder / "part-00001.jsonl").write_text('[{"audio_filepath": "x"},\n{"a":')
    assert "part-00001.jsonl:2: " in refused(folder)


@pytest.mark.parametrize(
    ("files", "spec", "says"),
    [
        (
            ["a.parquet", "b.jsonl"],
            "*",
            "of different kinds: 1 of Parquet (a.parquet), 1 of JSON lines (b.jsonl)",
        ),
        (["a.jsonl"], "*.parquet", "matches no file; check the folder and the extension"),
        (["lang=de/a.jsonl"], "", "has the folder lang=de, whose value the rows do not have; write the shards without"),
        (["a.jsonl", "b.jsonl.gz"], "", "b.jsonl.gz: is not gzip, though its name says so"),
        (["a.parquet"], "", "a.parquet: cannot be read as Parquet"),
        (["a.jsonl"], "", "no items: the manifest has no line that is not blank"),
    ],
)
def test_shards_that_cannot_be_used_are_refused(tmp_path: Path, files: list[str], spec: str, says: str) -> None:
    """A message says where, what was seen, what is allowed, what to do."""
    for name in files:
        (tmp_path / "day" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "day" / name).touch()
    assert says in refused(f"{tmp_path}/day/{spec}")


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("path", pa.array([3]), "the column 'path' has the type int64; it must be a string, the path of a recording"),
        ("audio", pa.array([b"RIFF"]), "the column 'audio' has the type binary; it must be a string"),
        ("duration", pa.array(["3 s"]), "the column 'duration' has the type string; it must be a number of seconds"),
        ("sentence", pa.array([["a"]]), "the column 'sentence' has the type list<"),
    ],
)
def test_column_of_a_wrong_type_is_refused_with_its_shard(
    tmp_path: Path, column: str, values: pa.Array, says: str
) -> None:
    """A column of a wrong type is told once, not for each of its rows."""
    good = pa.table({"path": ["a.wav"]})
    pyarrow.parquet.write_table(good, tmp_path / "part-0.parquet")
    table = good.append_column(column, values) if column != "path" else pa.table({column: values})
    table = pa.table({column: values}) if column in ("path", "audio") else table
    pyarrow.parquet.write_table(table, tmp_path / "part-1.parquet")
    assert f"{tmp_path}/part-1.parquet: {says}" in refused(f"{tmp_path}/*.parquet")


def test_number_of_shards_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that matches too many files is refused before any of them is opened."""
    monkeypatch.setattr(shards, "MAX_FILES", 20)
    folder = json_shards(tmp_path / "day", *([f"{n}.wav"] for n in range(21)))
    assert "matches more than 20 files; write fewer and larger shards" in refused(f"{folder}/*.jsonl")
    (folder / "part-00020.jsonl").unlink()
    assert len(ids(f"{folder}/*.jsonl")) == 20


def test_recordings_and_shards_do_not_mix(tmp_path: Path) -> None:
    """A folder with recordings is a folder of recordings, whatever else lies there; shards are not named with them."""
    folder = json_shards(tmp_path / "day", ["x.wav"], ["y.wav"])
    (folder / "sub").mkdir()
    (folder / "sub" / "talk.mp3").touch()
    assert ids(folder) == ["sub/talk.mp3"]
    says = "is a manifest, and a manifest is given alone, or with others of its kind"
    assert says in refused([str(folder / "part-00000.jsonl"), str(folder / "sub" / "talk.mp3")])
    with pytest.raises(ConfigError, match="--include"):
        open_source(f"{folder}/*.jsonl", include=["*.wav"])


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / "part-9.jsonl").touch(), "part-9.jsonl appeared"),
        (lambda folder: (folder / "part-00000.jsonl").unlink(), "part-00000.jsonl disappeared"),
        (lambda folder: (folder / "part-00000.jsonl").write_text("{}\n"), "part-00000.jsonl changed"),
    ],
)
def test_change_while_the_shards_are_read_is_noticed(tmp_path: Path, change: Callable[[Path], None], says: str) -> None:
    """A shard that changes, disappears or appears while the others are read is noticed. A pipe as the last shard makes
    the reader wait for the change."""
    folder = json_shards(tmp_path / "day", ["a.wav"], ["b.wav"])
    os.mkfifo(folder / "part-1.jsonl")

    def write() -> None:
        with open(folder / "part-1.jsonl", "w") as pipe:  # opens when the reader has come to this shard
            change(folder)
            pipe.write('{"audio_filepath": "c.wav"}\n')

    writer = threading.Thread(target=write)
    writer.start()
    message = refused(folder)
    writer.join()
    assert f"{folder}/{says}" in message
    assert "while the shards were being read; let its writer finish" in message


# ── buckets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("server", ["google", "amazon"])
def test_shards_in_a_bucket_are_one_manifest(
    request: pytest.FixtureRequest, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prefix, a pattern and addresses give the rows of all shards in order. Relative paths start at their folder."""
    store: servers.Server = request.getfixturevalue(server)
    bucket = f"shards-{uuid.uuid4().hex[:8]}"
    store.make(bucket)
    for name, value in store.settings(f"http://127.0.0.1:{store.port}").items():
        monkeypatch.setenv(name, value)
    spark(tmp_path / "day")
    for path in (tmp_path / "day").iterdir():
        store.put(bucket, f"in/day/{path.name}", path.read_bytes())
    store.put(bucket, "in/other/part-0.csv", b"path\nx.wav\n")
    place = f"{store.scheme}://{bucket}/in"
    names = [f"{place}/day/{path.name}" for path in sorted((tmp_path / "day").glob("part*"))]
    for spec in (f"{place}/day/", f"{place}/day/*.parquet", f"{place}/day/part-*", names):
        with open_source(spec) as source:
            survey(source)
            found = [(item.id, item.text, item.audio) for item in items(source)]
            assert found == [(f"{n}.wav", "ja", f"{place}/day/{n}.wav") for n in range(6)]
            assert source.place(4) == "part-00001-3c1f9e2a-c000.snappy.parquet:2"
    assert "shards of different kinds: 3 of Parquet" in refused(f"{place}/*/*")
    assert "*.jsonl: matches no file; check the folder" in refused(f"{place}/day/*.jsonl")


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_row_group_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """A Parquet file of 60 MB with one row group is read within 30 MB more than one of a few rows."""
    text = pa.array([uuid.uuid4().hex * 32 for _ in range(60_000)])
    table = pa.table({"path": [f"{n}.wav" for n in range(len(text))], "note": text})
    for name, part in (("few", table[:10]), ("many", table)):
        (tmp_path / name).mkdir()
        pyarrow.parquet.write_table(
            part, tmp_path / name / "0.parquet", row_group_size=len(text), compression="none", use_dictionary=False
        )
    assert (tmp_path / "many" / "0.parquet").stat().st_size > 60e6
    program = (
        "import resource, sys; from voxbatch.sources.opening import open_source\n"
        "with open_source(sys.argv[1]): print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", program, f"{tmp_path}/{name}/*.parquet"], env=environment()))
        for name in ("few", "many")
    ]
    assert peaks[1] - peaks[0] < 30_000
