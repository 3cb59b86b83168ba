"""Count the time in which nothing happens, so that a person learns of an engine or a worker that has come to a halt."""

from __future__ import annotations

import time

MAX_LOOK_S = 1.0
"""Most seconds that count between two looks. If this process was suspended meanwhile (a laptop's lid, `docker pause`,
SIGSTOP), or was busy, the rest of that time proves nothing."""


class Watchdog:
    """Counts the seconds without progress. Its owner looks several times a second, and resets it at each progress."""

    def __init__(self, warning_s: float):
        """Begin to count. `warning_s` is the number of seconds without progress between two warnings."""
        self._warning_s = warning_s
        self.reset()

    def reset(self) -> None:
        """Begin to count anew, because there was progress, or none is due."""
        self.silent_s = 0.0
        """Seconds without progress."""
        self._looked_at = time.monotonic()
        self._warn_at = self._warning_s

    def look(self) -> bool:
        """Count the time since the last look. Return whether a warning is due."""
        now = time.monotonic()
        self.silent_s += min(now - self._looked_at, MAX_LOOK_S)
        self._looked_at = now
        if self.silent_s < self._warn_at:
            return False
        self._warn_at += self._warning_s
        return True
