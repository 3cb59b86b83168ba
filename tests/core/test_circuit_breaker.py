"""Tests for the circuit breaker: a recording that cannot be fetched has failed, but an unreachable place fails no
recordings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Set
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from voxbatch.errors import AudioError, StorageError
from voxbatch.runner.transcribe import circuit_breaker
from voxbatch.storage.circuit_breaker import (
    FAILURE_THRESHOLD,
    CircuitBreaker,
    Reachable,
    Refused,
    Unreachable,
    UnusableRecording,
    report_error,
    report_success,
)
from voxbatch.storage.errors import CredentialsExpired, TransientError
from voxbatch.storage.local import LocalReadError
from voxbatch.storage.temporary_files import TemporaryFileError

HERE, THERE = "gs://here/", "https://there/"


def silent(since: float, place: str = HERE, item: int = 0) -> Unreachable:
    """Return the report of a place that has not answered since `since`."""
    return Unreachable(item, place, f"cannot read {place}x.wav: no answer", since)


REFUSED = Refused(0, HERE, "cannot read gs://here/x.wav: permission denied")


def test_an_unreachable_recording_is_held_until_its_place_answers() -> None:
    """An arrival before the recording began to fail proves nothing; the next arrival from the same place does."""
    breaker = CircuitBreaker[str]()
    breaker.reachable(Reachable(HERE, 10.0))
    assert breaker.unreachable(silent(11.0), "a") == []
    assert breaker.unreachable(silent(13.0, item=1), "b") == []
    assert breaker.reachable(Reachable(THERE, 20.0)) == []
    assert breaker.reachable(Reachable(HERE, 12.0)) == ["a"]
    assert breaker.reachable(Reachable(HERE, 11.5)) == []
    assert breaker.reachable(Reachable(HERE, 13.5)) == ["b"]
    assert breaker.finish() == []


def test_a_place_that_is_down_stops_the_run() -> None:
    """If unreachable recordings accumulate and nothing arrives, the run stops with the reason of the last one."""
    breaker = CircuitBreaker[str]()
    breaker.reachable(Reachable(THERE, 99.0))
    for n in range(FAILURE_THRESHOLD - 1):
        assert breaker.unreachable(silent(float(n + 1)), "a") == []
    count = f"{FAILURE_THRESHOLD} recordings tried"
    with pytest.raises(
        StorageError, match=rf"x\.wav: no answer; nothing arrived from {HERE} in the meantime \({count}"
    ):
        breaker.unreachable(silent(50.0), "z")


def test_a_refused_recording_fails_if_its_place_delivers_others() -> None:
    """If a place refuses some recordings and returns others, before or after, the refused recordings have failed."""
    breaker = CircuitBreaker[str]()
    assert breaker.unreachable(REFUSED, "a") == []
    assert breaker.reachable(Reachable(HERE, 1.0)) == ["a"]
    assert breaker.unreachable(REFUSED, "b") == []
    assert breaker.finish() == ["b"]


def test_a_place_that_refuses_everything_stops_the_run() -> None:
    """If a place refuses all recordings, or all from some moment on, the permission is missing and the run stops."""
    breaker = CircuitBreaker[str]()
    assert breaker.unreachable(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        breaker.finish()
    breaker = CircuitBreaker[str]()
    breaker.reachable(Reachable(HERE, 1.0))
    for _ in range(FAILURE_THRESHOLD - 1):
        assert breaker.unreachable(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        breaker.unreachable(REFUSED, "a")


def test_a_silent_place_is_asked_for_other_recordings() -> None:
    """A place that delivers other recordings when it is asked is not down, at the end of the run and when many
    recordings are held back.
    """
    asked = []

    def ask(place: str, held: Set[int]) -> Reachable | None:
        asked.append((place, held))
        return Reachable(place, 100.0) if place == HERE else None

    breaker = CircuitBreaker[str](threshold=3, ask=ask)
    assert breaker.unreachable(silent(1.0), "a") == []
    assert breaker.unreachable(replace(REFUSED, item=1), "b") == []
    assert breaker.unreachable(silent(3.0, item=2), "c") == ["a", "b"]
    assert breaker.finish() == ["c"]
    assert breaker.finish() == []
    assert asked == [(HERE, {0, 1, 2}), (HERE, {2})]
    assert breaker.unreachable(silent(4.0, THERE, item=3), "d") == []
    with pytest.raises(StorageError, match="nothing arrived from https://there/ in the meantime"):
        breaker.finish()


# -- reports of an earlier round ---------------------------------------------------------------------------------------


def test_refused_after_a_place_answered_in_an_earlier_round() -> None:
    """A refused recording has failed if another process got something from its place, and not otherwise."""
    breaker = CircuitBreaker[str](earlier=[Reachable(HERE, 10.0)])
    assert breaker.unreachable(REFUSED, "a") == []
    assert breaker.finish() == ["a"]
    breaker = CircuitBreaker[str](earlier=[Reachable(THERE, 10.0)])
    assert breaker.unreachable(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        breaker.finish()


def test_reports_have_the_last_answer_of_each_place() -> None:
    """The reports contain the last answer of each place, including the answers of an earlier round."""
    breaker = CircuitBreaker[str](earlier=[Reachable(HERE, 10.0)])
    for answer in (Reachable(HERE, 9.0), Reachable(THERE, 3.0), Reachable(THERE, 2.0)):
        breaker.reachable(answer)
    assert set(breaker.reports()) == {Reachable(HERE, 10.0), Reachable(THERE, 3.0)}


def test_a_retry_keeps_the_time_of_the_first_report() -> None:
    """A recording that is retried in vain after its place answered has failed. A report about another place is
    separate.
    """
    breaker = CircuitBreaker[str]()
    assert breaker.unreachable(silent(5.0, item=7), "a") == []
    assert breaker.reachable(Reachable(HERE, 6.0)) == ["a"]
    assert breaker.unreachable(silent(20.0, item=7), "a") == ["a"]
    assert breaker.unreachable(silent(20.0, item=8), "b") == []
    breaker.reachable(Reachable(THERE, 6.0))
    assert breaker.unreachable(silent(30.0, THERE, item=7), "a") == []


def test_a_later_round_keeps_the_time_of_the_first_report() -> None:
    """A recording that was unreachable in an earlier round has failed if its place answered any process since then."""
    earlier = CircuitBreaker[str]()
    assert earlier.unreachable(silent(3.0, item=1), "a") == []
    assert earlier.unreachable(silent(6.0, item=2), "b") == []
    other = CircuitBreaker[str]()
    other.reachable(Reachable(HERE, 4.0))
    breaker = CircuitBreaker[str](earlier={*other.reports(), *earlier.reports()})
    assert breaker.unreachable(silent(20.0, item=1), "a") == ["a"]
    assert breaker.unreachable(silent(20.0, item=2), "b") == []
    with pytest.raises(StorageError, match="no answer"):
        breaker.finish()
    assert {Reachable(HERE, 4.0), silent(3.0, item=1), silent(6.0, item=2)} == set(breaker.reports())


def test_a_worker_begins_with_the_reports_of_earlier_rounds() -> None:
    """The circuit breaker of a worker's assignment knows what earlier rounds reported."""
    job: Any = SimpleNamespace(config=SimpleNamespace(fail_unreachable=False))
    assert set(circuit_breaker(job, [Reachable(HERE, 10.0)]).reports()) == {Reachable(HERE, 10.0)}


# -- the reports of decoders -------------------------------------------------------------------------------------------


def test_reports_of_errors() -> None:
    """A missing recording proves that its place answers. A full disk, a refusal, expired credentials and silence are
    told apart.
    """
    uri = "gs://here/x.wav"
    missing = UnusableRecording("there is no such object")
    assert report_error(0, uri, missing) == Reachable(HERE, missing.answered_at)
    assert report_error(0, uri, TransientError("no answer", since=5.0)) == Unreachable(0, HERE, "no answer", 5.0)
    assert report_error(0, uri, StorageError("denied")) == Refused(0, HERE, "denied")
    assert isinstance(report_error(0, uri, CredentialsExpired("old credentials")), Unreachable)
    full = report_error(0, uri, TemporaryFileError("x.wav", OSError("disk full")))
    assert isinstance(full, Unreachable)
    assert full.place == tempfile.gettempdir()
    assert report_error(0, uri, AudioError("damaged")) is None


def test_all_web_servers_are_one_place() -> None:
    """Any of many web servers may be gone permanently, so they count as one place."""
    assert report_success("https://there/x.wav", 1.0) == report_success("http://here/y.wav", 1.0)
    assert report_success("gs://here/x.wav", 1.0) == Reachable(HERE, 1.0)


def test_place_of_a_local_recording_is_its_mount_point() -> None:
    """Local recordings fail together if they are on the same file system."""
    assert report_success("/proc/nothing/x.wav", 1.0) == Reachable("/proc/", 1.0)
    assert report_success("/x.wav", 1.0) == Reachable("/", 1.0)
    assert report_error(0, "/proc/x.wav", LocalReadError("Input/output error")) == Refused(
        0, "/proc/", "Input/output error"
    )


def test_fail_unreachable() -> None:
    """With fail_unreachable, every unreachable recording fails at once, and the run does not stop."""
    breaker = CircuitBreaker[str](fail_unreachable=True)
    for _ in range(2 * FAILURE_THRESHOLD):
        assert breaker.unreachable(silent(1.0), "a") == ["a"]
        assert breaker.unreachable(REFUSED, "b") == ["b"]
    assert breaker.finish() == []


def test_a_full_disk_fails_no_recording() -> None:
    """With fail_unreachable, too, a full disk of this machine stops the run: it is no fault of a recording."""
    full = report_error(0, "https://here/x.wav", TemporaryFileError("x.wav", OSError(28, "No space left on device")))
    assert isinstance(full, Unreachable)
    for fail_unreachable in (False, True):
        breaker = CircuitBreaker[str](fail_unreachable)
        assert breaker.unreachable(full, "a") == []
        with pytest.raises(
            StorageError, match=r"No space left on device; free space there, or set TMPDIR; no recording "
        ):
            breaker.finish()
