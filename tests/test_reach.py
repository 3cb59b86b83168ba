"""A recording that cannot be had has failed; a place that cannot be reached says nothing about its recordings."""

from __future__ import annotations

import pytest

from voxbatch.errors import StorageError
from voxbatch.reach import GIVE_UP_AFTER, Arrival, Fault, Known, Reach

HERE, THERE = "gs://here/", "https://there/"


def silent(since: float, place: str = HERE) -> Fault:
    return Fault(place, f"cannot read {place}x.wav: no answer", since)


REFUSED = Fault(HERE, "cannot read gs://here/x.wav: permission denied", None)


def test_one_recording_fails_where_others_come() -> None:
    """Something came after the recording began to fail: the place is up, and the fault is the recording's."""
    reach = Reach[str]()
    assert reach.came(Arrival(HERE, 10.0)) == []
    assert reach.fault(silent(9.0), "a") == ["a"]
    assert reach.end() == []


def test_held_until_something_comes() -> None:
    """What came before the recording began to fail proves nothing; the next one from the same place does."""
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
    """Where faults gather and nothing comes, the run ends, and the reason is the last of them."""
    reach = Reach[str]()
    reach.came(Arrival(THERE, 99.0))
    for n in range(GIVE_UP_AFTER - 1):
        assert reach.fault(silent(float(n + 1)), "a") == []
    with pytest.raises(StorageError, match=rf"x\.wav: no answer; {GIVE_UP_AFTER} recordings there were tried"):
        reach.fault(silent(50.0), "z")


def test_the_end_comes_first() -> None:
    """Fewer faults than that are no item's failure either, if nothing has come since."""
    reach = Reach[str]()
    reach.came(Arrival(HERE, 1.0))
    assert reach.fault(silent(2.0), "a") == []
    with pytest.raises(StorageError, match="nothing else came from gs://here/ meanwhile"):
        reach.end()


def test_refusals() -> None:
    """A place that refuses some recordings and gives others, before or after, has been reached: these have failed."""
    reach = Reach[str]()
    assert reach.fault(REFUSED, "a") == []
    assert reach.came(Arrival(HERE, 1.0)) == ["a"]
    assert reach.fault(REFUSED, "b") == []
    assert reach.end() == ["b"]


def test_nothing_but_refusals() -> None:
    """A place that refuses all, or from some moment on all, is one for which the permission is missing."""
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


# -- what another process has learnt -----------------------------------------------------------------------------------


def test_a_place_that_gave_to_others() -> None:
    """A refusal is its item's failure where the place gave something to another process; elsewhere it is not."""
    reach = Reach[str](Known({HERE: 10.0}))
    assert reach.fault(REFUSED, "a") == []
    assert reach.end() == ["a"]
    reach = Reach[str](Known({THERE: 10.0}))
    assert reach.fault(REFUSED, "a") == []
    with pytest.raises(StorageError, match="permission denied"):
        reach.end()


def test_a_place_that_gave_to_others_and_is_down() -> None:
    """What came before a recording began to fail proves nothing, whoever got it; what came after it does."""
    reach = Reach[str](Known({HERE: 10.0}))
    assert reach.fault(silent(9.0), "a") == ["a"]
    assert reach.fault(silent(11.0), "b") == []
    with pytest.raises(StorageError, match="no answer"):
        reach.end()


def test_what_is_learnt_is_told() -> None:
    """When something last came from each place, that which was known before included."""
    known = Known({HERE: 10.0})
    reach = Reach[str](known)
    for arrival in (Arrival(HERE, 9.0), Arrival(THERE, 3.0), Arrival(THERE, 2.0)):
        reach.came(arrival)
    assert known == Known({HERE: 10.0, THERE: 3.0})


def test_the_first_fault_counts() -> None:
    """A recording that is tried anew has been out of reach since its place first failed on it; a refusal has no time,
    and another place's fault is another matter."""
    known = Known()
    assert known.first(7, silent(5.0)) == silent(5.0)
    assert known.first(7, silent(20.0)) == silent(5.0)
    assert known.first(8, silent(20.0)) == silent(20.0)
    assert known.first(7, silent(30.0, THERE)) == silent(30.0, THERE)
    assert known.first(7, REFUSED) == REFUSED


def test_processes_add_up_what_they_know() -> None:
    """The latest that came, the earliest fault; what one learns later is not the other's."""
    ours, theirs = Known({HERE: 1.0, THERE: 5.0}), Known({HERE: 2.0, THERE: 4.0})
    ours.first(1, silent(3.0))
    theirs.first(1, silent(2.0))
    theirs.first(2, silent(6.0))
    ours.learn(theirs)
    assert ours == Known({HERE: 2.0, THERE: 5.0}, {(1, HERE): 2.0, (2, HERE): 6.0})
    copy = ours.copy()
    Reach[str](copy).came(Arrival(HERE, 9.0))
    assert ours.came[HERE] == 2.0
