"""Say what is wrong with a command line that click refuses, and what to type instead."""

from __future__ import annotations

import click

from voxbatch.hints import OPTION, hint

DESTRUCTIVE = ("--overwrite", "--drop")
"""Options that no message suggests, because they delete what somebody may still need."""
_MISSING_SOURCE = """

Give one of these as SOURCE:
  voxbatch run talk.mp3      a recording
  voxbatch run recordings/   a folder of recordings
  voxbatch run calls.jsonl   a manifest"""


def usage(error: click.ClickException) -> str:
    """Return the usage of the command that refused its arguments, or "" for another error."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n"


def message_of(error: click.ClickException) -> str:
    """Return the message of an error, with what to type instead if that is known."""
    if isinstance(error, click.NoSuchOption) and (place := hint(OPTION, error.option_name)):
        return f"{error.message} {place}."
    if isinstance(error, click.NoSuchOption):
        harmless = [name for name in error.possibilities or () if name not in DESTRUCTIVE]
        error = click.NoSuchOption(error.option_name, error.message, harmless, error.ctx)
    message = error.format_message()
    if isinstance(error, click.MissingParameter) and error.ctx is not None and error.param is not None:
        message += _MISSING_SOURCE if (error.ctx.info_name, error.param.name) == ("run", "source") else ""
    return message
