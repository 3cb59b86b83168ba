"""Tests of Parquet files with recordings in them as sources: the rows and the bytes, in files and in buckets."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archived_recordings import contents, rows
from conftest import Recorder, Voxbatch
from datasets import Audio, Dataset
from datasets.table import embed_table_storage
from pyarrow import parquet
from servers import Place

from voxbatch.decoding import Decoded, DecoderPool, DecodeTask
from voxbatch.errors import ManifestError, StorageError
from voxbatch.records import Chunk
from voxbatch.storage import Stores
from voxbatch.storage.circuit_breaker import UnusableRecording
from voxbatch.storage.parquet_members import open_listing

TEXTS = ["eins", "zwei", "", "vier", "fünf"]


@pytest.fixture
def sounds(recording: Recorder) -> list[Path]:
    """Return five recordings of 1 to 5 seconds."""
    return [recording(f"clips/{number}.wav", 1 + number) for number in range(len(TEXTS))]


def written(path: Path, sounds: Iterable[Path], **columns: list[Any]) -> Path:
    """Write a file with row groups of two rows, as push_to_hub of `datasets` writes it."""
    data = Dataset.from_dict({"audio": [str(sound) for sound in sounds], **columns}).cast_column("audio", Audio())
    embedded = data.with_format("arrow").map(embed_table_storage, batched=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    embedded.with_format(None).to_parquet(str(path), batch_size=2)
    assert parquet.ParquetFile(path).num_row_groups == -(-len(data) // 2)
    return path


def table(file: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), file)
    return file


def test_the_recordings_of_a_data_set_are_read_in_any_order(tmp_path: Path, sounds: list[Path]) -> None:
    """Each row has its keys and its own bytes, forwards and backwards. Keys of the file that a recording was cut from
    do not count, and an `id` that need not be unique is kept by another name."""
    path = written(tmp_path / "data" / "train.parquet", sounds, sentence=TEXTS, id=[7] * 5, start=[9.5] * 5)
    found = rows(path)
    assert [row["id"] for row in found] == [f"train/{number}" for number in range(1, 6)]
    assert found[3] == {
        "text": "vier", "source_id": 7, "audio_filepath": "train.parquet#row=1+1,audio,3.wav", "id": "train/4"
    }  # fmt: skip
    expected = [sound.read_bytes() for sound in sounds]
    assert contents(path.parent, found) == expected
    assert contents(path.parent, reversed(found)) == expected[::-1]


def test_files_in_folders_of_a_bucket_are_listed_without_their_recordings(
    place: Place, tmp_path: Path, sounds: list[Path]
) -> None:
    """The rows of two files in folders of a bucket have the bytes of the recordings. To list a file, a twentieth of it
    is fetched, and the rows of a row group are fetched together."""
    long = tmp_path / "long.wav"
    long.write_bytes(os.urandom(8 << 20))
    path = written(tmp_path / "t.parquet", [*sounds, long], text=[*TEXTS, "lang"])
    for language in ("de", "en"):
        place.put(f"data/{language}/test-0.parquet", path.read_bytes())
    found = rows(f"{place.uri}/data/")
    assert [row["id"] for row in found[5:7]] == ["de/test-0/6", "en/test-0/1"]
    begun = place.asked("get")
    expected = [sound.read_bytes() for sound in [*sounds, long]]
    assert contents(f"{place.uri}/data", found) == expected * 2
    one, *others = found[:2]
    contents(f"{place.uri}/data", [one])
    begun = place.asked("get")
    contents(f"{place.uri}/data", others)
    assert place.asked("get") <= begun + 1
    table = f"{place.uri}/data/de/test-0.parquet"
    with Stores().ranges(table, of_one_revision=True) as (read, stat), open_listing(table, read, stat.size) as listing:
        assert os.fstat(listing.fileno()).st_blocks * 512 < (8 << 20) / 20


def test_a_listing_on_a_full_disk_is_no_shorter_listing(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes only a part of a column raises an error. The rest of the column is not read as empty texts."""
    whole = pa.table({"text": [f"{number:03} " * 1000 for number in range(400)]})
    parquet.write_table(whole, tmp_path / "t.parquet", compression="none", use_dictionary=False)
    data = (tmp_path / "t.parquet").read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(StorageError, match=rf"cannot be stored in {small_disk}: No space .* free space there"):
        open_listing("s3://bucket/t.parquet", lambda count, at: data[at : at + count], len(data))


def test_a_remote_row_group_is_fetched_once_for_all_decoders(
    place: Place, tmp_path: Path, sounds: list[Path], warm_decoders: None
) -> None:
    """Each byte of the recordings is asked for once, however many decoders there are, and in whatever order the row
    groups come."""
    path = written(tmp_path / "t.parquet", sounds * 8)
    place.put("t.parquet", path.read_bytes())
    groups = parquet.read_metadata(path)
    rows = [(group, row) for group in range(groups.num_row_groups) for row in range(groups.row_group(group).num_rows)]
    names = [f"{place.uri}/t.parquet#row={group}+{row},audio,{(2 * group + row) % 5}.wav" for group, row in rows]
    place.proxy.forget()
    with DecoderPool(3) as pool:
        tasks = (DecodeTask(item, name, 0.0, None, None, None, 240_000) for item, name in enumerate(names))
        ends = [message for message in pool.run(tasks) if not isinstance(message, Chunk)]
    assert [end for end in ends if not isinstance(end, Decoded)] == []
    assert sorted(end.item for end in ends) == list(range(len(names)))
    ranges = [asked.headers["range"] for asked in place.proxy.log if asked.verb == "get"]
    begins = Counter(int(text.removeprefix("bytes=").partition("-")[0]) for text in ranges)
    columns = [groups.row_group(group).column(0) for group in range(groups.num_row_groups)]
    assert columns[0].path_in_schema == "audio.bytes"
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    assert {begins[start] for start in starts} == {1}


def test_a_run_over_a_data_set(tmp_path: Path, voxbatch: Voxbatch, sounds: list[Path]) -> None:
    """A run gives each row its transcript and its reference, and fails the row whose bytes are null. It says which file
    was changed since."""
    written(tmp_path / "data" / "test.parquet", sounds, text=TEXTS)
    audio = {"bytes": [sounds[0].read_bytes(), None], "path": ["a.wav", None]}
    values = pa.StructArray.from_arrays([pa.array(audio["bytes"]), pa.array(audio["path"])], ["bytes", "path"])
    table(tmp_path / "data" / "train.parquet", audio=values)
    run = voxbatch("run", "data", "--engine", "scripted", "-o", "out")
    assert run.returncode == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert [line["audio_duration"] for line in lines] == [1.0, 2.0, 3.0, 4.0, 5.0, 1.0]
    assert [line.get("text") for line in lines] == [*TEXTS, None]
    assert "row 1 of row group 0 of" in run.stdout
    assert "the bytes of its column audio are null" in run.stdout
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": lines[0]["audio_filepath"]}))
    written(tmp_path / "data" / "test.parquet", sounds[1:], text=TEXTS[1:])
    changed = voxbatch("run", "m.jsonl", "--engine", "scripted", "-o", "other")
    assert "cannot read 0.wav in" in changed.stdout
    assert "the archive was changed: restore it" in changed.stdout


SOUND = [{"bytes": b"RIFF", "path": "a.wav"}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"audio": SOUND, "recording": SOUND}, "`audio`, `recording` hold recordings; write it with one of them"),
        ({"sample": [{"audio": SOUND[0]}]}, "within another column, as `sample.audio`; write them as a column of"),
        ({"turns": [SOUND]}, "within another column, as `turns.list.element`"),
        ({"text": ["a"]}, "no column names the recordings, its columns:"),
        ({"audio": [b"RIFF"]}, "the column 'audio' has the type binary; it must be"),
    ],
    ids=["two", "nested", "list", "none", "plain bytes"],
)
def test_a_table_whose_recordings_cannot_be_told_is_refused(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The message says what is wrong, and what to do."""
    with pytest.raises(ManifestError) as refused:
        rows(table(tmp_path / "t.parquet", **columns))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"speech": SOUND}, "t.parquet#row=0+0,speech,a.wav"),
        ({"audio": SOUND, "path": ["elsewhere/b.wav"], "image": SOUND}, "t.parquet#row=0+0,audio,a.wav"),
        ({"file_name": ["b.wav"], "image": SOUND}, "b.wav"),
        ({"audio": [{"bytes": b"RIFF", "path": None}]}, "t.parquet#row=0+0,audio,audio"),
        ({"audio": [{"bytes": b"RIFF", "path": "/x/ä b,c.wav"}]}, "t.parquet#row=0+0,audio,%C3%A4 b%2Cc.wav"),
    ],
)
def test_the_column_with_the_recordings_is_found(columns: dict[str, Any], name: str, tmp_path: Path) -> None:
    """A column with a usual name counts, and another one if no column names recordings."""
    (row,) = rows(table(tmp_path / "t.parquet", **columns))
    assert row["audio_filepath"] == name
    if "#" in name:
        assert contents(tmp_path, [row]) == [b"RIFF"]


def test_a_row_group_that_no_decoder_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to write the file again."""
    monkeypatch.setattr("voxbatch.sources.parquet.MAX_GROUP_BYTES", 100)
    path = table(tmp_path / "t.parquet", audio=[{"bytes": os.urandom(200), "path": None}])
    with pytest.raises(ManifestError, match="write it with `row_group_size=100`"):
        rows(path)


def test_a_bucket_that_does_not_answer_is_no_changed_file(place: Place, tmp_path: Path) -> None:
    """An object that is gone, or no Parquet file, has the error that says so."""
    with pytest.raises(UnusableRecording, match="there is no such object"):
        contents(place.uri, [{"audio_filepath": "t.parquet#row=0+0,audio,a.wav"}])
    place.put("t.parquet", b"no table" * 100)
    with pytest.raises(ManifestError, match="cannot be read as Parquet"):
        rows(f"{place.uri}/t.parquet")
