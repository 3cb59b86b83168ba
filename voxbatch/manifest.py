"""A manifest's lines ↔ Items: every line is checked once, here, and every bad one is reported with its number.

It streams: `survey` reads the whole manifest and keeps 16 bytes a line, `items` reads it again and builds what is
wanted. It does not find the lines (sources.py does), and neither opens a recording nor looks whether it is there.

A line is a JSON object with `audio_filepath` and, where given and not null, `offset` ≥ 0, `duration` > 0 (seconds),
`channel` (from 0), `text`, `lang`, `id`. Other keys pass through.

The id, unless the line gives one, is `audio_filepath` as written, tidied ("./a.wav" and "a.wav" are one recording) and
without leading "/" and "../", then `#offset-duration` where `offset` is given, then `#chN` where `channel` is given:

    {"audio_filepath": "./a.wav", "offset": 12.5, "duration": 5, "channel": 1}  →  a.wav#12.5-5#ch1

Two lines with one id are refused: outputs are named after it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from posixpath import normpath
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.records import Item
from voxbatch.sources import MAX_LINE_BYTES, Source

MAX_SECONDS = 30 * 24 * 3600
"""30 days: more is a wrong unit (milliseconds, samples) or a mistake."""

MAX_CHANNEL = 65_534
"""A WAV header counts channels in 16 bits."""

MAX_ID_BYTES = 1024
MAX_DEPTH = 64
"""Levels of nesting in a line: far from where writing the row again would exhaust the stack."""

MAX_LANGUAGES = 200
"""Different values of `lang` that a survey counts; the others are counted together as "…"."""

_AUDIO = "audio_filepath"
_MISNOMERS = ("path", "audio", "audio_path", "file", "filename", "file_name", "wav", "url", "audio_file")
_KINDS: dict[type, str] = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:,[^:/]*)?:(//)?", re.IGNORECASE)
_PROTOCOL = re.compile(
    "async|bluray|cache|concatf?|crypto|data|fd|file|ftp|gophers?|hls|https?|ipfs|ipns|md5|mmsh|mmst|pipe|prompeg"
    "|rist|rtmp.*|rtp|sctp|sftp|smb|srtp?|subfile|tcp|tee|tls|udp|udplite|unix|zmq"
)
"""To ffmpeg, "concat:a|b" and its like are something other than a file of that name."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LineError(Exception):
    """Why one line cannot be used; `survey` gathers them into a ManifestError."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """What a manifest may name: local files inside its own folder, unless told otherwise.

    Paths are judged, and later opened, as they read once "." and ".." are resolved against the manifest's folder.
    Symbolic links inside an admitted folder are followed: only those who can write there can make one.
    """

    allow_outside: bool = False
    """Admit any local path."""
    only_under: tuple[str, ...] = ()
    """Absolute folders that are admitted in place of the manifest's own."""

    def __post_init__(self) -> None:
        if self.allow_outside and self.only_under:
            raise ConfigError("--allow-outside and --only-under contradict each other; give one of them")
        for folder in self.only_under:
            if not folder.startswith("/"):
                raise ConfigError(f"--only-under {folder!r} is relative; give an absolute folder")
        object.__setattr__(self, "only_under", tuple(_tidy(folder) for folder in self.only_under))

    def resolve(self, path: str, base: str) -> str:
        """The absolute path of `path` in a manifest whose folder is `base`. Raises LineError if it is not admitted."""
        if ":" in path and (match := _SCHEME.match(path)):
            _refuse_scheme(path, match[1].lower(), bool(match[2]))
        resolved = _tidy(path if path[0] == "/" else f"{base}/{path}")
        if self.allow_outside:
            return resolved
        folders = self.only_under or (base,)
        for folder in folders:
            if resolved.startswith(folder if folder[-1] == "/" else folder + "/"):
                return resolved
        raise LineError(
            f"`{_AUDIO}` {_show(path)} is outside of {', '.join(folders)}, all that this manifest may name; move the"
            " recording there, or admit its folder with --only-under DIR, or any with --allow-outside"
        )


INSIDE = PathPolicy()
"""The default."""


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What one pass over a manifest without bad lines tells."""

    items: int
    fingerprint: str
    """sha256 over the lines used, blank lines, line ends and byte order marks aside: the same wherever the file is."""
    durations: NDArray[np.float64]
    """Seconds of each item, shape (items,), NaN where the line does not say."""
    with_text: int
    """How many have a reference."""
    languages: Counter[str]
    """Items by `lang`, those that have one."""

    @property
    def known_hours(self) -> float:
        return float(np.nansum(self.durations)) / 3600


def survey(source: Source, policy: PathPolicy = INSIDE, limit: int | None = None) -> Survey:
    """Read every line (or the first `limit` items), check it all, keep almost nothing.

    Raises ManifestError with all bad lines (the first ManifestError.LIMIT, and how many there are).
    """
    bad, digest = _BadLines(), hashlib.sha256()
    hashes, durations = array("q"), array("d")
    languages: Counter[str] = Counter()
    with_text = 0
    for item in _parsed(source, policy, limit, bad, digest.update):
        hashes.append(hash(item.id))  # 64 bits, keyed for each process: no manifest can aim at a collision
        durations.append(math.nan if item.duration is None else item.duration)
        with_text += item.text is not None
        if item.lang is not None:
            lang = item.lang[:40]
            languages[lang if lang in languages or len(languages) < MAX_LANGUAGES else "…"] += 1
    bad += _duplicates(source, policy, limit, np.asarray(hashes, dtype=np.int64))
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
    take: Callable[[int], object] | None = wanted.tobytes().__getitem__ if isinstance(wanted, np.ndarray) else wanted
    for index, (line, text) in enumerate(islice(source.lines(), limit)):
        if take is None or take(index):
            try:
                item = parse_line(text, line, index, source.base, policy)
            except LineError as error:
                raise ManifestError(source.name, [BadLine(line, str(error))]) from error
            yield item


def parse_line(text: bytes, line: int, index: int, base: str, policy: PathPolicy = INSIDE) -> Item:
    """One line, without its line end, to an Item; `base` is the absolute folder of the manifest. Raises LineError."""
    row = _read_row(text)
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
        lang=_string(row, "lang") or None,
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


def _duplicates(source: Source, policy: PathPolicy, limit: int | None, hashes: NDArray[np.int64]) -> _BadLines:
    """Lines that repeat an earlier id. Only where hashes repeat is the manifest read again, to compare the ids."""
    bad = _BadLines()
    order = np.argsort(hashes, kind="stable")
    repeats = np.sort(order[1:][hashes[order[1:]] == hashes[order[:-1]]])
    suspects = set(hashes[repeats[: ManifestError.LIMIT]].tolist())
    if not suspects:
        return bad
    first_line: dict[str, int] = {}
    for item in _parsed(source, policy, limit, _BadLines()):
        if hash(item.id) not in suspects:
            continue
        first = first_line.setdefault(item.id, item.line)
        if first != item.line:
            bad.add(item.line, f"id {_show(item.id)} is also line {first}'s; give each line its own `id`")
    bad.total += int(np.isin(hashes[repeats], list(suspects), invert=True).sum())
    return bad


def _read_row(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_LINE_BYTES:
        raise LineError(f"longer than {MAX_LINE_BYTES:,} bytes; write one JSON object a line")
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
        raise LineError(f"is {_KINDS.get(type(row), 'null')}, {_show(row)}; a line is a JSON object with `{_AUDIO}`")
    if b"\\u" in text:
        _refuse_surrogates(row)
    return row


def _path(row: dict[str, Any]) -> str:
    path = row.get(_AUDIO)
    if path is None and _AUDIO not in row:
        keys = ", ".join(_show(key) for key in islice(row, 10)) or "none"
        hint = next((f"rename `{key}` to `{_AUDIO}`" for key in _MISNOMERS if key in row), "name the recording with it")
        raise LineError(f"has no `{_AUDIO}`, its keys: {keys}; {hint}")
    if not isinstance(path, str):
        raise LineError(f"`{_AUDIO}` is {_show(path)}; it must be a string, the recording's path")
    if not path or path.isspace():
        raise LineError(f"`{_AUDIO}` is {_show(path)}, empty; give the recording's path")
    if "\0" in path:
        raise LineError(f"`{_AUDIO}` is {_show(path)}; no file name holds NUL: correct it")
    return path


def _seconds(row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    is_number = type(value) is float or type(value) is int  # not bool
    if is_number and (0 < value <= MAX_SECONDS or (value == 0 and key == "offset")):
        return float(value) + 0.0  # -0.0 becomes 0.0
    least = "0 or more" if key == "offset" else "more than 0"
    raise LineError(f"`{key}` is {_show(value)}; it must be seconds, {least}, at most {MAX_SECONDS:,} (30 days)")


def _channel(row: dict[str, Any]) -> int | None:
    value = row.get("channel")
    if value is None or (type(value) is int and 0 <= value <= MAX_CHANNEL):
        return value
    raise LineError(f"`channel` is {_show(value)}; give a whole number from 0 to {MAX_CHANNEL:,}, or null to mix all")


def _string(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value
    raise LineError(f"`{key}` is {_show(value)}; it must be a string or null")


def _id(row: dict[str, Any], path: str, offset: float | None, duration: float | None, channel: int | None) -> str:
    value = row.get("id")
    if value is None:
        value = _derived_id(path, offset, duration, channel)
    elif type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not value or value.isspace():
        raise LineError(f"`id` is {_show(value)}; it must be a string that is not empty, or a whole number")
    if not value.isprintable() and _CONTROL.search(value):
        raise LineError(f"`id` {_show(value)} holds control characters; give the line an `id` without them")
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode()) > MAX_ID_BYTES:
        raise LineError(f"`id` {_show(value)} is longer than {MAX_ID_BYTES:,} bytes; give the line a shorter `id`")
    return value


def _derived_id(path: str, offset: float | None, duration: float | None, channel: int | None) -> str:
    name = normpath(path)
    if name[0] in "./":
        name = re.sub(r"^(?:\.\.(?:/|$)|/)+", "", name)
        if name in ("", "."):
            raise LineError(f"`{_AUDIO}` {_show(path)} is a folder; name a recording")
    if offset is not None:
        name += f"#{_compact(offset)}" + (f"-{_compact(duration)}" if duration is not None else "")
    return name + (f"#ch{channel}" if channel is not None else "")


def _compact(seconds: float) -> str:
    """12.5 → "12.5", 5.0 → "5", to the microsecond, which is less than a sample."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _tidy(path: str) -> str:
    """normpath, but "//a" is "/a" too."""
    path = normpath(path)
    return path[1:] if path.startswith("//") else path


def _show(value: object) -> str:
    """A value as a reason quotes it: at most 80 characters, and none that a terminal would obey."""
    text = repr(value[:81]) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 82 else text[:81] + "…"


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    if text.startswith("{") and (error.pos >= len(text) or not text.rstrip().endswith("}")):
        return f"ends within a JSON object, {_show(text)}; the file was cut off, or an object spans lines: mend it"
    near = _show(text[max(0, error.pos - 20) :][:60])
    return f"not JSON: {error.msg} at column {error.pos + 1}, near {near}; write one JSON object a line"


def _refuse_scheme(path: str, scheme: str, has_authority: bool) -> None:
    if scheme == "file":
        raise LineError(f"`{_AUDIO}` {_show(path)} is a file: URI; write the plain path")
    if has_authority:
        raise LineError(f"`{_AUDIO}` {_show(path)} is remote; this version reads local files only: copy it here")
    if _PROTOCOL.fullmatch(scheme.partition("+")[0]):
        what = f"names the protocol {scheme}:, and only files are allowed"
        raise LineError(f"`{_AUDIO}` {_show(path)} {what}; for a file of that name write ./{scheme}:…")


def _refuse_surrogates(row: dict[str, Any]) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise LineError(f"holds {half}, half of a surrogate pair and no character; write the text again") from error


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [child for v in inner for child in (v.values() if isinstance(v, dict) else v)]
    return depth


def _refuse_constant(name: str) -> NoReturn:
    raise LineError(f"holds {name}, which JSON does not have; write a number, or leave the key out")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise LineError(f"holds the number {_show(digits)}, beyond float64; correct it, or leave the key out")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
