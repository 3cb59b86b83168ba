"""`voxbatch deployment`: show what a deployment on Cloud Run or SageMaker does, in one screen."""

from __future__ import annotations

import json
import re
import time

import click

from voxbatch.cli.options import option
from voxbatch.clouds.submit_command import project_option, refuse_options_of_others, region_option
from voxbatch.safe_text import escape_controls

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def _name(_: click.Context, __: click.Parameter, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise click.BadParameter(f"{text!r}: give 1 to 63 small letters, digits and dashes")
    return text


@click.command(short_help="Show what a deployment on Cloud Run or SageMaker does.")
@option(
    "--target",
    type=click.Choice(("cloudrun", "sagemaker")),
    required=True,
    metavar="cloudrun|sagemaker",
    help="Platform of the deployment.",
)
@option(
    "--name",
    default="voxbatch",
    show_default=True,
    callback=_name,
    metavar="NAME",
    help="Begin of the names of its jobs.",
)
@region_option
@project_option
@option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    metavar="H",
    help="Hours to look back.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def deployment(
    ctx: click.Context, target: str, name: str, region: str | None, project: str | None, hours: float, as_json: bool
) -> None:  # fmt: skip
    """Show what runs, what the last day did, which executions failed, how many messages wait, and what the machines
    cost. Nothing is changed.

    Cloud Run needs roles/run.viewer and roles/monitoring.viewer.
    """
    from voxbatch.clouds.deployment import cloudrun, lines, sagemaker
    from voxbatch.clouds.submit import CloudRun

    refuse_options_of_others(ctx, target)
    now = time.time()
    since = now - hours * 3600
    if target == "cloudrun":
        state = cloudrun.read(CloudRun(name, project, region), since, now)
    else:
        state = sagemaker.read(name, region, since, now)
    for line in [json.dumps(state.to_dict())] if as_json else lines(state):
        click.echo(escape_controls(line))
