"""Transcribe the items of a job in this process, from the point that earlier processes have reached."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from voxbatch.decoding import Undecodable
from voxbatch.engines import EngineCache, EngineMessage
from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.manifest import items
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.runner.pipeline import Pipeline
from voxbatch.runner.prepare import Job
from voxbatch.runner.progress import Progress, Usage, known_audio
from voxbatch.runner.stop import Stop
from voxbatch.storage import open_store
from voxbatch.storage.circuit_breaker import CircuitBreaker
from voxbatch.storage.columns import ItemSet


@dataclass(frozen=True, slots=True, eq=False)
class RemainingWork:
    """The items that a process has to transcribe, and the record of those that are done."""

    items: ItemSet
    """The items to transcribe."""
    checkpoint: Checkpoint
    """The checkpoint, loaded."""
    progress: Progress


def resume(job: Job, assigned: ItemSet, started_at: float, worker: int = 0) -> RemainingWork:
    """Read the parts that are committed, and return the assigned items that are in none of them.

    Args:
        assigned: the items that are this process's share.
        started_at: start of the run, by time.monotonic().
        worker: number of the process, if several processes work on the shard side by side.

    Raises:
        CheckpointError: a part is damaged or belongs to another run.
        StorageError: OUT cannot be read.
    """
    store = open_store(job.out, job.store_options)
    checkpoint = Checkpoint(store, job.run.key, len(job.durations), job.shard, job.shards, worker)
    checkpoint.load()
    remaining = assigned - checkpoint.done
    num_items, num_remaining = assigned.count(), remaining.count()
    known_audio_s, unknown = known_audio(job.durations, remaining)
    progress = Progress(
        items=num_items,
        resumed=num_items - num_remaining,
        resumed_failed=(assigned & checkpoint.failed).count(),
        known_audio_s=known_audio_s,
        unknown=unknown,
        committed=num_items - num_remaining,
        started_at=started_at,
    )
    return RemainingWork(remaining, checkpoint, progress)


def transcribe(
    job: Job,
    work: RemainingWork,
    engine_cache: EngineCache,
    stop: Stop,
    on_progress: Callable[[Progress], None],
    on_engine_message: Callable[[EngineMessage], None],
    breaker: CircuitBreaker[Undecodable] | None = None,
) -> Usage:
    """Transcribe and commit the remaining items.

    Args:
        on_progress: called with the progress whenever it changes.
        on_engine_message: called with the messages of the engine.
        breaker: judges unreachable recordings. The default is a new circuit breaker.

    Raises:
        ConfigError: the model changed since the job was prepared.
        StopRequested, RunError: see Pipeline.run.
    """
    engine = engine_cache.get(job.engine, job.model, job.engine_options, job.store_options)
    if dict(engine.spec.decoding) != job.decoding:
        raise ConfigError(f"the model changed since the run began: {engine.spec.decoding} is not {job.decoding}")
    breaker = breaker or CircuitBreaker[Undecodable](job.fail_unreachable)
    pipeline = Pipeline(
        engine,
        work.checkpoint,
        job.pipeline,
        work.progress,
        on_progress,
        stop,
        on_engine_message,
        breaker,
        is_last=engine_cache.one_run,
    )
    with replace(job.source, fd=os.dup(job.source.fd)).open() as source:
        return pipeline.run(items(source, job.path_policy, job.limit, work.items))


def log_engine_message(log: Log, message: EngineMessage) -> None:
    """Log a message of an engine."""
    (log.warning if message.is_warning else log.info)("engine", text=message.text)
