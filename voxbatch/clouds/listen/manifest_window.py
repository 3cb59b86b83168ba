"""Small runs that arrive together → the messages of one execution, which does one run after another with one engine.

The start of a GPU costs as much as hours of audio (`submit.sizing`), so that many small manifests must not have one
each. The runs stay apart: each has its manifest and its OUT, and its start is claimed there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxbatch.clouds.listen.message import RunRequest
from voxbatch.clouds.listen.starts import Start
from voxbatch.clouds.submit import Submission
from voxbatch.output.stored_json import json_bytes
from voxbatch.storage import Store

MAX_WINDOWS = 10
"""Longest time that a run waits, in windows: each further run may extend the wait by one."""
MAX_RUNS = 1000
"""Runs of one execution."""
RUN_S = 3.0
"""Seconds that a run takes besides its audio: some dozen requests to a bucket. An assumption, on the safe side."""
FOLDER = "batches"
"""Folder of the listener's OUT for the messages of such executions."""


@dataclass(frozen=True, slots=True)
class SizedRun:
    """A run that can be started."""

    request: RunRequest
    submission: Submission
    """The run as an execution of its own."""
    store: Store
    """Its OUT."""
    manifest: str
    """Digest of the manifest's lines; see manifest.Survey."""
    latest: Start | None
    """The latest start in its OUT."""
    work_s: float
    """Expected seconds of a task for its audio; 0 if unknown."""
    usd: float
    """Highest expected price of the run as an execution of its own; 0 if unknown."""
    start_usd: float
    """Part of this price that the starts of its tasks have."""


class ManifestWindow:
    """Runs that wait for others. One thread uses it."""

    def __init__(self, seconds: float, task_s: float):
        """Begin without a run.

        Args:
            seconds: time without a further run after which the runs are started; 0: no run waits.
            task_s: seconds of work that one task should have.
        """
        self._seconds, self._task_s = seconds, task_s
        self._runs: dict[str, SizedRun] = {}
        self._first_at = self._last_at = 0.0

    def __contains__(self, out: str) -> bool:
        """Return whether the run of this OUT waits."""
        return out in self._runs

    def may_hold(self, run: SizedRun) -> bool:
        """Return whether a run may wait: one task can do it."""
        return self._seconds > 0 and run.submission.tasks == 1

    def has_room(self, run: SizedRun) -> bool:
        """Return whether one task can do a further run besides those that wait."""
        work_s = sum(waiting.work_s + RUN_S for waiting in self._runs.values())
        return not self._runs or (len(self._runs) < MAX_RUNS and work_s + run.work_s + RUN_S <= self._task_s)

    def add(self, run: SizedRun) -> None:
        """Let a run wait."""
        self._last_at = time.monotonic()
        self._first_at = self._first_at if self._runs else self._last_at
        self._runs[run.request.out] = run

    @property
    def is_over(self) -> bool:
        """True if no further run has come for the length of the window, or the first run waits for too long."""
        now = time.monotonic()
        return now - self._last_at >= self._seconds or now - self._first_at >= MAX_WINDOWS * self._seconds

    def take(self) -> list[SizedRun]:
        """Return the runs that wait, and forget them."""
        runs = list(self._runs.values())
        self._runs.clear()
        return runs


def price_of(runs: Sequence[SizedRun]) -> float:
    """Return the highest expected price of one execution that does these runs, in USD."""
    return sum(run.usd - run.start_usd for run in runs) + max(run.start_usd for run in runs)


def new_name() -> str:
    """Return a name for a file of messages in the listener's OUT, as no other dispatcher makes it."""
    return f"{FOLDER}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}.jsonl"


def messages_of(requests: Iterable[RunRequest]) -> list[bytes]:
    """Return the lines of a file of messages; see `message_file`."""
    messages = ({"manifest": request.source, "output": request.out} for request in requests)
    return [json_bytes(message) + b"\n" for message in messages]
