"""Take an OUT over, and delete what earlier runs have written to it, and nothing else. It implements `--overwrite`."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from voxbatch import work
from voxbatch.errors import CheckpointError, ConfigError, StorageError
from voxbatch.formats import WRITERS
from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.item_names import possible_files
from voxbatch.output.layout import (
    AUDIO_FORMATS,
    CORRECTED,
    FAILURES,
    LISTS,
    PARTS,
    REPORT,
    RUN_FILE,
    SUMMARY,
    TRANSCRIPTS,
    checkpoint_names,
    correction_names,
    generation_folder,
    list_name,
)
from voxbatch.output.lists import ANY_LINE, count_forgotten
from voxbatch.output.ownership import Ownership, takeover_explained
from voxbatch.output.parts import PartEntry, read_headers, read_part, readable_entries
from voxbatch.output.run_file import ItemKeys, Run, RunKey, create_list
from voxbatch.safe_text import counted
from voxbatch.storage import Store, parallel_map, remove_command
from voxbatch.storage.columns import Column


@dataclass(frozen=True, slots=True)
class OldFiles:
    """The files of earlier runs."""

    merged: tuple[str, ...]
    checkpoint: tuple[str, ...]
    """Names of the parts and of the other files of the checkpoint."""
    formats: tuple[str, ...]
    """Formats for which single items may have files. The parts and the merged outputs contain the ids of the items."""


def find_old_files(store: Store, keep: str | None = None) -> OldFiles:
    """Return the files that runs have written.

    Args:
        keep: a generation whose files are not old. Then the merged outputs are not old either: the merge of this
            generation compares and replaces them.
    """
    names = checkpoint_names(store)
    if keep is not None:
        kept = tuple(f"{generation_folder(folder, keep)}/" for folder in (PARTS, LISTS))
        names = [name for name in names if not name.startswith(kept)]
    of_kinds = dict.fromkeys(name for kind in work.kinds() for _, name in kind.outputs)
    merged = (SUMMARY, *of_kinds, FAILURES, REPORT) if keep is None else ()
    formats = [form for form in (*WRITERS, *AUDIO_FORMATS) if names and store.exists(f"{form}/")]
    return OldFiles(merged, tuple(names), tuple(formats))


def erase(store: Store, old: OldFiles, owner: Ownership) -> None:
    """Delete the files of earlier runs.

    Raises:
        TakenOverError: another run became the owner of OUT meanwhile. What is left belongs to it.
        StorageError: a file cannot be deleted.
    """

    def delete(name: str) -> None:
        store.delete(name, owner.check_again)

    item_files = (name for item_id in _item_ids(store, old) for name in possible_files(item_id, old.formats))
    # First the file that says that a run is finished; last the files that are needed to find the others.
    for names in (old.merged[:1], item_files if old.formats else (), old.merged[1:], old.checkpoint):
        for _ in parallel_map(store.concurrency, delete, names):
            pass


def erase_leftovers(store: Store, run: Run, owner: Ownership) -> None:
    """Delete what a killed `--overwrite`, or a late process of an earlier run, has left. Nothing reads these files, so
    a store that does not permit to delete them is no obstacle."""
    with contextlib.suppress(StorageError):
        old = find_old_files(store, keep=run.generation)
        # After the listing: of a run that takes OUT over later, only its first list may be among the files. That run
        # creates the list again.
        owner.check()
        erase(store, old, owner)


def _item_ids(store: Store, old: OldFiles) -> Iterator[str]:
    """Yield the ids of all transcripts in the old parts. If a part is damaged, yield the ids in its readable lines, and
    those in transcripts.jsonl.

    The files of an item that is in neither stay. A later run of this item overwrites them.
    """
    is_damaged = False
    for part in old.checkpoint:
        if not part.endswith(".jsonl"):
            continue
        try:
            yield from _ids_of(read_part(store, part))
        except CheckpointError:
            is_damaged = True
            yield from _ids_of(readable_entries(store, part))
        except StorageError:
            if store.exists(part):  # otherwise, another run that takes OUT over at the same time has deleted it
                raise
    if is_damaged and TRANSCRIPTS in old.merged and store.exists(TRANSCRIPTS):
        for line in store.lines(TRANSCRIPTS):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                yield str(json.loads(line)["id"])


def _ids_of(entries: Iterator[PartEntry]) -> Iterator[str]:
    for entry in entries:
        if entry.kind == "transcript":
            with contextlib.suppress(ValueError, KeyError, TypeError):
                yield str(json.loads(entry.line)["id"])


def take_over(store: Store, run: Run, keys: ItemKeys | Column, log: Log) -> None:
    """Make a run the owner of OUT, and delete the files of all earlier runs. Warn of forgotten items, which the run
    will transcribe again.

    The files are listed first: a run that takes OUT over later than this one, while this process is suspended, writes
    its files after that. Then the list of recordings is written, which nobody reads yet, and run.json is replaced, so
    that processes of the earlier runs end before they commit anything more. Until then, such a process may take the
    list for a leftover of an earlier run and delete it, so it is created again. If this process is killed while it
    deletes, the same command without `--overwrite` continues, and another `--overwrite` finds the remaining files.

    Raises:
        ConfigError: OUT is of another version of voxbatch, or has corrections by a person.
        CheckpointError: a correction is damaged.
    """
    try:
        earlier = run_file.read_file(store)
    except CheckpointError as e:
        raise ConfigError(
            f"{store.place}/{RUN_FILE} was not written by this version of voxbatch, and the other files may not be its "
            "own either: --overwrite deletes nothing here; choose another OUT with -o, or delete this one by hand"
        ) from e
    if earlier is not None:
        _refuse_corrected(store, earlier.generation)
        _warn_of_forgotten(store, earlier.key, log)
    old = find_old_files(store)
    _ensure_list(store, run, keys)
    with takeover_explained(store, run):  # another run may replace run.json at the same moment
        store.write(RUN_FILE, [run.to_bytes()])
    _ensure_list(store, run, keys)
    erase(store, old, Ownership(store, run))
    _ensure_list(store, run, keys)


def _refuse_corrected(store: Store, generation: str) -> None:
    """Refuse to delete what a person has corrected: a recogniser does not bring it back."""
    names = correction_names(store, generation)
    keys = (tuple(key) for header in read_headers(store, names) for key in header.item_keys.tolist())
    if items := {key for key in keys if key[1] != ANY_LINE}:
        command = remove_command(store.place, f"{names[0].rpartition('/')[0]}/{CORRECTED}-*")
        raise ConfigError(
            f"{store.place} has corrections by hand of {counted(len(items), 'item')}, which --overwrite would delete: "
            f"-o OTHER keeps them; to drop them first: {command}"
        )


def _warn_of_forgotten(store: Store, earlier: RunKey, log: Log) -> None:
    """Warn of the forgotten items of the earlier run. A damaged OUT, which `--overwrite` mends, has no count."""
    with contextlib.suppress(CheckpointError):
        if num_forgotten := count_forgotten(store, earlier):
            dropped = f"--overwrite drops the list of {counted(num_forgotten, 'forgotten item')} of {store.place}"
            text = "what is still among the recordings is transcribed again; to erase it again"
            command = f"voxbatch forget {shlex.quote(store.place)} ID"
            log.warning("forgotten_dropped", text=f"{dropped}: {text}: {command}")


def _ensure_list(store: Store, run: Run, keys: ItemKeys | Column) -> None:
    """Create the list of a run, unless it exists."""
    if not store.exists(list_name(run.list_number, run.generation)):
        create_list(store, run, keys)
