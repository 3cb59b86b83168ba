"""Convert the manifests that others write to the rows of JSON lines: CSV and TSV with a header, JSON arrays, Parquet,
and the metadata of Hugging Face's audio folders.

    path,sentence,locale            {"audio_filepath": "a.mp3", "text": "Guten Tag.", "lang": "de"}
    a.mp3,"Guten Tag.",de      →

Columns with the usual names get ours; see COLUMNS. Others pass through. Each row has the line number of its file.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, BinaryIO

from voxbatch.errors import BadLine, ConfigError
from voxbatch.manifest.json_line import AUDIO_KEY, MAX_LINE_BYTES, LineError, LongLine, parse_json_line, quote
from voxbatch.manifest.source import Source, manifest_error

Row = dict[str, Any]
Rows = Iterator[tuple[int, Row | BadLine]]
"""(line number, the row or the reason why there is none)."""

COLUMNS: dict[str, tuple[str, ...]] = {
    AUDIO_KEY: (
        "audio_filepath", "path", "file_name", "filename", "file", "audio", "wav", "audio_path", "audio_file", "url",
    ),
    "text": ("text", "sentence", "transcription", "transcript", "reference"),
    "lang": ("lang", "language", "locale"),
    "offset": ("offset", "start"),
    "duration": ("duration",),
    "channel": ("channel",),
    "id": ("id",),
}  # fmt: skip
"""Names of columns that have a meaning, by the key of a manifest. The first one that a table has is taken."""
_END = "end"
"""Column with the end of a part, in seconds, in place of a duration."""
_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t"}
PARQUET_ROWS = 1000
"""Rows of a Parquet file that are held at a time."""
PARQUET_BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at a time. Otherwise, the whole column of a row group is."""


def text_table(source: Source, suffix: str, required: str | None = None) -> tuple[list[str], Rows]:
    """Return the columns and the rows of a CSV or TSV file.

    Args:
        source: the file.
        suffix: ".csv", whose delimiter is found by its header: a comma, a semicolon, a tab or a bar; or ".tsv".
        required: column that the table must have; None takes any of COLUMNS that names a recording.

    Raises:
        ManifestError: no column names a recording.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _text_lines(source)
    first = next(lines, (0, ""))[1]
    found = [(next(csv.reader([first], delimiter=each), []), each) for each in _DELIMITERS[suffix]]
    header, delimiter = max(found, key=lambda each: (_names_recordings(each[0], required), len(each[0])))
    header = [name.strip() for name in header]
    if not _names_recordings(header, required):
        seen = ", ".join(quote(name) for name in header[:10]) or "none"
        raise manifest_error(
            source.name,
            f"line 1 names no column with the recordings: {seen}; add a header with `{AUDIO_KEY}` or `path`",
        )
    if repeated := [name for name in header if name and header.count(name) > 1]:
        raise manifest_error(source.name, f"line 1 names the column {quote(repeated[0])} twice; rename one of them")
    records = _tab_records(lines, len(header)) if delimiter == "\t" else _csv_records(lines, delimiter)
    return header, _table_rows(header, records, decimal_comma=delimiter == ";")


def _names_recordings(header: Sequence[str], required: str | None) -> bool:
    names = {name.strip().lower() for name in header}
    return required in names if required else not names.isdisjoint(COLUMNS[AUDIO_KEY])


def _text_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, line with its end)."""
    for number, raw in source.raw_lines():
        if isinstance(raw, LongLine):
            raise manifest_error(source.name, f"line {number} has {raw.num_bytes:,} bytes; write one row a line")
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise manifest_error(
                source.name,
                f"line {number}: byte 0x{raw[error.start]:02X} is not UTF-8; save the file again as UTF-8 (in "
                "spreadsheets: CSV UTF-8)",
            ) from error


def _csv_records(lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield (first line number, fields) of each record. A quoted field may hold line ends."""
    number = num_bytes = begun = 0

    def limited() -> Iterator[str]:
        nonlocal number, num_bytes, begun
        for number, line in lines:
            begun = begun or number
            num_bytes += len(line)
            if num_bytes > MAX_LINE_BYTES:
                raise csv.Error(f"a row is longer than {MAX_LINE_BYTES:,} bytes; perhaps a quote is not closed")
            yield line

    reader = csv.reader(limited(), delimiter=delimiter)
    while True:
        begun = num_bytes = 0
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield begun, BadLine(begun, f"is not CSV: {error}")
            return
        if record:
            yield begun, record


def _tab_records(lines: Iterator[tuple[int, str]], width: int) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield the records of a table with tabs.

    Some writers quote fields as in CSV (pandas), others never do (Common Voice): a quote that begins a field says
    nothing by itself. A line with as many fields as the header is one record.
    """
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) == width and (width > 1 or line.strip()):
            yield number, [_unquoted(each) for each in fields]
        elif line.strip():
            yield number, next(_csv_records(chain([(number, line)], lines), "\t"))[1]


def _unquoted(field: str) -> str:
    inner = field[1:-1]
    if len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return field


def _table_rows(header: Sequence[str], records: Iterable[tuple[int, list[str] | BadLine]], decimal_comma: bool) -> Rows:
    keys = _keys(header)
    for number, record in records:
        if isinstance(record, BadLine):
            yield number, record
            continue
        if len(record) < len(header) or any(record[len(header) :]):
            seen = f"has {len(record):,} columns, and the header has {len(header):,}"
            yield number, BadLine(number, f"{seen}; quote the values that hold a delimiter")
            continue
        values = {name: value for name, value in zip(header, record, strict=False) if name}
        row = {key: values.pop(name) for key, name in keys.items()}
        given = {key: _typed(key, value, decimal_comma) for key, value in row.items() if value.strip()}
        yield number, {AUDIO_KEY: "", **_with_duration(given), **values}


def _keys(names: Iterable[str]) -> dict[str, str]:
    """Return the column for each key of a manifest that a table has."""
    known = {name.lower(): name for name in reversed(list(names))}
    found = {key: next((known[each] for each in columns if each in known), None) for key, columns in COLUMNS.items()}
    if "duration" not in known and "start" in known and _END in known:
        found[_END] = known[_END]
    return {key: name for key, name in found.items() if name is not None}


def _typed(key: str, text: str, decimal_comma: bool) -> Any:
    """Return the value of a cell. A text that is no number stays, so that it is refused with its value."""
    if key not in ("offset", "duration", "channel", _END):
        return text
    text = text.strip()
    try:
        number = float(text.replace(",", ".") if decimal_comma else text)
    except ValueError:
        return text
    if key == "channel" and number.is_integer():
        return int(number)
    return number if math.isfinite(number) else text


def _with_duration(row: Row) -> Row:
    """Return the row with `duration` in place of the end of a part."""
    end = row.pop(_END, None)
    if end is None:
        return row
    is_part = isinstance(end, int | float) and isinstance(row.get("offset"), int | float)
    return {**row, "duration": round(end - row["offset"], 6) if is_part else end}


def renamed(row: Row) -> Row:
    """Return a JSON object with the keys of a manifest in place of other usual names; see COLUMNS."""
    values = dict(row)
    given = {key: values.pop(name) for key, name in _keys(row).items()}
    audio = given.get(AUDIO_KEY)
    if isinstance(audio, dict) and isinstance(audio.get("path"), str):
        given[AUDIO_KEY] = audio["path"]
    return {**_with_duration(given), **values}


def json_rows(source: Source) -> Rows:
    """Yield the rows of JSON lines whose keys are those of others, such as Hugging Face's metadata.jsonl."""
    for number, line in source.lines():
        yield number, _renamed_line(number, line)


def array_rows(source: Source) -> Rows:
    """Yield the rows of a JSON array of objects. One object is held at a time, and the line that it ends in."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    decoder, text, number, last, next_try = json.JSONDecoder(), "", 1, "", 0
    for piece in chain(source.pieces(), [b""]):
        try:
            text += decode(piece, not piece)
        except UnicodeDecodeError:
            yield number, BadLine(number, "is not UTF-8; save the file again as UTF-8")
            return
        if piece and len(text) < next_try:
            continue
        at = 0
        while True:
            between = _BETWEEN.match(text, at)
            assert between is not None
            number, at = number + between[0].count("\n"), between.end()
            last = between[0].rstrip()[-1:] or last
            try:
                _, end = decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError):  # it is perhaps not complete
                break
            yield number, _renamed_line(number, text[at:end].replace("\n", " ").replace("\r", " ").encode())
            number, last, at = number + text.count("\n", at, end), "", end
        text = text[at:]
        next_try = 2 * len(text)  # a long object is not parsed again for each of its lines
        if len(text) > MAX_LINE_BYTES:
            break
    if text or last != "]":
        seen = f"near {quote(text[:60])}" if text else "ends within the array"
        yield number, BadLine(number, f"{seen}: not an array of JSON objects; create the file again")


_BETWEEN = re.compile(r"[ \t\r\n,\[\]]*")


def _renamed_line(number: int, line: bytes) -> Row | BadLine:
    try:
        return renamed(parse_json_line(line))
    except LineError as error:
        return BadLine(number, str(error))


def parquet_rows(name: str, file: BinaryIO, required: str | None = None) -> Rows:
    """Yield the rows of a Parquet file; the number of a row stands for its line.

    Raises:
        ConfigError: pyarrow is missing.
        ManifestError: it is no Parquet file, no column names a recording, or the table holds the recordings themselves.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"{name} is a Parquet file, and pyarrow is missing; pip install 'voxbatch[parquet]'"
        ) from error
    try:
        table = parquet.ParquetFile(file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False)
        names = table.schema_arrow.names
        if not _names_recordings(names, required):
            seen = ", ".join(quote(each) for each in names[:10])
            raise manifest_error(name, f"no column names the recordings, its columns: {seen}; call one `{AUDIO_KEY}`")
        _check_types(name, table.schema_arrow)
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=_without_audio(name, table)):
            for row in batch.to_pylist():
                number += 1
                yield number, _plain(number, renamed(row))
    except pa.ArrowException as error:
        raise manifest_error(name, f"cannot be read as Parquet: {error}; create the file again") from error


def _check_types(title: str, schema: Any) -> None:
    """Refuse a table in which a column with a meaning has a type that no row can have."""
    from pyarrow import types

    def is_string(kind: Any) -> bool:
        if types.is_dictionary(kind):
            return is_string(kind.value_type)
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    def is_path(kind: Any) -> bool:
        return is_string(kind) or (types.is_struct(kind) and kind.get_field_index("path") >= 0)

    def is_number(kind: Any) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    seconds = ("a number of seconds", is_number)
    allowed: dict[str, tuple[str, Callable[[Any], bool]]] = {
        AUDIO_KEY: ("a string, the path of a recording", is_path),
        "text": ("a string", is_string),
        "lang": ("a string", is_string),
        "offset": seconds,
        "duration": seconds,
        _END: seconds,
        "channel": ("a whole number", is_number),
        "id": ("a string or a whole number", lambda kind: is_string(kind) or types.is_integer(kind)),
    }
    for key, name in _keys(schema.names).items():
        kind, (what, is_allowed) = schema.field(name).type, allowed[key]
        if not (is_allowed(kind) or types.is_null(kind)):
            raise manifest_error(
                title, f"the column {quote(name)} has the type {str(kind)[:80]}; it must be {what}: convert the column"
            )


def _without_audio(title: str, table: Any) -> list[str]:
    """Return the columns of a Parquet file without the bytes of recordings, which must all be empty."""
    schema = table.metadata.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    for index, path in enumerate(paths):
        if not path.endswith(".bytes"):
            continue
        for group in range(table.num_row_groups):
            column = table.metadata.row_group(group).column(index)
            if column.statistics is None or column.statistics.null_count != column.num_values:
                raise manifest_error(
                    title,
                    f"the column `{path.removesuffix('.bytes')}` holds the recordings themselves, and voxbatch reads "
                    'recordings from files; write them as files first, see "Recordings inside Parquet" in the docs',
                )
    with_bytes = {path.removesuffix(".bytes") for path in paths if path.endswith(".bytes")}
    return [f"{name}.path" if name in with_bytes else name for name in table.schema_arrow.names]


def _plain(number: int, row: Row) -> Row | BadLine:
    """Return the row of a table with values that JSON has."""
    values = {key: _plain_value(value) for key, value in row.items()}
    for key in ("offset", "duration"):
        if isinstance(row.get(key), Decimal):
            values[key] = float(row[key])
    if isinstance(values.get("channel"), float) and values["channel"].is_integer():
        values["channel"] = int(values["channel"])
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError):
        wrong = [key for key, value in values.items() if isinstance(value, (bytes, float))]
        return BadLine(number, f"the columns {', '.join(map(quote, wrong))} hold values that JSON does not have")
    return values


def _plain_value(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):  # pandas writes this for a missing value
        return None
    return value if value is None or isinstance(value, (str, int, float, bool, list, dict, bytes)) else str(value)
