"""Tests for retries: temporary errors are retried a limited number of times and for a limited time; all other errors
fail at once.

The store and the clock are scripted; tests/stores/test_bucket_store.py uses real servers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from voxbatch.errors import StorageError
from voxbatch.storage import retry, waits
from voxbatch.storage.errors import CredentialsExpired, ObjectNotFound, TransientError, UnusableObject
from voxbatch.storage.objects import RangeReply, Stat
from voxbatch.storage.retry import STORE_REQUEST
from voxbatch.storage.retrying_client import RetryingReader

DATA = b"0123456789" * 10


class Script:
    """A store with one object of 100 bytes that first raises the given errors, one per request."""

    place = "gs://b/"

    def __init__(self, *errors: Exception):
        self.errors = list(errors)
        self.asked = 0
        self.renewed = 0

    def next(self) -> None:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        self.next()
        return RangeReply(DATA[start:end], "1", "")

    def stat(self, key: str, tag: str = "") -> Stat:
        raise NotImplementedError

    def stream(self, stat: Stat) -> Iterator[bytes]:
        self.next()
        yield DATA

    def renew(self) -> None:
        self.renewed += 1


class Clock:
    """A clock that advances only by waits and by what a test adds for requests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.delenv(retry.NO_WAIT, raising=False)
    found = Clock()
    monkeypatch.setattr(waits, "SLEEP_STEP_S", math.inf)
    monkeypatch.setattr(waits.deadline, "at", math.inf)
    monkeypatch.setattr(time, "sleep", found.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    return found


def busy(seconds: float = 0.0) -> TransientError:
    """Return the error of a busy server, with its Retry-After in seconds."""
    return TransientError("cannot read gs://b/a: the server is busy", seconds)


def test_transient_errors_are_retried_with_growing_waits(clock: Clock) -> None:
    """A few failures are not visible to the caller; the random waits between them have bounds that double."""
    script = Script(*[busy()] * 6)
    assert RetryingReader(script).get("a", 0, 10).data == DATA[:10]
    assert script.asked == 7
    bounds = [0.5, 1, 2, 4, 8, 16]
    assert len(clock.waits) == len(bounds)
    assert all(0 <= wait <= bound for wait, bound in zip(clock.waits, bounds, strict=True))


def test_waits_are_random(clock: Clock) -> None:
    """Two clients that fail at the same time retry at different times."""
    for _ in range(50):
        RetryingReader(Script(busy())).get("a", 0, 10)
    assert len(set(clock.waits)) == 50
    assert max(clock.waits) - min(clock.waits) > 0.2


def test_last_error_counts_the_attempts(clock: Clock) -> None:
    """The last error is a TransientError with the number of attempts and its cause; no wait exceeds the maximum."""
    script = Script(*[busy()] * 20)
    with pytest.raises(
        TransientError, match=rf"^cannot read gs://b/a: the server is busy \({STORE_REQUEST.attempts} attempts"
    ) as told:
        RetryingReader(script).get("a", 0, 10)
    assert script.asked == STORE_REQUEST.attempts
    assert isinstance(told.value.__cause__, TransientError)
    assert max(clock.waits) <= STORE_REQUEST.longest_wait_s


def test_no_attempt_begins_after_the_total_time(clock: Clock) -> None:
    """No attempt starts after the total time, however long the server asks clients to wait."""
    script = Script(*[busy(45)] * 20)
    with pytest.raises(TransientError, match=r"\(3 attempts failed\)"):
        RetryingReader(script).get("a", 0, 10)
    assert clock.now - 1000 <= STORE_REQUEST.total_s


def test_a_request_of_a_suspended_process_is_retried(clock: Clock) -> None:
    """A first attempt that outlasted the total time is retried, because its process may have been suspended."""

    class Suspended(Script):
        def next(self) -> None:
            clock.now += 10 * STORE_REQUEST.total_s
            super().next()

    assert RetryingReader(Suspended(busy())).get("a", 0, 10).data == DATA[:10]
    with pytest.raises(TransientError, match=r"\(2 attempts failed\)"):
        RetryingReader(Suspended(*[busy()] * 20)).get("a", 0, 10)


def test_retries_end_after_the_deadline(clock: Clock) -> None:
    """After a stop signal, waits are short, retries end after the given time, and the last error is raised."""

    class Stopped(Script):
        def next(self) -> None:
            clock.now += 0.5
            if self.asked == 1:
                waits.set_retry_deadline(4)
            super().next()

    script = Stopped(*[busy()] * 20)
    with pytest.raises(TransientError, match="the server is busy"):
        RetryingReader(script).get("a", 0, 10)
    assert 4 <= script.asked < STORE_REQUEST.attempts
    assert max(clock.waits[1:]) <= retry.LONGEST_WAIT_BEFORE_DEADLINE_S
    assert clock.now - 1000 <= 0.5 + STORE_REQUEST.first_wait_s + 0.5 + 4.5
    assert RetryingReader(Script()).get("a", 0, 10).data  # calls that succeed at once still succeed


def test_retry_deadline_ends_a_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop signal ends a wait, even a minute that the server requested; retries continue for the given time."""
    monkeypatch.setattr(waits, "SLEEP_STEP_S", 0.1)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.waits) == 3:
            waits.set_retry_deadline(8)

    monkeypatch.setattr(time, "sleep", sleep)
    script = Script(busy(60))
    RetryingReader(script).get("a", 0, 10)
    assert script.asked == 2
    assert clock.now == pytest.approx(1000.3)


@pytest.mark.parametrize(("asked", "least"), [(7, 7), (60, 60), (3600, 60)])
def test_retry_after_is_obeyed_up_to_a_minute(clock: Clock, asked: float, least: float) -> None:
    """Retry-After is obeyed up to a minute, plus a random delay, so that clients return at different times."""
    RetryingReader(Script(busy(asked))).get("a", 0, 10)
    (wait,) = clock.waits
    assert least <= wait <= least + STORE_REQUEST.first_wait_s


@pytest.mark.parametrize("error", [ObjectNotFound("no"), UnusableObject("no"), StorageError("no"), ValueError("no")])
def test_permanent_errors_are_not_retried(clock: Clock, error: Exception) -> None:
    """Permanent errors are not retried."""
    script = Script(error)
    with pytest.raises(type(error), match="no"):
        RetryingReader(script).get("a", 0, 10)
    assert (script.asked, clock.waits, script.renewed) == (1, [], 0)


def test_stream_renews_credentials_only_at_its_start(clock: Clock) -> None:
    """Credentials are renewed at the start of a stream; later failures of the stream are left to its reader."""
    script = Script(CredentialsExpired("old"))
    reader = RetryingReader(script)
    assert b"".join(reader.stream(Stat("a", 100, "1"))) == DATA
    script.errors = [busy()]
    with pytest.raises(TransientError):
        list(reader.stream(Stat("a", 100, "1")))
    assert (script.renewed, clock.waits) == (1, [])
