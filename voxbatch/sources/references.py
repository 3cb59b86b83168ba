"""Find the references that lie with recordings, as people and data sets keep them.

    talk.wav, talk.txt or talk.wav.txt                      beside the recording: see SUFFIXES
    sph/talk.sph, stm/talk.stm                              in a folder beside its folder: see FOLDERS
    84-121123-0000.flac, 84-121123.trans.txt                lines of a name and a text: see LISTS
    train/a.wav, train/metadata.csv                         tables of paths and texts: see _TABLES

Names are compared in Unicode's canonical form (NFC), because macOS and Linux write them differently.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO
from unicodedata import normalize

from voxbatch.errors import BadLine
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import MAX_LINE_BYTES
from voxbatch.manifest.recording_path import manifest_path
from voxbatch.sources.own_texts import OwnTexts

MAX_REFERENCE_BYTES = MAX_LINE_BYTES // 2
"""Largest reference, in bytes."""
REFERENCE_TOO_LONG = f"it is longer than {MAX_REFERENCE_BYTES:,} bytes"
MAX_TABLE_BYTES = 100_000_000
"""Largest file with the texts of many recordings. Its texts are held in memory."""
SUFFIXES = (".txt", ".normalized.txt", ".lab", ".stm", ".textgrid", ".eaf", ".trs", ".cha", ".exb")
"""Extensions of the reference of one recording, also in capitals: a text, LibriTTS's, the Montreal Forced Aligner's,
and those of annotators. The first one counts."""
FOLDERS = (
    "txt", "text", "texts", "transcript", "transcripts", "transcription", "transcriptions", "trans", "etc", "lab",
    "labels", "stm", "ref", "refs", "reference", "references", "textgrid", "textgrids",
)  # fmt: skip
"""Folders for references beside folders of recordings, in any case of letters."""
LISTS = re.compile(
    r".*\.trans\.(txt|tsv)|transcripts?\.txt|prompts(-original|\.txt)?|line_index\.tsv|text|aishell_transcript.*\.txt"
    r"|metadata\.csv",
    re.IGNORECASE,
)
"""Files whose lines have the name of a recording, a tab, a bar or a space, and its text: of LibriSpeech, LibriTTS, MLS,
VoxForge, OpenSLR, Kaldi, AISHELL, and of LJSpeech, whose metadata.csv has no header."""
_TABLES = re.compile(
    r"metadata\.(csv|jsonl|parquet)|(asr_)?(validated|train|dev|test|other|invalidated)\.tsv"
    r"|(transcript(ion)?s?|references?|labels?)\.[ct]sv",
    re.IGNORECASE,
)
"""Tables with a column for the paths of the recordings: those of Hugging Face's audio folders, of Common Voice, FLEURS
and VoxPopuli, and of people."""
_UNREAD = (".srt", ".vtt", ".sbv", ".ass", ".ssa", ".ttml", ".lrc", ".ctm", ".trn", ".json")
"""Extensions of transcripts that programs write, too. So they are not taken as references."""
_MAX_LEVELS = 8
"""Folders above a recording in which a table is looked for."""
_HELD_FOLDERS = 256
"""Folders whose names and tables are held."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of a recording."""

    path: str
    text: str | None = None
    """The text, if it is one of many in the file."""

    def read(self, decoder: TextDecoder) -> str:
        """Return the text.

        Raises:
            OSError, ValueError: the file cannot be read; see `read_reference`.
        """
        if self.text is not None:
            return self.text
        with open(self.path, "rb") as file:
            return read_reference(file, self.path, decoder)


class References:
    """The references of recordings. It holds the names and the tables of the folders that it has looked at last."""

    def __init__(self) -> None:
        self._texts_in = lru_cache(_HELD_FOLDERS)(_texts_in)
        self._folders_for_references = lru_cache(_HELD_FOLDERS)(_folders_for_references)
        self._table_of = lru_cache(_HELD_FOLDERS)(self._read_tables)
        self._own_texts = OwnTexts()
        self.decoder = TextDecoder()
        self.count = 0
        """Number of recordings with a reference."""
        self.first = ""
        """Path of the file with the first reference."""
        self.unread = Counter[str]()
        """Extensions of the files that may be transcripts, beside recordings without a reference."""

    def find(self, path: str, root: str) -> Reference | None:
        """Return the reference of a recording, or None.

        Args:
            path: absolute path of the recording.
            root: folder above which nothing is looked for. It is that of the recording if the recording lies elsewhere.

        Raises:
            ConfigError: a table is a Parquet file, and pyarrow is missing.
        """
        folder = os.path.dirname(path)
        if not path.startswith(os.path.join(root, "")):
            root = folder
        reference = self._beside(path, folder, root) or self._listed(path, folder, root)
        if reference is None:
            self.leave_out(os.path.basename(path), self._texts_in(folder))
        else:
            self.take(os.path.relpath(reference.path, root))
        return reference

    def take(self, path: str) -> None:
        """Count a reference in a file, whose path is relative to the source."""
        self.count += 1
        self.first = self.first or path

    def leave_out(self, name: str, texts: Mapping[str, str]) -> None:
        """Count the files that may be transcripts of a recording without a reference.

        Args:
            texts: the files beside it; see `add_text`.
        """
        stem = canonical(os.path.splitext(name)[0])
        self.unread.update(suffix for suffix in _UNREAD if stem + suffix in texts)

    def notes(self) -> str:
        """Return the sentences about the references of all recordings so far, or ""."""
        # Without a reference, no run is scored: files that may be transcripts are then no surprise.
        taken = f"references: {self.count:,} beside recordings, such as {self.first}" if self.count else ""
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in self.unread.most_common() if taken)
        unread = f"{kinds} beside recordings not taken as references; to score against them: " if kinds else ""
        advice = "voxbatch score OUT --ref FOLDER" if kinds else ""
        return "; ".join(filter(None, (self.decoder.note(), taken, self._own_texts.note(), unread + advice)))

    def _beside(self, path: str, folder: str, root: str) -> Reference | None:
        """Return the reference in a file of its own."""
        name, (parent, folder_name) = os.path.basename(path), os.path.split(folder)
        places, above = [folder], os.path.dirname(parent)
        if folder != root and not _is_out(parent):
            places += self._folders_for_references(parent)
        if root not in (folder, parent) and not _is_out(above):
            places += [os.path.join(sibling, folder_name) for sibling in self._folders_for_references(above)]
        for place in places:
            files = (os.path.join(place, file) for file in names_beside(name, self._texts_in(place)))
            if file := next((file for file in files if not self._own_texts.has(path, file)), None):
                return Reference(file)
        return None

    def _listed(self, path: str, folder: str, root: str) -> Reference | None:
        """Return the reference in a table of the folder or of one above."""
        stem, place = canonical(os.path.splitext(os.path.basename(path))[0]), folder
        for _ in range(_MAX_LEVELS):
            if table := self._table_of(place):
                below, name = os.path.relpath(path, place), os.path.basename(path)
                reference = table.get(canonical(below)) or table.get(stem)
                # FLEURS's tables leave out the folder of the recordings; another table means the file beside it.
                if reference is None and not os.path.lexists(os.path.join(place, name)):
                    reference = table.get(canonical(name))
                if reference is not None:
                    return reference
            if place == root:
                break
            place = os.path.dirname(place)
        return None

    def _read_tables(self, folder: str) -> dict[str, Reference]:
        """Return the references in the tables of a folder, and of the folders in it that are for references, by the
        name or the path of the recording."""
        table = dict[str, Reference]()
        for place in (folder, *self._folders_for_references(folder)):
            for name in _file_names(place):
                for key, text in _texts_of_table(os.path.join(place, name), name, self.decoder):
                    table.setdefault(key, Reference(os.path.join(place, name), text))
        return table


def _texts_in(folder: str) -> dict[str, str]:
    """Return the names of the files of a folder with one reference; see `add_text`."""
    texts = dict[str, str]()
    for name in _file_names(folder):
        add_text(texts, name)
    return texts


def add_text(texts: dict[str, str], name: str) -> bool:
    """Add the name of a file that may be the transcript of one recording, by its canonical name and by itself. Return
    False for other files."""
    if not name.lower().endswith((*SUFFIXES, *_UNREAD)):
        return False
    stem, dot, suffix = name.rpartition(".")
    texts.setdefault(canonical(stem) + dot + suffix.lower(), name)
    if name.endswith(SUFFIXES):  # the very name comes first
        texts[name] = name
    return True


def names_beside(recording: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the files with the reference of a recording: talk.txt, talk.wav.txt and others.

    Args:
        texts: the files beside it; see `add_text`.
    """
    for name in (stem + suffix for stem in (os.path.splitext(recording)[0], recording) for suffix in SUFFIXES if texts):
        if (file := texts.get(name) or texts.get(canonical(name))) is not None:
            yield file


def _folders_for_references(parent: str) -> list[str]:
    """Return the folders of a folder that have one of the names of FOLDERS, in their order."""
    names = [name for name in _file_names(parent, of_folders=True) if name.lower() in FOLDERS]
    return [os.path.join(parent, name) for name in sorted(names, key=lambda name: FOLDERS.index(name.lower()))]


def file_line(root: str, path: str, references: References, facts: Mapping[str, Any]) -> str | BadLine:
    """Return the line of one recording with its reference, or the reason why there is none.

    Args:
        root: the manifest's folder.
        path: path of the recording, absolute or relative to `root`.
        facts: further keys of the line, such as those of `file_state`.
    """
    row, top = {"audio_filepath": manifest_path(path), **facts}, os.path.abspath(root)
    reference = references.find(os.path.join(top, path), top)
    try:
        if reference is not None:
            row["text"] = reference.read(references.decoder)
        return json.dumps(row, ensure_ascii=False)
    except (OSError, ValueError) as error:
        return bad_reference(_shown(reference, top), error)


def _shown(reference: Reference | None, top: str) -> str:
    return reference.path.removeprefix(os.path.join(top, "")) if reference else ""


def canonical(name: str) -> str:
    """Return a name in the form in which names are compared."""
    return normalize("NFC", name)


def spellings(name: str) -> list[str]:
    """Return a name, and the other names that Unicode says are the same text."""
    return list(dict.fromkeys((name, normalize("NFC", name), normalize("NFD", name))))


def read_reference(file: BinaryIO, name: str, decoder: TextDecoder) -> str:
    """Return the text of a reference, without a byte order mark and without surrounding white space.

    Raises:
        ValueError: the reference is too long, or cannot be read; see `reference_text`.
    """
    from voxbatch.sources.annotations import reference_text

    data = file.read(MAX_REFERENCE_BYTES)
    if file.read(1):
        raise ValueError(REFERENCE_TOO_LONG)
    return reference_text(data, name, decoder)


def bad_reference(name: str | None, error: object) -> BadLine:
    """Return the bad line for a reference that could not be read."""
    return BadLine(0, f"{name!r}: the reference cannot be read: {error}; correct it")


def _is_out(folder: str) -> bool:
    """Return whether a folder is the OUT of a run, whose txt/ has transcripts."""
    return os.path.exists(os.path.join(folder, "run.json"))


def _file_names(folder: str, of_folders: bool = False) -> list[str]:
    """Return the sorted names of the files of a folder, or of its folders."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if (entry.is_dir() if of_folders else entry.is_file()))
    except OSError:
        return []


def _texts_of_table(path: str, name: str, decoder: TextDecoder) -> Iterator[tuple[str, str]]:
    """Yield (name or path of a recording, its text) of a file that is a table of references; nothing of others."""
    if os.path.getsize(path) > MAX_TABLE_BYTES:
        return
    if _TABLES.fullmatch(name):
        from voxbatch.sources.manifest_file import described_texts

        if (texts := described_texts(path, decoder)) is not None:
            yield from ((canonical(below), text) for below, text in texts.items())
            return
    if not LISTS.fullmatch(name):
        return
    with open(path, "rb") as file:
        lines = decoder.decode(file.read(), path).splitlines()
    for line in lines:
        separator = next((mark for mark in "\t|" if mark in line), " ")
        key, *fields = line.strip().split(separator, 1 if separator == " " else 2)
        for stem in {key := posixpath.basename(key), os.path.splitext(key)[0]} if fields else ():
            yield canonical(stem), fields[0].strip()
