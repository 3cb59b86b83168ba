"""Drop what somebody has changed in the files of a run: delete these files, and merge, which writes them again.

Texts that were taken in stay. The cues of subtitles that were taken in go with the file that has them; those of a copy
by its name, or with everything.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from voxbatch.errors import ConfigError
from voxbatch.formats import WRITERS
from voxbatch.log import Log
from voxbatch.output.beside import BESIDE
from voxbatch.output.corrections import CorrectedItem, commit
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import digest_of
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import item_files
from voxbatch.output.layout import FAILURES, REPORT
from voxbatch.output.lines import recogniser_keys
from voxbatch.output.merge import known_files, lines_of
from voxbatch.output.merge_again import merge_again
from voxbatch.output.own_files import OwnFiles, key_of, sha256
from voxbatch.output.ownership import Ownership
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary, read_whole_summary
from voxbatch.safe_text import counted
from voxbatch.storage import Store, Stores, is_remote
from voxbatch.works.correct.chosen_files import name_in_out


def drop(store: Store, run: Run, stores: Stores, names: Sequence[str], log: Log) -> Summary:
    """Write the changed files of a run again as the log gives them.

    Args:
        names: files of OUT or beside its recordings, and folders of OUT, which end in /; see
            chosen_files.name_in_out. Empty for all.

    Raises:
        ConfigError: nobody has changed such a file.
        CheckpointError: the run is not finished.
    """
    summary, entries, owner = read_whole_summary(store), Entries(store, run), Ownership(store, run)
    latest = summary if summary is not None and summary.key == run.key else None
    settings = ItemFiles.of((latest or run).facts.config)
    formats = tuple(form for form in WRITERS if store.exists(f"{form}/"))
    own = known_files(store, entries, latest)
    looked_at = replace(settings, formats=formats, beside=True)
    changed = chain(
        _changed_files(store, run, entries, looked_at, settings, own, stores),
        _changed_outputs(store, run, latest, settings.report, own),
    )
    dropped = [(place, name, index) for place, name, index in changed if _is_named(store, place, name, names)]
    copies = {name: name if is_remote(name) else os.path.abspath(name) for name in names}
    # Changes of a file whose cues were taken in go with these cues in one step: a killed command may be repeated.
    files = {*copies.values(), *(name if place is store else f"{place.place}/{name}" for place, name, _ in dropped)}
    without_times = [*_without_times(entries, {index for *_, index in dropped}, files, is_all=not names)]
    with_cues = {item.line["file"] for item in without_times}
    unchanged = [
        name
        for name, place in copies.items()
        if place not in with_cues and not any(_is_named(store, of, file, [name]) for of, file, _ in dropped)
    ]
    # A command that was killed may have written its files again, some of them or all, and lacks its summary.
    continues = dropped or own.number > (latest.digests if latest else 0)
    if unknown := [name for name in unchanged if not (continues and _exists(store, name))]:
        raise ConfigError(f"{unknown[0]}: nobody has changed such a file of {store.place}")
    commit(store, run, without_times, own.next_number)
    unmerged = {f"{place.place}/{name}" for place, name, _ in dropped if place is not store and not settings.beside}
    for place, name, _ in dropped:
        if f"{place.place}/{name}" not in unmerged:
            place.delete(name, owner.check_again)
    cues = f", cues of {counted(len(without_times), 'item')}" if without_times else ""
    log.info("dropped", text=f"changes dropped: {counted(len(dropped), 'file')}{cues}")
    merged = merge_again(store, None, log, stores)
    if unmerged:
        _write_beside(store, run, looked_at, stores, unmerged)
    return merged


def _write_beside(store: Store, run: Run, files: ItemFiles, stores: Stores, places: Collection[str]) -> None:
    """Write files beside recordings as the log gives them. No merge does, because the latest one wrote none there."""
    entries = Entries(store, run)
    for file in item_files(store, run, files, entries, lines_of(store, entries, run, ())):
        if file.beside and file.beside in places and file.content is not None:
            folder, name = posixpath.split(file.beside)
            stores.out(folder).write(name, [file.content])


def _changed_files(
    store: Store, run: Run, entries: Entries, files: ItemFiles, merged: ItemFiles, own: OwnFiles, stores: Stores
) -> Iterator[tuple[Store, str, int]]:
    """Yield the store and the name of each file of an item that somebody has changed. If its times were taken in, also
    the position of its item, else -1.

    A missing file counts as changed, because an earlier process may have been killed before its merge. Beside
    recordings, the latest merges may have written nothing: a file of an earlier one is not changed.

    Args:
        files: the files that are looked at.
        merged: the files that a merge writes.
    """
    for file in item_files(store, run, files, entries, lines_of(store, entries, run, ())):
        places = [(store, file.name)]
        if file.beside and own.has_mark(file.beside, BESIDE):
            folder, name = posixpath.split(file.beside)
            places.append((stores.out(folder), name))
        for place, name in places:
            present, is_merged = place.read(name), place is store or merged.beside
            if present is None:
                if is_merged and file.name.partition("/")[0] in merged.formats:
                    yield place, name, -1
                continue
            key = key_of(file.name, digest := sha256(present))
            if own.is_kept(key):
                yield place, name, file.index
            elif present != file.content and not (own.has(file.name, digest) if is_merged else own.has_written(key)):
                yield place, name, -1


def _changed_outputs(
    store: Store, run: Run, latest: Summary | None, has_report: bool, own: OwnFiles
) -> Iterator[tuple[Store, str, int]]:
    """Yield the files of all items together that somebody has changed, as `_changed_files` does."""
    for name in (run.transcripts, FAILURES):
        digest = digest_of(store, name)
        is_missing = not digest.bytes and latest is not None and latest.outputs[name].bytes
        if is_missing or (digest.bytes and not own.has(name, digest.sha256)):
            yield store, name, -1
    page = store.read(REPORT)
    if has_report if page is None else not own.has(REPORT, sha256(page)):
        yield store, REPORT, -1


def _without_times(
    entries: Entries, indexes: Collection[int], files: Collection[str], is_all: bool
) -> Iterator[CorrectedItem]:
    """Yield the corrections of items again, without the subtitles that a person has timed.

    Args:
        indexes: positions of items.
        files: names of files of the run, and paths and addresses of others; items whose cues come from them also count.
        is_all: all items count.
    """
    for entry in entries if entries.corrections else ():
        line = json.loads(entry.line)
        correction = recogniser_keys(line) or {}
        is_dropped = is_all or entry.index in indexes or correction.get("corrected_in") in files
        if is_dropped and correction.get("subtitles"):
            text = {key: line[key] for key in ("id", "pred_text", "words", "segments")}
            facts = {"file": correction["corrected_in"], "estimated_words": correction["estimated_words"]}
            yield CorrectedItem(entry.index, {**text, **facts}, ())


def _exists(store: Store, name: str) -> bool:
    inner = name_in_out(store, name)
    return os.path.exists(name) if inner is None else store.exists(inner)


def _is_named(store: Store, place: Store, name: str, names: Sequence[str]) -> bool:
    """Return whether a file has one of the names; any file has if there are none."""
    if place.place != store.place:
        return not names or f"{place.place}/{name}" in map(os.path.abspath, names)
    # A name that is nowhere is that of a missing file of OUT.
    inner = [name_in_out(store, own_name) or own_name * (not os.path.lexists(own_name)) for own_name in names]
    return (
        not names or name in inner or name.startswith(tuple(folder for folder in inner if folder.endswith("/")) or "/")
    )
