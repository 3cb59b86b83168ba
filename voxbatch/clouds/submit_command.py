"""`voxbatch submit`: start a run on a cloud platform; print its forecast and its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from voxbatch.cli.commands import GroupedCommand
from voxbatch.cli.options import (
    ForwardedOption,
    combined,
    is_given,
    job_options,
    limiting_variables,
    manifest_options,
    name_value,
    option,
    run_options_of,
    setting_option,
    source_argument,
    store_options,
)
from voxbatch.cli.run_command import run
from voxbatch.config import Config, RunOptions
from voxbatch.errors import ConfigError, StorageError
from voxbatch.safe_text import escape_controls
from voxbatch.settings import settings_of
from voxbatch.storage.address import is_remote
from voxbatch.work import WorkOptions, commands, work

if TYPE_CHECKING:
    from voxbatch.clouds.submit import Target

AUTO = "auto"


class SubmittedKind(Protocol):
    """How `submit` starts a kind of work elsewhere."""

    command: click.Command
    help: str
    """Help of the flag that chooses the kind."""
    prompt_help: str
    """Help of --prompt, which `run` has, too."""
    options: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Adds the options that only this kind has."""

    def own_options(self, settings: dict[str, Any]) -> WorkOptions:
        """Return the settings of the kind, and remove the values of its options."""


SUBMITTED: dict[str, SubmittedKind] = {
    name: work(name).resolve("submission") for name in commands() if work(name).submission
}
"""The kinds of work that can be submitted besides that of `run`."""
TARGETS = {
    "cloudrun": ("job", "project"),
    "sagemaker": (
        "image", "role", "instance_type", "volume_gb", "volume_kms_key", "subnets", "security_groups", "tags",
    ),
}  # fmt: skip
"""Targets, each with the options that only it has."""

MADE_UP = {
    "image": "000000000000.dkr.ecr.us-east-1.amazonaws.com/voxbatch:latest",
    "role": "arn:aws:iam::000000000000:role/voxbatch-run",
}
"""Values that a dry run for SageMaker takes before anything is deployed: a price needs neither."""


def _tasks(_: click.Context, __: click.Parameter, text: str) -> int | None:
    """Return the number of tasks; None for auto."""
    if text == AUTO:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise click.BadParameter(f"{text!r}: give auto, or how many, from 1")
    return int(text)


region_option = option(
    "--region", metavar="REGION", help="Region. Default: CLOUDSDK_RUN_REGION for Cloud Run, AWS_REGION for SageMaker.",
)  # fmt: skip
project_option = option(
    "--project", metavar="PROJECT", help="Google's project. Default: GOOGLE_CLOUD_PROJECT, or that of the credentials.",
)  # fmt: skip
job_option = option(
    "--job", default="voxbatch", show_default=True, metavar="NAME", help="Cloud Run: name of the job to execute.",
)  # fmt: skip
tasks_option = option(
    "--tasks", default=AUTO, show_default=True, callback=_tasks, metavar="auto|N", envvar="VOXBATCH_SUBMIT_TASKS",
    help="Number of tasks; auto: by the hours of audio. The variable is VOXBATCH_SUBMIT_TASKS: VOXBATCH_TASKS is that "
    "of voxbatch run.",
)  # fmt: skip


ceiling_options = combined(
    option(
        "--max-tasks", type=int, default=100, show_default=True, metavar="N",
        help="Refuse a run that needs more tasks, unless --tasks gives their number.",
    ),
    option(
        "--max-usd", type=float, metavar="USD", help="Refuse a run that is expected to cost more. Default: no limit.",
    ),
)  # fmt: skip


def _options_of_kinds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --prompt of `run`, and the options of each of SUBMITTED with the flag that chooses it."""
    prompt, flags = settings_of(RunOptions)["prompt"], []
    for name, kind in SUBMITTED.items():
        flags.append(click.option(f"--{name}", "kind", flag_value=name, default="", help=kind.help))
        prompt = replace(prompt, help=kind.prompt_help)
    others = [kind.options for kind in SUBMITTED.values()]
    return combined(*flags, setting_option(prompt), *others)(command)


@click.command(cls=GroupedCommand, short_help="Start a run on Cloud Run or SageMaker.")
@source_argument
@option(
    "-o", "--out", metavar="OUT", help="Address of the outputs, gs:// or s3://. Default: NAME.voxbatch next to SOURCE."
)
@option(
    "--target",
    type=click.Choice(tuple(TARGETS)),
    required=True,
    metavar="|".join(TARGETS),
    help="Platform that runs the tasks.",
)
@tasks_option
@ceiling_options
@option(
    "--task-hours",
    type=float,
    metavar="H",
    help="Hours that a task should take, for --tasks auto. Default: 0.83 on Cloud Run, 4 on SageMaker.",
)
@option("--again", is_flag=True, help="Start the run even if a run with the same arguments is in progress.")
@option(
    "--env",
    multiple=True,
    callback=name_value,
    metavar="NAME=VALUE",
    help="A variable for the job, no secret: all who may see the job can read it. Repeatable.",
)
@region_option
@job_option
@project_option
@option("--image", metavar="URI", help="SageMaker: address of the image to run.")
@option("--role", metavar="ARN", help="SageMaker: ARN of the job's role.")
@option(
    "--instance-type",
    metavar="TYPE",
    help="SageMaker: instance type of each task. Default: ml.g6.2xlarge, which has one L4.",
)
@option("--volume-gb", type=int, metavar="GB", help="SageMaker: disk size of each task. Default: 100.")
@option("--volume-kms-key", metavar="ARN", help="SageMaker: key that encrypts the disks.")
@option("--subnets", metavar="ID,ID", help="SageMaker: subnets of the VPC in which the tasks run.")
@option("--security-groups", metavar="ID,ID", help="SageMaker: security groups, with --subnets.")
@option("--tags", metavar="NAME=VALUE,…", help="SageMaker: tags of the job.")
@option(
    "--dry-run",
    is_flag=True,
    help="Print items, hours, tasks, time, cost and the request; start nothing.",
)
@_options_of_kinds
@job_options
@manifest_options
@store_options
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    source: str | tuple[str, ...],
    out: str | None,
    target: str,
    tasks: int | None,
    max_tasks: int,
    max_usd: float | None,
    task_hours: float | None,
    again: bool,
    env: dict[str, str],
    dry_run: bool,
    kind: str,
    **settings: Any,
) -> None:
    """Start a run of SOURCE on a cloud platform, with as many tasks as its hours of audio need.

    Options of the run, given by flags or VOXBATCH_* variables, are passed to the job; --decoders and --workers only if
    given by flags. If a run with the same arguments is in progress, no second run is started.
    """
    from voxbatch.clouds.forecast_lines import print_forecast
    from voxbatch.clouds.submit import Ceiling, Submission, redact_addresses, size_run, size_without_source, start
    from voxbatch.output.default_out import default_out

    for name in ("quiet", "exit_zero", "log_format", "hotwords"):  # they concern only the run
        settings.pop(name)
    platform, ceiling = _platform(ctx, target, settings, dry_run), Ceiling(max_tasks, max_usd)
    settings |= {"own": _own_options(ctx, kind, settings)}
    config = Config.of(run_options_of(ctx, settings), source, out or default_out(source))
    submission = Submission(config.source, config.out, forwarded(ctx), command=kind or "run", environment=env)
    usd_per_hour = config.usd_per_hour if is_given(ctx, "usd_per_hour") else None
    for text in limiting_variables(ctx):
        click.echo(f"Warning: {text}", err=True)
    platform.request(submission)  # refuse an invalid request before the manifest is read
    try:
        submission, forecast = size_run(submission, config, platform, tasks, task_hours, usd_per_hour, ceiling=ceiling)
    except StorageError as e:
        if not dry_run:
            raise
        if tasks is None:
            needed = "--dry-run reads SOURCE to count its hours. With --tasks N it shows the request without them"
            raise type(e)(f"{e}\n{needed}") from e
        sizes = submission, config, platform, tasks, task_hours, usd_per_hour
        submission, forecast = size_without_source(*sizes, ceiling=ceiling)
        click.echo(escape_controls(f"source   cannot be read from here: {e}"))
    request = platform.request(submission)
    print_forecast(forecast, platform)
    if dry_run:
        click.echo(escape_controls(f"request  {request.where}"))
        for text in request.unknown:
            click.echo(f"unknown  {text}")
        click.echo(json.dumps(redact_addresses(request.body), indent=2, ensure_ascii=False))
        return
    started = start(submission, platform, again)
    if started.was_running:
        click.echo(f"running  {started.name}, with the same arguments: nothing was started (--again starts another)")
    else:
        click.echo(f"started  {started.name}")
    click.echo(f"console  {started.url}")
    click.echo(escape_controls(f"progress voxbatch status {submission.out}"))
    sys.stdout.flush()


def forwarded(ctx: click.Context, omit: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the options of `run` that were given by flags and variables, as arguments for a run elsewhere.

    Args:
        omit: names of options that have another meaning for this command; they are left out.

    Raises:
        ConfigError: an option names a file of this machine.
    """
    for name in ("hotwords", "speaker_names", "calibration", "prompt_file", "json_schema", "tools"):
        if (place := ctx.params.get(name)) and not is_remote(place):
            raise ConfigError(
                f"--{name.replace('_', '-')} {place} lies on this machine, where a job elsewhere cannot see it: upload "
                "it, and give its address"
            )
    options = [param for param in ctx.command.params if isinstance(param, ForwardedOption) and param.name not in omit]
    return tuple(argument for option in options for argument in option.arguments(ctx))


def _own_options(ctx: click.Context, kind: str, settings: dict[str, Any]) -> WorkOptions | None:
    """Return the settings that only a kind of work has, and remove the options of all kinds from the settings.

    Args:
        kind: one of SUBMITTED, or "" for `run`.

    Raises:
        ConfigError: an option is invalid, or not for the command.
    """
    kinds: dict[str, click.Command] = {"": run, **{name: submitted.command for name, submitted in SUBMITTED.items()}}
    allowed = {param.name for param in kinds[kind].params}
    for other, command in kinds.items():
        for param in command.params:
            if param.name not in allowed and is_given(ctx, str(param.name)):
                advice = f"add --{other}" if other else "leave it out"
                raise ConfigError(f"{param.opts[0]} is an option of voxbatch {command.name}; {advice}")
    before = dict(settings)
    own = {name: submitted.own_options(settings) for name, submitted in SUBMITTED.items()}
    shared = before.keys() & settings_of(RunOptions).keys() - settings.keys()  # of `run`, too, with another meaning
    settings |= {name: None if kind else before[name] for name in shared}
    return own.get(kind)


def refuse_options_of_others(ctx: click.Context, target: str) -> None:
    """Check that no option of another target is given by a flag.

    Raises:
        ConfigError: there is one.
    """
    for other, names in TARGETS.items():
        for name in names:
            if other != target and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise ConfigError(f"--{name.replace('_', '-')} is for --target {other}; leave it out for {target}")


def _platform(ctx: click.Context, name: str, settings: dict[str, Any], dry_run: bool) -> Target:
    """Return the platform, built from its own options. A dry run takes a made-up image and role where none is given.

    Removes the options of all platforms from `settings`.

    Raises:
        ConfigError: an option of another platform was given, or a required one is missing.
    """
    from voxbatch.clouds.submit import CloudRun, SageMaker

    own = {option_name: settings.pop(option_name) for names in TARGETS.values() for option_name in names}
    refuse_options_of_others(ctx, name)
    own = {option_name: own[option_name] for option_name in TARGETS[name] if own[option_name] is not None}
    region = settings.pop("region")
    if name == "cloudrun":
        return CloudRun(**own, region=region)
    missing = [f"--{option_name}" for option_name in MADE_UP if option_name not in own]
    if missing and not dry_run:
        needed = " and ".join(missing)
        raise ConfigError(
            f"--target sagemaker needs {needed}, because each run creates its own job; --dry-run needs neither"
        )
    if missing:
        click.echo(f"unknown  {', '.join(missing)}: the request has made-up ones")
    return SageMaker(**{**MADE_UP, **own}, region=region)
