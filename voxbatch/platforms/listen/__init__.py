"""Messages → runs, one run at a time: `message` (the request in a message), `batch_window` (recordings that arrive one
by one), `subscription` (Pub/Sub).

A message is acknowledged when its run is committed, or when its run has started on a platform that sees to its end. It
is not acknowledged earlier. So if a worker dies, another worker receives the message and finds the committed items.

A message that can never be run goes to the dead-letter topic, with the reason. If a run cannot continue (a store is
down, the engine died), the message is given back and the listener ends: the next attempt needs a new process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from voxbatch.errors import RunError, UsageError
from voxbatch.log import Log
from voxbatch.manifest.folder import is_included
from voxbatch.output import lease as out_lease
from voxbatch.platforms.listen.batch_window import BatchWindow, UploadRuns, batch_window_of
from voxbatch.platforms.listen.message import Ignored, Rules, RunRequest, UploadedRecording, read
from voxbatch.platforms.listen.subscription import ReceivedMessage, Subscription
from voxbatch.storage import StoreOptions, open_store

__all__ = ["Listener", "ListenerOptions", "Rules", "RunRequest", "Subscription"]

_T = TypeVar("_T")

PULL_S = 5.0
"""Seconds of one pull. Pub/Sub may have assigned a message to a pull that is cut off, and delivers this message again
only after its lease. Short pulls lose little.
"""
IDLE_S = 3.0
"""Seconds without a message after which the queue counts as empty.

An empty reply alone proves nothing: Pub/Sub may return one although there are messages. The value is less than a pull
without a message takes, so one such pull is enough.
"""
MAX_WAITING = 10_000
"""Maximum number of messages that wait for a window's end or for another worker; beyond it, no message is pulled.

A window is complete all the same: its manifest also names the recordings whose messages were not pulled.
"""
REMEMBERED = 16
"""Number of finished windows to remember, so that a message for a recording in one of them is answered at once."""
FULL_S = 1.0
"""Seconds between two checks of the waiting messages while no message is pulled."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The settings of a listener."""

    rules: Rules
    store_options: StoreOptions
    include: tuple[str, ...] = ()
    """Globs that an uploaded recording must match; see manifest.folder.is_included."""
    window_s: float = 0.0
    """Recordings that arrive within this many seconds are one run; 0: each recording is one run."""
    drain: bool = False
    """End when there are no messages; the messages that wait for the end of their window are given back."""
    claims: bool = True
    """Take a lease on each OUT. True if this process does the work, so that no second worker does the same work."""


@dataclass(frozen=True, slots=True)
class _Parked:
    """A run that waits because another worker has the lease on its OUT."""

    look_at: float
    """Time of the next attempt, on time.time's clock."""
    run: RunRequest
    leases: list[ReceivedMessage]


class Listener:
    """Pull messages and perform the runs that they ask for."""

    def __init__(
        self, settings: ListenerOptions, subscription: Subscription, perform: Callable[[RunRequest], None], log: Log
    ):
        """Store the settings; nothing is pulled before `serve`.

        Args:
            settings: which messages start a run, and how.
            subscription: the source of the messages; `serve` closes it.
            perform: brings a Run to its end, or starts it on a platform that does.
            log: receives one event for each message.
        """
        self._settings, self._subscription, self._perform, self._log = settings, subscription, perform, log
        self._uploads = (
            UploadRuns(settings.rules, settings.store_options, settings.include) if settings.rules.out else None
        )
        self._windows: dict[BatchWindow, list[tuple[UploadedRecording, ReceivedMessage]]] = {}
        self._parked: list[_Parked] = []
        self._done: deque[set[tuple[str, str]]] = deque(maxlen=REMEMBERED)
        """The recordings of each finished window, as (address, generation)."""

    def serve(self) -> None:
        """Handle messages until the queue is empty (`drain`), or for ever.

        Raises:
            RunError: a run or the subscription cannot continue; all leased messages are given back.
            ConfigError: the subscription no longer exists.
            StopRequested: a signal stopped the listener; all leased messages are given back.
        """
        heard_at = time.monotonic()
        try:
            while not (self._settings.drain and not self._parked and time.monotonic() - heard_at >= IDLE_S):
                if self._waiting() >= MAX_WAITING:
                    time.sleep(FULL_S)
                for lease in self._subscription.pull(1, PULL_S) if self._waiting() < MAX_WAITING else ():
                    self._handle(lease)
                    heard_at = time.monotonic()
                self._look_again()
            self._tell_left()
        finally:
            self._subscription.close()

    def _waiting(self) -> int:
        """Return the number of messages that wait for a window's end or for another worker."""
        return sum(map(len, self._windows.values())) + sum(len(each.leases) for each in self._parked)

    def _tell_left(self) -> None:
        """Log the open windows, whose messages the next listener receives."""
        for window, uploads in self._windows.items():
            ends = time.strftime("%H:%M:%S UTC", time.gmtime(window.closes_at))
            text = f"{len(uploads):,} recordings below {window.prefix} are left to whoever listens after {ends}"
            self._log.info("window_open", text=f"{text}, when their window ends")

    # -- one message --------------------------------------------------------------------------------------------------

    def _handle(self, lease: ReceivedMessage) -> None:
        """Handle one message."""
        run = self._answered([lease], lambda: self._asked(lease))
        if run is not None:
            self._do(run, [lease])

    def _answered(self, leases: list[ReceivedMessage], work: Callable[[], _T]) -> _T | None:
        """Call `work` and return its result, or None if its messages went to the dead-letter topic.

        Raises:
            RunError: the work cannot continue; the messages are given back, or go to the dead-letter topic if this was
                their last attempt.
        """
        try:
            return work()
        except UsageError as e:
            for lease in leases:
                self._subscription.dead_letter_message(lease, str(e))
            return None
        except RunError as e:
            most = self._subscription.max_delivery_attempts
            for lease in leases:
                if most and lease.message.attempt >= most:  # otherwise Pub/Sub dead-letters it, without a reason
                    self._subscription.dead_letter_message(
                        lease, f"delivered {lease.message.attempt} times, and at last: {e}"
                    )
            self._subscription.nack(leases)
            raise

    def _asked(self, lease: ReceivedMessage) -> RunRequest | None:
        """Return the run that the message asks for; None if no run starts now."""
        found = read(lease.message, self._settings.rules)
        asked = self._of_upload(found, lease) if isinstance(found, UploadedRecording) else found
        if isinstance(asked, Ignored):
            self._log.info("not_ours", message_id=lease.message.id, text=f"not ours: {asked.reason}")
            self._subscription.done([lease])
            return None
        return asked

    def _of_upload(self, upload: UploadedRecording, lease: ReceivedMessage) -> RunRequest | Ignored | None:
        """Return the run of an uploaded recording; None if it waits for the end of its window."""
        assert self._uploads is not None  # without an OUT, the message was already refused
        if not is_included(upload.uri.removeprefix(upload.prefix), self._settings.include):
            return Ignored(f"{upload.uri} matches no --include")
        if any((upload.uri, upload.generation) in window for window in self._done):
            return Ignored(f"{upload.uri} is done")
        if (found := self._uploads.current(upload)) is None:
            return Ignored(f"{upload.uri} was replaced since, and another message tells of that")
        if not self._settings.window_s:
            return self._uploads.alone(upload, found.tag)
        window = batch_window_of(upload, found.created, self._settings.window_s)
        self._windows.setdefault(window, []).append((replace(upload, generation=found.tag), lease))
        return None

    def _do(self, run: RunRequest, leases: list[ReceivedMessage]) -> bool:
        """Perform one run and answer its messages; return False if the run is refused or must wait."""
        work = self._done_alone if self._settings.claims else self._done_anyhow
        return bool(self._answered(leases, lambda: work(run, leases)))

    def _done_alone(self, run: RunRequest, leases: list[ReceivedMessage]) -> bool:
        """Perform a run under a lease on its OUT; return False if another worker has the lease."""
        store = open_store(run.out, self._settings.store_options)
        message, lease_s = leases[0].message.id, self._subscription.ack_deadline_s
        if (other := out_lease.acquire(store, message, lease_s)) is not None:
            # Not acknowledged: the other worker may die, or may run another manifest.
            self._log.info("at_work", out=run.out, text=f"{run.out}: {other.worker} is at work there")
            self._parked.append(_Parked(time.time() + other.good_for_s / 2, run, leases))
            return False
        with out_lease.hold(store, message, lease_s):
            return self._done_anyhow(run, leases)

    def _done_anyhow(self, run: RunRequest, leases: list[ReceivedMessage]) -> bool:
        """Perform a run and acknowledge its messages."""
        self._perform(run)
        self._subscription.done(leases)
        ids = [lease.message.id for lease in leases]
        self._log.info(
            "messages_done", out=run.out, message_ids=ids, text=f"{run.out}: done, {len(ids)} messages acknowledged"
        )
        return True

    # -- what waits ---------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Run the windows that have ended, and the parked runs whose time has come."""
        now = time.time()
        for window in [each for each in self._windows if each.closes_at <= now]:
            self._close(window, self._windows.pop(window))
        ready = [each for each in self._parked if each.look_at <= now]
        self._parked = [each for each in self._parked if each.look_at > now]
        for each in ready:
            self._do(each.run, each.leases)

    def _close(self, window: BatchWindow, uploads: list[tuple[UploadedRecording, ReceivedMessage]]) -> None:
        """Run the recordings of a window that has ended.

        A recording that the window's manifest does not hold is run alone: its reference is bad, or the store's clock
        and this machine's clock differ by more than the grace.
        """
        assert self._uploads is not None
        together = self._answered([lease for _, lease in uploads], partial(self._uploads.together, window))
        run, held = together or (None, set[tuple[str, str]]())
        members = [lease for upload, lease in uploads if (upload.uri, upload.generation) in held]
        if run and members and self._do(run, members):
            self._done.append(held)
        for upload, lease in uploads:
            if (upload.uri, upload.generation) not in held:
                self._alone(upload, lease)

    def _alone(self, upload: UploadedRecording, lease: ReceivedMessage) -> None:
        """Run one recording alone."""
        run = self._answered([lease], lambda: self._now(upload, lease))
        if run is not None:
            self._do(run, [lease])

    def _now(self, upload: UploadedRecording, lease: ReceivedMessage) -> RunRequest | None:
        """Return the run of one recording; acknowledge the message and return None if the recording was replaced."""
        assert self._uploads is not None
        if (found := self._uploads.current(upload)) is not None:
            return self._uploads.alone(upload, found.tag)
        self._subscription.done([lease])
        return None
