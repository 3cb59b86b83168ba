"""All that reads the OUT of a run, or files with texts, and never writes parts: scores, comparisons, tables, flags."""

from __future__ import annotations

import os

from voxbatch.storage import Store, Stores, is_remote
from voxbatch.storage.local import LocalStore


def open_target(path: str, stores: Stores, alternative: str = "choose another file") -> tuple[Store, str]:
    """Return the store and the name of a file that is to be written: a path, or an address in a bucket.

    Args:
        alternative: what to do if nothing can be written there, for the message.
    """
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return stores.out(folder), name
    folder, name = os.path.split(path)
    return LocalStore(folder or ".", alternative=alternative), name
