"""Check the recordings of a manifest without a run: local files by a look at the file system, or all by their headers.

`survey` has checked the lines before. Nothing is decoded, except the first half second of a recording whose header does
not prove that there is audio: that of a video may lack an audio track. A decoder process does that, as in a run, and
`HeaderReader` parses the headers: this process has credentials, and looks at the bytes of no stranger.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from voxbatch.audio.waveforms import is_mpeg_audio
from voxbatch.decoding import DecoderPool, DecodeTask, Undecodable, warm_pool
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.errors import AudioError, StorageError
from voxbatch.failure_kinds import NO_AUDIO_TRACK, FailureKind
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.records import SAMPLING_RATE, Item
from voxbatch.runner.workload import MAX_UNREACHABLE, PROBE_BLOCK_BYTES, PROBE_THREADS
from voxbatch.storage import Stores, is_remote, parallel_map, redacted
from voxbatch.storage.circuit_breaker import CircuitBreaker, Reachable, Report, report_error, report_success
from voxbatch.storage.recording import stored_path

TRIED_S = 0.5
"""Seconds that are decoded of a recording whose header is not certain."""
_CHUNK_S = 30
"""Length of a chunk in which a decoder sends that: more than it takes."""
EXAMPLES = 3
"""Number of examples of each kind of problem."""
MAX_KINDS = 1000
"""Number of kinds that are told apart. The rest are counted together."""


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """The result for one item."""

    line: int
    audio: str
    """Path or address, safe to show."""
    problem: str | None = None
    """Reason why the item would fail, without the path; None if none was found."""
    note: str | None = None
    """Reason why its transcript will be empty."""
    seconds: float | None = None
    """Duration by the header, if it was read and tells one."""
    was_checked: bool = True
    """False for a recording at an address whose header was not read."""


@dataclass(slots=True)
class ProblemKind:
    """Problems with the same reason, apart from their numbers and quoted values."""

    reason: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


class Kinds:
    """Counts problems by their kinds, and keeps the first examples of each."""

    def __init__(self) -> None:
        self._kinds: dict[str, ProblemKind] = {}

    def add(self, reason: str, example: str) -> None:
        """Count one problem."""
        key = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*` |\d[\d.,]*", "#", reason)
        if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            key, reason = "", "other problems"
        kind = self._kinds.setdefault(key, ProblemKind(reason))
        kind.count += 1
        if len(kind.examples) < EXAMPLES:
            kind.examples.append(example)

    def by_count(self) -> list[ProblemKind]:
        """Return the kinds, the most frequent first."""
        return sorted(self._kinds.values(), key=lambda kind: -kind.count)


def check_recordings(
    source: Source,
    policy: PathPolicy,
    limit: int | None,
    stores: Stores,
    read_headers: bool = False,
) -> Iterator[CheckedItem]:
    """Yield the result for each item of a surveyed manifest, in order.

    Args:
        limit: number of items to check; None checks all.
        read_headers: open each recording, also remote ones, PROBE_THREADS at a time. Otherwise only the file system is
            asked, about local recordings.

    Raises:
        ManifestError: a line is bad.
        StorageError: a place is unreachable or refuses access.
    """
    wanted = (replace(item, row=b"", text=None, given=None) for item in items(source, policy, limit))
    if not read_headers:
        yield from map(_look_at, wanted)
        return
    breaker = CircuitBreaker[None](threshold=MAX_UNREACHABLE, advice="")
    with HeaderReader() as headers, contextlib.closing(_Trials(stores)) as trials:
        checked = parallel_map(PROBE_THREADS, lambda item: _read_header(item, stores, headers, trials), wanted)
        for result, report in checked:
            if isinstance(report, Reachable):
                breaker.reachable(report)
            elif report is not None:
                breaker.unreachable(report, None)
            yield result
    breaker.finish()


class _Trials:
    """Decodes the first TRIED_S of recordings, each in a decoder process, as many at a time as there are cores."""

    def __init__(self, stores: Stores):
        self._stores = stores
        self._free = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
        warm_pool.open()

    def failure(self, item: Item) -> Undecodable | None:
        """Return the failure of a recording; None if it can be decoded.

        Raises:
            RunError: decoders do not start on this machine.
            StorageError: the place of the recording has gone down.
        """
        task = DecodeTask(item.index, item.audio, 0.0, TRIED_S, None, None, limit=_CHUNK_S * SAMPLING_RATE)
        with self._free, DecoderPool(1, self._stores) as pool:
            return next((end for end in pool.run(iter([task])) if isinstance(end, Undecodable)), None)

    def close(self) -> None:
        """End the decoders."""
        warm_pool.close()


def _look_at(item: Item) -> CheckedItem:
    """Check a local recording by the file system alone."""
    if is_remote(item.audio):
        return CheckedItem(item.line, redacted(item.audio), was_checked=False)
    problem = None
    try:
        path = stored_path(item.audio)
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            problem = "it is a folder" if stat.S_ISDIR(state.st_mode) else "it is no regular file"
        elif not state.st_size:
            problem = "the file is empty"
        elif not os.access(path, os.R_OK):
            problem = "Permission denied"
    except (OSError, ValueError) as e:
        problem = e.strerror or str(e) if isinstance(e, OSError) else str(e)
    return CheckedItem(item.line, item.audio, problem)


def _read_header(
    item: Item, stores: Stores, headers: HeaderReader, trials: _Trials
) -> tuple[CheckedItem, Report | None]:
    """Check a recording by its header; also return the report about its place."""
    shown = redacted(item.audio)
    try:
        with contextlib.closing(stores.recording(item.audio, PROBE_BLOCK_BYTES)) as recording:
            seconds, is_certain = headers.best_seconds(recording)
            if seconds is not None and seconds <= item.offset and item.offset:
                problem = f"`offset` is {item.offset:g}, and the recording ends at {seconds:.2f} s"
                return CheckedItem(item.line, shown, problem, seconds=seconds), None
            is_proven = is_certain or (seconds is not None and is_mpeg_audio(recording))
            report = report_success(item.audio, recording.last_arrival)
        if not is_proven and (failed := trials.failure(item)):
            if failed.failure.kind is FailureKind.NO_AUDIO_TRACK:
                return CheckedItem(item.line, shown, note=f"{NO_AUDIO_TRACK}: no text will come of it"), failed.report
            return CheckedItem(item.line, shown, _reason(failed.failure.message, shown)), failed.report
        return CheckedItem(item.line, shown, seconds=seconds), report
    except (AudioError, StorageError) as e:
        return CheckedItem(item.line, shown, _reason(str(e), shown)), report_error(item.index, item.audio, e)


def _reason(message: str, shown: str) -> str:
    """Return a message about a recording without its path."""
    return message.rpartition(f"{shown}: ")[2]
