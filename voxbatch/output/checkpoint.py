"""The checkpoint: the finished items of a shard, in parts that are committed once and never changed.

The parts are the checkpoint of a run. There is no other.

    parts/shard-00003-of-00016/part-00007.jsonl    a header line, then one line per item, in manifest order
    parts/shard-00003-of-00016/complete.json       written when every item of the shard is in a part

A part is created if absent, under the next free number. A writer that loses the race for a number reads the winner's
part, counts those items as done, and tries the next number. So a writer has read every part before its own, and no item
can be in two parts of a shard, however many processes work on the shard. The module stores lines and does not know the
structure of a transcript.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from voxbatch.errors import CheckpointError
from voxbatch.latency import Latency
from voxbatch.output.layout import COMPLETE, PARTS, VERSION, shard_folder
from voxbatch.storage import Store, parallel_map

_LINE = re.compile(rb'{"index":(\d{1,18}),"kind":"(transcript|failure)","line":({.*})}\n', re.DOTALL)
_SHARD = re.compile(r"\d{1,5}/\d{1,5}")


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One committed item. The merged outputs hold `line` byte for byte."""

    index: int
    """The item's index (Item.index)."""
    kind: str
    """ "transcript" or "failure": the merged output that the entry belongs to."""
    line: bytes
    """The output line: a JSON object, without a line end."""

    def to_bytes(self) -> bytes:
        """Return the entry's line in a part, with its line end."""
        return b'{"index":%d,"kind":"%s","line":%s}\n' % (self.index, self.kind.encode(), self.line)


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The first line of a part."""

    run: str
    """Digest of the identity (manifest and config) of the run that the part belongs to."""
    shard: str
    """Shard number and number of shards, for example "3/16"."""
    items: int
    """Number of entries in the part."""
    first: int
    last: int
    """Lowest (`first`) and highest (`last`) Item.index in the part."""
    wall_s: float
    """Seconds since the previous commit of this process, or since its start."""
    worker: int = 0
    """Number of the process, if several processes work on the shard side by side."""
    latency: Latency | None = None
    """Latencies of the items that the process finished since its previous commit.

    A chunk's latency runs from the moment when the engine takes the chunk from the feed to its result. An item's
    latency runs from the moment when the engine takes its first chunk to its outcome. None in parts of versions that
    did not measure it.
    """
    peak_gpu_bytes: int | None = None
    """Highest memory in use on the fullest GPU of the process, from its start to this commit. None without a GPU, and
    in parts of versions that did not measure it."""

    def check(self) -> None:
        """Check the fields of a header that was read.

        Raises:
            ValueError, TypeError: a field has a value that no run writes.
        """
        numbers: list[object] = [self.items, self.first, self.last, self.worker, self.peak_gpu_bytes or 0]
        if not all(isinstance(number, int) for number in numbers) or not isinstance(self.wall_s, int | float):
            raise TypeError("a field of the header is not a number")
        if not _SHARD.fullmatch(self.shard):
            raise ValueError(f"the shard of the header is {self.shard!r}")

    def to_bytes(self) -> bytes:
        """Return the header's line in a part, with its line end."""
        latency = self.latency.to_dict() if self.latency else None
        return encode_line({"version": VERSION, **asdict(self), "latency": latency}) + b"\n"


def encode_line(value: Any) -> bytes:
    """Return a value as one line of JSON, without a line end. Lone surrogates (from file names that are not UTF-8) are
    escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(", ", ": ")).encode()


def part_names(store: Store) -> list[str]:
    """Return the names of all parts of all shards, sorted."""
    return [name for name in store.names(PARTS) if name.endswith(".jsonl")]


def read_header(store: Store, name: str) -> PartHeader:
    """Return the header of a part.

    Raises:
        CheckpointError: the file is not a part, or another version of voxbatch wrote it.
    """
    with contextlib.closing(store.lines(name)) as lines:
        return _parse_header(store, name, next(lines, b""))


def read_headers(store: Store, names: Iterable[str]) -> Iterator[PartHeader]:
    """Yield the headers of the parts in the order of the names. Only a few are in memory at a time."""
    return parallel_map(store.concurrency, functools.partial(read_header, store), names)


def read_part(store: Store, name: str) -> Iterator[PartEntry]:
    """Yield the entries of one part in manifest order. One entry is in memory at a time.

    Raises:
        CheckpointError: the file is not a part, or it is cut off or altered.
    """
    with contextlib.closing(store.lines(name)) as lines:
        yield from _parse_entries(store, name, _parse_header(store, name, next(lines, b"")), lines)


def _parse_header(store: Store, name: str, line: bytes) -> PartHeader:
    try:
        fields = json.loads(line)
        if fields.pop("version") == VERSION:
            latency = fields.pop("latency", None)
            header = PartHeader(**fields, latency=None if latency is None else Latency.from_dict(latency))
            header.check()
            return header
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _damaged(store, name, f"its first line is not a header: {line[:60]!r}") from e
    raise _damaged(store, name, f"another version of voxbatch wrote it: {line[:60]!r}")


def _parse_entries(store: Store, name: str, header: PartHeader, lines: Iterator[bytes]) -> Iterator[PartEntry]:
    count = 0
    for count, line in enumerate(lines, 1):
        if not (match := _LINE.fullmatch(line)):
            raise _damaged(store, name, f"line {count + 1} is not an entry: {line[:60]!r}")
        yield PartEntry(int(match[1]), match[2].decode(), match[3])
    if count != header.items:
        raise _damaged(store, name, f"{count} entries, but its header says {header.items}")


def _damaged(store: Store, name: str, what: str) -> CheckpointError:
    """Return the error for a damaged part, with the remedy."""
    return CheckpointError(
        f"{store.place}/{name}: {what}; delete this part and run again: its items are transcribed again"
    )


class Checkpoint:
    """The committed items of one shard, as one process sees them.

    Args:
        run_id: digest of the run's identity; see RunFile.
        items: number of items in the manifest.
        shard: number of the shard, from 0.
        shards: number of shards.
        worker: see PartHeader.
    """

    def __init__(self, store: Store, run_id: str, items: int, shard: int = 0, shards: int = 1, worker: int = 0):
        self._store, self._run_id, self._shard, self._shards, self._worker = store, run_id, shard, shards, worker
        self.folder = shard_folder(shard, shards)
        self._next = 0
        """Number of the next part."""
        self.done = bytearray(items)
        """1 at Item.index of each item that is in a part of this shard, or that a run with another number of shards
        committed. One byte per item, so a million items take one megabyte."""
        self.failed = bytearray(items)
        """1 if `done` is 1 and the item ended as a failure."""

    def load(self) -> None:
        """Read the committed items, at the start or once more later.

        Only the folder of this shard and the folders of other shard counts are read.

        Raises:
            CheckpointError: a part is damaged or belongs to another run.
        """
        this_shard, same_sharding = f"{self.folder}/", f"-of-{self._shards:05d}/"
        names = [name for name in part_names(self._store) if name.startswith(this_shard) or same_sharding not in name]
        self._next = sum(name.startswith(this_shard) for name in names)
        parts = parallel_map(self._store.concurrency, self._read_kinds, names)
        for name, kinds in zip(names, parts, strict=True):
            self._mark_done(kinds, name)

    def _read_kinds(self, name: str) -> dict[int, str]:
        """Return the kind of each entry of a part, by Item.index."""
        with contextlib.closing(self._store.lines(name)) as lines:
            header = _parse_header(self._store, name, next(lines, b""))
            if header.run != self._run_id:
                raise CheckpointError(
                    f"{self._store.place}/{name}: belongs to run {header.run}, this is run {self._run_id}; "
                    "move the part away, choose another OUT with -o, or erase the old outputs with --overwrite"
                )
            return {entry.index: entry.kind for entry in _parse_entries(self._store, name, header, lines)}

    def _mark_done(self, kinds: Mapping[int, str], name: str) -> None:
        """Mark the items of a part as done, and as failed if they are. `name` is the part, for the error message."""
        for index, kind in kinds.items():
            if not 0 <= index < len(self.done):
                raise _damaged(self._store, name, f"item {index} of a manifest of {len(self.done)} items")
            self.done[index], self.failed[index] = 1, kind == "failure"

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latency: Latency | None = None,
        peak_gpu_bytes: int | None = None,
    ) -> list[PartEntry]:
        """Commit entries as the next part. Entries that another process committed first are left out.

        Args:
            wall_s, latency, peak_gpu_bytes: see PartHeader.

        Returns:
            The entries that this call committed: all of them, unless another process works on the same shard.
        """
        pending = sorted((e for e in entries if not self.done[e.index]), key=lambda e: e.index)
        while pending:
            name = f"{self.folder}/part-{self._next:05d}.jsonl"
            self._next += 1
            header = PartHeader(
                run=self._run_id,
                shard=f"{self._shard}/{self._shards}",
                items=len(pending),
                first=pending[0].index,
                last=pending[-1].index,
                wall_s=round(wall_s, 3),
                worker=self._worker,
                latency=latency,
                peak_gpu_bytes=peak_gpu_bytes,
            )
            if self._store.create(name, chain([header.to_bytes()], (entry.to_bytes() for entry in pending))):
                self._mark_done({e.index: e.kind for e in pending}, name)
                return pending
            committed = self._read_kinds(name)  # another process took this number
            self._mark_done(committed, name)
            pending = [e for e in pending if e.index not in committed]
        return []

    def mark_complete(self, items: int) -> None:
        """Record that the shard is complete: each of its items is in a part."""
        content = {"version": VERSION, "run": self._run_id, "items": items}
        self._store.create(f"{self.folder}/{COMPLETE}", [encode_line(content) + b"\n"])

    def are_all_complete(self) -> bool:
        """Return whether every shard of this run's sharding is recorded as complete."""
        ending = f"-of-{self._shards:05d}/{COMPLETE}"
        return sum(name.endswith(ending) for name in self._store.names(PARTS)) == self._shards
