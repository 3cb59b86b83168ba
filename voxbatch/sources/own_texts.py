"""Tell the transcripts that voxbatch wrote from references: `voxbatch run talk.mp3 > talk.txt` leaves a text beside the
recording that says nothing about the accuracy of the next run.

Such a text has the bytes of the file txt/talk.txt in an OUT near the recording, and is younger than the run there. A
reference that the run got right is older.
"""

from __future__ import annotations

import contextlib
import filecmp
import os


class OwnTexts:
    """The texts of voxbatch beside recordings. It holds the OUTs in the folder that it has looked at last."""

    def __init__(self) -> None:
        self._folder = ""
        self._outs: list[str] = []
        """The OUTs in the folder and in the one above."""
        self.first = ""
        """Path of the first such text."""

    def has(self, recording: str, text: str) -> bool:
        """Return whether voxbatch wrote the text of a recording; both are absolute paths."""
        folder, name = os.path.split(recording)
        if folder != self._folder:
            self._folder, self._outs = folder, [*_outs_in(folder), *_outs_in(os.path.dirname(folder))]
        names = {os.path.splitext(name)[0], name}
        if is_own := any(_is_copy(text, out, f"{stem}.txt") for out in self._outs for stem in names):
            self.first = self.first or text
        return is_own

    def note(self) -> str:
        """Return the sentence about the texts that are no references, or ""."""
        return f"{self.first} is the transcript of an earlier run, and no reference" if self.first else ""


def _outs_in(folder: str) -> list[str]:
    """Return the paths of the folders in a folder that look like an OUT with texts."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if {"lists", "txt"} <= _names(entry)]
    return []


def _names(entry: os.DirEntry[str]) -> set[str]:
    return set(os.listdir(entry.path)) if entry.is_dir() else set()


def _is_copy(text: str, out: str, name: str) -> bool:
    """Return whether a text has the bytes of one in an OUT, and was written after the run began."""
    with contextlib.suppress(OSError, ValueError):
        began = min(entry.stat().st_mtime for entry in os.scandir(os.path.join(out, "lists")))
        return os.stat(text).st_mtime > began and filecmp.cmp(text, os.path.join(out, "txt", name), shallow=False)
    return False
