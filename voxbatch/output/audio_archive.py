"""Recordings of a part, in an archive beside it: the layout of WebDataset, with `NAME.flac` and `NAME.json` for each.

    parts/shard-00003-of-00016/audio-0123456789abcdef0123456789abcdef.tar

The archive is created before its part, and the entries of the part name its recordings, so that creating the part stays
the commit. It is named after its content: a process that dies between both, or that loses the race for a part, leaves
an archive that no part names, and never one with the name of another. The merge deletes such archives.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from voxbatch.errors import CheckpointError
from voxbatch.formats.names import output_name
from voxbatch.output.layout import audio_name, audio_names, part_names
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry, read_part
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import Count, json_bytes, read_json
from voxbatch.storage import Store, remove_command

_KEPT_ARCHIVES = 4
"""Archives that a reader keeps in memory. Shards take turns in the order of the list."""


@dataclass(frozen=True, slots=True)
class AudioPlace:
    """The place of a recording in OUT."""

    archive: str
    offset: Count
    """First byte of the FLAC file in the archive."""
    bytes: Count
    sha256: str
    """SHA-256 of the FLAC file, in hexadecimal digits."""


def archived(store: Store, folder: str, entries: Sequence[PartEntry]) -> list[PartEntry]:
    """Write the recordings of entries to an archive, and return the entries with their places.

    Args:
        entries: entries that are not committed. Those of failures have no recording.

    Raises:
        StorageError: the archive cannot be written.
    """
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for entry in entries:
            if entry.flac:
                for extension, content in (("flac", entry.flac), ("json", entry.line)):
                    member = tarfile.TarInfo(_member(entry, extension))
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    content = file.getvalue()
    name = audio_name(folder, hashlib.sha256(content).hexdigest()[:32])
    if not store.create(name, [content]) and store.read(name) != content:
        store.write(name, [content])  # it was damaged: its part was removed, and its texts were spoken again
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        offsets = {member.name: member.offset_data for member in archive}

    def with_place(entry: PartEntry) -> PartEntry:
        digest, offset = hashlib.sha256(entry.flac).hexdigest(), offsets[_member(entry, "flac")]
        place = {"archive": name, "offset": offset, "bytes": len(entry.flac), "sha256": digest}
        return replace(entry, audio=json_bytes(place), flac=b"")

    return [with_place(entry) if entry.flac else entry for entry in entries]


def _member(entry: PartEntry, extension: str) -> str:
    """Return the name of a member. It has one dot, because WebDataset takes what precedes the first dot as the key."""
    name = output_name(json.loads(entry.line)["id"], extension).removesuffix(f".{extension}")
    return f"{name.replace('.', '%2E')}.{extension}"


def place_of(entry: PartEntry) -> AudioPlace:
    """Return the place of the recording of a committed entry that has one."""
    return read_json(entry.audio, AudioPlace)


class AudioReader:
    """Reads the recordings of committed entries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read = lru_cache(_KEPT_ARCHIVES)(store.read)

    def flac(self, entry: PartEntry) -> bytes:
        """Return the FLAC file of an entry.

        Raises:
            CheckpointError: the archive is missing or damaged.
        """
        place = place_of(entry)
        content = (self._read(place.archive) or b"")[place.offset : place.offset + place.bytes]
        if hashlib.sha256(content).hexdigest() != place.sha256:
            reason = "the archive of its recordings is missing or damaged"
            remedy = "delete this part and run again, so that its texts are spoken again"
            command = remove_command(self._store.place, entry.part)
            raise CheckpointError(f"{self._store.place}/{entry.part}: {reason}; {remedy}: {command}", reason)
        return content


def erase_orphans(store: Store, run: Run, owner: Ownership, known: Iterable[str]) -> None:
    """Delete the archives that no part names.

    Args:
        known: archives that parts name. If there are others, all parts are read.
    """
    orphans = set(audio_names(store, run.generation)).difference(known)
    for name in part_names(store, run.generation) if orphans else ():
        orphans -= {place_of(entry).archive for entry in read_part(store, name) if entry.audio}
    for name in sorted(orphans):
        store.delete(name, owner.check_again)
