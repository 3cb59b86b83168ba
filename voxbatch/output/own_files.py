"""The files that voxbatch has written, which it may replace. A file that somebody changed is left as it is.

    digests/00007.bin    a line of JSON, then 16 bytes for each file: hashes of its name and of its SHA-256

A log of digests is created before the files that it names, and is never changed. So a merge that was killed anywhere
has left no file that a later merge takes for somebody else's. Merges have numbers, which are in their logs. A merge
that has a file to write takes the number after that of the last merge that was finished, which summary.json has. A file
is voxbatch's if its digest is the latest one of its name up to that number, or is of a later merge: an unfinished merge
may have written it. An older digest is not: somebody has put an old file back.

Marks are never superseded, such as that a place beside a recording has a file of voxbatch. Their merge is 0.
`--overwrite` leaves the logs in place, because files beside recordings remain, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from voxbatch.log import Log
from voxbatch.output.layout import VERSION, digest_name, digest_names, number_of_list
from voxbatch.output.stored_json import Count, json_bytes, read_json
from voxbatch.safe_text import counted
from voxbatch.storage import Store, parallel_map, redacted

BLOCK_BYTES = 4096
"""Bytes of a block of a file system. A loss of power leaves whole blocks of a file, or zeros in their place."""
SHOWN_NAMES = 3
"""Number of files that a message names."""
MARKS = 0
"""Merge number of marks."""

Key = tuple[int, int]
"""Hashes of the name of a file and of its SHA-256; or of a place and of a mark. Beside ten million others, a file is
taken for one of them with a chance of 10⁻¹²."""


class _LogHeader(msgspec.Struct):
    """The first line of a log."""

    merge: Count
    """Number of the merge, or MARKS."""
    sha256: str
    """SHA-256 of the rows after it, in hexadecimal digits."""
    version: int = VERSION


class OwnFiles:
    """The files that voxbatch has written to an OUT and beside its recordings, and those that were met and left.

    Several threads may use an object. The logs are read when the first file is to be recorded or judged.

    Args:
        finished: number of the last merge that was finished, as summary.json has it; 0 if none was.
    """

    def __init__(self, store: Store, finished: int = 0) -> None:
        self._store, self._finished = store, finished
        self._lock = Lock()
        """Held while logs are read, and while the other attributes change."""
        self._is_read = False
        """True if the logs of earlier processes were read."""
        self._logs = set[str]()
        """Names of the logs that were read. Those that this object creates are read when a file is not known."""
        self._next_log = 0
        """Number of the log that is created next, unless another process has created it."""
        self._stored = np.zeros((3, 0), np.uint64)
        """The names, digests and merges in these logs, sorted by name."""
        self._known = dict[int, list[tuple[int, int]]]()
        """Digests and merges by name that no log has."""
        self._latest = finished
        """Number of the latest merge that has recorded a file."""
        self.left = list[str]()
        """Names of the files that are not replaced, in the order in which they were met."""

    @property
    def number(self) -> int:
        """Number of this merge: that of an unfinished merge, if there was one."""
        self._read_first()
        return self._latest

    @property
    def next_number(self) -> int:
        """Number of the merge that writes now."""
        return max(self._finished + 1, self.number)

    def record(self, files: Iterable[tuple[str, str]]) -> None:
        """Record files that are to be written now, as (name, SHA-256), unless they are the latest ones."""
        self.adopt(key_of(*file) for file in files)

    def adopt(self, keys: Iterable[Key]) -> None:
        """Record files by their keys: from now on, they are voxbatch's."""
        self._read_first()
        self._create([key for key in {*keys} if not self._is_latest(key)], self.next_number)

    def mark(self, marks: Iterable[tuple[str, str]]) -> None:
        """Record marks, as (place, mark), unless they are recorded."""
        self.keep(key_of(*mark) for mark in marks)

    def keep(self, keys: Iterable[Key]) -> None:
        """Mark files, by their keys, that stay as a person has left them, and that no merge has to tell of."""
        self._read_first()
        self._create([key for key in {*keys} if MARKS not in self._numbers(key)], MARKS)

    def know(self, keys: Iterable[Key], number: int) -> None:
        """Take files, by their keys, for those of a merge, although no log has them."""
        with self._lock:
            for name, digest in keys:
                self._known.setdefault(name, []).append((digest, number))
                self._latest = max(self._latest, number)

    def has(self, name: str, digest: str) -> bool:
        """Return whether a file with this name in OUT and this SHA-256 is voxbatch's."""
        if not self._is_own(key := key_of(name, digest)):
            self._read()  # another process may have written the file meanwhile
        return self._is_own(key)

    def has_written(self, key: Key) -> bool:
        """Return whether voxbatch has written a file at any time, or taken a correction from it."""
        self._read_first()
        return bool(self._numbers(key))

    def has_mark(self, place: str, mark: str) -> bool:
        """Return whether a place has a mark."""
        return self.is_kept(key_of(place, mark))

    def is_kept(self, key: Key) -> bool:
        """Return whether a file is marked by `keep`."""
        self._read_first()
        return MARKS in self._numbers(key)

    def may_replace(self, name: str, present: bytes, wanted: bytes) -> bool:
        """Return whether a file may get other bytes, because voxbatch has written it, or a loss of power has left it.

        Args:
            name: its name in OUT; of a file beside a recording, that of the item's file in OUT.
        """
        whole = present.rstrip(b"\0")
        is_torn = len(whole) % BLOCK_BYTES == 0 and wanted.startswith(whole)
        return is_torn or self.has(name, sha256(present))

    def leave(self, place: str, name: str = "", present: bytes = b"") -> None:
        """Count a file that somebody has changed, unless it is marked by `keep`.

        Args:
            name, present: see `may_replace`.
        """
        if not self.is_kept(key_of(name, sha256(present))):
            with self._lock:
                self.left.append(place)

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

    def _is_own(self, key: Key) -> bool:
        """Return whether a digest is the latest one of its name up to the last finished merge, or later."""
        numbers = self._numbers(key)
        finished = [number for _, number in self._rows(key[0]) if MARKS < number <= self._finished]
        return any(number > self._finished for number in numbers) or max(finished, default=-1) in numbers

    def _is_latest(self, key: Key) -> bool:
        return max((number for _, number in self._rows(key[0])), default=-1) in self._numbers(key)

    def _numbers(self, key: Key) -> set[int]:
        return {number for digest, number in self._rows(key[0]) if digest == key[1]}

    def _rows(self, name: int) -> list[tuple[int, int]]:
        """Return the digests of a name, each with its number."""
        known = self._known.get(name, ())
        if not self._stored.size:
            return [*known]
        names, digests, numbers = self._stored
        begin, end = (int(np.searchsorted(names, np.uint64(name), side)) for side in ("left", "right"))
        return [*zip(digests[begin:end].tolist(), numbers[begin:end].tolist(), strict=True), *known]

    def _create(self, keys: Iterable[Key], merge: int) -> None:
        rows = sorted(keys)
        if not rows:
            return
        stored = np.array(rows, "<u8").tobytes()
        header = _LogHeader(merge, sha256(stored))
        content = json_bytes(msgspec.to_builtins(header)) + b"\n" + stored
        with self._lock:
            is_recorded = False
            while not is_recorded:
                name = digest_name(self._next_log)
                # Another process may have recorded other files meanwhile, or the same ones: a second merge.
                is_recorded = self._store.create(name, [content], durable=False) or self._store.read(name) == content
                self._next_log += 1
            self._latest = max(self._latest, merge)

    def _read_first(self) -> None:
        if not self._is_read:
            self._read()

    def _read(self) -> None:
        """Read the logs that were not read yet. A log that is damaged has no rows: its files are left."""
        with self._lock:
            names = [name for name in digest_names(self._store) if name not in self._logs]
            rows = parallel_map(self._store.concurrency, partial(_rows_of, self._store), names)
            stored = np.concatenate([self._stored, *rows], axis=1)
            self._stored = stored[:, np.argsort(stored[0], kind="stable")]
            self._logs.update(names)
            self._is_read = True
            self._next_log = 1 + max(map(number_of_list, self._logs), default=-1)
            self._latest = max(self._latest, int(self._stored[2].max(initial=0)))


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def key_of(name: str, digest: str) -> Key:
    """Return the key of a file by its name in OUT and its SHA-256, or of a place by its mark."""
    return _hash(name), _hash(digest)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _rows_of(store: Store, name: str) -> NDArray[np.uint64]:
    """Return the names, digests and merges in a log: shape (3, files)."""
    first_line, _, stored = (store.read(name) or b"").partition(b"\n")
    try:
        header = read_json(first_line, _LogHeader)
    except ValueError:
        return np.zeros((3, 0), np.uint64)
    is_sound = (header.version, header.sha256) == (VERSION, sha256(stored))
    rows = np.frombuffer(stored if is_sound else b"", "<u8").reshape(-1, 2).T
    return np.vstack([rows, np.full(rows.shape[1], header.merge, np.uint64)])
