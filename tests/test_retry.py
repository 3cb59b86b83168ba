"""Tests for retries: temporary errors are retried a limited number of times and for a limited time; all other errors
fail at once.

The store and the clock are scripted; tests/test_bucket_store.py uses real servers.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import BinaryIO

import pytest

from voxbatch.errors import StorageError
from voxbatch.storage import retry, retrying_client
from voxbatch.storage.objects import (
    CredentialsExpired,
    Digest,
    ObjectNotFound,
    RangeReply,
    Stat,
    TransientError,
    UnusableObject,
)
from voxbatch.storage.retry import STORE_REQUEST
from voxbatch.storage.retrying_client import RetryingBucket, RetryingReader, read_blocks

DATA = b"0123456789" * 10


def crc32c(data: bytes) -> str:
    """Return the checksum in the form of a store's checksum."""
    digest = Digest("crc32c:")
    digest.update(data)
    return digest.text()


class Script:
    """A store with one object of 100 bytes that first raises the given errors, one per request."""

    scheme, bucket, place = "gs", "b", "gs://b/"

    def __init__(self, *errors: Exception):
        self.errors = list(errors)
        self.asked = 0
        self.renewed = 0
        self.checksum = crc32c(DATA)
        self.stored: bytes | None = None
        self.lock = threading.Lock()

    def next(self) -> None:
        with self.lock:
            self.asked += 1
            if self.errors:
                raise self.errors.pop(0)

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        self.next()
        return RangeReply(DATA[start:end], "1", self.checksum)

    def stat(self, key: str, tag: str = "") -> Stat:
        self.next()
        data = DATA if self.stored is None else self.stored
        return Stat(key, len(data), "1", crc32c(data) if self.checksum else "")

    def stream(self, stat: Stat) -> Iterator[bytes]:
        self.next()
        data = DATA if self.stored is None else self.stored
        yield data[:50]
        yield data[50:]

    def renew(self) -> None:
        self.renewed += 1

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        self.next()
        for i in range(10):
            if f"{i}" > after:
                yield Stat(f"{i}", 1, "1")

    def put(self, key: str, body: BinaryIO, content_type: str, only_if_absent: bool) -> bool:
        self.next()
        return self.stored is None

    def delete(self, key: str) -> None:
        self.next()


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
    monkeypatch.setattr(retry, "SLEEP_STEP_S", math.inf)
    monkeypatch.setattr(retry, "_deadline", retry._Deadline())
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


def test_waits_have_a_maximum(clock: Clock) -> None:
    """No wait exceeds the maximum, unless the server requests a longer one."""
    with pytest.raises(TransientError):
        RetryingReader(Script(*[busy()] * 20)).get("a", 0, 10)
    assert max(clock.waits) <= STORE_REQUEST.longest_wait_s
    assert len(clock.waits) <= STORE_REQUEST.attempts - 1


def test_last_error_counts_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last error is raised as TransientError with the number of attempts and its cause."""
    monkeypatch.setenv(retry.NO_WAIT, "1")
    script = Script(*[busy()] * 20)
    with pytest.raises(
        TransientError, match=rf"^cannot read gs://b/a: the server is busy \({STORE_REQUEST.attempts} attempts"
    ) as told:
        RetryingReader(script).get("a", 0, 10)
    assert script.asked == STORE_REQUEST.attempts
    assert isinstance(told.value.__cause__, TransientError)


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
                retry.set_retry_deadline(4)
            super().next()

    script = Stopped(*[busy()] * 20)
    with pytest.raises(TransientError, match="the server is busy"):
        RetryingReader(script).get("a", 0, 10)
    assert 4 <= script.asked < STORE_REQUEST.attempts
    assert max(clock.waits[1:]) <= retry.LONGEST_WAIT_BEFORE_DEADLINE_S
    assert clock.now - 1000 <= 0.5 + STORE_REQUEST.first_wait_s + 0.5 + 4.5
    assert RetryingReader(Script()).get("a", 0, 10).data  # calls that succeed at once still succeed


def test_retry_deadline_ends_a_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop signal ends a wait, even one of a minute that the server requested, and retries continue for the given
    time.
    """
    monkeypatch.setattr(retry, "SLEEP_STEP_S", 0.1)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.waits) == 3:
            retry.set_retry_deadline(8)

    monkeypatch.setattr(time, "sleep", sleep)
    script = Script(busy(60))
    RetryingReader(script).get("a", 0, 10)
    assert script.asked == 2
    assert clock.now == pytest.approx(1000.3)


def test_slow_failures_count_towards_the_total_time(clock: Clock) -> None:
    """The duration of slow failures counts towards the total time."""

    class Slow(Script):
        def next(self) -> None:
            clock.now += 30
            super().next()

    script = Slow(*[busy()] * 20)
    with pytest.raises(TransientError):
        RetryingReader(script).get("a", 0, 10)
    assert 3 <= script.asked <= 4


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


def test_expired_credentials_are_renewed_once(clock: Clock) -> None:
    """Expired credentials are renewed once without a wait; if that does not help, the error is raised."""
    script = Script(CredentialsExpired("old"))
    assert RetryingReader(script).get("a", 0, 10).data
    assert (script.asked, script.renewed, clock.waits) == (2, 1, [])
    script = Script(*[CredentialsExpired("old")] * 9)
    with pytest.raises(CredentialsExpired, match=r"^old$"):
        RetryingReader(script).get("a", 0, 10)
    assert (script.asked, script.renewed, clock.waits) == (2, 1, [])


def test_stream_renews_credentials_only_at_its_start(clock: Clock) -> None:
    """Credentials are renewed at the start of a stream; later failures of the stream are left to its reader."""
    script = Script(CredentialsExpired("old"))
    reader = RetryingReader(script)
    assert b"".join(reader.stream(Stat("a", 100, "1"))) == DATA
    script.errors = [busy()]
    with pytest.raises(TransientError):
        list(reader.stream(Stat("a", 100, "1")))
    assert (script.renewed, clock.waits) == (1, [])


def test_threads_renew_credentials_once() -> None:
    """Threads that get an expired-credentials error at the same time renew them once."""
    together = threading.Barrier(8)

    class Old(Script):
        def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
            if not self.renewed:
                together.wait(10)
                raise CredentialsExpired("old")
            return super().get(key, start, end, tag)

    script = Old()
    reader = RetryingReader(script)
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda _: reader.get("a", 0, 10), range(8)))
    assert len(pieces) == 8
    assert script.renewed == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("a", 0, 200),
        lambda store: store.stat("a"),
        lambda store: [stat.key for stat in store.list("")],
        lambda store: store.put("a", BytesIO(b""), "text/plain", True),
        lambda store: store.delete("a"),
        lambda store: b"".join(read_blocks(store, "a", 30, 7)),
        lambda store: b"".join(store.whole("a", "1")),
    ],
)
def test_every_call_is_retried(monkeypatch: pytest.MonkeyPatch, call: Callable[[RetryingBucket], object]) -> None:
    """Each call survives failures and returns the same result as without them."""
    monkeypatch.setenv(retry.NO_WAIT, "1")
    assert call(RetryingBucket(Script(busy(), busy()))) == call(RetryingBucket(Script()))


def test_listing_retries_only_the_failed_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of a listing are joined; a failure repeats only its page."""
    monkeypatch.setenv(retry.NO_WAIT, "1")
    for page in (1, 2, 3, 5, 10, 11):
        monkeypatch.setattr(retrying_client, "LISTING_PAGE_SIZE", page)
        script = Script(busy())
        assert [stat.key for stat in RetryingBucket(script).list("")] == [f"{i}" for i in range(10)]
        assert script.asked == 1 + 10 // page + 1


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize(("stored", "ours"), [(DATA, True), (DATA[::-1], False), (b"x", False), (b"", False)])
def test_existing_object_with_the_same_bytes_counts_as_written(stored: bytes, ours: bool, checksum: bool) -> None:
    """An existing object is recognized as our own if it has our bytes, by its checksum or by reading it."""
    script = Script()
    script.stored = stored
    script.checksum = "yes" if checksum else ""
    assert RetryingBucket(script).put("a", BytesIO(DATA), "text/plain", True) is ours


@pytest.mark.parametrize("error", [ObjectNotFound("gone"), UnusableObject("replaced")])
def test_object_that_disappears_does_not_count_as_written(error: Exception) -> None:
    """An object that disappears before the comparison is not our own."""

    class Fleeting(Script):
        def stat(self, key: str, tag: str = "") -> Stat:
            raise error

    script = Fleeting()
    script.stored = DATA
    assert RetryingBucket(script).put("a", BytesIO(DATA), "text/plain", True) is False


def test_bytes_with_a_wrong_checksum_are_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that do not match the checksum are fetched again and never returned."""
    monkeypatch.setenv(retry.NO_WAIT, "1")
    script = Script()
    script.checksum = crc32c(b"another")
    with pytest.raises(TransientError, match=r"cannot read gs://b/a: the received data does not match its CRC32C, .+"):
        RetryingReader(script).get("a", 0, 200)
    assert script.asked == STORE_REQUEST.attempts
    with pytest.raises(TransientError, match="does not match"):
        list(read_blocks(RetryingReader(script), "a", 30, 30))


def test_checksum_is_crc32c() -> None:
    """The checksum is CRC-32C, verified by the check value of its definition."""
    assert crc32c(b"123456789") == f"crc32c:{base64.b64encode(bytes.fromhex('e3069283')).decode()}"
