"""Keep the model of one transcriber between calls. It is unloaded before another one is loaded."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar


class Closable(Protocol):
    """A transcriber."""

    def close(self) -> None:
        """Unload the model."""


T = TypeVar("T", bound=Closable)

KEPT_S = 300.0
"""Seconds without a call after which the model is unloaded."""


class ModelKeeper:
    """Keeps one transcriber between calls with the same options, for KEPT_S. Any thread may use it.

    A call with other options takes its place; the transcriber before is closed when the last call with it has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Guards all fields. A transcriber that is made unloads the one before, in the same thread."""
        self._options: Mapping[str, Any] | None = None
        self._transcriber: Any = None
        self._num_calls = dict[Closable, int]()
        """Calls in progress with each transcriber."""
        self._timer: threading.Timer | None = None

    def unload(self) -> None:
        """Unload the model, at once or when its last call has ended."""
        with self._lock:
            transcriber, self._transcriber, self._options = self._transcriber, None, None
            if self._timer is not None:
                self._timer.cancel()
            if transcriber is not None and transcriber not in self._num_calls:
                transcriber.close()

    def acquire(self, options: Mapping[str, Any], make: Callable[[], T]) -> T:
        """Return the transcriber that is kept if it has equal options, else a new one. `release` must follow."""
        with self._lock:  # also while a transcriber is made, so that several threads make one
            if self._timer is not None:
                self._timer.cancel()
            if self._transcriber is None or self._options != options:
                self._transcriber, self._options = make(), options
            transcriber: T = self._transcriber
            self._num_calls[transcriber] = self._num_calls.get(transcriber, 0) + 1
            return transcriber

    def release(self, transcriber: Closable) -> None:
        """End a call. After the last one, the transcriber is kept for KEPT_S, or closed if another has its place."""
        with self._lock:
            self._num_calls[transcriber] -= 1
            if self._num_calls[transcriber]:
                return
            del self._num_calls[transcriber]
            if transcriber is not self._transcriber:
                transcriber.close()
                return
            self._timer = threading.Timer(KEPT_S, self.unload)
            self._timer.daemon = True
            self._timer.start()


keeper = ModelKeeper()
atexit.register(keeper.unload)
