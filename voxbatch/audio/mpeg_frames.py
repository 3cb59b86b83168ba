"""Count the frames of MPEG audio (MP3, MP2) while a file is read.

Each frame has a header that gives its length, so the frames of a sound file follow each other without a gap. A decoder
skips the bytes between two frames without a word, and all later words are then too early. An incomplete last frame
shows that the file was cut off.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from voxbatch.audio.structure import TOLERANCE_S, unknown_tag_bytes
from voxbatch.storage.recording import Recording

MIN_FRAMES = 3
"""Number of frames in a row that prove that frames begin at a place. Single headers are also found in noise."""
_MAX_FRAME_BYTES = 2881
_READ_BYTES = 1 << 20
_KBPS = {  # by (is MPEG-1, layer); ISO 11172-3, section 2.4.2.3, and ISO 13818-3
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""Sampling rates in Hz by the version's bits: MPEG-1, MPEG-2 and MPEG-2.5."""


@dataclass(frozen=True, slots=True)
class FrameCount:
    """The frames of a file."""

    seconds: float
    """Length of all frames."""
    claimed_seconds: float | None
    """Length that the file's own header (Xing, Info or VBRI) claims, if it has one."""
    lost_seconds: float
    """Length of the audio that the bytes between the frames may have held, by the average of the frames."""
    is_cut: bool
    """True if the last frame is incomplete."""
    unread_bytes: int
    """Number of bytes after the last frame that are no tag and no padding, if they are more than a tag has."""

    def losses(self) -> Iterator[str]:
        """Yield a message for each sign of lost audio."""
        if self.lost_seconds > TOLERANCE_S:
            yield (
                f"damaged: about {self.lost_seconds:.2f} s between the frames are no audio and were left out, so that "
                "the times after them are too early"
            )
        claimed, seconds = self.claimed_seconds, self.seconds
        if claimed is not None and claimed > seconds + self.lost_seconds + TOLERANCE_S:
            yield f"the file was cut off: it ends after {seconds:.2f} s, and its header claims {claimed:.2f} s"
        elif claimed is not None and seconds > claimed + TOLERANCE_S:
            yield f"the header claims {claimed:.2f} s, and the file holds {seconds:.2f} s, all of which was read"
        if self.unread_bytes:
            yield f"the last {self.unread_bytes:,} bytes of the file are no MPEG audio and were not read"
        if self.is_cut and (claimed is None or claimed <= seconds):
            yield f"the file was cut off: it ends after {seconds:.2f} s in the middle of a frame"


class FrameCounter:
    """Counter of the frames of a recording. It follows a decoder through the file, so that a remote recording is
    fetched once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._buffer = b""
        """Bytes that were read and not yet counted."""
        self._read_to = 0
        """Position in the file after the buffer."""
        self._is_in_sync = False
        """True if the last bytes were a frame or a tag."""
        self._seconds = 0.0
        self._frame_bytes = self._lost_bytes = 0
        self._unexplained_bytes = 0
        """Bytes since the last frame that are neither a frame nor a tag. They are lost if another frame follows."""
        self._claimed_seconds: float | None = None

    def count_to(self, position: int) -> None:
        """Count the frames before a position in the file, except the last few."""
        while self._read_to < position:
            data = self._recording.pread(min(_READ_BYTES, position - self._read_to), self._read_to)
            if not data:
                return
            self._buffer += data
            self._read_to += len(data)
            self._count(len(self._buffer) - MIN_FRAMES * _MAX_FRAME_BYTES)

    def finish(self) -> FrameCount:
        """Count the rest of the file, and return the sums."""
        self.count_to(self._recording.size)
        self._count(len(self._buffer))
        average = self._seconds / self._frame_bytes if self._frame_bytes else 0.0
        unread, size = self._unexplained_bytes, self._recording.size
        is_other = unread > unknown_tag_bytes(size) and any(self._recording.pread(_READ_BYTES, size - unread))
        is_other = is_other and self._frame_bytes > 0  # frames of free format do not tell their lengths
        return FrameCount(
            self._seconds,
            self._claimed_seconds,
            self._lost_bytes * average,
            bool(self._buffer),
            unread if is_other else 0,
        )

    def _count(self, end: int) -> None:
        """Count the frames that begin before `end` in the buffer, and remove them from it."""
        buffer, at = self._buffer, 0
        while at < end:
            if (self._is_in_sync or _are_frames(buffer, at)) and (frame := frame_at(buffer, at)):
                if at + frame[0] > len(buffer):
                    break  # the file ends in this frame
                size, seconds = frame
                if not self._frame_bytes and (claimed := claimed_frames(buffer[at : at + size])) is not None:
                    self._claimed_seconds = claimed * seconds
                else:
                    self._seconds += seconds
                    self._lost_bytes += self._unexplained_bytes if self._frame_bytes else 0
                self._frame_bytes += size
                self._unexplained_bytes, self._is_in_sync = 0, True
                at += size
                continue
            if size := tag_bytes(buffer, at):
                at += size
                continue
            self._is_in_sync = False
            next_sync = buffer.find(b"\xff", at + 1)
            skipped = (next_sync if next_sync >= 0 else len(buffer)) - at
            self._unexplained_bytes += skipped
            at += skipped
        self._buffer = buffer[at:]
        self._read_to += max(0, at - len(buffer))  # a tag that is longer than the buffer


def _are_frames(buffer: bytes, at: int) -> bool:
    """Return whether MIN_FRAMES frames follow each other from a position on, or fewer to the end of the buffer."""
    for _ in range(MIN_FRAMES):
        frame = frame_at(buffer, at)
        if frame is None:
            return False
        at += frame[0]
        if at >= len(buffer):
            return at == len(buffer)
    return True


def frame_at(buffer: bytes, at: int) -> tuple[int, float] | None:
    """Return the length of the frame at a position in bytes and in seconds; None if there is no header of a frame."""
    header = buffer[at : at + 3]
    return _read_header(header) if len(header) == 3 and header[0] == 0xFF and header[1] >= 0xE0 else None


@functools.cache
def _read_header(header: bytes) -> tuple[int, float] | None:
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    bitrate, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return None
    bits, hz = 1000 * _KBPS[version == 3, layer][bitrate - 1], _RATES[version][rate]
    if layer == 1:
        return (12 * bits // hz + padding) * 4, 384 / hz
    samples = 576 if layer == 3 and version != 3 else 1152
    return samples // 8 * bits // hz + padding, samples / hz


def frame_bytes(head: bytes) -> int | None:
    """Return the length of the frame with these first bytes; None if they are no header of a frame."""
    return frame[0] if (frame := frame_at(head, 0)) else None


def tag_bytes(buffer: bytes, at: int) -> int:
    """Return the length of the tag at a position; 0 if there is none: ID3v1 and ID3v2 (id3.org), and APEv2 from its
    header on."""
    if buffer.startswith(b"APETAGEX", at):
        return 32 + int.from_bytes(buffer[at + 12 : at + 16], "little")
    if buffer.startswith(b"ID3", at) and len(head := buffer[at + 5 : at + 10]) == 5:
        flags, *size = head
        return 10 + sum(byte << 7 * place for place, byte in enumerate(reversed(size))) + (10 if flags & 0x10 else 0)
    return 128 if buffer.startswith(b"TAG", at) else 0


def claimed_frames(frame: bytes) -> int | None:
    """Return the number of frames that a file's first frame claims: the headers Xing, Info (of LAME) and VBRI."""
    is_mpeg1, is_mono = frame[1] >> 3 & 1, frame[3] >> 6 == 3
    at = 4 + ((17 if is_mono else 32) if is_mpeg1 else (9 if is_mono else 17))
    if frame[at : at + 4] in (b"Xing", b"Info"):
        return int.from_bytes(frame[at + 8 : at + 12], "big") if frame[at + 7] & 1 else None
    return int.from_bytes(frame[50:54], "big") if frame[36:40] == b"VBRI" else None
