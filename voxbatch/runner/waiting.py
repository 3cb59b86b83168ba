"""Show in the progress what a run waits for, and warn of an engine that gives no results."""

from __future__ import annotations

import time
from collections.abc import Callable

from voxbatch.engines import EngineMessage, Feed
from voxbatch.errors import EngineError
from voxbatch.process.hang_detector import SilenceClock
from voxbatch.runner.decode_thread import DecodeThread
from voxbatch.runner.progress import Progress

STALL_WARNING_S = 600.0
"""Seconds without any event between two warnings that the engine gives no results. A large model on a CPU needs some
minutes for a chunk."""
STALL_LIMIT_S = 3600.0
"""Seconds without any event after which an engine that holds chunks has failed."""
TELL_S = 5.0
"""Most seconds between two calls of `on_progress`, because its time goes on while nothing is finished."""
SHOWN_STALL_S = 30.0
"""Seconds without any event after which the progress says that it waits for the engine."""
SHOWN_RETRY_S = 10.0
"""Seconds for which the progress shows the last report of a store that does not answer. A decoder that waits for it
sends one every few seconds."""


class WaitMonitor:
    """Watches, on the main thread, what the run waits for.

    Args:
        feed: the chunks that wait for the engine, and those that it holds.
        decode_thread: the thread whose decoders may wait for a store.
        progress: its `waiting` and `engine_started_at` are updated in place.
        on_progress: called with the progress when something is waited for, and every TELL_S.
        on_engine_message: called with each message of the engine, and with warnings of its silence.
    """

    def __init__(
        self,
        engine: str,
        feed: Feed,
        decode_thread: DecodeThread,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        on_engine_message: Callable[[EngineMessage], None],
    ) -> None:
        self._engine, self._feed, self._decode_thread = engine, feed, decode_thread
        self._progress, self._on_progress, self._on_engine_message = progress, on_progress, on_engine_message
        self._silence = SilenceClock(STALL_WARNING_S)
        self._told_at = progress.started_at
        """time.monotonic() at which the progress was told although nothing was finished."""
        self._download = ""
        """State of the engine's download, if it downloads its model."""

    def tell(self, message: EngineMessage) -> None:
        """Pass a message of the engine on, or keep it for the progress."""
        self._download = message.text if message.is_progress else ""
        if not message.is_progress:
            self._on_engine_message(message)

    def check_engine(self, has_event: bool) -> EngineError | None:
        """Warn about an engine that gives no result. Return the error if it has given none for a long time.

        Args:
            has_event: an event has come since the last call.
        """
        num_held, since = (0, 0.0) if has_event else self._feed.held_by_engine()
        num_waiting = 0 if has_event else self._feed.num_waiting()
        if not num_held and not num_waiting:
            self._silence.reset()
            return None
        is_due, minutes = self._silence.look(), f"{self._silence.silent_s / 60:.0f} minutes"
        if num_held:
            text = f"engine {self._engine} has given no result for {minutes}; it holds {num_held:,} chunks, the first "
            text += f"of them for {(time.monotonic() - since) / 60:.0f} minutes"
        else:
            text = f"engine {self._engine} has taken no chunk for {minutes}, and {num_waiting:,} wait; "
            text += "it may still be loading"
        if num_held and self._silence.silent_s >= STALL_LIMIT_S:
            return EngineError(f"{text}; it hangs, or this machine is too slow for the model")
        if is_due:
            self._on_engine_message(EngineMessage(text, is_warning=True))
        return None

    def show(self) -> None:
        """Say in the progress what the run waits for."""
        progress, waiting = self._progress, ""
        progress.engine_started_at = self._feed.started_at
        retry, silent_s = self._decode_thread.retry, self._silence.silent_s
        if retry is not None and time.monotonic() - retry[0] < SHOWN_RETRY_S:
            waiting = str(retry[1])
        elif self._download:
            waiting = self._download
        elif self._feed.started_at is None and self._feed.num_waiting():
            waiting = "the model is loading"
        elif silent_s >= SHOWN_STALL_S:
            waiting = f"the engine {self._engine} has given no result for {silent_s:.0f} s"
        if waiting or progress.waiting or time.monotonic() - self._told_at >= TELL_S:
            progress.waiting, self._told_at = waiting, time.monotonic()
            self._on_progress(progress)
