"""Circuit breaker: tell a recording that failed from a place that is unreachable.

If a place is unreachable, nothing is known about its recordings, and they must not be recorded as permanently failed.
If one recording cannot be fetched from a place that delivers others, that recording has failed.

Decoder processes turn each result of a fetch into a report (`report_success`, `report_error`). The parent process gives
the reports to its CircuitBreaker, which decides. An unreachable recording is held back until its place answers after
the recording became unreachable. The recording has then failed; its owner may retry it once before. If many recordings
are held back without an answer, or the run ends without one, the place is asked for other recordings: the run may have
nothing else left to fetch. If it does not deliver them either, it is down. The run then stops and can be resumed. A
refusal (no permission) is an answer too: the recording has failed if its place delivers others.

If several worker processes share a run, each has its own circuit breaker. One of them may have asked only for a
recording that is unreachable, and cannot tell that its place answers the others. The reports of all workers are
therefore given to the circuit breakers of the next round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from voxbatch.errors import AudioError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import is_remote, place_of
from voxbatch.storage.errors import CredentialsExpired, TransientError
from voxbatch.storage.local import mount_point
from voxbatch.storage.temporary_files import TemporaryFileError

FAILURE_THRESHOLD = 16
"""Number of recordings of a place that are held back, with no answer in between, at which the place counts as down.
Each of them was itself retried many times."""

_M = TypeVar("_M")


class UnusableRecording(AudioError):
    """A recording that is missing or cannot be used. Its place said so at `answered_at` (time.monotonic), so the place
    is reachable."""

    def __init__(self, message: str, kind: FailureKind | None = None, retryable: bool = False):
        super().__init__(message, kind)
        self.retryable = retryable
        self.answered_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class Reachable:
    """Report that a place answers: it delivered something, or said that the object is missing or unusable."""

    place: str
    """Name of the place: "gs://bucket/", "the web", a mount point, or the folder of temporary files."""
    at: float
    """Time of the answer, on the clock that all processes of this host share (time.monotonic)."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Report that a place did not answer a request for a recording, which may be the fault of either."""

    item: int
    """Item.index."""
    place: str
    """See Reachable.place."""
    reason: str
    """Message for people."""
    since: float
    """Middle of the failed attempts; see Reachable.at for the clock. Data that was on its way when the place went down
    has arrived by then."""
    is_local: bool = False
    """True if the place is a folder of this machine, so that no recording is at fault."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Report that a place refused access to a recording, which may apply to this recording or to all."""

    item: int
    place: str
    reason: str


Report = Reachable | Unreachable | Refused


def report_success(uri: str, answered_at: float) -> Reachable:
    """Return the report of a recording that was read."""
    return Reachable(place_of_recording(uri), answered_at)


def report_error(item: int, uri: str, error: Exception) -> Report | None:
    """Return the report of a recording that an error ended; None if the error says nothing about the place."""
    if isinstance(error, UnusableRecording):
        return Reachable(place_of_recording(uri), error.answered_at)
    if isinstance(error, TemporaryFileError):  # answers of the store prove nothing about the folder
        return Unreachable(item, error.folder, str(error), time.monotonic(), is_local=True)
    if isinstance(error, CredentialsExpired):  # the store refuses our credentials, not this recording
        return Unreachable(item, place_of_recording(uri), str(error), time.monotonic())
    if isinstance(error, TransientError):
        return Unreachable(item, place_of_recording(uri), str(error), error.since)
    return Refused(item, place_of_recording(uri), str(error)) if isinstance(error, StorageError) else None


def place_of_recording(uri: str) -> str:
    """Return the place that is up or down as a whole: a mount point, a bucket, or "the web" for all web servers,
    because any of many servers may be gone permanently."""
    if not is_remote(uri):
        return mount_point(uri)
    place = place_of(uri)
    return "the web" if place.startswith("http") else place


class CircuitBreaker(Generic[_M]):
    """Decides for each unreachable recording: fail it, hold it back, or stop the run. For one thread.

    `_M` is the type of the messages that are held back.

    Args:
        fail_unreachable: let every unreachable recording fail at once, unless a folder of this machine is the reason.
        earlier: reports of the circuit breakers of this run's earlier rounds.
        threshold: see FAILURE_THRESHOLD.
        ask: asks a place for recordings other than those of some items, which are held back. Return its answer, or None
            if it does not deliver them, or there are none.
        advice: text for a place that is down, about the option of the command that lets recordings fail.
    """

    def __init__(
        self,
        fail_unreachable: bool = False,
        earlier: Iterable[Report] = (),
        threshold: int = FAILURE_THRESHOLD,
        ask: Callable[[str, Set[int]], Reachable | None] = lambda place, held: None,
        advice: str = "; --fail-unreachable records such recordings as failed",
    ):
        self._fail_unreachable, self._threshold, self._ask = fail_unreachable, threshold, ask
        self._advice = advice
        self._answered: dict[str, Reachable] = {}
        """Place → its last answer."""
        self._first: dict[tuple[int, str], Unreachable] = {}
        """(Item, its place) → the first report that the place was silent. A retry of the item must not begin the wait
        for an answer again: the answer that caused the retry would then not count."""
        self._held: dict[str, list[tuple[Unreachable | Refused, _M]]] = {}
        """Place → reports and messages of its recordings that are held back."""
        for report in earlier:
            if isinstance(report, Reachable):
                self.reachable(report)
            elif isinstance(report, Unreachable):
                self._first.setdefault((report.item, report.place), report)

    def reachable(self, answer: Reachable) -> list[_M]:
        """Record an answer. Return the messages of the held recordings that are now known to have failed."""
        place = answer.place
        last = self._answered[place] = max(answer, self._answered.get(place, answer), key=lambda report: report.at)
        held: list[tuple[Unreachable | Refused, _M]] = []
        released = []
        for report, message in self._held.pop(place, []):
            if isinstance(report, Unreachable) and report.since >= last.at:
                held.append((report, message))
            else:
                released.append(message)
        self._held[place] = held
        return released

    def unreachable(self, report: Unreachable | Refused, message: _M) -> list[_M]:
        """Record a recording that could not be fetched. Return its message if the recording has failed; otherwise hold
        the message back.

        Raises:
            StorageError: the place is down.
        """
        if self._fail_unreachable and not _is_local(report):
            return [message]
        key, last = (report.item, report.place), self._answered.get(report.place)
        if isinstance(report, Unreachable):
            report = replace(report, since=self._first.setdefault(key, report).since)
        if last is not None and key in self._first and self._first[key].since < last.at:
            return [message]
        reports = [*(other for other, _ in self._held.get(report.place, [])), report]
        released = self._ask_about(reports) if len(reports) >= self._threshold else []
        self._held.setdefault(report.place, []).append((report, message))
        return released

    def finish(self) -> list[_M]:
        """Return the messages of the recordings that are still held back: they have failed, because their places
        deliver others. Call this again if some of them are retried once more.

        Raises:
            StorageError: a place is down: it has sent nothing since a recording became unreachable, or has refused
                every recording.
        """
        released = []
        for place, held in list(self._held.items()):
            silent = [report for report, _ in held if isinstance(report, Unreachable) or place not in self._answered]
            released += self._ask_about(silent) if silent else [message for _, message in self._held.pop(place)]
        return released

    def _ask_about(self, reports: Sequence[Unreachable | Refused]) -> list[_M]:
        """Ask a place for recordings other than those of its reports, and return the messages that are released.

        Raises:
            StorageError: the place is down.
        """
        answer = self._ask(reports[-1].place, {report.item for report in reports})
        if answer is None:
            raise _down(reports[-1], len(reports), self._advice)
        return self.reachable(answer)

    def reports(self) -> tuple[Report, ...]:
        """Return the reports that a circuit breaker of a later round needs. Another thread may call this."""
        return (*self._answered.copy().values(), *self._first.copy().values())


def _is_local(report: Unreachable | Refused) -> bool:
    return isinstance(report, Unreachable) and report.is_local


def _down(report: Unreachable | Refused, count: int, advice: str) -> StorageError:
    if _is_local(report):
        return StorageError(f"{report.reason}; no recording is recorded as failed for it")
    recordings = f"{count} recordings" if count > 1 else "1 recording"
    return StorageError(
        f"{report.reason}; nothing arrived from {report.place} in the meantime ({recordings} tried{advice})"
    )
