"""Convert the manifests that others write to the rows of JSON lines: CSV and TSV with a header, JSON arrays,
and the metadata of Hugging Face's audio folders.

    path,sentence,locale            {"audio_filepath": "a.mp3", "text": "Guten Tag.", "lang": "de"}
    a.mp3,"Guten Tag.",de      →

Columns with the usual names get ours; see COLUMNS. Others pass through. Each row has the line number of its file.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from voxbatch.errors import ManifestError
from voxbatch.manifest.json_line import AUDIO_KEY, MAX_LINE_BYTES, LineError, LongLine, parse_json_line, quote
from voxbatch.manifest.recording_path import LIST_MARK, is_recording
from voxbatch.manifest.source import PLAYLIST, PLAYLIST_ADVICE, Source, manifest_error
from voxbatch.sources.columns import (
    DATA_ROOT,
    END,
    Row,
    Rows,
    column_keys,
    names_recordings,
    renamed,
    with_duration,
)
from voxbatch.sources.feeds import feed_rows, is_xml
from voxbatch.sources.kinds import JSON_LINES, kind_of
from voxbatch.sources.tars import tarred_rows
from voxbatch.storage import is_remote

Records = Iterator[tuple[int, list[str] | str]]
"""(first line number, the fields of a record or the reason why there are none)."""

DELIMITERS = {"CSV": ",;\t|", "TSV": "\t"}
_SUBTITLES = (".srt", ".vtt")


def text_manifest(source: Source, required: str | None) -> tuple[Rows | None, str]:
    """Return the rows of a CSV or TSV file; see manifest_file.manifest_rows."""
    try:
        header, rows = text_table(source, required)
    except ManifestError:
        if required is None:
            raise
        return None, source.base
    clips = os.path.join(source.base, "clips", "")
    is_common_voice = required is None and {"client_id", "path", "sentence"} <= set(header)
    return rows, clips if is_common_voice and (is_remote(clips) or os.path.isdir(clips)) else source.base


def json_manifest(source: Source, required: str | None) -> tuple[Rows | None, str]:
    """Return the rows of a JSON array, or of JSON lines with the keys of others; see manifest_file.manifest_rows.

    Raises:
        ManifestError: it is no JSON, and no extension says that it is.
    """
    if required is None and is_xml(source.begin()):
        return feed_rows(source), source.base
    number, line = next(source.lines(), (0, b"{" if required is None else b""))
    if required is not None:
        return json_rows(source) if f'{required}"'.encode() in line else None, source.base
    begin = line.lstrip()[:1]
    if begin == b"[":
        return array_rows(source), source.base
    if begin != b"{" and not source.name.lower().endswith(JSON_LINES.suffixes):
        problem = f"line {number} is {quote(line[:200].decode(errors='replace'))} and no JSON object"
        raise manifest_error(source.name, f"{problem}; {_instead(source.name, line)}")
    if AUDIO_KEY.encode() in line:
        if b'"shard_id"' not in line:
            return None, source.base
        return tarred_rows(source), source.base
    try:
        row = renamed(parse_json_line(line))
        is_row = AUDIO_KEY in row and ("text" in row or b'file_name"' in line)  # else a wrong key is a mistake
    except LineError:  # perhaps the first line of an object of many lines
        is_row = False
    if is_row:
        return json_rows(source), source.base
    is_json = source.name.lower().removesuffix(".gz").endswith(".json")
    return object_rows(source) if is_json else None, source.base


def text_table(source: Source, required: str | None) -> tuple[list[str], Rows]:
    """Return the columns and the rows of a CSV or TSV file. The header of a CSV file shows its delimiter: a comma, a
    semicolon, a tab or a bar.

    Args:
        required: column that the table must have; None takes any of COLUMNS that names a recording.

    Raises:
        ManifestError: no column names a recording.
    """
    first, records, delimiter = split_table(
        source, DELIMITERS[kind_of(source.name).name], lambda fields: names_recordings(fields, required)
    )
    header = [name.strip() for name in first]
    if required is None and not names_recordings(header, None) and (columns := _columns_without_header(header)):
        header, records = columns, chain([(1, first)], records)
    if not names_recordings(header, required):
        listed = ", ".join(quote(name) for name in header[:10]) or "none"
        raise manifest_error(
            source.name,
            f"line 1 names no column with the recordings: {listed}; add a header with `{AUDIO_KEY}` or `path`",
        )
    if repeated := [name for name in header if name and header.count(name) > 1]:
        raise manifest_error(source.name, f"line 1 names the column {quote(repeated[0])} twice; rename one of them")
    return header, _typed_rows(table_rows(header, records), column_keys(header), decimal_comma=delimiter == ";")


def split_table(
    source: Source, delimiters: str, is_header: Callable[[list[str]], bool]
) -> tuple[list[str], Records, str]:
    """Return the fields of the first line of a table, the records below it, and the delimiter: the one of `delimiters`
    that makes a header of the first line, and of these, the one that splits it into most fields.

    Raises:
        ManifestError: a line is too long.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _text_lines(source)
    first = next((line for _, line in lines if line.strip()), "")
    if re.fullmatch(r"\ufeff?sep=.\s*", first):  # a line for Excel, which finds the delimiter in it
        first = next(lines, (0, ""))[1]
    candidates = [(next(csv.reader([first], delimiter=separator), []), separator) for separator in delimiters]
    fields, delimiter = max(candidates, key=lambda candidate: (is_header(candidate[0]), len(candidate[0])))
    return fields, _tab_records(lines, len(fields)) if delimiter == "\t" else _csv_records(lines, delimiter), delimiter


def table_rows(header: Sequence[str], records: Records) -> Rows:
    """Yield the values of each record by their columns, without those of columns that have no name."""
    for number, record in records:
        if isinstance(record, str):
            yield number, record
        elif not any(map(str.strip, record)):  # spreadsheets write such rows at the end
            continue
        elif len(record) < len(header) or any(record[len(header) :]):
            problem = f"has {len(record):,} columns, and the header has {len(header):,}"
            yield number, f"{problem}; quote the values that hold a delimiter"
        else:
            yield number, {name: value for name, value in zip(header, record, strict=False) if name}


def _columns_without_header(fields: Sequence[str]) -> list[str] | None:
    """Return names for the columns of a table whose first line is a row: "a.wav,he said,x" → path, text, 3. The text is
    what follows the recording. None if no field, or the last one, is a recording."""
    at = next((index for index, field in enumerate(fields[:-1]) if is_recording(field.strip())), None)
    if at is None:
        return None
    names = [str(number) for number in range(1, len(fields) + 1)]
    names[at : at + 2] = [AUDIO_KEY, "text"]
    return names


def _text_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, line with its end)."""
    for number, raw in source.raw_lines():
        if isinstance(raw, LongLine):
            raise manifest_error(source.name, f"line {number} has {raw.num_bytes:,} bytes; write one row a line")
        # Some lines may end with a mere CR.
        yield from ((number, line) for line in io.StringIO(source.text(raw), newline=""))


def _csv_records(lines: Iterator[tuple[int, str]], delimiter: str) -> Records:
    """Yield the records of CSV. A quoted field may hold line ends."""
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
            yield begun, f"is not CSV: {error}"
            return
        if record:
            yield begun, record


def _tab_records(lines: Iterator[tuple[int, str]], width: int) -> Records:
    """Yield the records of a table with tabs.

    Some writers quote fields as in CSV (pandas), others never do (Common Voice): a quote that begins a field says
    nothing by itself. A line with as many fields as the header is one record.
    """
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) == width and (width > 1 or line.strip()):
            yield number, [_unquoted(field) for field in fields]
        elif line.strip():
            yield number, next(_csv_records(chain([(number, line)], lines), "\t"))[1]


def _unquoted(field: str) -> str:
    inner = field[1:-1]
    if len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return field


def _typed_rows(rows: Rows, keys: dict[str, str], decimal_comma: bool) -> Rows:
    """Yield rows with the keys of a manifest and the types of their values; `keys` has the column of each key."""
    for number, values in rows:
        if isinstance(values, str):
            yield number, values
            continue
        row = {key: values.pop(name) for key, name in keys.items()}
        if AUDIO_KEY in row:  # texts to speak need none
            row[AUDIO_KEY] = DATA_ROOT.sub("", row[AUDIO_KEY])
        fields = {key: _typed(key, value.strip(), decimal_comma) for key, value in row.items() if value.strip()}
        yield number, {AUDIO_KEY: "", **with_duration(fields), **values}


def _typed(key: str, text: str, decimal_comma: bool) -> Any:
    """Return the value of a cell. A text that is no number stays, so that it is refused with its value."""
    if key not in ("offset", "duration", "channel", END):
        return text
    try:
        number = float(text.replace(",", ".") if decimal_comma else text)
    except ValueError:
        return text
    if key == "channel" and number.is_integer():
        return int(number)
    return number if math.isfinite(number) else text


def object_rows(source: Source) -> Rows | None:
    """Return the rows of a JSON object that holds them: SpeechBrain's `{"id": {…}}`, or `{"data": [{…}]}`. None if it
    holds none, or is no JSON."""
    if source.size > MAX_LINE_BYTES:
        return None
    try:
        document = json.loads(b"".join(source.pieces()))
    except (ValueError, RecursionError):
        return None
    values = list(document.items()) if isinstance(document, dict) else []
    lists = [value for _, value in values if isinstance(value, list) and value and isinstance(value[0], dict)]
    rows = lists[0] if lists else [{"id": key, **value} for key, value in values if isinstance(value, dict)]
    lines = (json.dumps(row).encode() for row in rows)
    return enumerate(map(_json_row, lines), 1) if rows else None


def json_rows(source: Source, rename: bool = True) -> Rows:
    """Yield the rows of JSON lines.

    Args:
        rename: whether the keys of others, such as those of Hugging Face's metadata.jsonl, become those of a manifest.
    """
    for number, line in source.lines():
        yield number, _json_row(line, rename)


def _instead(name: str, line: bytes) -> str:
    """Return what to give in place of a file that is no manifest, by its name and its first line."""
    if line.startswith(PLAYLIST):
        return PLAYLIST_ADVICE
    if name.lower().endswith(_SUBTITLES):
        return f"subtitles are no recordings: give the recordings; to speak them: voxbatch speak {shlex.quote(name)}"
    return f"give a list of paths as {LIST_MARK}{name}, a table as .csv or .tsv, a manifest as JSON lines"


def array_rows(source: Source) -> Rows:
    """Yield the rows of a JSON array of objects. One object is held at a time, and the line that it ends in."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    decoder, text, number, last, next_try = json.JSONDecoder(), "", 1, "", 0
    for piece in chain(source.pieces(), [b""]):
        try:
            text += decode(piece, not piece)
        except UnicodeDecodeError:
            yield number, "is not UTF-8; save the file again as UTF-8"
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
            yield number, _json_row(text[at:end].replace("\n", " ").replace("\r", " ").encode())
            number, last, at = number + text.count("\n", at, end), "", end
        text = text[at:]
        next_try = 2 * len(text)  # a long object is not parsed again for each of its lines
        if len(text) > MAX_LINE_BYTES:
            break
    if text or last != "]":
        position = f"near {quote(text[:60])}" if text else "ends within the array"
        yield number, f"{position}: not an array of JSON objects; create the file again"


_BETWEEN = re.compile(r"[ \t\r\n,\[\]]*")


def _json_row(line: bytes, rename: bool = True) -> Row | str:
    try:
        row = parse_json_line(line)
        return renamed(row) if rename else row
    except LineError as error:
        return str(error)
