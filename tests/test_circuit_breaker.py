"""Tests for the circuit breaker: a recording that cannot be fetched has failed, but an unreachable place fails no
recordings.
"""

from __future__ import annotations

import pytest

from voxbatch.errors import StorageError
from voxbatch.storage.circuit_breaker import GIVE_UP_AFTER, Arrival, Fault, Known, Reach

HERE, THERE = "gs://here/", "https://there/"


def silent(since: float, place: str = HERE) -> Fault:
    """Return a fault of a place that has not answered since `since`."""
    return Fault(place, f"cannot read {place}x.wav: no answer", since)


REFUSED = Fault(HERE, "cannot read gs://here/x.wav: permission denied", None)


def test_one_recording_fails_where_others_come() -> None:
    """If other recordings arrive after a recording began to fail, the place is reachable, and the
    recording has failed.
    """
    reach = Reach[str]()
    assert reach.came(Arrival(HERE, 10.0)) == []
    assert reach.fault(silent(9.0), "a") == ["a"]
    assert reach.end() == []


def test_held_until_something_comes() -> None:
    """An arrival before the recording began to fail proves nothing; the next arrival from the same place does."""
    reach = Reach[str]()
    reach.came(Arrival(HERE, 10.0))
    assert reach.fault(silent(11.0), "a") == []
    assert reach.fault(silent(13.0), "b") == []
    assert reach.came(Arrival(THERE, 20.0)) == []
    assert reach.came(Arrival(HERE, 12.0)) == ["a"]
    assert reach.came(Arrival(HERE, 11.5)) == []
    assert reach.came(Arrival(HERE, 13.5)) == ["b"]
    assert reach.end() == []


def test_a_place_that_is_down_stops_the_run() -> None:
    """If faults accumulate and nothing arrives, the run stops with the last fault as the reason."""
    reach = Reach[str]()
    reach.came(Arrival(THERE, 99.0))
    for n in range(GIVE_UP_AFTER - 1):
        assert reach.fault(silent(float(n + 1)), "a") == []
    with pytest.raises(StorageError, match=rf"x\.wav: no answer; {GIVE_UP_AFTER} recordings there were tried"):
        reach.fault(silent(50.0), "z")


def test_the_end_comes_first() -> None:
    """At the end of the run, fewer faults are no failures of items either, if nothing has arrived since."""
    reach = Reach[str]()
    reach.came(Arrival(HERE, 1.0))
    assert reach.fault(silent(2.0), "a") == []
    with pytest.raises(StorageError, match="nothing else came from gs://here/ meanwhile"):
        reach.end()


def test_refusals() -> None:
    """If a place refuses some recordings and returns others, before or after, the refused recordings have failed."""
    reach = Reach[str]()
    assert reach.fault(REFUSED, "a") == []
    assert reach.came(Arrival(HERE, 1.0)) == ["a"]
    assert reach.fault(REFUSED, "b") == []
    assert reach.end() == ["b"]


def test_nothing_but_refusals() -> None:
    """If a place refuses all recordings, or all from some moment on, the permission is missing and the run stops."""
    reach = Reach[str]()
    assert reach.fault(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        reach.end()
    reach = Reach[str]()
    reach.came(Arrival(HERE, 1.0))
    for _ in range(GIVE_UP_AFTER - 1):
        assert reach.fault(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        reach.fault(REFUSED, "a")


# -- knowledge of another process --------------------------------------------------------------------------------------


def test_a_place_that_gave_to_others() -> None:
    """A refusal is a failure of its item if another process got something from that place, and not otherwise."""
    reach = Reach[str](Known({HERE: 10.0}))
    assert reach.fault(REFUSED, "a") == []
    assert reach.end() == ["a"]
    reach = Reach[str](Known({THERE: 10.0}))
    assert reach.fault(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        reach.end()


def test_a_place_that_gave_to_others_and_is_down() -> None:
    """An arrival before the recording began to fail proves nothing, in whichever process; a later one does."""
    reach = Reach[str](Known({HERE: 10.0}))
    assert reach.fault(silent(9.0), "a") == ["a"]
    assert reach.fault(silent(11.0), "b") == []
    with pytest.raises(StorageError, match="no answer"):
        reach.end()


def test_what_is_learnt_is_told() -> None:
    """`Known` records the time of the last arrival from each place, including earlier knowledge."""
    known = Known({HERE: 10.0})
    reach = Reach[str](known)
    for arrival in (Arrival(HERE, 9.0), Arrival(THERE, 3.0), Arrival(THERE, 2.0)):
        reach.came(arrival)
    assert known == Known({HERE: 10.0, THERE: 3.0})


def test_the_first_fault_counts() -> None:
    """A retried recording keeps the time of the first fault of its place. A refusal has no time, and a fault of another
    place is separate.
    """
    known = Known()
    assert known.first(7, silent(5.0)) == silent(5.0)
    assert known.first(7, silent(20.0)) == silent(5.0)
    assert known.first(8, silent(20.0)) == silent(20.0)
    assert known.first(7, silent(30.0, THERE)) == silent(30.0, THERE)
    assert known.first(7, REFUSED) == REFUSED


def test_processes_add_up_what_they_know() -> None:
    """Merged knowledge has the latest arrivals and the earliest faults; a copy is independent."""
    ours, theirs = Known({HERE: 1.0, THERE: 5.0}), Known({HERE: 2.0, THERE: 4.0})
    ours.first(1, silent(3.0))
    theirs.first(1, silent(2.0))
    theirs.first(2, silent(6.0))
    ours.learn(theirs)
    assert ours == Known({HERE: 2.0, THERE: 5.0}, {(1, HERE): 2.0, (2, HERE): 6.0})
    copy = ours.copy()
    Reach[str](copy).came(Arrival(HERE, 9.0))
    assert ours.came[HERE] == 2.0
