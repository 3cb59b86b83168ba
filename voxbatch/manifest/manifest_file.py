"""Read one file that is a manifest: JSON lines with our keys as they are, and the manifests of others as JSON lines.

`opening` decides which file it is. `shards` joins several of them.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest import tables
from voxbatch.manifest.bad_lines import BadLines
from voxbatch.manifest.folder import is_included
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.manifest.kaldi import kaldi_rows, recordings_folder
from voxbatch.manifest.named import LIST_MARK, missing
from voxbatch.manifest.source import CHANGED_ADVICE, GZIP_MAGIC, Source, manifest_error
from voxbatch.storage import StoreOptions, is_remote, open_remote, redacted
from voxbatch.storage.address import folder_of, normalized
from voxbatch.storage.objects import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

METADATA = "metadata"
"""Stem of the file that describes an audio folder of Hugging Face's datasets."""
JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


def open_file(name: str, store_options: StoreOptions) -> Source:
    """Open a local file, a pipe, or the file at an address, as it is.

    Raises:
        ManifestError: it does not exist, cannot be opened, or is not gzip though its name says so.
        StorageError: its place does not answer, or the temporary file cannot be written.
    """
    source = _remote_manifest(name, store_options) if is_remote(name) else _local_manifest(name)
    if source.name.lower().endswith(".gz") and os.pread(source.file.fileno(), 2, 0) != GZIP_MAGIC:
        source.close()
        what = "is not gzip, though its name says so; compress it, or remove .gz from the name"
        raise manifest_error(source.name, what)
    return source


def foreign_rows(source: Source, name: str, store_options: StoreOptions) -> tuple[tables.Rows | None, str]:
    """Return the rows of a manifest that is not in JSON lines with our keys, or None; and the folder of its paths."""
    base, file_name = source.base, posixpath.basename(redacted(name, "")).lower().removesuffix(".gz")
    suffix = os.path.splitext(file_name)[1]
    if suffix in (".csv", ".tsv"):
        header, rows = tables.text_table(source, suffix)
        clips = os.path.join(base, "clips", "")
        is_common_voice = {"client_id", "path", "sentence"} <= set(header) and (is_remote(base) or os.path.isdir(clips))
        return rows, clips if is_common_voice else base
    if suffix == ".parquet":
        return tables.parquet_rows(source.name, source.file), base
    if suffix == ".scp":
        return kaldi_rows(source, lambda beside: file_beside(base, beside, store_options)), recordings_folder(source)
    number, line = next(source.lines(), (0, b"{"))
    begin = line.lstrip()[:1]
    if begin == b"[":
        return tables.array_rows(source), base
    if begin != b"{" and not source.name.lower().endswith(JSON_SUFFIXES):
        seen = f"line {number} is {quote(line[:200].decode(errors='replace'))} and no JSON object"
        advice = f"give a list of paths as {LIST_MARK}{source.name}, a table as .csv or .tsv, a manifest as JSON lines"
        raise manifest_error(source.name, f"{seen}; {advice}")
    if file_name == METADATA + ".jsonl" and b'"file_name"' in line and AUDIO_KEY.encode() not in line:
        return tables.json_rows(source), base
    return None, base


def file_beside(base: str, name: str, store_options: StoreOptions) -> Source | None:
    """Open a file in the same folder, or address of a folder; None if there is none."""
    place = os.path.join(base, name)
    try:
        return Source(place, base, open_remote(place, store_options) if is_remote(place) else open(place, "rb"))
    except (FileNotFoundError, ObjectNotFound):
        return None
    except OSError as error:
        raise manifest_error(place, f"cannot be opened: {error.strerror}") from error


def converted(
    source: Source, rows: tables.Rows, base: str, include: Sequence[str] = (), name: str = "", note: str = ""
) -> Source:
    """Return the rows as JSON lines, each with the number of its line in `source`.

    Raises:
        ManifestError: rows cannot be used, or the file changed meanwhile.
        StorageError: the temporary file cannot be written.
    """
    bad = BadLines()
    file = temporary_file(source.name, json_lines(rows, bad, include))
    if source.has_changed():
        file.close()
        raise manifest_error(source.name, f"changed while it was being read; {CHANGED_ADVICE}")
    if bad.total:
        file.close()
        raise ManifestError(source.name, bad.first, bad.total)
    return Source(name or source.name, base, file, note=note)


def json_lines(rows: tables.Rows, bad: BadLines, include: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the rows as JSON lines, with blank lines between them, so that each has the number of its row. Those that
    cannot be used are added to `bad`."""
    written = 0
    for number, row in rows:
        if isinstance(row, BadLine):
            bad.add(row.line, row.reason)
        elif is_included(str(row.get(AUDIO_KEY)), include):
            yield b"\n" * (number - 1 - written)
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
            written = max(number, written + 1)


def _local_manifest(name: str) -> Source:
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return temporary_source(name, file)


def _remote_manifest(spec: str, store_options: StoreOptions) -> Source:
    name = redacted(spec)
    try:
        uri = normalized(spec)
        return Source(name, folder_of(uri), open_remote(uri, store_options))
    except ValueError as error:
        raise manifest_error(name, f"cannot be opened: {error}") from error
    except ObjectNotFound:
        what = "give a .jsonl or .jsonl.gz manifest; the address of a folder in a bucket ends in /"
        raise manifest_error(name, f"does not exist; {what}") from None


def _open_file(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except FileNotFoundError:
        if "://" not in name:
            raise manifest_error(name, missing(name)) from None
        what = "give a path, or a gs://, s3:// or http(s):// address"
        raise manifest_error(name, f"is of an unsupported kind; {what}") from None
    except OSError as error:
        raise manifest_error(name, f"cannot be opened: {error.strerror}; check its permissions and its path") from error


def temporary_source(name: str, stream: BinaryIO) -> Source:
    """Return the Source of a stream that cannot be read twice."""
    return Source(name, os.curdir, temporary_file(name, iter(lambda: stream.read(1 << 20), b"")))
