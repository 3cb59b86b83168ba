"""Decode what libsndfile cannot read, with ffmpeg in a child process that can open only the given descriptor.

ffmpeg's playlists, concat scripts and image sequences open other files and addresses. Therefore only container formats
that hold their own audio are admitted (`-format_whitelist`), over local protocols only (`-protocol_whitelist`), and
from an open descriptor rather than a name. The pipe's format is AU, because AU has the simplest header that gives rate
and channels before the samples. pydub is not used: it cannot pass options before the input, and it holds whole
recordings in memory.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np

from voxbatch.audio.libsndfile import NativeBlock, block_frames
from voxbatch.errors import AudioError, ConfigError, ItemError
from voxbatch.storage import LocalReadError, TemporaryFileError, read_at, redacted, verify_readable

FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,eac3,flac,flv,g722,gsm,m4a,matroska,mov,mp3,mp4,mpeg,mpegts,"
    "ogg,rm,tak,tta,voc,w64,wav,webm,wv,xwma"
)
"""Demuxers (ffmpeg -demuxers) that read audio from their own bytes alone."""
FFMPEG_VARIABLE = "VOXBATCH_FFMPEG"
"""Environment variable that names another ffmpeg."""
RAW_FORMATS = {".g722": "g722", ".gsm": "gsm"}
"""Headerless formats with one rate and channel count. Only the extension identifies them."""
VERSION_TIMEOUT_S = 60
"""Seconds that ffmpeg may take to print its version."""

KILL_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals that a person, a service manager or the kernel's OOM killer sends. Other signals, such as SIGSEGV, are
crashes, and the recording is their cause."""
STOPPED_BY_SIGNAL = 255
"""Exit code of an ffmpeg that handled a signal: it writes what it has decoded and ends without a message."""
PREROLL_S = 2.0
"""Seconds before an offset that are decoded and discarded. A codec needs its state, and the position that ffmpeg seeks
to is wrong by up to 15 ms (m4a). The error that remains is the precision of the container's own clock: 1 ms in
Matroska, 12 ms in WebM, 0.1 s in WMA."""

_MAX_MESSAGES_BYTES = 1 << 20
"""Bytes of ffmpeg's messages that are searched for a read error."""

_AU = struct.Struct(">4s5I")  # magic, data offset, data size, encoding, rate, channels
_AU_FLOAT32 = 6
_DESCRIPTOR = re.compile(r"(?:file:)?/dev/fd/\d+")
"""Pattern of the name under which ffmpeg receives the recording."""
_READ_ERRORS = [os.strerror(number) for number in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)]
"""Messages of the kernel for a file that cannot be read. ffmpeg repeats them."""
_WAVPACK = b"wvpk"
"""First bytes of WavPack. ffmpeg 5 reports the end of a truncated WavPack file as a read error."""


class FFmpegKilledError(ItemError):
    """ffmpeg was killed by this machine or by a stop. The recording is not to blame, and a retry may succeed."""

    retryable = True


@functools.cache
def executable() -> str:
    """Return the path of the ffmpeg to run.

    VOXBATCH_FFMPEG comes first, then the binary inside the wheel of imageio-ffmpeg, then the system's ffmpeg. The wheel
    comes before the system, because the lock files pin its version: every machine and worker then decodes to the same
    samples and fails with the same messages.

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no program.
        AudioError: there is no ffmpeg.
    """
    if chosen := os.environ.get(FFMPEG_VARIABLE):
        found = shutil.which(chosen)
        if found is None:
            raise ConfigError(f"{FFMPEG_VARIABLE}={chosen}: no such program; give the path of an ffmpeg, or unset it")
        return found
    try:
        import imageio_ffmpeg

        found = shutil.which(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # the package, or a binary for this platform, is missing
        found = shutil.which("ffmpeg")
    if found is None:
        raise AudioError("this format needs ffmpeg, which is not installed: pip install imageio-ffmpeg")
    return found


@functools.cache
def version() -> str:
    """Return the version of `executable` and its origin.

    Examples are "7.0.2-static (imageio-ffmpeg 0.6.0)", "5.1.9-0+deb12u1 (system)" and "… (VOXBATCH_FFMPEG)".

    Raises:
        ConfigError: the program does not run, or VOXBATCH_FFMPEG names no program.
        AudioError: there is no ffmpeg.
    """
    program = executable()
    try:
        done = subprocess.run([program, "-version"], capture_output=True, check=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as e:
        raise ConfigError(f"{program} does not run as ffmpeg: {e}; set {FFMPEG_VARIABLE} to another one") from e
    number = re.match(r"ffmpeg version (\S+)", done.stdout.decode("utf-8", "replace"))
    if os.environ.get(FFMPEG_VARIABLE):
        origin = FFMPEG_VARIABLE
    elif "imageio_ffmpeg" in Path(program).parts:
        origin = f"imageio-ffmpeg {metadata.version('imageio-ffmpeg')}"
    else:
        origin = "system"
    return f"{number[1] if number else 'unknown'} ({origin})"


def command(fd: int, name: str, offset: float) -> list[str]:
    """Return the command line that decodes the first audio track of a descriptor to AU (float32, big-endian) on stdout.

    Args:
        fd: open descriptor, which the child process inherits.
        name: name of the recording; its extension selects a raw format.
        offset: seconds to skip. ffmpeg seeks to PREROLL_S before the offset and decodes the rest of the way.
    """
    raw = RAW_FORMATS.get(os.path.splitext(redacted(name, ""))[1].lower())
    begin = max(0.0, offset - PREROLL_S)
    return [
        executable(), "-nostdin", "-hide_banner", "-loglevel", "error", "-threads", "1",
        "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS,
        *(["-f", raw] if raw else []), *(["-ss", f"{begin:.6f}"] if begin else []),
        "-i", f"file:/dev/fd/{fd}", *(["-ss", f"{offset - begin:.6f}"] if offset else []),
        "-map", "0:a:0", "-c:a", "pcm_f32be", "-f", "au", "pipe:1",
    ]  # fmt: skip


class FFmpegStream:
    """Decoder of an open descriptor through ffmpeg. Without `seek`, all audio before the offset is decoded and
    discarded.

    Attributes `rate` (Hz) and `channels` come from the header of ffmpeg's output.

    Raises:
        LocalReadError: the file cannot be read.
        AudioError: ffmpeg finds no audio; or, from `blocks`, ffmpeg fails in the middle of the file, after the blocks
            that it could decode.
        FFmpegKilledError: ffmpeg was killed, at any time.
    """

    def __init__(self, fd: int, name: str, offset: float, reason: str, seek: bool = True):
        self._fd, self._name, self._reason = fd, redacted(name, ""), reason
        self._skip_s = 0.0 if seek else offset
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`, with the process)
        except OSError as e:
            raise TemporaryFileError(f"{self._name}: the messages of ffmpeg", e) from e
        self._process = subprocess.Popen(
            command(fd, name, offset if seek else 0.0),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._stderr, pass_fds=(fd,),
        )  # fmt: skip
        assert self._process.stdout is not None
        self._stdout: IO[bytes] = self._process.stdout
        try:
            self.rate, self.channels = self._read_header()
        except (AudioError, FFmpegKilledError, LocalReadError):
            self.close()
            raise

    def _read_header(self) -> tuple[int, int]:
        head = self._read(_AU.size)
        if len(head) < _AU.size:
            self._check_exit_code()
            self._raise_read_error()
            error = self._first_error() or self._reason
            if not (begin := read_at(self._fd, 24, 0)):
                error = "the file is empty"
            elif error.startswith(("Invalid data found", "Format not on whitelist", "Not detecting")):
                error = f"not audio in a format that libsndfile or ffmpeg knows; it begins with {begin!r}"
            raise AudioError(error)
        magic, data_offset, _, encoding, rate, channels = _AU.unpack(head)
        assert (magic, encoding) == (b".snd", _AU_FLOAT32)
        self._read(data_offset - _AU.size)
        return rate, channels

    def blocks(self) -> Iterator[NativeBlock]:
        """Yield blocks of shape (frames, channels), then close the stream.

        Raises:
            LocalReadError: the file cannot be read.
            AudioError: ffmpeg failed.
            FFmpegKilledError: ffmpeg was killed.
        """
        frame_bytes = 4 * self.channels
        size = block_frames(self.rate, self.channels) * frame_bytes
        skip = round(self._skip_s * self.rate)
        try:
            while data := self._read(size):
                whole = data[: len(data) // frame_bytes * frame_bytes]
                block = np.frombuffer(whole, ">f4").astype(np.float32).reshape(-1, self.channels)
                yield block[skip:]
                skip = max(0, skip - len(block))
            code = self._check_exit_code()
            self._raise_read_error()
            if code != 0:
                raise AudioError(self._first_error())
        finally:
            self.close()

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes, fewer at the end of the stream. There is no time limit: the pool of decoders
        judges whether a decoder and its ffmpeg hang."""
        parts, missing = [], size
        while missing:
            if not (data := os.read(self._stdout.fileno(), min(missing, 1 << 20))):
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _check_exit_code(self) -> int:
        """Wait for ffmpeg's end, and return its exit code.

        Raises:
            FFmpegKilledError: the exit code says that ffmpeg was killed.
        """
        code = self._process.wait()
        if -code in KILL_SIGNALS:
            raise FFmpegKilledError(f"ffmpeg was killed by signal {-code}")
        if code == STOPPED_BY_SIGNAL:
            raise FFmpegKilledError("ffmpeg was stopped by a signal")
        return code

    def _raise_read_error(self) -> None:
        """Raise the read error that made ffmpeg fail, if there was one. ffmpeg treats it as the end of the file, with
        exit code 0."""
        self._stderr.seek(0)
        messages = self._stderr.read(_MAX_MESSAGES_BYTES).decode("utf-8", "replace")
        if messages:
            verify_readable(self._fd)
        error = next((error for error in _READ_ERRORS if error in messages), None)
        if error and read_at(self._fd, len(_WAVPACK), 0) != _WAVPACK:  # a moment ago; now the file can be read
            raise LocalReadError(error)

    def _first_error(self) -> str:
        """Return ffmpeg's first message. It gives the cause; later messages only say that ffmpeg stopped.

        Versions before 7 begin the message with the name of the input, which here is a descriptor's. That name is
        removed.
        """
        self._stderr.seek(0)
        first = self._stderr.readline(1000).decode("utf-8", "replace").strip()
        if "matches no streams" in first:
            return "it has no audio track"
        cause = re.sub(rf"^(\[[^]]*\] *)*(Error opening input: *|{_DESCRIPTOR.pattern}: *)?", "", first)
        return _DESCRIPTOR.sub(lambda _: self._name, cause)

    def close(self) -> None:
        """Kill ffmpeg if it still runs, and release its pipes."""
        self._process.kill()
        self._stdout.close()
        self._process.wait()
        self._stderr.close()
