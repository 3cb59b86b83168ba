"""What libsndfile cannot read, read by ffmpeg in a child process that can open nothing but the given descriptor's
bytes.

ffmpeg's playlists, concat scripts and image sequences open other files and addresses. Only container formats that hold
their own audio are admitted (`-format_whitelist`), over local protocols only (`-protocol_whitelist`), from an open
descriptor rather than a name. AU is the pipe's format: the simplest header that tells rate and channels ahead of the
samples. pydub is not used: it cannot pass options ahead of the input, and holds whole recordings in memory.
"""

from __future__ import annotations

import functools
import os
import re
import select
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np

from voxbatch.audio.native import NativeBlock, block_frames
from voxbatch.errors import AudioError, ConfigError
from voxbatch.storage import Unkept, shown

FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,eac3,flac,flv,g722,gsm,m4a,matroska,mov,mp3,mp4,mpeg,mpegts,"
    "ogg,rm,tak,tta,voc,w64,wav,webm,wv,xwma"
)
"""Demuxers (ffmpeg -demuxers) that read audio from their own bytes alone."""
CHOSEN = "VOXBATCH_FFMPEG"
"""The variable that names another ffmpeg."""
RAW_FORMATS = {".g722": "g722", ".gsm": "gsm"}
"""Headerless formats with one rate and channel count: the extension is all there is to know them by."""
SILENCE_TIMEOUT_S = 60
"""Without a byte for this long ffmpeg is taken for hung and killed."""

PREROLL_S = 2.0
"""Seconds ahead of an offset that are decoded and thrown away: a codec needs its state, and where ffmpeg seeks to lies
up to 15 ms (m4a) off. Left over after it: a container's own clock, 1 ms in Matroska, 12 ms in WebM, 0.1 s in WMA."""

_AU = struct.Struct(">4s5I")  # magic, data offset, data size, encoding, rate, channels
_AU_FLOAT32 = 6
_DESCRIPTOR = re.compile(r"(?:file:)?/dev/fd/\d+")
"""The name of the recording as ffmpeg is given it."""


@functools.cache
def executable() -> str:
    """Return the path of the ffmpeg to run: the one that VOXBATCH_FFMPEG names, else the binary inside the wheel of
    imageio-ffmpeg, else the system's.

    The wheel comes before the system, because the lock files pin its version: every machine and worker then decodes to
    the same samples and fails with the same messages.

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no program.
        AudioError: there is no ffmpeg.
    """
    if chosen := os.environ.get(CHOSEN):
        found = shutil.which(chosen)
        if found is None:
            raise ConfigError(f"{CHOSEN}={chosen}: no such program; give the path of an ffmpeg, or unset it")
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
    """Return the version of `executable` and where it comes from: "7.0.2-static (imageio-ffmpeg 0.6.0)",
    "5.1.9-0+deb12u1 (system)" or "… (VOXBATCH_FFMPEG)".

    Raises: as `executable`; ConfigError where the program does not run.
    """
    program = executable()
    try:
        told = subprocess.run([program, "-version"], capture_output=True, check=True, timeout=SILENCE_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError) as e:
        raise ConfigError(f"{program} is no ffmpeg that runs here: {e}; {CHOSEN} can name another") from e
    number = re.match(r"ffmpeg version (\S+)", told.decode("utf-8", "replace"))
    return f"{number[1] if number else 'unknown'} ({_origin(program)})"


def _origin(program: str) -> str:
    if os.environ.get(CHOSEN):
        return CHOSEN
    if "imageio_ffmpeg" in Path(program).parts:
        return f"imageio-ffmpeg {metadata.version('imageio-ffmpeg')}"
    return "system"


def command(fd: int, name: str, offset: float) -> list[str]:
    raw = RAW_FORMATS.get(os.path.splitext(shown(name, ""))[1].lower())
    begin = max(0.0, offset - PREROLL_S)
    return [
        executable(), "-nostdin", "-hide_banner", "-loglevel", "error", "-threads", "1",
        "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS,
        *(["-f", raw] if raw else []), *(["-ss", f"{begin:.6f}"] if begin else []),
        "-i", f"file:/dev/fd/{fd}", *(["-ss", f"{offset - begin:.6f}"] if offset else []),
        "-map", "0:a:0", "-c:a", "pcm_f32be", "-f", "au", "pipe:1",
    ]  # fmt: skip


class FFmpegStream:
    """An open descriptor decoded by ffmpeg. Without `seek` all audio ahead of the offset is decoded and counted off.

    Raises:
        AudioError: ffmpeg finds no audio; or (from `blocks`) fails in mid-file, after yielding what it could.
    """

    def __init__(self, fd: int, name: str, offset: float, because: str, seek: bool = True):
        self._fd, self._name, self._because = fd, shown(name, ""), because
        self._skip_s = 0.0 if seek else offset
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`, with the process)
        except OSError as e:
            raise Unkept(f"{self._name}: the messages of ffmpeg", e) from e
        self._process = subprocess.Popen(
            command(fd, name, offset if seek else 0.0),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._stderr, pass_fds=(fd,),
        )  # fmt: skip
        assert self._process.stdout is not None
        self._stdout: IO[bytes] = self._process.stdout
        try:
            self.rate, self.channels = self._header()
        except AudioError:
            self.close()
            raise

    def _header(self) -> tuple[int, int]:
        head = self._read(_AU.size)
        if len(head) < _AU.size:
            raise AudioError(self._unreadable())
        magic, data_offset, _, encoding, rate, channels = _AU.unpack(head)
        assert (magic, encoding) == (b".snd", _AU_FLOAT32)
        self._read(data_offset - _AU.size)
        return rate, channels

    def blocks(self) -> Iterator[NativeBlock]:
        frame_bytes = 4 * self.channels
        size = block_frames(self.rate, self.channels) * frame_bytes
        skip = round(self._skip_s * self.rate)
        try:
            while data := self._read(size):
                whole = data[: len(data) // frame_bytes * frame_bytes]
                block = np.frombuffer(whole, ">f4").astype(np.float32).reshape(-1, self.channels)
                yield block[skip:]
                skip = max(0, skip - len(block))
            if self._process.wait() != 0:
                raise AudioError(self._complaint())
        finally:
            self.close()

    def _read(self, size: int) -> bytes:
        """Exactly `size` bytes, less at the end of the stream."""
        parts, missing = [], size
        while missing:
            if not select.select([self._stdout], [], [], SILENCE_TIMEOUT_S)[0]:
                raise AudioError(f"ffmpeg gave nothing for {SILENCE_TIMEOUT_S} s and was stopped")
            if not (data := os.read(self._stdout.fileno(), min(missing, 1 << 20))):
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _unreadable(self) -> str:
        complaint = self._complaint() or self._because
        begin = os.pread(self._fd, 24, 0)
        if not begin:
            return "the file is empty"
        if complaint.startswith(("Invalid data found", "Format not on whitelist", "Not detecting")):
            return f"not audio in a format that libsndfile or ffmpeg knows; it begins with {begin!r}"
        return complaint

    def _complaint(self) -> str:
        """Return ffmpeg's first message: it says what ffmpeg met, and the later ones only that it stopped. Versions
        before 7 open it with the name that they were given, which is a descriptor's."""
        self._process.wait()
        self._stderr.seek(0)
        first = self._stderr.readline(1000).decode("utf-8", "replace").strip()
        if "matches no streams" in first:
            return "it has no audio track"
        cause = re.sub(rf"^(\[[^]]*\] *)*(Error opening input: *|{_DESCRIPTOR.pattern}: *)?", "", first)
        return _DESCRIPTOR.sub(lambda _: self._name, cause)

    def close(self) -> None:
        self._process.kill()
        self._stdout.close()
        self._process.wait()
        self._stderr.close()
