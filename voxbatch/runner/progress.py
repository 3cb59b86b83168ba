"""Records of how far a run is and of how it uses its time, and the request to stop it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import astuple, dataclass, field

import numpy as np

from voxbatch.records import NO_WINDOWS, Windows
from voxbatch.safe_text import counted
from voxbatch.storage.columns import Column, ItemSet

RECENT_PART = 0.5
"""Part of the time so far whose speed counts for the rest: the latest half, because the first results come late, and
the kind of recordings changes."""
WARM_UP = 0.2
"""Part of the time until the first result that is not like the rest, because kernels and networks are loaded. With
faster-whisper, the first windows of a talk take 2.3 to 2.5 s, and the next ones 1.0 s."""
RECENT_ROUNDS = 8
"""Number of results for each chunk that the engine works on at a time that the latest half has at least. Without it the
speed of the first seconds would be that of two or three recordings."""
SHORTEST_S = 0.05
"""Shortest time left that is told. A shorter one would be shown as 0.0 s while items are open."""
SPEED_POINTS = 100
"""Points of the recent speed that are noted in the time so far, at most one a second."""
FINAL_COMMIT_TIMEOUT_S = 8.0
"""Time limit of the last commit of a process that was told to stop. Cloud Run and others kill it after 10 s."""


@dataclass(slots=True)
class Progress:
    """Progress of a shard. `audio_s` grows with each chunk, so that progress shows within a long recording."""

    items: int
    """Number of items in this shard, including those of earlier runs."""
    resumed: int = 0
    """Number of items that earlier runs finished."""
    resumed_failed: int = 0
    """Number of the resumed items that ended as failures."""
    done: int = 0
    failed: int = 0
    audio_s: float = 0.0
    """Seconds of audio transcribed since the start."""
    known_audio_s: float = 0.0
    """Seconds of audio in the items that this process has to do, as far as the manifest gives durations."""
    unknown: int = 0
    """Number of items that this process has to do and whose duration the manifest does not give."""
    measured: int = 0
    """Number of finished items among the `unknown` ones."""
    measured_s: float = 0.0
    """Seconds of audio in the `measured` items."""
    sample: dict[int, float | None] = field(default_factory=dict)
    """Item.index → seconds of some `unknown` items that are not finished, by the header or as they were decoded; None
    if the header is not read yet, or does not tell them. One thread puts in what headers say, and another one what was
    decoded; it removes the items that are finished."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Item.index → bytes of the items of `sample` whose header does not tell the seconds."""
    sized_s: float = 0.0
    """Seconds of audio in the decoded items that were in `sizes`."""
    sized_bytes: int = 0
    """Bytes of these items."""
    committed: int = 0
    """Number of items in parts, which are safe, including those of earlier runs."""
    parts: int = 0
    """Number of parts committed since the start."""
    started_at: float = field(default_factory=time.monotonic)
    """Start of the run, by time.monotonic()."""
    engine_started_at: float | None = None
    """Time at which the engine took its first chunk, by time.monotonic(). None before that, or if it is not known."""
    concurrency: int = 0
    """Number of chunks that the engine works on at a time. 0 if it is not known."""
    windows: Windows = NO_WINDOWS
    """The windows of the engine."""
    fixed_s: float = 0.0
    """Work on the windows that are done, without their audio, in seconds of audio that take as long."""
    known_fixed_s: float = 0.0
    """The same for the items of `known_audio_s`."""
    measured_fixed_s: float = 0.0
    """The same for the items of `measured_s`."""
    failed_s: float = 0.0
    """Work on items of `known_audio_s` that failed before they were decoded: none of it was done."""
    num_results: int = 0
    """Number of times that `audio_s` has grown."""
    points: deque[tuple[float, float, int]] = field(default_factory=deque)
    """Time, amount of work that was done, and `num_results`, since the beginning of the latest half."""
    waiting: str = ""
    """The reason for which the run does not proceed, for people: the model, a store, the engine. Empty if it does."""

    def __repr__(self) -> str:
        """Return the counts and the speed on one line."""
        failed = self.failed + self.resumed_failed
        waiting = f", waiting: {self.waiting}" if self.waiting else ""
        counts = f"{self.resumed + self.done + self.failed:,} of {counted(self.items, 'item')}, {failed:,} failed"
        return f"Progress({counts}, {self.committed:,} committed, RTFx {self.rtfx:.1f}{waiting})"

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    @property
    def rtfx(self) -> float:
        """Audio seconds transcribed per second."""
        return self.audio_s / self.wall_s

    @property
    def total_audio_s(self) -> float | None:
        """Seconds of audio that this process has to do, or None before anything is known about the `unknown` items."""
        rest = self._rest()
        return None if rest is None else self.known_audio_s + self.measured_s + rest[0]

    def expect(self, index: int, seconds: float) -> None:
        """Put an `unknown` item into the sample, because it is decoded and has so many seconds of audio."""
        self.sample[index] = seconds
        size = self.sizes.pop(index, 0)
        if size and seconds:
            self.sized_s, self.sized_bytes = self.sized_s + seconds, self.sized_bytes + size

    def measure(self, index: int, seconds: float) -> None:
        """Take an `unknown` item out of the sample, because it is finished and has so many seconds of audio."""
        self.expect(index, seconds)
        del self.sample[index]
        self.measured += 1
        self.measured_s += seconds
        self.measured_fixed_s += self.fixed_of(seconds)

    def _rest(self) -> tuple[float, float] | None:
        """Return the seconds of audio of the `unknown` items that are not finished, and the work on their windows; None
        before anything is known.

        Items of the sample have the duration of their header, or that of their bytes at the bit rate of decoded items.
        Each of the others has the mean of the sample and the finished items together: those that finish first are
        shorter than the rest.
        """
        count = max(0, self.unknown - self.measured)
        expected = [seconds for seconds in list(self.sample.values()) if seconds is not None]
        if self.sized_bytes:
            expected += [size * self.sized_s / self.sized_bytes for size in list(self.sizes.values())]
        if count and not expected and not self.measured:
            return None
        seconds, fixed_s = sum(expected), float(self.windows.fixed_s(np.array(expected)).sum())
        # The sample of a run in several processes keeps the finished items.
        share = min(1.0, count / len(expected)) if expected else 0.0
        others = max(0, count - len(expected)) / max(1, len(expected) + self.measured)
        return (
            share * seconds + others * (seconds + self.measured_s),
            share * fixed_s + others * (fixed_s + self.measured_fixed_s),
        )

    def fixed_of(self, seconds: float) -> float:
        """Return the work on the windows of a recording, without its audio."""
        return float(self.windows.fixed_s(np.array(seconds))) if self.windows.work_s else 0.0

    @property
    def work_s(self) -> float:
        """Work that is done, in seconds of audio that take as long."""
        return self.audio_s + self.fixed_s

    @property
    def total_work_s(self) -> float | None:
        """Work that this process has to do, or None before anything is known; see `total_audio_s`."""
        if (rest := self._rest()) is None:
            return None
        done_s = self.known_audio_s + self.known_fixed_s + self.measured_s + self.measured_fixed_s
        return done_s + sum(rest) - self.failed_s

    def add_point(self) -> None:
        """Note the work that is done now, for the recent speed. Call it when `audio_s` has grown.

        If the engine's start and `concurrency` are known, the first point is that start, but for WARM_UP. The points
        include the work on the chunks in the engine: the first ones began together, so that all are about as far as the
        first result; later ones are half done on average.
        """
        now, points, start = time.monotonic(), self.points, self._start
        if self.concurrency and self.engine_started_at is not None and not points:
            points.append((start + WARM_UP * (now - start), 0.0, 0))
        self.num_results += 1
        if points and now - points[-1][0] < max(1.0, (now - start) / SPEED_POINTS):
            return
        in_engine = max(self.concurrency - self.num_results, (self.concurrency - 1) / 2, 0)
        work_s = min(self.work_s * (1 + in_engine / self.num_results), self.total_work_s or math.inf)
        points.append((now, work_s, self.num_results))
        begin, num_recent = now - RECENT_PART * (now - start), RECENT_ROUNDS * self.concurrency
        while len(points) > 1 and points[1][0] <= begin and self.num_results - points[1][2] >= num_recent:
            points.popleft()

    @property
    def speed(self) -> float:
        """Work a second from the first point of the latest half to the last point; since the engine's first chunk,
        until two points are known. The time in which the engine was loaded does not count, nor does the wait for the
        next result, unless it is longer than usual."""
        now, points = time.monotonic(), self.points
        if len(points) > 1 and (worked_s := points[-1][1] - points[0][1]) > 0:
            begin, latest_at = points[0][0], points[-1][0]
            usual_s = (latest_at - begin) / (len(points) - 1)
            return worked_s / (max(latest_at, now - usual_s) - begin)
        return self.work_s / (now - self._start)

    @property
    def _start(self) -> float:
        """Time at which the engine took its first chunk, or that of the run's start if it is not known."""
        return self.started_at if self.engine_started_at is None else self.engine_started_at

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at the recent speed. None before the first result, before the second one if `concurrency` is not
        known, and when nothing is left but the end of the last items."""
        total_s = self.total_work_s
        todo = self.items - self.resumed - self.done - self.failed
        if not todo:
            return 0.0
        if total_s is None or not self.audio_s or len(self.points) == 1:
            return None
        left_s = (total_s - self.work_s) / self.speed
        return left_s if left_s > SHORTEST_S else None

    @property
    def remaining_item_s(self) -> float | None:
        """Mean seconds of audio of the items that are left, without the audio of theirs that is transcribed. None
        before anything is known, and if no item is left."""
        total_s, todo = self.total_audio_s, self.items - self.resumed - self.done - self.failed
        return max(0.0, total_s - self.audio_s) / todo if todo > 0 and total_s is not None else None

    @property
    def fraction(self) -> float:
        """The part of the whole shard that is done, from 0 to 1, including the items of earlier runs."""
        total_s, todo = self.total_work_s, self.items - self.resumed
        by_items = (self.done + self.failed) / todo if todo else 1.0
        done = min(1.0, self.work_s / total_s) if total_s else by_items
        return (self.resumed + todo * done) / self.items if self.items else 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a run's time. For several processes side by side, each value is the sum."""

    decode_cpu_s: float
    """CPU seconds of decoding and cutting."""
    engine_s: float
    """Seconds from the engine's first chunk to its last result."""
    starved_s: float
    """Part of `engine_s` in which the engine had nothing to do and waited for a chunk."""
    short_s: float
    """Part of `engine_s` in which the engine, busy or idle, could take one more chunk and none was there."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def known_audio(durations: Column, items: ItemSet, windows: Windows = NO_WINDOWS) -> tuple[float, int, float]:
    """Return the seconds of the items whose duration is known, the number of items whose duration is unknown, and the
    work on the windows of the former.

    Args:
        durations: seconds of each item of the manifest, NaN if unknown.
        items: the items to count.
        windows: the windows of the engine.
    """
    known_s, unknown, fixed_s = 0.0, 0, 0.0
    for (_, seconds), (_, is_in) in zip(durations.blocks(), items.blocks(), strict=True):
        block = seconds[is_in]
        known_s += float(np.nansum(block, dtype=np.float64))
        unknown += int(np.isnan(block).sum())
        fixed_s += float(np.nansum(windows.fixed_s(block), dtype=np.float64))
    return known_s, unknown, fixed_s


class StopRequested(BaseException):
    """The run was asked to stop. Finished items are committed, unless the message says why they could not be.

    Like KeyboardInterrupt, this is not an Exception: storage clients treat every Exception as a failed connection and
    send the request again.
    """


class Stop:
    """A stop request. While items are transcribed, the stop is graceful: the finished items are committed first. At
    other times it takes effect at once.

    Args:
        ends_process: True if the process ends after a run that was stopped or that failed. Otherwise the run first
            waits for the engine's thread: another run may use the engine, which can have one stream only, and a normal
            exit of Python must not find a thread in native code.
    """

    def __init__(self, ends_process: bool = True) -> None:
        self.ends_process = ends_process
        self.requested = threading.Event()
        self.graceful = False
        """True while items are transcribed. The thread that handles signals sets and reads it."""

    def request(self) -> None:
        """Request a stop.

        Raises:
            StopRequested: nothing is transcribed now. Otherwise the pipeline raises it after its last commit.
        """
        self.requested.set()
        if not self.graceful:
            raise StopRequested
