"""Tell what OUT already has of a run, for its estimate. All parts are read, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxbatch.config import Config
from voxbatch.engines import EngineSpec
from voxbatch.errors import CheckpointError, StorageError, UsageError
from voxbatch.manifest import Source, Survey
from voxbatch.output.further_list import Plan, check_continues, check_is_one_task, plan
from voxbatch.output.layout import listed_parts
from voxbatch.output.run_file import Run
from voxbatch.output.run_file import read as read_run
from voxbatch.runner.carrying import PresentRows, carried_items, carried_text
from voxbatch.runner.prepare import calibration_of, identity_of, listing_of
from voxbatch.runner.steps import steps_of
from voxbatch.storage import Store
from voxbatch.storage.columns import ItemSet

if TYPE_CHECKING:
    from voxbatch.runner.job import SecondModel


@dataclass(frozen=True, slots=True, eq=False)
class DoneBefore:
    """The part of a run that OUT has."""

    items: ItemSet
    """Items that are finished, or whose rows get the transcripts of earlier rows."""
    text: str = ""
    """How this run would continue the one in OUT, for people. Empty if OUT has no run."""
    second: ItemSet | None = None
    """Items that the second pass still has to do. None if there is no second pass, or its items are not chosen yet."""


def done_before(
    config: Config, source: Source, surveyed: Survey, spec: EngineSpec | None, second: SecondModel | None = None
) -> DoneBefore:
    """Return what the run in OUT has finished.

    Args:
        spec: properties of the engine of this run. None if its model is not here: then it is taken for that of OUT if
            both runs name it alike.
        second: the model of a second pass. None if there is none, or it is not here.
    """
    nothing = DoneBefore(ItemSet(surveyed.items))
    try:
        store = config.stores.out(config.out)
        owner = read_run(store)
    except (UsageError, CheckpointError, StorageError) as e:
        return replace(nothing, text=f"unknown: {e}")
    if owner is None:
        return nothing
    options, shown = steps_of(config).second_options(), config.to_dict()
    models = ("model", *([options.identity_name] if options else ()))
    if spec is None and any(owner.facts.config.get(name) != shown.get(name) for name in models):
        return nothing
    try:
        return _continued(config, source, surveyed, store, owner, _known_identity(owner, config, spec, second))
    except UsageError as e:
        return replace(nothing, text=f"this run would be refused: {e}")
    except (CheckpointError, StorageError) as e:
        return replace(nothing, text=f"unknown: {e}")


def _continued(
    config: Config, source: Source, surveyed: Survey, store: Store, owner: Run, identity: dict[str, Any]
) -> DoneBefore:
    """Return what the owner of OUT has finished of a run with this identity."""
    run = replace(
        owner,
        identity=identity,
        manifest=surveyed.fingerprint,
        folder=source.base,
        facts=replace(owner.facts, config={**owner.facts.config, "limit": config.limit}),
    )
    if owner.settings != run.settings:
        check_continues(store, owner, run, listing_of(config, surveyed, source.grows))
        check_is_one_task(store, config.shards)
    names, keys = listed_parts(store, owner.generation), np.asarray(surveyed.keys)
    planned = plan(store, owner.key, names, keys, owner, config.retry_failed)
    done, text = ItemSet(surveyed.items), str(planned.changes)
    done.add(np.flatnonzero(planned.is_done))
    if planned.changes.changed and (carried := _carried(config, source, store, owner, planned, done)).any():
        for start, is_in in carried.blocks():
            done.add(start + np.flatnonzero(is_in))
        text += f"; {carried_text(carried.count())}"
    options = steps_of(config).second_options()
    if options is None or owner.settings != run.settings or done.count() < surveyed.items:
        return DoneBefore(done, text)
    left = options.items_left(store, owner, surveyed.items).to_bytes()[: -(-surveyed.items // 8)]
    return DoneBefore(done, text, ItemSet.of_bytes(surveyed.items, left))  # the items of the manifest come first


def _carried(config: Config, source: Source, store: Store, owner: Run, planned: Plan, done: ItemSet) -> ItemSet:
    """Return the items of the manifest whose rows get the transcripts of earlier rows."""
    steps, size = steps_of(config), done.size
    if not steps.carries_over:
        return ItemSet(size)
    further = replace(owner, list_number=1 + max(owner.list_number, planned.last_list), items=len(planned.keys))
    rows = PresentRows(
        store, further, planned.keys[:size], source.inheritable(), steps.path_policy(), owner.folder or source.base
    )
    return carried_items(rows, ItemSet(size, is_full=True) - done)


def _known_identity(owner: Run, config: Config, spec: EngineSpec | None, second: SecondModel | None) -> dict[str, Any]:
    """Return the identity of a run in which what is unknown is as in OUT: the voices, and the properties of models that
    are not here."""
    known, options = config.identity(), steps_of(config).second_options()
    unknown = {"voices", *(() if spec else ("engine", "model", "decoding"))}
    if spec:
        known = identity_of(config, spec, ())
        if second:
            known |= second.identity(calibration_of(config, spec))
    if options and not second:
        unknown.add(options.identity_name)
    return {**known, **{name: owner.identity[name] for name in unknown if name in owner.identity}}
