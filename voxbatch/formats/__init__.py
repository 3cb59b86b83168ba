"""Write a Transcript as the text of a file: subtitles, plain text, tables with times, or JSON; and name the file.

The package opens no file and chooses no folder. Give each format a folder of its own, because an item may be called
"summary". The name of a file is derived from the item's id: it is safe below any folder, and never the name of another
item's file. To add a format, write a function and put it in WRITERS.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voxbatch.formats.document import Document


@dataclass(frozen=True, slots=True)
class CueLimits:
    """The shape of cues. The defaults are those of Netflix's Timed Text Style Guide for adult programmes in English: 42
    characters, 2 lines, 20 characters per second, 2 frames between two cues."""

    max_line: int = 42
    """Columns of a line. A wide character (Chinese, Japanese, Korean) takes two columns, so 21 of them fill 42."""
    max_lines: int = 2
    max_cps: float = 20.0
    """Reading speed in columns per second. A cue outlasts its speech if a reader needs more time and the gap after it
    allows it. Faster speech is not cut."""
    frame_rate: float = 24.0
    """Frames per second of the video. Cues begin and end with a frame."""
    min_gap: int = 2
    """Frames without a cue between two cues."""


DEFAULT_LIMITS = CueLimits()


@dataclass(frozen=True, slots=True)
class Writer:
    """A format of an item's file. The file's encoding is UTF-8."""

    extension: str
    """Extension of the file, without a dot."""
    function: str
    """Module of this package, and its function from a Document to the text of the file. Most runs write no format, so
    `pkgutil.resolve_name` imports the module at its first use."""

    def write(self, document: Document) -> str:
        """Return the text of the file."""
        text: str = resolve_name(f"{__name__}.{self.function}")(document)
        return text


WRITERS: dict[str, Writer] = {
    "srt": Writer("srt", "subtitles:srt"),
    "vtt": Writer("vtt", "subtitles:vtt"),
    "vtt-words": Writer("vtt", "subtitles:vtt_words"),
    "ttml": Writer("ttml", "subtitles:ttml"),
    "ass": Writer("ass", "subtitles:ass"),
    "txt": Writer("txt", "tables:txt"),
    "tsv": Writer("tsv", "tables:tsv"),
    "ctm": Writer("ctm", "tables:ctm"),
    "rttm": Writer("rttm", "tables:rttm"),
    "textgrid": Writer("TextGrid", "tables:textgrid"),
    "json": Writer("json", "json_formats:to_json"),
    "whisperx-json": Writer("json", "json_formats:whisperx_json"),
    "openai-json": Writer("json", "json_formats:openai_json"),
}
"""The writer of each format. The name of the format is also the name of its folder, and of the choice
of --formats."""
EXTENSIONS = sorted({writer.extension for writer in WRITERS.values()})
MAX_NAME_BYTES = 255
"""Longest path component on every common Linux file system."""
MAX_PATH_BYTES = 768
"""Longest path of an item's file. An object's name in a cloud store may have 1,024 bytes; the rest is for the prefix
above the path."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff%/\\]")
_OUTPUT_EXTENSION_DOT = re.compile(rf"\.(?=(?:{'|'.join(EXTENSIONS)})$)")
_SUFFIX_BYTES = 1 + max(map(len, EXTENSIONS))
_STEM_BYTES = MAX_NAME_BYTES - _SUFFIX_BYTES
"""Longest stem of a file name. It is the same for every format, so that an item's files share their stem."""


def output_name(item_id: str, extension: str) -> str:
    """Return the relative POSIX path of an item's file: "a/b", "srt" → "a/b.srt".

    Different ids have different paths for each extension. The id is percent-encoded only where
    necessary, so that decoding restores it. Encoded are:

    - `%`, `\\`, control characters and lone surrogates (as in UTF-8; decode with "surrogatepass");
    - a slash that would leave a component empty ("/x" → "%2Fx", "gs://b/x" → "gs:/%2Fb/x");
    - the dots of a component "." or "..";
    - the last dot of a folder that is named like the output of some id ("a.srt/b" → "a%2Esrt/b"), with one of
      EXTENSIONS or with `extension`.

    A component of more than 255 bytes is cut. It then ends in "%~" (which encodes nothing) and 32 hexadecimal digits of
    the SHA-256 of the whole component. An id whose path would have more than 768 bytes becomes one such component, with
    a hash of the whole id. Names that differ in case or in Unicode normal form are different names.
    """
    *folders, name = re.split(r"(?<=[^/])/(?=.)", item_id, flags=re.DOTALL)
    last_dot = re.compile(rf"{_OUTPUT_EXTENSION_DOT.pattern}|\.(?={extension}$)")
    parts = [_truncated(last_dot.sub("%2E", _component(folder)), MAX_NAME_BYTES) for folder in folders]
    path = "/".join([*parts, _truncated(_component(name), _STEM_BYTES)])
    if len(path.encode()) > MAX_PATH_BYTES - _SUFFIX_BYTES:
        path = _truncated(_component(item_id), _STEM_BYTES)
    return f"{path}.{extension}"


def _component(text: str) -> str:
    return text.replace(".", "%2E") if text in {".", ".."} else _UNSAFE.sub(percent_encode, text)


def percent_encode(match: re.Match[str]) -> str:
    """Return the percent-encoding of a match's UTF-8 bytes."""
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _truncated(component: str, limit: int) -> str:
    encoded = component.encode()
    if len(encoded) <= limit:
        return component
    mark = f"%~{hashlib.sha256(encoded).hexdigest()[:32]}"
    beginning = encoded[: limit - len(mark)].decode(errors="ignore")
    return re.sub("%[0-9A-F]?$", "", beginning) + mark
