"""Read the duration from the header of a recording with ffmpeg, without decoding."""

from __future__ import annotations

import os
import subprocess

from voxbatch.audio import ffmpeg
from voxbatch.audio.ffmpeg_log import FFmpegLog
from voxbatch.audio.ffmpeg_stream import FORMATS
from voxbatch.errors import AudioError
from voxbatch.process.child import for_program
from voxbatch.storage.recording import Recording

HEAD_BYTES = 64 << 10
"""Bytes of a remote recording that ffmpeg gets. The headers of all usual formats are shorter."""
TIMEOUT_S = 20.0
"""Seconds that ffmpeg may take. It takes 0.02 s."""
_SPANS_PACKETS = ("mpeg", "mpegts")
"""Formats without a header. ffmpeg subtracts the time stamp of the first packet from that of the last one that it
finds."""


def header_seconds(recording: Recording) -> float | None:
    """Return the duration in seconds that ffmpeg reads from a header, or estimates from the bit rate and the size.
    A recording without an audio track has no duration.

    A local file is given to ffmpeg whole. Of a remote recording, ffmpeg gets the first HEAD_BYTES in a sparse file of
    the recording's size. None means that ffmpeg is missing or does not know the content.

    Raises:
        TransientError, LocalReadError, UnusableObject: the recording cannot be read.
    """
    if recording.is_file:
        return _input_seconds(recording.fileno(), 1.0)
    head = recording.pread(HEAD_BYTES, 0)
    with open(os.memfd_create("head"), "wb") as file:
        file.write(head)
        file.truncate(recording.size)
        return _input_seconds(file.fileno(), recording.size / max(1, len(head)))


def _input_seconds(fd: int, size_ratio: float) -> float | None:
    """Return the duration of the file behind a descriptor, which holds one part in `size_ratio` of the recording."""
    try:
        arguments = [
            ffmpeg.executable(), "-nostdin", "-hide_banner", "-loglevel", "level+info",
            "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS, "-i", f"file:/dev/fd/{fd}",
        ]  # fmt: skip
        done = ffmpeg.start(
            lambda: subprocess.run(
                arguments, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
                pass_fds=(fd,), env=for_program(os.environ),
            ),
            fd,
        )  # fmt: skip
    except (AudioError, OSError, subprocess.TimeoutExpired):
        return None
    log = FFmpegLog()
    log.feed(done.stderr)
    if log.duration_s is None or not log.audio_streams:
        return None
    return log.duration_s * (size_ratio if log.format in _SPANS_PACKETS else 1.0)
