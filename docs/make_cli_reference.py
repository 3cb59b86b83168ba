"""Write docs/cli.md from the help of the commands and of the engines' options. `make docs` runs this script; a test
fails if the page is out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from voxbatch import onnx_asr
from voxbatch.cli import cli
from voxbatch.cli.commands import HELP_ALL
from voxbatch.engines import hibari
from voxbatch.engines.faster_whisper import FasterWhisperOptions
from voxbatch.settings import Setting, settings_of
from voxbatch.transducers.options import TransducerOptions
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.model import REALTIME
from voxbatch.vllm.engine.settings import VllmSettings

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 110


def reference() -> str:
    """Return the page: the help of every command, as `--help` prints it, and tables of the engines' options."""
    parts = ["# The command line\n\nMade from the commands' own help by `make docs`.\n"]
    parts += [_section("voxbatch", cli, None)]
    parts += [_section(f"voxbatch {name}", command, cli) for name, command in sorted(cli.commands.items())]
    parts += [
        "## Engine options\n",
        "For `--engine-option NAME=VALUE`. The defaults of vLLM are those of the profile ctx512-batch.\n",
        _table("vLLM", settings_of(VllmSettings), asdict(resolve(REALTIME, {}))),
        _table("faster-whisper", settings_of(FasterWhisperOptions), asdict(FasterWhisperOptions())),
        _table("transducers", settings_of(TransducerOptions), asdict(TransducerOptions())),
        _table("onnx-asr", settings_of(onnx_asr.OnnxAsrOptions), asdict(onnx_asr.OnnxAsrOptions())),
        _table("hibari", settings_of(hibari.HibariOptions), asdict(hibari.HibariOptions())),
    ]
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
    context.meta[HELP_ALL] = True
    return f"## {name}\n\n```\n{command.get_help(context).rstrip()}\n```\n"


def _table(engine: str, settings: Mapping[str, Setting], defaults: Mapping[str, object]) -> str:
    """Return the table of an engine's options."""
    rows = [f"| {engine} | default | meaning |\n|---|---|---|\n"]
    for name, declared in settings.items():
        default = defaults[name]
        text = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
        rows.append(f"| `{name}` | {text} | {declared.help} |\n")
    return "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(reference())
