"""The files that voxbatch has written, which it may replace. A file that somebody changed is left as it is.

    digests/9f86d081….bin    a line of JSON, then 8 bytes for each file: a hash of its name and its SHA-256

A log of digests is created before the files that it names, and is never changed. So a merge that was killed anywhere
has left no file that a later merge takes for somebody else's. A file is voxbatch's if any log has its name with its
digest. The name of a log is a digest of its own content, so that the same merge creates it once. `--overwrite` leaves
the logs in place, because files beside recordings remain, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from voxbatch.log import Log
from voxbatch.output.layout import DIGESTS, VERSION
from voxbatch.output.stored_json import json_bytes
from voxbatch.safe_text import counted
from voxbatch.storage import Store, parallel_map, redacted

BLOCK_BYTES = 4096
"""Bytes of a block of a file system. A loss of power leaves whole blocks of a file, or zeros in their place."""
SHOWN_NAMES = 3
"""Number of files that a message names."""
_HEADER = json_bytes({"version": VERSION}) + b"\n"
_BESIDE = "beside"
"""Stands in the place of a digest for a place beside a recording that voxbatch has written to."""


class OwnFiles:
    """The files that voxbatch has written to an OUT and beside its recordings, and those that were met and left.

    Several threads may use an object. The logs are read when the first file is to be recorded or judged.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        """Held while logs are read, and while the other attributes change."""
        self._logs = set[str]()
        """Names of the logs that were read."""
        self._stored = np.zeros(0, np.uint64)
        """The sorted keys of these logs."""
        self._new = set[int]()
        """Keys that this object has recorded, or was told."""
        self.left = list[str]()
        """Names of the files that are not replaced, in the order in which they were met."""

    def record(self, digests: Iterable[tuple[str, str]]) -> None:
        """Record files that are to be written now, as (name, SHA-256), unless they are recorded."""
        self.adopt(key_of(name, digest) for name, digest in digests)

    def adopt(self, keys: Iterable[int]) -> None:
        """Record files by their keys: from now on, they are voxbatch's."""
        if not self._logs:
            self._read()
        new = sorted({key for key in keys if not self._is_known(key)})
        if new:
            content = _HEADER + np.array(new, "<u8").tobytes()
            self._store.create(f"{DIGESTS}/{hashlib.sha256(content).hexdigest()[:32]}.bin", [content], durable=False)
            with self._lock:
                self._new.update(new)

    def know(self, keys: Iterable[int]) -> None:
        """Take files, by their keys, for voxbatch's that something else than a log records."""
        with self._lock:
            self._new.update(keys)

    def has(self, name: str, digest: str) -> bool:
        """Return whether voxbatch has written a file with this name in OUT and this SHA-256."""
        if not self._is_known(key := key_of(name, digest)):
            self._read()  # another process may have written the file meanwhile
        return self._is_known(key)

    def may_replace(self, name: str, present: bytes, wanted: bytes) -> bool:
        """Return whether a file may get other bytes, because voxbatch has written it, or a loss of power has left it.

        Args:
            name: its name in OUT; of a file beside a recording, that of the item's file in OUT.
        """
        whole = present.rstrip(b"\0")
        is_torn = len(whole) % BLOCK_BYTES == 0 and wanted.startswith(whole)
        return is_torn or self.has(name, sha256(present))

    def leave(self, name: str) -> None:
        """Count a file that somebody has changed."""
        with self._lock:
            self.left.append(name)

    def report(self, log: Log, advice: str) -> None:
        """Log how many files were left, and the first names.

        Args:
            advice: what takes the changes in, for the end of the message.
        """
        if self.left:
            names = ", ".join(redacted(name) for name in self.left[:SHOWN_NAMES])
            more = ", …" if len(self.left) > SHOWN_NAMES else ""
            text = f"{counted(len(self.left), 'file')} changed by somebody and not replaced: {names}{more}"
            log.warning("changed_files", text=f"{text}{advice}")

    def _is_known(self, key: int) -> bool:
        at = int(np.searchsorted(self._stored, np.uint64(key)))
        return key in self._new or (at < len(self._stored) and int(self._stored[at]) == key)

    def _read(self) -> None:
        """Read the logs that were not read yet. A log that is damaged has no keys: its files are left."""
        with self._lock:
            names = [name for name in self._store.names(DIGESTS) if name not in self._logs]
            keys = parallel_map(self._store.concurrency, partial(_keys_of, self._store), names)
            self._stored = np.unique(np.concatenate([self._stored, *keys]))
            self._logs.update(names)


def beside_mark(place: str) -> tuple[str, str]:
    """Return what is recorded for a place beside a recording to which voxbatch writes. A file there that nobody has
    written for voxbatch is no correction."""
    return place, _BESIDE


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _keys_of(store: Store, name: str) -> NDArray[np.uint64]:
    content = store.read(name) or b""
    header, _, data = content.partition(b"\n")
    is_sound = name == f"{DIGESTS}/{hashlib.sha256(content).hexdigest()[:32]}.bin" and header + b"\n" == _HEADER
    return np.frombuffer(data if is_sound else b"", "<u8")


def key_of(name: str, digest: str) -> int:
    """Return the 64 bits of a file by its name in OUT and its SHA-256. Beside ten million others, a file is taken for
    one of them with a chance of 10⁻¹²."""
    text = f"{name}\0{digest}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
