"""Find the files of which a recording was joined (`cat a.wav b.mp3`), so that each is decoded with its own parameters.

A decoder stops at the end of the first file without a word, or decodes the next file with the parameters of the first
one. Where headers give lengths, they are followed from chunk to chunk, or from frame to frame. The rest of a recording
is searched for the first bytes of a file. If it ends with frames that have no header, the first of them are looked for.
Several files of MPEG audio, ADTS, AC-3 or transport streams are one file: they have no header, and ffmpeg reads on when
their parameters change.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from voxbatch.audio.frame_estimate import adts_frame_at
from voxbatch.audio.mpeg_frames import frame_bytes, tag_bytes
from voxbatch.audio.structure import MAX_LENGTH, is_unknown_length, ogg_page_bytes
from voxbatch.storage.local import read_at
from voxbatch.storage.recording import Recording
from voxbatch.storage.temporary_files import temporary_file

MAX_CHUNKS = 1_000_000
"""Number of chunks that are followed. A file of fragments has two for each second, and an Ogg file up to 50 pages."""
MIN_FRAMES = 4
"""Number of frames in a row that prove that frames begin at a place. Single headers are also found in noise."""
MIN_LAST_FRAMES = 16
"""Number of frames up to the end of a recording that prove that a stream begins there. Frames of FLAC begin like those
of ADTS, and those of silence follow each other closely."""
MIN_FILE_BYTES = 1_000
"""Bytes of the shortest file before a stream."""
_TAIL_BYTES = 256
"""Bytes after the last frame of a stream, at most: a tag, or the rest of a packet."""
_HEAD_BYTES = 282
"""Bytes at the start of a chunk that give its length: the longest header is that of an Ogg page."""
_WINDOW_BYTES = 64 << 10
"""Bytes in which frames of a stream are looked for."""
_READ_BYTES = 256 << 10

Read = Callable[[int, int], bytes]
"""Function from a number of bytes and a position to these bytes: see Recording.pread."""
ChunkLength = Callable[[bytes], int | None]
"""Function from the first bytes of a chunk to its length with its header; None if the header gives none."""


def _chunk(layout: str, uncounted: int) -> ChunkLength:
    """Return a function for a header with this layout (see struct), whose last number is the length without some
    uncounted bytes."""
    header = struct.Struct(layout)

    def length(head: bytes) -> int | None:
        counted = header.unpack_from(head)[-1] if len(head) >= header.size else 0
        return counted + uncounted if 0 < counted < MAX_LENGTH else None

    return length


def _caf_chunk(head: bytes) -> int | None:
    return 8 if head.startswith(b"caff") else _chunk(">4sQ", 12)(head)


def _riff_file(head: bytes) -> int | None:
    """Return the length of a RIFF file, or of an RF64 file, whose chunk ds64 has the length (EBU Tech 3306)."""
    length = int.from_bytes(head[20:28] if head[12:16] == b"ds64" else head[4:8], "little")
    return None if length == 0 or is_unknown_length(length) else length + 8


def _au_file(head: bytes) -> int | None:
    start, length = struct.unpack_from(">2I", head, 4)
    return None if is_unknown_length(length) else start + length


def _mp4_box(head: bytes) -> int | None:
    """Return the length of a box (ISO/IEC 14496-12, section 4.2)."""
    if len(head) < 16:
        return None
    size, _, long_size = struct.unpack_from(">I4sQ", head)
    return (long_size if size == 1 else size) or None


def _matroska_element(head: bytes) -> int | None:
    """Return the length of an element (RFC 8794): an identifier and a length, each of which begins with as many zero
    bits as bytes follow. A length of ones is unknown."""
    if len(head) < _HEAD_BYTES or not head[0] or not head[at := 9 - head[0].bit_length()]:
        return None
    width = 9 - head[at].bit_length()
    ones = (1 << 7 * width) - 1
    length = int.from_bytes(head[at : at + width], "big") & ones
    return at + width + length if length != ones else None


def _adts_frame(head: bytes) -> int | None:
    """Return the length of a frame of ADTS."""
    return frame[0] if (frame := adts_frame_at(head, 0)) else None


_AC3_KBIT = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)


def _ac3_frame(head: bytes) -> int | None:
    """Return the length of a frame of AC-3 or E-AC-3 (ETSI TS 102 366, tables 4.13 and E.1.2)."""
    if len(head) < 6 or not head.startswith(b"\x0b\x77"):
        return None
    if head[5] >> 3 > 10:  # E-AC-3
        return 2 * ((head[2] & 7) << 8 | head[3]) + 2
    rate, code = head[4] >> 6, head[4] & 63
    if rate > 2 or code > 37:
        return None
    kbit = _AC3_KBIT[code >> 1]
    return (4 * kbit, 2 * (320 * kbit // 147 + (code & 1)), 6 * kbit)[rate]


def _transport_packet(head: bytes) -> int | None:
    return 188 if head.startswith(b"G") else None


def _wavpack_block(head: bytes) -> int | None:
    return _chunk("<4sI", 8)(head) if head.startswith(b"wvpk") else None


def _unknown_length(head: bytes) -> None:
    return None


def _flac_seconds(head: bytes) -> float:
    """Return the length of a FLAC file by its header (RFC 9639, section 8.2); 0 if it has none."""
    rate, samples = int.from_bytes(head[18:21], "big") >> 4, int.from_bytes(head[21:26], "big") & (1 << 36) - 1
    return samples / rate if rate else 0.0


@dataclass(frozen=True, slots=True)
class _Format:
    first_bytes: bytes
    """Pattern of the first bytes of a file, which are too many to occur in audio by chance; of a stream, those of a
    frame."""
    chunk_length: ChunkLength = _unknown_length
    alignment: int = 1
    """The length of a chunk is padded to a multiple of this."""
    mark: bytes = b""
    """Two bytes that are searched for where a chunk gives no length. Empty for formats that are not searched for."""
    mark_at: tuple[int, ...] = (0,)
    """Positions of the mark in a file."""
    needs_file: bool = True
    """True if only ffmpeg reads the format, so that a remote recording is copied anyway."""
    is_stream: bool = False
    """True for frames without a header of the file. Several such files are one."""
    sync_bytes: int = 2
    """Number of first bytes that all frames of a stream share."""
    has_several_firsts: bool = False
    """True if chunks with these first bytes that follow each other begin one file."""

    def is_at(self, read: Read, at: int) -> bool:
        """Return whether a file of this format begins at a position, without a tag."""
        if not re.match(self.first_bytes, read(_HEAD_BYTES, at), re.DOTALL):
            return False
        for _ in range(MIN_FRAMES if self.is_stream else 0):
            if not (length := self.chunk_length(read(_HEAD_BYTES, at))):
                return False
            at += length
        return True


_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0"
_ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\0\xaa\0\x62\xce\x6c"
_FORMATS = (
    _Format(rb"RIFF....(WAVE|AVI )", _riff_file, alignment=2, mark=b"RI", needs_file=False),
    _Format(rb"(RF64|BW64)....WAVEds64", _riff_file, alignment=2, mark=b"64", mark_at=(2,), needs_file=False),
    _Format(rb"FORM....AIF[FC]", _chunk(">4sI", 8), alignment=2, mark=b"FO", needs_file=False),
    _Format(re.escape(_W64), _chunk("<16sQ", 0), alignment=8, mark=b"ri", needs_file=False),
    _Format(rb"caff\0\x01\0\0desc", _caf_chunk, mark=b"ca", needs_file=False),
    _Format(rb"\.snd\0\0.{6}\0\0\0[\x01-\x1b]", _au_file, mark=b".s", needs_file=False),
    _Format(rb"fLaC\0\0\0\x22", mark=b"fL", needs_file=False),
    _Format(rb"OggS\0[\2\6]", ogg_page_bytes, mark=b"Og", needs_file=False, has_several_firsts=True),
    _Format(rb"\0\0\0.ftyp", _mp4_box, mark=b"ft", mark_at=(4,)),
    _Format(rb"\x1aE\xdf\xa3.{1,8}\x42\x86\x81\x01", _matroska_element, mark=b"\x1aE"),
    _Format(re.escape(_ASF), _chunk("<16sQ", 0), mark=_ASF[:2]),
    _Format(rb"FLV\x01[\x01\x04\x05]\0\0\0\x09\0\0\0\0", mark=b"FL"),
    _Format(rb"TTA1\x01\0[\x01-\x08]\0[\x08\x10\x18]\0", mark=b"TT"),
    _Format(rb"#!AMR(-WB)?\n", mark=b"#!"),
    _Format(rb"wvpk.{5}\x04.{6}\0{4}", _wavpack_block, mark=b"wv", has_several_firsts=True),  # the block at sample 0
    _Format(rb"Creative Voice File\x1a", mark=b"Cr"),
    _Format(rb"\xff[\xe2-\xff]", frame_bytes, mark=b"Xi", mark_at=(13, 21, 36), needs_file=False, is_stream=True),
    _Format(rb"\xff[\xf0\xf1\xf8\xf9]", _adts_frame, is_stream=True),
    _Format(b"G", _transport_packet, is_stream=True, sync_bytes=1),
    _Format(rb"\x0b\x77.{2}([\0-\x24\x40-\x64\x80-\xa4][\x30-\x58]|.[\x80-\x87])", _ac3_frame, is_stream=True),
)
_FIRST_BYTES = re.compile(b"|".join([rb"ID3", *(form.first_bytes for form in _FORMATS)]), re.DOTALL)
_MARKS = {
    **{form.mark: form.mark_at for form in _FORMATS if form.mark},
    b"ID": (0,),  # a tag before a file
    b"In": (13, 21, 36),  # as Xing, of LAME
}
_IS_MARK = np.zeros(1 << 16, bool)
"""For each number of two bytes, whether it is a mark."""
_IS_MARK[[int.from_bytes(mark, "little") for mark in _MARKS]] = True


def file_starts(recording: Recording, end_s: float | None) -> list[int]:
    """Return the positions of the files in a recording: [0] if it is one file.

    Args:
        end_s: seconds up to which its audio is wanted; None for all. If the first file is at least as long and would
            have to be searched, the others are left out: a manifest may have thousands of parts of one long recording.
    """
    head = recording.pread(_HEAD_BYTES, 0)
    if end_s is not None and head.startswith(b"fLaC") and _flac_seconds(head) >= end_s:
        return [0]
    read: Read = recording.pread
    starts = list[int]()
    start: int | None = 0
    while start is not None and (form := _format_at(read, start)):
        starts.append(start)
        if form.needs_file:
            read = partial(read_at, recording.fileno())
        start = _next_start(recording, read, form, start)
    return starts or [0]


def _format_at(read: Read, at: int) -> _Format | None:
    """Return the format of the file that begins at a position, perhaps with a tag; None if there is none."""
    head = read(_HEAD_BYTES, at)
    if not _FIRST_BYTES.match(head):
        return None
    at += tag_bytes(head, 0) if head.startswith(b"ID3") else 0
    return next((form for form in _FORMATS if form.is_at(read, at)), None)


def _next_start(recording: Recording, read: Read, form: _Format, start: int) -> int | None:
    """Return the position of the file after the one at `start`; None if there is none."""
    can_be_searched = form.needs_file or recording.is_file
    first = start + tag_bytes(read(_HEAD_BYTES, start), 0)
    at = first
    if form.is_stream:
        if not can_be_searched:
            return None
        at = _frames(read, form, max(first, recording.size - _WINDOW_BYTES)) or first
    is_first = form.has_several_firsts
    for _ in range(MAX_CHUNKS):
        if not (length := _chunk_bytes(read(_HEAD_BYTES, at), form)):
            break
        if form.is_stream:
            at += length
            continue
        end, aligned = at + length, at + length + -length % form.alignment
        if aligned >= recording.size:
            return None
        # Some programs do not pad the last chunk of a file.
        at = end if end < aligned and _format_at(read, end) else aligned
        next_form = _format_at(read, at)
        is_first = is_first and next_form is form
        if next_form and not is_first:
            return at
    if not can_be_searched:
        return None
    found = _searched(read, max(at, first + 1))
    return found if found or form.is_stream else _last_stream(read, max(at, start + MIN_FILE_BYTES), recording.size)


def _chunk_bytes(head: bytes, form: _Format) -> int | None:
    """Return the length of the chunk with these first bytes, or of a tag between the frames of a stream."""
    return form.chunk_length(head) or (tag_bytes(head, 0) if form.is_stream else None)


def _frames(read: Read, form: _Format, at: int) -> int | None:
    """Return the position of the first frames of a stream in the bytes from a position on; None if there are none."""
    for match in re.finditer(form.first_bytes, read(_WINDOW_BYTES, at), re.DOTALL):
        if form.is_at(read, at + match.start()):
            return at + match.start()
    return None


def _last_stream(read: Read, begin: int, end: int) -> int | None:
    """Return the position of the first frame of a stream with which a recording ends. None if it ends otherwise, or if
    the stream begins before `begin`: some WAV files hold MPEG audio."""
    for form in _FORMATS:
        last = _frames(read, form, max(begin, end - _WINDOW_BYTES)) if form.is_stream else None
        if last is None or not _is_last_stream(read, form, last, end):
            continue
        sync = re.compile(re.escape(read(form.sync_bytes, last)))
        for at in range(begin, last, _WINDOW_BYTES):
            for match in sync.finditer(read(_WINDOW_BYTES + form.sync_bytes - 1, at)):
                start = at + match.start()
                if _is_last_stream(read, form, start, end):
                    return start if start - begin >= (_chunk_bytes(read(_HEAD_BYTES, start), form) or 0) else None
        return last
    return None


def _is_last_stream(read: Read, form: _Format, at: int, end: int) -> bool:
    """Return whether frames follow each other from a position to the end of a recording."""
    for count in range(MAX_CHUNKS):
        length = _chunk_bytes(read(_HEAD_BYTES, at), form)
        if not length:
            return count >= MIN_LAST_FRAMES and at >= end - _TAIL_BYTES
        at += length
    return True


def _searched(read: Read, begin: int) -> int | None:
    """Search for a file from a position on, and return where it begins."""
    if _format_at(read, begin):
        return begin
    at = begin
    while len(data := read(_READ_BYTES, at)) >= 4:
        for position in _mark_positions(data):
            for mark_at in _MARKS[data[position : position + 2]]:
                start = at + position - mark_at
                if start >= begin and _format_at(read, start):
                    return start
        at += len(data) - 1
    return None


def _mark_positions(data: bytes) -> list[int]:
    positions = list[int]()
    for shift in (0, 1):
        pairs = np.frombuffer(data, "<u2", (len(data) - shift) // 2, shift)
        positions += (2 * np.flatnonzero(_IS_MARK.take(pairs, mode="clip")) + shift).tolist()
    return sorted(positions)


class FilePart:
    """A file in a recording that was joined from several: see Recording. ffmpeg gets a copy of it."""

    is_file = False
    warnings: tuple[str, ...] = ()

    def __init__(self, recording: Recording, start: int, end: int):
        self.size = end - start
        self._recording, self._start = recording, start
        self.on_wait, self.last_arrival = recording.on_wait, recording.last_arrival
        self._copy: int | None = None

    def pread(self, count: int, at: int) -> bytes:
        """See Recording.pread."""
        return self._recording.pread(max(0, min(count, self.size - at)), self._start + at)

    def fileno(self) -> int:
        """See Recording.fileno."""
        if self._copy is None:
            blocks = (self.pread(_READ_BYTES, at) for at in range(0, self.size, _READ_BYTES))
            with temporary_file("a part of the recording", blocks) as file:
                self._copy = os.dup(file.fileno())
        return self._copy

    def verify_unchanged(self) -> None:
        """See Recording.verify_unchanged."""
        self._recording.verify_unchanged()

    def close(self) -> None:
        """Remove the copy. The recording stays open."""
        if self._copy is not None:
            os.close(self._copy)
