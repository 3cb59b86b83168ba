"""Judge whether a child process hangs, by what it did in the time in which it could have worked.

Wall time proves nothing. A laptop's lid, `docker pause` or SIGSTOP suspends this process, a child or both, and a busy
machine delays all of them. Therefore time is counted in looks at the child, and a look at a suspended child does not
count. What a child does is read from /proc; without /proc, only the time counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

LOOK_S = 1.0
"""Seconds that a look counts, and least seconds between two looks. If this process was suspended or busy between two
looks, the rest of that time does not count."""
MIN_CPU_S = 1.0
"""CPU seconds that count as work. A process that only waits, and looks at its clock, uses less in the time in which a
hang is judged. A working process uses more, even with a hundredth of a core."""
_STOPPED = b"Tt"
"""States in /proc of a process that a signal or a debugger stopped. The freezer of `docker pause` has no state of its
own, but it suspends this process, too."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
        self.reset()

    def reset(self) -> None:
        """Begin to count anew, because a message came, or the first one is owed."""
        self._looked_at = time.monotonic()
        self._active: _Activity | None = None
        self.silent_s = 0.0
        """Seconds without a message in which the processes could run."""
        self.idle_s = 0.0
        """Seconds of these without work: no MIN_CPU_S were used, and nothing was read or written."""

    def look(self) -> None:
        """Bring `silent_s` and `idle_s` up to date. Call this about every LOOK_S; earlier calls do nothing."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        now = _activity(self._session)
        if now.is_stopped:
            return
        self.silent_s += LOOK_S
        self.idle_s += LOOK_S
        before = self._active
        if before is None or now.cpu_s >= before.cpu_s + MIN_CPU_S or now.io_bytes != before.io_bytes:
            self._active, self.idle_s = now, 0.0


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
                io_bytes += _io_bytes(pid)
    return _Activity(cpu_s, io_bytes, stopped)


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third one on, because the second one, a name, may contain spaces.

    With man 5 proc's numbers less three: 0 state, 3 session, 11 to 14 clock ticks, of ended children, too.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _io_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/io", "rb") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
