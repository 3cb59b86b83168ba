"""Describe a folder of recordings as the lines of a manifest.

The folder is walked in natural order of the relative paths (track 2 before track 10). Each file with an extension that
voxbatch decodes is an item. `NAME.txt` beside the file is its reference. Hidden files and folders are left out.
Symbolic links are followed, and a folder that is reached twice is listed once. A dangling link is listed, so that it
ends as a failure instead of vanishing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, BinaryIO
from urllib.parse import quote

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.json_line import MAX_LINE_BYTES

_SUFFIXES = (
    ".3g2 .3gp .3gpp .aac .ac3 .adts .aif .aifc .aiff .amr .ape .asf .au .avi .awb .bwf .caf .divx .dts .dv .eac3"
    " .ec3 .f4a .f4b .f4v .flac .flv .g722 .gsm .m2a .m2p .m2t .m2ts .m4a .m4b .m4r .m4v .mka .mkv .mov .mp1 .mp2"
    " .mp3 .mp4 .mpa .mpc .mpe .mpeg .mpg .mpga .mts .mxf .nist .oga .ogg .ogm .ogv .ogx .opus .qt .ra .rf64 .rm"
    " .rmvb .snd .sph .spx .tak .tod .ts .tta .vob .voc .w64 .wav .wave .weba .webm .wma .wmv .wv"
)
RECORDING_SUFFIXES = frozenset(_SUFFIXES.split())
"""Extensions that a folder walk lists, in lower case. Headerless PCM (.raw, .pcm) is not listed, because nothing gives
its rate."""
TRANSPORT_SUFFIXES = frozenset((".ts", ".mts"))
"""Extensions of MPEG transport streams, which are also those of TypeScript."""
TRANSPORT_PACKETS = (188, 192)
"""Bytes of a packet of a transport stream, without and with a time before it."""
MAX_REFERENCE_BYTES = MAX_LINE_BYTES // 2
"""Largest reference, in bytes."""
REFERENCE_TOO_LONG = f"it is longer than {MAX_REFERENCE_BYTES:,} bytes"
FILE_SCHEME = "file:"
"""Begin of a path that is percent-encoded."""
Probe = Callable[[str], float | None]
"""Function from an absolute path to a duration in seconds, or to None if the header gives no duration."""


def folder_manifest(
    folder: str | os.PathLike[str], probe: Probe | None = None, include: Sequence[str] = (), with_state: bool = False
) -> Iterator[str]:
    """Yield the JSON lines, without line ends, of the manifest that describes a folder.

    Paths are relative to the folder.

    Args:
        folder: the folder to walk.
        probe: reads the `duration` from a recording's header; None writes no durations.
        include: shell patterns, see `is_included`. Recordings that match no pattern are left out; no patterns include
            all.
        with_state: write the state of each recording; see `file_state`.

    Raises:
        ManifestError: after the last line, with every reason: something could not be listed (a folder that cannot be
            read, a reference that is not UTF-8).
    """
    root = os.fspath(folder)
    problems: list[BadLine] = []
    for path, reference in walk(root, problems):
        if is_included(path, include):
            line = file_line(root, path, reference, probe, with_state)
            if isinstance(line, BadLine):
                problems.append(line)
            else:
                yield line
    if problems:
        raise ManifestError(root, problems[: ManifestError.LIMIT], len(problems))


def file_line(
    root: str, path: str, reference: str | None, probe: Probe | None = None, with_state: bool = True
) -> str | BadLine:
    """Return the line of one recording, or the reason why there is none.

    Args:
        root: the manifest's folder.
        path: path of the recording, absolute or relative to `root`.
        reference: path of its reference, in the same form.
        probe: see `folder_manifest`.
        with_state: see `folder_manifest`.
    """
    row: dict[str, Any] = {"audio_filepath": manifest_path(path)}
    seconds = probe(os.path.join(os.path.abspath(root), path)) if probe else None
    if seconds is not None and math.isfinite(seconds) and seconds > 0:
        row["duration"] = round(seconds, 6)
    if with_state:
        row |= file_state(os.path.join(root, path))
    try:
        if reference is not None:
            with open(os.path.join(root, reference), "rb") as file:
                row["text"] = read_reference(file)
        return json.dumps(row, ensure_ascii=False)
    except (OSError, ValueError) as error:
        return bad_reference(reference, error)


def file_state(path: str) -> dict[str, Any]:
    """Return the state of a recording for its row: its `size` in bytes, and when it was `modified`, in UTC with
    microseconds. So a changed recording has another row. {} if the file cannot be looked at, such as a dangling link.

        {"size": 480044, "modified": "2026-11-23T09:15:02.000417Z"}
    """
    try:
        found = os.stat(path)
        modified = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=found.st_mtime_ns // 1000)
    except (OSError, OverflowError):  # a file system may give a year that has no date
        return {}
    return {"size": found.st_size, "modified": modified.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def is_source_code(path: str) -> bool:
    """Return whether a file with the extension of a transport stream is none, but a text such as TypeScript: the first
    two packets do not begin with the byte 0x47. A file that cannot be read is a recording, so that its item fails."""
    if os.path.splitext(path)[1].lower() not in TRANSPORT_SUFFIXES:
        return False
    try:
        with open(path, "rb") as file:
            begin = file.read(TRANSPORT_PACKETS[1] + 5)
    except OSError:
        return False
    return not any(begin[at : at + 1] == begin[at + size : at + size + 1] == b"G" for at, size in ((0, 188), (4, 192)))


def natural_key(name: str) -> tuple[str, str]:
    """Return a sort key that orders names as people do: "take 9" < "Take 10". Each number is preceded by its number of
    digits."""
    key = re.sub(r"[0-9]+", lambda digits: f"{len(digits[0].lstrip('0')):03}{digits[0].lstrip('0')}", name.casefold())
    return key, name


def is_included(path: str, globs: Sequence[str]) -> bool:
    """Return whether a relative path, or its last part, matches one of some shell patterns. No patterns match
    everything.

    In a pattern, * stands for any characters, also for /; ? stands for one character, and [ab] for one of the given
    ones. Case counts.

    *.flac selects all FLAC files, take?.wav selects files with that name in any folder, and calls/* selects all files
    below calls/.
    """
    name = path.rpartition("/")[2]
    return not globs or any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for glob in globs)


def manifest_path(name: str) -> str:
    """Return a file's relative path in the form that a manifest uses; see `json_path`. A leading "./" keeps
    "data:1.wav" from being read as a protocol."""
    path = json_path(name)
    return "./" + name if ":" in name and path == name else path


def json_path(path: str) -> str:
    """Return a path as JSON can hold it. One that is not UTF-8 becomes a file: URI: the bytes "caf\\xe9.wav" →
    "file:caf%E9.wav"."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return FILE_SCHEME + quote(os.fsencode(path), safe="/ :")
    return path


def read_reference(file: BinaryIO) -> str:
    """Return the text of a reference, without a byte order mark and without surrounding white space.

    Raises:
        ValueError: the reference is too long, or is not UTF-8.
    """
    data = file.read(MAX_REFERENCE_BYTES)
    if file.read(1):
        raise ValueError(REFERENCE_TOO_LONG)
    return data.decode("utf-8-sig").strip()


def bad_reference(name: str | None, error: object) -> BadLine:
    """Return the bad line for a reference that could not be read."""
    return BadLine(0, f"{name!r}: the reference cannot be read as UTF-8 text: {error}; correct it")


def find_reference(path: str) -> str | None:
    """Return the path of the reference beside a recording, NAME.txt or NAME.TXT; None if there is none."""
    stem = os.path.splitext(path)[0]
    return next((text for text in (stem + ".txt", stem + ".TXT") if os.path.isfile(text)), None)


def walk(root: str, problems: list[BadLine]) -> Iterator[tuple[str, str | None]]:
    """Yield (recording, its reference or None), relative to root, in natural order. The walk is not recursive, because
    paths may be deep."""
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
    """Return (path, reference, True for a folder) of the entries of one folder, in natural order."""
    with os.scandir(os.path.join(root, path)) as listing:
        folders = {  # os.path.isdir, because is_dir() raises for a link that leads to itself
            entry.name: entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
            for entry in listing
            if not entry.name.startswith(".")
        }
    entries: list[tuple[str, str | None, bool]] = []
    for name in sorted(folders, key=natural_key):
        stem, suffix = os.path.splitext(name)
        if folders[name]:
            entries.append((os.path.join(path, name), None, True))
        elif suffix.lower() in RECORDING_SUFFIXES and not is_source_code(os.path.join(root, path, name)):
            reference = next((text for text in (stem + ".txt", stem + ".TXT") if folders.get(text) is False), None)
            entries.append((os.path.join(path, name), reference and os.path.join(path, reference), False))
    return entries
