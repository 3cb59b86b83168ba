"""Describe a folder of recordings as the lines of a manifest.

The folder is walked in natural order of the relative paths (track 2 before track 10). Each file with an extension that
voxbatch decodes is an item, with its reference; see `references`. Hidden files and folders are left out.
Symbolic links are followed, and a folder that is reached twice is listed once. A dangling link is listed, so that it
ends as a failure instead of vanishing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.references import Reference, References, bad_reference
from voxbatch.safe_text import counted

_SUFFIXES = (
    ".3g2 .3ga .3gp .3gpp .aac .aacp .ac3 .adts .aif .aifc .aiff .alaw .amr .ape .asf .au .avi .awb .bwf .caf"
    " .divx .dts .dv .eac3 .ec3 .f4a .f4b .f4v .flac .flv .g722 .gsm .m2a .m2p .m2t .m2ts .m4a .m4b .m4p .m4r"
    " .m4v .mka .mkv .mov .mp1 .mp2 .mp3 .mp4 .mpa .mpc .mpe .mpeg .mpg .mpga .mts .mxf .nist .oga .ogg .ogm .ogv"
    " .ogx .opus .qt .qta .ra .rf64 .rm .rmvb .snd .sph .spx .tak .tod .ts .tta .ulaw .vob .voc .w64 .wav .wave"
    " .weba .webm .wma .wmv .wv"
)
RECORDING_SUFFIXES = frozenset(_SUFFIXES.split())
"""Extensions that a folder walk lists, in lower case. Headerless PCM (.raw, .pcm) is not listed, because nothing gives
its rate."""
SUBTITLED = ".subtitled"
"""End of the stem of a copy of a video with subtitles, which a folder walk does not list."""
_OTHER_SUFFIXES = (
    ".ass .cha .csv .ctm .db .doc .docx .eaf .gif .gz .heic .htm .html .jpeg .jpg .json .jsonl .lab .lock .log .lrc"
    " .m3u .m3u8 .md .mid .mlf .npy .npz .parquet .pdf .phn .pls .png .py .rttm .seglst .sh .srt .stm .sub .tar"
    " .textgrid .toml .trn .trs .tsv .ttml .txt .vtt .webp .wrd .xls .xlsx .xml .yaml .yml .zip"
)
"""Extensions of texts, tables, pictures and archives, which a folder of recordings holds, too."""
_KNOWN_SUFFIXES = RECORDING_SUFFIXES.union(_OTHER_SUFFIXES.split())
SHOWN_KINDS = 5
"""Number of extensions that a note about left out files names."""
TRANSPORT_SUFFIXES = frozenset((".ts", ".mts"))
"""Extensions of MPEG transport streams, which are also those of TypeScript."""
TRANSPORT_PACKETS = (188, 192)
"""Bytes of a packet of a transport stream, without and with a time before it."""
FILE_SCHEME = "file:"
"""Begin of a path that is percent-encoded."""
Probe = Callable[[str], float | None]
"""Function from an absolute path to a duration in seconds, or to None if the header gives no duration."""


def folder_manifest(
    folder: str | os.PathLike[str],
    probe: Probe | None = None,
    include: Sequence[str] = (),
    others: Counter[str] | None = None,
    references: References | None = None,
) -> Iterator[str]:
    """Yield the JSON lines, without line ends, of the manifest that describes a folder.

    Paths are relative to the folder.

    Args:
        probe: reads the `duration` from a recording's header; None writes no durations.
        include: shell patterns, see `is_included`. Recordings that match no pattern are left out; no patterns include
            all.
        others: counts the files that are left out; see `count_other`.
        references: finds the references; its decoder has a note about them.

    Raises:
        ManifestError: after the last line, with every reason: something could not be listed (a folder that cannot be
            read, a reference that is too long).
    """
    root = os.fspath(folder)
    problems: list[BadLine] = []
    references = references or References()
    for path in walk(root, problems, others):
        if is_included(path, include):
            seconds = probe(os.path.join(os.path.abspath(root), path)) if probe else None
            facts = {"duration": round(seconds, 6)} if seconds and math.isfinite(seconds) and seconds > 0 else {}
            line = file_line(root, path, references, facts)
            if isinstance(line, BadLine):
                problems.append(line)
            else:
                yield line
    if problems:
        raise ManifestError(root, problems[: ManifestError.LIMIT], len(problems))


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


def file_state(path: str) -> dict[str, Any]:
    """Return the state of a recording for its row: its `size` in bytes, and when it was `modified`, in UTC with
    microseconds. So a changed recording has another row. {} if the file cannot be looked at, such as a dangling link.

        {"size": 480044, "modified": "2026-11-23T09:15:02.000417Z"}
    """
    try:
        status = os.stat(path)
        modified = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=status.st_mtime_ns // 1000)
    except (OSError, OverflowError):  # a file system may give a year that has no date
        return {}
    return {"size": status.st_size, "modified": modified.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


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


def count_other(name: str, others: Counter[str]) -> None:
    """Count a file by its extension if it is left out although it may be a recording."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix and suffix not in _KNOWN_SUFFIXES:
        others[suffix] += 1


def others_note(others: Counter[str]) -> str:
    """Return the sentence about the files that `count_other` counted, or ""."""
    if not others:
        return ""
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(SHOWN_KINDS))
    more = ", …" if len(others) > SHOWN_KINDS else ""
    advice = "to take them, name them in a list: voxbatch run @list.txt"
    return f"left out {counted(others.total(), 'file')} of other kinds ({kinds}{more}); {advice}"


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


def walk(root: str, problems: list[BadLine], others: Counter[str] | None = None) -> Iterator[str]:
    """Yield the recordings, relative to root, in natural order. The walk is not recursive: paths may be deep.

    Folders that cannot be listed are added to `problems`, and `others` counts the files that are left out.
    """
    others = Counter() if others is None else others
    visited: set[tuple[int, int]] = set()
    stack = [("", True)]
    while stack:
        path, is_folder = stack.pop()
        if not is_folder:
            yield path
            continue
        try:
            state = os.stat(os.path.join(root, path))
            if (state.st_dev, state.st_ino) not in visited:
                visited.add((state.st_dev, state.st_ino))
                stack += reversed(_entries(root, path, others))
        except OSError as error:
            problems.append(BadLine(0, f"{path or root!r}: cannot be listed: {error.strerror}; check its permissions"))


def _entries(root: str, path: str, others: Counter[str]) -> list[tuple[str, bool]]:
    """Return (path, True for a folder) of the recordings and the folders of one folder, in natural order."""
    with os.scandir(os.path.join(root, path)) as listing:
        folders = {  # os.path.isdir, because is_dir() raises for a link that leads to itself
            entry.name: entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
            for entry in listing
            if not entry.name.startswith(".")
        }
    entries = []
    for name in sorted(folders, key=natural_key):
        stem, suffix = os.path.splitext(name)
        if stem.endswith(SUBTITLED) and not folders[name]:
            continue
        is_recording = suffix.lower() in RECORDING_SUFFIXES
        if folders[name] or (is_recording and not is_source_code(os.path.join(root, path, name))):
            entries.append((os.path.join(path, name), folders[name]))
        else:
            count_other(name, others)
    return entries
