"""Read ffmpeg's messages: the streams of a file, its length, and all that went wrong.

ffmpeg ends with exit code 0 after most damage. Only its messages tell of the damage.
"""

from __future__ import annotations

import errno
import os
import re

from voxbatch import frame_rate

MAX_LINE_BYTES = 10_000
"""Length at which a message is cut off."""
MIN_PCM_SHARE = 0.98
"""Share of a file with PCM that is audio; the rest is headers. In AVI they are 1.2 %."""
MAX_MESSAGE_LENGTH = 300
"""Characters of a message that a warning quotes."""

_LINE = re.compile(r"(?:\[[^]]* @ 0x[0-9a-f]+\] )*\[(?P<level>[a-z]+)\] (?P<text>.*)")
"""A message with `-loglevel level+…`: "[aac @ 0x55d] [error] channel element 0.0 is not allocated"."""
_INPUT = re.compile(r"Input #0, (\S+), from ")
_DURATION = re.compile(r" *Duration: (\d+):(\d\d):(\d\d\.\d+)")
_STREAM = re.compile(
    r" *Stream #0:\d+(?:\[\w+\])?(?:\((\w+)\))?: (Audio|Video|Subtitle): (?!.*\(attached pic\))([^,(]*)[^,]*(.*)"
)
"""A stream: " Stream #0:1[0x2](eng): Audio: aac (LC) (mp4a / 0x6134706D), 44100 Hz, stereo, fltp, 128 kb/s"."""
_FRAME_RATE = re.compile(r", ([\d.]+) fps(?:, ([\d.]+)(k?) tbr)?")
"""Frames of a video stream, on average and at most: ", 23.98 fps, 23.98 tbr, 24k tbn"."""
_SIZE = re.compile(r", (\d+)x(\d+)(?: \[SAR \d+:\d+ DAR (\d+):(\d+)\])?")
"""Pixels of a video stream, and its shape if they are not square: ", 720x576 [SAR 64:45 DAR 16:9]"."""
_ROTATION = re.compile(r" *[Dd]isplay ?[Mm]atrix: rotation of (-?\d+(?:\.\d+)?) degrees")
"""The rotation of the video stream before it, with which phones store upright videos."""
_JUMP = re.compile(r"timestamp discontinuity .*?: (\d+), new offset=")
"""Message about a gap in the timestamps that ffmpeg closes, with the gap in microseconds. It closes gaps of more than
10 s in MPEG-TS. A negative number means that files were joined."""
_DAMAGE = re.compile(r"corrupt|mismatch|prematurely|truncated|incomplete|missing", re.IGNORECASE)
"""Words of the warnings that tell of damage. Other warnings are about timestamps and guesses."""


_READ_ERRORS = [os.strerror(number) for number in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)]
"""Messages of the kernel for a file that cannot be read. ffmpeg repeats them."""


class FFmpegLog:
    """The messages of one ffmpeg, which are fed to it as they come."""

    def __init__(self) -> None:
        self.format = ""
        """Name of the container: "mp3"."""
        self.duration_s: float | None = None
        """Length of the file in seconds by the container or by the bit rate."""
        self._is_estimate = False
        self.audio_streams: list[str] = []
        """Description of each audio stream: "eng, aac, 44100 Hz, stereo"."""
        self.has_video = False
        self.frame_rate: float | None = None
        """Frames per second of the first video stream, as subtitles take it. None if there is none, or no usual one."""
        self.average_frame_rate: float | None = None
        """Frames per second on average, if they come at varying times. Otherwise None."""
        self.aspect_ratio: float | None = None
        """Width of the picture of the first video stream as it is shown, divided by its height, with three decimals."""
        self._is_first_video = False
        """True while the lines are about this stream."""
        self.num_subtitles = 0
        self.first_error: str | None = None
        """First message of an error of any kind. It gives the cause; later messages only say that ffmpeg stopped."""
        self.damage: str | None = None
        """First message about damage."""
        self.read_error: str | None = None
        """The kernel's message, if ffmpeg could not read the file."""
        self.closed_gaps_s = 0.0
        """Seconds of the gaps in the timestamps that ffmpeg closed."""
        self._has_started = self._has_output = False
        self._line = b""

    @property
    def claimed_s(self) -> float | None:
        """Length of the audio in seconds by the container. None if it is not known: containers give the length of their
        longest stream, and ffmpeg calculates some lengths from the bit rate, which is right for PCM only, except for
        the headers."""
        if self.duration_s is None or self.has_video or len(self.audio_streams) != 1:
            return None
        if self._is_estimate:
            return MIN_PCM_SHARE * self.duration_s if "pcm_" in self.audio_streams[0] else None
        return self.duration_s

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the messages."""
        *lines, incomplete = (self._line + data).split(b"\n")
        for line in lines:
            self._read(line.decode("utf-8", "replace"))
        self._line = incomplete[:MAX_LINE_BYTES]

    def finish(self) -> None:
        """Read the last message, if it has no line end."""
        self.feed(b"\n")

    def _read(self, line: str) -> None:
        match = _LINE.match(line)
        if match is None:
            if not self._has_started:  # the system says why it cannot start ffmpeg
                self.first_error = self.first_error or line[:MAX_MESSAGE_LENGTH].strip() or None
            return  # the second line of a message
        self._has_started = True
        level, text = match.groups()
        match level:
            case "error" | "fatal" | "panic":
                text = text[:MAX_MESSAGE_LENGTH]
                self.first_error = self.first_error or text
                self.damage = self.damage or text
                self.read_error = self.read_error or next(
                    (message for message in _READ_ERRORS if message in text), None
                )
            case "warning" if text.startswith("Estimating duration from bitrate"):
                self._is_estimate = True
            case "warning" if gap := _JUMP.match(text):
                self.closed_gaps_s += int(gap[1]) / 1e6
            case "warning" if _DAMAGE.search(text):
                self.damage = self.damage or text[:MAX_MESSAGE_LENGTH]
            case "info" if not self._has_output:
                self._read_input(text)

    def _read_input(self, text: str) -> None:
        if text.startswith("Output #0"):
            self._has_output = True
        elif header := _INPUT.match(text):
            self.format = header[1]
        elif duration := _DURATION.match(text):
            hours, minutes, seconds = duration.groups()
            self.duration_s = 3600 * int(hours) + 60 * int(minutes) + float(seconds)
        elif stream := _STREAM.match(text):
            language, kind, codec, details = stream.groups()
            self._is_first_video = kind == "Video" and not self.has_video
            if self._is_first_video and (size := _SIZE.search(details)) and int(size[4] or size[2]):
                self.aspect_ratio = round(int(size[3] or size[1]) / int(size[4] or size[2]), 3) or None
            if kind != "Audio":
                self.has_video |= kind == "Video"
                if self.frame_rate is None and (rate := _FRAME_RATE.search(details)):
                    self._read_frame_rate(float(rate[1]), float(rate[2] or 0) * (1000 if rate[3] else 1) or None)
                self.num_subtitles += kind == "Subtitle"
                return
            description = [codec.strip(), *details.split(", ")[1:3]]
            self.audio_streams.append(", ".join(([] if language in (None, "und") else [language]) + description))
        elif self._is_first_video and self.aspect_ratio and (rotation := _ROTATION.match(text)):
            is_upright = round(float(rotation[1]) / 90) % 2
            self.aspect_ratio = round(1 / self.aspect_ratio, 3) if is_upright else self.aspect_ratio

    def _read_frame_rate(self, average: float, base: float | None) -> None:
        rate, is_variable = frame_rate.of_stream(average, base) if average else (0.0, False)
        if frame_rate.is_usable(rate):
            self.frame_rate, self.average_frame_rate = rate, average if is_variable else None
