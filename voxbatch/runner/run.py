"""One run, from a Config to a summary: survey, identity, engine, checkpoint, pipeline, merge.

The order matters. All that can be refused is refused before a model is loaded. OUT records the run that it belongs to
before any output is written there. The function `transcribe` decides whether this process or several processes do the
work.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import voxbatch
from voxbatch import audio, engines
from voxbatch.config import Config, digest
from voxbatch.engines import Engine, EngineCache, EngineMessage
from voxbatch.log import Log
from voxbatch.manifest import PathPolicy, Source, Survey, items, open_source, survey
from voxbatch.manifest.source import stem
from voxbatch.output import layout, merge, run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.runner.pipeline import Pipeline, PipelineOptions, Progress, Stop, Usage
from voxbatch.runner.shard import members
from voxbatch.storage import Store, is_remote, open_store
from voxbatch.storage.address import is_bucket_address, name_of, scheme_of

MAX_DECODERS = 16
"""Highest number of decoder processes, unless the config gives a number."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    progress: Progress
    """Progress of this shard."""
    summary: dict[str, Any] | None
    """Summary of all shards. None while other shards are still in progress."""
    usage: Usage | None
    """None if nothing was left to do."""


def default_out(source: str) -> str:
    """Return the default OUT of a source: a folder beside the source.

        "jobs/calls.jsonl.gz" → "jobs/calls.voxbatch"        "gs://b/day/" → "gs://b/day.voxbatch"

    OUT is in the current directory if nothing can be written beside the source: "-" → "stdin.voxbatch", "gs://b/" →
    "b.voxbatch", and for web servers.
    """
    if source == "-":
        return "stdin.voxbatch"
    if is_remote(source):
        return _beside_address(source)
    path = Path(os.path.abspath(source))
    name = path.name if path.is_dir() else stem(path.name)
    return str(path.with_name(f"{name or 'root'}.voxbatch"))


def _beside_address(source: str) -> str:
    *above, name = name_of(source).rstrip("/").split("/")
    out = f"{stem(name) or 'root'}.voxbatch"
    return "/".join([f"{scheme_of(source)}:/", *above, out]) if above and is_bucket_address(source) else out


def policy(config: Config) -> PathPolicy:
    """Return the rule for the paths that the manifest of a config may name."""
    return PathPolicy.given(config.allow_outside, config.only_under)


def opened(config: Config) -> Source:
    """Open the source of a config; see manifest.open_source."""
    return open_source(config.source, store_options=config.store_options, include=config.include)


@dataclass(frozen=True, slots=True)
class Work:
    """The open work of a shard, and all that is needed to do it."""

    config: Config
    source: Source
    durations: NDArray[np.float32]
    """Seconds of each item of the manifest; see Survey."""
    engine: Engine
    """The engine, not yet loaded."""
    run: str
    """Digest of the run's identity."""
    checkpoint: Checkpoint
    """The checkpoint, already loaded."""
    todo: NDArray[np.bool_]
    """Mask of the items to transcribe, shape (num_items,)."""
    progress: Progress
    log: Log
    observe: Callable[[Progress], None]
    stop: Stop


def alone(work: Work) -> Usage:
    """Transcribe in this process.

    Raises:
        StopRequested, RunError: see Pipeline.run.
    """
    tell = teller(work.log)
    pipeline = Pipeline(
        work.engine, work.checkpoint, settings(work.config), work.progress, work.observe, work.stop, tell
    )
    return pipeline.run(items(work.source, policy(work.config), work.config.limit, work.todo))


def run(
    config: Config,
    log: Log,
    observe: Callable[[Progress], None] = lambda progress: None,
    stop: Stop | None = None,
    transcribe: Callable[[Work], Usage] = alone,
    engine_cache: EngineCache | None = None,
) -> RunResult:
    """Transcribe one shard of a manifest. If it is the last shard to finish, merge.

    Args:
        observe: called with the progress whenever it changes.
        stop: a request, from a signal handler for example, commits the finished items and ends the run.
        transcribe: commits every item of the work, or raises.
        engine_cache: holds the loaded engine after the run. Without a cache, the run unloads its engine.

    Raises:
        UsageError: the config, the manifest or OUT is wrong. No model was loaded, and no output was written.
        RunError: the run cannot continue. What is committed is safe, and the same command resumes the run.
        StopRequested: `stop` was asked.
    """
    if engine_cache is None:
        with contextlib.closing(EngineCache()) as own:
            return run(config, log, observe, stop, transcribe, own)
    began = time.monotonic()
    with opened(config) as source:
        job = _begin(config, source, log, engine_cache)
        mine = members(job.surveyed.durations, config.shard, config.shards)
        run_id = digest(job.identity)
        checkpoint = Checkpoint(job.store, run_id, job.surveyed.items, config.shard, config.shards)
        checkpoint.load()
        progress, todo = _progress(job, checkpoint, mine, began)
        if progress.resumed:
            done = f"{progress.resumed:,} of {progress.items:,} items were done before"
            log.info("resumed", text=f"{done}; {progress.items - progress.resumed:,} to do")
        observe(progress)
        durations, stop = job.surveyed.durations, stop or Stop()
        work = Work(config, source, durations, job.engine, run_id, checkpoint, todo, progress, log, observe, stop)
        usage = transcribe(work) if todo.any() else None
    checkpoint.complete(progress.items)
    if not checkpoint.all_complete():
        return RunResult(progress, None, usage)
    summary = merge.merge(job.store, job.surveyed.items, config.formats, job.language, job.facts)
    return RunResult(progress, summary, usage)


def teller(log: Log) -> Callable[[EngineMessage], None]:
    """Return a function that logs the notices of an engine."""

    def tell(notice: EngineMessage) -> None:
        """Log one notice."""
        (log.warning if notice.is_warning else log.info)("engine", text=notice.text)

    return tell


@dataclass(frozen=True, slots=True)
class _Job:
    """A run that may begin: the manifest is valid, the engine exists (not loaded), and OUT belongs to the run."""

    surveyed: Survey
    engine: Engine
    store: Store
    identity: dict[str, Any]
    language: str | None
    """Language for the score of items that do not name one."""
    facts: dict[str, Any]
    """Entries of the summary about how the run was made."""


def _begin(config: Config, source: Source, log: Log, engine_cache: EngineCache) -> _Job:
    """Check everything that can be refused, and reserve OUT."""
    choice = engines.choose(config.engine)
    surveyed = survey(source, policy(config), config.limit)
    engine = engine_cache.get(choice.name, config.model, config.engine_options, config.store_options)
    if config.language:
        engines.require_language(engine, config.language)
    log.info("engine", text=f"engine {choice.reason} (model {engine.spec.model}, {engine.spec.license})")
    for warning in engine.spec.warnings:
        log.warning("engine", text=warning)
    if (config.language or surveyed.languages) and not engine.spec.uses_language:
        text = (
            f"model {engine.spec.model} recognises the language by itself: lang and --language only choose the scoring"
        )
        log.info("language_unused", text=text)
    language = config.language or engine.spec.only_language
    identity, facts = _identity(config, surveyed, engine), _facts(config, engine)
    store = open_store(config.out, config.store_options)
    record = {"items": surveyed.items, "language": language, "folder": source.base, "facts": facts}
    if unsafe := store.prepare():
        log.warning("unsafe_store", text=unsafe)
    run_id = digest(identity)
    this_run = {"version": layout.VERSION, "run": run_id, "identity": identity, **record}
    recorded = run_file.reserve(store, this_run, config.overwrite)
    if (folder := recorded.get("folder", source.base)) != source.base:
        begun = f"this run was begun for recordings in {folder} and goes on for those in {source.base}"
        log.warning("other_folder", text=f"{begun}: voxbatch assumes that they are the same")
    if (now := _versions(facts)) != (then := _versions(recorded["facts"])):
        log.warning("other_versions", text=f"this run was begun with {then} and goes on with {now}: texts may differ")
    return _Job(surveyed, engine, store, identity, language, facts)


def _versions(facts: dict[str, Any]) -> str:
    versions = {"voxbatch": facts["voxbatch"], **facts["engine"]["versions"], **facts.get("libraries", {})}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _progress(
    job: _Job, checkpoint: Checkpoint, mine: NDArray[np.bool_], began: float
) -> tuple[Progress, NDArray[np.bool_]]:
    """Return the progress of this shard, and the mask of the items that it has to do."""
    done, failed = np.frombuffer(checkpoint.done, np.bool_), np.frombuffer(checkpoint.failed, np.bool_)
    todo = mine & ~done
    total, left = int(mine.sum()), int(todo.sum())
    known_audio_s, unknown = known_audio(job.surveyed.durations, todo)
    progress = Progress(
        items=total,
        resumed=total - left,
        resumed_failed=int((mine & failed).sum()),
        known_audio_s=known_audio_s,
        unknown=unknown,
        committed=total - left,
        began=began,
    )
    return progress, todo


def known_audio(durations: NDArray[np.float32], wanted: NDArray[np.bool_], block: int = 1 << 16) -> tuple[float, int]:
    """Return (seconds of the wanted items whose duration is known, number of wanted items whose duration is unknown).

    The arrays are read in blocks, which avoids a copy of everything.
    """
    known_s, unknown = 0.0, 0
    for at in range(0, len(durations), block):
        part = durations[at : at + block][wanted[at : at + block]]
        known_s += float(np.nansum(part, dtype=np.float64))
        unknown += int(np.isnan(part).sum())
    return known_s, unknown


def settings(config: Config) -> PipelineOptions:
    """Return the pipeline's settings for a config and one worker."""
    return PipelineOptions(
        language=config.language,
        decoders=decoders(config),
        part_items=config.part_items,
        part_seconds=config.part_seconds,
        store_options=config.store_options,
        fail_unreachable=config.fail_unreachable,
    )


def decoders(config: Config, workers: int = 1) -> int:
    """Return the number of decoder processes of each worker."""
    return config.decoders or max(1, min(MAX_DECODERS, len(os.sched_getaffinity(0)) // workers))


def worker_environments(config: Config, engine: Engine) -> tuple[Mapping[str, str], ...]:
    """Return the environments of the processes that transcribe side by side. With fewer than two, this process works
    alone."""
    return engine.spec.workers[: config.workers or None]


def _facts(config: Config, engine: Engine) -> dict[str, Any]:
    """Return the summary's entries about how the run was made."""
    spec = engine.spec
    return {
        "engine": {
            "name": spec.name, "model": spec.model, "license": spec.license, "origin": spec.origin,
            "decoding": dict(spec.decoding), "versions": dict(spec.versions), "warnings": list(spec.warnings),
        },
        "voxbatch": voxbatch.__version__,
        "python": platform.python_version(),
        "libraries": audio.libraries(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "workers": max(1, len(worker_environments(config, engine))),
        "config": config.to_dict(),
    }  # fmt: skip


def _identity(config: Config, surveyed: Survey, engine: Engine) -> dict[str, Any]:
    """Return all settings that decide the text of the transcripts.

    Two runs with the same identity may share an OUT. Other runs may not.
    """
    return {
        "manifest": surveyed.fingerprint,
        "engine": engine.spec.name,
        "model": engine.spec.model,
        "decoding": dict(engine.spec.decoding),
        "language": config.language,
    }
