"""Start the runs of messages as executions of a Cloud Run job."""

from __future__ import annotations

from typing import ClassVar

from voxbatch.clouds.listen import starts
from voxbatch.clouds.listen.daily_spending import DailySpending
from voxbatch.clouds.listen.executors import LocalExecutor, SharedOptions
from voxbatch.clouds.listen.manifest_window import ManifestWindow, SizedRun, messages_of, new_name, price_of
from voxbatch.clouds.listen.message import RunRequest
from voxbatch.clouds.submit import Ceiling, CloudRun, StartedRun, Submission, check_tasks, size_run, start_with_retries
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.errors import BusyError, ConfigError, StartError, StorageError
from voxbatch.log import Log
from voxbatch.manifest import survey
from voxbatch.output.summary import is_finished
from voxbatch.runner.prepare import items_of_shard
from voxbatch.runner.steps import steps_of
from voxbatch.runner.workload import measure
from voxbatch.storage import redacted
from voxbatch.storage.address import is_bucket_address

START_CHECK_S = 4.0
"""Seconds until the next look at a run that waits for others, or that another dispatcher is starting. The value is less
than a pull without a message takes, so that a look follows each pull."""


class CloudRunExecutor:
    """Starts an execution of a Cloud Run job for each large run, and for all small runs that arrive together."""

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
        max_usd_per_day: float,
        window_s: float,
        log: Log,
    ):
        """Check that executions can be started.

        Args:
            options: the options of all runs, as this machine needs them to estimate a run.
            arguments: the options of all runs, as arguments of `voxbatch run`.
            out: folder of all outputs; None: messages name their outputs, and each run has its own execution.
            tasks: number of tasks of each execution; None: as many as the hours of audio need.
            usd_per_hour: price of a machine of the job; None: the known one.
            ceiling: limits of each run; a run above them is refused.
            max_usd_per_day: limit of the expected price of all runs of a UTC day; 0: no limit. A run above it is
                refused. It is kept in `out`; without `out`, by this process alone.
            window_s: see ManifestWindow.

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
        self._out, self._usd_per_hour, self._ceiling, self._log = out, usd_per_hour, ceiling, log
        self._window = ManifestWindow(window_s if out else 0.0, job.task_hours * 3600)
        self._spending = DailySpending(options.run.stores.out(out) if out else None, max_usd_per_day)
        self._refused: dict[str, ConfigError] = {}
        """Why the runs of an execution were refused, by OUT."""
        self._started: dict[str, tuple[StartedRun, int]] = {}
        """The executions of runs whose messages are not acknowledged yet, and their numbers of tasks, by OUT."""
        self._headers = HeaderReader(is_brief=True)

    def execute(self, request: RunRequest) -> float | None:
        """Start an execution, unless the run is finished or being started, or an execution is doing it. A small run
        waits until its window is over.

        Of several dispatchers exactly one starts a run; see `starts`. Nothing of a recording but its header is read, in
        a process without credentials.

        Returns:
            None if the messages of the run may be acknowledged; otherwise the seconds after which to try again.

        Raises:
            UsageError: the manifest is invalid, the run is above a limit of its price, or OUT belongs to another
                manifest.
            RunError: nothing can be started here and now.
        """
        if request.out in self._window:
            if not self._window.is_over:
                return START_CHECK_S
            self._start(self._window.take())
        if request.out not in self._started and request.out not in self._refused:
            run = self._size(request)
            if not isinstance(run, SizedRun):
                return run
            # Only the options that all runs share can be those of an execution that does several.
            if run.submission.options == self._arguments and self._window.may_hold(run):
                if not self._window.has_room(run):
                    self._start(self._window.take())
                self._window.add(run)
                return START_CHECK_S
            self._start([run])
        if refusal := self._refused.pop(request.out, None):
            raise refusal
        if request.out not in self._started:  # another dispatcher starts it
            return START_CHECK_S
        self._log_start(request, *self._started.pop(request.out))
        return None

    def _size(self, request: RunRequest) -> SizedRun | float | None:
        """Return the run of a request with its number of tasks; or, if it is not to be started, what `execute`
        returns."""
        config, log = self._options.config(request), self._log.with_fields(out=request.out)
        store = config.stores.out(request.out)
        arguments = (
            *(argument for argument in self._arguments if not (request.only_under and argument == "--allow-outside")),
            *(text for place in request.only_under for text in ("--only-under", place)),
            *(text for pattern in config.include for text in ("--include", pattern)),
        )
        submission = Submission(request.source, request.out, arguments)
        latest, running = starts.latest_start(store), None
        if latest and (latest.is_recent or latest.messages):
            running = self._job.connect().running(self._submission(latest.messages) if latest.messages else submission)
            if running is None and latest.is_recent and not is_finished(store):
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
                self._log_start(request, running)
                return None
            workload = measure(surveyed, items_of_shard(surveyed.durations, config), source, config, self._headers)
        # Several tasks cannot change the list of a run together.
        tasks = 1 if is_done is None else self._tasks
        submission, forecast = size_run(
            submission, config, self._job, tasks, usd_per_hour=self._usd_per_hour, tasks_if_unknown=1,
            workload=workload, ceiling=self._ceiling,
        )  # fmt: skip
        usd = forecast.most_usd(forecast.limit_s or self._job.job_limit_s) or 0.0
        start_usd = forecast.start_usd[1] if forecast.start_usd else 0.0
        return SizedRun(request, submission, store, manifest, latest, forecast.known_task_s, usd, start_usd)

    def _submission(self, messages: str) -> Submission:
        """Return the execution that does the runs of a file of messages, one after another."""
        return Submission(messages, str(self._out), self._arguments, command="listen")

    def _start(self, runs: list[SizedRun]) -> None:
        """Start one execution for runs, except for those that another dispatcher starts, unless it is too dear for this
        day."""
        name = new_name() if len(runs) > 1 else ""
        messages = f"{str(self._out).rstrip('/')}/{name}" if name else ""
        claims = [
            (run, start)
            for run in runs
            if (start := starts.claim_start(run.store, run.latest, run.manifest, messages)) is not None
        ]
        if not claims:
            return
        try:
            spent = self._spending.add(price_of([run for run, _ in claims]))
        except ConfigError as e:
            _withdraw(claims)
            self._refused |= {run.request.out: e for run, _ in claims}
            return
        except StorageError as e:
            _withdraw(claims)
            raise StartError(str(e)) from e
        try:
            if messages:
                lines = messages_of([run.request for run, _ in claims])
                self._options.run.stores.out(str(self._out)).create(name, lines)
            submission = self._submission(messages) if messages else runs[0].submission
            started = start_with_retries(
                submission, self._job, lambda reason: self._log.warning("start_postponed", text=reason)
            )
        except BusyError:  # a start whose reply was lost may have begun: the next dispatcher looks for it
            raise
        except (ConfigError, StartError, StorageError) as e:  # the job was deleted, perhaps: no message is at fault
            self._spending.withdraw(spent)
            _withdraw(claims)
            raise StartError(str(e)) from e
        if started.was_running:
            self._spending.withdraw(spent)
            _withdraw(claims)
        self._started |= {run.request.out: (started, submission.tasks) for run, _ in claims}

    def _log_start(self, request: RunRequest, started: StartedRun, tasks: int | None = None) -> None:
        """Log the execution that a message has started or found."""
        verb = "found" if started.was_running else "started"
        text = f"{redacted(request.source)} → {request.out}: {verb} {started.name}"
        log = self._log.with_fields(out=request.out)
        log.info("run_submitted", execution=started.name, tasks=tasks, url=started.url, text=text)

    def close(self) -> None:
        """End the process that reads headers. The executions go on."""
        self._headers.close()


def _withdraw(claims: list[tuple[SizedRun, starts.Start]]) -> None:
    """Delete the starts of runs that were not started."""
    for run, start in claims:
        starts.withdraw_start(run.store, start)


Executor = LocalExecutor | CloudRunExecutor
"""Brings the runs of messages to their end, or starts them on a platform that does."""
