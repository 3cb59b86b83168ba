"""Read a recording with libsndfile as blocks of float32 at the file's own rate and channels."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxbatch.audio.structure import TOLERANCE_S, AudioBytes, unknown_tag_bytes
from voxbatch.errors import AudioError, VoxbatchError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.recording import Recording

NativeBlock = NDArray[np.float32]
"""Shape (frames, channels), full scale ±1, at the file's own rate."""

BLOCK_SECONDS = 10
"""Length of a block in seconds, as far as its size allows (see block_frames)."""
_MAX_BLOCK_SAMPLES = 1 << 22
_READ_BYTES = 1 << 18
"""Bytes of a file that are read at a time. libsndfile asks for an MP3 frame by frame."""


def block_frames(rate: int, channels: int) -> int:
    """Return the number of frames to read at a time: BLOCK_SECONDS, or fewer if many channels would make the block
    larger than 16 MiB."""
    return max(1, min(BLOCK_SECONDS * rate, _MAX_BLOCK_SAMPLES // max(1, channels)))


class HeaderShortError(AudioError):
    """The file continues, or may continue, after the length that its header claims."""


class _UnseekableSoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Sound file that reads on without seeking.

    python-soundfile seeks after every read to the position where the file is anyway. This makes an MP3 decoder forget
    the bits that the next frame borrows from the last one, and each block begins with a click. This class reports that
    it is not seekable, so python-soundfile does not seek.
    """

    def seekable(self) -> bool:
        """Return False, so that no read is followed by a seek."""
        return False


class _VirtualFile(io.RawIOBase):
    """Recording that is read in the form that libsndfile's callbacks need.

    libsndfile takes a failed read for the end of the file, or for zeros: after one in the header, a WAV file of 16 bits
    becomes one of 8 bits and twice the length. So it never reads a file itself. An exception cannot pass through its
    callbacks: `error` keeps the exception, the file appears to end, and the caller of libsndfile checks `error`.
    """

    def __init__(self, recording: Recording):
        self._recording, self._position = recording, 0
        self._block, self._block_start = memoryview(b""), 0
        self._least = _READ_BYTES if recording.is_file else 0  # a remote one is fetched in blocks of its own
        self.error: VoxbatchError | None = None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer from the current position. Return 0 after an error, as at the end of the file."""
        at, count = self._position - self._block_start, len(buffer)
        if at < 0 or at + count > len(self._block):
            try:
                data = self._recording.pread(max(count, self._least), self._position) if self.error is None else b""
            except VoxbatchError as e:
                self.error, data = e, b""
            self._block, self._block_start, at = memoryview(data), self._position, 0
        part = self._block[at : at + count]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position. The recording's size is known without reading, so seeking fetches nothing. A negative
        position, which a header with a nonsensical length gives, is an error for libsndfile, and nothing is set."""
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._recording.size}[whence]
        if position >= 0:
            self._position = position
        return position

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position


class SoundFileStream:
    """Recording that libsndfile reads. libsndfile identifies the format by content and never sees the name.

    Attributes: `rate` (Hz), `channels` and `format` (libsndfile's name, such as "WAV") come from the header.

    Args:
        recording: an open recording, which is not closed here.
        offset: seconds to skip.
        audio_bytes: position of the audio in the file, if it is known, for `losses`.

    Raises:
        soundfile.LibsndfileError: libsndfile does not know the content; or, from `blocks`, the file is damaged.
        AudioError: the offset is past the end (HeaderShortError for an MP3, whose header may claim too little).
        VoxbatchError: the recording cannot be read.
    """

    layout = ""
    """Name of the layout of the channels: unknown. (A FLAC file of eight microphones claims to be 7.1.)"""

    def __init__(self, recording: Recording, offset: float = 0.0, audio_bytes: AudioBytes | None = None):
        self._recording, self._audio_bytes = recording, audio_bytes
        self._bytes = _VirtualFile(recording)
        try:
            self._file = _UnseekableSoundFile(self._bytes)
            self._raise_read_error()
            self.rate, self.channels = int(self._file.samplerate), int(self._file.channels)
            self.format, self.subtype = str(self._file.format), str(self._file.subtype)
            self._claimed_frames = int(self._file.frames)
            if offset:
                frame = round(offset * self.rate)
                if frame >= self._file.frames:
                    kind = HeaderShortError if self.format == "MP3" else AudioError
                    seconds = self._file.frames / max(1, self.rate)
                    text = f"offset {offset:g} s is past the recording's end ({seconds:.2f} s)"
                    raise kind(text, FailureKind.NO_SUCH_PART)
                self._file.seek(frame)
            self._mpeg_frames = None
            if self.format == "MP3" and not offset:
                from voxbatch.audio.mpeg_frames import FrameCounter

                self._mpeg_frames = FrameCounter(self._recording)
        except soundfile.LibsndfileError:
            self._raise_read_error()
            raise

    def _raise_read_error(self) -> None:
        """Raise the read error that libsndfile met, if there was one."""
        if self._bytes.error is not None:
            raise self._bytes.error

    def claimed_seconds(self) -> float | None:
        """Return the duration that the header claims, or None if it is missing or not plausible. Close the file."""
        with self._file:
            frames = int(self._file.frames)
        return frames / self.rate if self.rate > 0 and 0 < frames < 1 << 40 else None

    @property
    def is_uncompressed(self) -> bool:
        """True if each sample has bytes of its own in the file."""
        return self.subtype.startswith(("PCM", "FLOAT", "DOUBLE", "ULAW", "ALAW"))

    def blocks(self) -> Iterator[NativeBlock]:
        """Yield blocks of shape (frames, channels), then close the file. The good blocks come before any error.

        Raises:
            soundfile.LibsndfileError: the file is damaged.
            HeaderShortError: the file continues after the part that libsndfile read.
        """
        size = block_frames(self.rate, self.channels)
        with self._file:
            while len(block := self._read(size)):
                yield block
                if self._mpeg_frames:
                    self._mpeg_frames.count_to(self._position())
            if self.format in ("MP3", "FLAC"):
                # Files are sometimes appended to each other, and libsndfile stops at the length in the first file's
                # header. A tag that is taken for such a file only costs a second decoding.
                unread = self._recording.size - self._position()
                if unread > unknown_tag_bytes(self._recording.size):
                    raise HeaderShortError(f"the {unread:,} bytes after the claimed length were not read")

    def _position(self) -> int:
        """Return the position in bytes up to which libsndfile has read the file."""
        return self._bytes.tell()

    def losses(self, frames: int | None) -> Iterator[str]:
        """Yield a message for each sign that the file holds more, or once held more, than was decoded.

        Args:
            frames: number of frames from the start of the file to its end, by `blocks`; None if only a part was
                decoded, which tells nothing.
        """
        if frames is None:
            return
        seconds = frames / self.rate
        if self._mpeg_frames:
            yield from self._mpeg_frames.finish().losses()
        elif self._audio_bytes:
            yield from self._audio_bytes.losses(self._audio_bytes.present, seconds)
        elif 0 < self._claimed_frames < 1 << 40:
            claimed = self._claimed_frames / self.rate
            if claimed > seconds + TOLERANCE_S:
                yield f"the recording ends after {seconds:.2f} s, and its header claims {claimed:.2f} s"
            elif seconds > claimed + TOLERANCE_S:
                yield f"the header claims {claimed:.2f} s, and the file holds {seconds:.2f} s, all of which was read"

    def _read(self, size: int) -> NativeBlock:
        try:
            block: NativeBlock = self._file.read(size, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            self._raise_read_error()
            raise
        self._raise_read_error()
        return block
