"""List the kinds of files that are a manifest.

To add a kind, write the function that gives the rows of a file, and a line in KINDS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from voxbatch.manifest.recording_path import RECORDING_SUFFIXES, is_recording
from voxbatch.storage import redacted


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that is a manifest."""

    name: str
    suffixes: tuple[str, ...]
    """Extensions of its files, in lower case."""
    rows: str
    """Module of this package, and its function that returns the rows of a file; see `manifest_file.manifest_rows`.
    `pkgutil.resolve_name` imports it at its first use."""
    certain: tuple[str, ...] = ()
    """Extensions, among `suffixes`, that no other file beside recordings has."""
    folder_file: str = ""
    """Name of the file that describes the folder that it is in, or ""."""
    has_shards: bool = True
    """True if many files of the kind may be one manifest."""


JSON_LINES = FileKind(
    "JSON lines", (".jsonl", ".jsonl.gz", ".json", ".json.gz"), "tables:json_manifest", (".jsonl", ".jsonl.gz"),
    "metadata.jsonl",
)  # fmt: skip
TAR = FileKind("tar", (".tar",), "tars:tar_manifest", (".tar",))
PARQUET = FileKind("Parquet", (".parquet",), "parquet:parquet_manifest", (".parquet",), "metadata.parquet")
KINDS = (
    PARQUET,
    JSON_LINES,
    FileKind("CSV", (".csv", ".csv.gz"), "tables:text_manifest", folder_file="metadata.csv"),
    FileKind("TSV", (".tsv", ".tsv.gz"), "tables:text_manifest"),
    TAR,
    FileKind("Kaldi", (".scp",), "kaldi:scp_manifest", (".scp",), "wav.scp", has_shards=False),
)
"""All kinds. The metadata files are those of the audio folders of Hugging Face's datasets."""
SUFFIXES = tuple(suffix for kind in KINDS for suffix in kind.suffixes)
_TEXT_SUFFIXES = (".json", ".txt")
_BARE_SUFFIXES = (".txt", *(suffix for suffix in SUFFIXES if not suffix.endswith(".gz")))
_SUFFIX = re.compile(rf"({'|'.join(map(re.escape, _BARE_SUFFIXES))})?(\.gz)?$", re.IGNORECASE)


def kind_of(name: str) -> FileKind:
    """Return the kind of a file by its name or its address. A file with another extension is read as JSON lines."""
    suffix = os.path.splitext(redacted(name, "").lower().removesuffix(".gz"))[1]
    return next((kind for kind in KINDS if suffix in kind.suffixes), JSON_LINES)


def is_text(name: str) -> bool:
    """Return whether the bytes of a file in a tar archive are needed to list it."""
    return name.lower().endswith(_TEXT_SUFFIXES)


def names_recordings(source: str | Sequence[str]) -> bool:
    """Return whether a source names recordings: files, addresses or patterns with a recording's extension."""
    names = [source] if isinstance(source, str) else source
    return any(is_recording(name) and not os.path.isdir(name) for name in names)


def are_recordings(source: str | Sequence[str]) -> bool:
    """Return whether a source names recordings, or a local folder of them."""
    return names_recordings(source) or (isinstance(source, str) and os.path.isdir(source))


def without_suffix(name: str) -> str:
    """Return the name or the address of a file without the suffix that marks a manifest, a list or a recording:
    "calls.jsonl.gz" → "calls", "talk.mp3" → "talk"."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in RECORDING_SUFFIXES else _SUFFIX.sub("", name, count=1)
