"""Calls of this process that are attempted again, and the deadline of all their attempts. `retry` makes the attempts.

A process that is told to stop calls `set_retry_deadline`: calls that wait then retry at once, and give up soon.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

SLEEP_STEP_S = 0.1
"""Seconds that a wait may take to notice `set_retry_deadline`."""


@dataclass(frozen=True, slots=True)
class RetryWait:
    """A call whose attempts have failed so far, and which is attempted again."""

    place: str
    failed: int
    attempts: int
    """Most attempts."""
    since: float
    """Time of the first failure, on the clock that all processes of this host share (time.monotonic)."""

    def __str__(self) -> str:
        """Return, for example, "s3://calls/ does not answer (attempt 4 of 12, for 35 s)"."""
        waited_s = time.monotonic() - self.since
        return f"{self.place} does not answer (attempt {self.failed + 1} of {self.attempts}, for {waited_s:.0f} s)"


present: dict[int, RetryWait] = {}
"""The calls of this process that are attempted again, by the id of their Retries. Each thread adds and removes its own
calls; a single operation on a dict is thread-safe."""


def longest_wait() -> RetryWait | None:
    """Return the call of this process that has failed for the longest time, or None if none is being retried."""
    return min(list(present.values()), key=lambda wait: wait.since, default=None)


class _Deadline:
    """Deadline of all retries in this process."""

    at = math.inf
    """Time (time.monotonic) after which no further attempt begins."""


deadline = _Deadline()


def set_retry_deadline(seconds: float) -> None:
    """Shorten all waits from now on, and begin no further attempt after `seconds` seconds.

    This is permanent, because the process is stopping. A signal handler may call it. It therefore uses no lock and no
    event: the thread that the signal interrupts might hold the lock.
    """
    deadline.at = min(deadline.at, time.monotonic() + seconds)


def sleep(seconds: float) -> None:
    """Sleep like time.sleep, until `set_retry_deadline` is called."""
    until, before = time.monotonic() + seconds, deadline.at
    while deadline.at == before and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SLEEP_STEP_S))
