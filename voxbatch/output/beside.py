"""Write items' files beside their recordings, and never over a file of somebody else.

A file there is voxbatch's if it is equal to the item's file in OUT, which is written after it. Any other file stays.
Nothing else is recorded, so a merge that was killed continues by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock
from typing import Any

from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.item_names import ItemNames
from voxbatch.storage import StoreOptions, is_remote, open_store, redacted


def place_beside(line: dict[str, Any], names: ItemNames) -> str | None:
    """Return the path or the address of an item's file beside its recording, without the extension.

    talk.mp4 → talk. None means that the item is a part of its recording (`offset`, `channel`), or that another item has
    the same recording, so that the file could not be named after the recording.

    Args:
        line: the output line.
        names: the names of all recordings, by their paths.
    """
    path = line[AUDIO_KEY]
    if line.get("offset") or line.get("channel") is not None or names.is_repeated(path):
        return None
    return names.name(path)


@dataclass(slots=True)
class _Outcome:
    count: int = 0
    first: str = ""

    def add(self, example: str) -> None:
        self.count += 1
        self.first = self.first or example


class Beside:
    """The files beside the recordings of one merge. Several threads may write files."""

    def __init__(self, store_options: StoreOptions):
        self._store_options = store_options
        self._lock = Lock()
        self._written, self._foreign, self._refused, self._parts = _Outcome(), _Outcome(), _Outcome(), _Outcome()

    def leave_out(self, item_id: str) -> None:
        """Count an item that `place_beside` has no place for."""
        with self._lock:
            self._parts.add(item_id)

    def write(self, place: str, content: bytes, previous: bytes | None) -> None:
        """Write a file beside a recording, unless somebody else's file is there.

        Args:
            place: path or address of the file.
            content: what to write.
            previous: content of the item's file in OUT before this merge. A file that is equal to it is ours.
        """
        folder, name = place.rsplit("/", 1)
        outcome, example = self._written, place
        try:
            if not is_remote(place) and not os.path.isdir(folder):
                raise StorageError(f"{folder} is missing")
            store = open_store(folder, self._store_options)
            if not store.create(name, [content], durable=False) and (found := store.read(name)) != content:
                if found == previous:
                    store.write(name, [content])
                else:
                    outcome = self._foreign
        except (StorageError, ConfigError) as e:
            outcome, example = self._refused, str(e)
        with self._lock:
            outcome.add(example)

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
