"""Describe the path of a recording: what it may be called, how a manifest writes it, and the state of its file.

{"audio_filepath": "day1/talk.wav", "size": 480044, "modified": "2026-11-23T09:15:02.000417Z"}
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any
from urllib.parse import quote

from voxbatch.storage import redacted

_SUFFIXES = (
    ".3g2 .3ga .3gp .3gpp .aac .aacp .ac3 .adts .aif .aifc .aiff .alaw .amr .ape .asf .au .avi .awb .bwf .caf"
    " .divx .dts .dv .eac3 .ec3 .f4a .f4b .f4v .flac .flv .g722 .g729 .gsm .latm .loas .m2a .m2p .m2t .m2ts"
    " .m4a .m4b .m4p .m4r .m4v .mka .mkv .mlp .mov .mp1 .mp2 .mp3 .mp4 .mpa .mpc .mpe .mpeg .mpg .mpga .msbc"
    " .mts .mxf .nist .nut .oga .ogg .ogm .ogv .ogx .opus .qt .qta .ra .rf64 .rm .rmvb .sbc .sln .sln12 .sln16"
    " .sln24 .sln32 .sln44 .sln48 .sln96 .sln192 .snd .sox .sph .spx .tak .thd .tod .ts .tta .ulaw .vob .voc"
    " .w64 .wav .wave .weba .webm .wma .wmv .wtv .wv"
)
SUBTITLED = ".subtitled"
"""End of the stem of a copy of a video with subtitles."""
RECORDING_SUFFIXES = frozenset(_SUFFIXES.split())
"""Extensions of recordings, in lower case. Headerless PCM (.raw, .pcm) is not among them, because nothing
gives its rate."""
LIST_MARK = "@"
LISTED_NAMES = 100_000
"""Names of a folder that are looked at for a message, at most."""
FILE_SCHEME = "file:"
"""Begin of a path that is percent-encoded."""


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


def is_recording(name: str) -> bool:
    """Return whether the extension of a path, or of an address, is a recording's."""
    return os.path.splitext(redacted(name, ""))[1].lower() in RECORDING_SUFFIXES


def is_subtitled_copy(name: str) -> bool:
    """Return whether a file is a copy of a video with subtitles, which --mux or --burn has made."""
    return os.path.splitext(name)[0].endswith(SUBTITLED)


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


def missing(name: str) -> str:
    """Return the sentence about a file that does not exist, with the name that was perhaps meant."""
    folder, base = os.path.split(name)
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.name for entry in islice(entries, LISTED_NAMES)]
    except OSError:
        return f"does not exist: there is no folder {folder}{path_advice(name)}"
    close = difflib.get_close_matches(base, names, 1)
    meant = f"; did you mean {os.path.join(folder, close[0])}?" if close else ""
    place = "" if os.path.isabs(name) else f" in {folder or os.getcwd()}"  # an absolute name has its folder
    return f"does not exist{place}{meant or path_advice(name)}"


def path_advice(name: str) -> str:
    """Return the end of a message about a path that may be meant as a web address, "host.org/talk.mp3", or that the
    shell or another system would understand; "" for another one."""
    if re.match(r"[\w-]+(\.[\w-]+)*\.[a-z]{2,6}/", name):
        return "; a web address begins with https://"
    if name.startswith("~"):
        return "; in quotes, the shell leaves ~ as it is: leave it outside"
    if name.startswith("file://"):
        return "; give a path, without file://"
    return "; a path of Linux has / in place of \\, and no drive" if re.match(r"[A-Za-z]:\\", name) else ""
