"""Find the request that killed a process, among those that the process worked on.

Nothing here waits, reads or starts: a caller says which requests a process had when it died, and sends the requests
again as `Suspects` permits. A request that was in one death is tried again beside all others, because most deaths have
a cause outside, such as an operator. One that was in a second death is on trial: fewer and fewer of the suspects are in
the process together, until one is alone, and only a request that is alone can be blamed:

    death with 1,024 requests               →  all again, with new requests behind them
    death with 900 of these and 124 others  →  the 900 first, 28 at a time (1/32), without others
    death with 28                           →  these first, one at a time; the rest is cleared
    death with one alone                    →  the same alone
    death with one alone                    →  it is to blame

So each request to blame costs at most `SearchRules.max_deaths` processes, whatever else is to blame, and each death
with a cause outside costs the one process that it ended, or a trial that clears everybody. The largest number is 6 for
1,024 requests, of which a process had all.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")


class Cause(enum.Enum):
    """The causes of a death that can be told from outside."""

    CRASH = enum.auto()
    """The process ended by itself or was killed because it hung: one of its requests may have caused that."""
    KILL = enum.auto()
    """SIGKILL ended it: the OOM killer sends this signal, but a person may, too. So one death more is needed."""
    LOSS = enum.auto()
    """The process ended its work in order, without a result for these requests. Each is suspect by itself."""
    MACHINE = enum.auto()
    """The cause is known to lie in the machine. No request is suspect."""


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The numbers by which a place finds the request to blame."""

    together: int = 2
    """Number of deaths of a request in company before it is on trial."""
    parts: int = 32
    """Divisor of the number of suspects that are in a process together. More parts need fewer deaths, and leave the
    process with less work at a time."""
    alone: int = 2
    """Number of deaths of a request alone before it is to blame."""
    proves_first: bool = False
    """True if a process proves before each trial of a single request that it works at all. A death before the trial
    then does not count. Otherwise the proof follows the last death: see the callers."""

    def max_deaths(self, requests: int) -> int:
        """Return the number of deaths after which a request to blame is found at the latest, among as many requests in
        a process, if SIGKILL ends it each time."""
        deaths = self.together + self.alone + 1
        while (requests := self.width(requests)) > 1:
            deaths += 1
        return deaths

    def width(self, suspects: int) -> int:
        """Return the number of suspects that may be in a process together."""
        return max(1, suspects // self.parts)

    def after_death(self, before: Trial, suspects: int, is_alone: bool) -> Trial:
        """Return the trial of requests that were in a process when it died.

        Args:
            before: their trial until then.
            suspects: the number of these requests.
            is_alone: nothing else was in the process. False for a single request in the company of others.
        """
        if is_alone and (before.width is not None or not self.proves_first):
            return Trial(before.deaths + 1 if before.width == 1 else 1, width=1)
        deaths = before.deaths + 1
        if before.width is not None or deaths >= self.together:
            return Trial(0, self.width(suspects))
        return Trial(deaths)

    def blames(self, trial: Trial, cause: Cause = Cause.CRASH) -> bool:
        """Return whether a request on this trial is to blame, after a death with this cause."""
        return trial.width == 1 and trial.deaths >= self.alone + (cause is Cause.KILL)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What is known about requests that were in a process together when it died."""

    deaths: int = 0
    """Number of deaths in company if they are not on trial, of a single request alone otherwise."""
    width: int | None = None
    """Number of them that may be in a process together, without others. None if they are not on trial."""


_UNKNOWN = Trial()
"""The trial of requests that were in no death."""


class Suspects(Generic[Request]):
    """The requests that were in a process when it died and that have no result yet. Several processes may share them:
    a request may go on in another process than before.

    Its owner keeps the requests, and calls `ended` for each one that has a result.
    """

    def __init__(self, rules: SearchRules):
        self._rules = rules
        self._trials: dict[Request, Trial] = {}
        """Those that died together and are on trial share a Trial."""

    def __len__(self) -> int:
        """Return the number of requests that were in a death."""
        return len(self._trials)

    def width(self, request: Request) -> int | None:
        """Return the number of requests that may be in a process with this one. None means any."""
        return self._trials.get(request, _UNKNOWN).width

    def admits(self, request: Request | None, held: int, beside: Request | None) -> bool:
        """Return whether a process may get a request beside those that it holds.

        Args:
            request: None for a new one.
            held: the number of requests that the process holds.
            beside: one of these. None if there are none.
        """
        if beside is None:
            return True
        trial = _UNKNOWN if request is None else self._trials.get(request, _UNKNOWN)
        present = self._trials.get(beside, _UNKNOWN)
        if trial.width is None:
            return present.width is None
        return trial is present and held < trial.width

    def died(self, lost: Sequence[Request], cause: Cause = Cause.CRASH) -> tuple[list[Request], Request | None]:
        """Decide what becomes of the requests that a process held when it died.

        Returns:
            (the requests to send again, in this order and before any other; the request to blame, which is not among
            them, or None).
        """
        if cause is Cause.MACHINE:
            return list(lost), None
        members = dict[Trial, list[Request]]()
        for request in lost:
            members.setdefault(self._trials.get(request, _UNKNOWN), []).append(request)
        if cause is not Cause.LOSS:
            self._clear(members.keys(), set(lost))
        is_alone = len(lost) == 1
        for before, group in members.items():
            if cause is Cause.LOSS:
                self._trials |= {request: self._rules.after_death(before, 1, is_alone=True) for request in group}
            else:
                self._trials |= dict.fromkeys(group, self._rules.after_death(before, len(group), is_alone))
        if is_alone and self._rules.blames(self._trials[lost[0]], cause):
            self.ended(lost[0])
            return [], lost[0]
        return sorted(lost, key=lambda request: self.width(request) is None), None

    def ended(self, request: Request) -> None:
        """Forget a request that has a result."""
        self._trials.pop(request, None)

    def _clear(self, trials: Set[Trial], lost: Set[Request]) -> None:
        """End these trials for those that were not in the process that died: this death explains the last one. They
        are on trial again at once if another process dies with them."""
        cleared = Trial(self._rules.together - 1)
        for request, trial in self._trials.items():
            if trial.width is not None and trial in trials and request not in lost:
                self._trials[request] = cleared
