"""A manifest's lines ↔ Items: every line is checked once, here, and every bad one is reported with its number.

It streams: `survey` reads the whole manifest and keeps 4 bytes a line, `items` reads it again and builds what is
wanted. It does not find the lines (source.py does), and neither opens a recording nor looks whether it is there.

A line is a JSON object with `audio_filepath` and, where given and not null, `offset` ≥ 0, `duration` > 0 (seconds),
`channel` (from 0), `text`, `lang`, `id`. Other keys pass through.

The id, unless the line gives one, is `audio_filepath` as written, tidied ("./a.wav" and "a.wav" are one recording) and
without leading "/" and "../", then `#offset-duration` where `offset` is given, then `#chN` where `channel` is given:

    {"audio_filepath": "./a.wav", "offset": 12.5, "duration": 5, "channel": 1}  →  a.wav#12.5-5#ch1

Of an address it is what stands behind the scheme, without a query: gs://calls/a.wav → calls/a.wav.
Two lines with one id are refused: outputs are named after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from posixpath import normpath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.folder import folder_manifest
from voxbatch.manifest.policy import INSIDE, PathPolicy, quoted
from voxbatch.manifest.prefix import prefix_manifest, upload_line, uploads_manifest
from voxbatch.manifest.repeats import Repeats
from voxbatch.manifest.row import AUDIO, LineError, read_row, show
from voxbatch.manifest.source import Handle, Source, open_source
from voxbatch.records import Item
from voxbatch.storage import is_remote
from voxbatch.storage.address import name_of

__all__ = [
    "INSIDE",
    "Handle",
    "LineError",
    "PathPolicy",
    "Source",
    "Survey",
    "folder_manifest",
    "items",
    "open_source",
    "parse_line",
    "prefix_manifest",
    "survey",
    "upload_line",
    "uploads_manifest",
]

MAX_SECONDS = 30 * 24 * 3600
"""30 days: more is a wrong unit (milliseconds, samples) or a mistake."""
MAX_PATH_BYTES = 4096
"""Linux opens no longer path (PATH_MAX)."""
MAX_LANG_BYTES = 40
"""The longest language tag in use has about 35 (RFC 5646)."""
MAX_CHANNEL = 65_534
"""A WAV header counts channels in 16 bits."""
MAX_ID_BYTES = 1024
MAX_LANGUAGES = 200
"""Different values of `lang` that a survey counts; the others are counted together as "…"."""
_MISNOMERS = ("path", "audio", "audio_path", "file", "filename", "file_name", "wav", "url", "audio_file")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What one pass over a manifest without bad lines tells."""

    items: int
    fingerprint: str
    """sha256 over the lines used, blank lines, line ends and byte order marks aside: the same wherever the file is."""
    durations: NDArray[np.float32]
    """Seconds of each item, shape (items,), NaN where the line does not say."""
    with_text: int
    """How many have a reference."""
    languages: Counter[str]
    """Items by `lang`, those that have one."""

    @property
    def known_hours(self) -> float:
        return float(np.nansum(self.durations, dtype=np.float64)) / 3600


def survey(source: Source, policy: PathPolicy = INSIDE, limit: int | None = None) -> Survey:
    """Read every line (or the first `limit` items), check it all, keep almost nothing.

    Raises ManifestError with all bad lines (the first ManifestError.LIMIT, and how many there are).
    """
    bad, digest = _BadLines(), hashlib.sha256()
    durations = array("f")
    languages: Counter[str] = Counter()
    with_text = 0
    with contextlib.closing(Repeats()) as hashes:
        for item in _parsed(source, policy, limit, bad, digest.update):
            hashes.append(hash(item.id))  # 64 bits, keyed for each process: no manifest can aim at a collision
            durations.append(math.nan if item.duration is None else item.duration)
            with_text += item.text is not None
            if item.lang is not None:
                lang = item.lang
                languages[lang if lang in languages or len(languages) < MAX_LANGUAGES else "…"] += 1
        bad += _duplicates(source, policy, limit, hashes)
    if bad.total:
        raise ManifestError(source.name, bad.first, bad.total)
    if not durations:
        raise ManifestError(source.name, [BadLine(0, "no items: the manifest has no line that is not blank")])
    return Survey(len(durations), digest.hexdigest(), np.asarray(durations), with_text, languages)


def items(
    source: Source,
    policy: PathPolicy = INSIDE,
    limit: int | None = None,
    wanted: Callable[[int], bool] | NDArray[np.bool_] | None = None,
) -> Iterator[Item]:
    """The items of a surveyed manifest, in order, of which `wanted` (a test of the index, or a mask) is true."""
    take: Callable[[int], object] | None = wanted.data.__getitem__ if isinstance(wanted, np.ndarray) else wanted
    for index, (line, text) in enumerate(islice(source.lines(), limit)):
        if take is None or take(index):
            try:
                item = parse_line(text, line, index, source.base, policy)
            except LineError as error:
                raise ManifestError(source.name, [BadLine(line, str(error))]) from error
            yield item


def parse_line(text: bytes, line: int, index: int, base: str, policy: PathPolicy = INSIDE) -> Item:
    """One line, without its line end, to an Item; `base` is the manifest's absolute folder, or that folder's address.

    Raises LineError.
    """
    row = read_row(text)
    path = _path(row)
    offset, duration, channel = _seconds(row, "offset"), _seconds(row, "duration"), _channel(row)
    return Item(
        index=index,
        line=line,
        id=_id(row, path, offset, duration, channel),
        audio=policy.resolve(path, base),
        offset=offset or 0.0,
        duration=duration,
        text=_string(row, "text"),
        lang=_lang(row),
        channel=channel,
        row=row,
    )


class _BadLines:
    """The first ManifestError.LIMIT bad lines, and the count of all."""

    def __init__(self) -> None:
        self.first: list[BadLine] = []
        self.total = 0

    def add(self, line: int, reason: str) -> None:
        self.total += 1
        if len(self.first) < ManifestError.LIMIT:
            self.first.append(BadLine(line, reason))

    def __iadd__(self, other: _BadLines) -> _BadLines:
        self.first = sorted(self.first + other.first, key=lambda bad: bad.line)[: ManifestError.LIMIT]
        self.total += other.total
        return self


def _parsed(
    source: Source, policy: PathPolicy, limit: int | None, bad: _BadLines, seen: Callable[[bytes], object] | None = None
) -> Iterator[Item]:
    """The good items; the bad lines go to `bad`, and all lines to `seen`."""
    for index, (line, text) in enumerate(islice(source.lines(), limit)):
        if seen:
            seen(text + b"\n")
        try:
            item = parse_line(text, line, index, source.base, policy)
        except LineError as error:
            bad.add(line, str(error))
        else:
            yield item


def _duplicates(source: Source, policy: PathPolicy, limit: int | None, hashes: Repeats) -> _BadLines:
    """Lines that repeat an earlier id. Only where hashes repeat is the manifest read again, to compare the ids."""
    bad = _BadLines()
    suspects, others = hashes.first(ManifestError.LIMIT)
    if not suspects:
        return bad
    first_line: dict[str, int] = {}
    for item in _parsed(source, policy, limit, _BadLines()):
        if hash(item.id) not in suspects:
            continue
        first = first_line.setdefault(item.id, item.line)
        if first != item.line:
            bad.add(item.line, f"id {show(item.id)} is also line {first}'s; give each line its own `id`")
    bad.total += others
    return bad


def _path(row: dict[str, Any]) -> str:
    path = row.get(AUDIO)
    if path is None and AUDIO not in row:
        keys = ", ".join(show(key) for key in islice(row, 10)) or "none"
        hint = next((f"rename `{key}` to `{AUDIO}`" for key in _MISNOMERS if key in row), "name the recording with it")
        raise LineError(f"has no `{AUDIO}`, its keys: {keys}; {hint}")
    if not isinstance(path, str):
        raise LineError(f"`{AUDIO}` is {show(path)}; it must be a string, the recording's path")
    if not path or path.isspace():
        raise LineError(f"`{AUDIO}` is {show(path)}, empty; give the recording's path")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise LineError(f"`{AUDIO}` is {quoted(path)}, longer than {MAX_PATH_BYTES:,} bytes; no file has such a path")
    if "\0" in path:
        raise LineError(f"`{AUDIO}` is {quoted(path)}; no file name holds NUL: correct it")
    return path


def _seconds(row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    is_number = type(value) is float or type(value) is int  # not bool
    if is_number and (0 < value <= MAX_SECONDS or (value == 0 and key == "offset")):
        return float(value) + 0.0  # -0.0 becomes 0.0
    least = "0 or more" if key == "offset" else "more than 0"
    raise LineError(f"`{key}` is {show(value)}; it must be seconds, {least}, at most {MAX_SECONDS:,} (30 days)")


def _channel(row: dict[str, Any]) -> int | None:
    value = row.get("channel")
    if value is None or (type(value) is int and 0 <= value <= MAX_CHANNEL):
        return value
    raise LineError(f"`channel` is {show(value)}; give a whole number from 0 to {MAX_CHANNEL:,}, or null to mix all")


def _lang(row: dict[str, Any]) -> str | None:
    lang = _string(row, "lang") or None
    if lang is not None and len(lang.encode()) > MAX_LANG_BYTES:
        raise LineError(f"`lang` is {show(lang)}; it must be a language tag such as en or pt-BR")
    return lang


def _string(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value
    raise LineError(f"`{key}` is {show(value)}; it must be a string or null")


def _id(row: dict[str, Any], path: str, offset: float | None, duration: float | None, channel: int | None) -> str:
    value = row.get("id")
    if value is None:
        value = _derived_id(path, offset, duration, channel)
    elif type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not value or value.isspace():
        raise LineError(f"`id` is {show(value)}; it must be a string that is not empty, or a whole number")
    if not value.isprintable() and _CONTROL.search(value):
        raise LineError(f"`id` {show(value)} holds control characters; give the line an `id` without them")
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode()) > MAX_ID_BYTES:
        raise LineError(f"`id` {show(value)} is longer than {MAX_ID_BYTES:,} bytes; give the line a shorter `id`")
    return value


def _derived_id(path: str, offset: float | None, duration: float | None, channel: int | None) -> str:
    name = name_of(path) if ":" in path and is_remote(path) else normpath(path)
    if name[0] in "./":
        name = re.sub(r"^(?:\.\.(?:/|$)|/)+", "", name)
        if name in ("", "."):
            raise LineError(f"`{AUDIO}` {show(path)} is a folder; name a recording")
    if offset is not None:
        name += f"#{_compact(offset)}" + (f"-{_compact(duration)}" if duration is not None else "")
    return name + (f"#ch{channel}" if channel is not None else "")


def _compact(seconds: float) -> str:
    """12.5 → "12.5", 5.0 → "5", to the microsecond, which is less than a sample."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
