"""Decode what libsndfile cannot read, with ffmpeg in a child process that can open only the given descriptor.

ffmpeg's playlists, concat scripts and image sequences open other files and addresses. Therefore only container formats
that hold their own audio are admitted (`-format_whitelist`), over local protocols only (`-protocol_whitelist`), and
from an open descriptor rather than a name. The pipe's format is AU, because AU has the simplest header that gives rate
and channels before the samples. pydub is not used: it cannot pass options before the input, and it holds whole
recordings in memory.
"""

from __future__ import annotations

import functools
import os
import re
import select
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np

from voxbatch.audio.ffmpeg_log import FFmpegLog
from voxbatch.audio.libsndfile import NativeBlock, block_frames
from voxbatch.audio.mpeg_frames import FrameCounter
from voxbatch.audio.structure import TOLERANCE_S, AudioBytes, avi_seconds
from voxbatch.child_environment import for_program
from voxbatch.errors import AudioError, ConfigError, ItemError
from voxbatch.storage import LocalReadError, Recording, redacted, verify_readable

FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,dv,eac3,flac,flv,g722,gsm,m4a,matroska,mov,mp3,mp4,mpc,mpc8,"
    "mpeg,mpegts,mxf,ogg,rm,tak,tta,voc,w64,wav,webm,wv,xwma"
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

_PIPE_BYTES = 1 << 20
_AU = struct.Struct(">4s5I")  # magic, data offset, data size, encoding, rate, channels
_AU_FLOAT32 = 6
_DESCRIPTOR = re.compile(r"(?:file:)?/dev/fd/\d+")
"""Pattern of the name under which ffmpeg receives the recording."""
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
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            check=True,
            timeout=VERSION_TIMEOUT_S,
            env=for_program(os.environ),
        )
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


_MPEGTS_PACKET, _MPEGTS_SYNC = 188, 0x47
_MPEG_PACK = bytes.fromhex("000001ba")
"""First bytes of an MPEG program stream."""
_MAX_GAP_S = 3600
"""Longest gap in the timestamps, in seconds, that becomes silence. A longer one, and timestamps that go backwards, mean
that the file was joined from others or is broken; then the audio continues without a gap."""
_MIN_GAP_S = 0.1
"""Shortest gap in seconds. Timestamps are rounded, some of them to 0.1 s."""
TIMESTAMPS_TO_SILENCE = (
    # Variables: 0 is added to all timestamps, 1 is the end of the last frame, 2 is the new timestamp.
    "asetpts='"
    "if(N,0,st(1,min(PTS,0)));"
    "st(2,PTS+ld(0));"
    f"st(2,if(lt(ld(2),ld(1)-{_MIN_GAP_S}/TB)+gt(ld(2),ld(1)+{_MAX_GAP_S}/TB),st(0,ld(1)-PTS)+PTS,max(ld(2),ld(1))));"
    "st(1,ld(2)+NB_SAMPLES/SR/TB);"
    "ld(2)',"
    f"aresample=async=1:min_hard_comp={_MIN_GAP_S}:first_pts=0"
)
"""Filters that keep gaps in the timestamps, and a start of the audio after the start of the video, as silence, so that
the times of the words are right."""


def command(recording: Recording, name: str, offset: float, audio_stream: int, has_stale_header: bool) -> list[str]:
    """Return the command line that decodes an audio stream of a recording to AU (float32, big-endian) on stdout.

    Args:
        recording: its descriptor is inherited by the child process.
        name: name of the recording; its extension selects a raw format.
        offset: seconds to skip. ffmpeg seeks to PREROLL_S before the offset and decodes the rest of the way.
        audio_stream: 0-based number among the audio streams.
        has_stale_header: True to read a WAV file to its end and not to the length in its header.
    """
    raw = RAW_FORMATS.get(os.path.splitext(redacted(name, ""))[1].lower())
    begin = max(0.0, offset - PREROLL_S)
    return [
        executable(), "-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+verbose", "-threads", "1",
        "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS, "-err_detect", "crccheck",
        *(["-f", raw] if raw else []), *(["-f", "wav", "-ignore_length", "1"] if has_stale_header else []),
        *(["-ss", f"{begin:.6f}"] if begin else []),
        "-i", f"file:/dev/fd/{recording.fileno()}", *(["-ss", f"{offset - begin:.6f}"] if offset else []),
        "-map", f"0:a:{audio_stream}",
        # WAV has no timestamps, and a file of many channels has many short packets, for which the filters are slow.
        *([] if has_stale_header else ["-af", TIMESTAMPS_TO_SILENCE]),
        "-c:a", "pcm_f32be", "-f", "au", "pipe:1",
        # The clock of MPEG streams starts at the first packet that ffmpeg uses, so it must use the video, too.
        *(["-map", "0:v?", "-c", "copy", "-f", "null", "-"] if _is_mpeg_stream(recording) else []),
    ]  # fmt: skip


def _is_mpeg_stream(recording: Recording) -> bool:
    """Return whether a recording is an MPEG transport stream or an MPEG program stream."""
    begin = recording.pread(2 * _MPEGTS_PACKET + 1, 0)
    is_transport = len(begin) > 2 * _MPEGTS_PACKET and set(begin[::_MPEGTS_PACKET]) == {_MPEGTS_SYNC}
    return is_transport or begin.startswith(_MPEG_PACK)


class FFmpegStream:
    """Decoder of a recording through ffmpeg.

    Attributes `rate` (Hz) and `channels` come from the header of ffmpeg's output, and `audio_streams` (a description of
    each audio stream) from its messages.

    Args:
        recording: an open recording, which is not closed here.
        name: see `command`.
        offset: seconds to skip.
        reason: the reason why ffmpeg is used, for the error if it gives none.
        seek: False decodes all audio before the offset and discards it.
        audio_stream: see `command`.
        audio_bytes: position of the audio in an uncompressed file, for `losses`; None if it is unknown. A WAV file with
            a stale header is read to its end.

    Raises:
        LocalReadError: the file cannot be read.
        AudioError: ffmpeg finds no audio; or, from `blocks`, ffmpeg fails in the middle of the file, after the blocks
            that it could decode.
        FFmpegKilledError: ffmpeg was killed, at any time.
    """

    def __init__(
        self,
        recording: Recording,
        name: str,
        offset: float,
        reason: str,
        *,
        seek: bool = True,
        audio_stream: int = 0,
        audio_bytes: AudioBytes | None = None,
    ):
        self._recording, self._name, self._reason = recording, redacted(name, ""), reason
        self._skip_s = 0.0 if seek else offset
        self._audio_stream, self._audio_bytes, self._log = audio_stream, audio_bytes, FFmpegLog()
        self._has_stale_header = audio_bytes is not None and audio_bytes.is_stale
        self.is_uncompressed = self._has_stale_header
        self._process = subprocess.Popen(
            command(recording, name, offset if seek else 0.0, audio_stream, self._has_stale_header),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=(recording.fileno(),), env=for_program(os.environ),
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdout: IO[bytes] = self._process.stdout
        self._stderr: IO[bytes] = self._process.stderr
        self._pipes = [self._stdout, self._stderr]
        """Pipes that ffmpeg has not closed."""
        try:
            self.rate, self.channels = self._read_header()
        except (AudioError, FFmpegKilledError, LocalReadError):
            self.close()
            raise
        self.audio_streams = tuple(self._log.audio_streams)

    def _read_header(self) -> tuple[int, int]:
        head = self._read(_AU.size)
        if len(head) < _AU.size:
            self._check_exit_code()
            self._raise_read_error()
            error = self._first_error() or self._reason
            if not (begin := self._recording.pread(24, 0)):
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

    def losses(self, frames: int | None) -> Iterator[str]:
        """Yield a message for each sign of damage in what was decoded, and of audio that was not decoded.

        Args:
            frames: number of frames from the start of the recording to its end, by `blocks`; None if only a part was
                decoded.
        """
        log = self._log
        if log.damage and not self._has_stale_header:  # ffmpeg 5 calls the end of a file with a stale header damage
            yield f"damaged: {self._without_descriptor(log.damage)}"
        if log.closed_gaps_s:
            yield f"{log.closed_gaps_s:.2f} s without audio were left out, so that the times after them are too early"
        yield from self.silence()
        if frames is None:
            return
        seconds = frames / self.rate
        if audio := self._audio_bytes:
            read = audio.present + (audio.unexplained if self._has_stale_header else 0)
            yield from audio.losses(read, seconds)
        elif log.format == "mp3":
            yield from FrameCounter(self._recording).finish().losses()
        else:
            claimed_s = avi_seconds(self._recording) if log.format == "avi" else log.claimed_s
            if claimed_s is not None and claimed_s > seconds + TOLERANCE_S:
                yield f"the recording ends after {seconds:.2f} s, and its container claims {claimed_s:.2f} s"

    def silence(self) -> Iterator[str]:
        """Yield a message about the gaps that became silence, if there were any."""
        if (seconds := self._log.silent_samples / self.rate) > TOLERANCE_S:
            yield f"{seconds:.2f} s without readable audio are kept as silence"

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes of audio, fewer at the end of the stream. There is no time limit: the pool of
        decoders judges whether a decoder and its ffmpeg hang."""
        parts, missing = [], size
        while missing and self._stdout in self._pipes:
            data = self._receive(min(missing, _PIPE_BYTES))
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _receive(self, size: int) -> bytes:
        """Wait for ffmpeg's output, read its messages, and return up to `size` bytes of audio."""
        audio = b""
        for pipe in select.select(self._pipes, [], [])[0]:
            if not (data := os.read(pipe.fileno(), size if pipe is self._stdout else _PIPE_BYTES)):
                self._pipes.remove(pipe)
            elif pipe is self._stdout:
                audio = data
            else:
                self._log.feed(data)
        return audio

    def _check_exit_code(self) -> int:
        """Wait for ffmpeg's end, and return its exit code.

        Raises:
            FFmpegKilledError: the exit code says that ffmpeg was killed.
        """
        while self._pipes:
            self._receive(_PIPE_BYTES)
        self._log.finish()
        code = self._process.wait()
        if -code in KILL_SIGNALS:
            raise FFmpegKilledError(f"ffmpeg was killed by signal {-code}")
        if code == STOPPED_BY_SIGNAL:
            raise FFmpegKilledError("ffmpeg was stopped by a signal")
        return code

    def _raise_read_error(self) -> None:
        """Raise the read error that made ffmpeg fail, if there was one. ffmpeg treats it as the end of the file, with
        exit code 0."""
        if self._log.damage:
            verify_readable(self._recording.fileno())
        error = self._log.read_error
        if error and self._recording.pread(len(_WAVPACK), 0) != _WAVPACK:  # a moment ago; now the file can be read
            raise LocalReadError(error)

    def _first_error(self) -> str:
        """Return ffmpeg's first message. It gives the cause; later messages only say that ffmpeg stopped.

        Versions before 7 begin the message with the name of the input, which here is a descriptor's. That name is
        removed.
        """
        first = self._log.first_error or ""
        if "matches no streams" in first:
            if not (found := len(self._log.audio_streams)):
                return "it has no audio track"
            streams = "audio stream 0 only" if found == 1 else f"audio streams 0 to {found - 1}"
            return f"audio stream {self._audio_stream} was asked for; the recording has {streams}"
        return self._without_descriptor(re.sub(rf"^(Error opening input: *|{_DESCRIPTOR.pattern}: *)", "", first))

    def _without_descriptor(self, message: str) -> str:
        return _DESCRIPTOR.sub(lambda _: self._name, message)

    def close(self) -> None:
        """Kill ffmpeg if it still runs, and release its pipes."""
        self._process.kill()
        self._stdout.close()
        self._process.wait()
        self._stderr.close()
