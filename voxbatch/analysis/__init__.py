"""All that reads the OUT of a run, or files with texts, and never writes parts: scores, comparisons, tables, flags."""

from __future__ import annotations

import os

from voxbatch.storage import Store, StoreOptions, is_remote, open_store
from voxbatch.storage.local import LocalStore


def open_target(path: str, store_options: StoreOptions, alternative: str = "choose another file") -> tuple[Store, str]:
    """Return the store and the name of a file that is to be written: a path, or an address in a bucket.

    Args:
        alternative: what to do if nothing can be written there, for the message.
    """
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return open_store(folder, store_options), name
    folder, name = os.path.split(path)
    return LocalStore(folder or ".", alternative=alternative), name
