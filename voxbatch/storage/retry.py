"""Wrap a store with retries, backoff and a deadline.

A call that failed with a transient error is retried a bounded number of times and for a bounded time. The waits are
random (full jitter), so that many processes do not retry at the same moments. All other errors are raised at once.

Expired credentials are renewed once per call. A process that is told to stop calls `set_retry_deadline`: waiting calls
retry at once, and give up soon.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, NoReturn, TypeVar, cast

import tenacity

from voxbatch.storage.address import redacted
from voxbatch.storage.objects import (
    Bucket,
    CredentialsExpired,
    Digest,
    ObjectNotFound,
    ObjectReader,
    RangeReply,
    Stat,
    TransientError,
    UnusableObject,
)

ATTEMPTS = 12
"""Most attempts of one call."""
TOTAL_S = 120.0
"""Seconds after which no further attempt begins. An outage of a minute is survived: 11 waits add up to 66 s on
average."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0
"""Bounds of a wait, which is random between 0 and a bound. The bound begins at FIRST_WAIT_S, doubles with each attempt,
and ends at LONGEST_WAIT_S."""
LONGEST_OBEYED_S = 60.0
"""Longest Retry-After that is obeyed, in seconds. The jitter is added, so that clients that were refused together do
not return together."""
NO_WAIT = "VOXBATCH_NO_WAIT"
"""Environment variable of tests that turns waiting off."""
HURRIED_WAIT_S = 1.0
"""Longest wait after `set_retry_deadline`."""
SLICE_S = 0.1
"""Seconds that a wait may take to notice `set_retry_deadline`."""
LISTING_PAGE_SIZE = 999
"""Objects that a listing reads at a time: fewer than the 1,000 of both stores' pages, because one of the stores repeats
the last object of a page."""

_T = TypeVar("_T")


class _Haste:
    """State of `set_retry_deadline` in this process."""

    leaves_at = math.inf
    """Time (time.monotonic) after which no attempt begins."""


_haste = _Haste()


def set_retry_deadline(seconds: float) -> None:
    """Shorten all waits from now on, and begin no attempt after `seconds` seconds.

    This is permanent, because the process is stopping. A signal handler may call it. It therefore uses no lock and no
    event: the thread that the signal interrupts might hold the lock.
    """
    _haste.leaves_at = min(_haste.leaves_at, time.monotonic() + seconds)


class _StopBeforeLeaving(tenacity.stop.stop_base):
    def __call__(self, state: tenacity.RetryCallState) -> bool:
        return time.monotonic() + state.upcoming_sleep >= _haste.leaves_at


def _sleep(seconds: float) -> None:
    """Sleep like time.sleep, until `set_retry_deadline` is called."""
    until, known = time.monotonic() + seconds, _haste.leaves_at
    while _haste.leaves_at == known and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SLICE_S))


def wait_s(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait before the next attempt: the server's Retry-After, as far as it is obeyed, plus the
    jitter.

    The wait is 0 if NO_WAIT is set. After `set_retry_deadline`, it is a random time up to HURRIED_WAIT_S.
    """
    if os.environ.get(NO_WAIT):
        return 0.0
    if _haste.leaves_at < math.inf:
        return random.uniform(0, HURRIED_WAIT_S)
    error = state.outcome and state.outcome.exception()
    asked = error.retry_after_s if isinstance(error, TransientError) else 0.0
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    return min(asked, LONGEST_OBEYED_S) + jitter(state)


class RetryingReader:
    """ObjectReader with retries. Thread-safe if the wrapped ObjectReader is."""

    def __init__(self, readable: ObjectReader):
        self._readable = readable
        self.place = readable.place
        self._renewals = 0
        self._lock = threading.Lock()

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See ObjectReader.get. If the bytes are a whole object, its checksum is checked too."""
        return self._again(lambda: self._get(key, start, end, tag))

    def _get(self, key: str, start: int, end: int, tag: str) -> RangeReply:
        piece = self._readable.get(key, start, end, tag)
        if start == 0 and len(piece.data) < end:
            digest = Digest(piece.checksum)
            digest.update(piece.data)
            digest.check(self.where(key))
        return piece

    def where(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return redacted(f"{self.place}{key}")

    def stat(self, key: str, tag: str = "") -> Stat:
        """See ObjectReader.stat."""
        return self._again(lambda: self._readable.stat(key, tag))

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See ObjectReader.stream. This is not retried: a caller that has taken a part must begin again by itself,
        or use `whole`. Credentials are renewed only at the start."""
        first, rest = self._renewing(lambda: _begun(self._readable.stream(stat)))
        yield first
        yield from rest

    def whole(self, key: str, tag: str) -> Iterator[bytes]:
        """Yield a whole object that cannot be read in ranges. The object is gathered on disk, and fetched from its
        start again if the transfer breaks off."""
        with tempfile.TemporaryFile() as file:
            self._again(lambda: self._gather(key, tag, file))
            file.seek(0)
            while data := file.read(1 << 20):
                yield data

    def _gather(self, key: str, tag: str, file: BinaryIO) -> None:
        file.seek(0)
        file.truncate()
        file.writelines(self._readable.stream(self._readable.stat(key, tag)))

    def renew(self) -> None:
        """Find credentials again."""
        self._readable.renew()

    def _again(self, call: Callable[[], _T]) -> _T:
        first = _FirstFailure()
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_before_delay(TOTAL_S) | _StopBeforeLeaving(),
            wait=wait_s,
            sleep=_sleep,
            after=first.note,
            retry_error_callback=first.give_up,
        )
        return cast(_T, attempts(self._renewing, call))

    def _renewing(self, call: Callable[[], _T]) -> _T:
        seen = self._renewals
        try:
            return call()
        except CredentialsExpired:
            with self._lock:
                if self._renewals == seen:  # no other thread has renewed them meanwhile
                    self._readable.renew()
                    self._renewals += 1
        return call()


def _begun(stream: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    return next(stream, b""), stream


class _FirstFailure:
    """Records when a call failed first, for the error that ends the retries."""

    def __init__(self) -> None:
        self._since = 0.0

    def note(self, state: tenacity.RetryCallState) -> None:
        """Record the time of the first failure."""
        self._since = self._since or time.monotonic()

    def give_up(self, state: tenacity.RetryCallState) -> NoReturn:
        """Raise the last error, with the number of attempts and the middle of the failed attempts.

        Raises:
            TransientError: always.
        """
        assert state.outcome is not None
        error = cast(TransientError, state.outcome.exception())
        middle = (self._since + time.monotonic()) / 2
        raise TransientError(f"{error} ({state.attempt_number} attempts failed)", since=middle) from error


class RetryingBucket(RetryingReader):
    """Bucket with retries, which recognise their own data after a lost reply."""

    def __init__(self, objects: Bucket):
        super().__init__(objects)
        self._objects = objects
        self.scheme, self.bucket = objects.scheme, objects.bucket

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """See Bucket.list. The listing is read in pages, each of which is retried."""
        while page := self._page(prefix, after):
            yield from page
            if len(page) < LISTING_PAGE_SIZE:
                return
            after = page[-1].key

    def _page(self, prefix: str, after: str) -> Sequence[Stat]:
        return self._again(lambda: tuple(islice(self._objects.list(prefix, after), LISTING_PAGE_SIZE)))

    def put(self, key: str, body: BinaryIO, content_type: str, only_if_absent: bool) -> bool:
        """See Bucket.put. An existing object with our own bytes counts as ours: the reply to an earlier attempt was
        lost, and the request was repeated."""
        if self._again(lambda: self._objects.put(key, body, content_type, only_if_absent)):
            return True
        return self._again(lambda: self._holds(key, body))

    def _holds(self, key: str, body: BinaryIO) -> bool:
        try:
            stat = self._objects.stat(key)
            if stat.size != body.seek(0, 2):
                return False
            body.seek(0)
            if not stat.checksum:
                return all(data == body.read(len(data)) for data in self._objects.stream(stat))
        except (ObjectNotFound, UnusableObject):  # deleted or replaced meanwhile
            return False
        digest = Digest(stat.checksum)
        while data := body.read(1 << 20):
            digest.update(data)
        return digest.text() == stat.checksum

    def delete(self, key: str) -> None:
        """See Bucket.delete."""
        self._again(lambda: self._objects.delete(key))


def read_blocks(reader: RetryingReader, key: str, first: int, then: int, tag: str = "") -> Iterator[bytes]:
    """Yield an object's bytes from its start, in ranges of `first` bytes and then of `then` bytes, all of one revision,
    and check the checksum at the end.

    Raises:
        ObjectNotFound, UnusableObject, CredentialsExpired, TransientError, StorageError: see ObjectReader.get.
    """
    piece = reader.get(key, 0, first, tag)
    if piece.is_whole_object and len(piece.data) == first:
        yield from reader.whole(key, piece.tag)
        return
    digest, tag, size, at = Digest(piece.checksum), piece.tag, first, 0
    while True:
        digest.update(piece.data)
        at += len(piece.data)
        if piece.data:
            yield piece.data
        if len(piece.data) < size:
            break
        size = then
        piece = reader.get(key, at, at + size, tag)
    digest.check(reader.where(key))
