"""`voxbatch listen`: runs that messages ask for, one after the other, with an engine that stays loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.options import access_options, config_of, listen_options
from voxbatch.config import Config
from voxbatch.errors import ConfigError, RunError
from voxbatch.log import Log

if TYPE_CHECKING:
    from voxbatch.engines import Kept
    from voxbatch.listen import Run
    from voxbatch.pipeline import Stop


@click.command(epilog="Each option can also be given as an environment variable: VOXBATCH_SUBSCRIPTION, VOXBATCH_OUT …")
@listen_options
@access_options
@click.pass_context
def listen(ctx: click.Context, /, quiet: bool, log_format: str, **settings: Any) -> None:
    """Run what the messages of a Pub/Sub subscription ask for: uploads to a bucket, and {"manifest": …, "output": …}.

    A manifest that is uploaded is run; a recording that is uploaded is a run of its own, or one with all that come
    within --batch-window. A message is acknowledged when its run is committed; what can never be run goes to the
    dead-letter topic, with the reason. Several may listen to one subscription.
    """
    from voxbatch.cli.session import leave

    own = {name: settings.pop(name) for name in ("subscription", "project", "dead_letter", "drain")}
    own |= {name: settings.pop(name) for name in ("out", "prefix", "recordings", "include", "batch_window")}
    config = config_of(ctx, "-", {**settings, "out": "-", "shard": None, "resume": True, "include": ()})
    log = Log(log_format == "json" or (log_format == "auto" and not sys.stderr.isatty()), quiet)
    leave(_listen(config, log, **own))


def _listen(
    config: Config,
    log: Log,
    *,
    subscription: str,
    project: str | None,
    out: str | None,
    prefix: tuple[str, ...],
    recordings: tuple[str, ...],
    include: tuple[str, ...],
    batch_window: float,
    dead_letter: str | None,
    drain: bool,
) -> int:
    from voxbatch.cli.session import on_signals
    from voxbatch.decoder import spares
    from voxbatch.engines import Kept
    from voxbatch.listen import Listener, Rules, Settings, Subscription
    from voxbatch.pipeline import Interrupted, Stop

    places = (tuple(_place("--prefix", each) for each in prefix), tuple(_place("--recordings", p) for p in recordings))
    rules = Rules(_folder("-o", out) if out else None, *places)
    if rules.recordings and not rules.out:
        raise ConfigError("--recordings needs -o OUT: where else should their transcripts go?")
    if batch_window and not rules.recordings:
        raise ConfigError("--batch-window needs --recordings: a batch is all that came below such a place, in a window")
    stop, signals = Stop(), list[int]()

    def interrupted() -> int:
        log.warning("interrupted", text="interrupted; what was in hand is committed, and its message is given back")
        return 128 + signals[-1]

    with closing(Kept()) as kept, closing(spares):
        spares.are_kept = True
        _prove(config, kept)
        on_signals(stop, signals, lambda: os._exit(interrupted()))
        try:
            messages = Subscription(subscription, project, dead_letter, log)
            perform = _here(config, include, log, stop, kept)
            listener = Listener(Settings(rules, config.access, include, batch_window, drain), messages, perform, log)
            log.info("listening", text=f"listening to {messages.name}; refused messages go to {messages.dead_letter}")
            listener.serve()
            return 0
        except Interrupted:
            return interrupted()
        except RunError as e:
            log.error("listen_failed", text=f"{e}\nno message is lost: start again to go on")
            return e.exit_code


def _prove(config: Config, kept: Kept) -> None:
    """Raises UsageError where no run could succeed, whatever the message: that is no message's fault."""
    from voxbatch import engines

    choice = engines.choose(config.engine)
    engine = kept.create(choice.name, config.model, config.engine_options, config.access)
    if config.language:
        engines.require_language(engine, config.language)


def _here(config: Config, include: tuple[str, ...], log: Log, stop: Stop, kept: Kept) -> Callable[[Run], None]:
    """Brings a run to its end in this process."""
    from voxbatch import fleet
    from voxbatch.cli.session import report
    from voxbatch.display import events
    from voxbatch.storage.address import is_folder

    def perform(run: Run) -> None:
        of_folder = include if is_folder(run.source) else ()
        places = (*config.only_under, *run.only_under)
        ours = replace(config, source=run.source, out=run.out, only_under=places, include=of_folder)
        told = log.of(out=run.out)
        told.info("run_started", source=run.source, text=f"{run.source} → {run.out}")
        with events(told) as observe:
            finished = fleet.run(ours, told, observe, stop, kept)
        report(ours, finished, told, quiet=True, exit_zero=True)

    return perform


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
