"""The format of the parts: committed items, in files that are never changed.

    parts/shard-00003-of-00016/part-00007.jsonl    a header line, then one line per item, in the order of the list

Every part carries the key of its run, the number of its entries and their checksum, and every reader checks them. So a
part that another run wrote, or that was damaged, is never taken for a part of this run. The header also has the keys of
the items, by which a part is read with a later list: see the module `lists`. The module does not know the structure of
a transcript.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import numpy as np

from voxbatch.errors import CheckpointError
from voxbatch.output.latency import Latency
from voxbatch.output.layout import VERSION, shard_folder
from voxbatch.output.run_file import ItemKeys, RunKey
from voxbatch.output.stored_json import Count, Moment, Number, json_bytes, read_json
from voxbatch.storage import Store, parallel_map, remove_command

_LINE = re.compile(
    rb'{"index":(\d{1,18}),"kind":"(transcript|failure)",(?:"audio":({[^{}]*}),)?"line":({.*})}\n', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One committed item. The merged outputs hold `line` byte for byte."""

    index: int
    """The item's index (Item.index)."""
    kind: str
    """ "transcript" or "failure": the merged output that the entry belongs to. A recording counts as a transcript."""
    line: bytes
    """The output line: a JSON object, without a line end."""
    part: str = field(default="", compare=False)
    """Name of the part. Empty for an entry that is not committed."""
    correction: str = field(default="", compare=False)
    """Name of the part with the correction of the entry. Empty without one."""
    flac: bytes = field(default=b"", compare=False, repr=False)
    """The recording of an entry that is not committed, in a run that speaks."""
    audio: bytes = b""
    """The place of the recording of a committed entry, as JSON; see `audio_archive`. Empty without a recording."""

    def to_bytes(self) -> bytes:
        """Return the entry's line in a part, with its line end."""
        audio = b'"audio":%s,' % self.audio if self.audio else b""
        return b'{"index":%d,"kind":"%s",%s"line":%s}\n' % (self.index, self.kind.encode(), audio, self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHeader:
    """The first line of a part."""

    version: Literal[1] = 1
    run: str
    """RunKey.run_id of the run that the part belongs to."""
    shard: Annotated[str, msgspec.Meta(pattern=r"^\d{1,5}/\d{1,5}$")]
    """Shard number and number of shards, for example "3/16"."""
    items: Count
    first: Count
    last: Count
    """Lowest (`first`) and highest (`last`) position in the part."""
    wall_s: Number
    """Seconds since the previous commit of this process, or since its start."""
    list_number: Count
    """Number of the list that the positions mean."""
    keys: str
    """The keys of the items in the order of the entries, 16 bytes each, in base64."""
    worker: Count = 0
    """Number of the process, if several processes work on the shard side by side."""
    latency: Latency | None = None
    """Latencies of the items that the process finished since its previous commit.

    A chunk's latency runs from the moment when the engine takes the chunk from the feed to its result. An item's
    latency runs from the moment when the engine takes its first chunk to its outcome. None if nothing was measured.
    """
    peak_gpu_bytes: Count | None = None
    """Highest memory in use on the fullest GPU of the process, from its start to this commit. None without a GPU."""
    generation: str = ""
    """RunKey.generation of the run that the part belongs to."""
    committed_at: Moment
    """Time of the commit in seconds since 1970."""
    remaining_s: Number | None = None
    """Estimated seconds of work that the process had left. None if it was unknown."""
    remaining_item_s: Number | None = None
    """Estimated mean of the seconds of audio of the items that the process had left. None if it was unknown."""
    sha256: str
    """SHA-256 of the lines after the header, in hexadecimal digits."""
    taken: tuple[tuple[int, int], ...] = ()
    """Keys of the files from which the corrections were taken; see own_files.Key."""
    taken_number: Count = 0
    """Number of the merge from which on these files are voxbatch's; see the module `own_files`."""
    header_sha256: str = ""
    """SHA-256 of the header's line up to this key. Empty in parts of earlier versions of voxbatch."""

    @property
    def key(self) -> RunKey:
        """The key of the run that the part belongs to."""
        return RunKey(self.run, self.generation)

    @property
    def num_shards(self) -> int:
        """The number of shards of the run."""
        return int(self.shard.partition("/")[2])

    @property
    def folder(self) -> str:
        """The folder in which the run has put the part."""
        shard, _, shards = self.shard.partition("/")
        return shard_folder(int(shard), int(shards), self.generation)

    @property
    def item_keys(self) -> ItemKeys:
        """The keys of the items in the order of the entries."""
        return np.frombuffer(base64.b64decode(self.keys), "<u8").reshape(-1, 2)

    def to_bytes(self) -> bytes:
        """Return the header's line in a part, with its line end."""
        left_out = {"header_sha256"} if self.taken else {"header_sha256", "taken", "taken_number"}
        stored = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        line = json_bytes({**stored, "latency": self.latency and self.latency.to_dict()})[:-1]
        return b'%b, "header_sha256": "%b"}\n' % (line, hashlib.sha256(line).hexdigest().encode())


@dataclass(slots=True)
class Measurements:
    """Sums over the headers of parts."""

    wall_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Seconds of each process, by its shard and its number."""
    latency: Latency = field(default_factory=Latency)
    peak_gpu_bytes: int | None = None

    def add(self, header: PartHeader) -> None:
        """Add the measurements of a part."""
        process = header.shard, header.worker
        self.wall_s[process] = self.wall_s.get(process, 0.0) + header.wall_s
        if header.latency is not None:
            self.latency.update(header.latency)
        if header.peak_gpu_bytes is not None:
            self.peak_gpu_bytes = max(self.peak_gpu_bytes or 0, header.peak_gpu_bytes)

    def update(self, other: Measurements) -> None:
        """Add other measurements."""
        for process, seconds in other.wall_s.items():
            self.wall_s[process] = self.wall_s.get(process, 0.0) + seconds
        self.latency.update(other.latency)
        if other.peak_gpu_bytes is not None:
            self.peak_gpu_bytes = max(self.peak_gpu_bytes or 0, other.peak_gpu_bytes)


def open_part(store: Store, name: str, run: RunKey | None = None) -> tuple[PartHeader, Generator[PartEntry]]:
    """Return the header and the entries of a part. One entry is in memory at a time.

    Args:
        run: the run that the part must belong to. None for any run.

    Raises:
        CheckpointError: the file is not a part of the run, or it is cut off or altered. The checksum is compared after
            the last entry.
    """
    lines = store.lines(name)
    try:
        header = _parse_header(store, name, next(lines, b""), run)
    except BaseException:
        lines.close()
        raise
    return header, _parse_entries(store, name, header, lines)


def read_part(store: Store, name: str, run: RunKey | None = None) -> Iterator[PartEntry]:
    """Yield the entries of a part with the positions that they have in the part; see `open_part`."""
    yield from open_part(store, name, run)[1]


def read_header(store: Store, name: str, run: RunKey | None = None) -> PartHeader:
    """Return the header of a part; see `open_part`."""
    with contextlib.closing(store.lines(name)) as lines:
        return _parse_header(store, name, next(lines, b""), run)


def read_headers(store: Store, names: Iterable[str], run: RunKey | None = None) -> Iterator[PartHeader]:
    """Yield the headers of the parts in the order of the names. Only a few are in memory at a time."""
    return parallel_map(store.concurrency, functools.partial(read_header, store, run=run), names)


def readable_entries(store: Store, name: str) -> Iterator[PartEntry]:
    """Yield the entries in those lines of a damaged part that can be read."""
    with contextlib.closing(store.lines(name)) as lines:
        for line in lines:
            if entry := parse_entry(line, name):
                yield entry


def parse_entry(line: bytes, part: str) -> PartEntry | None:
    """Return the entry in a line of a part, or None if it is no entry."""
    match = _LINE.fullmatch(line)
    return match and PartEntry(int(match[1]), match[2].decode(), match[4], part, audio=match[3] or b"")


def _parse_header(store: Store, name: str, line: bytes, run: RunKey | None) -> PartHeader:
    try:
        header = read_json(line, PartHeader)
        if len(header.item_keys) != header.items:
            raise ValueError("the number of keys is not that of the entries")
    except ValueError as e:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            if (version := json.loads(line)["version"]) != VERSION:
                reason = f"another version of voxbatch wrote it (format {version!r}, and this one reads {VERSION})"
                remedy = "nothing is damaged: continue with that version, or choose another OUT with -o"
                raise CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason) from e
        raise damaged_part(store, name, f"its first line is not a header: {line[:60]!r}") from e
    if run is not None and header.key != run:
        reason = f"belongs to run {header.key}, this is run {run}"
        remedy = f"remove this part and run again: {remove_command(store.place, name)}"
        raise CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason)
    if name.rpartition("/")[0] != header.folder:
        raise damaged_part(store, name, f"its header says that it belongs to {header.folder}/")
    if (written := header.header_sha256) and hashlib.sha256(line.rpartition(b",")[0]).hexdigest() != written:
        raise damaged_part(store, name, "its header does not match its own checksum")
    return header


def _parse_entries(store: Store, name: str, header: PartHeader, lines: Generator[bytes]) -> Generator[PartEntry]:
    num_entries, previous, digest = 0, -1, hashlib.sha256()
    with contextlib.closing(lines):
        for num_entries, line in enumerate(lines, 1):
            if (entry := parse_entry(line, name)) is None:
                raise damaged_part(store, name, f"line {num_entries + 1} is not an entry: {line[:60]!r}")
            if entry.index <= previous or (previous == -1 and entry.index != header.first):
                reason = f"line {num_entries + 1} has item {entry.index}, which is out of order"
                raise damaged_part(store, name, reason)
            previous = entry.index
            if num_entries > header.items or previous > header.last:
                break
            digest.update(line)
            yield entry
    if num_entries != header.items or previous != header.last:
        reason = (
            f"{num_entries} entries up to item {previous}, but its header says {header.items} up to item {header.last}"
        )
        raise damaged_part(store, name, reason)
    if digest.hexdigest() != header.sha256:
        raise damaged_part(store, name, "its entries do not match the checksum in its header")


def damaged_part(store: Store, name: str, reason: str) -> CheckpointError:
    """Return the error for a damaged part, with the remedy."""
    remedy = "delete this part and run again, so that its items are transcribed again"
    return CheckpointError(f"{store.place}/{name}: {reason}; {remedy}: {remove_command(store.place, name)}", reason)
