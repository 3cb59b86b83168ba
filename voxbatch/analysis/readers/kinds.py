"""Decide which kind of file holds the texts, and open it.

The extension decides: .jsonl, .json, .csv, .tsv, .trn, .ctm, .stm, .srt, .vtt and others, also with .gz. Kaldi calls
its file `text`. Any other name (.txt) says nothing, so the content decides: JSON objects; lines that end in an id in
parentheses (trn); times of cues (SubRip, WebVTT); lines that begin with an id (Kaldi); else each line is one text
without an id. A folder holds one file for each recording.

The first words of lines may be ids, or words that look like ids: "24 hours later". Then the other file decides, see
`agreed_kinds`.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice

from voxbatch.analysis.readers.entry import Role, TextEntry, bad_line, text_lines
from voxbatch.analysis.text_kinds import LINES, TEXT_KINDS
from voxbatch.errors import ConfigError
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.recording_path import is_recording
from voxbatch.manifest.source import Source
from voxbatch.sources.references import LISTS
from voxbatch.sources.transcripts import is_binary, kind_of_text
from voxbatch.storage import DEFAULT_STORES, Stores, is_remote, redacted
from voxbatch.storage.temporary_files import temporary_file

FOLDER_SUFFIXES = (
    ".txt", ".json", ".ctm", ".stm", ".trn", ".srt", ".vtt", ".sbv", ".ass", ".ssa", ".ttml", ".smi", ".sub", ".scc",
    ".lrc", ".tsv", ".textgrid", ".eaf", ".exb", ".trs", ".cha", ".xml",
)  # fmt: skip
"""Files that are read of a folder: those with the first of these extensions that it has."""
_SNIFFED_LINES = 1000
"""Lines of a file that show its kind."""
_TRN_LINE = re.compile(r".*\([^()\s]+\)\s*$")
_ID = re.compile(r"(?=.*[\d_./-]).+")
"""A word that may be an id: it has a digit, or a mark that ids have."""
_MARKED_LINES = 10
"""First lines that are not blank, among which is one that begins JSON."""
_JSON = re.compile(r"""\s*(?:\{\s*(?:"|$)|\[\s*(?:[{"\]]|$))""")
_ROW_KEYS, _TRANSCRIPT_KEYS = ("audio_filepath", "pred_text"), ("segments", "words")
"""Keys that tell a row from a transcript, if a file of JSON is a single line. Both may have an `id`."""
_SPOKEN = re.compile(r"[^\w]*\d[\d.,:/%’'-]*[^\W\d_]*(?:-[^\W\d_]+)*[^\w]*|[^\d_/]+|[^\W\d_]+-?\d{1,2}")
"""A word of a text that may look like an id: "24", "1990s", "$5", "9/11", "7-year-old", "mid-July", "Mr.", "B-52"."""
_ID_DIGITS = 9
"""Digits from which a word is an id for certain: 1089-134686-0000."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A file or a folder whose kind is known."""

    name: str
    """For messages."""
    kind: str
    """One of TEXT_KINDS, or "folder"."""
    read: Callable[[str, Role], Iterator[TextEntry]]
    """Returns the entries by the kind and in a role, from the first one."""
    possible_ids: tuple[str, ...] = ()
    """First word of each line, if these may be ids or not. Then the kind is "kaldi"; see `agreed_kinds`."""

    def entries(self, role: Role) -> Iterator[TextEntry]:
        """Return the entries in a role, from the first one."""
        return self.read(self.kind, role)


@contextmanager
def open_texts(
    path: str, kind: str | None, stores: Stores, decoder: TextDecoder | None = None, language: str | None = None
) -> Iterator[Texts]:
    """Yield the texts of a file, an address or a local folder. An error of a line is raised by its entry.

    Args:
        kind: one of TEXT_KINDS for a file whose extension says nothing; None looks at its content.
        language: language of what was said, for files with texts in several languages.

    Raises:
        ManifestError: the file is not text, or its kind cannot be read.
        ConfigError: the folder has no file that can be read.
    """
    text_decoder = decoder or TextDecoder()
    if not is_remote(path) and os.path.isdir(path):
        names = _folder_files(path)
        yield Texts(path, "folder", lambda _, role: _folder_entries(path, names, role, text_decoder, language))
        return
    with _open(path, stores, text_decoder) as source:
        certain_kind = _kind_of_name(source.name) or kind
        file_kind, possible_ids = (certain_kind, ()) if certain_kind else _kind_of_content(source)
        if file_kind == "json" and _is_json_lines(source):
            file_kind = "jsonl"
        file_id = os.path.splitext(posixpath.basename(source.name).removesuffix(".gz"))[0]

        def read(kind: str, role: Role) -> Iterator[TextEntry]:
            return _entries(source, kind, role, file_id, language)

        yield Texts(source.name, file_kind, read, possible_ids)


def agreed_kinds(hypotheses: Texts, references: Texts) -> tuple[Texts, Texts]:
    """Return two files whose kinds fit each other.

    First words that may be ids are ids if both files have the same ones, and have them in another order, or they count
    the lines (1, 2, 3), or are all of one form. The lines of a file without ids are one text if the other file is one,
    such as subtitles, or a single line.
    """
    if hypotheses.possible_ids and references.possible_ids:
        shorter, longer = sorted((hypotheses.possible_ids, references.possible_ids), key=len)
        common = [word for word in longer if word in shorter]
        if len(common) < len(shorter) or (common == [*shorter] and not _are_ids(longer)):
            hypotheses, references = replace(hypotheses, kind=LINES), replace(references, kind=LINES)
    fitting = _fitting(hypotheses, references, Role.REFERENCE), _fitting(references, hypotheses, Role.HYPOTHESIS)
    without_ids = all(texts.kind == LINES for texts in fitting)
    if without_ids and any(len(list(islice(texts.entries(Role.REFERENCE), 2))) == 1 for texts in fitting):
        return _joined(fitting[0]), _joined(fitting[1])
    return fitting


def _fitting(texts: Texts, other: Texts, other_role: Role) -> Texts:
    """Return a file as lines if the other file has no ids, and as one text if the other file is one."""
    if texts.kind != LINES and not texts.possible_ids:
        return texts
    if other.kind == LINES:
        return replace(texts, kind=LINES)
    first = next(other.entries(other_role), None)
    if first is None or not first.is_file:
        return texts
    return _joined(texts)


def _joined(texts: Texts) -> Texts:
    def joined(_: str, role: Role) -> Iterator[TextEntry]:
        yield TextEntry(0, "", " ".join(line.text or "" for line in texts.read(LINES, role)), is_file=True)

    return replace(texts, kind=LINES, read=joined)


def _are_ids(words: Sequence[str]) -> bool:
    """Return whether words count lines, or have one form, such as spk-a and spk-b, or utt1 and utt2."""
    if all(word.isdecimal() for word in words):
        first, is_padded = int(words[0]), all(len(word) > 4 or word[0] == "0" for word in words)
        return len(words) > 1 and (
            is_padded or (first < 2 and [*map(int, words)] == [*range(first, first + len(words))])
        )
    forms = {re.sub(r"\d+", "0", word) for word in words}
    if not any(char.isdigit() for word in words for char in word):
        forms = {re.sub(r"[^\W\d_]+", "a", form) for form in forms}
    return len(words) > 1 and len(forms) == 1


def _entries(source: Source, kind: str, role: Role, file_id: str, language: str | None) -> Iterator[TextEntry]:
    if role is Role.BOTH and not TEXT_KINDS[kind].has_references:
        raise bad_line(source.name, 0, f"is {kind} and holds no references; give them with --ref FILE")
    module, reader = TEXT_KINDS[kind].reader.split(".")
    entries: Iterator[TextEntry] = getattr(import_module(f"voxbatch.analysis.readers.{module}"), reader)(
        source, role, file_id, kind, language
    )
    return entries


def _open(path: str, stores: Stores, decoder: TextDecoder) -> Source:
    if is_remote(path):
        return Source(redacted(path), os.curdir, stores.open(path), decoder=decoder)
    try:
        file = open(path, "rb")  # noqa: SIM115 -- the Source closes it
    except OSError as error:
        raise bad_line(path, 0, f"cannot be opened: {error.strerror}") from error
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(path, os.path.dirname(path), file, decoder=decoder)
    with file:
        copy = temporary_file(path, iter(lambda: file.read(1 << 20), b""))
        return Source(path, os.curdir, copy, decoder=decoder)


def _kind_of_name(name: str) -> str | None:
    base = posixpath.basename(name).lower().removesuffix(".gz")
    suffix = os.path.splitext(base)[1].removeprefix(".")
    return "kaldi" if base == "text" else suffix if suffix in TEXT_KINDS else None


def _kind_of_content(source: Source) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a file, and the first words of its lines if they may be ids or not.

    Raises:
        ManifestError: the file is binary.
    """
    if is_binary(source.begin()):
        if is_recording(source.name):
            raise bad_line(source.name, 0, "is a recording, and no text: give the OUT of its run (`voxbatch run`)")
        raise bad_line(source.name, 0, f"is binary; read are {', '.join(TEXT_KINDS)}")
    lines = [line for _, line in islice(text_lines(source), _SNIFFED_LINES) if line.strip()]
    content = [line for line in lines if not line.startswith(";;")]
    if not content:
        return LINES, ()
    if any(map(_JSON.match, content[:_MARKED_LINES])):
        return "json", ()
    if kind := kind_of_text(content):
        return kind, ()
    if all(map(_TRN_LINE.fullmatch, content)):
        return "trn", ()
    first = [line.split(None, 1)[0] for line in content]
    if len(set(first)) < len(first) or not all(map(_ID.fullmatch, first)):
        return LINES, ()
    is_certain = len(first) == _SNIFFED_LINES or not any(map(_is_spoken, first))
    return "kaldi", () if is_certain else tuple(first)


def _is_spoken(word: str) -> bool:
    return bool(_SPOKEN.fullmatch(word)) and ("," in word or sum(map(str.isdigit, word)) < _ID_DIGITS)


def _is_json_lines(source: Source) -> bool:
    """Return whether a file of JSON holds a row on each line, and not one value."""
    lines = [line for _, line in islice(source.lines(), 2)]
    try:
        row = json.loads(lines[0]) if lines else None
    except ValueError:  # it goes on in the next line, or is very long
        return False
    if not isinstance(row, dict) or len(lines) > 1:
        return isinstance(row, dict)
    return not row.keys().isdisjoint(_ROW_KEYS) or ("id" in row and row.keys().isdisjoint(_TRANSCRIPT_KEYS))


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
        if chosen := [name for name in names if name.lower().endswith(suffix)]:
            return chosen
    raise ConfigError(
        f"{folder}: no run was started in it, and it holds no files that can be scored; give the OUT of a run, or a "
        f"folder with one file ({', '.join(FOLDER_SUFFIXES)}) for each recording"
    )


def _folder_entries(
    folder: str, names: list[str], role: Role, decoder: TextDecoder, language: str | None
) -> Iterator[TextEntry]:
    """Yield the entries of a folder's files. A .txt is one text, whose id is the file's name in the folder without its
    extension, and so is a transcript in JSON. LibriSpeech's .trans.txt and other lists have an id on each line."""
    if role is Role.BOTH:
        problem = "no run was started in it, and a folder of texts holds no references"
        raise bad_line(folder, 0, f"{problem}; give the OUT of a run, or the references with --ref FOLDER")
    for name in names:
        path, file_id = os.path.join(folder, name), os.path.splitext(name)[0]
        with _open(path, DEFAULT_STORES, decoder) as source:
            if name.lower().endswith(".txt") and LISTS.fullmatch(os.path.basename(name)):
                yield from _entries(source, "kaldi", role, file_id, language)
            elif name.lower().endswith(".txt"):
                yield _text_entry(source, role, file_id, language)
            else:
                for entry in _entries(source, str(_kind_of_name(name)), role, file_id, language):
                    yield replace(entry, is_file=False)  # the name counts among those of the folder


def _text_entry(source: Source, role: Role, file_id: str, language: str | None) -> TextEntry:
    """Return the entry of a .txt, which may have the times of a transcript."""
    lines = [line.strip() for _, line in text_lines(source)]
    if kind := kind_of_text(lines):
        (entry,) = _entries(source, kind, role, file_id, language)
        return replace(entry, is_file=False)
    return TextEntry(0, file_id, " ".join(lines).strip())
