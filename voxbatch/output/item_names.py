"""The names of the files of single items, in OUT and beside the recordings.

An item's file has the name of its id without the recording's extension, where no other item has that name:

    talk.mp4, day.wav → talk, day            talk.mp4, talk.wav → talk.mp4, talk.wav

Names are compared as the file system of OUT compares them: some take Talk and talk for one name, or two spellings of é
in Unicode. An item whose id is another's name there has a digest in its name:

    Talk.wav, talk.wav → Talk.wav-9c1f0f5e, talk.wav-4be1a6c0        (only where Talk and talk are one name)

The names depend only on the set of the ids and on the file system. So every merge, and `--verify`, finds the same names
in the parts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES
from voxbatch.output.layout import item_file
from voxbatch.output.lines import SPOKEN_LANGUAGE
from voxbatch.storage.columns import Column, repeated_hashes

_SUFFIX = re.compile(
    rf"(?<=[^/])(?:{'|'.join(map(re.escape, sorted(RECORDING_SUFFIXES)))})(?=(?:#[^/]*)?$)", re.IGNORECASE
)
"""The extension of a recording in an id, also before "#offset-duration#chN"."""


TRANSLATED = ".en"
"""End of the name of a translation beside a recording. Whisper translates into English alone."""


class ItemNames:
    """The names of the files of a run's items. It takes 24 bytes of temporary files for each item.

    Add all ids, and then ask for names.

    Args:
        folds_case: names that differ only in case are one name.
    """

    def __init__(self, ids: Iterable[str] = (), folds_case: bool = False):
        self._folds_case = folds_case
        self._ids, self._hashes = Column("<i8"), Column("<i8")
        for item_id in ids:
            self.add(item_id)

    def add(self, item_id: str) -> None:
        """Add the id of an item."""
        short = short_name(item_id)
        self._ids.append(self._digest(item_id))
        self._hashes.append(self._digest(item_id))
        if short != item_id:
            self._hashes.append(self._digest(short))

    @functools.cached_property
    def _repeated(self) -> NDArray[np.int64]:
        return repeated_hashes(self._hashes)

    @functools.cached_property
    def _repeated_ids(self) -> NDArray[np.int64]:
        return repeated_hashes(self._ids)

    def name(self, item_id: str) -> str:
        """Return the name of an item. Different items have different names: a short name is taken only if it is neither
        the id nor the short name of another item."""
        if not self.is_repeated(short := short_name(item_id)):
            return short
        return distinct_name(item_id) if self._is_among(item_id, self._repeated_ids) else item_id

    def is_repeated(self, name: str) -> bool:
        """Return whether a name is the id or the short name of two items or more."""
        return self._is_among(name, self._repeated)

    def place_beside(self, line: Mapping[str, Any]) -> str | None:
        """Return the path or the address of an item's file beside its recording, without the extension. These names
        are then those of all recordings, by their paths.

        talk.mp4 → talk, and talk.en for a translation, which players then list by its language beside talk.srt. None
        means that the item is a part of its recording (`offset`, `channel`), or that another item has the same
        recording, so that the file could not be named after the recording.
        """
        path = line[AUDIO_KEY]
        if line.get("offset") or line.get("channel") is not None or self.is_repeated(path):
            return None
        return f"{self.name(path)}{TRANSLATED}" if SPOKEN_LANGUAGE in line else self.name(path)

    def _is_among(self, name: str, hashes: NDArray[np.int64]) -> bool:
        value = int.from_bytes(self._digest(name), "little", signed=True)
        at = int(np.searchsorted(hashes, value))
        return at < len(hashes) and bool(hashes[at] == value)

    def _digest(self, name: str) -> bytes:
        """Return the digest of a name in the form in which names are compared."""
        name = normalize("NFD", name)
        if self._folds_case:
            name = name.upper().casefold()
        return _digest(normalize("NFC", name))


def short_name(item_id: str) -> str:
    """Return the id without the extension of a recording: "a/b.wav" → "a/b", "a.mp3#10-5" → "a#10-5"."""
    return _SUFFIX.sub("", item_id, count=1)


def distinct_name(item_id: str) -> str:
    """Return the name of an item whose id is also the name of another item: "a.wav" → "a.wav-" and eight digits."""
    return f"{item_id}-{_digest(item_id).hex()[:8]}"


def possible_files(item_id: str, formats: Iterable[str]) -> list[str]:
    """Return the files that an item may have in these formats, whichever other items there are."""
    names = dict.fromkeys((short_name(item_id), item_id, distinct_name(item_id)))
    return [item_file(name, form) for name in names for form in formats]


def _digest(name: str) -> bytes:
    """Return 64 bits that are the same in every process. Two names with one hash only keep their extensions."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
