"""Tests for the table of all items: real runs, read back by csv, pandas and pyarrow."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest
import servers
from conftest import ManifestWriter, Recorder, Voxbatch

from voxbatch.analysis.export import COLUMNS, LISTS, export_items
from voxbatch.analysis.results import read_results
from voxbatch.errors import ConfigError, StorageError
from voxbatch.output.layout import part_names
from voxbatch.output.parts import read_headers
from voxbatch.storage import Stores

HOSTILE = (
    "=cmd|'/C calc'!A0",
    "+1+cmd",
    "@SUM(1)",
    "-2+3",
    "\tx",
    "＝1",
    'a "quoted", text; with\r\ntwo lines',
    "nul\0inside",
    "\u202eright to left\u202c",
    "<script>alert(1)</script>",
    "क्षत्रिय 字幕 😀",
    "-5.5",
    "",
    "a,b",
)
"""Values of a manifest that break careless writers and spreadsheets."""


@pytest.fixture
def hostile(tmp_path: Path, recording: Recorder, voxbatch: Voxbatch) -> Path:
    """Return the OUT of a run whose manifest has hostile texts, keys of all types, and items that fail."""
    recording("a.wav", 1.5)
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "a.wav", "id": f"i{i}", "text": text, "note": text, "lang": "en"}
        for i, text in enumerate(HOSTILE)
    ]
    rows[0] |= {"speaker": 7, "score": 1, "ok": True, "mixed": 1, "=evil": "x", "tags": ["a"], "big": 1 << 70}
    rows[1] |= {"speaker": 8, "score": 0.5, "ok": False, "mixed": "b", "error": "the manifest's own"}
    rows.append({"audio_filepath": "gone.wav", "id": "gone", "text": "three lost words", "lang": "en", "speaker": 9})
    rows.append({"audio_filepath": "a.wav", "id": "zh", "text": "天气", "lang": "zh"})
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = voxbatch("run", path, "-o", "out", "--engine", "scripted")
    assert done.returncode == 3, done.stderr
    return tmp_path / "out"


def test_every_item_has_a_row_in_the_order_of_the_manifest(hostile: Path, tmp_path: Path) -> None:
    """Done and failed items are rows, and the sums of the columns are those of summary.json."""
    path = tmp_path / "tables" / "items.parquet"
    assert export_items(Stores().out(str(hostile)), str(path)) == len(HOSTILE) + 2
    table = pd.read_parquet(path)
    assert list(table["id"]) == [*(f"i{i}" for i in range(len(HOSTILE))), "gone", "zh"]
    assert list(table.columns)[: len(COLUMNS)] == list(COLUMNS)
    score = json.loads((hostile / "summary.json").read_text())["score"]
    words = table[table["lang"] == "en"]
    errors = words[["substitutions", "insertions", "deletions"]].sum()
    assert errors.sum() == score["words"]["errors"]
    assert words["reference_length"].sum() == score["words"]["reference_words"]
    gone, zh = table.iloc[-2], table.iloc[-1]
    assert (gone["error"], gone["deletions"], gone["wer"]) == ("AudioError", 3, 1.0)
    assert gone["error_kind"] == "not_found"
    assert pd.isna(gone["pred_text"])
    assert "No such file" in gone["message"]
    assert math.isnan(zh["wer"])
    assert zh["cer"] == score["cer"]
    assert table[["error", "error_kind"]].notna().sum().tolist() == [1, 1], "the key `error` of a row does not count"
    results = {result.id: result.line for result in read_results(Stores().out(str(hostile)))}
    for row in table.iloc[:-2].to_dict("records"):
        assert row["pred_text"] == results[row["id"]]["pred_text"]
        assert row["audio_filepath"] == results[row["id"]]["audio_filepath"]


def test_parquet_has_types_and_exact_texts(hostile: Path, tmp_path: Path) -> None:
    """Each column of a Parquet file has one type, and texts are the manifest's, character by character."""
    path = tmp_path / "items.parquet"
    export_items(Stores().out(str(hostile)), str(path))
    table = pyarrow.parquet.read_table(path)
    kinds = {"text": "string", "int": "int64", "float": "double", "bool": "bool", "time": "timestamp[ms, tz=UTC]"}
    assert {name: str(table.schema.field(name).type) for name in COLUMNS} == {n: kinds[k] for n, k in COLUMNS.items()}
    own = {"note": "string", "speaker": "int64", "score": "double", "ok": "bool", "mixed": "string", "big": "string"}
    assert {name: str(table.schema.field(name).type) for name in own} == own
    assert table["note"].to_pylist() == [*HOSTILE, None, None]
    assert table["text"].to_pylist()[: len(HOSTILE)] == list(HOSTILE)
    assert table["mixed"].to_pylist()[:3] == ["1", "b", None]
    assert table["big"].to_pylist()[0] == str(1 << 70)
    assert "=evil" in table.column_names
    assert not {"tags", "version", "engine"} & set(table.column_names)


def test_parquet_has_the_segments_and_words(hostile: Path, tmp_path: Path) -> None:
    """Each row has its segments and words with their times, as the line has them; one that failed has none."""
    path = tmp_path / "items.parquet"
    export_items(Stores().out(str(hostile)), str(path))
    results = {result.id: result.line for result in read_results(Stores().out(str(hostile)))}
    rows = pyarrow.parquet.read_table(path).to_pylist()
    for row in rows:
        for name, fields in LISTS.items():
            expected = results[row["id"]].get(name)
            assert row[name] == (expected and [dict.fromkeys(fields) | member for member in expected])
    assert len(rows[0]["words"]) > 1


def test_csv_is_read_back_and_no_cell_is_a_formula(hostile: Path, tmp_path: Path) -> None:
    """Readers of RFC 4180 get every text back. Texts that a spreadsheet would run begin with an apostrophe."""
    path = tmp_path / "items.csv"
    export_items(Stores().out(str(hostile)), str(path))
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert None not in rows[0]
    guarded = {"=cmd|'/C calc'!A0", "+1+cmd", "@SUM(1)", "-2+3", "\tx", "＝1"}
    expected = [f"'{text}" if text in guarded else text.replace("\0", "\ufffd") for text in HOSTILE]
    assert [row["note"] for row in rows] == [*expected, "", ""]
    cells = [cell for row in rows for cell in [*row, *row.values()]]
    assert not [cell for cell in cells if cell[:1] in set("=+@\t\r") or (cell[:1] == "-" and cell != "-5.5")]
    assert "'=evil" in rows[0]
    table = pd.read_csv(path, dtype={"note": str}, keep_default_na=False)
    assert list(table["note"]) == [*expected, "", ""]
    assert table["speaker"].iloc[0] in (7, "7")
    assert path.read_bytes().count(b"\r\n") == 1 + len(rows) + 2, "the lines of the table, and two in texts"


def test_a_table_of_csv_equals_that_of_parquet(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Both formats have the same numbers, and flags are empty where there are none."""
    path = manifest(1.5, 2.5, None, text="one two", lang="en", take=3)
    assert voxbatch("run", path, "-o", "out", "--engine", "scripted").returncode == 3
    store = Stores().out(str(tmp_path / "out"))
    for name in ("items.csv", "items.PARQUET"):
        assert export_items(store, str(tmp_path / name)) == 3
    left, right = pd.read_csv(tmp_path / "items.csv"), pd.read_parquet(tmp_path / "items.PARQUET")
    assert list(left.columns) == [name for name in right.columns if name not in LISTS]
    for name, kind in COLUMNS.items():
        if kind in ("int", "float"):
            assert left[name].fillna(-1).tolist() == right[name].fillna(-1).tolist(), name
    assert right["take"].tolist() == [3, 3, 3]


def test_a_table_tells_when_an_item_was_committed_and_what_is_gone(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A row has the time of the commit that gave its text. An item that the manifest no longer has stays, and its row
    says so."""
    for name in "ab":
        recording(f"day/{name}.wav", 1.5)
    run = ("run", "day", "-o", "out", "--engine", "scripted", "--update", "--formats", "txt")
    store = Stores().out(str(tmp_path / "out"))

    def rows(name: str) -> dict[str, dict[str, Any]]:
        export_items(store, str(tmp_path / name))
        if name.endswith(".csv"):
            with open(tmp_path / name, newline="", encoding="utf-8") as file:
                return {row["id"]: row for row in csv.DictReader(file)}
        return {row["id"]: row for row in pyarrow.parquet.read_table(tmp_path / name).to_pylist()}

    assert voxbatch(*run).returncode == 0
    (first,) = read_headers(store, part_names(store))
    row = rows("items.csv")["a.wav"]
    time = datetime.fromtimestamp(first.committed_at, UTC)
    assert (row["committed_at"], row["in_manifest"]) == (time.isoformat(timespec="milliseconds")[:-6] + "Z", "true")
    (tmp_path / "day/a.wav").rename(tmp_path / "a.wav")
    recording("day/c.wav", 1.5)
    assert voxbatch(*run).returncode == 0
    table = rows("items.parquet")
    assert {name: row["in_manifest"] for name, row in table.items()} == {"a.wav": False, "b.wav": True, "c.wav": True}
    assert table["a.wav"]["committed_at"] == table["b.wav"]["committed_at"] == time
    assert table["c.wav"]["committed_at"] > time
    assert voxbatch(*run).returncode == 0, "a list without changes"
    assert rows("items.parquet") == table
    text = tmp_path / "out/txt/b.txt"
    text.write_text(text.read_text().replace("w1", "corrected"))
    assert voxbatch("correct", "out").returncode == 0
    corrected = rows("items.parquet")["b.wav"]
    assert "corrected" in corrected["pred_text"]
    assert corrected["committed_at"] > table["c.wav"]["committed_at"], "the time of the correction"
    (tmp_path / "a.wav").rename(tmp_path / "day/a.wav")
    assert voxbatch(*run).returncode == 0
    assert [row["in_manifest"] for row in rows("items.parquet").values()] == [True, True, True]


def test_a_failed_export_leaves_the_earlier_file(hostile: Path, tmp_path: Path) -> None:
    """A damaged part ends the export, and the file of an earlier one stays as it was."""
    path = tmp_path / "items.csv"
    export_items(Stores().out(str(hostile)), str(path))
    before = path.read_bytes()
    (part,) = (hostile / "parts").rglob("part-*.jsonl")
    part.write_bytes(part.read_bytes().replace(b'"pred_text"', b'"pred_test"', 1))
    with pytest.raises(Exception, match="part-"):
        export_items(Stores().out(str(hostile)), str(path))
    assert path.read_bytes() == before
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".tmp-")]


def test_what_cannot_be_exported_is_named(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown extensions, folders in the way and manifests without end of keys are errors with a remedy."""
    store = Stores().out(str(hostile))
    with pytest.raises(ConfigError, match=r"items\.xlsx: a table ends in \.csv or \.parquet"):
        export_items(store, "items.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*folder\.csv"):
        export_items(store, str(tmp_path / "folder.csv"))
    with pytest.raises(ConfigError, match="no run was started there"):
        export_items(Stores().out(str(tmp_path / "folder.csv")), "items.csv")
    monkeypatch.setattr("voxbatch.analysis.export.MAX_KEYS", 3)
    with pytest.raises(ConfigError, match="more than 3 different keys"):
        export_items(store, str(tmp_path / "items.csv"))


@pytest.mark.parametrize("name", ["items.csv", "items.parquet"])
def test_a_table_in_a_bucket_has_the_same_bytes(hostile: Path, tmp_path: Path, place: servers.Place, name: str) -> None:
    """The table of a run goes to a bucket as it goes to a folder."""
    store = Stores().out(str(hostile))
    export_items(store, str(tmp_path / name))
    export_items(store, f"{place.uri}/tables/{name}")
    assert place.look(f"tables/{name}") == (tmp_path / name).read_bytes()
