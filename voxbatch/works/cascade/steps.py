"""Do the least sure items of a run again with a larger model: the steps of a cascade that differ.

The first pass is a run with the small model. `overlay` chooses the items of the second pass, and lays its
entries over those of the first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from voxbatch.config import DEFAULT_SHARE, RunOptions
from voxbatch.engines import EngineSpec, create, options_with_kernels
from voxbatch.engines.refusals import language_refusal
from voxbatch.errors import ConfigError
from voxbatch.languages import primary_subtag
from voxbatch.log import Log
from voxbatch.manifest import Survey
from voxbatch.output.entries import Entries, complete_entries
from voxbatch.output.layout import FIRST, SECOND
from voxbatch.output.run_file import Run
from voxbatch.runner.job import Job, RemainingWork
from voxbatch.runner.prepare import worker_environments
from voxbatch.runner.steps import Addition, steps_of
from voxbatch.runner.transcribe import resume
from voxbatch.safe_text import counted
from voxbatch.storage import Store
from voxbatch.storage.columns import ItemSet
from voxbatch.works.cascade.options import models_of
from voxbatch.works.cascade.overlay import Amount, chosen, done_items

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import CalibrationFile

_Options = TypeVar("_Options", bound=RunOptions)


def second_config(config: _Options) -> _Options:
    """Return the options of the second pass of a cascade: the large model does items of all shards."""
    return replace(config, cascade=None, model=models_of(config).large, shard=0, shards=1)


def large_engine(config: RunOptions, small: str) -> tuple[str, Mapping[str, str]]:
    """Return the engine of the large model of a cascade, and its options.

    --engine-option is for the engine of the small model: another engine knows other options.

    Args:
        small: the engine of the small model.
    """
    second = second_config(config)
    name = steps_of(second).choose_engine().name
    options = steps_of(second if name == small else replace(second, engine_options={})).engine_options(name)
    return name, options_with_kernels(name, options, config.kernel_cache)


def large_spec(config: RunOptions, small: EngineSpec) -> EngineSpec:
    """Return the properties of the large model of a cascade, which is not loaded.

    Raises:
        ConfigError: the engine does not take the model, one of the two gives no confidence, or the large one cannot do
            what the options ask for.
    """
    second = second_config(config)
    engine, options = large_engine(config, small.name)
    with contextlib.closing(create(engine, second.model, options, config.stores)) as created:
        spec = created.spec
    for model in (small, spec):
        if not model.confidence:
            raise ConfigError(
                f"--cascade chooses by confidence, and {model.model} of the engine {model.name} gives none; take "
                "another model, or leave it out"
            )
    steps_of(second).check(spec)
    return spec


@dataclass(frozen=True, slots=True, eq=False)
class CascadePass:
    """The second pass of a cascade: the large model does some of the items again."""

    job: Job
    """The same run with the large model, as one shard: any process may do all of it."""
    num_items: int
    shards: int
    """Number of shards of the first pass."""

    def remaining(self, store: Store, log: Log) -> RemainingWork:
        """Return the items that the second pass has to do. The first pass is complete.

        Raises:
            CheckpointError: a part is missing, damaged or of another run.
        """
        job = self.job
        entries = complete_entries(store, replace(job.run, pass_name=FIRST), self.shards, log)
        items = chosen(entries.of_pass(), Amount.of(job.run), self.num_items, job.run.items)
        return resume(job, items, time.monotonic())


class LargeModel:
    """The large model of a cascade."""

    def __init__(self, options: RunOptions, small: EngineSpec) -> None:
        """Create it, without loading it; see `large_spec`."""
        self._options, self.spec = options, large_spec(options, small)

    def notes(self, surveyed: Survey) -> list[str]:
        """Return a sentence for each language of the manifest that the large model does not know."""
        refusals = {lang: language_refusal(self.spec, primary_subtag(lang)) for lang in surveyed.languages}
        return [
            f"{counted(surveyed.languages[lang], 'item')} in language {lang!r} keep the text of the small model: "
            f"{reason}"
            for lang, reason in refusals.items()
            if reason
        ]

    def identity(self, calibration: CalibrationFile | None) -> dict[str, Any]:
        """Return the part of a run's identity that is about its second pass."""
        models, fit = models_of(self._options), calibration.calibration.fit if calibration else None
        amount = Amount(models.share, models.wer, fit)
        decided = {"model": self.spec.model, "decoding": dict(self.spec.decoding), **amount.to_dict()}
        return {"cascade": decided}

    def second_pass(self, job: Job, num_items: int) -> CascadePass:
        """Return the second pass of a job."""
        engine, options = large_engine(job.config, job.engine)
        second = replace(
            job,
            engine=engine,
            engine_options=options,
            config=second_config(job.config),
            run=replace(job.run, pass_name=SECOND),
            decoding=dict(self.spec.decoding),
            windows=self.spec.windows,
            worker_environments=worker_environments(self.spec, job.config.workers),
        )
        return CascadePass(second, num_items, job.config.shards)


@dataclass(frozen=True, slots=True)
class LargeOptions:
    """What is known of the second pass before the large model is created; see steps.SecondOptions."""

    share: float
    by_wer: bool
    identity_name: str = "cascade"

    def of(self, options: _Options) -> _Options:
        """See SecondOptions."""
        return second_config(options)

    def items_left(self, store: Store, run: Run, num_items: int) -> ItemSet:
        """See SecondOptions."""
        entries = Entries(store, replace(run, pass_name=FIRST)).of_pass()
        return chosen(entries, Amount.of(run), num_items, run.items) - done_items(store, run)


class Cascade(Addition):
    """Do the least sure items again."""

    def second_options(self) -> LargeOptions:
        """See Addition."""
        share = models_of(self.options).share
        return LargeOptions(share or DEFAULT_SHARE, by_wer=share is None)

    def second_model(self, spec: EngineSpec) -> LargeModel:
        """See Addition."""
        return LargeModel(self.options, spec)
