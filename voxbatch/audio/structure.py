"""Compare what a file's structure claims with its size, without decoding.

Decoders stop at the length that a header claims, and at the end of the file, without a word. This module finds the
claims that the file's size contradicts, and the damaged pages of an Ogg file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from voxbatch.storage.recording import Recording

UNKNOWN_LENGTHS = (range(0x7FFFF000, 0x80000100), range(0xFFFFFE00, 0x100000000))
"""Values of a 32-bit length that mean "unknown": programs that write to a pipe cannot return to the header. ffmpeg
writes 0xFFFFFFFF there, SoX 0x7FFFF000 and arecord 0x80000000, less the size of the header."""
MAX_LENGTH = 1 << 62
"""64-bit length from which a length means "unknown". ffmpeg writes 2⁶³ - 1 or so into a pipe, and CAF has -1."""
MAX_CHUNKS = 10_000
"""Number of chunks before and after the audio that are looked at. Files have fewer than 20."""


TOLERANCE_S = 0.1
"""Difference of two lengths in seconds up to which nothing is lost. The frames of codecs are shorter."""


@dataclass(frozen=True, slots=True)
class AudioBytes:
    """The uncompressed audio of a file, as its header describes it."""

    start: int
    """Position of the first byte of audio."""
    claimed: int | None
    """Number of bytes that the header claims; None if it does not know."""
    present: int
    """Number of bytes of the claim that the file holds."""
    unexplained: int
    """Number of bytes after the audio that are in no chunk: audio that the header does not count, or garbage."""
    num_chunks: int = 1
    """Number of chunks of audio. Decoders read one of them."""
    is_wav: bool = False
    """True for WAV with lengths of 32 bits, the one format that ffmpeg can read without regard to its lengths."""

    @property
    def is_stale(self) -> bool:
        """True if the header of a WAV file counts less than half of the audio: its program ended before it could write
        the length, or the length did not fit into 32 bits."""
        is_short = self.claimed is not None and self.unexplained > self.claimed
        return self.is_wav and is_short and self.num_chunks == 1

    def losses(self, read: int, seconds: float) -> Iterator[str]:
        """Yield a message for each difference between the header and the file.

        Args:
            read: number of bytes that were decoded.
            seconds: their length.
        """
        if self.num_chunks > 1:
            yield f"the file has {self.num_chunks} chunks of audio, of which one was read"
            return
        if not read or not self.claimed:  # 0 is also written by programs that cannot know the length
            return
        claimed_s, rest_s = self.claimed * seconds / read, (self.present + self.unexplained - read) * seconds / read
        if claimed_s > seconds + TOLERANCE_S:
            yield f"the file was cut off: it ends after {seconds:.2f} s, and its header claims {claimed_s:.2f} s"
        elif seconds > claimed_s + TOLERANCE_S:
            yield f"the header claims {claimed_s:.2f} s, and the file holds {seconds:.2f} s, all of which was read"
        elif rest_s > TOLERANCE_S:
            yield (
                f"the header claims {claimed_s:.2f} s, which were read; the {self.unexplained:,} bytes after them were "
                f"not: {rest_s:.2f} s if they are audio"
            )


@dataclass(frozen=True, slots=True)
class _ChunkFormat:
    """Layout of a format whose file is a sequence of chunks."""

    first: int
    """Position of the first chunk."""
    header: struct.Struct
    """Identifier and length of a chunk."""
    audio: bytes
    """Identifier of the chunk with the audio."""
    audio_offset: int = 0
    """Bytes in that chunk before the first sample."""
    alignment: int = 2
    counts_header: bool = False
    """True if a chunk's length includes its header."""


_W64_GUID = bytes.fromhex("f3acd3118cd100c04f8edb8a")
"""The end of the identifiers of Sony Wave64; the first four bytes are those of RIFF."""
_RIFF = _ChunkFormat(12, struct.Struct("<4sI"), b"data")
_AIFF = _ChunkFormat(12, struct.Struct(">4sI"), b"SSND", audio_offset=8)
_CAF = _ChunkFormat(8, struct.Struct(">4sQ"), b"data", audio_offset=4, alignment=1)
_W64 = _ChunkFormat(40, struct.Struct("<16sQ"), b"data" + _W64_GUID, alignment=8, counts_header=True)
_AU_HEADER = struct.Struct(">4s2I")


def audio_bytes(recording: Recording) -> AudioBytes | None:
    """Return where the audio of an uncompressed file lies (WAV, RF64, Wave64, AIFF, CAF, AU); None for other formats,
    and for files without such a chunk."""
    head = recording.pread(16, 0)
    match head[:4], head[8:12]:
        case b"RIFF", b"WAVE":
            audio = _in_chunks(recording, _RIFF)
            return audio and replace(audio, is_wav=True)
        case b"RF64" | b"BW64", b"WAVE":
            return _in_chunks(recording, _RIFF)
        case b"FORM", b"AIFF" | b"AIFC":
            return _in_chunks(recording, _AIFF)
        case b"caff", _:
            return _in_chunks(recording, _CAF)
        case b"riff", _:
            return _in_chunks(recording, _W64)
        case b".snd", _ if len(head) >= _AU_HEADER.size:
            _, start, claimed = _AU_HEADER.unpack_from(head)
            return _compared(recording.size, start, None if is_unknown_length(claimed) else claimed, start + claimed)
    return None


def unknown_tag_bytes(size: int) -> int:
    """Return the number of bytes at the end of a file of `size` bytes up to which they are taken for a tag. A tag with
    a picture exceeds it."""
    return min(size // 20, 1 << 16)


def is_unknown_length(length: int) -> bool:
    """Return whether a 32-bit length in a header means "unknown"."""
    return any(length in unknown for unknown in UNKNOWN_LENGTHS)


def _in_chunks(recording: Recording, layout: _ChunkFormat) -> AudioBytes | None:
    position: tuple[int, int] | None = None  # start and length of the audio
    long_length = None  # RF64 keeps the length of the audio in the chunk ds64
    at, end, num_chunks = layout.first, layout.first, 0
    for at, name, length, end in _chunks(recording, layout):
        if name == b"ds64" and position is None:
            long_length = int.from_bytes(recording.pread(8, at + 8), "little")
        elif name == layout.audio and (num_chunks := num_chunks + 1) == 1:
            if length == 0xFFFFFFFF and long_length is not None:
                length, end = long_length, at + long_length
            position = at + layout.audio_offset, length - layout.audio_offset
            if is_unknown_length(length) or length >= MAX_LENGTH or end > recording.size:
                break
    if position is None:
        return None
    start, length = position
    claimed = None if is_unknown_length(length + layout.audio_offset) or length >= MAX_LENGTH else length
    return replace(_compared(recording.size, start, claimed, end), num_chunks=num_chunks)


def _chunks(recording: Recording, layout: _ChunkFormat) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield (start of the content, identifier, length of the content, end) of each chunk, to the first bytes that are
    no chunk."""
    at = layout.first
    for _ in range(MAX_CHUNKS):
        head = recording.pread(layout.header.size, at)
        if len(head) < layout.header.size:
            return
        name, length = layout.header.unpack(head)
        if not all(0x20 <= byte < 0x7F for byte in name[:4]):
            return
        content = at + layout.header.size
        length -= layout.header.size if layout.counts_header else 0
        if length < 0:
            return
        at = content + length
        yield content, name, length, at
        at += -at % layout.alignment
        if at > recording.size:
            return


def _compared(size: int, start: int, claimed: int | None, end: int) -> AudioBytes:
    available = max(0, size - start)
    present = available if claimed is None else min(claimed, available)
    unexplained = 0 if claimed is None else max(0, size - max(end, start + present))
    return AudioBytes(start, claimed, present, unexplained)


OGG_PAGE = struct.Struct("<4sBBqIIIB")  # capture, version, flags, granule, serial, sequence, checksum, segments
_OGG_CHECKSUM = slice(22, 26)
_OGG_FIRST_PAGE = 0x02
OGG_GAP_FACTOR = 3
"""Factor above the longest page so far from which the time between two pages counts as a gap. ffmpeg then decodes the
file, which changes nothing if there is none."""
_MAX_OGG_HEADER = OGG_PAGE.size + 255
_MAX_OGG_PAGE = _MAX_OGG_HEADER + 255 * 255
_READ_BYTES = 1 << 20
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def avi_seconds(recording: Recording) -> float | None:
    """Return the length of the first audio stream of an AVI file by its stream header (`strh`); None if it has none.
    ffmpeg calculates the length from the bit rate if the index is damaged."""
    head = recording.pread(_READ_BYTES, 0)
    at = head.find(b"auds")
    if at < 0 or len(head) < at + 36:
        return None
    scale, rate, _, length = struct.unpack_from("<4I", head, at + 20)
    return length * scale / rate if rate else None


@dataclass(frozen=True, slots=True)
class OggPages:
    """The state of the pages of an Ogg file."""

    has_several_streams: bool
    """True if the file holds several recordings, side by side or one after the other."""
    is_damaged: bool
    """True if pages are damaged or missing."""
    may_have_gap: bool
    """True if the time of a page is so much later than that of the page before it that audio may be missing between
    them, as in the recordings of browsers, which leave out silence."""
    is_cut: bool
    """True if the file ends within a page. Browsers do not mark the last page as such, so its mark tells nothing."""


def ogg_pages(recording: Recording) -> OggPages | None:
    """Return the state of an Ogg file's pages (RFC 3533); None if the file is not Ogg.

    libsndfile plays only the first of several streams, and leaves out damaged pages without a word.
    """
    if recording.pread(4, 0) != b"OggS":
        return None
    next_numbers: dict[int, int] = {}
    streams, is_damaged, may_have_gap, end = 0, False, False, 0
    last_time, longest = 0, 0
    for flags, serial, number, time, is_intact, end in _read_ogg_pages(recording):  # noqa: B007 (end is needed after it)
        if flags & _OGG_FIRST_PAGE:
            streams += 1
        else:
            is_damaged |= number != next_numbers.get(serial, number)
        is_damaged |= not is_intact
        next_numbers[serial] = number + 1
        if time > 0:  # the header's pages have 0, and pages in which no packet ends -1
            may_have_gap |= 0 < OGG_GAP_FACTOR * longest < time - last_time
            last_time, longest = time, max(longest, time - last_time)
    return OggPages(streams > 1, is_damaged, may_have_gap, recording.pread(4, end) == b"OggS")


def _read_ogg_pages(recording: Recording) -> Iterator[tuple[int, int, int, int, bool, int]]:
    """Yield (flags, serial number of the stream, page number, time of its end in the units of its codec, is intact, end
    in the file) of each page. A page is not intact if its checksum is wrong, or if other bytes are before it."""
    at, buffer, start, is_lost = 0, b"", 0, False
    while True:
        if at + _MAX_OGG_PAGE > start + len(buffer):
            buffer, start = recording.pread(_READ_BYTES, at), at
        offset = at - start
        length = ogg_page_bytes(buffer[offset : offset + _MAX_OGG_HEADER])
        if length is None or offset + length > len(buffer):
            next_page = buffer.find(b"OggS", offset + 1)
            if next_page < 0 and len(buffer) < _READ_BYTES:
                return
            is_lost, at = True, start + next_page if next_page >= 0 else start + len(buffer) - 3
            continue
        page = buffer[offset : offset + length]
        _, _, flags, time, serial, number, checksum, _ = OGG_PAGE.unpack_from(page)
        is_intact = not is_lost and checksum == _ogg_checksum(page)
        if is_intact or not is_lost:
            yield flags, serial, number, time, is_intact, at + length
        is_lost, at = False, at + length


def ogg_page_bytes(head: bytes) -> int | None:
    """Return the length of the Ogg page with these first bytes, of which 282 are enough; None if it is no page."""
    if not head.startswith(b"OggS") or len(head) < OGG_PAGE.size:
        return None
    body = OGG_PAGE.size + head[OGG_PAGE.size - 1]
    return body + sum(head[OGG_PAGE.size : body])


def _ogg_checksum(page: bytes) -> int:
    """Return the checksum of a page: a CRC-32 whose bits are in the other order than zlib's, and without its
    inversions (RFC 3533, section 6)."""
    bare = bytearray(page)
    bare[_OGG_CHECKSUM] = bytes(4)
    reflected = zlib.crc32(bare.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)


def has_extensible_numbers(recording: Recording) -> bool:
    """Return whether a file is Wave64 with other numbers than integers by WAVE_FORMAT_EXTENSIBLE: in floating point, or
    by A-law or mu-law. libsndfile 1.2.2 reads those of 32 and of 8 bits as integers, with the same length and rate."""
    head = recording.pread(4096, 0)
    fmt = head.find(_W64_FMT) + len(_W64_FMT) + 8  # after the length of the chunk
    tag, sub_format = head[fmt : fmt + 2], head[fmt + 24 : fmt + 26]
    return _W64_FMT in head and tag == b"\xfe\xff" and sub_format != b"\x01\x00"


_W64_FMT = b"fmt " + _W64_GUID
"""Identifier of the chunk with the format in Wave64."""
