"""The findings of `voxbatch doctor` about a machine, and what an engine tells it: see Registration.checks_path."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from voxbatch.config import RunOptions
from voxbatch.errors import EngineError


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one component of the installation."""

    name: str
    state: str
    """ "ok", "warning", "missing" or "failed"."""
    detail: str
    """The version or the place if the state is "ok". Otherwise the reason, and the command that helps."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that can be read, for which there is room."""

    model: str | None
    """The value of --model with which the engine can be created."""
    weights: int | None = None
    """Size of its weights in bytes; None if it is not known."""
    warning: str = ""
    """A warning, if the memory of the GPUs may not suffice."""


class EngineChecks(Protocol):
    """The module of an engine's checks. Nothing large is imported, and nothing is loaded."""

    def findings(self, asked: RunOptions) -> Iterator[Finding]:
        """Yield the findings about the engine's library and its default model."""

    def needs_gpu(self) -> bool:
        """Return whether the engine is installed and does not start on this machine without a GPU that works."""

    def check_installed(self) -> None:
        """Check the version of the engine's library.

        Raises:
            VoxbatchError: it does not fit.
        """

    def check_model(self, asked: RunOptions, folder: Path) -> CheckedModel:
        """Check that the model of a run can be read, that there is room for it, and that it fits into the GPUs.

        Args:
            folder: an empty folder, for the small files of a model in a bucket: its weights are not fetched.

        Raises:
            VoxbatchError: the run would fail.
        """


def require_room(name: str, fetched: int, place: Path) -> None:
    """Check that the files of a model have room on the disk.

    Raises:
        EngineError: they have not.
    """
    if fetched > (free := _free_bytes(place)):
        raise EngineError(
            f"{name}: {fetched / 1e9:.1f} GB are to be fetched to {place}, and {free / 1e9:.1f} GB are free there: set "
            "XDG_CACHE_HOME and HF_HOME to folders with more room, or give the container more disk (on Cloud Run, "
            "memory)"
        )


def _free_bytes(place: Path) -> int:
    """Return the free bytes of the disk on which a folder lies or will be created."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
