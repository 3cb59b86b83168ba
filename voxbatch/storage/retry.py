"""Every retry policy of the project: how often a failed call is repeated, for how long, and how long it waits.

    Retries(STORE_REQUEST).call(request, lambda error: isinstance(error, TransientError))

The loop is tenacity's; the stop, the wait and the sleep are ours. Waits are random (exponential backoff with full
jitter), so that many processes do not retry at the same moments. The caller decides which errors are transient.
See `waits` for the deadline of all calls.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from voxbatch.settings import SWITCHES
from voxbatch.storage import waits
from voxbatch.storage.errors import TransientError
from voxbatch.storage.waits import RetryWait, sleep

if TYPE_CHECKING:
    from tenacity import RetryCallState

_T = TypeVar("_T")

LONGEST_RETRY_AFTER_S = 60.0
"""Longest Retry-After that is obeyed, in seconds. The jitter is added, so that clients that were refused together do
not return together."""
LONGEST_WAIT_BEFORE_DEADLINE_S = 1.0
"""Longest wait after `set_retry_deadline`."""
NO_WAIT = "VOXBATCH_NO_WAIT"
"""Environment variable of tests that turns waiting off."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of the attempts of one call, and of the waits between them."""

    attempts: int
    """Most attempts, the first one included."""
    total_s: float
    """Seconds after the call's start from which no attempt begins, except the second one: this process may have been
    suspended during the first attempt."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    """A wait is random between 0 and a bound. The bound begins at first_wait_s, doubles with each attempt, and ends at
    longest_wait_s."""


STORE_REQUEST = RetryPolicy(attempts=12, total_s=120.0)
"""A request to a bucket or a web server. An outage of a minute is survived: 11 waits add up to 66 s on average."""
MODEL_FILE = RetryPolicy(attempts=12, total_s=math.inf)
"""The download of a file of a model. There is no time limit, because a single attempt may take many minutes."""
SHOWN_OBJECT = RetryPolicy(attempts=9, total_s=60.0)
"""An object that exists by one answer of a store, and not by the next one. A network file system may keep an old answer
for a minute."""
QUEUE_REQUEST = RetryPolicy(attempts=12, total_s=120.0)
RUN_START = RetryPolicy(attempts=20, total_s=300.0)
"""The start of a run on a cloud platform. The 19 waits add up to about two and a half minutes, because Cloud Run's
quotas are per minute. An attempt without an answer takes a minute or two itself."""


class Retries:
    """The attempts of one call."""

    def __init__(self, policy: RetryPolicy, place: str = ""):
        """Begin with no failure. `place` is the place that is asked; with it, `longest_wait` knows the call."""
        self._policy, self._place = policy, place
        self._first_failed_at = 0.0
        self.failed = 0
        """Number of attempts that failed with a transient error."""

    def call(
        self,
        call: Callable[[], _T],
        is_transient: Callable[[BaseException], bool],
        before_wait: Callable[[BaseException | None, float], None] = lambda error, wait_s: None,
        sleep: Callable[[float], None] = sleep,
    ) -> _T:
        """Return what `call` returns. Repeat it while its error is transient and the policy admits a further attempt.

        Args:
            before_wait: called before each wait, with the error and the seconds of the wait.
            sleep: waits for this number of seconds.

        Raises:
            Exception: the error of the last attempt.
        """
        from tenacity import Retrying, retry_if_exception  # takes 0.3 s

        def record_wait(state: RetryCallState) -> None:
            if self._place:
                waits.present[id(self)] = RetryWait(
                    self._place, self.failed, self._policy.attempts, self._first_failed_at
                )
            before_wait(_error(state), state.upcoming_sleep)

        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            wait=self._record_failure,
            stop=self._is_over,
            before_sleep=record_wait,
            sleep=sleep,
            reraise=True,
        )
        try:
            return retrying(call)
        finally:
            waits.present.pop(id(self), None)

    def _record_failure(self, state: RetryCallState) -> float:
        """Return the seconds to wait before the next attempt: the server's Retry-After, as far as it is obeyed, plus
        the jitter. It is 0 if NO_WAIT is set.
        """
        self.failed += 1
        self._first_failed_at = self._first_failed_at or time.monotonic()
        if SWITCHES.get(os.environ.get(NO_WAIT, "").lower()):
            return 0.0
        if waits.deadline.at < math.inf:
            return random.uniform(0, LONGEST_WAIT_BEFORE_DEADLINE_S)
        bound = min(self._policy.longest_wait_s, self._policy.first_wait_s * 2 ** (self.failed - 1))
        error = _error(state)
        retry_after_s = error.retry_after_s if isinstance(error, TransientError) else 0.0
        return min(retry_after_s, LONGEST_RETRY_AFTER_S) + random.uniform(0, bound)

    def _is_over(self, state: RetryCallState) -> bool:
        """Return whether no further attempt may begin."""
        next_at = time.monotonic() + state.upcoming_sleep
        is_late = self.failed > 1 and next_at >= state.start_time + self._policy.total_s
        return self.failed >= self._policy.attempts or is_late or next_at >= waits.deadline.at

    def middle(self) -> float:
        """Return the middle of the failed attempts (time.monotonic), from the first failure until now."""
        return (self._first_failed_at + time.monotonic()) / 2


def _error(state: RetryCallState) -> BaseException | None:
    """Return the error of the latest attempt."""
    return state.outcome.exception() if state.outcome else None
