"""Run the steps in order: prepare, transcribe, finish.

`prepare` checks everything that can be refused and reserves OUT. `transcribe` commits every remaining item, in this
process; `workers` does the same in one process per GPU. `finish` merges the outputs. `workload` measures
the audio of a run, and `forecast` estimates a run without running it. No other package knows this order.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxbatch.config import Config
from voxbatch.engines import EngineCache
from voxbatch.errors import RunError
from voxbatch.log import Log
from voxbatch.output import merge
from voxbatch.output.attempts import Attempts
from voxbatch.output.item_files import ItemFiles, given_settings, latest_config
from voxbatch.output.layout import FIRST, SUMMARY
from voxbatch.output.ownership import takeover_explained
from voxbatch.output.reserve import released_if_empty
from voxbatch.output.summary import Summary
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.runner.job import Job, RemainingWork
from voxbatch.runner.prepare import items_of_shard, prepare
from voxbatch.runner.progress import Progress, Stop, StopRequested, Usage
from voxbatch.runner.steps import steps_of
from voxbatch.runner.transcribe import log_engine_message, resume, transcribe
from voxbatch.safe_text import counted

__all__ = ["Progress", "RunResult", "Stop", "StopRequested", "Usage", "run"]


SHOWN_ITEMS = 100
"""Items among which the end of a run looks for the first transcripts to show."""


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """The result of a run."""

    progress: Progress
    summary: Summary | None
    """Summary of all shards. None while other shards are still in progress."""
    usage: Usage | None
    """None if nothing was left to do."""
    is_unchanged: bool = False
    """True if the run was finished before, and nothing was left to do."""
    first_done: NDArray[np.intp] | None = None
    """Positions of the first items that this process had to do, at most SHOWN_ITEMS, if others were done before. None
    if none were."""


def run(
    config: Config,
    log: Log,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop: Stop | None = None,
    engine_cache: EngineCache | None = None,
    estimate_durations: bool = False,
    shares_out: bool = False,
) -> RunResult:
    """Transcribe one shard of a manifest. If it is the last shard to finish, merge.

    Args:
        stop: a request, from a signal handler for example, commits the finished items and ends the run.
        engine_cache: holds the loaded engine after the run. Without a cache, the run unloads its engine. Worker
            processes have caches of their own.
        estimate_durations: read the headers of a few recordings whose duration the manifest does not give, while the
            run is in progress, so that the progress has a total soon.

        shares_out: this process is a task that may work on OUT beside others, as one of several shards always may.

    Raises:
        UsageError: the config, the manifest or OUT is wrong. No model was loaded, and no output was written.
        InUseError: another process works on OUT, and this one does not share it.
        RunError: the run cannot continue. What is committed is safe, and the same command resumes the run.
        StopRequested: `stop` was requested.
    """
    started_at, stop, usage = time.monotonic(), stop or Stop(), None
    with limits_are_run_errors(), _exits_are_run_errors(), contextlib.ExitStack() as resources:
        if engine_cache is None:
            engine_cache = EngineCache(one_run=True, keep_s=config.keep_engine)
            resources.enter_context(contextlib.closing(engine_cache))
        with steps_of(config).open(config) as source:
            if source.note:
                log.info("source", text=source.note)
            job = prepare(config, source, engine_cache, log, resources, shares_out)
            store = job.config.stores.out(job.config.out)
            if job.is_new and job.config.shards == 1:  # other shards may still load their models
                resources.enter_context(released_if_empty(store, job.run))
            resources.enter_context(takeover_explained(store, job.run))
            before = resume(job, items_of_shard(job.durations, job.config), started_at)
            has_finished = before.progress.resumed > 0 and not before.items.any() and store.exists(SUMMARY)
            work = _carried_over(job, before, stop, log)
            progress = work.progress
            first_done = work.items.first(SHOWN_ITEMS)
            if progress.resumed:
                log.info("resumed", text=_resumed(work, has_finished and job.second is None))
            on_progress(progress)
            if stop.requested.is_set():  # by a thread that cannot interrupt this one
                raise StopRequested
            if estimate_durations and progress.unknown:
                from voxbatch.runner.workload import sampling

                resources.enter_context(sampling(job, work.items, progress))
            usage = _transcribe_all(job, work, engine_cache, stop, on_progress, log)
            if (second := job.second) is not None and is_complete(work):
                job, work = second.job, _carried_over(second.job, second.remaining(store, log), stop, log)
                on_progress(work.progress)
                text = f"second pass: {job.config.model} does {work.items.count():,} items again"
                log.info("second_pass", text=text)
                first_done = first_done if len(first_done) else work.items.first(SHOWN_ITEMS)
                usage = _sum(usage, _transcribe_all(job, work, engine_cache, stop, on_progress, log))
            if source.has_changed():
                text = "was written to during the run, which has used the lines that it had at the start"
                log.warning("manifest_changed", text=f"{source.name} {text}")
        summary = finish(job, work, config.shards, log)
        is_unchanged = has_finished and usage is None
        return RunResult(progress, summary, usage, is_unchanged, first_done if usage and progress.resumed else None)


def _resumed(work: RemainingWork, has_finished: bool) -> str:
    """Return what was done before, and when, if nothing is left to do."""
    p = work.progress
    if not has_finished:
        return f"{p.resumed:,} of {p.items:,} items were done before; {p.items - p.resumed:,} to do"
    forgotten = (work.assigned & work.checkpoint.forgotten).count()
    others = {"failed": p.resumed_failed, "forgotten": forgotten}
    counts = [f"{counted(p.resumed - p.resumed_failed - forgotten, 'item')} done"]
    counts += [f"{count:,} {name}" for name, count in others.items() if count]
    last = work.checkpoint.last_commit()
    moment = "" if last is None else f" ({time.strftime('%Y-%m-%d %H:%M', time.localtime(last))})"
    return f"nothing to do: {' and '.join(counts)} before{moment}"


@contextlib.contextmanager
def _exits_are_run_errors() -> Iterator[None]:
    """Raise RunError for a SystemExit inside the context: a library or an engine must not end a run with the exit code
    of one that has finished."""
    try:
        yield
    except SystemExit as e:
        raise RunError(f"something in the run called sys.exit({e.code!r})") from e


def _carried_over(job: Job, work: RemainingWork, stop: Stop, log: Log) -> RemainingWork:
    """Carry transcripts over to rows that have changed in nothing else, and return the work that remains."""
    if job.run.list_number == 1:
        return work
    from voxbatch.runner.carrying import carried_text, carry_over

    if count := carry_over(job, work, stop):
        log.info("carried_over", text=carried_text(count))
        return resume(job, work.assigned, work.progress.started_at)
    return work


def is_complete(work: RemainingWork) -> bool:
    """Record that every item of the shard is in a part, and return whether that is true of all shards."""
    work.checkpoint.mark_complete(work.assigned)
    return work.checkpoint.are_all_complete()


def _transcribe_all(
    job: Job,
    work: RemainingWork,
    engine_cache: EngineCache,
    stop: Stop,
    on_progress: Callable[[Progress], None],
    log: Log,
) -> Usage | None:
    """Transcribe the remaining items: at once, or in groups after processes of the run were killed; see
    output.attempts."""
    usage, left = None, work.items
    if job.second is not None and not left.any():  # an attempt that is recorded may be of the second pass
        return None
    attempts = Attempts(work.checkpoint.store, job.run, work.checkpoint.folder)
    for attempt, items in attempts.plan(work.items):
        left -= items
        present = replace(job, attempt=attempts.record(attempt, is_last=not left.any()))
        group, is_on_trial = replace(work, items=items), attempt.width is not None
        if is_on_trial:
            log.warning("attempt", text=attempt.describe())
        if min(len(job.worker_environments), attempt.items) > 1 and not is_on_trial:
            from voxbatch.runner import workers

            engine_cache.close()  # suspects were transcribed in this process
            if job.config.keep_engine:
                log.warning("keep_engine", text="--keep-engine has no effect on the engines of several workers")
            added = workers.transcribe(present, group, stop, on_progress, log)
        else:
            on_engine_message = functools.partial(log_engine_message, log)
            added = transcribe(present, group, engine_cache, stop, on_progress, on_engine_message)
        usage = _sum(usage, added)
    attempts.clear()
    return usage


def _sum(usage: Usage | None, added: Usage | None) -> Usage | None:
    return usage + added if usage and added else usage or added


def finish(job: Job, work: RemainingWork, shards: int, log: Log) -> Summary | None:
    """Record that every item of the shard is in a part. The last shard to finish merges.

    Args:
        shards: number of shards of the run. A second pass has one of its own.

    Returns:
        The summary of all shards. None while other shards are still in progress.

    Raises:
        CheckpointError: a part or an existing output is damaged.
        StorageError: OUT cannot be read or written.
    """
    if not is_complete(work):
        return None
    store, config = job.config.stores.out(job.config.out), job.run.facts.config
    run = replace(job.run, pass_name=FIRST)
    files = ItemFiles.of({**config, **latest_config(store, run), **given_settings(config)})
    return merge.merge(store, run, files, log, job.config.stores, job.calibration, shards)
