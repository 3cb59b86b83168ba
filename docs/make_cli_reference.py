"""Write docs/cli.md from the commands and the engines' options. `make docs` runs this script, and a test fails if the
page is out of date.

An option that several commands have is explained once, at `voxbatch run` or `voxbatch ask`; the others name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from voxbatch import onnx_asr
from voxbatch.cli import cli
from voxbatch.engines import hibari
from voxbatch.engines.faster_whisper import FasterWhisperOptions
from voxbatch.settings import COMMON, GROUPS, Setting, settings_of
from voxbatch.transducers.options import TransducerOptions
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.model import REALTIME
from voxbatch.vllm.engine.settings import VllmSettings

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 84
EXPLAINED = ("run", "ask")
"""Commands whose options are explained for all others, which follow."""

Record = tuple[str, str]
"""Names and meaning of an option, as the help of its command shows them."""

BEGINNING = """\
# Command line

`voxbatch COMMAND --help` prints the options of a command in a terminal. Each option is also an environment variable:
`--model` is `VOXBATCH_MODEL`. A flag comes before its variable, then files for vLLM, `--profile` and the default.
"""


def reference() -> str:
    """Return the page: a table of the commands, a section for each, and tables of the engines' options."""
    names = cli.list_commands(click.Context(cli))
    rows = [(f"[`{name}`](#voxbatch-{name})", cli.commands[name].get_short_help_str(WIDTH)) for name in names]
    engines = [
        _engine("vLLM", settings_of(VllmSettings), asdict(resolve(REALTIME, {}))),
        _engine("faster-whisper", settings_of(FasterWhisperOptions), asdict(FasterWhisperOptions())),
        _engine("transducers", settings_of(TransducerOptions), asdict(TransducerOptions())),
        _engine("onnx-asr", settings_of(onnx_asr.OnnxAsrOptions), asdict(onnx_asr.OnnxAsrOptions())),
        _engine("hibari", settings_of(hibari.HibariOptions), asdict(hibari.HibariOptions())),
    ]
    return "\n".join([
        BEGINNING,
        _table(("command", "what it does"), rows),
        *(_section(name) for name in names),
        "## Engine options\n",
        "For `--engine-option NAME=VALUE`. The defaults of vLLM are those of the profile ctx512-batch.\n",
        *engines,
    ])  # fmt: skip


def _section(name: str) -> str:
    """Return the section of a command: its usage, its own options, and the names of those that are explained before."""
    command = cli.commands[name]
    text = [f"## voxbatch {name}\n\n```\n{_help(name, command)}\n```\n"]
    groups = _groups(command)
    shared = []
    for other in EXPLAINED[: EXPLAINED.index(name)] if name in EXPLAINED else EXPLAINED:
        flags = []
        for title, known in _groups(cli.commands[other]).items():
            common = [record for record in groups[title] if record in known]
            groups[title] = [record for record in groups[title] if record not in known]
            flags += (
                [f"all of {title}"] if common == known and len(known) > 1 else [_flag(names) for names, _ in common]
            )
        if flags:
            shared.append(f"As for [`{other}`](#voxbatch-{other}): {', '.join(flags)}.\n")
    for title, records in groups.items():
        if records:
            table = _table(("option", "meaning"), [(_code(names), _cell(meaning)) for names, meaning in records])
            text.append(table if title == COMMON else _folded(f"{title}: {len(records)} more", table))
    return "\n".join([*text, *shared])


def _groups(command: click.Command) -> dict[str, list[Record]]:
    """Return the options of a command by the groups of its help."""
    groups: dict[str, list[Record]] = {title: [] for title in GROUPS}
    context = click.Context(command)
    for param in command.params:
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            groups[getattr(param, "group", COMMON)].append(record)
    return groups


def _flag(names: str) -> str:
    """Return the long name of an option as code: "-o, --out OUT" → `--out`."""
    return f"`{re.sub(r'^-. *, *', '', names).split()[0]}`"


def _help(name: str, command: click.Command) -> str:
    """Return the usage and the description of a command, without its options."""
    context = click.Context(command, click.Context(cli, info_name="voxbatch"), name, max_content_width=WIDTH)
    formatter = context.make_formatter()
    formatter.width = WIDTH
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    return formatter.getvalue().rstrip()


def _folded(summary: str, table: str) -> str:
    return f"<details markdown>\n<summary>{summary}</summary>\n\n{table}\n</details>\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows)).replace("| --- ", "|---")


def _code(names: str) -> str:
    """Return the names of an option as code in a cell, where `|` would end the cell."""
    return f"<code>{names.replace('|', '&#124;')}</code>" if "|" in names else f"`{names}`"


def _cell(text: str) -> str:
    """Return a meaning as a cell: no line ends, and what looks like HTML or Markdown as it is."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def _engine(engine: str, settings: Mapping[str, Setting], defaults: Mapping[str, object]) -> str:
    """Return the folded table of an engine's options."""
    rows = []
    for name, declared in settings.items():
        default = defaults[name]
        text = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
        rows.append((f"`{name}`", text, _cell(declared.help)))
    return _folded(f"Options of {engine}: {len(rows)}", _table(("option", "default", "meaning"), rows))


if __name__ == "__main__":
    PAGE.write_text(reference())
