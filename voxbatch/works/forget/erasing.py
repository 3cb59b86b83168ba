"""Erase the traces of items, in an order that the same command continues after a kill.

1. The names of the recordings in the settings of lists and summary.json, and the files of the items. The parts still
   have all that is needed to find these.
2. The parts are written again, each at once, those that name the recordings last. Then the items are forgotten.
3. The outputs of all items together: a merge writes them again. If the run is not finished, they are deleted, and its
   end writes them again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxbatch.analysis.find.index import delete_index
from voxbatch.analysis.report import write_report
from voxbatch.errors import InUseError
from voxbatch.failure_kinds import KIND_KEY, FailureKind
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.audio_archive import AudioReader, archived, erase_orphans
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.entries import Entries
from voxbatch.output.erase import erase_leftovers
from voxbatch.output.layout import FAILURES, REPORT, SUMMARY, VERSION, list_names
from voxbatch.output.lists import ANY_LINE, ItemList
from voxbatch.output.merge_again import merge_again
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry, open_part
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes, parse_json
from voxbatch.output.summary import Summary
from voxbatch.storage import Store, Stores, is_remote
from voxbatch.storage.local import TEMPORARY_PREFIX
from voxbatch.work import work_of
from voxbatch.works.forget.traces import Traces, are_among, parts_with


def erase(store: Store, run: Run, traces: Traces, stores: Stores, log: Log) -> Summary | None:
    """Erase items, and merge. The lease on OUT is held.

    Returns:
        The summary; None if the run is not finished.

    Raises:
        InUseError: another process has committed such an item meanwhile.
        CheckpointError: a part is damaged.
        StorageError: a file cannot be written or deleted.
        TakenOverError: OUT belongs to another run or to a later list now.
    """
    owner = Ownership(store, run)
    owner.check()
    erase_leftovers(store, run, owner)
    _erase_settings(store, run, traces, owner)
    for name in traces.files:
        store.delete(name, owner.check_again)
    for place in traces.beside:
        folder, name = place.rsplit("/", 1)
        stores.out(folder).delete(name, owner.check_again)
    _commit_missing(store, run, traces)
    for name in parts_with(store, run, traces.keys):
        _write_again(store, run, name, traces.keys, owner)
    erase_orphans(store, run, owner, ())
    summary = _merge(store, run, stores, owner, log)
    delete_index(store)
    if not is_remote(store.place):
        _sweep(store.place, traces.files)
    if parts_with(store, run, traces.keys):
        raise InUseError(f"{store.place}: another process has committed such an item meanwhile: stop it, and run again")
    return summary


def _erase_settings(store: Store, run: Run, traces: Traces, owner: Ownership) -> None:
    """Erase the names of the recordings from the settings of a run that was started with them."""
    for name in list_names(store, run.generation):
        first, end, keys = (store.read(name) or b"").partition(b"\n")
        header = parse_json(first)
        if _has_erased(header["facts"]["config"], traces):
            store.write(name, owner.checked([json_bytes(header), end, keys]))
    with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged summary is written again from the parts
        stored = parse_json(store.read(SUMMARY) or b"")
        if _has_erased(stored["config"], traces):
            store.write(SUMMARY, owner.checked([json_bytes(stored, indent=2) + b"\n"]))


def _has_erased(config: dict[str, Any], traces: Traces) -> bool:
    """Replace the recordings in a list of sources. Return whether there was one."""
    names, source = {os.path.basename(place) for place in traces.recordings}, config.get("source")
    if not isinstance(source, list) or names.isdisjoint(map(os.path.basename, source)):
        return False
    config["source"] = [FailureKind.FORGOTTEN if os.path.basename(name) in names else name for name in source]
    return True


def _commit_missing(store: Store, run: Run, traces: Traces) -> None:
    """Commit the items that no part has, as forgotten, so that the run does not transcribe them."""
    if traces.positions:
        checkpoint, keys = Checkpoint(store, run), ItemList(store, run).index.keys
        checkpoint.load()
        checkpoint.commit([_forgotten(PartEntry(at, "", b""), int(keys[at, 0])) for at in traces.positions], 0.0)


def _forgotten(entry: PartEntry, key: int) -> PartEntry:
    """Return the entry of a forgotten item in place of its entry. It has the hash of the id in the place of names."""
    name, kind = f"{FailureKind.FORGOTTEN}-{key:016x}", FailureKind.FORGOTTEN
    line = {
        AUDIO_KEY: name, "lang": None, "id": name, "line": None, "error": kind.facts.error, KIND_KEY: kind,
        "message": kind.facts.advice, "retryable": False, "version": VERSION,
    }  # fmt: skip
    return PartEntry(entry.index, "failure", json_bytes(line))


def _write_again(store: Store, run: Run, name: str, keys: Iterable[int], owner: Ownership) -> None:
    """Write a part again with its items forgotten, all at once. What it measured stays: times, latencies, memory."""
    header, stored = open_part(store, name, run.key)
    item_keys = header.item_keys.copy()
    is_forgotten = are_among(item_keys, keys)
    item_keys[is_forgotten, 1] = ANY_LINE
    entries, reader = [*stored], AudioReader(store)
    if any(entry.audio for entry, forgotten in zip(entries, is_forgotten, strict=True) if forgotten):
        entries = [replace(entry, flac=reader.flac(entry)) if entry.audio else entry for entry in entries]
    entries = [
        _forgotten(entry, int(key[0])) if forgotten else entry
        for entry, key, forgotten in zip(entries, item_keys, is_forgotten, strict=True)
    ]
    if any(entry.flac for entry in entries):
        entries = archived(store, header.folder, entries)
    lines = [entry.to_bytes() for entry in entries]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    header = replace(header, keys=base64.b64encode(item_keys.tobytes()).decode(), sha256=digest)
    store.write(name, owner.checked([header.to_bytes(), *lines]))


def _merge(store: Store, run: Run, stores: Stores, owner: Ownership, log: Log) -> Summary | None:
    """Merge a run that is finished; delete the merged outputs of one that is not."""
    of_all, has_page = [name for _, name in work_of(run.identity).outputs], store.exists(REPORT)
    is_finished = _is_finished(store, run)
    for name in (REPORT, *of_all[1:], *(() if is_finished else (SUMMARY, of_all[0], FAILURES))):
        store.delete(name, owner.check_again)
    if not is_finished:
        return None
    summary = merge_again(store, None, log, stores)
    if has_page and not store.exists(REPORT):
        write_report(store, os.path.join(store.place, REPORT), (), stores)
    return summary


def _is_finished(store: Store, run: Run) -> bool:
    """Return whether all items are committed."""
    num_items = sum(1 for _ in Entries(store, run).of_pass())
    return num_items == run.items and not (run.second_pass and run.second_pass.missing(store, run) != 0)


def _sweep(place: str, files: Iterable[str]) -> None:
    """Delete temporary files, which a kill leaves on file systems without unnamed files, and the folders of deleted
    files that are empty now: ids may have folders."""
    for temporary in Path(place).rglob(f"{TEMPORARY_PREFIX}{'[0-9a-f]' * 16}"):
        temporary.unlink(missing_ok=True)
    for folder in sorted({folder for name in files for folder in Path(name).parents[:-1]}, reverse=True):
        with contextlib.suppress(OSError):
            Path(place, folder).rmdir()
