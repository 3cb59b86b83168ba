"""The files of single items that are written beside their recordings.

A file beside a recording never replaces a file of somebody else, nor one that somebody has changed: see the module
`own_files`, which knows it by the name of the item's file in OUT.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.output.own_files import OwnFiles
from voxbatch.storage import Store, Stores, is_remote, redacted

BESIDE = "beside"
"""Mark of a place at which voxbatch has written a file. A file elsewhere is nobody's correction."""

MARKED_TOGETHER = 256
"""Number of places that are recorded together."""


@dataclass(slots=True)
class _Outcome:
    count: int = 0
    first: str = ""

    def add(self, example: str) -> None:
        self.count += 1
        self.first = self.first or example


class Beside:
    """The files beside the recordings of one merge. Several threads may write files."""

    def __init__(self, stores: Stores, own: OwnFiles, out: str):
        self._stores, self._own, self._out = stores, own, out
        self._lock = Lock()
        self._local = dict[int, Store]()
        """A store in each local file system that a file was written to, by the number of its device."""
        self._own_places = list[str]()
        """The latest places that have a file of voxbatch, which are not recorded yet."""
        self._written, self._foreign, self._refused, self._parts = _Outcome(), _Outcome(), _Outcome(), _Outcome()
        self._silent = _Outcome()

    def write(self, place: str | None, name: str, content: bytes) -> None:
        """Write a file beside a recording, unless somebody else's file is there.

        Args:
            place: its path or address. None for an item that `place_beside` has no place for, which is counted.
            name: name of the item's file in OUT.
        """
        if place is None:
            with self._lock:
                self._parts.add(name)
            return
        folder, basename = place.rsplit("/", 1)
        outcome, example = self._written, place
        try:
            if not is_remote(place) and not os.path.isdir(folder):
                raise StorageError(f"{folder} is missing")
            store = self._stores.out(folder)
            if not is_remote(place):
                self._local[os.stat(folder).st_dev] = store
            if not store.create(basename, [content], durable=False) and (present := store.read(basename)) != content:
                if present is None or self._own.may_replace(name, present, content):
                    store.write(basename, [content], durable=False)
                elif self._own.has_mark(place, BESIDE):
                    self._own.leave(place, name, present)
                    return
                else:
                    outcome = self._foreign
        except (StorageError, ConfigError) as e:
            outcome, example = self._refused, str(e)
        with self._lock:
            outcome.add(example)
            if outcome is self._written:
                self._own_places.append(place)
            places = self._own_places
            if len(places) < MARKED_TOGETHER:
                return
            self._own_places = []
        self._mark(places)

    def _mark(self, places: Iterable[str]) -> None:
        self._own.mark((place, BESIDE) for place in places)

    def finish(self) -> None:
        """Record the places, and make the files durable."""
        self._mark(self._own_places)
        for store in self._local.values():
            try:
                store.sync()
            except StorageError as e:
                self._refused.add(str(e))

    def leave_out(self, place: str, name: str, check: Callable[[], None]) -> None:
        """Write no file beside a recording without speech, and delete that of an earlier merge.

        Args:
            name, check: see `delete`.
        """
        with self._lock:
            self._silent.add(place)
        if self._own.has_mark(place, BESIDE):
            self.delete(place, name, check)

    def delete(self, place: str, name: str, check: Callable[[], None]) -> None:
        """Delete a file beside a recording that is not that of its item any more, unless somebody else's file is there.

        Args:
            name: name of the item's file in OUT, which is about to be deleted.
            check: see Store.delete.
        """
        folder, basename = place.rsplit("/", 1)
        try:
            if not is_remote(place) and not os.path.isdir(folder):
                return
            store = self._stores.out(folder)
            if (present := store.read(basename)) is None:
                return
            if self._own.may_replace(name, present, b""):
                store.delete(basename, check)
            elif self._own.has_mark(place, BESIDE):
                self._own.leave(place, name, present)
            else:
                with self._lock:
                    self._foreign.add(place)
        except (StorageError, ConfigError) as e:
            with self._lock:
                self._refused.add(str(e))

    def report(self, log: Log, _: str) -> None:
        """Log what was written, and each reason why a file was not. OwnFiles tells of files that somebody changed."""
        if count := self._written.count:
            log.info(
                "beside", text=f"files beside the recordings: {count:,}, the first is {redacted(self._written.first)}"
            )
        if count := self._silent.count:
            text = f"files not written beside recordings without speech: {count:,}, the first is "
            log.info("beside", text=f"{text}{redacted(self._silent.first)}; the empty ones are in {self._out}")
        if count := self._foreign.count:
            text = f"files beside recordings that hold something else and stay as they are: {count:,}, the first is "
            text += (
                f"{redacted(self._foreign.first)}; move them away and run `voxbatch merge {self._out}` to write others"
            )
            log.warning("beside", text=text)
        if count := self._refused.count:
            text = f"files that cannot be written beside their recordings: {count:,}; they are in {self._out}"
            log.warning("beside", text=f"{text}. The first reason: {self._refused.first}")
        if count := self._parts.count:
            text = f"items that are a part of a recording or share it with another item: {count:,}, the first is "
            log.warning(
                "beside", text=f"{text}{self._parts.first}; their files are in {self._out}, not beside the recordings"
            )
