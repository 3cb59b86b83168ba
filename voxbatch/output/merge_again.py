"""Merge the parts of a run that is recorded in OUT once more: for further files of single items, or a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.item_files import ItemFiles, latest_config
from voxbatch.output.merge import merge
from voxbatch.output.ownership import takeover_explained
from voxbatch.output.summary import Summary
from voxbatch.storage import DEFAULT_STORES, Store, Stores


def merge_again(
    store: Store,
    changes: Mapping[str, Any] | None = None,
    log: Log | None = None,
    stores: Stores = DEFAULT_STORES,
    calibration: str | None = None,
) -> Summary:
    """Merge the parts of the run that is recorded in OUT, and write further files of single items.

    Args:
        changes: settings of ItemFiles that differ from those of the latest merge, or else of the run, by their names in
            a config.
        log, stores: see `merge`.
        calibration: file of a calibration, to estimate the WER. None keeps the estimate of the latest merge.

    Raises:
        ConfigError: no run was started there, or the calibration is damaged or of another model.
        CheckpointError, TakenOverError: see `merge`.
    """
    run = run_file.read_existing(store)
    with takeover_explained(store, run):
        files = ItemFiles.of({**latest_config(store, run), **(changes or {})})
        if files.formats:
            run.check_reader("formats", store.place)
        if files.beside:
            run.check_reader("beside", store.place)
        calibrated = None
        if calibration:
            from voxbatch.scoring.calibration import calibration_for

            run.check_reader("calibrate", store.place)
            engine = run.facts.engine
            calibrated = calibration_for(calibration, engine.name, engine.model, engine.decoding, stores)
        return merge(store, run, files, log, stores, calibrated)
