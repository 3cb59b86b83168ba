"""A command that is killed (SIGKILL) right after its n-th change of a file of OUT: see fork_server.

The changes are the calls of Store.create, write and delete in its process.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

from voxbatch.storage.bucket import BucketStore
from voxbatch.storage.local import LocalStore

VARIABLE = "TEST_KILLED_AT"
"""Variable of a command that is killed so."""


def install(wanted: int) -> None:
    """Kill this process after so many changes from now on; 0 kills it right before the first change."""
    changes = itertools.count(1)
    for store in (LocalStore, BucketStore):
        for name in ("create", "write", "delete"):
            _count_calls(store, name, changes, wanted)


def _count_calls(kind: Any, name: str, changes: itertools.count[int], wanted: int) -> None:
    """Replace a method by one that counts its calls and kills."""
    method = getattr(kind, name)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if wanted == 0:
            _kill()
        result = method(self, *arguments, **options)
        if next(changes) == wanted:
            _kill()
        return result

    setattr(kind, name, call)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
