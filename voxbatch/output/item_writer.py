"""Write the files of single items: the transcripts in the formats that were asked for, and the recordings of a run that
speaks. Files of earlier transcripts are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.beside import Beside
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_names import ItemNames, distinct_name, short_name
from voxbatch.output.layout import RUN_FILE, item_file
from voxbatch.output.lines import parse_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.storage import Store, parallel_map

BATCH_FILES, BATCH_BYTES = 256, 4 << 20
"""Number of files whose digests are recorded together, at most. No file is added after so many bytes."""


@dataclass(frozen=True, slots=True)
class ItemFile:
    """A file of one item."""

    name: str
    """Name in OUT."""
    content: bytes | None
    """None for a file that is to be deleted, because it is of an earlier transcript of the item."""
    beside: str | None = None
    """Path or address beside the recording. None if the item has no place there."""
    silent: str | None = None
    """Path or address beside a recording without speech, which gets no file there: players and editors refuse an empty
    one."""
    index: int = -1
    """Position of the item in the list. -1 for a file that is made of other things than the transcript."""


def write_item_files(
    store: Store, files: Iterable[ItemFile], owner: Ownership, own: OwnFiles, beside: Beside | None = None
) -> None:
    """Write the files of single items that do not exist with the same content, and leave those that somebody changed.

    Args:
        own: gets the digests of the files, each before the file is written.
        beside: writes them beside the recordings, too. None writes them to OUT alone.
    """

    def put(file: ItemFile) -> None:
        owner.check_again()
        if beside and file.silent:
            beside.leave_out(file.silent, file.name, owner.check_again)
        elif beside and file.content is not None:
            beside.write(file.beside, file.name, file.content)
        elif beside and file.beside and store.exists(file.name):
            beside.delete(file.beside, file.name, owner.check_again)
        _put(store, file, owner, own)

    batches = _recorded(files, own)
    if store.concurrency > 1:
        batches = _ahead(batches)
    for _ in parallel_map(store.concurrency, put, chain.from_iterable(batches)):
        pass
    if beside:
        beside.finish()


def _put(store: Store, file: ItemFile, owner: Ownership, own: OwnFiles) -> None:
    """Write or delete a file, unless somebody has changed it."""
    name, content = file.name, file.content
    if content is not None and store.create(name, [content], durable=False):
        return
    present = store.read(name)
    if present == content:
        return
    if present is not None and not own.may_replace(name, present, content or b""):
        own.leave(name, name, present)
    elif content is None:
        store.delete(name, owner.check_again)
    else:
        store.write(name, owner.checked([content]), durable=False)


def _recorded(files: Iterable[ItemFile], own: OwnFiles) -> Iterator[list[ItemFile]]:
    """Yield the files in batches whose digests are recorded."""
    waiting = iter(files)
    while batch := _batch(waiting):
        written = [file for file in batch if file.content is not None]
        own.record((file.name, sha256(file.content or b"")) for file in written)
        yield batch


def _batch(files: Iterator[ItemFile]) -> list[ItemFile]:
    """Return the next files, as many as are held in memory."""
    batch, num_bytes = list[ItemFile](), 0
    for file in islice(files, BATCH_FILES):
        batch.append(file)
        num_bytes += len(file.content or b"")
        if num_bytes >= BATCH_BYTES:
            break
    return batch


def _ahead(batches: Iterator[list[ItemFile]]) -> Iterator[list[ItemFile]]:
    """Yield the batches. While the requests of one are made, a thread makes the next one."""
    with ThreadPoolExecutor(1, "item files") as pool:
        following: Future[list[ItemFile]] = pool.submit(next, batches, [])
        while batch := following.result():
            following = pool.submit(next, batches, [])
            yield batch


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
    ids, recordings = names_of_files(store, run, entries, files)
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
                beside = place and f"{place}.{WRITERS[form].beside}"
                silent = None if document.transcript.text.strip() else beside
                yield ItemFile(item_file(name, form), content, None if silent else beside, silent, entry.index)
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
            beside = None if is_part or make(path) == place else f"{make(path)}.{WRITERS[form].beside}"
            yield ItemFile(item_file(make(name), form), None, beside)


def names_of_files(
    store: Store, run: Run, entries: Entries, files: ItemFiles
) -> tuple[ItemNames | None, ItemNames | None]:
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
