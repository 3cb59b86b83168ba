"""Schedulers that fail on purpose inside vLLM's process. The engine gets them by its option `scheduler_cls`.

VOXBATCH_TEST_MARK names a file. Each death adds a line to this file, so that a later engine can count the deaths.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from voxbatch.vllm.plugin.scheduler.batch_scheduler import BatchScheduler

POISON_POSITIONS = 32 + 6 + 11 + 63
"""Positions of a chunk of 5.0 s (63 tokens of audio) at a delay of 480 ms."""


class _Counting(BatchScheduler):
    steps = 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        self.look()
        return super().schedule(*args, **kwargs)

    def look(self) -> None:
        raise NotImplementedError


class Unlucky(_Counting):
    """Scheduler whose first engine dies of an exception at its 40th step, the second one of a lack of memory, and the
    third one of a signal."""

    def look(self) -> None:
        """Die at step 40, in the first three engines."""
        if self.steps == 40:
            import torch

            errors = [RuntimeError("scripted to fail"), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")]
            deaths = _deaths()
            if deaths < len(errors):
                _die(errors[deaths])
            if deaths == len(errors):
                _note("killed")
                signal.raise_signal(signal.SIGKILL)


class Terminated(_Counting):
    """Scheduler whose first engine gets SIGTERM at its 40th step, as from `systemctl stop` or a terminal. vLLM then
    ends each request that it has with "abort"."""

    def look(self) -> None:
        """Raise the signal at step 40, in the first engine."""
        if self.steps == 40 and not _deaths():
            _note("terminated")
            signal.raise_signal(signal.SIGTERM)


class Poisoned(_Counting):
    """Scheduler that dies whenever a chunk of exactly 5.0 s is running."""

    def look(self) -> None:
        """Die if a chunk of 5.0 s is running."""
        if any(_positions(request) == POISON_POSITIONS for request in self.running):
            _die(RuntimeError("poisoned"))


def _positions(request: Any) -> int:
    return int(request.mm_features[0].mm_position.length)


def _deaths() -> int:
    mark = Path(os.environ["VOXBATCH_TEST_MARK"])
    return len(mark.read_text().splitlines()) if mark.exists() else 0


def _die(error: Exception) -> None:
    _note(str(error))
    raise error


def _note(cause: str) -> None:
    with Path(os.environ["VOXBATCH_TEST_MARK"]).open("a") as mark:
        mark.write(f"{cause}\n")
