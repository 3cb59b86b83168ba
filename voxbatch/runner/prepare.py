"""Prepare a run: check everything that can be refused before a model is loaded, and reserve OUT.

The result is a Job, which holds all that is decided once for the run. A worker process gets the same Job.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import voxbatch
from voxbatch import audio, engines
from voxbatch.calibration import CalibrationFile
from voxbatch.config import Config, RunOptions, digest
from voxbatch.engines import EngineCache, EngineSpec
from voxbatch.errors import ConfigError
from voxbatch.languages import language_name
from voxbatch.log import Log
from voxbatch.manifest import InheritableSource, PathPolicy, QuestionPolicy, Source, Survey, open_source, survey
from voxbatch.output.calibration_file import calibration_for
from voxbatch.output.reserve import Listing, refuse_nested, reserve
from voxbatch.output.run_file import EngineFacts, RunFacts, RunFile
from voxbatch.runner.pipeline import PipelineOptions
from voxbatch.runner.question_checks import check_lengths
from voxbatch.storage import StoreOptions, open_store
from voxbatch.storage.columns import Column


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """A run that may begin: the manifest is valid, the engine exists, and OUT belongs to the run.

    A Job can be pickled for a process that inherits the descriptors of `source` and `durations`. It names the engine
    and does not hold it, because each process loads its own.
    """

    run: RunFile
    """The record of the run, with this process's own facts. The record in OUT may have the facts of another process."""
    is_new: bool
    """True if this process has created the record in OUT, for a run that continues no other."""
    source: InheritableSource
    """The manifest. The process that prepared the job keeps it open."""
    path_policy: PathPolicy
    """Rule for the paths that the manifest may name."""
    limit: int | None
    """Number of items that are read from the manifest. None means all."""
    durations: Column
    """Seconds of each item of the run, float32, NaN if unknown. Transcripts of earlier runs that are not in
    the manifest follow its items; see output.continuation."""
    shard: int
    shards: int
    out: str
    store_options: StoreOptions
    """How OUT, the recordings and the model are accessed."""
    engine: str
    """Name of the engine."""
    model: str | None
    engine_options: Mapping[str, str]
    decoding: dict[str, Any]
    """Options of the engine that influence the text; see EngineSpec. The run's identity contains them."""
    worker_environments: tuple[Mapping[str, str], ...]
    """Environment of each process that transcribes. With fewer than two, the process that prepared the job
    transcribes."""
    pipeline: PipelineOptions
    calibration: CalibrationFile | None
    """Calibration with which the merge estimates the WER."""
    fail_unreachable: bool
    """Record unreachable recordings as failed. Otherwise the run stops when a place is down."""


def open_manifest(config: Config) -> Source:
    """Open the source of a config; see manifest.open_source."""
    return open_source(config.source, store_options=config.store_options, include=config.include)


def path_policy(config: RunOptions) -> PathPolicy:
    """Return the rule for the paths that the manifest of a config may name, and for its questions.

    Raises:
        ConfigError: the rule contradicts itself, or a place is not valid.
    """
    if config.questions:
        paths = PathPolicy.from_options(config.allow_outside, config.only_under)
        prompt, is_divided = config.questions.prompt, config.questions.map_reduce
        return QuestionPolicy(paths.allow_outside, paths.only_under, prompt, is_divided)
    return PathPolicy.from_options(config.allow_outside, config.only_under)


def engine_options(config: RunOptions, engine: str) -> Mapping[str, str]:
    """Return the options with which an engine is created for a config, without the place of compiled kernels.

    Raises:
        ConfigError: the config asks questions, and the engine cannot answer them; or only its options ask.
    """
    if config.questions is None:
        if config.engine_options.get("task") == "ask":
            raise ConfigError("engine option task=ask: it is for voxbatch ask, which also has the question")
        return config.engine_options
    return engines.options_with_questions(engine, config.engine_options, config.questions.answer)


def worker_environments(spec: EngineSpec, max_workers: int) -> tuple[Mapping[str, str], ...]:
    """Return the environment of each process that transcribes. With fewer than two, one process does the whole run.

    Args:
        max_workers: see Config.workers.
    """
    return spec.workers[: max_workers or None]


def prepare(config: Config, source: Source, engine_cache: EngineCache, log: Log) -> Job:
    """Check everything that can be refused, and reserve OUT. No model is loaded.

    Args:
        source: the manifest of the config, which must stay open while the job is worked on.

    Raises:
        UsageError: the config, the manifest or OUT is wrong.
        StorageError: the source or OUT is unreachable.
    """
    choice = engines.choose(config.engine)
    policy = path_policy(config)
    surveyed = survey(source, policy, config.limit)
    options = engine_options(config, choice.name)
    with_kernels = engines.options_with_kernels(choice.name, options, config.kernel_cache)
    engine = engine_cache.get(choice.name, config.model, with_kernels, config.store_options)
    spec = engine.spec
    if config.questions and not config.questions.map_reduce:
        check_lengths(source, policy, config.limit, spec, config.store_options)
    if config.language:
        engines.require_language(engine, config.language)
    log.info("engine", text=f"engine {choice.reason}; model {spec.model}{engines.known_details(spec.license)}")
    has_no_kernels = config.kernel_cache is not None and with_kernels == options
    unused = [f"--kernel-cache has no effect: the engine {spec.name} compiles no kernels"] * has_no_kernels
    for warning in (*spec.warnings, *unused):
        log.warning("engine", text=warning)
    _log_languages(config, surveyed, spec, log)
    identity = _identity(config, surveyed, spec)
    environments = worker_environments(spec, config.workers)
    run = RunFile(
        run_id=digest(identity),
        identity=identity,
        items=surveyed.items,
        language=config.language or spec.only_language,
        folder=source.base,
        facts=_facts(config, spec, max(1, len(environments))),
    )
    calibration = None
    if config.calibration:
        calibration = calibration_for(config.calibration, run.facts.engine, config.store_options)
    store = open_store(config.out, config.store_options)
    refuse_nested(store.place, config.store_options)
    if unsafe := store.prepare():
        log.warning("unsafe_store", text=unsafe)
    listing = Listing(
        keys=surveyed.keys,
        grows=source.grows,
        is_update=config.update,
        retried=config.retry_failed,
        shards=config.shards,
    )
    reserved = reserve(store, run, listing, config.overwrite)
    recorded, owner = reserved.before, reserved.run
    if reserved.changes is not None:
        log.info("continued", text=f"{config.out} continues with {surveyed.items:,} recordings: {reserved.changes}")
    elif config.retry_failed:
        log.info("retry_failed", text=f"no failure to retry in {config.out} (--retry-failed {config.retry_failed})")
    if recorded.folder not in (None, run.folder):
        started = f"this run was started with recordings in {recorded.folder} and continues with those in {run.folder}"
        log.warning("other_folder", text=f"{started}: voxbatch assumes that they are the same")
    if recorded.facts.versions != run.facts.versions:
        started = f"this run was started with {recorded.facts.versions} and continues with {run.facts.versions}"
        log.warning("other_versions", text=f"{started}: texts may differ")
    surveyed.durations.append(np.full(owner.items - surveyed.items, np.nan))
    return Job(
        run=replace(run, generation=owner.generation, items=owner.items, continues=owner.continues),
        is_new=reserved.is_new,
        source=source.inheritable(),
        path_policy=policy,
        limit=config.limit,
        durations=surveyed.durations,
        shard=config.shard,
        shards=config.shards,
        out=config.out,
        store_options=config.store_options,
        engine=choice.name,
        model=config.model,
        engine_options=with_kernels,
        decoding=dict(spec.decoding),
        worker_environments=environments,
        pipeline=PipelineOptions(
            language=config.language,
            decoders=config.decoders,
            part_items=config.part_items,
            part_seconds=config.part_seconds,
            audio_stream=config.audio_stream,
            max_hours=config.max_hours,
            store_options=config.store_options,
            questions=config.questions,
            folder=recorded.folder or run.folder,
        ),
        calibration=calibration,
        fail_unreachable=config.fail_unreachable,
    )


def _identity(config: Config, surveyed: Survey, spec: EngineSpec) -> dict[str, Any]:
    """Return all settings that decide the texts of the outputs. Runs with the same identity may share an OUT."""
    identity: dict[str, Any] = {
        "manifest": surveyed.fingerprint,
        "engine": spec.name,
        "model": spec.model,
        "decoding": dict(spec.decoding),
        "language": config.language,
    }
    if config.audio_stream is not None:  # an OUT of a version without this option can still be continued
        identity["audio_stream"] = config.audio_stream
    if config.questions:
        identity["questions"] = asdict(config.questions)
    return identity


def _log_languages(config: Config, surveyed: Survey, spec: EngineSpec, log: Log) -> None:
    """Log what the model cannot do with the languages of the run, or without them."""
    if spec.only_language and not config.language and surveyed.languages.total() < surveyed.items:
        other = f" (--model {spec.multilingual_model})" if spec.multilingual_model else ""
        text = f"model {spec.model} knows only {language_name(spec.only_language)}: take another for other languages"
        log.info("one_language", text=f"{text}{other}")
    if (config.language or surveyed.languages) and not spec.uses_language:
        text = f"model {spec.model} recognises the language by itself: lang and --language only choose the scoring"
        log.info("language_unused", text=text)


def _facts(config: Config, spec: EngineSpec, workers: int) -> RunFacts:
    """Return the record of how this process makes the run."""
    return RunFacts(
        engine=EngineFacts(
            name=spec.name,
            model=spec.model,
            license=spec.license,
            origin=spec.origin,
            decoding=dict(spec.decoding),
            versions=dict(spec.versions),
            warnings=tuple(spec.warnings),
        ),
        voxbatch=voxbatch.__version__,
        python=platform.python_version(),
        libraries=audio.libraries(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        workers=workers,
        config=config.to_dict(),
    )
