"""The secret key of an OUT whose copies are made.

The ids of the copies and the keys of their items are hashes of names and texts, and a PIN has only 10,000 values: who
has a plain hash can try them all. So each hash has a random key, which stays in the original OUT. Its copies then have
the same ids in each run, and nobody else can compute them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from voxbatch.errors import CheckpointError, StorageError
from voxbatch.log import Log
from voxbatch.output.shown import wait_until_shown
from voxbatch.storage import Store

KEY_FILE = "redaction.key"
KEY_BYTES = 32
ID_BYTES = 8
"""Bytes of the id of a copy, which is written in hexadecimal digits."""


def own_key(store: Store) -> bytes:
    """Return the key of an OUT. It is created if absent.

    Raises:
        StorageError: there is none, and OUT cannot be written.
        CheckpointError: it is damaged.
    """
    name, key = f"{store.place}/{KEY_FILE}", store.read(KEY_FILE)
    if key is None:
        try:
            store.create(KEY_FILE, [secrets.token_bytes(KEY_BYTES)])
        except StorageError as e:
            advice = "the first run that redacts an OUT writes a key there; do this one with the right to write to it"
            raise StorageError(f"{e}; {advice}", e.kind) from e
        key = wait_until_shown(lambda: store.read(KEY_FILE), f"{name} exists, and is not shown", Log(quiet=True)) or b""
    if len(key) != KEY_BYTES:
        raise CheckpointError(
            f"{name} has {len(key)} bytes instead of {KEY_BYTES}: restore it, or delete it and choose a new OUT with -o"
        )
    return key


def keyed_hash(value: str, key: bytes, size: int = 32) -> str:
    """Return a hash of a text that nobody can compute without the key, in hexadecimal digits.

    Args:
        size: number of bytes of the hash.
    """
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), key=key, digest_size=size).hexdigest()


def copied_id(item_id: str, key: bytes) -> str:
    """Return the id that an item has in the copies."""
    return keyed_hash(item_id, key, ID_BYTES)


def copied_ids(store: Store, ids: Iterable[str]) -> list[str]:
    """Return the ids that items of an OUT have in its copies. There are none without a key, or with a damaged one."""
    key = store.read(KEY_FILE) or b""
    return [copied_id(item_id, key) for item_id in ids] if len(key) == KEY_BYTES else []
