"""Describe a folder of recordings as the lines of a manifest.

The folder is walked in natural order of the relative paths (track 2 before track 10). Each file with an extension that
voxbatch decodes is an item, with its reference; see `references`. Hidden files and folders are left out.
Symbolic links are followed, and a folder that is reached twice is listed once. A dangling link is listed, so that it
ends as a failure instead of vanishing.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES, is_included, is_subtitled_copy
from voxbatch.safe_text import counted
from voxbatch.sources.references import References, file_line

_OTHER_SUFFIXES = (
    ".ass .bin .cha .csv .ctm .db .doc .docx .eaf .gif .gz .heic .htm .html .jpeg .jpg .json .jsonl .lab .lock .log"
    " .lrc .m3u .m3u8 .md .mid .mlf .npy .npz .parquet .pdf .phn .pls .png .py .rttm .seglst .sh .srt .stm .sub .tar"
    " .textgrid .toml .trn .trs .tsv .ttml .txt .vtt .webp .wrd .xls .xlsx .xml .yaml .yml .zip"
)
"""Extensions of texts, tables, pictures and archives, which a folder of recordings holds, too, and of files in OUT."""
_KNOWN_SUFFIXES = RECORDING_SUFFIXES.union(_OTHER_SUFFIXES.split())
SHOWN_KINDS = 5
"""Number of extensions that a note about left out files names."""
TRANSPORT_SUFFIXES = frozenset((".ts", ".mts"))
"""Extensions of MPEG transport streams, which are also those of TypeScript."""
TRANSPORT_PACKETS = (188, 192)
"""Bytes of a packet of a transport stream, without and with a time before it."""
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
        if is_subtitled_copy(name) and not folders[name]:
            continue
        suffix = os.path.splitext(name)[1]
        is_recording = suffix.lower() in RECORDING_SUFFIXES
        if folders[name] or (is_recording and not is_source_code(os.path.join(root, path, name))):
            entries.append((os.path.join(path, name), folders[name]))
        else:
            count_other(name, others)
    return entries
