"""Transcribe the remaining items of a job in this process."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import replace

from voxbatch.decoding import Undecodable
from voxbatch.engines import EngineCache, EngineMessage
from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.manifest import items
from voxbatch.output.attempts import Acquittal, AttemptRecorder
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.ownership import takeover_explained
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.runner.job import Job, RemainingWork
from voxbatch.runner.pipeline import Pipeline
from voxbatch.runner.progress import Progress, Stop, Usage, known_audio
from voxbatch.runner.results import PartWriter
from voxbatch.runner.steps import steps_of
from voxbatch.storage import Stores, parallel_map
from voxbatch.storage.circuit_breaker import (
    CircuitBreaker,
    Reachable,
    Report,
    place_of_recording,
    report_error,
    report_success,
)
from voxbatch.storage.columns import ItemSet


def resume(job: Job, assigned: ItemSet, started_at: float, worker: int = 0) -> RemainingWork:
    """Read the parts that are committed, and return the assigned items that are in none of them.

    Args:
        assigned: the items that are this process's share.
        started_at: start of the run, by time.monotonic().
        worker: number of the process, if several processes work on the shard side by side.

    Raises:
        TakenOverError: OUT belongs to another run or to a later list now.
        CheckpointError: a part is damaged or belongs to another run.
        StorageError: OUT cannot be read.
    """
    store = job.config.stores.out(job.config.out)
    checkpoint = Checkpoint(store, job.run, job.keys, job.config.shard, job.config.shards, worker)
    with takeover_explained(store, job.run):
        checkpoint.load()
    remaining = assigned - checkpoint.done
    num_items, num_remaining = assigned.count(), remaining.count()
    known_audio_s, unknown, known_fixed_s = known_audio(job.durations, remaining, job.windows)
    progress = Progress(
        items=num_items,
        resumed=num_items - num_remaining,
        resumed_failed=(assigned & checkpoint.failed).count(),
        known_audio_s=known_audio_s,
        unknown=unknown,
        windows=job.windows,
        known_fixed_s=known_fixed_s,
        committed=num_items - num_remaining,
        started_at=started_at,
    )
    return RemainingWork(assigned, remaining, checkpoint, progress)


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
        breaker: judges unreachable recordings. The default is a new circuit breaker.

    Raises:
        ConfigError: the model changed since the job was prepared.
        StopRequested, RunError: see Pipeline.run.
    """
    record = job.attempt
    assert record is not None
    steps = steps_of(job.config)
    engine = engine_cache.get(job.engine, job.config.model, job.engine_options, job.config.stores, steps.engines)
    if dict(engine.spec.decoding) != job.decoding:
        raise ConfigError(f"the model changed since the run began: {engine.spec.decoding} is not {job.decoding}")
    resources = contextlib.ExitStack()
    engine = steps.engine(engine, resources)
    breaker = breaker or circuit_breaker(job)
    checkpoint: PartWriter = work.checkpoint
    recorder = AttemptRecorder(record, work.items, work.checkpoint, engine.spec.concurrency)
    if record.attempt.width is not None and record.attempt.failure is None:
        checkpoint = Acquittal(work.checkpoint, recorder)
        if steps.reads_recordings:
            from voxbatch.runner.one_recording import transcribe_noise

            transcribe_noise(engine, job.config, stop, on_engine_message)
    diarization = steps.beside(job.diarization, engine.spec.torch_device, resources, on_engine_message)
    pipeline = Pipeline(
        engine,
        checkpoint,
        job.config,
        work.progress,
        on_progress,
        stop,
        on_engine_message,
        breaker,
        folder=job.folder if steps.reads_recordings else None,
        is_last=engine_cache.one_run and record.is_last,
        gate=recorder,
        failure=record.attempt.failure,
        diarization=diarization,
    )
    with limits_are_run_errors(), resources, replace(job.source, fd=os.dup(job.source.fd)).open() as source:
        try:
            return pipeline.run(items(source, job.path_policy, job.config.limit, work.items))
        finally:
            recorder.clear()


def circuit_breaker(job: Job, earlier: Iterable[Report] = ()) -> CircuitBreaker[Undecodable]:
    """Return the circuit breaker of a job, which asks for recordings of its manifest."""
    return CircuitBreaker[Undecodable](job.config.fail_unreachable, earlier, ask=functools.partial(_ask, job))


MAX_ASKED = 3
"""Number of recordings that a place is asked for at a time."""


def _ask(job: Job, place: str, held: Set[int]) -> Reachable | None:
    """Return the answer of a place that is asked for recordings other than those of some items; None without any."""
    others, avoided = dict[str, None](), set[str]()
    with replace(job.source, fd=os.dup(job.source.fd)).open() as source:
        for item in items(source, job.path_policy, job.config.limit):
            if item.index in held:
                avoided.add(item.audio)
            elif len(others) < MAX_ASKED + len(held) and place_of_recording(item.audio) == place:
                others[item.audio] = None
    asked = [audio for audio in others if audio not in avoided][:MAX_ASKED]
    reports = parallel_map(MAX_ASKED, functools.partial(_read_start, job.config.stores), asked)
    return next((report for report in reports if report is not None), None)


def _read_start(stores: Stores, audio: str) -> Reachable | None:
    """Return the answer of the place of a recording whose first bytes are read; None if it does not answer."""
    try:
        with contextlib.closing(stores.recording(audio)) as recording:
            recording.pread(1, 0)
            report: Report | None = report_success(audio, time.monotonic())
    except (AudioError, StorageError) as e:
        report = report_error(0, audio, e)
    return report if isinstance(report, Reachable) else None


def log_engine_message(log: Log, message: EngineMessage) -> None:
    """Log a message of an engine."""
    (log.warning if message.is_warning else log.info)("engine", text=message.text)
