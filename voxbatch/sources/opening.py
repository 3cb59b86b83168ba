"""Open what a person gives as SOURCE: a manifest, or the recordings themselves.

A manifest is a JSON-lines file, plain or gzip, local or at an address, or standard input. The manifests of others are
converted, see `tables` and `kaldi`. Recordings are given as `named` describes. An unnamed temporary file keeps what
cannot be rewound (standard input, a pipe), what is remote or converted, and what may change between passes (a folder's
listing).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import BinaryIO

from voxbatch.errors import ConfigError
from voxbatch.manifest.path_policy import is_page
from voxbatch.manifest.recording_path import is_recording
from voxbatch.manifest.source import SNIFFED_BYTES, Source, is_binary, manifest_error
from voxbatch.sources.kinds import KINDS, SUFFIXES
from voxbatch.sources.named import is_list, is_pattern, named_source
from voxbatch.storage import DEFAULT_STORES, WEB_PAGE, Stores, is_remote, redacted
from voxbatch.storage.address import HTTP_SCHEMES, is_folder, scheme_of
from voxbatch.storage.errors import ObjectNotFound

_TAR = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_UNPACKED_BY = {**dict.fromkeys(_TAR, "mkdir calls && tar -xf {} -C calls"), ".zip": "unzip {} -d calls"}
"""The command that unpacks an archive, by the end of its name."""
_DOCUMENTS = (".docx", ".doc", ".odt", ".rtf", ".pdf", ".pptx", ".ppt", ".epub", ".html", ".htm")
"""Extensions of documents that people have beside their recordings. No manifest has one of them."""
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")


def open_source(
    spec: str | os.PathLike[str] | Sequence[str],
    stdin: BinaryIO | None = None,
    stores: Stores = DEFAULT_STORES,
    include: Sequence[str] = (),
) -> Source:
    """Open a manifest (.jsonl, .jsonl.gz; gzip is detected by its content), "-" for standard input, or the recordings
    that are named.

    A manifest may be at a gs://, s3://, hf:// or http(s):// address. Relative paths resolve against the manifest's
    folder; for standard input and pipes, they resolve against the current directory.

    Args:
        spec: path, address, pattern, list, or "-"; or several that name recordings.
        stdin: stream to read for "-"; None is the process's standard input.
        include: patterns that choose among the recordings, see recording_path.is_included.

    Raises:
        ManifestError: something that is named does not exist, or holds nothing.
        ConfigError: `include` is given for a manifest.
        StorageError: a store cannot be read, or the temporary file cannot be written.
    """
    names = [os.fspath(spec)] if isinstance(spec, str | os.PathLike) else list(spec)
    stdin = stdin or sys.stdin.buffer
    names = [_pinned(name, stores) for name in names]
    for name in names:
        _refuse_unreadable(name, is_alone=len(names) == 1)
    if len(names) == 1 and not _names_recordings(names[0]):
        from voxbatch.sources.manifest_file import open_manifest

        _refuse_include(names[0], include)
        return open_manifest(names[0], stdin, stores)
    if len(names) == 1 and os.path.isdir(names[0]):
        from voxbatch.sources.manifest_file import described_folder

        if described := described_folder(names[0], include):
            return described
    if not any(map(is_recording, names)):
        from voxbatch.sources.shards import find_shards, joined_shards

        if shards := find_shards(names, stores):
            _refuse_include(names[0], include)
            return joined_shards(shards, stores)
    for name in names if len(names) > 1 else ():
        if name == "-" or name.lower().endswith(tuple(suffix for kind in KINDS for suffix in kind.certain)):
            kind = "standard input" if name == "-" else "a manifest"
            advice = "a manifest is given alone, or with others of its kind; recordings go into a run of their own"
            raise manifest_error(redacted(name), f"is {kind}, and {advice}")
    return named_source(names, stores, include, stdin)


def _pinned(name: str, stores: Stores) -> str:
    """Return a data set of the hub at the commit that it has now. Other names stay."""
    if scheme_of(name) != "hf":
        return name
    from voxbatch.storage import connect  # the clients, of which a local list needs none

    try:
        return connect.pinned(name, stores.options)
    except (ValueError, ObjectNotFound) as error:
        raise manifest_error(name, str(error)) from error


def _refuse_unreadable(name: str, is_alone: bool) -> None:
    """Refuse an archive, a spreadsheet, a page and a document with what to do. A document among several files is left
    out with a note."""
    if is_page(name):
        raise manifest_error(redacted(name), WEB_PAGE)
    shown = redacted(name, "")
    if shown.lower().endswith(".tar") and scheme_of(name) in HTTP_SCHEMES:
        file = os.path.basename(shown)
        advice = f"download it, and give the file: curl -O {redacted(name)} && voxbatch run {file}"
        raise manifest_error(redacted(name), f"is an archive on a web server; {advice}")
    commands = [command for suffix, command in _UNPACKED_BY.items() if shown.lower().endswith(suffix)]
    if commands and not os.path.isdir(name):
        file = os.path.basename(shown) if is_remote(name) else shlex.quote(shown)
        command = f"{commands[0].format(file)} && voxbatch run calls/"
        fetch = "download it, " if is_remote(name) else ""
        raise manifest_error(redacted(name), f"is an archive; {fetch}unpack it, and give the folder: {command}")
    if shown.lower().endswith(_SPREADSHEETS):
        raise manifest_error(redacted(name), "is a spreadsheet; save it as CSV (UTF-8), and give that")
    if is_alone and shown.lower().endswith(_DOCUMENTS) and not os.path.isdir(name):
        advice = "give recordings, a folder of them, or a manifest (.jsonl, .csv, .tsv or .parquet)"
        raise manifest_error(redacted(name), f"is a document, and no recording; {advice}")


def _names_recordings(name: str) -> bool:
    if is_list(name) or is_pattern(name):
        return True
    if is_remote(name):
        return is_recording(name) or is_folder(name)
    return name != "-" and (os.path.isdir(name) or is_recording(name) or _is_binary(name))


def _is_binary(name: str) -> bool:
    """Return whether a file without an extension that tells is not a text: a recording, whose extension is unknown."""
    if name.lower().endswith(SUFFIXES) or not os.path.isfile(name):
        return False
    try:
        with open(name, "rb") as file:
            return is_binary(file.read(SNIFFED_BYTES))
    except OSError:
        return False


def _refuse_include(name: str, include: Sequence[str]) -> None:
    if include:
        globs = " ".join(f"--include {glob!r}" for glob in include)
        raise ConfigError(f"{globs} selects recordings of a folder, and {redacted(name)} is not a folder; leave it out")
