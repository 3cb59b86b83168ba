"""The command `doctor`."""

from __future__ import annotations

import contextlib
import sys

import click

from voxbatch.cli.options import parsed_run_options
from voxbatch.cli.run_command import run
from voxbatch.errors import ConfigError
from voxbatch.safe_text import escape_controls


@click.command(short_help="Show what is installed and what is missing.")
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Show what is installed, which engine would run, and how to install what is missing.

    The settings are those of a run with the same VOXBATCH_* variables: VOXBATCH_MODEL is looked for, and VOXBATCH_OUT
    is created and written to. The last lines say whether voxbatch is ready, and which model to take. The exit code is 1
    if it is not ready.
    """
    from voxbatch.cli.columns import aligned
    from voxbatch.doctor import findings, is_ready, verdict

    with run.make_context(run.name, ["-"], ctx) as running:
        results = list(findings(parsed_run_options(running), running.params["out"]))
    for finding in results:
        click.echo(aligned(escape_controls(f"{finding.state:<8} {finding.name:<22} "), escape_controls(finding.detail)))
    click.echo(escape_controls(f"\n{verdict(results)}", allowed="\n"))
    if is_ready(results):
        from voxbatch.engines.quality import recommended

        with contextlib.suppress(ConfigError):  # the installed engines have no model of the table
            click.echo(f"best model for English: {recommended('best', 'en')}")
            click.echo(f"for other languages: {recommended('best')}")
            click.echo("take it: voxbatch run FOLDER --quality best --language en; others: voxbatch models")
    sys.exit(0 if is_ready(results) else 1)
