"""Judge whether a process hangs, by what it did in the time in which it could have worked.

Wall time proves nothing. A laptop's lid, `docker pause` or SIGSTOP suspends this process, a child or both, and a busy
machine delays all of them. Therefore time is counted in looks, and a look at a suspended process does not count:
`SilenceClock`. `HangDetector` also reads from /proc what the processes do; without /proc, only the time counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass

LOOK_S = 1.0
"""Most seconds that a look counts. If this process was suspended or busy between two looks, the rest of that time does
not count."""
MIN_CPU_S = 1.0
"""CPU seconds that count as work. A process that only waits, and looks at its clock, uses less in the time in which a
hang is judged. A working process uses more, even with a hundredth of a core."""
_STOPPED = b"Tt"
"""States in /proc of a process that a signal or a debugger stopped. The freezer of `docker pause` has no state of its
own, but it suspends this process, too."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SilenceClock:
    """Counts the seconds without a sign of progress in which this process, and those that owe it the sign, could run.

    Its owner looks about every second, or more often, and resets the clock at each sign of progress.

    Args:
        warning_s: seconds without progress between two warnings.
    """

    def __init__(self, warning_s: float = math.inf) -> None:
        self._warning_s = warning_s
        self.reset()

    def reset(self) -> None:
        """Begin to count anew, because there was progress, or none is due."""
        self.silent_s = 0.0
        """Seconds without progress."""
        self._looked_at = time.monotonic()
        self._warn_at = self._warning_s

    def is_due(self) -> bool:
        """Return whether the last look was LOOK_S ago."""
        return time.monotonic() - self._looked_at >= LOOK_S

    def look(self, is_stopped: bool = False) -> bool:
        """Count the time since the last look, at most LOOK_S. Return whether a warning is due.

        Args:
            is_stopped: one of the processes that owe progress is stopped, so that the time does not count.
        """
        now = time.monotonic()
        if not is_stopped:
            self.silent_s += min(now - self._looked_at, LOOK_S)
        self._looked_at = now
        if self.silent_s < self._warn_at:
            return False
        self._warn_at += self._warning_s
        return True


@dataclass(frozen=True, slots=True)
class _Activity:
    """Work of a session's processes since they started."""

    cpu_s: float = 0.0
    io_bytes: int = 0
    is_stopped: bool = False
    """True if one of the processes is stopped."""


class HangDetector:
    """Watches the processes of one session, which owe this process a message."""

    def __init__(self, session: int):
        """Watch a session, from the number of its first process."""
        self._session = session
        self._clock = SilenceClock()
        self.reset()

    def reset(self) -> None:
        """Begin to count anew, because a message came, or the first one is owed."""
        self._clock.reset()
        self._last_work: _Activity | None = None
        self._worked_at_s = 0.0
        """The clock's seconds at the last look that saw work."""

    @property
    def silent_s(self) -> float:
        """Seconds without a message in which the processes could run."""
        return self._clock.silent_s

    @property
    def idle_s(self) -> float:
        """Seconds of these without work: no MIN_CPU_S were used, and nothing was read or written."""
        return self._clock.silent_s - self._worked_at_s

    def look(self) -> None:
        """Bring `silent_s` and `idle_s` up to date. Call this about every LOOK_S; earlier calls do nothing."""
        if not self._clock.is_due():
            return
        now, before = _activity(self._session), self._last_work
        self._clock.look(now.is_stopped)
        if now.is_stopped:
            return
        if before is None or now.cpu_s >= before.cpu_s + MIN_CPU_S or now.io_bytes != before.io_bytes:
            self._last_work, self._worked_at_s = now, self._clock.silent_s


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process. False if /proc does not tell."""
    with contextlib.suppress(OSError):
        return _stat(pid)[0] in _STOPPED
    return False


def _activity(session: int) -> _Activity:
    """Return the work of the processes of a session and of their ended children."""
    cpu_s, io_bytes, stopped = 0.0, 0, False
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        # a process may end meanwhile, and another user's counters cannot be read
        with contextlib.suppress(OSError, ValueError):
            stat = _stat(pid := int(entry))
            if int(stat[3]) == session:
                stopped |= stat[0] in _STOPPED
                cpu_s += sum(map(int, stat[11:15])) / _TICKS_PER_S
                with open(f"/proc/{pid}/io", "rb") as file:
                    io_bytes += sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    return _Activity(cpu_s, io_bytes, stopped)


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third one on, because the second one, a name, may contain spaces.

    With man 5 proc's numbers less three: 0 state, 3 session, 11 to 14 clock ticks, of ended children, too.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
