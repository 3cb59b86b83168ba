"""A command that is killed (SIGKILL) right after its n-th change of a file of OUT, or stopped (SIGSTOP) right after
it has written a file: see fork_server.

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
STOPPED_AT = "TEST_STOPPED_AT"
"""Variable of a command that is stopped so, with the name of the file in OUT."""


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


def install_stop(name: str) -> None:
    """Stop this process after it has created or written a file for the first time."""
    names = [name]
    for store in (LocalStore, BucketStore):
        for method in ("create", "write"):
            _stop_after(store, method, names)


def _stop_after(kind: Any, name: str, files: list[str]) -> None:
    """Replace a method by one that stops after a call for a file, which is then removed from the files."""
    method = getattr(kind, name)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        if arguments[0] in files:
            files.clear()
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(kind, name, call)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
