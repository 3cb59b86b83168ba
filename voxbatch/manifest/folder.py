"""A folder of recordings → the lines of the manifest that describes it.

A folder is walked in natural order of the relative paths (track 2 before track 10). Each file whose extension we decode
is an item, `NAME.txt` beside it is its reference, hidden files and folders are left out. Symbolic links are followed;
a folder that is reached twice is taken once. A dangling link is taken in: it ends as a failure instead of vanishing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.row import MAX_LINE_BYTES

_SUFFIXES = (
    ".3gp .aac .ac3 .aif .aifc .aiff .amr .ape .au .avi .caf .flac .flv .g722 .gsm .m4a .m4b .mka .mkv .mov .mp2 .mp3"
    " .mp4 .mpeg .mpg .mpga .oga .ogg .opus .rf64 .snd .spx .tta .w64 .wav .wave .webm .wma .wv"
)
RECORDING_SUFFIXES = frozenset(_SUFFIXES.split())
"""Extensions that a folder walk takes in, in lower case. Headerless PCM (.raw, .pcm) is not: nothing says its rate."""
MAX_REFERENCE_BYTES = MAX_LINE_BYTES // 2
TOO_LONG = f"it is longer than {MAX_REFERENCE_BYTES:,} bytes"
Probe = Callable[[str], float | None]
"""Absolute path → seconds, or None where the header does not say."""


def folder_manifest(
    folder: str | os.PathLike[str], probe: Probe | None = None, include: Sequence[str] = ()
) -> Iterator[str]:
    """The JSON lines, without line ends, of the manifest that describes a folder; paths are relative to the folder.

    `probe`, where given, tells the `duration` from a recording's header; `include`, where given, leaves out what
    `is_included` does not find in it. Raises ManifestError after the last line where something could not be taken in (a
    folder that cannot be read, a reference that is not UTF-8), with every reason.
    """
    root = os.fspath(folder)
    problems: list[BadLine] = []
    for path, reference in _walk(root, problems):
        if not is_included(path, include):
            continue
        row: dict[str, Any] = {"audio_filepath": as_path(path)}
        seconds = probe(os.path.join(os.path.abspath(root), path)) if probe else None
        if seconds is not None and math.isfinite(seconds) and seconds > 0:
            row["duration"] = round(seconds, 6)
        try:
            path.encode()
            if reference is not None:
                with open(os.path.join(root, reference), "rb") as file:
                    row["text"] = read_reference(file)
            yield json.dumps(row, ensure_ascii=False)
        except UnicodeEncodeError:
            problems.append(BadLine(0, f"{path!a}: the name is not UTF-8; rename the file"))
        except (OSError, ValueError) as error:
            problems.append(bad_reference(reference, error))
    if problems:
        raise ManifestError(root, problems[: ManifestError.LIMIT], len(problems))


def natural_key(name: str) -> tuple[str, str]:
    """Sorts names as people do: "take 9" < "Take 10". Each number is led by how many digits it has."""
    key = re.sub(r"[0-9]+", lambda digits: f"{len(digits[0].lstrip('0')):03}{digits[0].lstrip('0')}", name.casefold())
    return key, name


def is_included(path: str, globs: Sequence[str]) -> bool:
    """Whether a relative path, or the last part of it, matches one of some shell patterns, or there are none. In a
    pattern * stands for any characters, also /; ? for one, [ab] for one of these. Case counts.

    *.flac: all FLAC files, take?.wav: so named ones in any folder, calls/*: all below calls/.
    """
    name = path.rpartition("/")[2]
    return not globs or any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for glob in globs)


def as_path(name: str) -> str:
    """A file's name as a manifest has it: "./" keeps one called "data:1.wav" from being read as a protocol."""
    return "./" + name if ":" in name else name


def read_reference(file: BinaryIO) -> str:
    """Raises ValueError where it is too long or no UTF-8."""
    data = file.read(MAX_REFERENCE_BYTES)
    if file.read(1):
        raise ValueError(TOO_LONG)
    return data.decode("utf-8-sig").strip()


def bad_reference(name: str | None, error: object) -> BadLine:
    return BadLine(0, f"{name!r}: the reference cannot be read as UTF-8 text: {error}; mend it")


def _walk(root: str, problems: list[BadLine]) -> Iterator[tuple[str, str | None]]:
    """(recording, its reference or None), relative to root, in natural order. No recursion: paths may be deep."""
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[str, str | None, bool]] = [("", None, True)]
    while stack:
        path, reference, is_folder = stack.pop()
        if not is_folder:
            yield path, reference
            continue
        try:
            state = os.stat(os.path.join(root, path))
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                stack += reversed(_entries(root, path))
        except OSError as error:
            problems.append(BadLine(0, f"{path or root!r}: cannot be listed: {error.strerror}; check its permissions"))


def _entries(root: str, path: str) -> list[tuple[str, str | None, bool]]:
    """(path, reference, is it a folder) of what one folder holds, in natural order."""
    with os.scandir(os.path.join(root, path)) as listing:
        folders = {entry.name: _is_folder(entry) for entry in listing if not entry.name.startswith(".")}
    entries: list[tuple[str, str | None, bool]] = []
    for name in sorted(folders, key=natural_key):
        stem, suffix = os.path.splitext(name)
        if folders[name]:
            entries.append((os.path.join(path, name), None, True))
        elif suffix.lower() in RECORDING_SUFFIXES:
            reference = next((text for text in (stem + ".txt", stem + ".TXT") if folders.get(text) is False), None)
            entries.append((os.path.join(path, name), reference and os.path.join(path, reference), False))
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # isdir() where is_dir() would raise: a link that leads to itself.
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
