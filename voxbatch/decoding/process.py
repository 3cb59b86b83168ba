"""Give tasks to one decoder process and read its messages, on behalf of the pool."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import replace

import numpy as np

from voxbatch.child_environment import without_secrets
from voxbatch.child_process import ChildProcess
from voxbatch.decoding.messages import Message, Task
from voxbatch.hang_detector import HangDetector
from voxbatch.records import Chunk, Span
from voxbatch.storage import RetryWait, StoreOptions

MAX_TASKS = 12
"""Number of tasks that a decoder holds, so that it never waits for its next short recording: one that is decoded, as
many as are prefetched (FETCH_THREADS), and some that were fetched out of order."""
HANG_TIMEOUT_S = 120.0
"""Seconds without a message and without work after which a decoder hangs: see HangDetector. A read of a slow network
drive may take a minute."""
BUSY_TIMEOUT_S = 1200.0
"""Seconds without a message after which a working decoder hangs. Skipping to an offset of many hours in a format
without an index may take ten minutes."""


class DecoderProcess(ChildProcess):
    """Decoder process, with the tasks that it has been given and has not finished."""

    def __init__(self, store_options: StoreOptions) -> None:
        super().__init__(
            "voxbatch.decoding.decoder",
            {"OPENBLAS_NUM_THREADS": "1"},  # there is one decoder per core
            inherited=without_secrets(os.environ, keeps_stores=not store_options.anonymous),
        )
        self.store_options = store_options
        self.tasks: deque[Task] = deque()
        self.spans: list[Span] = []
        """Spans of the chunks of the current task that were received from this decoder."""
        self.has_started = False
        """True after the decoder's first message. A decoder that dies earlier could not start; no task is to blame."""
        self.killed_starts = 0
        """Number of decoders in succession before this one that were killed before their first message."""
        self._hang_detector = HangDetector(self.pid)
        self.send(store_options)

    def has_capacity(self) -> bool:
        """Return whether the decoder takes another task."""
        return len(self.tasks) < MAX_TASKS

    def send_task(self, task: Task) -> None:
        """Send a task to the decoder."""
        if not self.tasks:
            self._hang_detector.reset()
        self.tasks.append(task)
        self.send(task)

    def receive(self) -> Message | RetryWait | None:
        """Receive one message, with the samples of a Chunk; None and RetryWait are heartbeats.

        Raises:
            EOFError, OSError: the decoder has died.
        """
        message: Message | RetryWait | None = self.connection.recv()
        if message is None or isinstance(message, RetryWait):
            self.has_started = True
        elif isinstance(message, Chunk):
            message = replace(message, samples=np.frombuffer(self.connection.recv_bytes(), np.float32))
            self.spans.append(message.span)
        else:
            self.tasks.popleft()
            self.spans.clear()
        self._hang_detector.reset()
        return message

    def is_hung(self) -> bool:
        """Return whether the decoder and its ffmpeg hang. Call this about every second while no message comes."""
        watched = self._hang_detector
        watched.look()
        hangs = watched.idle_s > HANG_TIMEOUT_S or watched.silent_s > BUSY_TIMEOUT_S
        return hangs and not self.connection.poll()


class WarmPool:
    """Warm pool of decoders that stay alive between two decoder pools. Reusing a decoder saves the second that starting
    it takes. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        """Number of users with several runs after each other. If it is 0, decoders are killed after a run."""
        self._idle: list[DecoderProcess] = []

    def open(self) -> None:
        """Keep decoders until `close` is called as often as this method."""
        with self._lock:
            self._num_users += 1

    def acquire(self, store_options: StoreOptions) -> DecoderProcess:
        """Return an idle decoder with these store options, or start one. An idle decoder may have died meanwhile."""
        with self._lock:
            fitting = next((decoder for decoder in self._idle if decoder.store_options == store_options), None)
            if fitting is not None:
                self._idle.remove(fitting)
                return fitting
        return DecoderProcess(store_options)

    def release(self, decoder: DecoderProcess) -> None:
        """Keep a decoder for the next pool if that is wanted and the decoder is idle; otherwise kill it."""
        with self._lock:
            is_kept = self._num_users > 0 and not decoder.tasks
            if is_kept:
                self._idle.append(decoder)
        if not is_kept:
            decoder.end()

    def close(self) -> None:
        """End one use. After the last one, kill all idle decoders and keep no more."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
            unused, self._idle = self._idle, []
        for decoder in unused:
            decoder.end()


warm_pool = WarmPool()
"""Warm pool of this process."""
