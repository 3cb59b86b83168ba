"""Recordings that come one by one → manifests, each written once for all: of one recording, or of all that came below a
prefix within the same window of time by the store's clock.

Which recordings a window holds is asked of the store when the window is over, not gathered from messages. So whoever
asks, after a crash, twice, or several workers at a time, gets the same answer, and the first to write it settles it.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from voxbatch.errors import ManifestError, MessageError
from voxbatch.listen.message import Rules, Run, Upload
from voxbatch.manifest import upload_line, uploads_manifest
from voxbatch.storage import Access, Store, open_store, stat
from voxbatch.storage.objects import Absent, Stat

GRACE_S = 10.0
"""After a window's end, before the store is asked: its clock and ours may differ by so much."""


@dataclass(frozen=True, slots=True)
class Window:
    prefix: str
    """The address of a folder."""
    start: float
    """Seconds since 1970."""
    seconds: float

    @property
    def closes_at(self) -> float:
        return self.start + self.seconds + GRACE_S

    @property
    def name(self) -> str:
        """ "batch-20261120T220000Z-600s", "batch-20261120T220000.5Z-0.5s": other windows have other names, those of
        another length too."""
        seconds, thousandths = divmod(round(self.start * 1000), 1000)
        fraction = f".{thousandths:03d}".rstrip("0").rstrip(".")
        return f"batch-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}{fraction}Z-{self.seconds:g}s"


def window_of(upload: Upload, created: float, seconds: float) -> Window:
    """`created`: when the recording came, by the store's clock, in seconds since 1970."""
    return Window(upload.prefix, math.floor(created / seconds) * seconds, seconds)


class Uploads:
    """What is to be run of recordings that have come."""

    def __init__(self, rules: Rules, access: Access, include: Sequence[str]):
        assert rules.out is not None
        self._rules, self._access, self._include = rules, access, include
        self._store: Store = open_store(rules.out, access)

    def current(self, upload: Upload) -> Stat | None:
        """The recording as it is; None where another has taken its place, of which another message tells.

        Raises:
            MessageError: it is gone.
            StorageError: the store cannot be read.
        """
        try:
            found = stat(upload.uri, self._access)
        except Absent as e:
            raise MessageError(f"{upload.uri} was deleted before its turn; upload it again") from e
        return None if upload.generation not in ("", found.tag) else found

    def alone(self, upload: Upload, generation: str) -> Run:
        """
        Raises:
            MessageError: another revision of it was transcribed to where this one belongs.
            ManifestError: its reference cannot be taken in.
            StorageError: the store cannot be read or written.
        """
        name = upload.out.removeprefix(str(self._rules.out)) + ".jsonl"
        line = upload_line(upload.uri, generation, self._access)
        if not self._store.create(name, [line.encode() + b"\n"]):
            settled = json.loads(self._store.read(name) or b"{}")
            if settled.get("generation") != generation:
                raise MessageError(
                    f"{upload.uri} was transcribed before, in another revision ({settled.get('generation')}, this one "
                    f"is {generation}), to {upload.out}: upload it under another name, or delete {upload.out} "
                    f"and {self._rules.out}{name} and upload it again"
                )
        return self._run(name, upload.out, upload.prefix)

    def together(self, window: Window) -> tuple[Run, set[tuple[str, str]]] | None:
        """What came in a window that is over, and of which (address, generation) that is; None where nothing is left
        of it.

        Raises:
            StorageError: the store cannot be read or written.
        """
        assert self._rules.out is not None
        out = self._rules.out_of(window.prefix) + window.name
        name = out.removeprefix(self._rules.out) + ".jsonl"
        if not self._store.exists(name):
            lines = self._lines(window)
            if (first := next(lines, None)) is None:
                return None
            self._store.create(name, (line.encode() + b"\n" for line in chain([first], lines)))
        return self._run(name, out, window.prefix), set(self._members(name))

    def _lines(self, window: Window) -> Iterator[str]:
        end = window.start + window.seconds
        with contextlib.suppress(ManifestError):  # those with a bad reference are left out, to be refused alone
            for line in uploads_manifest(window.prefix, window.start, end, self._access, self._include):
                if self._rules.place_of_recording(json.loads(line)["audio_filepath"]) == window.prefix:
                    yield line  # or it is of a place within this one, which has its own windows

    def _members(self, name: str) -> Iterator[tuple[str, str]]:
        for line in self._store.lines(name):
            row = json.loads(line)
            yield row["audio_filepath"], row["generation"]

    def _run(self, name: str, out: str, below: str) -> Run:
        return Run(f"{self._rules.out}{name}", out, (below,))
