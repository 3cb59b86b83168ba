"""The interface of an addition that does some of the items again with a second model. It has types alone."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from voxbatch.config import RunOptions
from voxbatch.engines import EngineSpec
from voxbatch.manifest import Survey
from voxbatch.runner.prepare import Job
from voxbatch.runner.transcribe import RemainingWork
from voxbatch.scoring.calibration import CalibrationFile
from voxbatch.storage import Store

OptionsT = TypeVar("OptionsT", bound=RunOptions)


class SecondPass(Protocol):
    """The second pass of a job."""

    @property
    def job(self) -> Job:
        """The same run with the second model."""

    def remaining(self, store: Store) -> RemainingWork:
        """Return the items that it has to do. The first pass is complete."""


class SecondModel(Protocol):
    """A second model, which does some of the items again."""

    spec: EngineSpec

    def notes(self, surveyed: Survey) -> list[str]:
        """Return what the user should know about the model."""

    def identity(self, calibration: CalibrationFile | None) -> dict[str, Any]:
        """Return its part of the identity of the run."""

    def second_pass(self, job: Job, num_items: int) -> SecondPass:
        """Return the second pass of a job."""


class SecondOptions(Protocol):
    """What is known of a second pass before its model is created."""

    @property
    def share(self) -> float:
        """Expected part of the audio that it does again."""

    @property
    def by_wer(self) -> bool:
        """True if an expected word error rate decides, and not the share."""

    def of(self, options: OptionsT) -> OptionsT:
        """Return the options of the second pass of a run with these options."""
