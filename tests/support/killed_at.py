"""The program voxbatch, killed (SIGKILL) right after its n-th change of a file of OUT: `python killed_at.py N run …`.

N = 0 kills it right before the first change. The changes are the calls of Store.create, write and delete in this
process.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from voxbatch.cli import main
from voxbatch.storage.bucket import BucketStore
from voxbatch.storage.local import LocalStore

wanted, sys.argv = int(sys.argv[1]), ["voxbatch", *sys.argv[2:]]
changes = itertools.count(1)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def counted(kind: Any, name: str) -> None:
    """Replace a method by one that counts its calls and kills."""
    method = getattr(kind, name)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if wanted == 0:
            kill()
        result = method(self, *arguments, **options)
        if next(changes) == wanted:
            kill()
        return result

    setattr(kind, name, call)


for store in (LocalStore, BucketStore):
    for each in ("create", "write", "delete"):
        counted(store, each)
main()
