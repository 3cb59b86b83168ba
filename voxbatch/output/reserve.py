"""Reserve OUT for a run: create run.json, or check that OUT belongs to the run, or take OUT over (`--overwrite`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError, StorageError
from voxbatch.output import run_file
from voxbatch.output.erase import erase, find_old_files
from voxbatch.output.layout import RUN_FILE, foreign_outputs, layout_names_in
from voxbatch.output.run_file import RunFile
from voxbatch.storage import Store, StoreOptions, open_store


def reserve(store: Store, run: RunFile, overwrite: bool = False) -> RunFile:
    """Reserve OUT for a run, or check that OUT already belongs to it.

    Args:
        run: the content of run.json if none is stored yet.
        overwrite: take OUT over with a new generation, and erase what earlier runs wrote.

    Returns:
        The stored run.json, which an earlier run or another process may have written.

    Raises:
        ConfigError: OUT holds merged outputs that no run of voxbatch made.
        RunMismatchError: OUT belongs to another run.
        TakenOverError: another run took OUT over while this one erased files.
        CheckpointError: see `run_file.read`.
    """
    if foreign := foreign_outputs(store):
        raise ConfigError(
            f"{store.place} holds {', '.join(foreign)} but no {RUN_FILE}: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )
    if overwrite:
        return _take_over(store, replace(run, generation=run_file.new_generation()))
    store.create(RUN_FILE, [run.to_bytes()])
    recorded = run_file.read(store) or run
    if recorded.run_id != run.run_id:
        before, now = _flat(recorded.identity), _flat(run.identity)
        differing = [
            f"{name} was {_shortened(before.get(name))}, is {_shortened(now.get(name))}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        raise RunMismatchError(
            f"{store.place} holds another run ({recorded.run_id}, this one is {run.run_id}): {'; '.join(differing)}. "
            "Choose another OUT with -o (another name for an upload), or erase the old outputs with --overwrite"
        )
    return recorded


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
