"""Say what is wrong with a command line that click refuses, and what to type instead."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click

from voxbatch.hints import FURTHER, OPTION, VALUE, hint

DESTRUCTIVE = ("--overwrite", "--drop")
"""Options that no message suggests, because they delete what somebody may still need."""
_MISSING = {
    "OUT": " It is the folder with the outputs of a run, such as recordings.voxbatch",
    "ID...": " It is the `id` of an item in OUT/transcripts.jsonl, such as calls/0017.wav",
    "TEXT...": " OUT comes first, and then what was said",
}
"""Explanation of a missing argument, by its name."""
_MISSING_SOURCE = """

Give one of these as SOURCE:
  voxbatch run talk.mp3      a recording
  voxbatch run recordings/   a folder of recordings
  voxbatch run calls.jsonl   a manifest"""

_NO_CHOICE = re.compile("'(.*)' is not one of ")
"""Begin of click's message about a value that is no choice of an option."""
_MOST_WORDS = 20
"""Words of a name with blanks that are joined, at most."""


def name_with_blanks(args: Sequence[str]) -> str:
    """Return the name that the shell has split at its blanks: that of a file, or of the OUT of a run; or "".

    ["talk.mp3", "My", "Talk.mp3"]    →    "My Talk.mp3", if that exists and My does not
    """
    for at, first in enumerate(args):
        if first.startswith("-") or os.path.lexists(first):
            continue
        words = [first]
        for word in args[at + 1 : at + _MOST_WORDS]:
            words.append(word)
            if os.path.lexists(name := " ".join(words)):
                return name
        is_out = at >= 1 and args[at - 1] in ("-o", "--out") and any(map(os.path.lexists, args[: at - 1]))
        rest = args[at + 1 : at + 2]
        if is_out and rest and not rest[0].startswith("-") and "." not in rest[0] and not os.path.lexists(rest[0]):
            return f"{first} {rest[0]}"
    return ""


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
    if isinstance(error, click.UsageError) and error.ctx and message.startswith("Got unexpected extra argument"):
        message += (answer := hint(FURTHER, error.ctx.info_name or "")) and f". {answer}"
    if isinstance(error, click.BadParameter) and error.param and (value := _NO_CHOICE.match(error.message)):
        answer = hint(VALUE, f"{error.param.opts[-1]}={value[1]}")
        message += answer and f" {answer}."
    if isinstance(error, click.BadOptionUsage) and error.ctx and message.endswith("requires an argument."):
        named = (param for param in error.ctx.command.params if error.option_name in param.opts)
        option = next((param for param in named if isinstance(param, click.Option)), None)
        if option and option.help:
            message += f" {error.option_name} {option.make_metavar(error.ctx)}: {option.help}"
    if isinstance(error, click.MissingParameter) and error.ctx is not None and error.param is not None:
        message += _MISSING_SOURCE if (error.ctx.info_name, error.param.name) == ("run", "source") else ""
        message += _MISSING.get(error.param.human_readable_name, "")
        if isinstance(choice := error.param.type, click.Choice):  # click gives a line with a tab to each
            message = f"{message.partition(' Choose from:')[0]} Give {' or '.join(map(str, choice.choices))}."
    return message
