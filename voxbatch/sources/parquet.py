"""Convert Parquet files to the rows of JSON lines: tables that name recordings, and tables that hold them, as Hugging
Face's datasets write them.

    audio {bytes, path}, sentence      {"audio_filepath": "train-0.parquet#row=0+0,audio,a.wav", "text": "Guten Tag.",
    …, "a.wav", "Guten Tag."       →    "id": "train-0/1"}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources.columns import (
    END,
    OF_ANOTHER_FILE,
    Row,
    Rows,
    column_keys,
    facts_of,
    names_recordings,
    renamed,
)
from voxbatch.storage import is_remote
from voxbatch.storage.address import is_bucket_address
from voxbatch.storage.parquet_members import BYTES, ParquetMember, member_name

PARQUET_ROWS = 1000
"""Rows of a Parquet file that are held at a time."""
MAX_GROUP_BYTES = 400_000_000
"""Largest size of the recordings in a row group of a Parquet file. Each decoder holds one group: reading 300 MB took
1.0 GB of the 2 GiB that a decoder may have."""
PARQUET_BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at a time. Otherwise, the whole column of a row group is."""


def parquet_manifest(source: Source, required: str | None) -> tuple[Rows | None, str]:
    """Return the rows of a Parquet file; see manifest_file.manifest_rows."""
    rows = parquet_rows(source, required)
    if required is not None:
        try:
            rows = chain([next(rows)], rows)
        except (ManifestError, StopIteration):
            return None, source.base
    return rows, source.base


def parquet_rows(source: Source, required: str | None) -> Rows:
    """Yield the rows of a Parquet file; the number of a row stands for its line.

    Raises:
        ConfigError: pyarrow is missing.
        ManifestError: it is no Parquet file, no column names or holds the recordings, or several hold them.
    """
    name = source.name
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"{name} is a Parquet file, and pyarrow is missing; pip install 'voxbatch[parquet]'"
        ) from error
    try:
        table = parquet.ParquetFile(source.file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False)
        names = table.schema_arrow.names
        audio = _audio_column(source, table)
        if not audio and not names_recordings(names, required):
            listed = ", ".join(quote(column) for column in names[:10])
            raise manifest_error(name, f"no column names the recordings, its columns: {listed}; call one `{AUDIO_KEY}`")
        used = [column for column in names if not (audio and column in OF_ANOTHER_FILE)]
        _check_types(name, table.schema_arrow, used)
        number, columns = 0, [path for path in _paths(table) if not path.endswith(BYTES)]
        for group in range(table.num_row_groups):
            batches = table.iter_batches(PARQUET_ROWS, [group], columns)
            for index, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches)):
                number += 1
                yield number, _plain(_member(source, row, audio, group, index, number) if audio else renamed(row))
    except pa.ArrowException as error:
        raise manifest_error(name, f"cannot be read as Parquet: {error}; create the file again") from error


def _paths(table: Any) -> list[str]:
    """Return the paths of the columns of a Parquet file, with those within others: "audio.bytes"."""
    schema = table.metadata.schema
    return [schema.column(index).path for index in range(len(schema))]


def _audio_column(source: Source, table: Any) -> str:
    """Return the column that holds the recordings themselves, in its `bytes`; "" if no column does.

    Raises:
        ManifestError: several columns do, or a column within another, or the recordings cannot be read there.
    """
    groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
    chunks = {
        path.removesuffix(BYTES): [group.column(index) for group in groups]
        for index, path in enumerate(_paths(table))
        if path.endswith(BYTES)
    }
    filled = [
        path
        for path, parts in chunks.items()
        if any(part.statistics is None or part.statistics.null_count != part.num_values for part in parts)
    ]
    names = table.schema_arrow.names
    columns, has_paths = [path for path in filled if path in names], _has_paths(table.schema_arrow)
    usual = [column for column in columns if names_recordings([column], None)]
    if len(usual) == 1 or (filled and has_paths):
        columns = usual
    if len(columns) > 1:
        listed = ", ".join(f"`{column}`" for column in columns)
        advice = f"write it with one of them: table.drop_columns([{columns[1]!r}])"
        raise manifest_error(source.name, f"the columns {listed} hold recordings; {advice}")
    if filled and not columns and not has_paths:
        advice = 'write them as a column of their own, "audio" with `bytes` and `path`'
        raise manifest_error(source.name, f"the recordings are within another column, as `{filled[0]}`; {advice}")
    if columns and is_remote(source.base) and not is_bucket_address(source.base):
        advice = "download it, and give the file; of the Hugging Face hub, give hf://datasets/OWNER/NAME/…"
        raise manifest_error(source.name, f"holds recordings, and is on a web server; {advice}")
    if columns and (largest := max(part.total_uncompressed_size for part in chunks[columns[0]])) > MAX_GROUP_BYTES:
        problem = f"a row group has {largest / 1e6:,.0f} MB of recordings, and at most {MAX_GROUP_BYTES / 1e6:,.0f}"
        raise manifest_error(source.name, f"{problem} are read at once; write it with `row_group_size=100`")
    return columns[0] if columns else ""


def _has_paths(schema: Any) -> bool:
    """Return whether a column of strings names recordings."""
    from pyarrow import types

    return any(names_recordings([field.name], None) and not types.is_nested(field.type) for field in schema)


def _member(source: Source, row: Row, column: str, group: int, index: int, number: int) -> Row:
    """Return the row of a recording in a table. Its `id` is unique in a data set, unlike those of many tables."""
    file, name = source.name_below(), member_name(row.pop(column, None))
    facts = facts_of(row)
    given = {"source_id": facts.pop("id")} if "id" in facts else {}
    address = str(ParquetMember(file, group, index, column, name))
    return {**facts, **given, AUDIO_KEY: address, "id": f"{os.path.splitext(file)[0]}/{number}"}


def _check_types(title: str, schema: Any, names: Sequence[str]) -> None:
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
        END: seconds,
        "channel": ("a whole number", is_number),
        "id": ("a string or a whole number", lambda kind: is_string(kind) or types.is_integer(kind)),
    }
    for key, name in column_keys(names).items():
        kind, (expected, is_allowed) = schema.field(name).type, allowed[key]
        if not (is_allowed(kind) or types.is_null(kind)):
            raise manifest_error(
                title,
                f"the column {quote(name)} has the type {str(kind)[:80]}; it must be {expected}: convert the column",
            )


def _plain(row: Row) -> Row | str:
    """Return the row of a table with values that JSON has."""
    values: Row = {}
    for key, value in row.items():
        if isinstance(value, Decimal) and key in ("offset", "duration"):
            values[key] = float(value)
        elif isinstance(value, float) and math.isnan(value):  # pandas writes this for a missing value
            values[key] = None
        else:
            is_plain = value is None or isinstance(value, (str, int, float, bool, list, dict, bytes))
            values[key] = value if is_plain else str(value)
    if isinstance(values.get("channel"), float) and values["channel"].is_integer():
        values["channel"] = int(values["channel"])
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError):
        wrong = [key for key, value in values.items() if isinstance(value, (bytes, float))]
        return f"the columns {', '.join(map(quote, wrong))} hold values that JSON does not have"
    return values
