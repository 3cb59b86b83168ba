"""`voxbatch listen`: runs that messages ask for, one after the other, here with an engine that stays loaded, or as
executions of a Cloud Run job."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.options import (
    Forwarding,
    access_options,
    config_of,
    forwarded,
    include_option,
    is_given,
    job_options,
    option,
    own_task,
    priced,
)
from voxbatch.cli.submission import tasks_option
from voxbatch.config import Config
from voxbatch.errors import ConfigError, RunError, StartError, UsageError
from voxbatch.log import Log, is_json

if TYPE_CHECKING:
    from voxbatch.engines import Kept
    from voxbatch.listen import Run
    from voxbatch.pipeline import Stop
    from voxbatch.submit import CloudRun

HERE, CLOUD_RUN = "here", "cloudrun"
LONGEST_WINDOW_S = 86_400
"""Messages wait for a window's end, and are given back meanwhile, which counts as a delivery; after 7 days, the usual
retention, Pub/Sub drops them."""
_OUR_OWN = ("include", "quiet", "log_format")
"""Options of `run`, too, which say something of this command and nothing of the runs that it starts elsewhere."""


@click.command(cls=Forwarding, epilog="Each option can also be given as an environment variable: VOXBATCH_OUT, …")
@option("--subscription", required=True, metavar="S", help="Of Pub/Sub: NAME, or projects/PROJECT/subscriptions/NAME.")
@option("--project", metavar="P", help="Of short names. Default: GOOGLE_CLOUD_PROJECT, or the credentials' own.")
@option(
    "-o",
    "--out",
    metavar="OUT",
    help="Each run has a folder in it, named as what was uploaded. Without it, messages must say.",
)
@option(
    "--prefix",
    multiple=True,
    metavar="PLACE",
    help="Take only manifests below PLACE, such as gs://calls/in/. Repeatable. Default: the places of --recordings; "
    "without these, all outside of OUT.",
)
@option(
    "--recordings",
    multiple=True,
    metavar="PLACE",
    help="Run recordings that are uploaded below PLACE, too. Repeatable. Elsewhere they wait for a manifest.",
)
@include_option
@option(
    "--batch-window",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Recordings uploaded within so long are one run. Default: each is one.",
)
@option(
    "--allow-outside", is_flag=True, help="Let manifests name any local file and address, not only what lies with them."
)
@option(
    "--only-under",
    multiple=True,
    metavar="PLACE",
    help="Let them name only what is below PLACE, a folder or the address of one. Repeatable.",
)
@option(
    "--dead-letter",
    metavar="TOPIC",
    help="Where messages go that cannot be run, with the reason. Default: the subscription's own topic.",
)
@option("--drain", is_flag=True, help="Handle what is there, then exit.")
@option(
    "--to",
    type=click.Choice((HERE, CLOUD_RUN)),
    default=HERE,
    show_default=True,
    metavar=f"{HERE}|{CLOUD_RUN}",
    help="Run it here, or start an execution of a Cloud Run job for it.",
)
@option("--job", default="voxbatch", show_default=True, metavar="NAME", help="Cloud Run: the job to execute.")
@option("--region", metavar="REGION", help="Cloud Run: the job's. Default: CLOUDSDK_RUN_REGION.")
@tasks_option
@job_options
@access_options
@click.pass_context
def listen(ctx: click.Context, /, quiet: bool, log_format: str, **settings: Any) -> None:
    """Run what the messages of a Pub/Sub subscription ask for: uploads to a bucket, and {"manifest": …, "output": …}.

    A manifest that is uploaded is run; a recording that is uploaded below --recordings is a run of its own, or one with
    all that come within --batch-window. A message is acknowledged when its run is committed, or with --to cloudrun when
    its execution has begun, whose own retries then answer for it; what can never be run goes to the dead-letter topic,
    with the reason. Several may listen to one subscription.
    """
    from voxbatch.cli.session import leave

    asked = _Asked(**{name: settings.pop(name) for name in _Asked.__slots__})
    settings.pop("exit_zero")
    of_run = {**settings, "out": "-", "shard": None, "resume": True, "include": ()}
    config = config_of(ctx, "-", of_run)
    config = priced(ctx, config, own_task("-", {"tasks": "auto", "shard": None}))
    log = Log(is_json(log_format), quiet)
    usd_per_hour = config.usd_per_hour if is_given(ctx, "usd_per_hour") else None
    leave(_Listening(asked, config, forwarded(ctx, _OUR_OWN), usd_per_hour, log).run())


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that `run` has not, or not in this sense."""

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
    """None for as many as the hours of audio need."""


class _Listening:
    def __init__(self, asked: _Asked, config: Config, options: tuple[str, ...], usd_per_hour: float | None, log: Log):
        """
        Args:
            config: of the runs, but for what and where.
            options: of a run elsewhere.
            usd_per_hour: of a machine elsewhere, where it was given.
        """
        self._asked, self._config, self._options, self._log = asked, config, options, log
        self._usd_per_hour = usd_per_hour

    def run(self) -> int:
        """The exit code.

        Raises:
            UsageError: what was asked for cannot be, whatever the messages say; in JSON it is told.
        """
        from voxbatch.cli.session import refuse

        try:
            return self._run()
        except UsageError as e:
            return refuse(e, self._log)

    def _run(self) -> int:
        from voxbatch.cli.session import on_signals
        from voxbatch.decoder import spares
        from voxbatch.engines import Kept
        from voxbatch.listen import Listener, Rules, Settings, Subscription
        from voxbatch.pipeline import Interrupted, Stop
        from voxbatch.run import policy

        asked, stop, signals = self._asked, Stop(), list[int]()
        rules = Rules(*self._places())
        policy(self._config)  # what it would refuse is no message's fault

        def interrupted() -> int:
            text = "interrupted; what was in hand is committed, and its message comes to whoever listens next"
            self._log.warning("interrupted", text=text)
            return 128 + signals[-1]

        with closing(Kept()) as kept, closing(spares):
            spares.are_kept = True
            perform = self._here(stop, kept) if asked.to == HERE else self._elsewhere()
            on_signals(stop, signals, lambda: os._exit(interrupted()))
            try:
                messages = Subscription(asked.subscription, asked.project, asked.dead_letter, self._log)
                settings = Settings(
                    rules, self._config.access, asked.include, asked.batch_window, asked.drain, asked.to == HERE
                )
                text = f"listening to {messages.name} for {rules}; refused messages go to {messages.dead_letter}"
                self._log.info("listening", text=text)
                Listener(settings, messages, perform, self._log).serve()
                return 0
            except Interrupted:
                return interrupted()
            except RunError as e:
                self._log.error("listen_failed", text=f"{e}\nno message is lost: start again to go on")
                return e.exit_code

    def _places(self) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
        """(OUT, where manifests come in, where recordings do)"""
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

    def _here(self, stop: Stop, kept: Kept) -> Callable[[Run], None]:
        """Brings a run to its end in this process.

        Raises:
            UsageError: no run could succeed, and no message would be to blame.
        """
        from voxbatch import engines, fleet
        from voxbatch.cli.session import report
        from voxbatch.display import events
        from voxbatch.run import workers
        from voxbatch.storage import shown

        config = self._config
        choice = engines.choose(config.engine)
        engine = kept.create(choice.name, config.model, config.engine_options, config.access)
        if config.language:
            engines.require_language(engine, config.language)
        if (count := len(workers(config, engine))) > 1:
            text = (
                f"{count} GPUs share each run, and load the model anew for it; for many small runs start a listener "
                "for each GPU (--engine-option devices=0), or give --workers 1"
            )
            self._log.warning("loads_anew", text=text)

        def perform(run: Run) -> None:
            ours, log = self._of(run), self._log.of(out=run.out)
            log.info("run_started", source=shown(run.source), text=f"{shown(run.source)} → {run.out}")
            with events(log) as observe:
                finished = fleet.run(ours, log, observe, stop, kept)
            report(ours, finished, log, quiet=True, exit_zero=True)

        return perform

    def _of(self, run: Run) -> Config:
        from voxbatch.storage.address import is_folder

        of_folder = self._asked.include if is_folder(run.source) else ()
        ours = replace(self._config, source=run.source, out=run.out, include=of_folder)
        if not run.only_under:
            return ours
        return replace(ours, allow_outside=False, only_under=(*ours.only_under, *run.only_under))

    # -- on Cloud Run -------------------------------------------------------------------------------------------------

    def _elsewhere(self) -> Callable[[Run], None]:
        """Starts an execution of the job, unless it goes on already.

        Raises:
            ConfigError: there is no such job, or no run could be passed to it, and no message would be to blame.
        """
        from voxbatch.finalize import SUMMARY
        from voxbatch.storage import open_store, shown
        from voxbatch.storage.address import is_bucket
        from voxbatch.submit import CloudRun, check, start_in_time

        target = CloudRun(self._asked.job, self._asked.project, self._asked.region)
        check(self._config, target, self._asked.tasks)
        if self._asked.out and not is_bucket(self._asked.out):
            raise ConfigError(f"-o {self._asked.out} is no place that the job sees: give gs://… or s3://…")
        target.prove()

        def perform(run: Run) -> None:
            log = self._log.of(out=run.out)
            if run.only_under and open_store(run.out, self._config.access).exists(SUMMARY):
                log.info("done_before", text=f"{run.out}: done before")  # its manifest never changes
                return
            order = self._ordered(run, target)
            try:
                started = start_in_time(order, target, lambda why: log.warning("start_postponed", text=why))
            except ConfigError as e:  # the job is gone, say: not the message's fault
                raise StartError(str(e)) from e
            text = f"{shown(run.source)} → {run.out}: {'found' if started.was_running else 'started'} {started.name}"
            log.info("run_submitted", execution=started.name, tasks=order.tasks, url=started.url, text=text)

        return perform

    def _ordered(self, run: Run, target: CloudRun) -> Any:
        from voxbatch.submit import Order, sized

        ours = self._of(run)
        options = [each for each in self._options if not (run.only_under and each == "--allow-outside")]
        options += [text for place in run.only_under for text in ("--only-under", place)]
        options += [text for glob in ours.include for text in ("--include", glob)]
        order = Order(run.source, run.out, tuple(options))
        return sized(order, ours, target, self._asked.tasks, None, self._usd_per_hour, blind=1)[0]


def _place(option: str, place: str) -> str:
    from voxbatch.storage import is_remote

    if not is_remote(place):
        raise ConfigError(f"{option} {place}: uploads come to a bucket; write gs://bucket/folder/")
    return _folder(option, place)


def _folder(option: str, place: str) -> str:
    """As Rules has it: tidied, with / at its end."""
    from voxbatch.storage import is_remote
    from voxbatch.storage.address import tidied

    try:
        found = tidied(place) if is_remote(place) else os.path.abspath(place)
    except ValueError as e:
        raise ConfigError(f"{option} {place}: {e}") from e
    return found.rstrip("/") + "/"
