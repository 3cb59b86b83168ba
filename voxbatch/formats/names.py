"""An item's id → the name of its file: safe below any folder, and never another item's."""

from __future__ import annotations

import hashlib
import re

EXTENSIONS = ("srt", "vtt", "txt", "ctm", "json")
"""What formats.WRITERS knows."""
MAX_NAME_BYTES = 255
"""Of one path component, on every common Linux file system."""
MAX_PATH_BYTES = 768
"""An object's name in a cloud store may have 1,024; the rest is left for the prefix above it."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff%/\\]")
_FOLDER_AS_FILE = re.compile(rf"\.(?=(?:{'|'.join(EXTENSIONS)})$)")
_SUFFIX_BYTES = 1 + max(map(len, EXTENSIONS))
_STEM_BYTES = MAX_NAME_BYTES - _SUFFIX_BYTES
"""The same for every format, so that an item's files share their stem."""


def output_name(item_id: str, extension: str) -> str:
    """The relative POSIX path for an item's file: "a/b.wav", "srt" → "a/b.wav.srt". Different ids, different paths.

    `extension` is one of EXTENSIONS. The id is percent-encoded only where it must be, so that decoding gives it back:
    `%`, `\\`, control characters and lone surrogates (as UTF-8 would spell them; decode with "surrogatepass"); a slash
    that would leave a component empty ("/x" → "%2Fx", "gs://b/x" → "gs:/%2Fb/x"); the dots of a component "." or "..";
    the last dot of a folder that is named like some id's output ("a.srt/b" → "a%2Esrt/b").

    A component of more than 255 bytes is cut, and ends in "%~" (which encodes nothing) and 32 hexadecimal digits of the
    whole component's SHA-256. An id whose path would have more than 768 bytes becomes one such component, hashed whole.
    Names that differ in case or in Unicode normal form are different names.
    """
    *folders, name = re.split(r"(?<=[^/])/(?=.)", item_id, flags=re.DOTALL)
    parts = [_shortened(_FOLDER_AS_FILE.sub("%2E", _component(folder)), MAX_NAME_BYTES) for folder in folders]
    path = "/".join([*parts, _shortened(_component(name), _STEM_BYTES)])
    if len(path.encode()) > MAX_PATH_BYTES - _SUFFIX_BYTES:
        path = _shortened(_component(item_id), _STEM_BYTES)
    return f"{path}.{extension}"


def _component(text: str) -> str:
    return text.replace(".", "%2E") if text in {".", ".."} else _UNSAFE.sub(percent, text)


def percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _shortened(component: str, limit: int) -> str:
    encoded = component.encode()
    if len(encoded) <= limit:
        return component
    mark = f"%~{hashlib.sha256(encoded).hexdigest()[:32]}"
    kept = encoded[: limit - len(mark)].decode(errors="ignore")
    return re.sub("%[0-9A-F]?$", "", kept) + mark
