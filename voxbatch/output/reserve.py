"""Reserve OUT for a run: create run.json, or check that OUT belongs to the run, or take OUT over.

A run takes OUT over with `--overwrite`. It continues the run of OUT with another list of recordings, or does failed
items again, by a further list: see the modules `run_file` and `further_list`. The list is created if absent, so that of
several processes exactly one decides which list that is. Then processes of the earlier list end before they commit
anything more.

A run that ends before its model gave a result, and before anything was committed, releases OUT again. A run.json that a
killed process left without any part is not taken for free: the process may also be one that still loads its model, and
a mistyped command must not end it. `--overwrite` takes such an OUT, and erases nothing.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from voxbatch.errors import CheckpointError, ConfigError, StorageError, TakenOverError, VoxbatchError
from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.layout import (
    RUN_FILE,
    foreign_outputs,
    layout_names_in,
    list_name,
    list_names,
    listed_parts,
    part_names,
)
from voxbatch.output.lists import ItemList, Listing
from voxbatch.output.parts import read_headers
from voxbatch.output.run_file import ItemKeys, Run, create_list
from voxbatch.output.shown import wait_until_shown
from voxbatch.storage import Store, Stores
from voxbatch.storage.columns import Column

if TYPE_CHECKING:
    from voxbatch.output.further_list import Changes


@dataclass(frozen=True, slots=True)
class Reservation:
    """An OUT that belongs to the run."""

    run: Run
    """The run in OUT with its latest list, which another process may have written."""
    before: Run
    """The run and the list that OUT had when this process came."""
    is_new: bool = False
    """True if this process has written run.json."""
    changes: Changes | None = None
    """The effect of the present list, if this process has created a further one."""


def reserve(store: Store, run: Run, listing: Listing, overwrite: bool = False, log: Log | None = None) -> Reservation:
    """Reserve OUT for a run, or check that OUT already belongs to it, or continue the run of OUT with another list.

    Args:
        run: the run if no other is in OUT. `items` is the number of items of the manifest.
        overwrite: take OUT over with a new generation, and erase what earlier runs wrote.

    Raises:
        ConfigError: OUT holds merged outputs that no run of voxbatch made.
        RunMismatchError: OUT belongs to another run, which this one does not continue.
        TakenOverError: another run took OUT over meanwhile.
        CheckpointError: run.json, the latest list or a part is damaged.
        StorageError: OUT cannot be read or written, or does not show a list that exists.
    """
    log = log or Log(quiet=True)
    _refuse_foreign(store)
    if overwrite:
        run = replace(run, generation=secrets.token_hex(6))
        from voxbatch.output.erase import take_over

        take_over(store, run, listing.keys, log)
        return Reservation(run, run, is_new=True)
    is_new = store.create(RUN_FILE, [run.to_bytes()])
    before, changes, retried, planned_names = None, None, listing.retried, list[str]()
    while True:
        owner = _owner(store, run)
        before, is_same = before or owner, owner.settings == run.settings
        if not is_same:
            from voxbatch.output.further_list import check_continues

            check_continues(store, owner, run, listing)
        # None of several tasks may change the list, so each reads only the parts of its own shard.
        names = (part_names if listing.shards == 1 else listed_parts)(store, owner.generation)
        if not names and not owner.list_number:
            _has_created(store, replace(owner, list_number=1), listing.keys, log)
            continue
        # A process of the list before may have committed parts until the list of this process was created.
        has_all = owner.list_number > 0 and is_same and (changes is None or names == planned_names)
        is_known = (changes is not None or listing.shards > 1) and owner.items == len(listing.keys)
        if has_all and retried is None and (is_known or _has_all_parts(store, owner, names)):
            return Reservation(owner, before, is_new, changes)
        from voxbatch.output.further_list import check_is_one_task, further, plan

        if not has_all:
            check_is_one_task(store, listing.shards)
        earlier = owner if owner.list_number else None
        planned = plan(store, owner.key, names, np.asarray(listing.keys), earlier, retried)
        if planned.last_list > owner.list_number and store.exists(list_name(planned.last_list, owner.generation)):
            _wait_for_list(store, owner.generation, planned.last_list, log)  # another process has created it meanwhile
            continue
        has_retried = retried is not None and planned.changes.retried > 0
        is_complete = planned.last_list <= owner.list_number and len(planned.keys) == owner.items
        if owner.list_number and is_same and is_complete and not has_retried:
            return Reservation(owner, before, is_new, changes)
        check_is_one_task(store, listing.shards)
        run.products.check_changes(store.place, planned.changes)
        if _has_created(store, further(owner, run, planned, retried), planned.keys, log):
            retried, changes, planned_names = None, changes or planned.changes, names


def _has_created(store: Store, run: Run, keys: ItemKeys | Column, log: Log) -> bool:
    """Write the list of a run, unless another process has. Return whether this process has written it."""
    is_mine = create_list(store, run, keys)
    if not is_mine:
        _wait_for_list(store, run.generation, run.list_number, log)
    return is_mine


def _wait_for_list(store: Store, generation: str, number: int, log: Log) -> None:
    """Wait until the store shows a list that exists.

    Raises:
        StorageError: the store does not show it.
    """
    name = list_name(number, generation)
    hidden = f"{store.place}/{name} exists, and the store does not show it"
    if wait_until_shown(lambda: name in list_names(store, generation) or None, hidden, log) is None:
        raise StorageError(f"{hidden}; run again later")


def _has_all_parts(store: Store, owner: Run, names: Sequence[str]) -> bool:
    """Return whether the headers of the parts show that the latest list has all their items. Otherwise, the latest list
    may be missing, or a process of an earlier list may have committed a transcript that the latest list does not have.
    """
    if owner.list_number == 1:
        # Within the folder of a shard, the parts of a later list follow those of an earlier one: the last part decides.
        names = list({name.rpartition("/")[0]: name for name in names}.values())
    latest = ItemList(store, owner)
    for header in read_headers(store, names, owner.key):
        is_earlier = header.list_number < owner.list_number
        if header.list_number > owner.list_number or (is_earlier and not latest.index.find(header.item_keys)[1].all()):
            return False
    return True


def _refuse_foreign(store: Store) -> None:
    """Raise ConfigError if OUT has merged outputs and no run.json."""
    if foreign := foreign_outputs(store):
        raise ConfigError(
            f"{store.place} holds {', '.join(foreign)} but no {RUN_FILE}: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )


def _owner(store: Store, run: Run) -> Run:
    """Return the run in OUT. If it has no list, it has the facts of `run` and the list number 0: no process has written
    a list yet, or a person has removed it because it was damaged."""
    if (owner := run_file.read(store)) is not None:
        return owner
    if (file := run_file.read_file(store)) is None:
        raise TakenOverError(f"{store.place}/{RUN_FILE} is gone: OUT was deleted or moved during the start of the run")
    return replace(
        run,
        run_id=file.run,
        generation=file.generation,
        identity=file.identity,
        language=file.language,
        list_number=0,
    )


@contextlib.contextmanager
def released_if_empty(store: Store, run: Run) -> Iterator[None]:
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
            is_mine = owner is not None and (owner.key, owner.list_number) == (run.key, run.list_number)
            if is_mine and not part_names(store, run.generation):
                for name in (*list_names(store, run.generation), RUN_FILE):
                    store.delete(name, functools.partial(_check_key, store, run))
        raise


def _check_key(store: Store, run: Run) -> None:
    """Raise TakenOverError if OUT belongs to another run."""
    file = run_file.read_file(store)
    if file is None or file.key != run.key:
        raise TakenOverError(f"{store.place}: another run took OUT over")


def refuse_nested(place: str, stores: Stores) -> None:
    """Refuse an OUT that lies among the files of another OUT, if that OUT exists already.

    Raises:
        ConfigError: OUT lies there.
    """
    for folder, name in layout_names_in(place):
        outer = None
        with contextlib.suppress(CheckpointError, StorageError, ConfigError):  # no OUT, or not readable for this user
            outer = run_file.read_file(stores.out(folder))
        if outer is not None:
            raise ConfigError(
                f"-o {place} lies in {name}/ of {folder}, which holds the outputs of another run: choose another OUT"
            )
