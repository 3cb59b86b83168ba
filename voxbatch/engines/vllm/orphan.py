"""Loaded into each process that vLLM starts: it ends when the one that started it is gone.

vLLM's engine waits for its parent for ever, loading or loaded, and would keep the GPU from the next run. The logging
configuration that all these processes read as soon as they import vLLM names this handler, which is the earliest place
to stand.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from multiprocessing.connection import wait


class DieWithParent(logging.NullHandler):
    """A log handler that handles nothing, but watches from when it is made."""

    def __init__(self) -> None:
        super().__init__()
        if parent := multiprocessing.parent_process():
            threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True, name="parent").start()


def _die_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
