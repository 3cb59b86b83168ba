"""Describe a prefix of a bucket (gs://calls/2026/) as the lines of a manifest, as `folder` does for a folder.

Recordings are listed in the store's order, by the bytes of their keys (track 10 before track 2), so that a million of
them need no memory. Their names wait in a temporary file until the listing has ended, because a reference may be listed
after its recording. Only the names of the references are held in memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from posixpath import basename, splitext
from typing import Any, BinaryIO

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES, is_included, manifest_path
from voxbatch.sources.folder import TRANSPORT_PACKETS, TRANSPORT_SUFFIXES, count_other
from voxbatch.sources.references import (
    MAX_REFERENCE_BYTES,
    REFERENCE_TOO_LONG,
    References,
    add_text,
    bad_reference,
    names_beside,
    read_reference,
    spellings,
)
from voxbatch.storage import DEFAULT_STORES, Stores, parallel_map, redacted
from voxbatch.storage.address import HTTP_SCHEMES, is_folder, join, normalized, scheme_of
from voxbatch.storage.errors import ObjectNotFound, UnusableObject
from voxbatch.storage.objects import Stat
from voxbatch.storage.temporary_files import temporary_file

CONCURRENT_READS = 16
"""Number of references read at a time."""

_ONE_OBJECT_SUFFIXES = (".txt", ".TXT")
"""Extensions of the reference of a single object, each of which takes a request."""
Row = dict[str, Any]


def prefix_manifest(
    uri: str,
    stores: Stores = DEFAULT_STORES,
    include: Sequence[str] = (),
    with_state: bool = False,
    base: str | None = None,
    pattern: re.Pattern[str] | None = None,
    others: Counter[str] | None = None,
    references: References | None = None,
) -> Iterator[str]:
    """Yield the JSON lines, without line ends, of the manifest that describes a prefix, in the order of the keys.

    Paths are relative to the prefix. A key that no relative path can express (one of its parts is empty) is written as
    an address. Keys with a part that begins with a dot are left out.

    Args:
        include: see recording_path.is_included.
        with_state: write the state of each recording: its `size` in bytes and the `generation` of the object.
        base: address of the folder that paths are relative to; None takes the prefix.
        pattern: only recordings are listed whose names below the prefix match it as a whole.
        others: counts the objects that are left out, unless there is a pattern; see folder.count_other.
        references: counts the references, and has the decoder of their texts.

    Raises:
        ManifestError: the address is not a prefix; or, after the last line and with every reason: some references could
            not be read.
        StorageError: the store cannot be read.
    """
    prefix = _PrefixListing(_prefix_address(uri), stores, references or References())

    def is_wanted(name: str, _: Stat) -> bool:
        return is_included(name, include) and (pattern is None or bool(pattern.fullmatch(name)))

    def row(name: str, state: Row) -> Row:
        path = relative_address(base or prefix.address, prefix.address + name)
        return {"audio_filepath": path, **(state if with_state else {})}

    with prefix.recordings(is_wanted) as names:
        if others is not None and pattern is None:
            others.update(prefix.others)
        yield from prefix.lines(names, row)


def uploads_manifest(uri: str, since: float, until: float, stores: Stores, include: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the recordings that arrived in a period, as prefix_manifest does.

    A recording is listed if its current revision arrived at `since` or later, and before `until` (seconds since 1970,
    by the store's clock). The lines have addresses, and the revision as "generation".

    Raises:
        ManifestError: see prefix_manifest.
        StorageError: the store cannot be read.
    """
    prefix = _PrefixListing(_prefix_address(uri), stores, References())
    with prefix.recordings(lambda name, stat: since <= stat.created < until and is_included(name, include)) as names:
        yield from prefix.lines(
            names,
            lambda name, state: {"audio_filepath": prefix.address + name, "generation": state["generation"]},
        )


def upload_line(uri: str, tag: str, stores: Stores) -> str:
    """Return the line that uploads_manifest would give for one recording; see `object_line`."""
    return object_line(uri, {"audio_filepath": uri, "generation": tag}, stores, References())


def object_line(uri: str, row: Row, stores: Stores, references: References) -> str:
    """Return the line of one recording in a bucket: its row, with the text of its reference, which is counted.

    Raises:
        ManifestError: its reference, NAME.txt or NAME.TXT beside it, cannot be read.
        StorageError: the store cannot be read.
    """
    for reference in (stem + suffix for stem in spellings(splitext(uri)[0]) for suffix in _ONE_OBJECT_SUFFIXES):
        try:
            with stores.open(reference) as file:
                row["text"] = read_reference(file, reference, references.decoder)
            references.take(basename(reference))
            break
        except ObjectNotFound:
            continue
        except (ValueError, UnusableObject) as e:
            raise ManifestError(uri, [bad_reference(reference, e)]) from e
    return json.dumps(row, ensure_ascii=False)


def object_state(stat: Stat) -> Row:
    """Return the state of a recording in a bucket for its row; see recording_path.file_state."""
    return {"size": stat.size, "generation": stat.tag}


def relative_address(base: str, address: str) -> str:
    """Return the path of a recording relative to the address of a folder; the address itself if it is not below the
    folder, or if no relative path gives it."""
    if address.startswith(base):
        path = manifest_path(address[len(base) :])
        if join(base, path) == address:
            return path
    return address


def translated_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a shell pattern, in which * does not match /, and ** does."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]/]+\])", pattern)
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    odd = (wildcards.get(part) or part.replace("[!", "[^", 1).replace("\\", "\\\\") for part in parts[1::2])
    plain = (re.escape(part) for part in parts[::2])
    return re.compile("".join(part for pair in zip(plain, [*odd, ""], strict=True) for part in pair), re.DOTALL)


def _prefix_address(uri: str) -> str:
    try:
        address = normalized(uri)
    except ValueError as e:
        raise ManifestError(redacted(uri), [BadLine(0, str(e))]) from e
    if scheme_of(address) in HTTP_SCHEMES:
        reason = "is a folder of a web server, which cannot be listed; give a manifest of its files"
        raise ManifestError(redacted(uri), [BadLine(0, reason)])
    if not is_folder(address):
        raise ManifestError(uri, [BadLine(0, f"does not end in /, as a folder's address does; write {uri}/")])
    return address


class _PrefixListing:
    def __init__(self, address: str, stores: Stores, references: References):
        self.address = address
        self._texts: dict[str, str] = {}
        """Names of the objects that may be transcripts, complete when the listing has ended; see `add_text`."""
        self.others = Counter[str]()
        """Objects that are left out; see folder.count_other."""
        self._too_long: set[str] = set()
        self._references = references
        self._stores = stores

    def recordings(self, is_wanted: Callable[[str, Stat], bool]) -> BinaryIO:
        """Return a temporary file with the names of the recordings below the prefix and their states, as one JSON array
        a line."""
        recordings = self._recordings(is_wanted)
        return temporary_file(self.address, ((json.dumps(recording) + "\n").encode() for recording in recordings))

    def _recordings(self, is_wanted: Callable[[str, Stat], bool]) -> Iterator[tuple[str, Row]]:
        start = len(self.address.split("/", 3)[3])
        for stat in self._stores.list(self.address):
            name = stat.key[start:]
            suffix = splitext(name)[1]
            if any(part.startswith(".") for part in name.split("/")):
                continue
            if add_text(self._texts, name):
                if stat.size > MAX_REFERENCE_BYTES:
                    self._too_long.add(name)
                count_other(name, self.others)
            elif suffix.lower() in RECORDING_SUFFIXES and is_wanted(name, stat):
                # TypeScript has the extension of a transport stream, and not the size of a number of packets.
                is_transport = suffix.lower() in TRANSPORT_SUFFIXES
                if not is_transport or not all(stat.size % packet for packet in TRANSPORT_PACKETS):
                    yield name, object_state(stat)
            else:
                count_other(name, self.others)

    def lines(self, names: BinaryIO, row: Callable[[str, Row], Row]) -> Iterator[str]:
        """Yield the lines of the manifest, with the texts of the references.

        Raises:
            ManifestError: after the last line: some references could not be read.
        """
        problems: list[BadLine] = []
        concurrency = CONCURRENT_READS if self._texts else 1
        named = (json.loads(line) for line in names)
        lines = parallel_map(
            concurrency, lambda recording: (recording[0], *self._line(recording[0], row(*recording))), named
        )
        for name, line, reference in lines:
            if isinstance(line, BadLine):
                problems.append(line)
                continue
            if reference:
                self._references.take(reference)
            else:
                self._references.leave_out(name, self._texts)
            yield line
        if problems:
            raise ManifestError(self.address, problems[: ManifestError.LIMIT], len(problems))

    def _line(self, name: str, row: Row) -> tuple[str | BadLine, str]:
        """Return the line of a recording, or the reason why there is none, and the name of its reference or ""."""
        if reference := next(names_beside(name, self._texts), ""):
            try:
                if reference in self._too_long:
                    raise ValueError(REFERENCE_TOO_LONG)
                with self._stores.open(self.address + reference) as file:
                    row["text"] = read_reference(file, reference, self._references.decoder)
            except (ValueError, ObjectNotFound, UnusableObject) as e:
                return bad_reference(reference, e), reference
        return json.dumps(row, ensure_ascii=False), reference
