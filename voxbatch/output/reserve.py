"""Reserve OUT for a run: create run.json, or check that OUT belongs to the run, or take OUT over.

A run takes OUT over with `--overwrite`, or to continue the run of OUT with another list of recordings.

A run that ends before its model gave a result, and before anything was committed, releases OUT again. A run.json that a
killed process left without any part is not taken for free: the process may also be one that still loads its model, and
a mistyped command must not end it. `--overwrite` takes such an OUT, and erases nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError, StorageError, VoxbatchError
from voxbatch.output import run_file
from voxbatch.output.checkpoint import part_names
from voxbatch.output.continuation import ALL, Changes, carry_over, ensure_items, has_same_items, plan, take_over
from voxbatch.output.erase import erase, find_old_files
from voxbatch.output.items_file import ItemKeys, write_items
from voxbatch.output.layout import RUN_FILE, foreign_outputs, items_name, layout_names_in
from voxbatch.output.merge import digest_of
from voxbatch.output.run_file import Continued, RunFile
from voxbatch.output.summary import read_summary
from voxbatch.storage import Store, StoreOptions, open_store, remove_command
from voxbatch.storage.columns import Column


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Listing:
    """The list of recordings of a run, and how the run may continue another one."""

    keys: ItemKeys | Column
    """See manifest.Survey."""
    grows: bool = False
    """See manifest.Source.grows. Such a run may continue a run with another list of the same place."""
    is_update: bool = False
    """True with `--update`: the run may continue a run with any other list."""
    retried: str | None = None
    """Failures of the earlier run to do again: see Continued.retried."""
    shards: int = 1
    """Number of shards of the run."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An OUT that belongs to the run."""

    run: RunFile
    """The stored run.json, which another process may have written."""
    before: RunFile
    """The run that OUT belonged to when this process came. `run` continues it, or is the same."""
    is_new: bool = False
    """True if this process has written run.json for a run that continues no other."""
    changes: Changes | None = None
    """The effect of the present list, if this process has made another run the owner of OUT."""


def reserve(store: Store, run: RunFile, listing: Listing, overwrite: bool = False) -> Reservation:
    """Reserve OUT for a run, or check that OUT already belongs to it, or continue the run of OUT with another list.

    Args:
        run: the content of run.json if none is stored yet. `items` is the number of items in the list.
        overwrite: take OUT over with a new generation, and erase what earlier runs wrote.

    Raises:
        ConfigError: OUT holds merged outputs that no run of voxbatch made.
        RunMismatchError: OUT belongs to another run, which this one does not continue.
        TakenOverError: another run took OUT over meanwhile.
        CheckpointError: somebody changed a merged output, which the continued run would replace; or see `run_file.read`
            and `continuation.carry_over`.
    """
    if foreign := foreign_outputs(store):
        raise ConfigError(
            f"{store.place} holds {', '.join(foreign)} but no {RUN_FILE}: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )
    if overwrite:
        run = _take_over(store, replace(run, generation=run_file.new_generation()))
        write_items(store, run.key, listing.keys)
        return Reservation(run, run, is_new=True)
    is_new = store.create(RUN_FILE, [run.to_bytes()])
    before = owner = run_file.read(store) or run
    changes, retried = None, listing.retried
    while True:
        is_carried, is_same = True, owner.run_id == run.run_id
        if is_same:
            ensure_items(store, owner, listing.keys)
            is_carried = carry_over(store, owner, run.items)
        else:
            _check_continues(store, owner, run, listing)
        if is_same and is_carried and retried is None:
            return Reservation(owner, before, is_new, changes)
        if listing.shards > 1:
            raise ConfigError(_needs_one_task(store, listing))
        later = replace(run, continues=_continued(store, owner, retried))
        planned = plan(store, np.asarray(listing.keys), later.continues)
        if is_same and is_carried and not planned.changes.retried:
            return Reservation(owner, before, is_new, changes)
        _check_unchanged(store, owner)
        owner = take_over(store, owner, later, planned)
        if owner.continues == later.continues:
            retried, changes = None, planned.changes


def _continued(store: Store, owner: RunFile, retried: str | None) -> tuple[Continued, ...]:
    """Return the generations that a run continues after the owner of OUT: the owner, and those that it has not yet
    taken over completely."""
    older = [each for each in owner.continues if part_names(store, each.key.generation)]
    strongest = [ALL if ALL in (each.retried, retried) else each.retried or retried for each in older]
    return (
        Continued(owner.key, retried),
        *(replace(each, retried=value) for each, value in zip(older, strongest, strict=True)),
    )


def _check_continues(store: Store, owner: RunFile, run: RunFile, listing: Listing) -> None:
    """Check that a run may continue the owner of OUT: only the list differs, and it may differ.

    A manifest that somebody wrote is fixed. But a run with `--limit` may be followed by one with more of its lines.
    A list of another folder needs `--update`, because recordings of two folders often have the same names, and the one
    would replace the transcripts of the other.

    Raises:
        RunMismatchError: the run may not.
    """
    before, now = _flat(owner.identity), _flat(run.identity)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names == ["manifest"]:
        has_limit = owner.facts.config.get("limit") is not None or run.facts.config.get("limit") is not None
        is_same_place = listing.grows and owner.folder in (None, run.folder)
        if listing.is_update or is_same_place or (has_limit and has_same_items(store, owner, np.asarray(listing.keys))):
            return
    differing = [f"{name} was {_shortened(before.get(name))}, is {_shortened(now.get(name))}" for name in names]
    hint = ""
    if names == ["manifest"] and listing.grows:
        differing = [f"it has recordings in {owner.folder}, and this run those in {run.folder}"]
        hint = "If these are the same recordings in another place, and further ones, add --update. "
    elif names == ["manifest"]:
        hint = (
            "To continue it with the present manifest, which keeps the transcripts of unchanged lines, add --update. "
        )
    elif not part_names(store, owner.generation):
        hint = "It has committed nothing yet: unless it is still at work, --overwrite loses nothing. "
    raise RunMismatchError(
        f"{store.place} holds another run ({owner.run_id}, this one is {run.run_id}): {'; '.join(differing)}. {hint}"
        "Choose another OUT with -o (another name for an upload), or erase the old outputs with --overwrite"
    )


def _check_unchanged(store: Store, owner: RunFile) -> None:
    """Check that the merged outputs of a finished run are as it wrote them, because the run that continues it will
    replace them.

    Raises:
        CheckpointError: a file was changed.
    """
    summary = read_summary(store)
    if summary is None or not summary.is_of(owner.key):
        return
    for name, written in summary.outputs.items():
        if store.exists(name) and digest_of(store, name) != written:
            raise CheckpointError(
                f"{store.place}/{name} was changed or damaged, and would be replaced. Keep a copy if the change is "
                f"yours; then remove the file and run again: {remove_command(store.place, name)}"
            )


def _needs_one_task(store: Store, listing: Listing) -> str:
    """Return the message for several tasks that find another list, or a list that is not taken over completely."""
    return (
        f"{store.place} was started with another list of recordings, and {listing.shards} shards or tasks cannot "
        "change the list together. Run the same command once as one task (--tasks none, without --shard), or give a "
        "manifest, or give all tasks another OUT with -o"
    )


@contextlib.contextmanager
def released_if_empty(store: Store, run: RunFile) -> Iterator[None]:
    """Remove run.json again if the context ends with an error before anything was committed, so that a run with another
    model may have OUT: the model of this one may never have been loaded. A run.json of another run stays.

    Args:
        run: the run that this process has created in OUT.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(VoxbatchError):
            owner = run_file.read(store)
            if owner is not None and owner.key == run.key and not part_names(store, run.generation):
                store.delete(items_name(run.generation))
                store.delete(RUN_FILE)
        raise


def _take_over(store: Store, run: RunFile) -> RunFile:
    """Make a run the owner of OUT, and delete the files of all earlier runs.

    The files are listed first: a run that takes OUT over later than this one, while this process is suspended, writes
    its files after the list was made. Then run.json is replaced, so that processes of the earlier runs end before they
    commit anything more. If this process is killed while it deletes, the same command without `--overwrite` continues,
    and another `--overwrite` finds the remaining files.
    """
    try:
        run_file.read(store)
    except CheckpointError as e:
        raise ConfigError(
            f"{store.place}/{RUN_FILE} was not written by this version of voxbatch, and the other files may not be its "
            "own either: --overwrite deletes nothing here; choose another OUT with -o, or delete this one by hand"
        ) from e
    old = find_old_files(store)
    store.write(RUN_FILE, [run.to_bytes()])
    erase(store, old, run_file.Ownership(store, run.key))
    return run


def refuse_nested(place: str, store_options: StoreOptions) -> None:
    """Refuse an OUT that lies among the files of another OUT, if that OUT exists already.

    Raises:
        ConfigError: OUT lies there.
    """
    for folder, name in layout_names_in(place):
        outer = None
        with contextlib.suppress(CheckpointError, StorageError, ConfigError):  # no OUT, or not readable for this user
            outer = run_file.read(open_store(folder, store_options))
        if outer is not None:
            raise ConfigError(
                f"-o {place} lies in {name}/ of {folder}, which holds the outputs of another run: choose another OUT "
                "(another name for an upload)"
            )


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an identity, those of the decoding by their own names: {"decoding beam_size": 5, …}."""
    decoding = identity.get("decoding")
    options = decoding if isinstance(decoding, dict) else {}
    return {
        **{name: value for name, value in identity.items() if value is not decoding},
        **{f"decoding {name}": value for name, value in options.items()},
    }


def _shortened(value: Any) -> str:
    """Return a value of the identity for a message: the first digits of a SHA-256 digest, all of any other value."""
    return value[:12] + "…" if isinstance(value, str) and len(value) == 64 else str(value)
