"""Write all items of a run as one table with a row for each item, for spreadsheets and data frames: CSV or Parquet.

    export_items(store, "items.parquet")   →   id, audio_filepath, lang, …, wer, …, error, message, committed_at, …

The rows are read from the parts, in the order of the manifest, and streamed. A first pass over the lines gives the
columns: those of COLUMNS, in Parquet also the segments and words, then the keys of the manifest's lines. One batch of
rows is in memory.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from voxbatch.analysis import open_target
from voxbatch.errors import ConfigError
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.lines import RESULT_KEYS, parse_line, score_keys
from voxbatch.output.run_file import Run
from voxbatch.scoring.counts import count_errors
from voxbatch.scoring.units import error_unit
from voxbatch.storage import DEFAULT_STORES, Store, Stores

COLUMNS: Mapping[str, str] = {
    "id": "text", "audio_filepath": "text", "lang": "text", "duration": "float", "audio_duration": "float",
    "text": "text", "pred_text": "text", "wer": "float", "cer": "float", "substitutions": "int", "insertions": "int",
    "deletions": "int", "reference_length": "int", "confidence": "float", "flags": "text", "num_warnings": "int",
    "speakers": "text", "error": "text", "error_kind": "text", "message": "text", "committed_at": "time",
    "in_manifest": "bool",
}  # fmt: skip
"""Columns that every table has, each with the kind of its values. docs/outputs.md describes them."""
LISTS: Mapping[str, Mapping[str, str]] = {
    "segments": {"text": "text", "start": "float", "end": "float", "speaker": "text"},
    "words": {"word": "text", "start": "float", "end": "float", "confidence": "float", "speaker": "text"},
}
"""Columns of a table in Parquet that are lists of structures, each with the kinds of its fields."""
WORD_CHARACTERS = 100
"""Characters of a text that take as much memory as a word."""
MAX_KEYS = 1000
"""Most columns that the keys of the manifest's lines may give. In a manifest whose keys are data, their number has no
limit."""

_BATCH_ROWS, _BATCH_CHARACTERS = 5000, 16 << 20
"""A batch ends with the row that reaches one of these."""
_INT64 = range(-(1 << 63), 1 << 63)
_BEFORE_FORMULA = "=+-@\t\r\n＝＋－＠"
"""First characters of a cell that a spreadsheet may run as a formula, with their full-width forms (OWASP, "CSV
Injection")."""

Row = dict[str, Any]


def export_items(store: Store, path: str, stores: Stores = DEFAULT_STORES) -> int:
    """Write the table of the items that the run in OUT has committed. The file appears when it is complete, and it
    replaces an earlier one.

    Args:
        path: file, or address in a bucket. Its extension is the format: .csv or .parquet.

    Returns:
        The number of rows.

    Raises:
        ConfigError: the format is unknown, pyarrow is missing, no run was started in OUT, or its lines have too many
            different keys.
        CheckpointError: a part is damaged.
        StorageError: OUT cannot be read, or the file cannot be written.
    """
    encode = _encoder(path)
    run = run_file.read_existing(store)
    entries = Entries(store, run)  # listed once: the run may go on
    columns, count = {**COLUMNS, **(dict.fromkeys(LISTS, "list") if encode is _parquet else {})}, 0
    for entry in entries:
        count += 1
        _add_kinds(columns, parse_line(store, entry, run.products), store.place)
    times, listed = entries.commit_times(), run.items - run.gone
    rows = (
        _row(entry.kind == "transcript", parse_line(store, entry, run.products), columns, run)
        | {"committed_at": _time(times[entry.correction or entry.part]), "in_manifest": entry.index < listed}
        for entry in entries
    )
    target, name = open_target(path, stores)
    target.write(name, encode(columns, _batches(rows)))
    return count


def _add_kinds(columns: dict[str, str], line: Row, place: str) -> None:
    """Add the kinds of a line's own keys. Lists and objects have no column."""
    for key, value in line.items():
        if key in COLUMNS or key in RESULT_KEYS or value is None or isinstance(value, (list, dict)):
            continue
        kind = _kind(value)
        known = columns.setdefault(key, kind)
        if known != kind:
            columns[key] = "float" if {known, kind} == {"int", "float"} else "text"
    if len(columns.keys() - COLUMNS.keys() - LISTS.keys()) > MAX_KEYS:
        raise ConfigError(
            f"{place}: the manifest's lines have more than {MAX_KEYS:,} different keys, and each becomes a column; "
            "read transcripts.jsonl instead, or move such keys into one object"
        )


def _kind(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if value in _INT64 else "text"
    return "float" if isinstance(value, float) else "text"


def _row(is_done: bool, line: Row, columns: Mapping[str, str], run: Run) -> Row:
    """Return the values of an item by column. The reference of a failure counts as deleted where the summary counts it,
    so that the sums of the columns are those of the summary."""
    lang, counts = line.get("lang") or run.language, None
    if is_done:
        counts = run.products.counts(line)
    elif line.get("text") is not None and run.products.counts_missing:
        counts = count_errors(line["text"], "", lang)
    rate = counts and counts.reported_rate
    is_word = error_unit(lang) == "word"
    flags = line["flags"] if is_done else []
    segments = line.get("segments", []) if is_done else []
    own = {
        "lang": lang, **score_keys(counts), "wer": rate if is_word else None, "cer": None if is_word else rate,
        "flags": ";".join(dict.fromkeys(flag["kind"] for flag in flags)),
        "num_warnings": len(line["warnings"]) if is_done else 0,
        "speakers": ";".join(dict.fromkeys(segment["speaker"] for segment in segments if "speaker" in segment)),
    }  # fmt: skip
    own |= {name: line.get(name) if is_done else None for name in LISTS}
    foreign = ("error", "error_kind", "message") if is_done else ("pred_text", "audio_duration", "confidence")
    return {
        name: own[name] if name in own else None if name in foreign else _value(line.get(name), kind)
        for name, kind in columns.items()
    }


def _time(seconds: float) -> datetime:
    """Return a time in milliseconds, as the parts have it."""
    return datetime.fromtimestamp(seconds, UTC)


def _value(value: Any, kind: str) -> Any:
    """Return a value of a line as a value of its column."""
    if value is None or isinstance(value, (list, dict)):
        return None
    if kind == "float":
        return float(value)
    if kind != "text":
        return value
    return value if isinstance(value, str) else json.dumps(value)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        characters += WORD_CHARACTERS * len(row.get("words") or ())
        if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


Encoder = Callable[[Mapping[str, str], Iterator[list[Row]]], Iterator[bytes]]
"""A function from the columns and the batches of rows to the bytes of a file."""


def _encoder(path: str) -> Encoder:
    extension = os.path.splitext(path)[1].lower()
    if extension == ".csv":
        return _csv
    if extension != ".parquet":
        raise ConfigError(f"{path}: a table ends in .csv or .parquet")
    try:
        import pyarrow.parquet  # noqa: F401  # before anything is read
    except ImportError as error:
        raise ConfigError(
            f"{path} is a Parquet file, and pyarrow is missing; pip install 'voxbatch[parquet]', or take .csv"
        ) from error
    return _parquet


def _csv(columns: Mapping[str, str], batches: Iterator[list[Row]]) -> Iterator[bytes]:
    """Yield a table in CSV (RFC 4180), in UTF-8 without a byte order mark."""
    block = io.StringIO(newline="")
    writer = csv.writer(block, lineterminator="\r\n")
    writer.writerow(map(_cell, columns))
    for batch in batches:
        writer.writerows([_cell(value) for value in row.values()] for row in batch)
        yield block.getvalue().encode()
        block.seek(0)
        block.truncate()


def _cell(value: Any) -> Any:
    """Return the value of a cell. A text that a spreadsheet may take for a formula begins with an apostrophe: manifests
    and recordings come from strangers. A number is no formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if not isinstance(value, str):
        return value
    text = value.replace("\0", "\ufffd")  # many readers of CSV stop at NUL
    return f"'{text}" if text.startswith(tuple(_BEFORE_FORMULA)) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def _parquet(columns: Mapping[str, str], batches: Iterator[list[Row]]) -> Iterator[bytes]:
    """Yield a table in Parquet, with one row group for each batch."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types["time"] = pa.timestamp("ms", "UTC")
    lists = {
        name: pa.list_(pa.struct([(field, types[kind]) for field, kind in fields.items()]))
        for name, fields in LISTS.items()
    }
    schema = pa.schema([(name, lists[name] if kind == "list" else types[kind]) for name, kind in columns.items()])
    sink = _Blocks()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            arrays = [pa.array([row[field.name] for row in batch], field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield sink.take()
    yield sink.take()


class _Blocks(io.RawIOBase):
    """A file to write to, whose bytes are taken away block by block."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._blocks.append(bytes(data))
        self._size += len(self._blocks[-1])
        return len(self._blocks[-1])

    def tell(self) -> int:
        return self._size

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._blocks)
        self._blocks.clear()
        return taken
