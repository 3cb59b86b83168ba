"""Describe the recordings that a person names as the lines of a manifest: files, addresses, folders, patterns, lists.

    talk.mp3   calls/   'calls/*.wav'   gs://calls/day/   'gs://calls/day/*.flac'   https://host/talk.mp3   @list.txt

Paths are relative to the common folder of all that is named, so that files of one name in different folders have
different ids. `references` finds the references of local files. A list has one path or address a line; its paths are
relative to its own folder, and a line that begins with # is a comment.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

from voxbatch.errors import BadLine, EmptySourceError, ManifestError
from voxbatch.manifest.json_line import LongLine
from voxbatch.manifest.recording_path import (
    LIST_MARK,
    LISTED_NAMES,
    file_state,
    is_included,
    is_recording,
    is_subtitled_copy,
    missing,
    path_advice,
)
from voxbatch.manifest.source import PLAYLIST, PLAYLIST_ADVICE, Source, manifest_error
from voxbatch.sources.feeds import is_xml
from voxbatch.sources.references import References, file_line
from voxbatch.storage import Stores, is_remote, redacted
from voxbatch.storage.address import folder_of, is_bucket_address, is_folder, join, normalized, place_of
from voxbatch.storage.errors import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

_URI = re.compile(r"[a-z][a-z0-9+.-]*://|file:", re.IGNORECASE)


def named_source(names: Sequence[str], stores: Stores, include: Sequence[str], stdin: BinaryIO) -> Source:
    """Return the Source of the recordings of some names. It grows.

    Args:
        names: files, addresses, folders, patterns, and lists.
        include: see recording_path.is_included; paths are relative to the common folder.
        stdin: stream to read for the list "@-".

    Raises:
        ManifestError: something that is named does not exist or cannot be used, or there is no recording.
        StorageError: a store cannot be read, or the temporary file cannot be written.
    """
    title = redacted(names[0]) + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")
    try:
        names = list(dict.fromkeys(normalized(name) if is_remote(name) else name for name in names))
    except ValueError as error:
        raise manifest_error(title, f"cannot be opened: {error}") from error
    recordings = _NamedRecordings(names, title, common_folder(names), stores, include, stdin)
    file = temporary_file(title, ((line + "\n").encode() for line in recordings.lines()))
    source = Source(title, recordings.base, file, grows=True, note=recordings.note())
    if source.size == 0:
        source.close()
        which = f" that match --include {' '.join(include)}" if include else ""
        raise EmptySourceError(title, f"holds no recordings{which}; {recordings.content()}")
    return source


def common_folder(names: Sequence[str]) -> str:
    """Return the deepest folder, or address of a folder, that holds all that is named. Addresses count only if nothing
    local is named. It is the current folder if the addresses have no bucket or server in common."""
    places = [folder_of_name(name) for name in names]
    if local := [place for place in places if not is_remote(place)]:
        return os.path.commonpath(local)
    common = os.path.commonprefix(places).rpartition("/")[0] + "/"  # noqa: RUF071 -- commonpath drops empty parts
    return common if common.startswith(place_of(places[0])) else os.getcwd()


def is_list(name: str) -> bool:
    """Return whether a name is that of a list, @list.txt, and not of a file."""
    return name.startswith(LIST_MARK) and not os.path.lexists(name)


def is_pattern(name: str) -> bool:
    """Return whether a name is a shell pattern, and not that of a file. An address is one if it has a *."""
    if is_remote(name):
        return is_bucket_address(name) and "*" in name
    return glob.has_magic(name) and not os.path.lexists(name)


@dataclass(slots=True)
class _NamedRecordings:
    """Everything that is named."""

    names: Sequence[str]
    title: str
    """Name of all of it, for messages."""
    base: str
    """Folder, or address of a folder, that the paths of the lines are relative to."""
    stores: Stores
    include: Sequence[str]
    stdin: BinaryIO
    problems: list[BadLine] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Files among several without a recording's extension. References and other texts are not among them."""
    copies: list[str] = field(default_factory=list)
    """Copies of videos with subtitles, by --mux or --burn, among several files."""
    others: Counter[str] = field(default_factory=Counter)
    """Extensions of the files of folders that were left out; see folder.count_other."""
    references: References = field(default_factory=References)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the manifest, without line ends. A comment of a list is an empty line, so that the other
        lines keep their numbers.

        Raises:
            ManifestError: after the last line, with every reason: something cannot be used.
            StorageError: a store cannot be read.
        """
        for name in self.names:
            if is_list(name):
                lines = self._list(name.removeprefix(LIST_MARK))
            elif is_remote(name):
                lines = self._remote(name)
            elif is_pattern(name):
                lines = self._pattern(name)
            else:
                lines = self._local(name, is_alone=len(self.names) == 1)
            for line in lines:
                if isinstance(line, BadLine):
                    self.problems.append(line)
                else:
                    yield line
        if self.problems:
            raise ManifestError(self.title, self.problems[: ManifestError.LIMIT], len(self.problems))

    def note(self) -> str:
        """Return the sentence about the files that were left out, or ""."""
        notes = [self.references.notes()]
        if self.left_out:
            count, shown = f"{len(self.left_out):,}", _shown(self.left_out)
            notes.insert(0, f"left out {count} of the files, which have no recording's extension: {shown}")
        elif self.others and not self.include:
            from voxbatch.sources.folder import others_note

            notes.insert(0, others_note(self.others))
        if self.copies:
            copies = (
                f"left out {len(self.copies):,} of the files, which are copies with subtitles: {_shown(self.copies)}"
            )
            notes.insert(0, f"{copies}; to take one, name it alone")
        return "; ".join(filter(None, notes))

    def content(self) -> str:
        """Return the sentence that says what is there in place of recordings."""
        if self.left_out or self.copies:
            return self.note()
        name = self.names[0]
        if is_remote(name):
            file_names = (stat.key for stat in self.stores.list(folder_of_name(name)))
        elif os.path.isdir(name):
            file_names = (file for _, _, files in os.walk(name) for file in files)
        else:
            return "name at least one"
        counts = Counter(
            os.path.splitext(file)[1].lower() or "no extension" for file in islice(file_names, LISTED_NAMES)
        )
        listed = ", ".join(f"{count:,} with {suffix}" for suffix, count in counts.most_common(5))
        return f"its files: {listed}{', …' if len(counts) > 5 else ''}" if counts else "it is empty"

    def _local(self, name: str, is_alone: bool = False) -> Iterator[str | BadLine]:
        """Yield the lines of a file or a folder. A file that is named alone may have any extension."""
        below = os.path.relpath(name, self.base)
        if os.path.isdir(name):
            from voxbatch.sources.folder import walk

            for path in walk(name, self.problems, self.others):
                yield from self._file(path if below == os.curdir else os.path.join(below, path))
        elif not os.path.lexists(name):
            yield BadLine(0, missing(name) if is_alone else f"{name} {missing(name)}")
        elif not is_alone and is_recording(name) and is_subtitled_copy(name):
            self.copies.append(name)
        elif is_alone or is_recording(name):
            yield from self._file(below)
        elif not name.lower().endswith(".txt"):
            self.left_out.append(name)

    def _file(self, path: str) -> Iterator[str | BadLine]:
        if is_included(path, self.include):
            yield file_line(self.base, path, self.references, file_state(os.path.join(self.base, path)))

    def _pattern(self, name: str) -> Iterator[str | BadLine]:
        from voxbatch.sources.folder import natural_key

        paths = sorted(glob.iglob(name, recursive=True), key=natural_key)
        if not paths:
            subject = "" if len(self.names) == 1 else f"{name} "
            yield BadLine(0, f"{subject}matches no file{path_advice(name)}")
        for path in paths:
            yield from self._local(path)

    def _remote(self, address: str) -> Iterator[str | BadLine]:
        """Yield the lines of a prefix, of a pattern of objects, or of one recording."""
        from voxbatch.sources.prefix import (
            object_line,
            object_state,
            prefix_manifest,
            relative_address,
            translated_pattern,
        )

        if is_folder(address) or is_pattern(address):
            prefix = folder_of_name(address)
            pattern = translated_pattern(address.removeprefix(prefix)) if address != prefix else None
            yield from prefix_manifest(
                prefix,
                self.stores,
                self.include,
                with_state=True,
                base=self.base,
                pattern=pattern,
                others=self.others,
                references=self.references,
            )
            return
        row = {"audio_filepath": relative_address(self.base, address)}
        if not is_included(row["audio_filepath"], self.include):
            return
        if not is_bucket_address(address):  # a web server may not answer a question about a file
            yield json.dumps(row, ensure_ascii=False)
            return

        try:
            state = object_state(self.stores.stat(address))
            yield object_line(address, {**row, **state}, self.stores, self.references)
        except ObjectNotFound:
            yield BadLine(0, "does not exist" if len(self.names) == 1 else f"{address} does not exist")

    def _list(self, place: str) -> Iterator[str | BadLine]:
        """Yield one line for each line of a list. A file that does not exist is listed, so that its item fails."""
        folder, written = folder_of_name(LIST_MARK + place), 0
        with self._open_list(place, folder) as source:
            if is_xml(source.begin()):
                raise manifest_error(source.name, f"is XML, and no list of paths; give a feed without {LIST_MARK}")
            if source.begin().startswith(PLAYLIST) and b"\n#EXT-X-" in source.begin():
                raise manifest_error(source.name, f"is a playlist of one recording; {PLAYLIST_ADVICE}")
            for number, line in source.lines():
                if isinstance(line, LongLine):
                    yield BadLine(number, f"has {line.num_bytes:,} bytes; write one path or address a line")
                elif not line.lstrip().startswith(b"#"):
                    yield from [""] * (number - 1 - written)
                    written = number
                    text = os.fsdecode(line)
                    if _URI.match(text) or is_remote(folder):
                        path = text if _URI.match(text) or folder == self.base else join(folder, text)
                        yield json.dumps({"audio_filepath": path}, ensure_ascii=False)
                        continue
                    full = os.path.normpath(os.path.join(folder, text))
                    path = full.removeprefix(os.path.join(self.base, ""))
                    yield file_line(self.base, path, self.references, file_state(full))

    def _open_list(self, place: str, folder: str) -> Source:
        if place == "-":
            stream = iter(lambda: self.stdin.read(1 << 20), b"")
            return Source("standard input", folder, temporary_file("standard input", stream))

        try:
            return Source(
                redacted(place),
                folder,
                self.stores.open(place),
            )
        except (FileNotFoundError, ObjectNotFound):
            raise manifest_error(
                self.title, f"the list {redacted(place)} {'does not exist' if is_remote(place) else missing(place)}"
            ) from None
        except OSError as error:
            raise manifest_error(self.title, f"the list {place} cannot be opened: {error.strerror}") from error


def _shown(names: Sequence[str]) -> str:
    """Return the first names of some files for a note."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def folder_of_name(name: str) -> str:
    """Return the absolute folder, or the address of the folder, that holds what is named. A folder holds itself."""
    if is_list(name):
        place = name.removeprefix(LIST_MARK)
        return folder_of(place) if is_remote(place) else os.path.dirname(os.path.abspath(place))
    if is_pattern(name):
        name = os.path.join(re.split(r"[*?[]", name, maxsplit=1)[0].rpartition("/")[0], "")
        return name if is_remote(name) else os.path.abspath(name)
    if is_remote(name):
        return os.path.join(name, "") if is_folder(name) else folder_of(name)
    path = os.path.abspath(name)
    return path if os.path.isdir(path) else os.path.dirname(path)
