"""Decide which kind of file holds the texts, and open it.

The extension decides: .jsonl, .json, .csv, .tsv, .trn, .ctm, .stm, also with .gz. Kaldi calls its file `text`. Any
other name (.txt) says nothing, so the content decides: JSON objects; lines that end in an id in parentheses (trn);
lines that begin with an id (Kaldi); else each line is one text without an id. A folder holds one file for each
recording.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from voxbatch.config import TEXT_KINDS
from voxbatch.errors import ConfigError
from voxbatch.manifest.source import Source
from voxbatch.scoring.readers.entry import Entry, Role, bad_line, text_lines
from voxbatch.scoring.readers.nist import ctm_entries, kaldi_entries, stm_entries, trn_entries
from voxbatch.scoring.readers.rows import json_document_entries, json_line_entries, table_entries
from voxbatch.storage import StoreOptions, is_remote, open_remote, redacted
from voxbatch.storage.temporary_files import temporary_file

LINES = "lines"
"""The kind of a file with one text a line and no ids."""
WITH_REFERENCES = frozenset({"jsonl", "json", "csv", "tsv"})
"""Kinds whose rows may have a hypothesis and its reference."""
FOLDER_SUFFIXES = (".txt", ".json", ".ctm", ".stm", ".trn")
"""Files that are read of a folder: those with the first of these extensions that it has."""
_SNIFFED_LINES = 1000
"""Lines of a file that show its kind."""
_TRN_LINE = re.compile(r".*\([^()\s]+\)\s*$")
_ID = re.compile(r"(?=.*[\d_./-]).+")
"""A word that may be an id: it has a digit, or a mark that ids have."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A file or a folder whose kind is known."""

    name: str
    """For messages."""
    kind: str
    """One of config.TEXT_KINDS, or "folder"."""
    entries: Callable[[Role], Iterator[Entry]]
    """Returns the entries in a role, from the first one."""


@contextmanager
def open_texts(path: str, kind: str | None, store_options: StoreOptions) -> Iterator[Texts]:
    """Yield the texts of a file, an address or a local folder. An error of a line is raised by its entry.

    Args:
        path: the file.
        kind: one of config.TEXT_KINDS for a file whose extension says nothing; None looks at its content.
        store_options: credentials and settings of the stores.

    Raises:
        ManifestError: the file is not text, or its kind cannot be read.
        ConfigError: the folder has no file that can be read.
    """
    if not is_remote(path) and os.path.isdir(path):
        names = _folder_files(path)
        yield Texts(path, "folder", lambda role: _folder_entries(path, names, role, store_options))
        return
    with _open(path, store_options) as source:
        known = _kind_of_name(source.name) or kind or _kind_of_content(source)
        if known == "json" and _is_json_lines(source):
            known = "jsonl"
        file_id = os.path.splitext(posixpath.basename(source.name).removesuffix(".gz"))[0]
        yield Texts(source.name, known, lambda role: _entries(source, known, role, file_id))


def _entries(source: Source, kind: str, role: Role, file_id: str) -> Iterator[Entry]:
    if role is Role.BOTH and kind not in WITH_REFERENCES:
        raise bad_line(source.name, 0, f"is {kind} and holds no references; give them with --ref FILE")
    readers: dict[str, Callable[[], Iterator[Entry]]] = {
        "jsonl": lambda: json_line_entries(source, role),
        "json": lambda: json_document_entries(source, role, file_id),
        "csv": lambda: table_entries(source, role, ",;\t|"),
        "tsv": lambda: table_entries(source, role, "\t"),
        "trn": lambda: trn_entries(source),
        "ctm": lambda: ctm_entries(source),
        "stm": lambda: stm_entries(source),
        "kaldi": lambda: kaldi_entries(source),
        LINES: lambda: (Entry(number, f"line {number}", text) for number, text in text_lines(source)),
    }
    return readers[kind]()


def _open(path: str, store_options: StoreOptions) -> Source:
    if is_remote(path):
        return Source(redacted(path), os.curdir, open_remote(path, store_options))
    try:
        file = open(path, "rb")  # noqa: SIM115 -- the Source closes it
    except OSError as error:
        raise bad_line(path, 0, f"cannot be opened: {error.strerror}") from error
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(path, os.path.dirname(path), file)
    with file:
        return Source(path, os.curdir, temporary_file(path, iter(lambda: file.read(1 << 20), b"")))


def _kind_of_name(name: str) -> str | None:
    base = posixpath.basename(name).lower().removesuffix(".gz")
    suffix = os.path.splitext(base)[1].removeprefix(".")
    return "kaldi" if base == "text" else suffix if suffix in TEXT_KINDS else None


def _kind_of_content(source: Source) -> str:
    lines = [line for _, line in islice(text_lines(source), _SNIFFED_LINES) if line.strip()]
    content = [line for line in lines if not line.startswith(";;")]
    if content and content[0].lstrip()[0] in "{[":
        return "json"
    if content and all(map(_TRN_LINE.fullmatch, content)):
        return "trn"
    first = [line.split(None, 1)[0] for line in content]
    if content and len(set(first)) == len(first) and all(map(_ID.fullmatch, first)):
        return "kaldi"
    return LINES


def _is_json_lines(source: Source) -> bool:
    """Return whether a file of JSON holds a row on each line, and not one value."""
    lines = [line.strip() for _, line in islice(source.lines(), 2)]
    if not lines or not lines[0].startswith(b"{") or len(lines[0]) == 1:
        return False
    return len(lines) > 1 or any(key in lines[0] for key in (b'"audio_filepath"', b'"pred_text"', b'"id"'))


def _folder_files(folder: str) -> list[str]:
    """Return the files of a folder, relative to it and sorted: those with the first extension of FOLDER_SUFFIXES that
    occurs."""
    names = sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, files in os.walk(folder)
        for name in files
        if not name.startswith(".")
    )
    for suffix in FOLDER_SUFFIXES:
        if found := [name for name in names if name.lower().endswith(suffix)]:
            return found
    raise ConfigError(
        f"{folder}: no run was started in it, and it holds no files that can be scored; give the OUT of a run, or a "
        f"folder with one file ({', '.join(FOLDER_SUFFIXES)}) for each recording"
    )


def _folder_entries(folder: str, names: list[str], role: Role, store_options: StoreOptions) -> Iterator[Entry]:
    """Yield the entries of a folder's files. A .txt is one text, whose id is the file's name in the folder without its
    extension, and so is a transcript in JSON."""
    if role is Role.BOTH:
        seen = "no run was started in it, and a folder of texts holds no references"
        raise bad_line(folder, 0, f"{seen}; give the OUT of a run, or the references with --ref FOLDER")
    for name in names:
        path, file_id = os.path.join(folder, name), os.path.splitext(name)[0]
        with _open(path, store_options) as source:
            if name.lower().endswith(".txt"):
                yield Entry(0, file_id, " ".join(line.strip() for _, line in text_lines(source)).strip())
            else:
                yield from _entries(source, str(_kind_of_name(name)), role, file_id)
