"""The checkpoint: the finished items of a shard, in parts that are committed once and never changed.

The parts are the checkpoint of a run. There is no other.

    parts/shard-00003-of-00016/part-00007.jsonl    a header line, then one line per item, in manifest order
    parts/shard-00003-of-00016/complete.json       written when every item of the shard is in a part

A part is created if absent, under the next free number. A writer that loses the race for a number reads the winner's
part, counts those items as done, and tries the next number. So a writer has read every part before its own, and no item
can be in two parts of a shard, however many processes work on the shard. The module stores lines and does not know the
structure of a transcript.

Every part carries the key of its run, the number of its entries and their checksum, and every reader checks them. So a
part that another run wrote, or that was damaged, is never taken for a part of this run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from voxbatch.errors import CheckpointError
from voxbatch.latency import Latency
from voxbatch.output.layout import COMPLETE, VERSION, complete_names, part_names, shard_folder
from voxbatch.output.run_file import Ownership, RunKey
from voxbatch.output.stored_json import count, field, json_bytes, number, optional
from voxbatch.storage import Store, parallel_map, remove_command
from voxbatch.storage.columns import ItemSet

__all__ = [
    "Checkpoint",
    "PartEntry",
    "PartHeader",
    "check_complete",
    "encode_line",
    "part_names",
    "read_header",
    "read_headers",
    "read_part",
    "readable_entries",
]

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
    """RunKey.run_id of the run that the part belongs to."""
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
    generation: str = ""
    """RunKey.generation of the run that the part belongs to."""
    sha256: str = ""
    """SHA-256 of the lines after the header, in hexadecimal digits. Empty in parts of versions that did not write
    it."""
    carried_from: str = ""
    """The shard of an earlier run that made the entries, and to which `wall_s`, `worker`, `latency` and
    `peak_gpu_bytes` belong. Empty if this run made them."""

    @property
    def measured_shard(self) -> str:
        """The shard that the measurements of the header belong to."""
        return self.carried_from or self.shard

    @property
    def key(self) -> RunKey:
        """The key of the run that the part belongs to."""
        return RunKey(self.run, self.generation)

    @property
    def folder(self) -> str:
        """The folder in which the run has put the part."""
        shard, _, shards = self.shard.partition("/")
        return shard_folder(int(shard), int(shards), self.generation)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PartHeader:
        """Rebuild the header from JSON. Unknown keys are ignored.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: a key is missing, or has a value that no run writes.
        """
        latency = optional(stored, "latency", dict)
        shard = field(stored, "shard", str)
        carried_from = optional(stored, "carried_from", str) or ""
        if not _SHARD.fullmatch(shard) or not _SHARD.fullmatch(carried_from or shard):
            raise ValueError(f"the shard of the header is {shard!r:.80}, {carried_from!r:.80}")
        return cls(
            run=field(stored, "run", str),
            shard=shard,
            items=count(stored, "items"),
            first=count(stored, "first"),
            last=count(stored, "last"),
            wall_s=number(stored, "wall_s"),
            worker=count(stored, "worker") if "worker" in stored else 0,
            latency=None if latency is None else Latency.from_dict(latency),
            peak_gpu_bytes=None if stored.get("peak_gpu_bytes") is None else count(stored, "peak_gpu_bytes"),
            generation=optional(stored, "generation", str) or "",
            sha256=optional(stored, "sha256", str) or "",
            carried_from=carried_from,
        )

    def to_bytes(self) -> bytes:
        """Return the header's line in a part, with its line end."""
        latency = self.latency.to_dict() if self.latency else None
        return encode_line({"version": VERSION, **asdict(self), "latency": latency}) + b"\n"


def encode_line(value: Any) -> bytes:
    """Return a value as one line of JSON, without a line end."""
    return json_bytes(value)


def read_header(store: Store, name: str, run: RunKey | None = None) -> PartHeader:
    """Return the header of a part.

    Args:
        run: the run that the part must belong to. None for any run.

    Raises:
        CheckpointError: the file is not a part, or another version of voxbatch wrote it, or another run.
    """
    with contextlib.closing(store.lines(name)) as lines:
        return _parse_header(store, name, next(lines, b""), run)


def read_headers(store: Store, names: Iterable[str], run: RunKey | None = None) -> Iterator[PartHeader]:
    """Yield the headers of the parts in the order of the names; see `read_header`. Only a few are in memory at a
    time."""
    return parallel_map(store.concurrency, functools.partial(read_header, store, run=run), names)


def read_part(store: Store, name: str, run: RunKey | None = None) -> Iterator[PartEntry]:
    """Yield the entries of one part in manifest order. One entry is in memory at a time.

    Args:
        run: the run that the part must belong to. None for any run.

    Raises:
        CheckpointError: the file is not a part of the run, or it is cut off or altered. The checksum is compared after
            the last entry.
    """
    with contextlib.closing(store.lines(name)) as lines:
        yield from _parse_entries(store, name, _parse_header(store, name, next(lines, b""), run), lines)


def readable_entries(store: Store, name: str) -> Iterator[PartEntry]:
    """Yield the entries in those lines of a damaged part that can be read."""
    with contextlib.closing(store.lines(name)) as lines:
        for line in lines:
            if match := _LINE.fullmatch(line):
                yield PartEntry(int(match[1]), match[2].decode(), match[3])


def _parse_header(store: Store, name: str, line: bytes, run: RunKey | None) -> PartHeader:
    try:
        fields = json.loads(line)
        is_readable = field(fields, "version", int) == VERSION
        header = PartHeader.from_dict(fields) if is_readable else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _damaged(store, name, f"its first line is not a header: {line[:60]!r}") from e
    if header is None:
        raise _damaged(store, name, f"another version of voxbatch wrote it: {line[:60]!r}")
    if run is not None and header.key != run:
        reason = f"belongs to run {header.key}, this is run {run}"
        remedy = f"remove this part and run again: {remove_command(store.place, name)}"
        raise CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason)
    if name.rpartition("/")[0] != header.folder:
        raise _damaged(store, name, f"its header says that it belongs to {header.folder}/")
    return header


def _parse_entries(store: Store, name: str, header: PartHeader, lines: Iterator[bytes]) -> Iterator[PartEntry]:
    num_entries, previous, digest = 0, -1, hashlib.sha256()
    for num_entries, line in enumerate(lines, 1):
        if not (match := _LINE.fullmatch(line)):
            raise _damaged(store, name, f"line {num_entries + 1} is not an entry: {line[:60]!r}")
        index = int(match[1])
        if index <= previous or (previous == -1 and index != header.first):
            raise _damaged(store, name, f"line {num_entries + 1} has item {index}, which is out of order")
        previous = index
        if header.sha256:
            digest.update(line)
        yield PartEntry(index, match[2].decode(), match[3])
    if num_entries != header.items or previous != header.last:
        found, wanted = f"{num_entries} entries up to item {previous}", f"{header.items} up to item {header.last}"
        raise _damaged(store, name, f"{found}, but its header says {wanted}")
    if header.sha256 and digest.hexdigest() != header.sha256:
        raise _damaged(store, name, "its entries do not match the checksum in its header")


def _damaged(store: Store, name: str, what: str) -> CheckpointError:
    """Return the error for a damaged part, with the remedy."""
    remedy = "delete this part and run again, so that its items are transcribed again"
    return CheckpointError(f"{store.place}/{name}: {what}; {remedy}: {remove_command(store.place, name)}", what)


class Checkpoint:
    """The committed items of one shard, as one process sees them.

    Args:
        run: the key of the run. run.json exists.
        items: number of items in the manifest.
        shard: number of the shard, from 0.
        shards: number of shards.
        worker: see PartHeader.
    """

    def __init__(self, store: Store, run: RunKey, items: int, shard: int = 0, shards: int = 1, worker: int = 0):
        self._store, self._run, self._shard, self._shards, self._worker = store, run, shard, shards, worker
        self._owner = Ownership(store, run)
        self.folder = shard_folder(shard, shards, run.generation)
        self._next = 0
        """Number of the next part."""
        self.done = ItemSet(items)
        """The items that are in a part of this shard, or that a run with another number of shards committed."""
        self.failed = ItemSet(items)
        """The items in `done` that ended as failures."""

    def load(self) -> None:
        """Read the committed items, at the start or once more later.

        Only the folder of this shard and the folders of other shard counts are read.

        Raises:
            CheckpointError: a part is damaged or belongs to another run.
        """
        this_shard, same_sharding = f"{self.folder}/", f"-of-{self._shards:05d}/"
        every = part_names(self._store, self._run.generation)
        names = [name for name in every if name.startswith(this_shard) or same_sharding not in name]
        self._next = sum(name.startswith(this_shard) for name in names)
        parts = parallel_map(self._store.concurrency, self._read_kinds, names)
        for name, kinds in zip(names, parts, strict=True):
            self._mark_done(kinds, name)

    def _read_kinds(self, name: str) -> dict[int, str]:
        """Return the kind of each entry of a part, by Item.index."""
        return {entry.index: entry.kind for entry in read_part(self._store, name, self._run)}

    def _mark_done(self, kinds: Mapping[int, str], name: str) -> None:
        """Mark the items of a part as done, and as failed if they are. `name` is the part, for the error message."""
        for index, kind in kinds.items():
            if not 0 <= index < self.done.size:
                raise _damaged(self._store, name, f"item {index} of a manifest of {self.done.size} items")
            self.done[index], self.failed[index] = True, kind == "failure"

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latency: Latency | None = None,
        peak_gpu_bytes: int | None = None,
        carried: PartHeader | None = None,
    ) -> list[PartEntry]:
        """Commit entries as the next part. Entries that another process committed first are left out.

        Args:
            wall_s, latency, peak_gpu_bytes: see PartHeader.
            carried: header of a part of the earlier run that made the entries. None if this run made them.

        Returns:
            The entries that this call committed: all of them, unless another process works on the same shard.

        Raises:
            TakenOverError: another run took OUT over, or OUT was deleted.
            CheckpointError: the part of another process is damaged.
            StorageError: OUT cannot be read or written.
        """
        pending = sorted((e for e in entries if not self.done[e.index]), key=lambda e: e.index)
        if pending:
            self._owner.check()
        while pending:
            name = f"{self.folder}/part-{self._next:05d}.jsonl"
            self._next += 1
            digest = hashlib.sha256()
            for entry in pending:
                digest.update(entry.to_bytes())
            header = PartHeader(
                run=self._run.run_id,
                shard=f"{self._shard}/{self._shards}",
                items=len(pending),
                first=pending[0].index,
                last=pending[-1].index,
                wall_s=round(wall_s, 3),
                worker=carried.worker if carried else self._worker,
                latency=latency,
                peak_gpu_bytes=peak_gpu_bytes,
                generation=self._run.generation,
                sha256=digest.hexdigest(),
                carried_from=carried.measured_shard if carried else "",
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
        content = {"version": VERSION, "run": self._run.run_id, "generation": self._run.generation, "items": items}
        self._store.create(f"{self.folder}/{COMPLETE}", [encode_line(content) + b"\n"])

    def are_all_complete(self) -> bool:
        """Return whether every shard of this run's sharding is recorded as complete.

        Raises:
            CheckpointError: a record is damaged, or another run wrote it.
        """
        ending = f"-of-{self._shards:05d}/{COMPLETE}"
        names = [name for name in complete_names(self._store, self._run.generation) if name.endswith(ending)]
        if len(names) != self._shards:
            return False
        check = functools.partial(check_complete, self._store, run=self._run)
        return all(True for _ in parallel_map(self._store.concurrency, check, names))


def check_complete(store: Store, name: str, run: RunKey) -> None:
    """Check the record that a shard is complete.

    Raises:
        CheckpointError: the record is damaged, or another run wrote it.
    """
    try:
        stored = json.loads(store.read(name) or b"")
        if field(stored, "run", str) == run.run_id and (optional(stored, "generation", str) or "") == run.generation:
            return
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    reason = f"not written by run {run}"
    remedy = f"remove it and run again: {remove_command(store.place, name)}"
    raise CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason)
