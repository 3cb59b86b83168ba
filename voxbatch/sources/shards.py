"""Join the shards of a manifest, as Spark, Ray, datatrove and Hugging Face's datasets write them: many files of one
kind, in one folder or matched by one pattern.

    day/              part-00000-….snappy.parquet, part-00001-….snappy.parquet, _SUCCESS
    's3://b/day/part-*.jsonl.gz'

The lines are those of all shards, in the order of the shards' names (by character code). They are written into one
temporary file, which a run reads again and again. So the shards are read once, one after the other, and what happens to
them later does not change the run. Relative paths start at the folder that holds all shards.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from voxbatch.errors import ManifestError
from voxbatch.manifest.recording_path import is_recording
from voxbatch.manifest.source import CHANGED_ADVICE, BadLines, Shard, Source, manifest_error
from voxbatch.sources.kinds import KINDS, TAR
from voxbatch.sources.manifest_file import json_lines, manifest_rows, open_file
from voxbatch.sources.named import common_folder, folder_of_name, is_list, is_pattern
from voxbatch.sources.prefix import translated_pattern
from voxbatch.storage import Stores, is_remote, parallel_map, redacted
from voxbatch.storage.address import is_bucket_address, is_folder, normalized
from voxbatch.storage.errors import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

MAX_FILES = 100_000
"""Largest number of shards. Opening a file costs more than reading a thousand rows, so more shards than this are
nearly empty."""
CONCURRENT_FETCHES = 4
"""Number of remote shards that are fetched at a time. Twice as many wait in temporary files."""
_KINDS = {kind.name: kind.suffixes for kind in KINDS if kind.has_shards}
"""Suffixes of shards, by their kind. Shards of a manifest are of one kind."""
_SHARD_SUFFIXES = tuple(suffix for suffixes in _KINDS.values() for suffix in suffixes)
_MARKERS = ("_", ".")
"""Begins of names that are no data: _SUCCESS, _temporary, .part-00000.crc."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The files of a manifest."""

    names: tuple[str, ...]
    """Files, folders or patterns that a person has given."""
    states: dict[str, tuple[int, str]]
    """Size in bytes and revision of each shard, by its path or address, in the order of these."""

    @property
    def title(self) -> str:
        """Name of all of them, for messages."""
        more = f" and {len(self.names) - 1:,} more" if len(self.names) > 1 else ""
        return redacted(self.names[0]) + more


def find_shards(names: Sequence[str], stores: Stores) -> Shards | None:
    """Return the shards that are named; None if the names are those of recordings.

    Raises:
        ManifestError: the shards cannot be used together, or a pattern of shards matches nothing.
        StorageError: a bucket cannot be listed.
    """
    try:
        names = tuple(dict.fromkeys(normalized(name) if is_bucket_address(name) else name for name in names))
    except ValueError:  # named_source says which name it is
        return None
    if any(is_list(name) or (len(names) > 1 and not _is_shard(name)) for name in names):
        return None
    states: dict[str, tuple[int, str]] = {}
    for name in names:
        shard_states = _shards_of(name, stores)
        if shard_states is None:
            return None
        states |= shard_states
        if len(states) > MAX_FILES:
            advice = "write fewer and larger shards, or give a pattern that matches some of them to each run"
            raise manifest_error(redacted(name), f"matches more than {MAX_FILES:,} files; {advice}")
    if any(name.lower().endswith(TAR.suffixes) for name in states):
        from voxbatch.sources.tars import is_beside

        states = {name: state for name, state in states.items() if not is_beside(name)}
    shards = Shards(names, {name: states[name] for name in sorted(states)})
    kinds = {kind: [name for name in states if name.lower().endswith(_KINDS[kind])] for kind in _KINDS}
    counts = [f"{len(files):,} of {kind} ({os.path.basename(files[0])})" for kind, files in kinds.items() if files]
    if len(counts) > 1:
        advice = "give a pattern that matches one kind, such as '*.parquet'"
        raise manifest_error(shards.title, f"holds shards of different kinds: {', '.join(counts)}; {advice}")
    return shards


def joined_shards(shards: Shards, stores: Stores) -> Source:
    """Return the Source with the lines of all shards.

    Raises:
        ManifestError: a shard cannot be used; or a shard changed, appeared or disappeared meanwhile.
        StorageError: a shard cannot be read, or the temporary file cannot be written.
    """
    folder = common_folder(shards.names)
    base = os.path.join(folder, "")
    starts: list[Shard] = []
    bad = BadLines()

    def blocks() -> Iterator[bytes]:
        line = 1
        concurrency = CONCURRENT_FETCHES if is_remote(folder) else 1
        opened = parallel_map(concurrency, lambda name: (name, open_file(name, stores)), shards.states)
        for name, source in opened:
            starts.append(Shard(redacted(name.removeprefix(base)), line))
            of_shard = BadLines()
            source.base = folder
            with source:
                for block in _lines(source, of_shard):
                    yield block
                    line += block.count(b"\n")
            for bad_line in of_shard.first:
                bad.add(bad_line.line, bad_line.reason, starts[-1].name)
            bad.total += of_shard.total - len(of_shard.first)

    file = temporary_file(shards.title, blocks())
    source = Source(shards.title, folder, file, note=f"{len(starts):,} files are one manifest", shards=starts)
    after = find_shards(shards.names, stores)
    before, now = shards.states, after.states if after else {}
    changes = {
        "appeared": now.keys() - before.keys(),
        "disappeared": before.keys() - now.keys(),
        "changed": {name for name in before if name in now and now[name] != before[name]},
    }
    if any(changes.values()):
        source.close()
        changed = ", ".join(f"{redacted(min(names))} {verb}" for verb, names in changes.items() if names)
        raise manifest_error(shards.title, f"{changed} while the shards were being read; {CHANGED_ADVICE}")
    if bad.total:
        source.close()
        raise ManifestError(shards.title, bad.first, bad.total)
    return source


def _lines(source: Source, bad: BadLines) -> Iterator[bytes]:
    """Yield the JSON lines of a shard. Add the rows that cannot be used to `bad`."""
    rows, _ = manifest_rows(source)
    if rows is not None:
        yield from json_lines(rows, bad)
        return
    last = b"\n"
    for last in source.pieces():
        yield last
    if not last.endswith(b"\n"):
        yield b"\n"


def _is_shard(name: str) -> bool:
    return redacted(name, "").lower().endswith(_SHARD_SUFFIXES)


def _shards_of(name: str, stores: Stores) -> dict[str, tuple[int, str]] | None:
    """Return the states of the shards of one name; None if it names something else."""
    if is_recording(name) or (is_remote(name) and not is_bucket_address(name)):
        return None
    folder = os.path.join(folder_of_name(name), "")
    states: dict[str, tuple[int, str]] = {}
    for file, state in _remote_files(name, stores) if is_remote(name) else _local_files(name):
        *above, last = file.removeprefix(folder).split("/")
        if last.startswith(_MARKERS) or any(part.startswith(_MARKERS) for part in above):
            continue
        if not _is_shard(last):
            return None
        if partition := next((part for part in above if "=" in part), None):
            reason = f"has the folder {partition}, whose value the rows do not have"
            raise manifest_error(redacted(name), f"{reason}; write the shards without partitions, or give one folder")
        states[file] = state
        if len(states) > MAX_FILES:
            break
    if not states and _is_shard(name):
        advice = "matches no file; check the folder and the extension" if is_pattern(name) else "does not exist"
        raise manifest_error(redacted(name), advice)
    return states or None


def _local_files(name: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the absolute path and the state of each file of a pattern, below a folder, or of one name."""
    for match in glob.iglob(name, recursive=True) if is_pattern(name) else [name]:
        walked = (os.path.join(folder, file) for folder, _, files in os.walk(match) for file in files)
        for path in walked if os.path.isdir(match) else [match]:
            with contextlib.suppress(OSError):  # a dangling link, or a file that has just disappeared
                state = os.stat(path)
                yield os.path.abspath(path), (state.st_size, str(state.st_mtime_ns))


def _remote_files(name: str, stores: Stores) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the address and the state of each object of a pattern, of a prefix, or of one name."""
    if not is_folder(name) and not is_pattern(name):
        with contextlib.suppress(ObjectNotFound):
            stat = stores.stat(name)
            yield name, (stat.size, stat.tag)
        return
    prefix = folder_of_name(name)
    start = len(prefix.split("/", 3)[3])
    pattern = translated_pattern(name.removeprefix(prefix)) if is_pattern(name) else None
    for stat in stores.list(prefix):
        below = stat.key[start:]
        if below and not below.endswith("/") and (pattern is None or pattern.fullmatch(below)):
            yield prefix + below, (stat.size, stat.tag)
