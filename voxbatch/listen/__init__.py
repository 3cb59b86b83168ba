"""Messages → runs, one at a time, as long as there are messages: `message` (what one asks for), `window` (recordings
that come one by one), `claim` (who works where), `subscription` (Pub/Sub).

A message is acknowledged when what it asks for is committed, or has begun where others see to its end, and not before:
whoever dies, another takes it up, and finds what is done. What can never be run is buried with its reason. When a run
cannot go on (a store is down, the engine died), the message is given back and this ends: what comes next should find a
new process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from voxbatch.errors import RunError, UsageError
from voxbatch.listen import claim
from voxbatch.listen.message import Foreign, Rules, Run, Upload, read
from voxbatch.listen.subscription import Lease, Subscription
from voxbatch.listen.window import Uploads, Window, window_of
from voxbatch.log import Log
from voxbatch.manifest.folder import is_included
from voxbatch.storage import Access, open_store

__all__ = ["Listener", "Rules", "Run", "Settings", "Subscription"]

_T = TypeVar("_T")

PULL_S = 5.0
"""A request for messages that is cut off may have been given one, which then comes only after a lease: short ones lose
little."""
IDLE_S = 3.0
"""Without a message for so long, there is none: a reply may be empty though there are some. Less than one request takes
in vain, so that one such is enough."""
MOST_WAITING = 10_000
"""Messages that wait for a window's end or for another worker; beyond them none is taken. A window's manifest names the
others all the same."""
REMEMBERED = 16
"""Windows of which it is known that they are done, so that a message of a recording in one is answered at once."""
FULL_S = 1.0
"""Between looks at what waits, when none is taken."""


@dataclass(frozen=True, slots=True)
class Settings:
    rules: Rules
    access: Access
    include: tuple[str, ...] = ()
    """Of recordings that come, those that match; see manifest.folder.is_included."""
    window_s: float = 0.0
    """Recordings that come within so long are one run; 0: each is one."""
    drain: bool = False
    """End when there are no messages; what waits for the end of its window is given back."""
    claims: bool = True
    """Whether the work is done here, so that another worker had better not do it too."""


@dataclass(frozen=True, slots=True)
class _Parked:
    """A run that another worker is at."""

    look_at: float
    """On time.time's clock."""
    run: Run
    leases: list[Lease]


class Listener:
    """Take messages and have them run. `perform` brings a Run to its end, or to that of another who sees to it."""

    def __init__(self, settings: Settings, subscription: Subscription, perform: Callable[[Run], None], log: Log):
        self._settings, self._subscription, self._perform, self._log = settings, subscription, perform, log
        self._uploads = Uploads(settings.rules, settings.access, settings.include) if settings.rules.out else None
        self._windows: dict[Window, list[tuple[Upload, Lease]]] = {}
        self._parked: list[_Parked] = []
        self._done: deque[set[tuple[str, str]]] = deque(maxlen=REMEMBERED)
        """Recordings, as (address, generation), by window."""

    def serve(self) -> None:
        """Until all is done (`drain`), or for ever.

        Raises:
            RunError: a run cannot go on, or the subscription; all messages in hand are given back.
            ConfigError: the subscription is gone.
            Interrupted: by a signal; likewise.
        """
        heard_at = time.monotonic()
        try:
            while not (self._settings.drain and not self._parked and time.monotonic() - heard_at >= IDLE_S):
                if self._waiting() >= MOST_WAITING:
                    time.sleep(FULL_S)
                for lease in self._subscription.pull(1, PULL_S) if self._waiting() < MOST_WAITING else ():
                    self._handle(lease)
                    heard_at = time.monotonic()
                self._look_again()
            self._tell_left()
        finally:
            self._subscription.close()

    def _waiting(self) -> int:
        return sum(map(len, self._windows.values())) + sum(len(each.leases) for each in self._parked)

    def _tell_left(self) -> None:
        for window, uploads in self._windows.items():
            ends = time.strftime("%H:%M:%S UTC", time.gmtime(window.closes_at))
            text = f"{len(uploads):,} recordings below {window.prefix} are left to whoever listens after {ends}"
            self._log.info("window_open", text=f"{text}, when their window ends")

    # -- one message --------------------------------------------------------------------------------------------------

    def _handle(self, lease: Lease) -> None:
        run = self._answered([lease], lambda: self._asked(lease))
        if run is not None:
            self._do(run, [lease])

    def _answered(self, leases: list[Lease], work: Callable[[], _T]) -> _T | None:
        """What the work comes to. Buries the messages (None) where it cannot be done, now or later; gives them back
        where it cannot go on, and ends."""
        try:
            return work()
        except UsageError as e:
            for lease in leases:
                self._subscription.bury(lease, str(e))
            return None
        except RunError as e:
            most = self._subscription.most_attempts
            for lease in leases:
                if most and lease.message.attempt >= most:  # or Pub/Sub would bury it, without a reason
                    self._subscription.bury(lease, f"delivered {lease.message.attempt} times, and at last: {e}")
            self._subscription.give_back(leases)
            raise

    def _asked(self, lease: Lease) -> Run | None:
        """What is to be run now, if anything is."""
        found = read(lease.message, self._settings.rules)
        asked = self._of_upload(found, lease) if isinstance(found, Upload) else found
        if isinstance(asked, Foreign):
            self._log.info("not_ours", message_id=lease.message.id, text=f"not ours: {asked.reason}")
            self._subscription.done([lease])
            return None
        return asked

    def _of_upload(self, upload: Upload, lease: Lease) -> Run | Foreign | None:
        """None where its time has not come."""
        assert self._uploads is not None  # or it was refused for want of an OUT
        if not is_included(upload.uri.removeprefix(upload.prefix), self._settings.include):
            return Foreign(f"{upload.uri} matches no --include")
        if any((upload.uri, upload.generation) in window for window in self._done):
            return Foreign(f"{upload.uri} is done")
        if (found := self._uploads.current(upload)) is None:
            return Foreign(f"{upload.uri} was replaced since, and another message tells of that")
        if not self._settings.window_s:
            return self._uploads.alone(upload, found.tag)
        window = window_of(upload, found.created, self._settings.window_s)
        self._windows.setdefault(window, []).append((replace(upload, generation=found.tag), lease))
        return None

    def _do(self, run: Run, leases: list[Lease]) -> bool:
        """One run, and the answer to the messages that asked for it. False where it is refused, or must wait."""
        work = self._done_alone if self._settings.claims else self._done_anyhow
        return bool(self._answered(leases, lambda: work(run, leases)))

    def _done_alone(self, run: Run, leases: list[Lease]) -> bool:
        store = open_store(run.out, self._settings.access)
        message, lease_s = leases[0].message.id, self._subscription.lease_s
        if (other := claim.take(store, message, lease_s)) is not None:
            # Not acknowledged: who knows what becomes of the other, or whether it runs the same manifest.
            self._log.info("at_work", out=run.out, text=f"{run.out}: {other.worker} is at work there")
            self._parked.append(_Parked(time.time() + other.good_for_s / 2, run, leases))
            return False
        with claim.kept(store, message, lease_s):
            return self._done_anyhow(run, leases)

    def _done_anyhow(self, run: Run, leases: list[Lease]) -> bool:
        self._perform(run)
        self._subscription.done(leases)
        ids = [lease.message.id for lease in leases]
        self._log.info(
            "messages_done", out=run.out, message_ids=ids, text=f"{run.out}: done, {len(ids)} messages acknowledged"
        )
        return True

    # -- what waits ---------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        now = time.time()
        for window in [each for each in self._windows if each.closes_at <= now]:
            self._close(window, self._windows.pop(window))
        ready = [each for each in self._parked if each.look_at <= now]
        self._parked = [each for each in self._parked if each.look_at > now]
        for each in ready:
            self._do(each.run, each.leases)

    def _close(self, window: Window, uploads: list[tuple[Upload, Lease]]) -> None:
        """Run what came in a window. Those that its manifest does not hold are run alone: their references are bad, or
        the store's clock and ours differ by more than the grace."""
        assert self._uploads is not None
        together = self._answered([lease for _, lease in uploads], partial(self._uploads.together, window))
        run, held = together or (None, set[tuple[str, str]]())
        members = [lease for upload, lease in uploads if (upload.uri, upload.generation) in held]
        if run and members and self._do(run, members):
            self._done.append(held)
        for upload, lease in uploads:
            if (upload.uri, upload.generation) not in held:
                self._alone(upload, lease)

    def _alone(self, upload: Upload, lease: Lease) -> None:
        run = self._answered([lease], lambda: self._now(upload, lease))
        if run is not None:
            self._do(run, [lease])

    def _now(self, upload: Upload, lease: Lease) -> Run | None:
        assert self._uploads is not None
        if (found := self._uploads.current(upload)) is not None:
            return self._uploads.alone(upload, found.tag)
        self._subscription.done([lease])
        return None
