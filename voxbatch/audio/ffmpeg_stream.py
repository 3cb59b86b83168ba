"""Decode what libsndfile cannot read, with ffmpeg in a child process that can open only the given descriptor.

ffmpeg's playlists, concat scripts and image sequences open other files and addresses. Therefore only container formats
that hold their own audio are admitted (`-format_whitelist`), over local protocols only (`-protocol_whitelist`), and
from an open descriptor rather than a name. The pipe's format is AU, because AU has the simplest header that gives rate
and channels before the samples. pydub is not used: it cannot pass options before the input, and it holds whole
recordings in memory.
"""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from voxbatch.audio import ffmpeg
from voxbatch.audio.ffmpeg import FFmpegKilledError, executable
from voxbatch.audio.ffmpeg_log import FFmpegLog
from voxbatch.audio.file_kind import NUM_BYTES, file_kind
from voxbatch.audio.libsndfile import NativeBlock, block_frames
from voxbatch.audio.mp4_header import is_cut_mp4
from voxbatch.audio.mpeg_frames import FrameCounter
from voxbatch.audio.structure import TOLERANCE_S, AudioBytes, avi_seconds
from voxbatch.audio.timeline import WITHOUT_TIMESTAMPS, Timeline
from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process.child import for_program
from voxbatch.storage import LocalReadError, redacted
from voxbatch.storage.recording import Recording, verify_readable

FORMATS = (
    "aac,ac3,aiff,alaw,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,dv,eac3,flac,flv,g722,g729,gsm,loas,m4a,matroska,mlp,mov,mp3,mp4,mpc,mpc8,"
    "mpeg,mpegts,mulaw,mxf,nut,ogg,rm,sbc,sln,sox,tak,truehd,tta,voc,w64,wav,webm,wtv,wv,xwma"
)
"""Demuxers (ffmpeg -demuxers) that read audio from their own bytes alone. None of them opens a further file: g729, sbc
and sln cut raw bytes into packets; loas, mlp and truehd pass raw bytes to a parser; sox is a header and PCM; nut is one
stream of packets; wtv has a file system within its bytes. (mov does not follow references to other files by default.)
"""
_TELEPHONE = ["-ar", "8000"]
RAW_FORMATS = {
    ".alaw": ["-f", "alaw", *_TELEPHONE], ".g722": ["-f", "g722"], ".gsm": ["-f", "gsm"],
    ".ulaw": ["-f", "mulaw", *_TELEPHONE], ".g729": ["-f", "g729"], ".sbc": ["-f", "sbc"], ".msbc": ["-f", "sbc"],
    ".sln": ["-f", "sln", *_TELEPHONE],
    **{
        f".sln{khz}": ["-f", "sln", "-ar", str(44_100 if khz == 44 else 1000 * khz)]
        for khz in (12, 16, 24, 32, 44, 48, 96, 192)
    },
}  # fmt: skip
"""ffmpeg's options for headerless formats with one rate and channel count. Only the extension identifies them."""

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
LINES_WAIT_S = 0.1
"""Seconds after which lines about packets are read if neither audio nor messages come."""
_AU = struct.Struct(">4s5I")  # magic, data offset, data size, encoding, rate, channels
_AU_FLOAT32 = 6
_DESCRIPTOR = re.compile(r"(?:file:)?/dev/fd/\d+")
"""Pattern of the name under which ffmpeg receives the recording."""
_WAVPACK = b"wvpk"
"""First bytes of WavPack. ffmpeg 5 reports the end of a truncated WavPack file as a read error."""
_MPEGTS_PACKET, _MPEGTS_SYNC = 188, 0x47
_MPEG_PACK = bytes.fromhex("000001ba")
"""First bytes of an MPEG program stream."""


def command(
    recording: Recording, name: str, begin: float, audio_stream: int, has_stale_header: bool, packets: int
) -> list[str]:
    """Return the command line that decodes an audio stream of a recording to AU (float32, big-endian) on stdout.

    Args:
        recording: its descriptor is inherited by the child process.
        name: name of the recording; its extension selects a raw format.
        begin: seconds to seek to before the decoding begins.
        audio_stream: 0-based number among the audio streams.
        has_stale_header: True to read a WAV file to its end and not to the length in its header.
        packets: descriptor to which the timestamp and the length of each packet of the output are written.
    """
    raw = RAW_FORMATS.get(os.path.splitext(redacted(name, ""))[1].lower(), [])
    head = recording.pread(2 * _MPEGTS_PACKET + 1, 0)
    is_transport = len(head) > 2 * _MPEGTS_PACKET and set(head[::_MPEGTS_PACKET]) == {_MPEGTS_SYNC}
    return [
        executable(), "-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info", "-threads", "1",
        "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS, "-err_detect", "crccheck",
        *raw, *(["-f", "wav", "-ignore_length", "1"] if has_stale_header else []),
        # ffmpeg 9 cuts the empty rest of the last packet of ALAC in CAF twice, and with it up to 2047 samples of audio.
        *(["-flags2", "skip_manual"] if head.startswith(b"caff") and head[28:32] == b"alac" else []),
        *(["-ss", f"{begin:.6f}"] if begin else []),
        "-i", f"file:/dev/fd/{recording.fileno()}",
        # Filters that fill gaps in the timestamps forget their state when the rate or the channels change.
        "-map", f"0:a:{audio_stream}", "-c:a", "pcm_f32be",
        "-f", "tee", f"[f=au]pipe:1|[f=framecrc:flush_packets=1]pipe:{packets}",
        # The clock of MPEG streams starts at the first packet that ffmpeg uses, so it must use the video, too.
        *(["-map", "0:v?", "-c", "copy", "-f", "null", "-"] if is_transport or head.startswith(_MPEG_PACK) else []),
    ]  # fmt: skip


class UndecodableStreamError(AudioError):
    """ffmpeg gives no audio of a stream."""

    def __init__(self, message: str, kind: FailureKind, audio_streams: tuple[str, ...] = ()):
        """Build the error. The streams have a default, because pickle builds errors from the other arguments alone."""
        super().__init__(message, kind)
        self.audio_streams = audio_streams


@dataclass(slots=True)
class _PacketRun:
    """Packets without a gap between them. The fields count the bytes that are to be returned."""

    silence: int = 0
    """Bytes of silence before the first packet."""
    audio: int = 0
    """Bytes of the packets."""


class FFmpegStream:
    """Decoder of a recording through ffmpeg.

    Attributes `rate` (Hz) and `channels` come from the header of ffmpeg's output, and `audio_streams` (a description of
    each audio stream), `layout` (of the channels, such as "5.1(side)"), `frame_rate`, `average_frame_rate` and
    `aspect_ratio` (see FFmpegLog) from its messages.

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
        self._audio_stream, self._audio_bytes, self._log = audio_stream, audio_bytes, FFmpegLog()
        self._has_stale_header = audio_bytes is not None and audio_bytes.is_stale
        self.is_uncompressed = self._has_stale_header
        begin = max(0.0, offset - PREROLL_S) if seek else 0.0
        packets_out, packets_in = os.pipe()
        os.set_blocking(packets_out, False)
        self._packets: IO[bytes] = os.fdopen(packets_out, "rb")
        try:
            arguments = command(recording, name, begin, audio_stream, self._has_stale_header, packets_in)
            self._process = ffmpeg.start(
                lambda: subprocess.Popen(
                    arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    pass_fds=(recording.fileno(), packets_in), env=for_program(os.environ),
                ),
                recording.fileno(),
            )  # fmt: skip
        except BaseException:
            self._packets.close()
            raise
        finally:
            os.close(packets_in)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdout: IO[bytes] = self._process.stdout
        self._stderr: IO[bytes] = self._process.stderr
        self._pipes = [self._stdout, self._stderr, self._packets]
        """Pipes that ffmpeg has not closed."""
        self._audio = bytearray()
        """Audio that was received and not yet returned."""
        self._packet_lines = b""
        """Begin of a line about a packet whose rest was not received."""
        self._last_packet: tuple[int, int, int] | None = None
        """Timestamp and length in samples, and size in bytes, of the last packet, which is not in `_runs` yet."""
        self._runs = deque([_PacketRun()])
        """The audio to return, with a new run after each gap in the timestamps."""
        try:
            self.rate, self.channels = self._read_header()
        except (AudioError, FFmpegKilledError, LocalReadError):
            self.close()
            raise
        self.audio_streams = tuple(self._log.audio_streams)
        self.layout = self._log.audio_streams[audio_stream].rpartition(", ")[2]
        self.frame_rate, self.average_frame_rate = self._log.frame_rate, self._log.average_frame_rate
        self.aspect_ratio = self._log.aspect_ratio
        self._timeline = Timeline(self.rate, has_timestamps=self._log.format not in WITHOUT_TIMESTAMPS)
        self._skipped_frames = round((offset - begin) * self.rate)

    def _read_header(self) -> tuple[int, int]:
        while len(self._audio) < _AU.size and self._pipes:
            self._receive()
        if len(self._audio) < _AU.size:
            self._check_exit_code()
            self._raise_read_error()
            if not (begin := self._recording.pread(NUM_BYTES, 0)):
                raise AudioError("the file is empty", FailureKind.EMPTY)
            error = self._first_error(self._reason)
            text, kind = str(error), error.kind
            if text.startswith(("Invalid data found", "Format not on whitelist", "Not detecting")):
                text = f"not audio in a format that libsndfile or ffmpeg knows: it looks like {file_kind(begin)}"
                kind = FailureKind.NOT_AUDIO
            raise UndecodableStreamError(text, kind, tuple(self._log.audio_streams))
        magic, data_offset, _, encoding, rate, channels = _AU.unpack_from(self._audio)
        assert (magic, encoding) == (b".snd", _AU_FLOAT32)
        while len(self._audio) < data_offset and self._stdout in self._pipes:
            self._receive()
        del self._audio[:data_offset]
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
        try:
            while data := self._read(size):
                data = data[: len(data) // frame_bytes * frame_bytes]
                block = np.frombuffer(data, ">f4").astype(np.float32).reshape(-1, self.channels)
                skipped = min(self._skipped_frames, len(block))
                self._skipped_frames -= skipped
                yield block[skipped:]
            code = self._check_exit_code()
            self._raise_read_error()
            if code != 0:
                raise self._first_error()
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
            num_bytes = audio.present + (audio.unexplained if self._has_stale_header else 0)
            yield from audio.losses(num_bytes, seconds)
        elif log.format == "mp3":
            yield from FrameCounter(self._recording).finish().losses()
        else:
            claimed_s = avi_seconds(self._recording) if log.format == "avi" else log.claimed_s
            if claimed_s is not None and claimed_s > seconds + TOLERANCE_S:
                yield f"the recording ends after {seconds:.2f} s, and its container claims {claimed_s:.2f} s"

    def silence(self) -> Iterator[str]:
        """Yield a message about the gaps that became silence, if there were any."""
        if (seconds := self._timeline.silence / self.rate) > TOLERANCE_S:
            yield f"{seconds:.2f} s without readable audio are kept as silence"

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes of whole frames, fewer at the end of the stream. Gaps are zeros. There is no time
        limit: the pool of decoders judges whether a decoder and its ffmpeg hang."""
        parts, missing = list[bytes | bytearray](), size
        while missing:
            part: bytes | bytearray = b""
            run = self._runs[0]
            if run.silence:
                part = bytes(min(missing, run.silence))
                run.silence -= len(part)
            elif part := self._audio[: min(missing, run.audio)]:
                del self._audio[: len(part)]
                run.audio -= len(part)
            elif not run.audio and len(self._runs) > 1:
                self._runs.popleft()
            elif self._pipes:
                self._receive()
                self._place_packets()
            else:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _receive(self) -> None:
        """Wait for ffmpeg's output, and read audio, messages and lines about packets.

        A line comes with every packet, and to wake up for each of them would cost a fifth of the decoding. So the lines
        are read with the audio. The time limit is for packets that are so small that their lines fill the pipe before
        any audio is written.
        """
        ready = select.select([pipe for pipe in self._pipes if pipe is not self._packets], [], [], LINES_WAIT_S)[0]
        if self._packets in self._pipes:
            ready.append(self._packets)
        for pipe in ready:
            try:
                data = os.read(pipe.fileno(), _PIPE_BYTES)
            except BlockingIOError:  # there is no new line
                continue
            if not data:
                self._pipes.remove(pipe)
            elif pipe is self._stdout:
                self._audio += data
            elif pipe is self._stderr:
                self._log.feed(data)
            else:
                self._packet_lines += data

    def _place_packets(self) -> None:
        """Add the packets whose lines were received to the runs, except the last one, which waits for the timestamp of
        the next. A line is "stream, dts, pts, duration, size, CRC"."""
        *lines, self._packet_lines = self._packet_lines.split(b"\n")
        for line in lines:
            if line.startswith(b"#"):
                continue
            _, _, timestamp, length, size, _ = line.split(b",", 5)
            next_packet = int(timestamp), int(length), int(size)
            if self._last_packet:
                self._place(*self._last_packet, next_packet[0])
            self._last_packet = next_packet
        if self._last_packet and self._packets not in self._pipes:
            self._place(*self._last_packet, None)
            self._last_packet = None

    def _place(self, timestamp: int, length: int, size: int, next_timestamp: int | None) -> None:
        gap = self._timeline.add(timestamp, length, next_timestamp)
        if gap > 0:
            self._runs.append(_PacketRun(silence=gap * 4 * self.channels))
        elif gap < 0:
            self._skipped_frames -= gap
        self._runs[-1].audio += size

    def _check_exit_code(self) -> int:
        """Wait for ffmpeg's end, and return its exit code.

        Raises:
            FFmpegKilledError: the exit code says that ffmpeg was killed.
        """
        while self._pipes:
            self._receive()
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

    def _first_error(self, reason: str = "") -> AudioError:
        """Return the error with ffmpeg's first message, or else with `reason`. The first message gives the cause; later
        ones only say that ffmpeg stopped.

        Versions before 7 begin the message with the name of the input, which here is a descriptor's. That name is
        removed.
        """
        first = self._log.first_error or ""
        if not self._log.audio_streams and is_cut_mp4(self._recording):
            return AudioError("the file is cut: its end is missing, with the index (moov) that a player needs")
        if "matches no streams" in first:
            if not (num_streams := len(self._log.audio_streams)):
                kind = FailureKind.NO_AUDIO_TRACK if self._log.has_video else FailureKind.NOT_AUDIO
                return AudioError("it has no audio track", kind)
            streams = "audio stream 0 only" if num_streams == 1 else f"audio streams 0 to {num_streams - 1}"
            text = f"audio stream {self._audio_stream} was asked for; the recording has {streams}"
            return AudioError(text, FailureKind.NO_SUCH_PART)
        text = re.sub(rf"^(Error opening input: *|{_DESCRIPTOR.pattern}: *)", "", first)
        return AudioError(self._without_descriptor(text) or reason)

    def _without_descriptor(self, message: str) -> str:
        return _DESCRIPTOR.sub(lambda _: self._name, message)

    def close(self) -> None:
        """Kill ffmpeg if it still runs, and release its pipes."""
        self._process.kill()
        self._stdout.close()
        self._process.wait()
        self._stderr.close()
        self._packets.close()
