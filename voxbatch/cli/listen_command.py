"""`voxbatch listen`: run what the messages ask for, one run at a time.

The runs happen in this process, with an engine that stays loaded, or as executions of a Cloud Run job.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.options import (
    forwarded,
    include_option,
    is_given,
    job_options,
    option,
    run_option,
    run_options_of,
    store_options,
)
from voxbatch.cli.submit_command import tasks_option
from voxbatch.config import Config, RunOptions
from voxbatch.errors import ConfigError, RunError, StartError, UsageError
from voxbatch.log import Log, is_json
from voxbatch.platforms import tasks
from voxbatch.platforms.tasks import sagemaker

if TYPE_CHECKING:
    from voxbatch.engines import EngineCache
    from voxbatch.platforms.listen import RunRequest
    from voxbatch.platforms.submit import CloudRun
    from voxbatch.runner import Stop

HERE, CLOUD_RUN = "here", "cloudrun"
LONGEST_WINDOW_S = 86_400
"""Longest --batch-window, in seconds.

Messages wait for the end of a window. A listener that ends before gives them back, which counts as a delivery. Pub/Sub
drops a message after 7 days, the usual retention.
"""
_OUR_OWN = ("include", "quiet", "log_format")
"""Options of `run` that, here, concern this command and not the runs that it starts elsewhere."""


@click.command(epilog="Each option can also be given as an environment variable: VOXBATCH_OUT, …")
@option(
    "--subscription",
    required=True,
    metavar="S",
    help="Pub/Sub subscription: NAME, or projects/PROJECT/subscriptions/NAME.",
)
@option(
    "--project", metavar="P", help="Project of short names. Default: GOOGLE_CLOUD_PROJECT, or the credentials' project."
)
@option(
    "-o",
    "--out",
    metavar="OUT",
    help="Folder that holds one folder for each run, named after the uploaded file. Without it, messages must name an "
    "output.",
)
@option(
    "--prefix",
    multiple=True,
    metavar="PLACE",
    help="Run only manifests below PLACE, such as gs://calls/in/. Repeatable. Default: the places of --recordings, or "
    "else all places outside of OUT.",
)
@option(
    "--recordings",
    multiple=True,
    metavar="PLACE",
    help="Also run recordings that are uploaded below PLACE. Repeatable. Recordings elsewhere wait for a manifest.",
)
@include_option
@option(
    "--batch-window",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Make one run of the recordings that are uploaded within this time. Default: one run for each recording.",
)
@run_option(
    "--allow-outside",
    is_flag=True,
    help="Let manifests name any local file and any address, not only those next to them.",
)
@run_option(
    "--only-under",
    multiple=True,
    metavar="PLACE",
    help="Let manifests name only files below PLACE, a folder or the address of a folder. Repeatable.",
)
@option(
    "--dead-letter",
    metavar="TOPIC",
    help="Topic for messages that cannot be run, with the reason. Default: the subscription's own dead-letter topic.",
)
@option("--drain", is_flag=True, help="Handle the waiting messages, then exit.")
@option(
    "--to",
    type=click.Choice((HERE, CLOUD_RUN)),
    default=HERE,
    show_default=True,
    metavar=f"{HERE}|{CLOUD_RUN}",
    help="Run here, or start an execution of a Cloud Run job for each run.",
)
@option("--job", default="voxbatch", show_default=True, metavar="NAME", help="Cloud Run: name of the job to execute.")
@option("--region", metavar="REGION", help="Cloud Run: region of the job. Default: CLOUDSDK_RUN_REGION.")
@tasks_option
@job_options
@store_options
@click.pass_context
def listen(ctx: click.Context, /, quiet: bool, log_format: str, **settings: Any) -> None:
    """Run manifests and recordings that Pub/Sub messages name: uploads to a bucket, and {"manifest": …, "output": …}.

    Each uploaded manifest is one run. A recording that is uploaded below --recordings is one run, or all recordings
    within --batch-window are one run together.

    A message is acknowledged when its run is committed. With --to cloudrun it is acknowledged when the execution has
    started, because Cloud Run then retries the execution itself. A message that can never be run goes to the
    dead-letter topic, with the reason. Several listeners may share one subscription.
    """
    from voxbatch.cli.session import leave

    asked = _Asked(**{name: settings.pop(name) for name in _Asked.__slots__})
    settings.pop("exit_zero")
    asked_price = settings["usd_per_hour"] if is_given(ctx, "usd_per_hour") else None
    task = tasks.find(os.environ, sagemaker.root_folder(os.environ))
    if task and asked_price is None and (price := tasks.usd_per_hour(task, os.environ)) is not None:
        settings["usd_per_hour"] = price
    options = run_options_of(ctx, settings)
    log = Log(is_json(log_format), quiet)
    leave(_Listening(asked, options, forwarded(ctx, _OUR_OWN), asked_price, log).run())


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options that `run` does not have, or that have another meaning there."""

    subscription: str
    project: str | None
    out: str | None
    prefix: tuple[str, ...]
    recordings: tuple[str, ...]
    include: tuple[str, ...]
    batch_window: float
    dead_letter: str | None
    drain: bool
    to: str
    job: str
    region: str | None
    tasks: int | None
    """Number of tasks; None: as many as the hours of audio need."""


class _Listening:
    """A listener, built from the parsed options."""

    def __init__(
        self, asked: _Asked, config: RunOptions, options: tuple[str, ...], usd_per_hour: float | None, log: Log
    ):
        """Store the options and the settings of the runs.

        Args:
            asked: the options of the listener itself.
            config: the settings of all runs; each run adds its source, its OUT and what its manifest may name.
            options: arguments of `voxbatch run`, for a run on Cloud Run.
            usd_per_hour: price of a machine on Cloud Run; None if it was not given.
        """
        self._asked, self._config, self._options, self._log = asked, config, options, log
        self._usd_per_hour = usd_per_hour

    def run(self) -> int:
        """Listen until the queue is drained or the process is stopped, and return the exit code.

        Raises:
            UsageError: the options can never work, whatever the messages say. With a JSON log the error is logged
                instead.
        """
        from voxbatch.cli.session import refuse

        try:
            return self._run()
        except UsageError as e:
            return refuse(e, self._log)

    def _run(self) -> int:
        from voxbatch.cli.session import leave, on_signals
        from voxbatch.decoding import warm_pool
        from voxbatch.engines import EngineCache
        from voxbatch.platforms.listen import Listener, ListenerOptions, Rules, Subscription
        from voxbatch.runner import Stop, StopRequested
        from voxbatch.runner.prepare import path_policy

        asked, stop, signals = self._asked, Stop(), list[int]()
        rules = Rules(*self._places())
        path_policy(self._config)  # an invalid policy is an error of the options, not of a message

        def interrupted() -> int:
            """Log the interruption, and return its exit code."""
            text = "interrupted; what was in hand is committed, and its message comes to whoever listens next"
            self._log.warning("interrupted", text=text)
            return 128 + signals[-1]

        with closing(EngineCache()) as engine_cache, closing(warm_pool):
            warm_pool.is_enabled = True
            perform = self._here(stop, engine_cache) if asked.to == HERE else self._elsewhere()
            on_signals(stop, signals, lambda: leave(interrupted()))
            try:
                messages = Subscription(asked.subscription, asked.project, asked.dead_letter, self._log)
                settings = ListenerOptions(
                    rules, self._config.store_options, asked.include, asked.batch_window, asked.drain, asked.to == HERE
                )
                text = f"listening to {messages.name} for {rules}; refused messages go to {messages.dead_letter}"
                self._log.info("listening", text=text)
                Listener(settings, messages, perform, self._log).serve()
                return 0
            except StopRequested:
                return interrupted()
            except RunError as e:
                self._log.error("listen_failed", text=f"{e}\nno message is lost: start again to go on")
                return e.exit_code

    def _places(self) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
        """Return (OUT, the places of manifests, the places of recordings), checked and normalised.

        Raises:
            ConfigError: a place is invalid or lies in OUT, or an option lacks another one that it needs.
        """
        asked = self._asked
        if asked.recordings and not asked.out:
            raise ConfigError("--recordings needs -o OUT: where else should their transcripts go?")
        if asked.batch_window and not asked.recordings:
            raise ConfigError(
                "--batch-window needs --recordings: a batch is all that came below such a place, in a window"
            )
        if not 0 <= asked.batch_window <= LONGEST_WINDOW_S:
            raise ConfigError(f"--batch-window is {asked.batch_window:g}; give from 0 to {LONGEST_WINDOW_S} seconds")
        prefixes = tuple(_place("--prefix", each) for each in asked.prefix)
        recordings = tuple(_place("--recordings", each) for each in asked.recordings)
        out = _folder("-o", asked.out) if asked.out else None
        for place in (*prefixes, *recordings):
            if out and place.startswith(out):
                raise ConfigError(f"{place} lies in {out}, the -o OUT, where nothing is run: take another OUT")
        return out, prefixes, recordings

    # -- here ---------------------------------------------------------------------------------------------------------

    def _here(self, stop: Stop, engine_cache: EngineCache) -> Callable[[RunRequest], None]:
        """Return a function that performs a run in this process.

        Raises:
            UsageError: no run could succeed, so the options are at fault and not a message.
        """
        from voxbatch import engines, runner
        from voxbatch.cli.session import report
        from voxbatch.display import progress_events
        from voxbatch.runner.prepare import worker_environments
        from voxbatch.storage import redacted

        config = self._config
        choice = engines.choose(config.engine)
        engine = engine_cache.get(choice.name, config.model, config.engine_options, config.store_options)
        if config.language:
            engines.require_language(engine, config.language)
        if (count := len(worker_environments(engine.spec, config.workers))) > 1:
            text = (
                f"{count} GPUs share each run, and load the model anew for it; for many small runs start a listener "
                "for each GPU (--engine-option devices=0), or give --workers 1"
            )
            self._log.warning("loads_anew", text=text)

        def perform(run: RunRequest) -> None:
            """Run to the end here."""
            ours, log = self._of(run), self._log.with_fields(out=run.out)
            log.info("run_started", source=redacted(run.source), text=f"{redacted(run.source)} → {run.out}")
            with progress_events(log) as observe:
                finished = runner.run(ours, log, observe, stop, engine_cache)
            report(ours, finished, log, quiet=True, exit_zero=True)

        return perform

    def _of(self, run: RunRequest) -> Config:
        """Return the Config of one run."""
        from voxbatch.storage.address import is_folder

        of_folder = self._asked.include if is_folder(run.source) else ()
        ours = Config.of(self._config, run.source, run.out, include=of_folder)
        if not run.only_under:
            return ours
        return replace(ours, allow_outside=False, only_under=(*ours.only_under, *run.only_under))

    # -- on Cloud Run -------------------------------------------------------------------------------------------------

    def _elsewhere(self) -> Callable[[RunRequest], None]:
        """Return a function that starts an execution of the job for a run.

        It starts none if an execution with the same arguments is still running.

        Raises:
            ConfigError: the job does not exist, or no run could be passed to it, so the options are at fault and not a
                message.
            StartError: the job cannot be looked at.
        """
        from voxbatch.output.layout import is_finished
        from voxbatch.platforms.submit import CloudRun, check_tasks, start_with_retries
        from voxbatch.storage import open_store, redacted
        from voxbatch.storage.address import is_bucket_address

        target = CloudRun(self._asked.job, self._asked.project, self._asked.region)
        check_tasks(self._config, target, self._asked.tasks)
        if self._asked.out and not is_bucket_address(self._asked.out):
            raise ConfigError(f"-o {self._asked.out} is no place that the job sees: give gs://… or s3://…")
        target.check_job_exists()

        def perform(run: RunRequest) -> None:
            """Start or find the execution of a run."""
            log = self._log.with_fields(out=run.out)
            if run.only_under and is_finished(open_store(run.out, self._config.store_options)):
                # a manifest that the listener wrote never changes
                log.info("done_before", text=f"{run.out}: done before")
                return
            submission = self._ordered(run, target)
            try:
                started = start_with_retries(submission, target, lambda why: log.warning("start_postponed", text=why))
            except ConfigError as e:  # for example, the job was deleted: the message is not at fault
                raise StartError(str(e)) from e
            text = f"{redacted(run.source)} → {run.out}: {'found' if started.was_running else 'started'} {started.name}"
            log.info("run_submitted", execution=started.name, tasks=submission.tasks, url=started.url, text=text)

        return perform

    def _ordered(self, run: RunRequest, target: CloudRun) -> Any:
        """Return the order of a run, with its number of tasks."""
        from voxbatch.platforms.submit import Submission, size_run

        ours = self._of(run)
        options = [each for each in self._options if not (run.only_under and each == "--allow-outside")]
        options += [text for place in run.only_under for text in ("--only-under", place)]
        options += [text for glob in ours.include for text in ("--include", glob)]
        submission = Submission(run.source, run.out, tuple(options))
        return size_run(submission, ours, target, self._asked.tasks, None, self._usd_per_hour, tasks_if_unknown=1)[0]


def _place(option: str, place: str) -> str:
    from voxbatch.storage import is_remote

    if not is_remote(place):
        raise ConfigError(f"{option} {place}: uploads come to a bucket; write gs://bucket/folder/")
    return _folder(option, place)


def _folder(option: str, place: str) -> str:
    """Return the place as `Rules` expects it: normalised, with / at its end."""
    from voxbatch.storage import is_remote
    from voxbatch.storage.address import normalized

    try:
        found = normalized(place) if is_remote(place) else os.path.abspath(place)
    except ValueError as e:
        raise ConfigError(f"{option} {place}: {e}") from e
    return found.rstrip("/") + "/"
