"""Perform the runs of messages: in this process, or as executions of a Cloud Run job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from voxbatch import engines, runner
from voxbatch.clouds.listen import starts
from voxbatch.clouds.listen.message import RunRequest
from voxbatch.clouds.submit import Ceiling, CloudRun, StartedRun, Submission, check_tasks, size_run, start_with_retries
from voxbatch.config import Config, RunOptions
from voxbatch.decoding import warm_pool
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.display import log_result, progress_events
from voxbatch.engines import EngineCache
from voxbatch.engines.choice import choose
from voxbatch.errors import BusyError, ConfigError, StartError
from voxbatch.log import Log
from voxbatch.manifest import survey
from voxbatch.output.summary import is_finished
from voxbatch.runner import Stop
from voxbatch.runner.forecast import measure
from voxbatch.runner.prepare import worker_environments
from voxbatch.runner.steps import steps_of
from voxbatch.storage import redacted
from voxbatch.storage.address import is_bucket_address, is_folder

START_CHECK_S = 4.0
"""Seconds until the next look at an execution that another dispatcher is starting. The value is less than a pull
without a message takes, so that a look follows each pull."""


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options that all runs of a listener share."""

    run: RunOptions
    include: tuple[str, ...] = ()
    """Patterns for the recordings of a folder; see manifest.recording_path.is_included."""

    def config(self, request: RunRequest) -> Config:
        """Return the Config of one run. A manifest that the listener wrote may name only its own recordings."""
        include = self.include if is_folder(request.source) else ()
        config = Config.of(self.run, request.source, request.out, include=include)
        if not request.only_under:
            return config
        return replace(config, allow_outside=False, only_under=(*config.only_under, *request.only_under))


class LocalExecutor:
    """Performs runs in this process, with an engine and decoder processes that stay ready."""

    is_local: ClassVar[bool] = True
    """True if this process does the work. It then holds a lease on the OUT, so that no second listener does the same
    work."""

    def __init__(self, options: SharedOptions, stop: Stop, log: Log):
        """Create the engine, which loads its model for the first run.

        Raises:
            UsageError: no run could succeed, so the options are at fault and not a message.
        """
        self._options, self._stop, self._log = options, stop, log
        self._engine_cache = EngineCache()
        run = options.run
        name = choose(run.engine, model=run.model, stores=run.stores).name
        engine_options = engines.options_with_kernels(name, run.engine_options, run.kernel_cache)
        engine = self._engine_cache.get(name, run.model, engine_options, run.stores)
        steps_of(run).check(engine.spec)
        if (second := steps_of(run).second_model(engine.spec)) is not None:
            models = f"{engine.spec.model} and then {second.spec.model}"
            text = f"each run loads {models} anew; for many small runs, collect more recordings for one run"
            log.warning("loads_anew", text=f"{text} (--batch-window)")
        if (count := len(worker_environments(engine.spec, run.workers))) > 1:
            log.warning(
                "loads_anew",
                text=f"{count} GPUs share each run, and load the model anew for it; for many small runs start a "
                "listener for each GPU (--engine-option devices=0), or give --workers 1",
            )
        warm_pool.open()

    def execute(self, request: RunRequest) -> float | None:
        """Bring a run to its end, and return None: its messages may be acknowledged.

        Raises:
            UsageError: the run can never succeed.
            RunError: the run cannot continue here and now.
            StopRequested: a signal stopped the run.
        """
        config, log = self._options.config(request), self._log.with_fields(out=request.out)
        source = redacted(request.source)
        log.info("run_started", source=source, text=f"{source} → {request.out}")
        with progress_events(log) as observe:
            result = runner.run(config, log, observe, self._stop, self._engine_cache)
        log_result(config, result, log)
        return None

    def close(self) -> None:
        """Unload the engine, and end the decoder processes."""
        warm_pool.close()
        self._engine_cache.close()


class CloudRunExecutor:
    """Starts one execution of a Cloud Run job for each run."""

    is_local: ClassVar[bool] = False

    def __init__(
        self,
        options: SharedOptions,
        job: CloudRun,
        arguments: tuple[str, ...],
        out: str | None,
        tasks: int | None,
        usd_per_hour: float | None,
        ceiling: Ceiling,
        log: Log,
    ):
        """Check that executions can be started.

        Args:
            options: the options of all runs, as this machine needs them to estimate a run.
            arguments: the options of all runs, as arguments of `voxbatch run`.
            out: folder of all outputs; None: messages name their outputs.
            tasks: number of tasks of each execution; None: as many as the hours of audio need.
            usd_per_hour: price of a machine of the job; None: the known one.
            ceiling: limits of each run; a run above them is refused.

        Raises:
            ConfigError: the job does not exist, cannot write to `out`, or the number of its tasks cannot be calculated.
                The options are at fault, and not a message.
            StartError: the job cannot be looked at.
        """
        check_tasks(options.run, job, tasks)
        if out and not is_bucket_address(out):
            raise ConfigError(f"-o {out} is a folder of this machine, which the job cannot see: give gs://… or s3://…")
        job.connect().check_job_exists()
        self._options, self._job, self._arguments, self._tasks = options, job, arguments, tasks
        self._usd_per_hour, self._ceiling, self._log = usd_per_hour, ceiling, log
        self._read_header = HeaderReader()

    def execute(self, request: RunRequest) -> float | None:
        """Start an execution, unless the run is finished or being started, or one with the same arguments is running.

        Of several dispatchers exactly one starts it; see output.starts. Nothing of a recording but its header is read,
        in a process without credentials.

        Returns:
            None if the messages of the run may be acknowledged; otherwise the seconds after which to try again.

        Raises:
            UsageError: the manifest is invalid, the run is above the ceiling, or OUT belongs to another manifest.
            RunError: nothing can be started here and now.
        """
        config, log = self._options.config(request), self._log.with_fields(out=request.out)
        store = config.stores.out(request.out)
        arguments = (
            *(argument for argument in self._arguments if not (request.only_under and argument == "--allow-outside")),
            *(text for place in request.only_under for text in ("--only-under", place)),
            *(text for pattern in config.include for text in ("--include", pattern)),
        )
        submission = Submission(request.source, request.out, arguments)
        latest, running = starts.latest_start(store), None
        if latest and latest.is_recent:
            running = self._job.connect().running(submission)
            if running is None and not is_finished(store):
                log.info("start_awaited", text=f"{request.out}: {latest.dispatcher} is starting an execution")
                return START_CHECK_S
        with steps_of(config).open(config) as source:
            surveyed = survey(source, steps_of(config).path_policy(), config.limit)
            manifest = surveyed.fingerprint
            is_done = starts.is_manifest_done(store, manifest, source.grows, latest)
            if is_done:
                log.info("done_before", text=f"{request.out}: done before")
                return None
            if running:
                self._log_start(request, running, log)
                return None
            workload = measure(surveyed, source, config, self._read_header)
        # Several tasks cannot change the list of a run together.
        tasks = 1 if is_done is None else self._tasks
        submission, _ = size_run(
            submission, config, self._job, tasks, usd_per_hour=self._usd_per_hour, tasks_if_unknown=1,
            workload=workload, ceiling=self._ceiling,
        )  # fmt: skip
        if (claimed := starts.claim_start(store, latest, manifest)) is None:
            return START_CHECK_S
        try:
            started = start_with_retries(
                submission, self._job, lambda reason: log.warning("start_postponed", text=reason)
            )
        except BusyError:  # a start whose reply was lost may have begun: the next dispatcher looks for it
            raise
        except (ConfigError, StartError) as e:  # for example, the job was deleted: the message is not at fault
            starts.withdraw_start(store, claimed)
            raise StartError(str(e)) from e
        if started.was_running:
            starts.withdraw_start(store, claimed)
        self._log_start(request, started, log, submission.tasks)
        return None

    @staticmethod
    def _log_start(request: RunRequest, started: StartedRun, log: Log, tasks: int | None = None) -> None:
        """Log the execution that a message has started or found."""
        verb = "found" if started.was_running else "started"
        text = f"{redacted(request.source)} → {request.out}: {verb} {started.name}"
        log.info("run_submitted", execution=started.name, tasks=tasks, url=started.url, text=text)

    def close(self) -> None:
        """End the process that reads headers. The executions go on."""
        self._read_header.close()


Executor = LocalExecutor | CloudRunExecutor
"""Brings the runs of messages to their end, or starts them on a platform that does."""
