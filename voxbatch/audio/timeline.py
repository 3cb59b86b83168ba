"""Place packets of audio on the clock of their file: find the gaps in their timestamps."""

from __future__ import annotations

from collections import deque

MAX_GAP_S = 3600
"""Longest gap in the timestamps, in seconds, that becomes silence. A longer one, and timestamps that go backwards, mean
that the file was joined from others or is broken; then the audio continues without a gap."""
MAX_OVERLAP_S = 1.0
"""Longest step back, in seconds, that does not mean a joined file. Transport streams have a timestamp for some packets
only. ffmpeg counts on in between with the length of a packet before the change of the rate, so that packets of 43 ms
seem to be 21 ms apart."""
MIN_GAP_S = 0.1
"""Shortest gap in seconds. Timestamps are rounded, some of them to 0.1 s."""
MIN_ESTIMATED_GAP_S = 0.25
"""Shortest gap in seconds in formats without timestamps. ffmpeg counts on with the frames of the first rate there, so
that after a change from 8 to 48 kHz each frame of 21 ms has the time of one of 128 ms. Two such steps are shorter than
this."""
MIN_STEP_SHARE = 1 / 16
"""Share of a packet's length from which steps after every packet come from a change of the rate: 44.1 to 48 kHz makes
9 %. Clocks that drift make less than 1 %, and their steps become silence when they add up to MIN_GAP_S."""
LAST_STEPS, MIN_REPEATS = 4, 2
"""Number of the last steps that are remembered, and number of them that must be the same. ffmpeg 5 leaves out some
steps. Lost packets make the same step, too, but not so often."""
ROUNDING = 2
"""Largest difference of such steps in samples."""
WITHOUT_TIMESTAMPS = frozenset({"aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "g722", "gsm", "mp3"})
"""Demuxers of formats that are a mere sequence of frames. ffmpeg estimates their timestamps."""


class Timeline:
    """Clock of a file's audio, to which packets are added in the order of the file.

    Gaps in the timestamps, and a start of the audio after the start of the video, are kept as silence, so that the
    times of the words are right. A change of the rate or of the channels in the middle of a file is no gap.
    """

    def __init__(self, rate: int, has_timestamps: bool):
        self._min_gap = round((MIN_GAP_S if has_timestamps else MIN_ESTIMATED_GAP_S) * rate)
        self._max_gap, self._max_overlap = MAX_GAP_S * rate, round(MAX_OVERLAP_S * rate)
        self._shift = 0
        """Samples that are added to all timestamps, since timestamps went backwards."""
        self._end: int | None = None
        """End of the last packet by its timestamp. None before the first packet."""
        self._steps: deque[int] = deque(maxlen=LAST_STEPS)
        """Samples before each of the last packets that their timestamps leave free."""
        self._written = 0
        """Samples of the packets and of the silence."""
        self.silence = 0
        """Samples of silence in the gaps, without the silence before the first packet."""

    def add(self, timestamp: int, length: int, next_timestamp: int | None = None) -> int:
        """Return the samples of silence before a packet; for a first packet that begins before 0, the negative number
        of the samples to leave out.

            Timeline(rate=16_000, has_timestamps=True): add(0, 1024) → 0, add(17_024, 1024) → 16_000

        Args:
            timestamp: start of the packet in samples.
            length: its length in samples.
            next_timestamp: start of the packet after it; None if it is the last one.
        """
        if self._end is None:
            self._end = self._written = timestamp + length
            return timestamp
        start = timestamp + self._shift
        if start == self._end == self._written and next_timestamp != timestamp + 1:  # as most packets; a shortcut
            self._steps.append(0)
            self._end = self._written = start + length
            return 0
        # ffmpeg 5 gives the last packet before a change of the rate a time in units of the new rate. Where timestamps
        # go backwards, ffmpeg counts on by one sample a packet.
        is_wrong = next_timestamp == timestamp + 1 and length > 1
        if is_wrong or not self._end - self._max_overlap <= start <= self._end + self._max_gap:
            self._shift += self._end - start
            start = self._end
        start = max(start, self._end)
        # Where ffmpeg counts on with the length of a packet before a change, the same step follows every packet.
        step = start - self._end
        is_small = MIN_STEP_SHARE * length < step < self._min_gap
        if is_small and sum(abs(step - earlier) <= ROUNDING for earlier in self._steps) >= MIN_REPEATS:
            self._written = max(self._written, start)
        self._steps.append(step)
        gap = start - self._written  # many small gaps add up
        gap = gap if gap >= self._min_gap else 0
        self.silence += gap
        self._end, self._written = start + length, self._written + gap + length
        return gap
