"""Read one file that is a manifest: JSON lines with our keys as they are, and the manifests of others as JSON lines.

`opening` decides which file it is. `shards` joins several of them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import BinaryIO

from voxbatch.errors import ManifestError
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import AUDIO_KEY, LineError, parse_json_line, quote
from voxbatch.manifest.recording_path import is_included, missing
from voxbatch.manifest.source import (
    CHANGED_ADVICE,
    GZIP_MAGIC,
    BadLines,
    Source,
    is_binary,
    manifest_error,
)
from voxbatch.sources.columns import COLUMNS, Rows
from voxbatch.sources.kinds import KINDS, PARQUET, TAR, is_text, kind_of
from voxbatch.storage import WEB_PAGE, Stores, is_remote, is_web_page, redacted
from voxbatch.storage.address import folder_of, is_bucket_address, normalized
from voxbatch.storage.errors import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

_FILE_NAME = "file_name"
"""Column that Hugging Face's metadata of an audio folder must have."""
MIN_WORDS = 2
"""Words of a value from which it seems to be a text. Most other values have one."""


def open_manifest(name: str, stdin: BinaryIO, stores: Stores) -> Source:
    """Open a manifest by its path or address; "-" is `stdin`.

    Raises:
        ManifestError, StorageError: see `open_file` and `manifest_rows`.
    """
    if name == "-":
        source = _temporary_source("standard input", stdin)
        if is_binary(source.begin()):
            source.close()
            advice = "give the file itself, or write one: COMMAND > voxbatch-input && voxbatch run voxbatch-input"
            raise manifest_error("standard input", f"is a recording or other binary data, not a manifest; {advice}")
        return source
    source = open_file(name, stores)
    try:
        rows, base = manifest_rows(source)
        if rows is not None:
            with source:
                source = converted(source, rows, base, note=source.note)
        source.note = "; ".join(filter(None, (source.note, _reference_note(source))))
        return source
    except BaseException:
        source.close()
        raise


def _reference_note(source: Source) -> str:
    """Return a sentence about a key of the first row that seems to be the reference and is not `text`, or ""."""
    try:
        row = parse_json_line(next(source.lines(), (0, b"{}"))[1])
    except LineError:
        return ""  # the survey refuses it
    texts = {key: value for key, value in row.items() if isinstance(value, str) and key not in COLUMNS}
    similar = [
        key
        for key, value in texts.items()
        if key.lower() in COLUMNS["text"] or (len(value.split()) >= MIN_WORDS and not key.startswith("pred_text"))
    ]
    if row.get("text") is not None or AUDIO_KEY not in row or "prompt" in row or not similar:
        return ""
    return f"no reference: the rows have no `text`; if {quote(similar[0])} is the reference, rename it to `text`"


def described_folder(folder: str, include: Sequence[str]) -> Source | None:
    """Return the Source of a folder that a file at its top describes: Hugging Face's metadata, or Kaldi's wav.scp."""
    for name in sorted(kind.folder_file for kind in KINDS if kind.folder_file):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        with Source(path, folder, open(path, "rb")) as source:
            rows, base = manifest_rows(source, _FILE_NAME)
            if rows is not None:
                note = f"{path} names the recordings; other files of the folder are left out"
                return converted(source, rows, base, include, folder, note)
    return None


def described_texts(path: str, decoder: TextDecoder) -> dict[str, str] | None:
    """Return the references in a table of recordings, by the paths of the recordings below its folder; None if it is no
    such table. Rows that cannot be used are left out.

    Raises:
        ConfigError: it is a Parquet file, and pyarrow is missing.
    """
    folder = os.path.dirname(path)
    try:
        with Source(path, folder, open(path, "rb"), decoder=decoder) as source:
            required = _FILE_NAME if os.path.basename(path).lower().startswith("metadata.") else None
            rows, base = manifest_rows(source, required)
            if rows is None:
                return None
            return {
                os.path.relpath(os.path.join(base, str(row.get(AUDIO_KEY))), folder): str(row["text"])
                for _, row in rows
                if isinstance(row, dict) and isinstance(row.get("text"), str)
            }
    except (ManifestError, OSError):
        return None


def open_file(name: str, stores: Stores) -> Source:
    """Open a local file, a pipe, or the file at an address, as it is.

    Raises:
        ManifestError: it does not exist, cannot be opened, or is not gzip though its name says so.
        StorageError: its place does not answer, or the temporary file cannot be written.
    """
    source = _remote_manifest(name, stores) if is_remote(name) else _local_manifest(name)
    if source.name.lower().endswith(".gz") and os.pread(source.file.fileno(), 2, 0) != GZIP_MAGIC:
        source.close()
        reason = "is not gzip, though its name says so; compress it, or remove .gz from the name"
        raise manifest_error(source.name, reason)
    return source


def manifest_rows(source: Source, required: str | None = None) -> tuple[Rows | None, str]:
    """Return the rows of a manifest that is not in JSON lines with our keys, or None; and the folder of its paths.

    Args:
        required: key or column that the rows must have. Without it, there are no rows; Kaldi's files need none.

    Raises:
        ManifestError: it cannot be read.
    """
    read = resolve_name(f"voxbatch.sources.{kind_of(source.name).rows}")
    rows: tuple[Rows | None, str] = read(source, required)
    return rows


def file_beside(manifest: Source, name: str) -> Source | None:
    """Open a file in the same folder, or address of a folder; None if there is none. It shares the decoder and the
    stores. An archive in a bucket is without its recordings."""
    place = os.path.join(manifest.base, name)
    try:
        return Source(
            place,
            manifest.base,
            _open_remote(place, manifest.stores) if is_remote(place) else open(place, "rb"),
            decoder=manifest.decoder,
            stores=manifest.stores,
        )
    except (FileNotFoundError, ObjectNotFound):
        return None
    except OSError as error:
        raise manifest_error(place, f"cannot be opened: {error.strerror}") from error


def converted(
    source: Source, rows: Rows, base: str, include: Sequence[str] = (), name: str = "", note: str = ""
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
    note = "; ".join(filter(None, (note, source.decoder.note())))
    return Source(name or source.name, base, file, note=note)


def json_lines(rows: Rows, bad: BadLines, include: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the rows as JSON lines, with blank lines between them, so that each has the number of its row. Those that
    cannot be used are added to `bad`."""
    written = 0
    for number, row in rows:
        if isinstance(row, str):
            bad.add(number, row)
        elif is_included(str(row.get(AUDIO_KEY)), include):
            yield b"\n" * (number - 1 - written)
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
            written = max(number, written + 1)


def _local_manifest(name: str) -> Source:
    try:
        file = open(name, "rb")  # noqa: SIM115 -- the Source closes it
    except FileNotFoundError:
        if "://" not in name:
            raise manifest_error(name, missing(name)) from None
        advice = "give a path, or a gs://, s3:// or http(s):// address"
        raise manifest_error(name, f"is of an unsupported kind; {advice}") from None
    except OSError as error:
        raise manifest_error(name, f"cannot be opened: {error.strerror}; check its permissions and its path") from error
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _temporary_source(name, file)


def _remote_manifest(spec: str, stores: Stores) -> Source:
    name = redacted(spec)
    try:
        uri = normalized(spec)
        source = Source(name, folder_of(uri), _open_remote(uri, stores), stores=stores)
        if is_web_page(source.begin()):
            source.close()
            raise manifest_error(name, WEB_PAGE)
        return source
    except ValueError as error:
        raise manifest_error(name, f"cannot be opened: {error}") from error
    except ObjectNotFound:
        advice = "give a .jsonl or .jsonl.gz manifest; the address of a folder in a bucket ends in /"
        raise manifest_error(name, f"does not exist; {advice}") from None


def _open_remote(uri: str, stores: Stores) -> BinaryIO:
    """Return the file at an address; in a bucket, an archive without its recordings."""
    kind = kind_of(uri) if is_bucket_address(uri) else None
    if kind is TAR:
        from voxbatch.storage import tar_members

        with stores.ranges(uri) as (read, _):
            return tar_members.open_listing(uri, is_text, read)
    if kind is PARQUET and find_spec("pyarrow"):
        from voxbatch.storage import parquet_members

        with stores.ranges(uri, of_one_revision=True) as (read, file):
            return parquet_members.open_listing(uri, read, file.size)
    return stores.open(uri)


def _temporary_source(name: str, stream: BinaryIO) -> Source:
    """Return the Source of a stream that cannot be read twice."""
    return Source(name, os.curdir, temporary_file(name, iter(lambda: stream.read(1 << 20), b"")))
