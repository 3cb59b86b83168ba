"""Find what OUT has of the items to forget. Nothing is changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from voxbatch.analysis.videos import own_copies
from voxbatch.errors import ConfigError
from voxbatch.formats import WRITERS
from voxbatch.manifest.item_line import id_key
from voxbatch.output.beside import BESIDE
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import digest_of
from voxbatch.output.item_names import TRANSLATED, distinct_name, possible_files, short_name
from voxbatch.output.layout import AUDIO_FORMATS, FAILURES, FIRST, SECOND, correction_names, item_file, part_names
from voxbatch.output.lists import ANY_LINE, ItemList
from voxbatch.output.merge import known_files
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.parts import PartEntry, PartHeader, open_part, read_headers
from voxbatch.output.run_file import ItemKeys, Run
from voxbatch.output.stored_json import parse_json, record_of
from voxbatch.output.summary import read_whole_summary
from voxbatch.safe_text import counted
from voxbatch.storage import Store, Stores, is_remote, remove_command

SHOWN_IDS = 3
"""Items that a message names."""


class _NamedItem(msgspec.Struct):
    """The keys of a line that name its item. The line of a correction has the id alone."""

    id: str
    audio_filepath: str = ""


@dataclass(frozen=True, slots=True)
class Traces:
    """The items to forget, and what OUT has of them."""

    ids: tuple[str, ...]
    keys: frozenset[int]
    """The first halves of their keys; see manifest.item_key."""
    recordings: frozenset[str]
    """Paths and addresses of their recordings, as far as a part names them."""
    parts: tuple[str, ...]
    """The parts to write again, in this order: corrections, the second pass of a cascade, and then those parts that
    name the recordings."""
    positions: tuple[int, ...]
    """Positions in the latest list of those items that no part has."""
    files: tuple[str, ...] = ()
    """The files of the items in OUT, and those that other items have under a name that changes."""
    beside: tuple[str, ...] = ()
    """Paths and addresses of their files beside the recordings, and of copies of videos."""


class _Names:
    """The ids of items, or the paths of their recordings, and those of others whose files may have the same names."""

    def __init__(self, of_items: Iterable[str]) -> None:
        self.of_items, self.others = frozenset(of_items), set[str]()
        self._folded = {name.casefold() for item in self.of_items for name in _possible_names(item)}

    def add(self, name: str) -> None:
        """Add the name of any item of the run."""
        if name not in self.of_items and not self._folded.isdisjoint(map(str.casefold, _possible_names(name))):
            self.others.add(name)


def _possible_names(name: str) -> tuple[str, str, str]:
    """Return the names that an item may have for its files; see item_names."""
    return short_name(name), name, distinct_name(name)


def find(store: Store, run: Run, stores: Stores, names: Sequence[str]) -> Traces:
    """Return what OUT has of some items.

    Args:
        names: ids of items; or paths and addresses of recordings, which stand for all of their items.

    Raises:
        ConfigError: no item has such a name; or somebody has changed a file that may be of another item; or the run is
            of this recording alone.
        CheckpointError: a part is damaged.
    """
    first = part_names(store, run.generation)
    headers = dict(zip(first, read_headers(store, first, run.key), strict=True))
    ids = _ids(store, run, headers, names)
    keys = frozenset(map(_key, ids))
    recordings = frozenset(
        item.audio_filepath
        for name, header in headers.items()
        if _holds(header, keys)
        for key, item in _items(store, run, name)
        if key[0] in keys and key[1] != ANY_LINE and item.audio_filepath
    )
    _check_source(store, run, recordings)
    listed = ItemList(store, run).index.keys
    in_parts = np.concatenate([listed[:0], *(header.item_keys for header in headers.values())])
    is_missing = are_among(listed, keys) & ~np.isin(listed[:, 0], in_parts[:, 0])
    traces = Traces(
        ids=tuple(ids),
        keys=keys,
        recordings=recordings,
        parts=tuple(parts_with(store, run, keys)),
        positions=tuple(np.flatnonzero(is_missing).tolist()),
    )
    return _with_files(store, run, stores, traces, first)


def parts_with(store: Store, run: Run, keys: Iterable[int]) -> list[str]:
    """Return the names of the parts with items that are not forgotten; see Traces."""
    second, first = (part_names(store, run.generation, pass_name) for pass_name in (SECOND, FIRST))
    names, wanted = [*correction_names(store, run.generation), *second, *first], {*keys}
    headers = read_headers(store, names, run.key)
    return [name for name, header in zip(names, headers, strict=True) if _holds(header, wanted)]


def are_among(stored: ItemKeys, keys: Iterable[int]) -> NDArray[np.bool_]:
    """Return which items have one of some first halves of keys. They stay integers of 64 bits: numpy compares other
    integers with these as floats of 53 bits."""
    return np.isin(stored[:, 0], np.fromiter(keys, np.uint64))


def _key(item_id: str) -> int:
    return int.from_bytes(id_key(item_id), "little")


def _holds(header: PartHeader, keys: Iterable[int]) -> bool:
    """Return whether a part has an entry of an item that is not forgotten."""
    stored = header.item_keys
    return bool(np.any(are_among(stored, keys) & (stored[:, 1] != ANY_LINE)))


def _items(store: Store, run: Run, part: str) -> Iterator[tuple[tuple[int, int], _NamedItem]]:
    """Yield the key of each entry of a part, and what names its item."""
    header, entries = open_part(store, part, run.key)
    for key, entry in zip(header.item_keys.tolist(), entries, strict=True):
        yield tuple(key), _named(entry)


def _named(entry: PartEntry) -> _NamedItem:
    try:
        return msgspec.json.decode(entry.line, type=_NamedItem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return record_of(parse_json(entry.line), _NamedItem)  # which takes lone surrogates


def _ids(store: Store, run: Run, headers: Mapping[str, PartHeader], names: Sequence[str]) -> list[str]:
    """Return the ids of the named items, each once."""
    known, stored = set[int](), (header.item_keys for header in headers.values())
    for keys in (ItemList(store, run).index.keys, *stored):
        known.update(keys[are_among(keys, map(_key, names)), 0].tolist())
    ids = dict.fromkeys(name for name in names if _key(name) in known)
    places = {name if is_remote(name) else os.path.abspath(name): name for name in names if name not in ids}
    unmatched, near = set(places), dict[str, None]()
    files = set(map(os.path.basename, places))
    for part in headers if places else ():
        for _, item in _items(store, run, part):
            if item.audio_filepath in places:
                ids[item.id] = None
                unmatched.discard(item.audio_filepath)
            elif not files.isdisjoint((file := os.path.basename(item.id), os.path.splitext(file)[0])):
                near[item.id] = None
    if unmatched:
        shown = ", ".join(places[place] for place in sorted(unmatched)[:SHOWN_IDS])
        more = ", …" if len(unmatched) > SHOWN_IDS else ""
        meant = f"; did you mean {' or '.join(map(shlex.quote, [*near][:SHOWN_IDS]))}?" if near else ""
        raise ConfigError(
            f"{store.place} has no item {shown}{more}; nothing was changed. Give the `id` of a line of "
            f"{run.transcripts} or {FAILURES}, or its `audio_filepath`{meant}"
        )
    return [*ids]


def _check_source(store: Store, run: Run, recordings: Iterable[str]) -> None:
    """Refuse to forget the single recording that a run was started with: the name of OUT may tell it."""
    source = run.facts.config.get("source")
    if isinstance(source, str) and os.path.basename(source) in map(os.path.basename, recordings):
        remove = f"rm -r {shlex.quote(store.place)}"
        if is_remote(store.place):
            remove = remove_command(store.place, "").replace(" rm ", " rm --recursive ")
        beside = "; files beside the recording, from --beside, --mux or --burn, are not in it: delete them, too"
        raise ConfigError(f"{store.place} is of this recording alone: delete all of it: {remove}{beside}")


def _with_files(store: Store, run: Run, stores: Stores, traces: Traces, parts: Sequence[str]) -> Traces:
    """Return the traces with the files of the items.

    Raises:
        ConfigError: somebody has changed a file that may be of another item, or a merged output.
    """
    summary = read_whole_summary(store)
    own = known_files(store, Entries(store, run), summary if summary is not None and summary.key == run.key else None)
    formats = [form for form in (*WRITERS, *AUDIO_FORMATS) if store.exists(f"{form}/")]
    ids, recordings = _Names(traces.ids), _Names(traces.recordings)
    for part in parts if formats else ():
        for _, item in _items(store, run, part):
            ids.add(item.id)
            recordings.add(item.audio_filepath)
    changed = [name for name in (run.transcripts, FAILURES) if _is_changed(store, name, own)]
    files, kept = _files(store, own, ids, formats)
    beside, kept_beside = _files_beside(stores, own, recordings, ids)
    if changed := [*changed, *kept, *kept_beside]:
        raise ConfigError(
            f"{store.place}: {counted(len(changed), 'file')} that somebody has changed may hold what is to be "
            f"forgotten: {', '.join(changed[:SHOWN_IDS])}; nothing was changed. Take the changes in "
            f"(voxbatch correct {shlex.quote(store.place)}), or delete the file"
        )
    local = (recording for recording in sorted(traces.recordings) if not is_remote(recording))
    copies = (copy for video in local for copy in own_copies(video, own))
    return replace(traces, files=tuple(files), beside=(*beside, *copies))


def _is_changed(store: Store, name: str, own: OwnFiles) -> bool:
    digest = digest_of(store, name)
    return bool(digest.bytes) and not own.has(name, digest.sha256)


def _files(store: Store, own: OwnFiles, ids: _Names, formats: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files in OUT to delete, and those that somebody has changed and that may be of another item. A merge
    writes the files of the other items again, under the names that they have then."""
    possible = {file for item in ids.of_items for file in possible_files(item, formats)}
    shared = {file for item in ids.others for file in possible_files(item, formats)}
    deleted, changed = list[str](), list[str]()
    for name in sorted(filter(store.exists, possible | shared)):
        if name not in shared or own.has(name, sha256(store.read(name) or b"")):
            deleted.append(name)
        elif name in possible:
            changed.append(name)
    return deleted, changed


def _files_beside(stores: Stores, own: OwnFiles, recordings: _Names, ids: _Names) -> tuple[list[str], list[str]]:
    """Return the files beside the recordings to delete, and those that somebody has changed; see `_files`. A file that
    voxbatch did not write there is somebody else's."""
    deleted, changed = list[str](), list[str]()
    possible = {name for recording in recordings.of_items for name in _possible_names(recording)}
    shared = {name for other in recordings.others for name in _possible_names(other)}
    in_out = [name for item in (*ids.of_items, *ids.others) for name in _possible_names(item)]
    for stem in sorted(possible | shared):
        for end, (form, writer) in product(("", TRANSLATED), WRITERS.items()):
            place = f"{stem}{end}.{writer.beside}"
            content = _content_beside(stores, place) if own.has_mark(place, BESIDE) else None
            if content is None:
                continue
            if stem not in shared or any(own.has(item_file(name, form), sha256(content)) for name in in_out):
                deleted.append(place)
            elif stem in possible:
                changed.append(place)
    return deleted, changed


def _content_beside(stores: Stores, place: str) -> bytes | None:
    folder, name = place.rsplit("/", 1)
    return stores.out(folder).read(name) if is_remote(place) or os.path.isdir(folder) else None
