"""The group of the commands and the class of `run`: what they accept beyond click, and which next step they name.

`voxbatch talk.mp3` names the command that was meant. `--formats srt vtt` is read as `--formats srt,vtt`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from voxbatch.config import FORMATS

ORDER = (
    "run", "ask", "status", "report", "doctor", "models", "validate", "manifest", "score", "compare", "flags",
    "calibrate", "merge", "profiles", "submit", "listen", "serve",
)  # fmt: skip
"""Commands in the order of the help, the most used first. Others follow."""
MEANT = {
    "transcribe": "voxbatch run SOURCE transcribes",
    "help": "Try voxbatch --help",
    "version": "Try voxbatch --version",
}
"""Words that people type as commands, and the answer."""
_MISSING_SOURCE = """

Give one of these as SOURCE:
  voxbatch run talk.mp3      a recording
  voxbatch run recordings/   a folder of recordings
  voxbatch run calls.jsonl   a manifest"""


class Commands(click.Group):
    """The commands of voxbatch, in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(self.commands, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; if they name a file or an address, name `run`."""
        name = args[0]
        if name not in self.commands and (os.path.exists(name) or "://" in name):
            ctx.fail(f"No such command {name!r}. To transcribe it: voxbatch run {name}")
        if name not in self.commands and name in MEANT:
            ctx.fail(f"No such command {name!r}. {MEANT[name]}")
        return super().resolve_command(ctx, args)


class WithFormats(click.Command):
    """A command with --formats. It also takes the formats as separate arguments: `--formats srt vtt`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; see click.Command."""
        return super().parse_args(ctx, _joined_formats(args))


def _joined_formats(args: Sequence[str]) -> list[str]:
    """Return the arguments with the formats after --formats as one argument: ["--formats", "srt,vtt"].

    An argument that is a file or a folder is no format.
    """
    joined: list[str] = []
    is_list = False
    for arg in args:
        names = [format_name(part) for part in arg.split(",") if part]
        if is_list and names and set(names) <= set(FORMATS) and not os.path.exists(arg):
            joined[-1] += f",{arg}"
            continue
        is_list = arg.startswith("--formats=") or bool(joined and joined[-1] == "--formats")
        joined.append(arg)
    return joined


def format_name(text: str) -> str:
    """Return the name of a format as it was meant: " .SRT" → "srt"."""
    return text.strip().removeprefix(".").lower()


def usage(error: click.ClickException) -> str:
    """Return the usage of the command that refused its arguments, or "" for another error."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n"


def next_step(error: click.ClickException) -> str:
    """Return the text that follows the message of an error, or ""."""
    if not isinstance(error, click.MissingParameter) or error.ctx is None or error.param is None:
        return ""
    return _MISSING_SOURCE if (error.ctx.info_name, error.param.name) == ("run", "source") else ""
