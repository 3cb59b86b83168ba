"""Read the duration from the header of an MP4 file (M4A, MOV, 3GP), without a decoder.

The file is a sequence of boxes (ISO/IEC 14496-12, section 4.2). The box moov contains the box mvhd, which has the
duration. The box moov is at the start or at the end of the file, so that a few small reads find it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from voxbatch.storage.recording import Recording

MAX_BOXES = 1_000
"""Number of boxes of a level that are looked at. Files that are not fragmented have fewer than 20. In a fragmented
file, moov comes first."""
_SMALL, _LARGE = struct.Struct(">I4s"), struct.Struct(">Q")
_MVHD = {0: struct.Struct(">8xII"), 1: struct.Struct(">16xIQ")}
"""Time scale and duration in the box mvhd, after its version and flags, by version (section 8.2.2)."""
_UNKNOWN = (0, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Durations that mean "unknown". A fragmented file has 0."""


def mp4_seconds(recording: Recording) -> float | None:
    """Return the duration in seconds that the header of an MP4 file claims; None for other files, or if it has none.

    Raises:
        AudioError, StorageError: the recording cannot be read.
    """
    if recording.pread(8, 0)[4:] != b"ftyp":
        return None
    for kind, start, end in _boxes(recording, 0, recording.size):
        if kind != b"moov":
            continue
        for inner, at, _ in _boxes(recording, start, min(end, recording.size)):
            if inner == b"mvhd":
                return _duration(recording.pread(32, at))
        return None
    return None


def is_cut_mp4(recording: Recording) -> bool:
    """Return whether an MP4 file lacks the box moov, or its end. Without it nothing can be decoded. Recorders write it
    last, so that a copy or an upload that broke off has none.

    Raises:
        AudioError, StorageError: the recording cannot be read.
    """
    if recording.pread(8, 0)[4:] != b"ftyp":
        return False
    boxes = _boxes(recording, 0, recording.size)
    return not any(kind == b"moov" and end <= recording.size for kind, _, end in boxes)


def _boxes(recording: Recording, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, start of the content, end) of each box between two positions. The last one may end after them."""
    for _ in range(MAX_BOXES):
        head = recording.pread(16, start)
        if start + _SMALL.size > end or len(head) < _SMALL.size:
            return
        (size, kind), header = _SMALL.unpack_from(head), _SMALL.size
        if size == 1 and len(head) == 16:  # the size has 64 bits
            size, header = _LARGE.unpack_from(head, header)[0], 16
        elif size == 0:  # up to the end
            size = end - start
        if size < header:
            return
        yield kind, start + header, start + size
        start += size


def _duration(content: bytes) -> float | None:
    """Return the duration in the content of the box mvhd, in seconds."""
    layout = _MVHD.get(content[0]) if content else None
    if layout is None or len(content) < 4 + layout.size:
        return None
    time_scale, duration = layout.unpack_from(content, 4)
    return duration / time_scale if time_scale and duration not in _UNKNOWN else None
