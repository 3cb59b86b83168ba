"""A store with its failures that pass taken out: what may succeed another time is tried again, a bounded number of
times and for a bounded time, at moments that many processes do not share (full jitter); all else fails at once.

Credentials that have run out are looked for anew, once a call. A process that is told to leave says `hurry`: what waits
tries again at once, and gives up soon.
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

from voxbatch.storage.address import shown
from voxbatch.storage.objects import Absent, Digest, Expired, Interrupted, Objects, Piece, Readable, Stat, Unfit

ATTEMPTS = 12
TOTAL_S = 120.0
"""After so long no further attempt is begun: an outage of a minute is survived (11 waits add up to 66 s on average)."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0
"""A wait is anything from nothing to a bound: at first the one, then twice the last, at most the other."""
LONGEST_OBEYED_S = 60.0
"""Of a Retry-After. The jitter comes on top: all who were sent away together are not to come back together."""
NO_WAIT = "VOXBATCH_NO_WAIT"
"""Set in the environment of a test, it turns waiting off."""
HURRIED_WAIT_S = 1.0
SLICE_S = 0.1
"""How long a wait may take no notice of `hurry`."""
PAGE = 999
"""Objects a listing takes at a time: below the 1,000 of both stores' pages, as one of them tells the last one again."""

_T = TypeVar("_T")


class _Haste:
    """Of this process."""

    leaves_at = math.inf
    """On time.monotonic's clock: no attempt begins after it."""


_haste = _Haste()


def hurry(seconds: float) -> None:
    """From now on, for so many seconds, attempts follow each other quickly, and then none is made any more. For good:
    the process is leaving. A signal's handler may call it, which is why there is no lock or event here: the thread
    that it interrupts might hold it."""
    _haste.leaves_at = min(_haste.leaves_at, time.monotonic() + seconds)


class _StopBeforeLeaving(tenacity.stop.stop_base):
    def __call__(self, state: tenacity.RetryCallState) -> bool:
        return time.monotonic() + state.upcoming_sleep >= _haste.leaves_at


def _sleep(seconds: float) -> None:
    """time.sleep, but `hurry` ends it."""
    until, known = time.monotonic() + seconds, _haste.leaves_at
    while _haste.leaves_at == known and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SLICE_S))


def wait_s(state: tenacity.RetryCallState) -> float:
    if os.environ.get(NO_WAIT):
        return 0.0
    if _haste.leaves_at < math.inf:
        return random.uniform(0, HURRIED_WAIT_S)
    error = state.outcome and state.outcome.exception()
    asked = error.retry_after_s if isinstance(error, Interrupted) else 0.0
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    return min(asked, LONGEST_OBEYED_S) + jitter(state)


class SteadyReader:
    """A Readable that does not give up at once. Thread-safe where that is."""

    def __init__(self, readable: Readable):
        self._readable = readable
        self.place = readable.place
        self._renewals = 0
        self._lock = threading.Lock()

    def get(self, key: str, start: int, end: int, tag: str = "") -> Piece:
        """As Readable.get; and where these are all of an object's bytes, they are checked."""
        return self._again(lambda: self._get(key, start, end, tag))

    def _get(self, key: str, start: int, end: int, tag: str) -> Piece:
        piece = self._readable.get(key, start, end, tag)
        if start == 0 and len(piece.data) < end:
            digest = Digest(piece.checksum)
            digest.update(piece.data)
            digest.check(self.where(key))
        return piece

    def where(self, key: str) -> str:
        """For messages."""
        return shown(f"{self.place}{key}")

    def stat(self, key: str, tag: str = "") -> Stat:
        return self._again(lambda: self._readable.stat(key, tag))

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """Not steady: who has taken half of it must begin again by himself, or take `whole`. Credentials are renewed at
        its start."""
        first, rest = self._renewing(lambda: _begun(self._readable.stream(stat)))
        yield first
        yield from rest

    def whole(self, key: str, tag: str) -> Iterator[bytes]:
        """All of an object of which no stretch is to be had; it is gathered on disk, and begun anew where it breaks
        off."""
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
        self._readable.renew()

    def _again(self, call: Callable[[], _T]) -> _T:
        first = _FirstFailure()
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Interrupted),
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
        except Expired:
            with self._lock:
                if self._renewals == seen:  # no other thread has done it meanwhile
                    self._readable.renew()
                    self._renewals += 1
        return call()


def _begun(stream: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    return next(stream, b""), stream


class _FirstFailure:
    """Knows since when a call fails, and says so when it is given up."""

    def __init__(self) -> None:
        self._since = 0.0

    def note(self, state: tenacity.RetryCallState) -> None:
        self._since = self._since or time.monotonic()

    def give_up(self, state: tenacity.RetryCallState) -> NoReturn:
        assert state.outcome is not None
        error = cast(Interrupted, state.outcome.exception())
        middle = (self._since + time.monotonic()) / 2
        raise Interrupted(f"{error} ({state.attempt_number} attempts failed)", since=middle) from error


class SteadyBucket(SteadyReader):
    """Objects that do not give up at once, and know their own work again when a reply was lost."""

    def __init__(self, objects: Objects):
        super().__init__(objects)
        self._objects = objects
        self.scheme, self.bucket = objects.scheme, objects.bucket

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        while page := self._page(prefix, after):
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def _page(self, prefix: str, after: str) -> Sequence[Stat]:
        return self._again(lambda: tuple(islice(self._objects.list(prefix, after), PAGE)))

    def put(self, key: str, body: BinaryIO, content_type: str, only_if_absent: bool) -> bool:
        """See Objects.put. An object that stands there with our own bytes is ours: the reply was lost, here or on the
        way, and the request repeated."""
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
        except (Absent, Unfit):  # deleted or replaced meanwhile
            return False
        digest = Digest(stat.checksum)
        while data := body.read(1 << 20):
            digest.update(data)
        return digest.text() == stat.checksum

    def delete(self, key: str) -> None:
        self._again(lambda: self._objects.delete(key))


def blocks(reader: SteadyReader, key: str, first: int, then: int, tag: str = "") -> Iterator[bytes]:
    """An object's bytes from its start, in stretches of so many bytes, all of one revision, checked at the end.

    Raises what Readable.get raises.
    """
    piece = reader.get(key, 0, first, tag)
    if piece.is_all and len(piece.data) == first:
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
