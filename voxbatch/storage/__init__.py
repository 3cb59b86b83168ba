"""Where audio comes from and where outputs go: the only room that touches files and buckets.

Two seams. A `Store` is the place of one run's outputs (OUT), named by relative names; its `create` is create-if-absent,
which every promise of the ledger rests on. `open_audio` gives a decoder an open descriptor of a seekable regular file.
A model in a bucket is `prefix.fetch_prefix`'s to bring.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from voxbatch.storage.local import LocalStore, open_local_audio


class Store(Protocol):
    """Names are relative POSIX paths below the store's place. Every method raises StorageError when the place fails."""

    place: str
    """For people: the folder or the bucket prefix."""

    def prepare(self) -> None:
        """Make the place, and prove that it can be written."""

    def read(self, name: str) -> bytes | None:
        """The whole object, None where there is none."""

    def lines(self, name: str) -> Generator[bytes]:
        """The object's lines, streamed; close it when done early."""

    def names(self, prefix: str) -> list[str]:
        """The names below a folder, sorted; [] where it does not exist."""

    def create(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write the object unless it exists: all of it appears at once or nothing does. False when it existed."""

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write or replace the object, all at once."""

    def delete(self, name: str) -> None:
        """Remove the object; nothing happens where there is none."""


def open_store(place: str) -> Store:
    return LocalStore(place)


def open_audio(uri: str) -> AbstractContextManager[int]:
    """An open descriptor of a recording, at position 0, closed on leaving the context.

    Raises:
        AudioError: it is missing, unreadable, or no regular file.
    """
    return open_local_audio(uri)
