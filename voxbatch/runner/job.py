"""The records between the steps of a run: a Job that may begin, and the items that are left of it. And the interface of
an addition that does some of the items again with a second model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from voxbatch.config import Config, RunOptions
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec
from voxbatch.log import Log
from voxbatch.manifest import InheritableSource, PathPolicy, Survey
from voxbatch.output.attempts import AttemptRecord
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.run_file import Run
from voxbatch.records import Windows
from voxbatch.runner.progress import Progress
from voxbatch.storage import Store
from voxbatch.storage.columns import Column, ItemSet

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import CalibrationFile

OptionsT = TypeVar("OptionsT", bound=RunOptions)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """A run that may begin: the manifest is valid, the engine exists, and OUT belongs to the run.

    A Job can be pickled for a process that inherits the descriptors of `source` and `durations`. It names the engine
    and does not hold it, because each process loads its own.
    """

    config: Config
    run: Run
    """The run, with this process's own facts. The list in OUT may have the facts of another process."""
    is_new: bool
    """True if this process has created run.json in OUT."""
    source: InheritableSource
    """The manifest. The process that prepared the job keeps it open."""
    path_policy: PathPolicy
    """Rule for the paths that the manifest may name."""
    durations: Column
    """Seconds that are decoded of each item of the list, float32, NaN if unknown. Transcripts of earlier lists that are
    not in the manifest follow its items; see output.lists."""
    longest_s: float = math.inf
    """Most seconds of an item that are decoded."""
    keys: Column
    """Keys of each item of the list; see manifest.Survey."""
    folder: str | None
    """Place that relative paths of the manifest become absolute with in the output lines."""
    engine: str
    engine_options: Mapping[str, str]
    """Options with which the engine is created: those of the config, completed."""
    decoding: dict[str, Any]
    """Options of the engine that influence the text; see EngineSpec. The run's identity contains them."""
    windows: Windows
    diarization: Diarization | None
    """The way in which the decoders tell speakers apart. None if they do not."""
    worker_environments: tuple[Mapping[str, str], ...]
    """Environment of each process that transcribes. With fewer than two, the process that prepared the job
    transcribes."""
    calibration: CalibrationFile | None
    """Calibration with which the merge estimates the WER."""
    attempt: AttemptRecord | None = None
    """Record of the items that are transcribed now. None until the checkpoint is loaded."""
    second: SecondPass | None = None
    """The second pass of a cascade."""


@dataclass(frozen=True, slots=True, eq=False)
class RemainingWork:
    """The items that a process has to transcribe, and the record of those that are done."""

    assigned: ItemSet
    """The items of this process, also those that are done."""
    items: ItemSet
    """The items to transcribe."""
    checkpoint: Checkpoint
    """The checkpoint, loaded."""
    progress: Progress


class SecondPass(Protocol):
    """The second pass of a job."""

    @property
    def job(self) -> Job:
        """The same run with the second model."""

    def remaining(self, store: Store, log: Log) -> RemainingWork:
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

    @property
    def identity_name(self) -> str:
        """Name of its part of the identity of a run."""

    def items_left(self, store: Store, run: Run, num_items: int) -> ItemSet:
        """Return the items that the second pass of the run in OUT still has to do. The first pass is complete.

        Args:
            num_items: number of items in the manifest, which come first in the list.

        Raises:
            CheckpointError: a part is damaged.
        """
