"""Convert one line of a manifest to an Item.

A line is a JSON object with `audio_filepath`. These keys are optional and may be null: `offset` ≥ 0 and `duration` > 0
(seconds), `channel` (from 0), `text`, `lang`, `hotwords`, `id`. Other keys pass through.

If the line gives no id, the id is `audio_filepath` as written, normalised ("./a.wav" and "a.wav" are one recording) and
without leading "/" and "../". If all paths are absolute, the folder that holds all recordings is left out.
`#offset-duration` follows if `offset` is given, then `#chN` if `channel` is given:

    {"audio_filepath": "./a.wav", "offset": 12.5, "duration": 5, "channel": 1}  →  a.wav#12.5-5#ch1

The id of an address is the part after the scheme, without a query: gs://calls/a.wav → calls/a.wav. Control characters
of a name are percent-encoded. Two lines with one id are refused, because outputs are named after the id.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from itertools import islice
from posixpath import normpath
from typing import Any
from urllib.parse import quote as percent_encoded

from voxbatch.languages import language_tag
from voxbatch.manifest.json_line import AUDIO_KEY, LineError, parse_json_line, quote
from voxbatch.manifest.path_policy import DEFAULT_POLICY, PathPolicy, quote_path
from voxbatch.manifest.recording_path import FILE_SCHEME
from voxbatch.records import Item
from voxbatch.storage import is_remote
from voxbatch.storage.address import name_of
from voxbatch.storage.signatures import without_signatures

MAX_SECONDS = 30 * 24 * 3600
"""Largest offset or duration, 30 days. A larger value is a wrong unit (milliseconds, samples) or a mistake."""
MAX_PATH_BYTES = 4096
"""Longest path that Linux opens (PATH_MAX)."""
MAX_LANG_BYTES = 40
"""Longest language tag. The longest one in use has about 35 bytes (RFC 5646)."""
MAX_TEXT_CHARACTERS = 1_500_000
"""Longest reference: a day of fast speech has 1.5 million characters. Scoring takes up to 100 bytes of memory for each
character."""
NFKC_GROWTH = 18
"""Largest number of characters that Unicode's NFKC, which scoring applies, makes of one."""
_NFKC_BLOCK = 10_000
"""Characters that are normalised at a time, to stop at the limit."""
MAX_CHANNEL = 65_534
"""Highest channel number. A WAV header counts channels in 16 bits."""
MAX_ID_BYTES = 1024
_WRONG_AUDIO_KEYS = ("path", "audio", "audio_path", "file", "filename", "file_name", "wav", "url", "audio_file")
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def item_key(item_id: str, text: bytes) -> bytes:
    """Return the key of an item: 8 bytes for its id, and 8 bytes for its line without the signatures of its addresses.
    An object whose address is signed anew is the same.

    Of a million ids, two have the same 8 bytes with a probability of 3 in 100 million.
    """
    if b"?" in text and b"://" in text:
        row = parse_json_line(text)
        if (unsigned_row := without_signatures(row)) != row:
            text = json.dumps(unsigned_row).encode()
    return id_key(item_id) + hashlib.blake2b(text, digest_size=8).digest()


def id_key(item_id: str) -> bytes:
    """Return the first half of the key of an item."""
    return hashlib.blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def parse_line(
    text: bytes, line: int, index: int, base: str, policy: PathPolicy = DEFAULT_POLICY, id_root: str = ""
) -> Item:
    """Parse one line, without its line end, to an Item.

    Args:
        text: bytes of the line.
        line: 1-based line number in the manifest.
        index: 0-based position among the manifest's items.
        base: absolute folder of the manifest, or the address of that folder.
        id_root: see Source.id_root.

    Raises:
        LineError: the line cannot be used.
    """
    row = parse_json_line(text)
    path, *further = [_path(row, value) for value in policy.recordings(row) or [None]]
    offset, duration, channel = _seconds(row, "offset"), _seconds(row, "duration"), row.get("channel")
    if channel is not None and not (type(channel) is int and 0 <= channel <= MAX_CHANNEL):
        allowed = f"give a whole number from 0 to {MAX_CHANNEL:,}, or null to mix all"
        raise LineError(f"`channel` is {quote(channel)}; {allowed}")
    audio = policy.resolve(path, base)
    item_id = _id(row, path.removeprefix(id_root), offset, duration, channel)
    reference, lang = _string(row, "text"), _string(row, "lang") or None
    if reference is not None and len(reference) > MAX_TEXT_CHARACTERS // NFKC_GROWTH:
        _check_reference(reference)
    if lang is not None and len(lang.encode()) > MAX_LANG_BYTES:
        raise LineError(f"`lang` is {quote(lang)}; it must be a language tag such as en or pt-BR")
    details = policy.details(row, reference)
    return Item(
        index=index,
        line=line,
        id=item_id,
        audio=audio,
        offset=offset or 0.0,
        duration=duration,
        lang=language_tag(lang) if lang else None,
        channel=channel,
        row=text,
        further=tuple(policy.resolve(recording, base) for recording in further),
        task=policy.task,
        **details,
    )


def _path(row: dict[str, Any], path: Any) -> str:
    if path is None and AUDIO_KEY not in row:
        keys = ", ".join(quote(key) for key in islice(row, 10)) or "none"
        hint = next(
            (f"rename `{key}` to `{AUDIO_KEY}`" for key in _WRONG_AUDIO_KEYS if key in row),
            "a transcript is no list of recordings: give the recordings, or score it: voxbatch score FILE --ref REF"
            if row.keys() >= {"text", "offset", "duration"}
            else "name the recording with it",
        )
        raise LineError(f"has no `{AUDIO_KEY}`, its keys: {keys}; {hint}")
    if not isinstance(path, str):
        raise LineError(f"`{AUDIO_KEY}` is {quote(path)}; it must be a string, the recording's path")
    if not path or path.isspace():
        raise LineError(f"`{AUDIO_KEY}` is {quote(path)}, empty; give the recording's path")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise LineError(
            f"`{AUDIO_KEY}` is {quote_path(path)}, longer than {MAX_PATH_BYTES:,} bytes; no file has such a path"
        )
    if "\0" in path:
        raise LineError(f"`{AUDIO_KEY}` is {quote_path(path)}; no file name holds NUL: correct it")
    return path


def _seconds(row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    is_number = type(value) is float or type(value) is int  # not bool
    if is_number and (0 < value <= MAX_SECONDS or (value == 0 and key == "offset")):
        return float(value) + 0.0  # -0.0 becomes 0.0
    least = "0 or more" if key == "offset" else "more than 0"
    raise LineError(f"`{key}` is {quote(value)}; it must be seconds, {least}, at most {MAX_SECONDS:,} (30 days)")


def _string(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value
    raise LineError(f"`{key}` is {quote(value)}; it must be a string or null")


def _check_reference(text: str) -> None:
    """Check the length of a long reference, as it is written and after NFKC."""
    count, normalized = len(text), 0
    for start in range(0, min(count, MAX_TEXT_CHARACTERS), _NFKC_BLOCK):
        normalized += len(unicodedata.normalize("NFKC", text[start : start + _NFKC_BLOCK]))
        if normalized > MAX_TEXT_CHARACTERS:
            break
    if max(count, normalized) > MAX_TEXT_CHARACTERS:
        raise LineError(
            f"`text` has {max(count, normalized):,} characters or more after normalisation, at most "
            f"{MAX_TEXT_CHARACTERS:,} are allowed; split it with `offset` and `duration`, or leave `text` out"
        )


def _id(row: dict[str, Any], path: str, offset: float | None, duration: float | None, channel: int | None) -> str:
    value = row.get("id")
    if value is None:
        value = _path_id(path)
        if offset is not None:
            value += f"#{_compact(offset)}" + (f"-{_compact(duration)}" if duration is not None else "")
        if channel is not None:
            value += f"#ch{channel}"
    elif type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not value or value.isspace():
        raise LineError(f"`id` is {quote(value)}; it must be a string that is not empty, or a whole number")
    if not value.isprintable() and _CONTROL_CHARACTERS.search(value):
        raise LineError(f"`id` {quote(value)} holds control characters; give the line an `id` without them")
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode()) > MAX_ID_BYTES:
        raise LineError(f"`id` {quote(value)} is longer than {MAX_ID_BYTES:,} bytes; give the line a shorter `id`")
    return value


def _path_id(path: str) -> str:
    """Return the id of a recording whose line gives none."""
    value = name_of(path) if ":" in path and is_remote(path) else normpath(path.removeprefix(FILE_SCHEME))
    if value[0] in "./":
        value = re.sub(r"^(?:\.\.(?:/|$)|/)+", "", value)
        if value in ("", "."):
            raise LineError(f"`{AUDIO_KEY}` {quote(path)} is a folder; name a recording")
    if not value.isprintable():
        value = _CONTROL_CHARACTERS.sub(lambda match: percent_encoded(match[0]), value)
    return value


def _compact(seconds: float) -> str:
    """Return seconds as short text: 12.5 → "12.5", 5.0 → "5". The precision is a microsecond, which is less than a
    sample."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
