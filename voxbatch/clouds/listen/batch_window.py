"""Recordings that arrive one by one → manifests, each written once: of one recording, or of all recordings that arrived
below a prefix within the same window of time, by the store's clock.

When a window is over, the store is asked which recordings it holds; messages do not decide this. So every worker gets
the same answer: after a crash, when asked twice, or together with other workers. The first worker that writes the
manifest settles it.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from voxbatch.clouds.listen.message import RunRequest, UploadedRecording
from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.errors import ManifestError, MessageError
from voxbatch.sources.prefix import upload_line, uploads_manifest
from voxbatch.storage import Store, Stores
from voxbatch.storage.errors import ObjectNotFound
from voxbatch.storage.objects import Stat

GRACE_S = 10.0
"""Seconds between a window's end and the question to the store. The store's clock and this machine's clock may differ
by this much.
"""


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """A window of time for the recordings below a prefix."""

    prefix: str
    """Address of a folder."""
    start: float
    """Start of the window, in seconds since 1970."""
    seconds: float

    @property
    def closes_at(self) -> float:
        """Time at which the window's recordings can be listed, in seconds since 1970: its end and GRACE_S."""
        return self.start + self.seconds + GRACE_S

    @property
    def name(self) -> str:
        """The name of the window, such as "batch-20261120T220000Z-600s" or "batch-20261120T220000.5Z-0.5s".

        Other windows have other names, also if only their length differs.
        """
        seconds, thousandths = divmod(round(self.start * 1000), 1000)
        fraction = f".{thousandths:03d}".rstrip("0").rstrip(".")
        return f"batch-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}{fraction}Z-{self.seconds:g}s"


def batch_window_of(upload: UploadedRecording, created: float, seconds: float) -> BatchWindow:
    """Return the window of an upload.

    Args:
        created: arrival of the recording by the store's clock, in seconds since 1970.
    """
    return BatchWindow(upload.prefix, math.floor(created / seconds) * seconds, seconds)


class UploadRuns:
    """The runs of uploaded recordings, and their manifests in OUT."""

    def __init__(self, rules: PlaceRules, stores: Stores, include: Sequence[str]):
        assert rules.out is not None
        self._rules, self._stores, self._include = rules, stores, include
        self._store: Store = stores.out(rules.out)

    def current(self, upload: UploadedRecording) -> Stat | None:
        """Return the present state of a recording; None if another revision, which has its own message, replaced it.

        Raises:
            MessageError: the recording was deleted.
            StorageError: the store cannot be read.
        """
        try:
            stat = self._stores.stat(upload.uri)
        except ObjectNotFound as e:
            raise MessageError(f"{upload.uri} was deleted before it was run; upload it again") from e
        return None if upload.generation not in ("", stat.tag) else stat

    def single(self, upload: UploadedRecording, generation: str) -> RunRequest:
        """Return the run of one recording; write its manifest if there is none.

        Raises:
            MessageError: another revision of the recording was transcribed to the same OUT.
            ManifestError: the recording's reference is invalid.
            StorageError: the store cannot be read or written.
        """
        name = upload.out.removeprefix(str(self._rules.out)) + ".jsonl"
        line = upload_line(upload.uri, generation, self._stores)
        if not self._store.create(name, [line.encode() + b"\n"]):
            earlier = json.loads(self._store.read(name) or b"{}").get("generation")
            if earlier != generation:
                raise MessageError(
                    f"{upload.uri} has generation {generation}, but generation {earlier} was transcribed to "
                    f"{upload.out}: upload it under another name, or delete {upload.out} and {self._rules.out}{name} "
                    "and upload it again"
                )
        return self._run(name, upload.out, upload.prefix)

    def batch(self, window: BatchWindow) -> tuple[RunRequest, set[tuple[str, str]]] | None:
        """Return the run of a window that is over, and its recordings as (address, generation); None if no recording is
        left.

        The manifest is written if there is none.

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
        rows = map(json.loads, self._store.lines(name))
        return self._run(name, out, window.prefix), {(row["audio_filepath"], row["generation"]) for row in rows}

    def _lines(self, window: BatchWindow) -> Iterator[str]:
        """Yield the manifest lines of a window."""
        end = window.start + window.seconds
        with contextlib.suppress(ManifestError):  # recordings with a bad reference are left out: each is refused alone
            for line in uploads_manifest(window.prefix, window.start, end, self._stores, self._include):
                if self._rules.place_of_recording(json.loads(line)["audio_filepath"]) == window.prefix:
                    yield line  # otherwise it belongs to a place inside this one, which has its own windows

    def _run(self, name: str, out: str, below: str) -> RunRequest:
        return RunRequest(f"{self._rules.out}{name}", out, (below,))
