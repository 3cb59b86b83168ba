"""`voxbatch listen`: run what the messages of a subscription or a file ask for, one run at a time.

The runs happen in this process, with an engine that stays loaded, or as executions of a Cloud Run job.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.commands import GroupedCommand
from voxbatch.cli.options import (
    include_option,
    is_given,
    job_options,
    option,
    prompt_option,
    run_options_of,
    setting_option,
    store_options,
)
from voxbatch.clouds.submit_command import (
    ceiling_options,
    forwarded,
    job_option,
    project_option,
    region_option,
    tasks_option,
)
from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError, RunError, UsageError
from voxbatch.log import Log, is_json
from voxbatch.platforms.tasks import find, in_job
from voxbatch.platforms.tasks.known import sagemaker_root
from voxbatch.platforms.tasks.task import usd_per_hour
from voxbatch.settings import settings_of

if TYPE_CHECKING:
    from voxbatch.clouds.listen import ListenerOptions
    from voxbatch.clouds.listen.cloud_run_executor import Executor
    from voxbatch.clouds.listen.message_file import MessageFile
    from voxbatch.clouds.listen.subscription import Subscription
    from voxbatch.runner import Stop
    from voxbatch.storage import Stores

HERE, CLOUD_RUN = "here", "cloudrun"
MAX_USD_PER_DAY = 300.0
"""Default limit of a day: two runs of the most automatic tasks. 100 tasks of 50 minutes with a start of 6, at 1.306 USD
an hour, are 122 USD."""
_OUR_OWN = ("include", "quiet", "log_format")
"""Options of `run` that, here, concern this command and not the runs that it starts elsewhere."""


@click.command(
    cls=GroupedCommand,
    short_help="Run what Pub/Sub messages name.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_OUT, …",
)
@click.argument("messages", required=False)
@option(
    "--subscription",
    metavar="S",
    help="Pub/Sub subscription: NAME, or projects/PROJECT/subscriptions/NAME.",
)
@project_option
@option(
    "-o",
    "--out",
    metavar="OUT",
    help="Folder of the runs' folders. Without it, messages must name an output.",
)
@option(
    "--prefix",
    multiple=True,
    metavar="PLACE",
    help="Run only manifests below PLACE, such as gs://calls/in/. Repeatable. Default: below --recordings, or "
    "outside of OUT.",
)
@option(
    "--recordings",
    multiple=True,
    metavar="PLACE",
    help="Also run recordings that are uploaded below PLACE. Repeatable.",
)
@include_option
@option(
    "--batch-window",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Make one run of the recordings that are uploaded within this time.",
)
@option(
    "--manifest-window",
    type=click.FloatRange(min=0, max=3600),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Cloud Run: one execution for manifests that arrive within this time, if one task can do them. 0: one for "
    "each.",
)
@setting_option(settings_of(RunOptions)["allow_outside"])
@setting_option(settings_of(RunOptions)["only_under"])
@option(
    "--dead-letter",
    metavar="TOPIC",
    help="Topic for messages that cannot be run. Default: the subscription's own.",
)
@option("--drain", is_flag=True, help="Handle the waiting messages, then exit.")
@option(
    "--backfill",
    "backfills",
    is_flag=True,
    help="Send a message for each object below --prefix and --recordings, then exit.",
)
@option(
    "--to",
    type=click.Choice((HERE, CLOUD_RUN)),
    default=HERE,
    show_default=True,
    metavar=f"{HERE}|{CLOUD_RUN}",
    help="Run here, or start an execution of a Cloud Run job for each run.",
)
@job_option
@region_option
@tasks_option
@ceiling_options
@option(
    "--max-usd-per-day",
    type=click.FloatRange(min=0),
    default=MAX_USD_PER_DAY,
    show_default=True,
    metavar="USD",
    help="Cloud Run: refuse a run if the executions of this UTC day would be expected to cost more. 0: no limit.",
)
@prompt_option
@job_options
@store_options
@click.pass_context
def listen(
    ctx: click.Context,
    /,
    messages: str | None,
    subscription: str | None,
    project: str | None,
    out: str | None,
    prefix: tuple[str, ...],
    recordings: tuple[str, ...],
    include: tuple[str, ...],
    batch_window: float,
    manifest_window: float,
    dead_letter: str | None,
    drain: bool,
    backfills: bool,
    to: str,
    job: str,
    region: str | None,
    tasks: int | None,
    max_tasks: int,
    max_usd: float | None,
    max_usd_per_day: float,
    quiet: bool,
    log_format: str,
    exit_zero: bool,
    **settings: Any,
) -> None:
    """Run manifests and recordings that messages name: uploads to a bucket, and {"manifest": …, "output": …}.

    The messages are those of a Pub/Sub subscription, or the lines of the file MESSAGES. Each uploaded manifest is one
    run. A recording that is uploaded below --recordings is one run, or all recordings within --batch-window are one run
    together.

    A message is acknowledged when its run is committed. With --to cloudrun it is acknowledged when the execution has
    started, because Cloud Run then retries the execution itself. A message that can never be run goes to the
    dead-letter topic, with the reason. Several listeners may share one subscription.
    """
    from voxbatch.cli.session import leave, refuse
    from voxbatch.clouds.listen import ListenerOptions
    from voxbatch.clouds.listen.cloud_run_executor import CloudRunExecutor
    from voxbatch.clouds.listen.executors import LocalExecutor, SharedOptions
    from voxbatch.clouds.listen.rules import PlaceRules
    from voxbatch.clouds.submit import Ceiling, CloudRun
    from voxbatch.runner import Stop
    from voxbatch.runner.steps import steps_of

    asked_price = settings["usd_per_hour"] if is_given(ctx, "usd_per_hour") else None
    task = find(os.environ, sagemaker_root(os.environ))
    if task and asked_price is None and (price := usd_per_hour(task, os.environ)) is not None:
        settings["usd_per_hour"] = price
    run_options = run_options_of(ctx, settings)
    log = Log(is_json(log_format, in_job(os.environ)), quiet)
    shared, stop = SharedOptions(run_options, include), Stop()
    executor: Executor
    try:
        rules = PlaceRules.from_options(out, prefix, recordings)
        options = ListenerOptions(rules, run_options.stores, include, batch_window, drain or messages is not None)
        queue = _Queue(subscription, project, dead_letter, messages, (task.attempt or 0) if task else 0)
        if backfills:
            leave(_backfill(options, queue, log))
        steps_of(run_options).path_policy()  # an invalid policy is an error of the options, not of a message
        if to == HERE:
            executor = LocalExecutor(shared, stop, log)
        else:
            executor = CloudRunExecutor(
                shared, CloudRun(job, project, region), forwarded(ctx, _OUR_OWN), out, tasks, asked_price,
                Ceiling(max_tasks, max_usd), max_usd_per_day, manifest_window, log,
            )  # fmt: skip
        with closing(executor):
            code = _serve(options, queue, executor, stop, log)
    except UsageError as e:
        code = refuse(e, log)
    leave(code)


@dataclass(frozen=True, slots=True)
class _Queue:
    """The place of the messages.

    Raises:
        ConfigError: it is not exactly one place.
    """

    subscription: str | None
    project: str | None
    dead_letter: str | None
    messages: str | None
    attempt: int
    """Number of earlier attempts of this task."""

    def __post_init__(self) -> None:
        if (self.subscription is None) == (self.messages is None):
            number = "neither" if self.messages is None else "both"
            raise ConfigError(
                f"give --subscription NAME, or MESSAGES, a file with one message a line; {number} is given"
            )

    def open_subscription(self, log: Log) -> Subscription:
        """Connect to the subscription; see Subscription."""
        from voxbatch.clouds.listen.subscription import Subscription

        if self.subscription is None:
            raise ConfigError("--backfill sends its messages to a subscription's topic: give --subscription NAME")
        return Subscription(self.subscription, self.project, self.dead_letter, log)

    def open(self, stores: Stores, log: Log) -> Subscription | MessageFile:
        """Connect to the subscription, or read the file; see Subscription and MessageFile."""
        from voxbatch.clouds.listen.message_file import MessageFile

        if self.messages is None:
            return self.open_subscription(log)
        return MessageFile(self.messages, stores, self.attempt, log)


def _backfill(options: ListenerOptions, queue: _Queue, log: Log) -> int:
    """Send the messages of objects that are there, and return the exit code."""
    from voxbatch.clouds.listen.backfill import backfill

    try:
        with closing(queue.open_subscription(log)) as messages:
            count = backfill(options.rules, options.stores, messages)
    except RunError as e:
        log.error("backfill_failed", text=f"{e}\nsome messages may have been sent; those that come twice do no harm")
        return e.exit_code
    log.info("backfilled", messages=count, text=f"{count:,} messages sent to the topic of {messages.name}")
    return 0


def _serve(options: ListenerOptions, queue: _Queue, executor: Executor, stop: Stop, log: Log) -> int:
    """Listen until the queue is drained or the process is stopped, and return the exit code."""
    from voxbatch.cli.session import leave, on_signals
    from voxbatch.clouds.listen import Listener
    from voxbatch.runner import StopRequested

    signals: list[int] = []

    def interrupted() -> int:
        """Log the interruption, and return its exit code."""
        text = "interrupted; finished items are committed, and their message goes to the next listener"
        log.warning("interrupted", text=text)
        return 128 + signals[-1]

    on_signals(stop, signals, lambda: leave(interrupted()))
    try:
        messages = queue.open(options.stores, log)
        text = f"listening to {messages.name} for {options.rules}; refused messages go to {messages.dead_letter_topic}"
        log.info("listening", text=text)
        Listener(options, messages, executor, log).serve()
    except StopRequested:
        return interrupted()
    except RunError as e:
        log.error("listen_failed", text=f"{e}\nno message is lost: start voxbatch listen again to continue")
        return e.exit_code
    return messages.exit_code
