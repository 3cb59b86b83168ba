"""Open what a person gives as SOURCE: a manifest, or the recordings themselves.

A manifest is a JSON-lines file, plain or gzip, local or at an address, or standard input. The manifests of others are
converted, see `tables` and `kaldi`. Recordings are given as `named` describes. An unnamed temporary file keeps what
cannot be rewound (standard input, a pipe), what is remote or converted, and what may change between passes (a folder's
listing).
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO

from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.manifest import tables
from voxbatch.manifest.folder import is_included
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.manifest.kaldi import WAV_SCP, kaldi_rows, recordings_folder
from voxbatch.manifest.named import LIST_MARK, is_list, is_pattern, is_recording, missing, named_source
from voxbatch.manifest.source import CHANGED_ADVICE, GZIP_MAGIC, UTF16_BOMS, Source, manifest_error
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, open_remote, redacted
from voxbatch.storage.address import folder_of, is_folder, normalized
from voxbatch.storage.objects import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

METADATA = "metadata"
"""Stem of the file that describes an audio folder of Hugging Face's datasets."""
_FILE_NAME = "file_name"
"""Column that such a file must have."""
_JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
_TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".scp")
_SNIFFED_BYTES = 4096
"""First bytes of a file that show whether it is binary."""


def open_source(
    spec: str | os.PathLike[str] | Sequence[str],
    stdin: BinaryIO | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
    include: Sequence[str] = (),
) -> Source:
    """Open a manifest (.jsonl, .jsonl.gz; gzip is detected by its content), "-" for standard input, or the recordings
    that are named.

    A manifest may be at a gs://, s3:// or http(s):// address. Relative paths resolve against the manifest's folder; for
    standard input and pipes, they resolve against the current directory.

    Args:
        spec: path, address, pattern, list, or "-"; or several that name recordings.
        stdin: stream to read for "-"; None is the process's standard input.
        store_options: credentials and settings of the stores.
        include: patterns that choose among the recordings, see folder.is_included.

    Raises:
        ManifestError: something that is named does not exist, or holds nothing.
        ConfigError: `include` is given for a manifest.
        StorageError: a store cannot be read, or the temporary file cannot be written.
    """
    names = [os.fspath(spec)] if isinstance(spec, str | os.PathLike) else list(spec)
    stdin = stdin or sys.stdin.buffer
    if len(names) > 1:
        _refuse_manifests(names)
    elif not _names_recordings(names[0]):
        return _open_manifest(names[0], stdin, store_options, include)
    elif os.path.isdir(names[0]) and (described := _described_folder(names[0], include)):
        return described
    return named_source(names, store_options, include, stdin)


def _names_recordings(name: str) -> bool:
    if is_list(name) or is_pattern(name):
        return True
    if is_remote(name):
        return is_recording(name) or is_folder(name)
    return name != "-" and (os.path.isdir(name) or is_recording(name) or _is_binary(name))


def _is_binary(name: str) -> bool:
    """Return whether a file without an extension that tells is not a text: a recording, whose extension is unknown."""
    if name.lower().endswith((*_JSON_SUFFIXES, *_TABLE_SUFFIXES)) or not os.path.isfile(name):
        return False
    try:
        with open(name, "rb") as file:
            begin = file.read(_SNIFFED_BYTES)
    except OSError:
        return False
    return b"\0" in begin and not begin.startswith((GZIP_MAGIC, *UTF16_BOMS))


def _refuse_manifests(names: Sequence[str]) -> None:
    for name in names:
        if name == "-" or name.lower().endswith((".jsonl", ".jsonl.gz", ".parquet", ".scp")):
            what = "standard input" if name == "-" else "a manifest"
            raise manifest_error(
                redacted(name), f"is {what}, and a manifest is given alone; join manifests into one file"
            )


def _open_manifest(name: str, stdin: BinaryIO, store_options: StoreOptions, include: Sequence[str]) -> Source:
    if include:
        globs = " ".join(f"--include {glob!r}" for glob in include)
        raise ConfigError(f"{globs} selects recordings of a folder, and {redacted(name)} is not a folder; leave it out")
    if name == "-":
        return _temporary_source("standard input", stdin)
    source = _remote_manifest(name, store_options) if is_remote(name) else _local_manifest(name)
    try:
        if source.name.lower().endswith(".gz") and os.pread(source.file.fileno(), 2, 0) != GZIP_MAGIC:
            what = "is not gzip, though its name says so; compress it, or remove .gz from the name"
            raise manifest_error(source.name, what)
        rows, base = _foreign_rows(source, name, store_options)
        if rows is None:
            return source
        with source:
            return _converted(source, rows, base)
    except BaseException:
        source.close()
        raise


def _foreign_rows(source: Source, name: str, store_options: StoreOptions) -> tuple[tables.Rows | None, str]:
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
        return kaldi_rows(source, lambda beside: _file_beside(base, beside, store_options)), recordings_folder(source)
    number, line = next(source.lines(), (0, b"{"))
    begin = line.lstrip()[:1]
    if begin == b"[":
        return tables.array_rows(source), base
    if begin != b"{" and not source.name.lower().endswith(_JSON_SUFFIXES):
        seen = f"line {number} is {quote(line[:200].decode(errors='replace'))} and no JSON object"
        advice = f"give a list of paths as {LIST_MARK}{source.name}, a table as .csv or .tsv, a manifest as JSON lines"
        raise manifest_error(source.name, f"{seen}; {advice}")
    if file_name == METADATA + ".jsonl" and b'"file_name"' in line and AUDIO_KEY.encode() not in line:
        return tables.json_rows(source), base
    return None, base


def _file_beside(base: str, name: str, store_options: StoreOptions) -> Source | None:
    """Open a file in the same folder, or address of a folder; None if there is none."""
    place = os.path.join(base, name)
    try:
        return Source(place, base, open_remote(place, store_options) if is_remote(place) else open(place, "rb"))
    except (FileNotFoundError, ObjectNotFound):
        return None
    except OSError as error:
        raise manifest_error(place, f"cannot be opened: {error.strerror}") from error


def _converted(
    source: Source, rows: tables.Rows, base: str, include: Sequence[str] = (), name: str = "", note: str = ""
) -> Source:
    """Return the rows as JSON lines, each with the number of its line in `source`.

    Raises:
        ManifestError: rows cannot be used, or the file changed meanwhile.
        StorageError: the temporary file cannot be written.
    """
    problems: list[BadLine] = []

    def blocks() -> Iterator[bytes]:
        written = 0
        for number, row in rows:
            if isinstance(row, BadLine):
                problems.append(row)
            elif is_included(str(row.get(AUDIO_KEY)), include):
                yield b"\n" * (number - 1 - written)
                yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
                written = max(number, written + 1)

    file = temporary_file(source.name, blocks())
    if source.has_changed():
        problems = [BadLine(0, f"changed while it was being read; {CHANGED_ADVICE}")]
    if problems:
        file.close()
        raise ManifestError(source.name, problems[: ManifestError.LIMIT], len(problems))
    return Source(name or source.name, base, file, note=note)


def _described_folder(folder: str, include: Sequence[str]) -> Source | None:
    """Return the Source of a folder that a file at its top describes: Hugging Face's metadata, or Kaldi's wav.scp."""
    for name in (METADATA + ".csv", METADATA + ".jsonl", METADATA + ".parquet", WAV_SCP):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        with Source(path, folder, open(path, "rb")) as source:
            rows, base = _described_rows(source, folder, name)
            if rows is not None:
                note = f"{path} names the recordings; other files of the folder are left out"
                return _converted(source, rows, base, include, folder, note)
    return None


def _described_rows(source: Source, folder: str, name: str) -> tuple[tables.Rows | None, str]:
    if name == WAV_SCP:
        return kaldi_rows(
            source, lambda beside: _file_beside(folder, beside, DEFAULT_STORE_OPTIONS)
        ), recordings_folder(source)
    try:
        if name.endswith(".csv"):
            return tables.text_table(source, ".csv", _FILE_NAME)[1], folder
        if name.endswith(".parquet"):
            rows = tables.parquet_rows(source.name, source.file, _FILE_NAME)
            return chain([next(rows)], rows), folder
    except (ManifestError, StopIteration):  # a file of that name, and not Hugging Face's
        return None, folder
    _, line = next(source.lines(), (0, b""))
    return (tables.json_rows(source) if b'"file_name"' in line else None), folder


def _local_manifest(name: str) -> Source:
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _temporary_source(name, file)


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


def _temporary_source(name: str, stream: BinaryIO) -> Source:
    return Source(name, os.curdir, temporary_file(name, iter(lambda: stream.read(1 << 20), b"")))
