"""The name of an item's file, which is derived from the item's id: safe below any folder, and never the name of another
item's file."""

from __future__ import annotations

import hashlib
import re

from voxbatch.formats import EXTENSIONS

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
