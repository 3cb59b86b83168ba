"""Write the files of single items: the transcripts in the formats that were asked for, and the recordings of a run that
speaks. Files of earlier transcripts are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.beside import Beside
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_names import ItemNames, distinct_name, short_name
from voxbatch.output.layout import RUN_FILE, item_file
from voxbatch.output.lines import parse_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Ownership, Run
from voxbatch.storage import Store, Stores, parallel_map


@dataclass(frozen=True, slots=True)
class ItemFile:
    """A file of one item."""

    name: str
    """Name in OUT."""
    content: bytes | None
    """None for a file that is to be deleted, because it is of an earlier transcript of the item."""
    beside: str | None = None
    """Path or address beside the recording, if the file can be there."""


def write_item_files(
    store: Store, files: Iterable[ItemFile], owner: Ownership, log: Log, beside_stores: Stores | None
) -> None:
    """Write the files of single items that do not exist with the same content.

    Args:
        beside_stores: stores of the recordings, beside which the files are written, too. None writes them to OUT
            alone.
    """
    beside = Beside(beside_stores) if beside_stores else None

    def put(file: ItemFile) -> None:
        name, content = file.name, file.content
        if content is None:
            if beside and file.beside and (previous := store.read(name)) is not None:
                beside.delete(file.beside, previous, owner.check_again)
            store.delete(name, owner.check_again)
            return
        owner.check_again()
        if beside and file.beside:
            beside.write(file.beside, content, store.read(name))
        elif beside:
            beside.leave_out(file.name)
        if not store.create(name, [content], durable=False) and store.read(name) != content:
            store.write(name, owner.checked([content]), durable=False)

    for _ in parallel_map(store.concurrency, put, files):
        pass
    if beside:
        beside.sync()
        beside.report(log, store.place)


def item_files(
    store: Store,
    run: Run,
    files: ItemFiles,
    entries: Entries,
    lines: Iterable[tuple[PartEntry, dict[str, Any]]],
    since: int | None = None,
) -> Iterator[ItemFile]:
    """Yield the file of each transcript in each format.

    Args:
        lines: see merge.lines_of. All of them are read, also if no file is to be written.
        since: number of the list that was merged last. Entries of later lists may be of items that had files before, in
            formats that are not written now: these files are deleted. So are those of a name that an item had alone
            before the list had another item with it. None if this list was merged last.
    """
    ids, recordings = _names(store, run, entries, files)
    files_of_entry = run.products.files_of_entry(store, files)
    others = [] if since is None else [form for form in WRITERS if store.exists(f"{form}/")]
    newer = set() if since is None else {part.name for part in entries.parts if part.list_number > since}
    for entry, line in lines:
        written = set[str]()
        if files_of_entry:
            yield from (ItemFile(name, content) for name, content in files_of_entry(entry, line["id"]))
        if ids and entry.kind == "transcript":
            name = ids.name(line["id"])
            document = Document(line["id"], read_transcript(line, run.products.text_key), name, files.limits)
            place = recordings.place_beside(line) if recordings else None
            for form in files.formats:
                content = document.written(form).encode("utf-8", "surrogateescape")
                yield ItemFile(item_file(name, form), content, place and f"{place}.{WRITERS[form].extension}")
                written.add(item_file(name, form))
        if others and (entry.part in newer or (ids and ids.name(line["id"]) != short_name(line["id"]))):
            place = recordings.place_beside(line) if recordings else None
            yield from (file for file in _stale_files(line, others, entries, place) if file.name not in written)


def _stale_files(
    line: Mapping[str, Any], forms: Iterable[str], entries: Entries, place: str | None
) -> Iterator[ItemFile]:
    """Yield the files that an item may have had in some formats, each with its place beside the recording.

    Args:
        place: the place that the item has now. None if it has none.
    """
    name, path = line["id"], line[AUDIO_KEY]
    is_part = line.get("offset") or line.get("channel") is not None
    makers = [lambda name: name, distinct_name]
    if not entries.has_id(short_name(name)):  # otherwise, it is the name of another item
        makers.append(short_name)
    for form in forms:
        for make in makers:
            beside = None if is_part or make(path) == place else f"{make(path)}.{WRITERS[form].extension}"
            yield ItemFile(item_file(make(name), form), None, beside)


def _names(store: Store, run: Run, entries: Entries, files: ItemFiles) -> tuple[ItemNames | None, ItemNames | None]:
    """Return the names of the items' files by their ids, and by the paths of their recordings, if they are needed."""
    if not files.formats:
        return None, None
    folds_case = store.exists(RUN_FILE.upper())
    ids, recordings = ItemNames(folds_case=folds_case), ItemNames(folds_case=folds_case)
    for entry in entries:
        line = parse_line(store, entry, run.products)
        ids.add(line["id"])
        if files.beside:
            recordings.add(line[AUDIO_KEY])
    return ids, recordings if files.beside else None
