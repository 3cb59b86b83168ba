"""Estimate the duration of a recording that is a sequence of frames without a header: MP3, MP2, and AAC in ADTS.

Programs that take the bit rate of the first frames for that of all are wrong by factors: a recording that begins with
music and ends in silence has long frames first. The frames of blocks all over the file are counted instead. A short
file is one block, so its duration is exact.
"""

from __future__ import annotations

from collections.abc import Callable

from voxbatch.audio.mpeg_frames import MIN_FRAMES, claimed_frames, frame_at, tag_bytes
from voxbatch.storage.recording import Recording

BLOCK_BYTES = 64 << 10
"""Bytes of a block: a few seconds."""
LOCAL_BLOCKS, REMOTE_BLOCKS = 64, 8
"""Most blocks that are read of a local file, and of one that is fetched block by block."""
CLAIM_TOLERANCE = 0.1
"""Part of the counted duration by which a header may differ. That of the first of several files that were appended to
each other differs by more, and so does that of a file that was cut off."""
_ADTS_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350)

FrameAt = Callable[[bytes, int], tuple[int, float] | None]
"""Returns the length in bytes and in seconds of the frame at a position; None if there is no header of a frame."""


def estimated_seconds(recording: Recording) -> float | None:
    """Return the duration of a recording that begins with frames of MPEG audio or ADTS; None for any other.

    Raises:
        AudioError, StorageError: the recording cannot be read.
    """
    start = tag_bytes(recording.pread(32, 0), 0)
    head = recording.pread(BLOCK_BYTES, start)
    read = next((read for read in (frame_at, adts_frame_at) if _first_frame(head, read) == 0), None)
    if read is None:
        return None
    num_bytes, counted = 0, 0.0
    blocks = _blocks(start, recording.size, LOCAL_BLOCKS if recording.is_file else REMOTE_BLOCKS)
    for begin, end in blocks:
        block, at = recording.pread(end - begin, begin), 0
        while (first := _first_frame(block, read, at)) is not None:
            at = first
            while frame := read(block, at):
                at, num_bytes, counted = at + frame[0], num_bytes + frame[0], counted + frame[1]
    if len(blocks) > 1:
        counted *= (recording.size - start) / num_bytes
    mpeg_frame = frame_at(head, 0) if read is frame_at else None
    if mpeg_frame and (claimed := claimed_frames(head[: mpeg_frame[0]])):
        claimed_s = claimed * mpeg_frame[1]
        return claimed_s if abs(claimed_s - counted) <= CLAIM_TOLERANCE * counted else counted
    return counted


def _blocks(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """Return the bounds of blocks that are evenly spread over a file; one block if they would be all of it."""
    if end - start <= most * BLOCK_BYTES:
        return [(start, end)]
    step = (end - start - BLOCK_BYTES) / (most - 1)
    begins = [start + round(step * number) for number in range(most)]
    return [(begin, begin + BLOCK_BYTES) for begin in begins]


def _first_frame(block: bytes, read: FrameAt, begin: int = 0) -> int | None:
    """Return the position of the first frame from `begin` on that MIN_FRAMES - 1 others follow, or the end of the
    block; None if there is none."""
    at = block.find(b"\xff", begin)
    while at >= 0:
        position, num_frames = at, 0
        while num_frames < MIN_FRAMES and position < len(block) and (frame := read(block, position)):
            position, num_frames = position + frame[0], num_frames + 1
        if num_frames == MIN_FRAMES or (num_frames and position >= len(block)):
            return at
        at = block.find(b"\xff", at + 1)
    return None


def adts_frame_at(buffer: bytes, at: int) -> tuple[int, float] | None:
    """Return the length of the frame of ADTS at a position in bytes and in seconds (ISO/IEC 13818-7, section 6.2); None
    if there is no header of a frame."""
    head = buffer[at : at + 7]
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or (rate := head[2] >> 2 & 0xF) >= len(_ADTS_RATES):
        return None
    length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return (length, 1024 * ((head[6] & 3) + 1) / _ADTS_RATES[rate]) if length >= 7 else None
