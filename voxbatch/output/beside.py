"""The files of single items that are written beside their recordings.

A file beside a recording never replaces a file of somebody else. It is voxbatch's if it is equal to the item's file in
OUT, which is written after it. Any other file stays. Nothing else is recorded, so a merge that was killed continues by
itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.storage import Store, Stores, is_remote, redacted


@dataclass(slots=True)
class _Outcome:
    count: int = 0
    first: str = ""

    def add(self, example: str) -> None:
        self.count += 1
        self.first = self.first or example


class Beside:
    """The files beside the recordings of one merge. Several threads may write files."""

    def __init__(self, stores: Stores):
        self._stores = stores
        self._lock = Lock()
        self._local = dict[int, Store]()
        """A store in each local file system that a file was written to, by the number of its device."""
        self._written, self._foreign, self._refused, self._parts = _Outcome(), _Outcome(), _Outcome(), _Outcome()

    def leave_out(self, item_id: str) -> None:
        """Count an item that `place_beside` has no place for."""
        with self._lock:
            self._parts.add(item_id)

    def write(self, place: str, content: bytes, previous: bytes | None) -> None:
        """Write a file beside a recording, unless somebody else's file is there.

        Args:
            previous: content of the item's file in OUT before this merge. A file that is equal to it is ours. An empty
                file is taken for ours, because a loss of power during a merge leaves such files.
        """
        folder, name = place.rsplit("/", 1)
        outcome, example = self._written, place
        try:
            if not is_remote(place) and not os.path.isdir(folder):
                raise StorageError(f"{folder} is missing")
            store = self._stores.out(folder)
            if not is_remote(place):
                self._local[os.stat(folder).st_dev] = store
            if not store.create(name, [content], durable=False) and (present := store.read(name)) != content:
                if present in (previous, b""):
                    store.write(name, [content], durable=False)
                else:
                    outcome = self._foreign
        except (StorageError, ConfigError) as e:
            outcome, example = self._refused, str(e)
        with self._lock:
            outcome.add(example)

    def delete(self, place: str, previous: bytes, check: Callable[[], None]) -> None:
        """Delete a file beside a recording that is not that of its item any more, unless somebody else's file is there.

        Args:
            previous: content of the item's file in OUT, which is about to be deleted. A file that is equal to it is
                ours.
            check: see Store.delete.
        """
        folder, name = place.rsplit("/", 1)
        try:
            if not is_remote(place) and not os.path.isdir(folder):
                return
            store = self._stores.out(folder)
            if (present := store.read(name)) == previous:
                store.delete(name, check)
            elif present is not None:
                with self._lock:
                    self._foreign.add(place)
        except (StorageError, ConfigError) as e:
            with self._lock:
                self._refused.add(str(e))

    def sync(self) -> None:
        """Make the files durable."""
        for store in self._local.values():
            try:
                store.sync()
            except StorageError as e:
                self._refused.add(str(e))

    def report(self, log: Log, out: str) -> None:
        """Log what was written, and each reason why a file was not."""
        if count := self._written.count:
            log.info(
                "beside", text=f"files beside the recordings: {count:,}, the first is {redacted(self._written.first)}"
            )
        if count := self._foreign.count:
            text = f"files beside recordings that hold something else and stay as they are: {count:,}, the first is "
            text += f"{redacted(self._foreign.first)}; remove them and run `voxbatch merge {out}` to replace them"
            log.warning("beside", text=text)
        if count := self._refused.count:
            text = f"files that cannot be written beside their recordings: {count:,}; they are in {out}"
            log.warning("beside", text=f"{text}. The first reason: {self._refused.first}")
        if count := self._parts.count:
            text = f"items that are a part of a recording or share it with another item: {count:,}, the first is "
            log.warning(
                "beside", text=f"{text}{self._parts.first}; their files are in {out}, not beside the recordings"
            )
