"""Write docs/cli.md from the help of the commands. `make docs` runs this script; a test fails if the page is out of
date.
"""

from __future__ import annotations

from pathlib import Path

import click

from voxbatch.cli import cli

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 110


def reference() -> str:
    """Return the page: the help of every command, as `--help` prints it."""
    parts = ["# The command line\n\nMade from the commands' own help by `make docs`.\n"]
    parts += [_section("voxbatch", cli, None)]
    parts += [_section(f"voxbatch {name}", command, cli) for name, command in sorted(cli.commands.items())]
    return "\n".join(parts)


def _section(name: str, command: click.Command, parent: click.Command | None) -> str:
    above = click.Context(parent, info_name="voxbatch") if parent else None
    context = click.Context(
        command,
        above,
        name.rsplit(maxsplit=1)[-1],
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return f"## {name}\n\n```\n{command.get_help(context).rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(reference())
