"""The file of a calibration: write it, and read it for a run of the same model."""

from __future__ import annotations

import json
import os

from voxbatch.calibration import Calibration, CalibrationFile
from voxbatch.errors import ConfigError
from voxbatch.output.run_file import EngineFacts
from voxbatch.output.stored_json import json_bytes
from voxbatch.storage import (
    DEFAULT_STORE_OPTIONS,
    Store,
    StoreOptions,
    is_remote,
    open_remote,
    open_store,
    redacted,
)
from voxbatch.storage.local import LocalStore

MAX_BYTES = 1 << 20
"""Size of the largest file that is read. A calibration has about 20 kB."""


def write_calibration(calibration: Calibration, path: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> None:
    """Write a calibration to a file, or to an address in a bucket. It appears at once and replaces an earlier one.

    Raises:
        ConfigError, StorageError: nothing can be written there.
    """
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        target: Store = open_store(folder, store_options)
    else:
        folder, name = os.path.split(path)
        target = LocalStore(folder or ".", alternative="choose another file")
    target.write(name, [json_bytes(calibration.to_dict(), indent=None) + b"\n"])


def read_calibration(path: str, store_options: StoreOptions = DEFAULT_STORE_OPTIONS) -> CalibrationFile:
    """Return the calibration in a file or at an address.

    Raises:
        ConfigError: there is no such file, or it is no calibration of this version.
        StorageError: the address cannot be read.
    """
    try:
        with open_remote(path, store_options) if is_remote(path) else open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"--calibration {path}: {e.strerror}; give a file that voxbatch calibrate wrote") from e
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("it is too large")
        return CalibrationFile(redacted(path) if is_remote(path) else path, Calibration.from_dict(json.loads(content)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(
            f"--calibration {path}: not a calibration, damaged, or of another version of voxbatch "
            f"({type(e).__name__}: {e!s:.80}); make it again: voxbatch calibrate OUT -o FILE"
        ) from e


def calibration_for(
    path: str, engine: EngineFacts, store_options: StoreOptions = DEFAULT_STORE_OPTIONS
) -> CalibrationFile:
    """Return the calibration in a file, for a run of this engine.

    Raises:
        ConfigError: see `read_calibration`; or it is of another model.
        StorageError: the address cannot be read.
    """
    found = read_calibration(path, store_options)
    found.calibration.refuse_other_model(f"--calibration {found.place}", engine.name, engine.model, engine.decoding)
    return found
