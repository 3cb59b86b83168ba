"""Choose the names of the items' files: the id without the recording's extension, where no other item has that name.

    talk.mp4, day.wav → talk, day            talk.mp4, talk.wav → talk.mp4, talk.wav

The names depend only on the set of the ids. So every merge, and `--verify`, finds the same names in the parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from voxbatch.manifest.duplicates import repeated_hashes
from voxbatch.manifest.folder import RECORDING_SUFFIXES
from voxbatch.output.layout import item_file
from voxbatch.storage.columns import Column

_SUFFIX = re.compile(
    rf"(?<=[^/])(?:{'|'.join(map(re.escape, sorted(RECORDING_SUFFIXES)))})(?=(?:#[^/]*)?$)", re.IGNORECASE
)
"""The extension of a recording in an id, also before "#offset-duration#chN"."""


class ItemNames:
    """The names of the files of a run's items. It takes 16 bytes of a temporary file for each item."""

    def __init__(self, ids: Iterable[str]):
        hashes = Column("<i8")
        for item_id in ids:
            short = short_name(item_id)
            hashes.append(_digest(item_id))
            if short != item_id:
                hashes.append(_digest(short))
        self._repeated = repeated_hashes(hashes)

    def name(self, item_id: str) -> str:
        """Return the name of an item. Different items have different names: a short name is taken only if it is neither
        the id nor the short name of another item."""
        short = short_name(item_id)
        return item_id if self.is_repeated(short) else short

    def is_repeated(self, name: str) -> bool:
        """Return whether a name is the id or the short name of two items or more."""
        at = int(np.searchsorted(self._repeated, value := _hash(name)))
        return at < len(self._repeated) and bool(self._repeated[at] == value)


def short_name(item_id: str) -> str:
    """Return the id without the extension of a recording: "a/b.wav" → "a/b", "a.mp3#10-5" → "a#10-5"."""
    return _SUFFIX.sub("", item_id, count=1)


def possible_files(item_id: str, formats: Iterable[str]) -> list[str]:
    """Return the files that an item may have in these formats, whichever other items there are."""
    return [item_file(name, form) for name in dict.fromkeys((short_name(item_id), item_id)) for form in formats]


def _hash(name: str) -> int:
    return int.from_bytes(_digest(name), "little", signed=True)


def _digest(name: str) -> bytes:
    """Return 64 bits that are the same in every process. Two names with one hash only keep their extensions."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
