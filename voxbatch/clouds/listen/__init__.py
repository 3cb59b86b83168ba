"""Messages → runs, one run at a time: `message` (the request in a message), `batch_window` (recordings that arrive one
by one), `manifest_window` (small manifests that arrive together), `subscription` (Pub/Sub), `message_file`.

A message is acknowledged when its run is committed, or when its run has started on a platform that sees to its end. It
is not acknowledged earlier. So if a worker dies, another worker receives the message and finds the committed items.

A message that can never be run goes to the dead-letter topic, with the reason. If a run cannot continue (a store is
down, the engine died), the message is given back and the listener ends: the next attempt needs a new process.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from voxbatch.clouds.listen import lease
from voxbatch.clouds.listen.batch_window import BatchWindow, UploadRuns, batch_window_of
from voxbatch.clouds.listen.cloud_run_executor import Executor
from voxbatch.clouds.listen.message import Ignored, ReceivedMessage, RunRequest, UploadedRecording, read
from voxbatch.clouds.listen.message_file import MessageFile
from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.clouds.listen.subscription import Subscription
from voxbatch.errors import ConfigError, RunError, UsageError
from voxbatch.log import Log
from voxbatch.manifest.recording_path import is_included
from voxbatch.storage import Stores

__all__ = ["Listener", "ListenerOptions"]

PULL_S = 5.0
"""Seconds of one pull. Pub/Sub may have assigned a message to a pull that is cut off, and delivers this message again
only after its acknowledgement deadline. Short pulls lose little.
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
MAX_FINISHED_WINDOWS = 16
"""Number of finished windows to remember, so that a message for a recording in one of them is answered at once."""
FULL_WAIT_S = 1.0
"""Seconds between two checks of the waiting messages while no message is pulled."""


LONGEST_WINDOW_S = 86_400
"""Longest batch window, in seconds.

Messages wait for the end of a window. A listener that ends before gives them back, which counts as a delivery. Pub/Sub
drops a message after 7 days, the usual retention.
"""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The options of a listener.

    Raises:
        ConfigError: the batch window is too long, or there are no recordings to put into it.
    """

    rules: PlaceRules
    stores: Stores
    include: tuple[str, ...] = ()
    """Globs that an uploaded recording must match; see manifest.recording_path.is_included."""
    batch_window_s: float = 0.0
    """Recordings that arrive within this many seconds are one run; 0: each recording is one run."""
    drain: bool = False
    """End when there are no messages; the messages that wait for the end of their window are given back."""

    def __post_init__(self) -> None:
        if self.batch_window_s and not self.rules.recordings:
            raise ConfigError("--batch-window needs --recordings, the places whose recordings it puts into one run")
        if not 0 <= self.batch_window_s <= LONGEST_WINDOW_S:
            raise ConfigError(f"--batch-window is {self.batch_window_s:g}; give from 0 to {LONGEST_WINDOW_S} seconds")


@dataclass(frozen=True, slots=True)
class _WaitingRun:
    """A run that waits because another listener has the lease on its OUT, or is starting it elsewhere."""

    retry_at: float
    """Time of the next attempt, on time.time's clock."""
    request: RunRequest
    messages: list[ReceivedMessage]


class Listener:
    """Pull messages and execute the runs that they ask for."""

    def __init__(
        self, options: ListenerOptions, subscription: Subscription | MessageFile, executor: Executor, log: Log
    ):
        """Store the options; nothing is pulled before `serve`.

        Args:
            subscription: the source of the messages; `serve` closes it.
            executor: brings a run to its end, or starts it on a platform that does.
        """
        self._options, self._subscription, self._executor, self._log = options, subscription, executor, log
        self._uploads = UploadRuns(options.rules, options.stores, options.include) if options.rules.out else None
        self._windows: dict[BatchWindow, list[tuple[UploadedRecording, ReceivedMessage]]] = {}
        self._waiting_runs: list[_WaitingRun] = []
        self._finished_windows: deque[set[tuple[str, str]]] = deque(maxlen=MAX_FINISHED_WINDOWS)
        """The recordings of each finished window, as (address, generation)."""

    def serve(self) -> None:
        """Handle messages until the queue is empty (`drain`), or for ever.

        Raises:
            RunError: a run or the subscription cannot continue; all held messages are given back.
            ConfigError: the subscription no longer exists.
            StopRequested: a signal stopped the listener; all held messages are given back.
        """
        last_message_at = time.monotonic()
        try:
            while not (self._options.drain and not self._waiting_runs and time.monotonic() - last_message_at >= IDLE_S):
                waiting = sum(map(len, self._windows.values())) + sum(len(run.messages) for run in self._waiting_runs)
                if waiting >= MAX_WAITING:
                    time.sleep(FULL_WAIT_S)
                else:
                    for message in self._subscription.pull(1, PULL_S):
                        self._handle(message)
                        last_message_at = time.monotonic()
                now = time.time()
                for window in [window for window in self._windows if window.closes_at <= now]:
                    self._close(window, self._windows.pop(window))
                due = [run for run in self._waiting_runs if run.retry_at <= now]
                self._waiting_runs = [run for run in self._waiting_runs if run.retry_at > now]
                for run in due:
                    self._execute(run.request, run.messages)
            for window, uploads in self._windows.items():  # the next listener receives their messages
                ends = time.strftime("%H:%M:%S UTC", time.gmtime(window.closes_at))
                text = f"{len(uploads):,} recordings below {window.prefix} are left to the listener that runs after"
                self._log.info("window_open", text=f"{text} {ends}, when their window ends")
        finally:
            self._subscription.close()

    @contextlib.contextmanager
    def _dead_lettering(self, messages: list[ReceivedMessage]) -> Iterator[None]:
        """Dead-letter the messages if the work inside the context can never succeed.

        Raises:
            RunError: the work cannot continue; the messages are given back, or go to the dead-letter topic if this was
                their last attempt.
        """
        try:
            yield
        except UsageError as e:
            for message in messages:
                self._subscription.dead_letter(message, str(e))
        except RunError as e:
            max_attempts = self._subscription.max_delivery_attempts
            for message in messages:
                # Without this, Pub/Sub dead-letters the message without a reason.
                if max_attempts and message.delivery_attempt >= max_attempts:
                    reason = f"delivered {message.delivery_attempt} times; the last error was: {e}"
                    self._subscription.dead_letter(message, reason)
            self._subscription.nack(messages)
            raise

    def _handle(self, message: ReceivedMessage) -> None:
        request = None
        with self._dead_lettering([message]):
            content = read(message, self._options.rules)
            outcome = self._request_of(content, message) if isinstance(content, UploadedRecording) else content
            if isinstance(outcome, Ignored):
                self._log.info("not_ours", message_id=message.id, text=f"ignored: {outcome.reason}")
                self._subscription.acknowledge([message])
            else:
                request = outcome
        if request is not None:
            self._execute(request, [message])

    def _request_of(self, upload: UploadedRecording, message: ReceivedMessage) -> RunRequest | Ignored | None:
        """Return the run of an uploaded recording; None if it waits for the end of its window."""
        assert self._uploads is not None  # without an OUT, the message was already refused
        if not is_included(upload.uri.removeprefix(upload.prefix), self._options.include):
            return Ignored(f"{upload.uri} matches no --include")
        if any((upload.uri, upload.generation) in window for window in self._finished_windows):
            return Ignored(f"{upload.uri} is done")
        if (stat := self._uploads.current(upload)) is None:
            return Ignored(f"{upload.uri} was replaced, and the new recording has its own message")
        if not self._options.batch_window_s:
            return self._uploads.single(upload, stat.tag)
        window = batch_window_of(upload, stat.created, self._options.batch_window_s)
        self._windows.setdefault(window, []).append((replace(upload, generation=stat.tag), message))
        return None

    def _execute(
        self, request: RunRequest, messages: list[ReceivedMessage], batch: set[tuple[str, str]] | None = None
    ) -> None:
        """Execute a run and acknowledge its messages, unless the run is refused or must wait.

        If this process does the work, it holds a lease on OUT.

        Args:
            batch: the recordings of the run, to remember if it is done, as (address, generation).
        """
        with self._dead_lettering(messages), contextlib.ExitStack() as resources:
            if self._executor.is_local:
                store = self._options.stores.out(request.out)
                lease_arguments = store, messages[0].id, self._subscription.ack_deadline_s
                if (holder := lease.acquire(*lease_arguments)) is not None:
                    # Not acknowledged: the other worker may die, or may run another manifest.
                    self._log.info("at_work", out=request.out, text=f"{request.out}: {holder.worker} is at work there")
                    retry_at = time.time() + holder.good_for_s / 2
                    self._waiting_runs.append(_WaitingRun(retry_at, request, messages))
                    return
                resources.enter_context(lease.hold(*lease_arguments))
            if (wait_s := self._executor.execute(request)) is not None:
                self._waiting_runs.append(_WaitingRun(time.time() + wait_s, request, messages))
                return
            self._subscription.acknowledge(messages)
            ids = [message.id for message in messages]
            text = f"{request.out}: done, {len(ids)} messages acknowledged"
            self._log.info("messages_done", out=request.out, message_ids=ids, text=text)
            if batch:
                self._finished_windows.append(batch)

    def _close(self, window: BatchWindow, uploads: list[tuple[UploadedRecording, ReceivedMessage]]) -> None:
        """Run the recordings of a window that has ended.

        A recording that the window's manifest does not hold is run alone: its reference is bad, or the store's clock
        and this machine's clock differ by more than the grace.
        """
        assert self._uploads is not None
        batch = None
        with self._dead_lettering([message for _, message in uploads]):
            batch = self._uploads.batch(window)
        request, recordings = batch or (None, set[tuple[str, str]]())
        members = [message for upload, message in uploads if (upload.uri, upload.generation) in recordings]
        if request and members:
            self._execute(request, members, recordings)
        for upload, message in uploads:
            if (upload.uri, upload.generation) in recordings:
                continue
            request = None
            with self._dead_lettering([message]):
                if (stat := self._uploads.current(upload)) is None:
                    self._subscription.acknowledge([message])  # the recording was replaced
                else:
                    request = self._uploads.single(upload, stat.tag)
            if request is not None:
                self._execute(request, [message])
