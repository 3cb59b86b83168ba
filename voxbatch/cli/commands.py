"""The group of the commands and the class of `run`: what they accept beyond click.

`voxbatch talk.mp3` names the command that was meant. `--formats srt vtt` is read as `--formats srt,vtt`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from voxbatch import parts
from voxbatch.cli.usage_errors import name_with_blanks
from voxbatch.config import FORMATS
from voxbatch.hints import COMMAND, hint
from voxbatch.settings import COMMON, GROUPS
from voxbatch.work import commands

HELP_ALL = "help_all"
"""Key of click's `meta`: true if the help shows all options."""
HELP_WIDTH = 100
"""Columns of the help, and of YAML."""
WIDTH = 79
"""Columns of text for people: a terminal's usual 80, without the last one."""
_MODULES = {
    "run": "voxbatch.cli.run_command",
    **{name: f"voxbatch.works.{name}.command" for name in commands()},
    "status": "voxbatch.cli.out_commands",
    "report": "voxbatch.cli.out_commands",
    "export": "voxbatch.cli.out_commands",
    "doctor": "voxbatch.cli.doctor_command",
    "models": "voxbatch.cli.models_command",
    "validate": "voxbatch.cli.validate_command",
    "manifest": "voxbatch.cli.validate_command",
    "score": "voxbatch.cli.score_command",
    "compare": "voxbatch.cli.compare_command",
    "flags": "voxbatch.cli.flags_command",
    "find": "voxbatch.cli.find_command",
    "calibrate": "voxbatch.cli.flags_command",
    "merge": "voxbatch.cli.out_commands",
    "correct": "voxbatch.works.correct.command",
    "forget": "voxbatch.works.forget.command",
    "profiles": "voxbatch.cli.models_command",
    "submit": "voxbatch.clouds.submit_command",
    "deployment": "voxbatch.clouds.deployment_command",
    "listen": "voxbatch.clouds.listen_command",
    "serve": "voxbatch.cli.serve_command",
}
_NEEDS = {
    "submit": "voxbatch.clouds",
    "deployment": "voxbatch.clouds",
    "listen": "voxbatch.clouds",
    "serve": "voxbatch.vllm",
}
"""The parts of voxbatch that some commands need."""
MODULES = {name: module for name, module in _MODULES.items() if parts.has(_NEEDS.get(name, module))}
"""The module of each command, in the order of the help: the most used first. The module's function has
the name of the command. A command whose folder is not installed is left out."""


class _CommandModules(Mapping[str, click.Command]):
    """The commands by their names, each imported with its module when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        command: click.Command = getattr(import_module(MODULES[name]), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


COMMANDS = _CommandModules()


class Commands(click.Group):
    """The commands of voxbatch, in the order of their use."""

    def __init__(self, *args: Any, **settings: Any):
        """Begin with all commands; see click.Group."""
        super().__init__(*args, **settings)
        self.commands = COMMANDS  # type: ignore[assignment]  # no command is added later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; if they name a file or an address, name `run`."""
        name = args[0]
        if name not in self.commands and (os.path.exists(name) or "://" in name):
            ctx.fail(f"No such command {name!r}. To transcribe it: voxbatch run {name}")
        if name not in self.commands and (answer := hint(COMMAND, name)):
            ctx.fail(f"No such command {name!r}. {answer}")
        if meant := name_with_blanks(args[1:]):
            ctx.fail(f"{meant!r} has blanks, at which the shell divides it: put it into quotes")
        return super().resolve_command(ctx, args)


class WithFormats(click.Command):
    """A command with --formats. It also takes the formats as separate arguments: `--formats srt vtt`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the formats to one argument, and parse; see click.Command.

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
        return super().parse_args(ctx, joined)


def _help_all(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the help with all options, and exit."""
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class GroupedCommand(WithFormats):
    """A command whose help shows the options in groups."""

    def __init__(self, *args: Any, common: Collection[str] = (), **settings: Any):
        """Build the command; see click.Command.

        Args:
            common: names of the options that --help shows; --help-all shows the others, too. Empty means all.
        """
        super().__init__(*args, **settings)
        self._common = (*common, HELP_ALL) if common else ()
        if common:
            self.params.append(
                click.Option(["--help-all", HELP_ALL], is_flag=True, is_eager=True, expose_value=False,
                             callback=_help_all, help="Show all options and exit.")
            )  # fmt: skip

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a group together; see click.Command."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS}
        params = self.get_params(ctx)
        if is_short := self._common and not ctx.meta.get(HELP_ALL):
            by_name = {param.name: param for param in self.params}
            params = [*(by_name[name] for name in self._common), params[-1]]  # click adds --help as the last one
        for param in params:
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                groups[COMMON if is_short else getattr(param, "group", COMMON)].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def format_name(text: str) -> str:
    """Return the name of a format as it was meant: " .SRT" → "srt"."""
    return text.strip().removeprefix(".").lower()
