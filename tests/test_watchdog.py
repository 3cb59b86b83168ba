"""Tests for the watchdog: it counts the time in which this process could look, and warns at intervals."""

from __future__ import annotations

import pytest

from voxbatch.runner import watchdog
from voxbatch.runner.watchdog import Watchdog


class Clock:
    """A clock that a test moves, in place of the module time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


def test_warnings_come_at_intervals(clock: Clock) -> None:
    """A warning is due after each interval without progress, and progress begins a new interval."""
    dog, due = Watchdog(3.0), []
    for _ in range(20):
        clock.now += 0.5
        due.append(dog.look())
    assert [number for number, is_due in enumerate(due, 1) if is_due] == [6, 12, 18]
    assert dog.silent_s == 10.0
    dog.reset()
    assert dog.silent_s == 0.0
    clock.now += 0.5
    assert not dog.look()


def test_suspension_does_not_count(clock: Clock) -> None:
    """A night in which the whole machine was suspended counts as a second."""
    dog = Watchdog(3.0)
    clock.now += 8 * 3600
    assert not dog.look()
    assert dog.silent_s == 1.0
