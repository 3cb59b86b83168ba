"""Prepare a run: check everything that can be refused before a model is loaded, and reserve OUT.

The result is a Job, which holds all that is decided once for the run. A worker process gets the same Job.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import voxbatch
from voxbatch import audio, engines
from voxbatch.config import Config, digest
from voxbatch.engines import EngineCache, EngineSpec, multilingual_model
from voxbatch.engines.model_files import downloads_logged
from voxbatch.errors import CheckpointError, ConfigError
from voxbatch.languages import language_name
from voxbatch.log import Log
from voxbatch.manifest import Source, Survey, survey
from voxbatch.output.layout import list_name
from voxbatch.output.lease import work_on
from voxbatch.output.lists import Listing
from voxbatch.output.reserve import Reservation, refuse_nested, reserve
from voxbatch.output.run_file import EngineFacts, Run, RunFacts, read_keys
from voxbatch.output.run_file import read as read_run
from voxbatch.runner.job import Job
from voxbatch.runner.steps import steps_of
from voxbatch.safe_text import counted
from voxbatch.storage import Store
from voxbatch.storage.columns import Column, ItemSet

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import CalibrationFile
    from voxbatch.speakers import Voice


def items_of_shard(durations: Column, config: Config) -> ItemSet:
    """Return the items of the shard of a config. With one shard, these are all items, whatever their durations."""
    if config.shards == 1:
        return ItemSet(len(durations), is_full=True)
    from voxbatch.runner.shard import members

    return members(durations, config.shard, config.shards)


def worker_environments(spec: EngineSpec, max_workers: int) -> tuple[Mapping[str, str], ...]:
    """Return the environment of each process that transcribes. With fewer than two, one process does the whole run."""
    return spec.workers[: max_workers or None]


def prepare(
    config: Config,
    source: Source,
    engine_cache: EngineCache,
    log: Log,
    resources: contextlib.ExitStack,
    shares_out: bool = False,
) -> Job:
    """Check everything that can be refused, and reserve OUT. No model is loaded.

    Args:
        source: the manifest of the config, which must stay open while the job is worked on.
        resources: releases the lease on OUT, and ends the log of downloads.
        shares_out: see `run`.

    Raises:
        UsageError: the config, the manifest or OUT is wrong.
        InUseError: another process works on OUT.
        StorageError: the source or OUT is unreachable.
    """
    resources.enter_context(downloads_logged(log))
    steps = steps_of(config)
    choice, policy = steps.choose_engine(), steps.path_policy()
    keep_id_root(source, config)
    surveyed = survey(source, policy, config.limit)
    options = steps.engine_options(choice.name)
    with_kernels = engines.options_with_kernels(choice.name, options, config.kernel_cache)
    engine = engine_cache.get(choice.name, config.model, with_kernels, config.stores, steps.engines)
    spec = engine.spec
    hints = ["`hotwords` in the manifest"] * bool(surveyed.with_hotwords)
    diarization = steps.check(spec, hints, loads_networks=spec.torch_device is None)
    steps.check_recordings(config, source, policy, spec)
    second = steps.second_model(spec)
    has_no_kernels = config.kernel_cache is not None and with_kernels == options
    unused = [f"--kernel-cache has no effect: the engine {spec.name} compiles no kernels"] * has_no_kernels
    _log_model(f"engine {choice.reason}", config, surveyed, spec, log, unused)
    calibration = calibration_of(config, spec)
    identity = identity_of(config, spec, diarization.voices if diarization else ())
    if second:
        _log_model("second pass", config, surveyed, second.spec, log, second.notes(surveyed))
        identity |= second.identity(calibration)
    environments = worker_environments(spec, config.workers)
    run = Run(
        run_id=digest({"manifest": surveyed.fingerprint, **identity}),
        identity=identity,
        language=config.language or spec.only_language,
        manifest=surveyed.fingerprint,
        items=surveyed.items,
        folder=source.base,
        id_root=source.id_root,
        facts=_facts(config, spec, max(1, len(environments))),
    )
    store = config.stores.out(config.out)
    refuse_nested(store.place, config.stores)
    if unsafe := store.prepare():
        log.warning("unsafe_store", text=unsafe)
    is_alone = config.shards == 1 and not (shares_out or config.overwrite)
    resources.enter_context(work_on(store, config.shard, config.shards, is_alone, log))
    reserved = _reserve(store, run, config, surveyed, source.grows, log)
    owner = reserved.run
    job = Job(
        config=config,
        run=replace(owner, folder=run.folder, facts=run.facts),
        is_new=reserved.is_new,
        source=source.inheritable(),
        path_policy=policy,
        durations=surveyed.durations.at_most(longest_s := steps.longest_s(spec)),
        longest_s=longest_s,
        keys=surveyed.keys,
        folder=owner.folder or run.folder,
        engine=choice.name,
        engine_options=with_kernels,
        decoding=dict(spec.decoding),
        windows=spec.windows,
        diarization=diarization,
        worker_environments=environments,
        calibration=None if second else calibration,  # it is of the small model alone
    )
    return replace(job, second=second.second_pass(job, surveyed.items)) if second else job


def calibration_of(config: Config, spec: EngineSpec) -> CalibrationFile | None:
    """Return the calibration of the config, if it names one."""
    if not config.calibration:
        return None
    from voxbatch.scoring.calibration import calibration_for

    return calibration_for(config.calibration, spec.name, spec.model, spec.decoding, config.stores)


def _reserve(store: Store, run: Run, config: Config, surveyed: Survey, grows: bool, log: Log) -> Reservation:
    """Reserve OUT for the run, log how it continues the one in OUT, and append the transcripts that are kept."""
    reserved = reserve(store, run, listing_of(config, surveyed, grows), config.overwrite, log)
    _log_reservation(reserved, run, config, surveyed.items, log)
    _append_kept(surveyed, store, reserved.run)
    return reserved


def listing_of(config: Config, surveyed: Survey, grows: bool) -> Listing:
    """Return the list of a run, and how the run may continue another one."""
    return Listing(
        keys=surveyed.keys,
        grows=grows,
        is_update=config.update,
        retried=config.retry_failed,
        shards=config.shards,
    )


def keep_id_root(source: Source, config: Config) -> None:
    """Give the items of a run that continues the ids that the run has: see Source.id_root."""
    if config.overwrite or not (source.id_root or source.grows or config.update):
        return
    with contextlib.suppress(ConfigError, CheckpointError):  # `reserve` reports it
        if (run := read_run(config.stores.out(config.out))) is not None:
            source.id_root = run.id_root


def _log_reservation(reserved: Reservation, run: Run, config: Config, num_items: int, log: Log) -> None:
    """Log how the run continues the one in OUT, and warn about what differs from it."""
    recorded = reserved.before
    if reserved.changes is not None:
        amount = counted(num_items, "recording")
        log.info("continued", text=f"{config.out} continues with {amount}: {reserved.changes}")
    elif config.retry_failed:
        log.info("retry_failed", text=f"no failure to retry in {config.out} (--retry-failed {config.retry_failed})")
    if recorded.folder not in (None, run.folder):
        started = f"this run was started with recordings in {recorded.folder} and continues with those in {run.folder}"
        log.warning("other_folder", text=f"{started}: voxbatch assumes that they are the same")
    if recorded.facts.versions != run.facts.versions:
        started = f"this run was started with {recorded.facts.versions} and continues with {run.facts.versions}"
        log.warning("other_versions", text=f"{started}: texts may differ")


def _append_kept(surveyed: Survey, store: Store, run: Run) -> None:
    """Append the transcripts that a run has kept from earlier lists, whose recordings are not in the manifest."""
    if run.items > surveyed.items:
        keys = read_keys(store, list_name(run.list_number, run.generation), run.key)
        surveyed.keys.append(keys[surveyed.items :])
        surveyed.durations.append(np.full(run.items - surveyed.items, np.nan))


def identity_of(config: Config, spec: EngineSpec, voices: Sequence[Voice]) -> dict[str, Any]:
    """Return all settings that decide the texts of the outputs. Runs with the same identity may share an OUT."""
    identity = {"engine": spec.name, "model": spec.model, "decoding": dict(spec.decoding), **config.identity()}
    if voices:
        identity["voices"] = {voice.name: voice.digest for voice in voices}
    return identity


def _log_model(
    title: str, config: Config, surveyed: Survey, spec: EngineSpec, log: Log, warnings: Sequence[str]
) -> None:
    """Log a model, its licence, and what the user should know before it is loaded."""
    log.info("engine", text=f"{title}; model {spec.model}{engines.known_details(spec.license)}")
    for warning in (*spec.warnings, *warnings):
        log.warning("engine", text=warning)
    _log_languages(config, surveyed, spec, log)


def _log_languages(config: Config, surveyed: Survey, spec: EngineSpec, log: Log) -> None:
    """Log what the model cannot do with the languages of the run, or without them."""
    if spec.only_language and not config.language and surveyed.languages.total() < surveyed.items:
        other = " (--quality best)" if multilingual_model(spec.name) else ""
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
