"""Parse the bytes of one line to its JSON object, or give the reason why that fails: encoding, syntax, nesting,
numbers."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from voxbatch.safe_text import mask_secrets, redact_secrets, shorten_masks

AUDIO_KEY, AUDIOS_KEY = "audio_filepath", "audio_filepaths"
"""Keys of a recording, and of the several recordings of a question."""
MAX_LINE_BYTES = 10_000_000
"""Longest line in bytes. A longer one belongs to a manifest that lost its line ends, or is not a manifest. The words of
ten hours with their times take 8 MB."""
MAX_VALUES = 500_000
"""Most commas and opening brackets in a line: the words of ten hours with their times. A parsed value takes up to 200
bytes of memory, however short it is in the line, so the length alone would not bound the memory."""

MAX_DEPTH = 64
"""Levels of nesting in a line, far below the depth at which writing the row again would exhaust the stack."""
_SEARCHED = 20_000
"""Characters around an excerpt in which secrets are searched: a secret longer than the excerpt is masked whole."""
_JSON_TYPES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


class LongLine(bytes):
    """The first byte of a line that is longer than MAX_LINE_BYTES. The rest was read and dropped."""

    num_bytes = 0
    """Length of the whole line."""


class LineError(Exception):
    """One line cannot be used; the message is the reason. `survey` collects these errors into a ManifestError."""


def parse_json_line(text: bytes) -> dict[str, Any]:
    """Return the JSON object of one line.

    Raises:
        LineError: the line is too long, not UTF-8, not a JSON object, nested too deep, or holds too many values or one
            that cannot be written again.
    """
    _check_size(text)
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        at, byte = error.start, text[error.start]
        raise LineError(f"byte 0x{byte:02X} at byte offset {at} is not UTF-8; save the file again as UTF-8") from error
    try:
        row = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise LineError(_not_json(decoded, error)) from error
    except RecursionError as error:
        raise LineError(f"nested too deep; at most {MAX_DEPTH} levels are allowed") from error
    except ValueError as error:
        digits = f"{sys.get_int_max_str_digits():,}"
        raise LineError(f"holds a whole number of more than {digits} digits; write it as a string") from error
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(row) > MAX_DEPTH:
        raise LineError(f"nested too deep; at most {MAX_DEPTH} levels are allowed")
    if not isinstance(row, dict):
        raise LineError(
            f"is {_JSON_TYPES.get(type(row), 'null')}, {quote(row)}; a line is a JSON object with `{AUDIO_KEY}`"
        )
    if b"\\u" in text:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise LineError(f"holds {half}, half of a surrogate pair and no character; write the text again") from error
    return row


def _check_size(text: bytes) -> None:
    size = text.num_bytes if isinstance(text, LongLine) else len(text)
    if size > MAX_LINE_BYTES:
        raise LineError(f"has {size:,} bytes, at most {MAX_LINE_BYTES:,} are allowed; write one JSON object a line")
    if size > MAX_VALUES and (values := sum(map(text.count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise LineError(
            f"holds {values:,} commas and opening brackets, at most {MAX_VALUES:,} are allowed; keep long lists in a "
            "file of their own, and name the file in the line"
        )


def quote(value: object) -> str:
    """Return a value as a message quotes it: at most 80 characters, without the secrets of an address, and without
    characters that control a terminal."""
    if isinstance(value, str):
        text = repr(redact_secrets(value[:_SEARCHED])[:81])
    else:
        text = redact_secrets(json.dumps(value)[:_SEARCHED])
    return text if len(text) <= 82 else text[:81] + "…"


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    if text.startswith("{") and (error.pos >= len(text) or not text.rstrip().endswith("}")):
        return f"ends within a JSON object, {quote(text)}; the file was cut off, or an object spans lines: correct it"
    begin = max(0, error.pos - _SEARCHED)
    masked = mask_secrets(text[begin : error.pos + _SEARCHED])
    near = quote(shorten_masks(masked[max(0, error.pos - begin - 20) :][:60]))
    return f"not JSON: {error.msg} at column {error.pos + 1}, near {near}; write one JSON object a line"


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [child for v in inner for child in (v.values() if isinstance(v, dict) else v)]
    return depth


def _refuse_nan(name: str) -> NoReturn:
    raise LineError(f"holds {name}, which JSON does not have; write a number, or leave the key out")


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise LineError(f"holds the number {quote(digits)}, beyond float64; correct it, or leave the key out")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_nan, parse_float=_parse_finite)
