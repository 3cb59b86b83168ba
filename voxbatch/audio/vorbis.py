"""The samples before the time zero of an Ogg Vorbis file. Only the headers and the first page with audio are read.

A file that was cut out of another one without encoding it again (`ffmpeg -ss 20 -c copy`) begins with the packets
before the cut: its first page ends at a time that is less than the length of its packets. libsndfile 1.2.2 plays these
samples, so that all times are late, and leaves out as many at the end: up to a second of speech.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from voxbatch.audio.structure import OGG_PAGE
from voxbatch.storage.recording import Recording

_CONTINUED, _LAST_PAGE = 0x01, 0x04
_HEADERS = 3  # identification, comments, setup
_HEAD_BYTES = 1 << 18  # the headers and the first page: comments with a cover picture are longer, and are not looked at
_MODE_BITS = 41  # a flag of long blocks, 16 + 16 bits that are zero, and 8 of a mapping (Vorbis I, section 4.2.4)


def samples_before_zero(recording: Recording) -> int:
    """Return the number of samples of an Ogg Vorbis file whose time is negative; 0 for any other file."""
    head = recording.pread(_HEAD_BYTES, 0)
    if head[28:35] != b"\x01vorbis":
        return 0
    headers = list[bytes]()
    for page in _pages(head):
        if len(headers) < _HEADERS:
            headers += page.packets
        elif page.packets:
            if page.flags & (_CONTINUED | _LAST_PAGE):  # a last page may end before its packets do
                return 0
            return max(0, _num_samples(page.packets, headers) - page.time)
    return 0


@dataclass(frozen=True, slots=True)
class _Page:
    """A page, its time in samples, and the packets that end in it."""

    flags: int
    time: int
    packets: list[bytes]


def _pages(head: bytes) -> Iterator[_Page]:
    """Yield the pages that are whole. A packet that begins in an earlier page is whole, too."""
    at, packet = 0, b""
    while head.startswith(b"OggS", at) and at + OGG_PAGE.size <= len(head):
        _, _, flags, time, _, _, _, segments = OGG_PAGE.unpack_from(head, at)
        body = at + OGG_PAGE.size + segments
        lengths, packets = head[at + OGG_PAGE.size : body], list[bytes]()
        for length in lengths:
            packet, body = packet + head[body : body + length], body + length
            if length < 255:
                packets.append(packet)
                packet = b""
        if body > len(head):
            return
        yield _Page(flags, time, packets)
        at = body


def _num_samples(packets: list[bytes], headers: list[bytes]) -> int:
    """Return the number of samples that the first packets of a file decode to.

    A packet gives a quarter of its own block and of the block before it, the first one nothing (Vorbis I, 4.3.8).
    """
    identification, setup = headers[0], headers[2]
    sizes = 1 << (identification[28] & 15), 1 << (identification[28] >> 4)
    modes = _mode_flags(setup)
    mask = (1 << (len(modes) - 1).bit_length()) - 1
    numbers = [packet[0] >> 1 & mask for packet in packets if packet]
    blocks = [sizes[modes[number]] for number in numbers if number < len(modes)]
    return sum((before + block) // 4 for before, block in pairwise(blocks))


def _mode_flags(setup: bytes) -> list[int]:
    """Return for each mode of a setup header 1 if its blocks are long, else 0.

    The modes end the header, and six bits before them hold their number less one: they are read from the end.
    """
    bits = int.from_bytes(setup, "little")
    end = bits.bit_length() - 1  # of the framing bit
    flags, modes = list[int](), [0]
    while end > _MODE_BITS + 6 and len(flags) < 64:
        end -= _MODE_BITS
        if bits >> (end + 1) & 0xFFFFFFFF:
            break
        flags.insert(0, bits >> end & 1)
        if bits >> (end - 6) & 63 == len(flags) - 1:
            modes = flags.copy()
    return modes
