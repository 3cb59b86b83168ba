"""The file run.json, which records the run that OUT belongs to. It is created before any output and never changed."""

from __future__ import annotations

import json
from typing import Any

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError
from voxbatch.output.erase import erase
from voxbatch.output.layout import RUN_FILE, VERSION, foreign_outputs
from voxbatch.storage import Store


def reserve(store: Store, run: dict[str, Any], overwrite: bool = False) -> dict[str, Any]:
    """Reserve OUT for a run, or check that OUT already belongs to it.

    Args:
        run: the content of run.json.
        overwrite: erase what earlier runs wrote first.

    Returns:
        The content of the run.json that is stored, which an earlier run or another process may have written.

    Raises:
        ConfigError: OUT holds merged outputs that no run of voxbatch made.
        RunMismatchError: OUT belongs to another run.
    """
    if overwrite:
        erase(store)
    if foreign := foreign_outputs(store):
        raise ConfigError(
            f"{store.place} holds {', '.join(foreign)} but no {RUN_FILE}: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )
    recorded = create(store, run)
    if recorded["run"] != run["run"]:
        raise RunMismatchError(_mismatch(store.place, recorded, run))
    return recorded


def _mismatch(place: str, recorded: dict[str, Any], run: dict[str, Any]) -> str:
    identity = run["identity"]
    differing = [
        f"{name} was {_short(before)}, is {_short(identity.get(name))}"
        for name, before in recorded["identity"].items()
        if before != identity.get(name)
    ]
    return (
        f"{place} holds another run ({recorded['run']}, this one is {run['run']}): {'; '.join(differing)}. "
        "Choose another OUT with -o (another name for an upload), or start anew with --overwrite"
    )


def _short(value: Any) -> str:
    return value[:12] + "…" if isinstance(value, str) and len(value) == 64 else str(value)


def create(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    """Create run.json if it is absent. Return the content that is stored in the end, which another process may have
    written first."""
    store.create(RUN_FILE, [json.dumps(run, indent=2, ensure_ascii=False).encode() + b"\n"])
    return read(store) or run


def read(store: Store) -> dict[str, Any] | None:
    """Return the content of run.json, or None if no run was started in this OUT.

    Raises:
        CheckpointError: the file is not a run.json of this version of voxbatch.
    """
    stored = store.read(RUN_FILE)
    if stored is None:
        return None
    try:
        run: dict[str, Any] = json.loads(stored)
        if run["version"] == VERSION and {"run", "identity", "items", "language", "facts"} <= run.keys():
            return run
    except (ValueError, KeyError, TypeError):
        pass
    raise CheckpointError(
        f"{store.place}/{RUN_FILE} was not written by this version of voxbatch; choose another OUT with -o"
    )


def read_existing(store: Store) -> dict[str, Any]:
    """Return the content of run.json.

    Raises:
        ConfigError: no run was started in this OUT.
        CheckpointError: see `read`.
    """
    if (run := read(store)) is None:
        raise ConfigError(f"{store.place}: no run was started there (it has no {RUN_FILE})")
    return run
