"""Join the segments of an HLS playlist (RFC 8216, talk.m3u8) to one recording in a temporary file.

A playlist of playlists names the sound as a rendition, or in each of its variants: the default rendition is taken, else
the variant with the fewest bits a second, because all have the same sound. A segment must lie on a server, or below the
folder of a local playlist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urljoin

from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import is_remote, redacted
from voxbatch.storage.recording import FileRecording, Recording
from voxbatch.storage.temporary_files import temporary_file

MAX_BYTES = 16 << 20
"""Largest playlist: one of 100,000 segments with long addresses."""
DISCONTINUITY = "its HLS playlist joins several recordings (#EXT-X-DISCONTINUITY), perhaps advertisements"
_READ_BYTES = 1 << 20
_ATTRIBUTE = re.compile(r'([A-Z0-9-]+)=("[^"]*"|[^,]*)')
Open = Callable[[str], Recording]


class _Segment(NamedTuple):
    """Bytes [start, start + size) of a file; all of it if size is None."""

    place: str
    start: int = 0
    size: int | None = None


def open_playlist(uri: str, open_file: Open, max_bytes: int) -> Recording:
    """Return the recording that a playlist has in segments. `open_file` opens the playlist and each segment.

    Raises:
        AudioError: it is no playlist, is encrypted or unfinished, or leads out of its folder.
        StorageError: see Stores.recording.
    """
    text = _text(uri, open_file)
    if variant := _variant(text):
        uri = _resolved(uri, variant)
        text = _text(uri, open_file)
    segments = list(_parse(uri, text))
    if not segments:
        raise AudioError(f"cannot read {redacted(uri)}: the playlist has no segments", FailureKind.EMPTY)
    with temporary_file(redacted(uri), _blocks(uri, segments, open_file, max_bytes)) as file:
        return FileRecording(os.dup(file.fileno()), (DISCONTINUITY,) if "#EXT-X-DISCONTINUITY\n" in text else ())


def _parse(uri: str, text: str) -> Iterator[_Segment]:
    """Yield the segments of a playlist in order, each after its initialisation segment if that is another one.

    Raises:
        AudioError: see `open_playlist`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith("#EXT-X-KEY") and "METHOD=NONE" not in line for line in lines):
        raise AudioError(f"cannot read {redacted(uri)}: its segments are encrypted", FailureKind.NOT_ALLOWED)
    if "#EXT-X-ENDLIST" not in lines:
        reason = "the playlist has no end (#EXT-X-ENDLIST): let its writer finish, then start again"
        raise AudioError(f"cannot read {redacted(uri)}: {reason}", FailureKind.CHANGED)
    byte_range, ends = "", dict[str, int]()
    for line in lines:
        tag, _, value = line.partition(":")
        if tag == "#EXT-X-MAP":
            named = _attributes(value)
            yield _segment(_resolved(uri, named.get("URI", "")), named.get("BYTERANGE", ""), {})
        elif tag == "#EXT-X-BYTERANGE":
            byte_range = value
        elif not line.startswith("#"):
            segment = _segment(_resolved(uri, line), byte_range, ends)
            byte_range = ""
            yield segment


def _segment(place: str, byte_range: str, ends: dict[str, int]) -> _Segment:
    """Return a segment. One without a start follows the previous one of its file, whose end is in `ends`."""
    if not byte_range:
        return _Segment(place)
    count, _, start = byte_range.partition("@")
    segment = _Segment(place, int(start) if start else ends.get(place, 0), int(count))
    ends[place] = segment.start + int(count)
    return segment


def _variant(text: str) -> str:
    """Return the playlist of the sound that a playlist of playlists names; "" if it is none."""
    lines, variants = [line.strip() for line in text.splitlines() if line.strip()], list[tuple[int, str]]()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        attributes = _attributes(line.partition(":")[2])
        is_audio = line.startswith("#EXT-X-MEDIA:") and attributes.get("TYPE") == "AUDIO"
        if is_audio and attributes.get("URI") and attributes.get("DEFAULT") == "YES":
            return attributes["URI"]
        if line.startswith("#EXT-X-STREAM-INF:") and not following.startswith("#"):
            variants.append((int(attributes.get("BANDWIDTH", "0") or 0), following))
    return min(variants)[1] if variants else ""


def _attributes(text: str) -> dict[str, str]:
    return {name: value.strip('"') for name, value in _ATTRIBUTE.findall(text)}


def _resolved(playlist: str, name: str) -> str:
    """Return the place of a file that a playlist names.

    Raises:
        AudioError: it leads to this machine, or out of the folder of a local playlist.
    """
    if is_remote(playlist):
        place = urljoin(playlist, name)
        is_allowed = is_remote(place)
    else:
        folder = os.path.dirname(os.path.realpath(playlist))
        place = name if is_remote(name) else os.path.join(folder, name)
        is_allowed = is_remote(name) or os.path.realpath(place).startswith(os.path.join(folder, ""))
    if not name or not is_allowed:
        reason = f"its segment {name[:80]!r} is not below the playlist, and on no server"
        raise AudioError(f"cannot read {redacted(playlist)}: {reason}", FailureKind.NOT_ALLOWED)
    return place


def _text(uri: str, open_file: Open) -> str:
    with closing(open_file(uri)) as file:
        data = file.pread(MAX_BYTES + 1, 0)
    if not data.removeprefix(b"\xef\xbb\xbf").startswith(b"#EXTM3U") or len(data) > MAX_BYTES:
        raise AudioError(f"cannot read {redacted(uri)}: it is no HLS playlist", FailureKind.NOT_AUDIO)
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")


def _blocks(uri: str, segments: list[_Segment], open_file: Open, max_bytes: int) -> Iterator[bytes]:
    total = 0
    for segment in segments:
        with closing(open_file(segment.place)) as file:
            end = file.size if segment.size is None else segment.start + segment.size
            if end > file.size:
                raise AudioError(f"cannot read {redacted(segment.place)}: it ends early", FailureKind.DAMAGED)
            total += end - segment.start
            if total > max_bytes:
                reason = f"its segments have more than {max_bytes:,} bytes: raise --max-http-gb"
                raise AudioError(f"cannot read {redacted(uri)}: {reason}", FailureKind.NOT_ALLOWED)
            for at in range(segment.start, end, _READ_BYTES):
                yield file.pread(min(_READ_BYTES, end - at), at)
