"""Open what a person gives as SOURCE: a manifest, or the recordings themselves.

A manifest is a JSON-lines file, plain or gzip, local or at an address, or standard input. The manifests of others are
converted, see `tables` and `kaldi`. Recordings are given as `named` describes. An unnamed temporary file keeps what
cannot be rewound (standard input, a pipe), what is remote or converted, and what may change between passes (a folder's
listing).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import chain
from typing import BinaryIO

from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest import tables
from voxbatch.manifest.kaldi import WAV_SCP, kaldi_rows, recordings_folder
from voxbatch.manifest.manifest_file import (
    JSON_SUFFIXES,
    METADATA,
    converted,
    file_beside,
    foreign_rows,
    open_file,
    temporary_source,
)
from voxbatch.manifest.named import is_list, is_pattern, is_recording, named_source
from voxbatch.manifest.shards import find_shards, joined_shards
from voxbatch.manifest.source import GZIP_MAGIC, UTF16_BOMS, Source, manifest_error
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, redacted
from voxbatch.storage.address import is_folder

_FILE_NAME = "file_name"
"""Column that such a file must have."""
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
    if len(names) == 1 and not _names_recordings(names[0]):
        return _open_manifest(names[0], stdin, store_options, include)
    if len(names) == 1 and os.path.isdir(names[0]) and (described := _described_folder(names[0], include)):
        return described
    if shards := find_shards(names, store_options):
        _refuse_include(names[0], include)
        return joined_shards(shards, store_options)
    if len(names) > 1:
        _refuse_manifests(names)
    return named_source(names, store_options, include, stdin)


def _names_recordings(name: str) -> bool:
    if is_list(name) or is_pattern(name):
        return True
    if is_remote(name):
        return is_recording(name) or is_folder(name)
    return name != "-" and (os.path.isdir(name) or is_recording(name) or _is_binary(name))


def _is_binary(name: str) -> bool:
    """Return whether a file without an extension that tells is not a text: a recording, whose extension is unknown."""
    if name.lower().endswith((*JSON_SUFFIXES, *_TABLE_SUFFIXES)) or not os.path.isfile(name):
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
            advice = "a manifest is given alone, or with others of its kind; recordings go into a run of their own"
            raise manifest_error(redacted(name), f"is {what}, and {advice}")


def _open_manifest(name: str, stdin: BinaryIO, store_options: StoreOptions, include: Sequence[str]) -> Source:
    _refuse_include(name, include)
    if name == "-":
        return temporary_source("standard input", stdin)
    source = open_file(name, store_options)
    try:
        rows, base = foreign_rows(source, name, store_options)
        if rows is None:
            return source
        with source:
            return converted(source, rows, base)
    except BaseException:
        source.close()
        raise


def _refuse_include(name: str, include: Sequence[str]) -> None:
    if include:
        globs = " ".join(f"--include {glob!r}" for glob in include)
        raise ConfigError(f"{globs} selects recordings of a folder, and {redacted(name)} is not a folder; leave it out")


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
                return converted(source, rows, base, include, folder, note)
    return None


def _described_rows(source: Source, folder: str, name: str) -> tuple[tables.Rows | None, str]:
    if name == WAV_SCP:
        return kaldi_rows(source, lambda beside: file_beside(folder, beside, DEFAULT_STORE_OPTIONS)), recordings_folder(
            source
        )
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
