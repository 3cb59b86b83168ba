"""Open what a person gives as SOURCE: a manifest, or the recordings themselves.

A manifest is a JSON-lines file, plain or gzip, local or at an address, or standard input. Recordings are given as
`named` describes. An unnamed temporary file keeps what cannot be rewound (standard input, a pipe), what is remote, and
what may change between passes (a folder's listing).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import BinaryIO

from voxbatch.errors import ConfigError
from voxbatch.manifest.json_line import quote
from voxbatch.manifest.named import LIST_MARK, is_list, is_pattern, is_recording, missing, named_source
from voxbatch.manifest.source import GZIP_MAGIC, UTF16_BOMS, Source, manifest_error
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, open_remote, redacted
from voxbatch.storage.address import folder_of, is_folder, normalized
from voxbatch.storage.objects import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

_JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
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
    return named_source(names, store_options, include, stdin)


def _names_recordings(name: str) -> bool:
    if is_list(name) or is_pattern(name):
        return True
    if is_remote(name):
        return is_recording(name) or is_folder(name)
    return name != "-" and (os.path.isdir(name) or is_recording(name) or _is_binary(name))


def _is_binary(name: str) -> bool:
    """Return whether a file without an extension that tells is not a text: a recording, whose extension is unknown."""
    if name.lower().endswith(_JSON_SUFFIXES) or not os.path.isfile(name):
        return False
    try:
        with open(name, "rb") as file:
            begin = file.read(_SNIFFED_BYTES)
    except OSError:
        return False
    return b"\0" in begin and not begin.startswith((GZIP_MAGIC, *UTF16_BOMS))


def _refuse_manifests(names: Sequence[str]) -> None:
    for name in names:
        if name == "-" or name.lower().endswith((".jsonl", ".jsonl.gz")):
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
        _refuse_other_texts(source)
    except BaseException:
        source.close()
        raise
    return source


def _local_manifest(name: str) -> Source:
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _temporary_source(name, file)


def _refuse_other_texts(source: Source) -> None:
    """Refuse a text whose name does not say that it is JSON, and that does not begin as JSON."""
    if source.name.lower().endswith(_JSON_SUFFIXES):
        return
    number, line = next(source.lines(), (0, b"{"))
    if not line.lstrip().startswith((b"{", b"[")):
        seen = f"line {number} is {quote(line[:200].decode(errors='replace'))} and no JSON object"
        advice = f"give a list of paths as {LIST_MARK}{source.name}, and a manifest as JSON lines"
        raise manifest_error(source.name, f"{seen}; {advice}")


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
