"""Write docs/cli.md from the commands and the engines' options. `make docs` runs this script, and a test fails if the
page is out of date.

An option that several commands have is explained once: at `voxbatch run`, at `voxbatch ask`, or in a list of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

STORES = "Stores"
"""The group of options that almost all commands have."""
PAGE = Path(__file__).parent / "cli.md"
WIDTH = 84
EXPLAINED = ("run", "ask")
"""Commands whose options are explained for all others, which follow."""

Record = tuple[str, str]
"""Names and meaning of an option, as the help of its command shows them."""

BEGINNING = """\
# Command line

`voxbatch COMMAND --help` says more about a command. Each option is also an environment variable: `--model` is
`VOXBATCH_MODEL`. A flag comes before its variable, then files for vLLM, `--profile` and the default.

All commands take the options of [Stores](#voxbatch-run), except {without}.

{links}. [What to use for what](index.md#commands)
"""
SET_BY_ANOTHER = re.compile(r"\bsets? (it|them)\b|\bset by\b|for (tests|benchmarks)")
"""Words of the engine options that people leave to an option of a command or to developers, and that the page leaves
out."""
ENGINES: tuple[tuple[str, Mapping[str, Setting], Mapping[str, object]], ...] = (
    ("vLLM", settings_of(VllmSettings), asdict(resolve(REALTIME, {}))),
    ("faster-whisper", settings_of(FasterWhisperOptions), asdict(FasterWhisperOptions())),
    ("transducers", settings_of(TransducerOptions), asdict(TransducerOptions())),
    ("onnx-asr", settings_of(onnx_asr.OnnxAsrOptions), asdict(onnx_asr.OnnxAsrOptions())),
    ("hibari", settings_of(hibari.HibariOptions), asdict(hibari.HibariOptions())),
)
"""Name, options and defaults of each engine."""
LIMITS = re.compile(r"; [\d<=]*x[>=<.\de-]+(?=\])| \[[\d<=]*x[>=<.\de-]+\]")
"""The limits of a number in a help text: `[x>=0]`, and the second half of `[default: 10; x>=0]`."""
SHARED = "Options of several commands"
"""Title of the section of the options that commands share without `run`."""


def reference() -> str:
    """Return the page: links to the commands, a section for each, what they share, and the engines' options."""
    names = cli.list_commands(click.Context(cli))
    shared = _shared(names)
    return "\n".join([
        BEGINNING.format(
            without=", ".join(f"`{name}`" for name in names if not _groups(cli.commands[name])[STORES]),
            links=", ".join(f"[`{name}`](#voxbatch-{name})" for name in names),
        ),
        *(_section(name, shared) for name in names),
        f"## {SHARED}\n\n{_list(shared)}",
        "## Engine options\n",
        "For `--engine-option NAME=VALUE`; those that options above set are left out. vLLM with ctx512-batch.\n",
        *(_folded(engine, _list(_engine(declared, defaults))) for engine, declared, defaults in ENGINES),
    ])  # fmt: skip


def _shared(names: Iterable[str]) -> list[Record]:
    """Return the options that at least two commands have alike, and that no command of EXPLAINED has."""
    explained = [record for name in EXPLAINED for record in _options(name)]
    counts = Counter(record for name in names for record in _options(name) if record not in explained)
    return [record for record, count in counts.items() if count > 1]


def _section(name: str, shared: list[Record]) -> str:
    """Return the section of a command: its usage, its own options, and the names of those that others explain."""
    groups = _groups(cli.commands[name])
    text = [f"## voxbatch {name}\n\n```\n{_help(name)}\n```\n"]
    others = []
    for other in EXPLAINED[: EXPLAINED.index(name)] if name in EXPLAINED else EXPLAINED:
        flags, missing = [], []
        for title, known in _groups(cli.commands[other]).items():
            flags += [] if title == STORES and groups[title] == known else _names(title, known, groups[title])
            missing += [_flag(names) for names, meaning in known if (names, meaning) not in groups[title]]
            groups[title] = [record for record in groups[title] if record not in known]
        if len(missing) < len(" ".join(flags).split()):
            flags = [f"all but {', '.join(missing)}"]
        if flags:
            others.append(f"As for [`{other}`](#voxbatch-{other}): {', '.join(flags)}.\n")
    common = [_flag(names) for title in groups for names, meaning in groups[title] if (names, meaning) in shared]
    if common:
        others.append(f"As for [several commands](#options-of-several-commands): {', '.join(common)}.\n")
    own = {title: [record for record in records if record not in shared] for title, records in groups.items()}
    folded = [title for title in own if title != COMMON and name in EXPLAINED]
    listed = [record for title, records in own.items() if title not in folded for record in records]
    text += [_list(listed)] if listed else []
    text += [_folded(f"{title}: {len(own[title])} more", _list(own[title])) for title in folded if own[title]]
    return "\n".join([*text, *others])


def _names(title: str, known: list[Record], records: list[Record]) -> list[str]:
    """Return the options of a group that another command explains, or the group without those that are missing."""
    common, missing = ([record for record in known if (record in records) is there] for there in (True, False))
    if len(common) <= max(1, len(missing)) or title == COMMON:
        return [_flag(names) for names, _ in common]
    without = ", ".join(_flag(names) for names, _ in missing)
    return [f"all of {title}" + (f" (without {without})" if missing else "")]


def _options(name: str) -> list[Record]:
    """Return all options of a command."""
    return [record for records in _groups(cli.commands[name]).values() for record in records]


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


def _help(name: str) -> str:
    """Return the usage of a command, the first paragraph of its description, and the examples."""
    command = cli.commands[name]
    context = click.Context(command, click.Context(cli, info_name="voxbatch"), name, max_content_width=WIDTH)
    formatter = context.make_formatter()
    formatter.width = WIDTH
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    usage, first, *more = formatter.getvalue().strip().removeprefix("Usage: ").split("\n\n")
    return "\n\n".join([usage, first.rstrip(), *(text for text in more if text.strip().startswith("Examples:"))])


def _folded(summary: str, text: str) -> str:
    return f"<details markdown>\n<summary>{summary}</summary>\n\n{text}\n</details>\n"


def _list(records: Iterable[Record]) -> str:
    """Return options as a list, which fits a narrow screen."""
    return "".join(f"- `{names}`: {_text(meaning)}\n" for names, meaning in records)


def _text(text: str) -> str:
    """Return a meaning on one line without its limits, which a message tells, and what looks like HTML or Markdown as
    it is.
    """
    return LIMITS.sub("", " ".join(text.split())).replace("<", "&lt;").replace("*", r"\*")


def _engine(settings: Mapping[str, Setting], defaults: Mapping[str, object]) -> Iterator[Record]:
    """Yield the options of an engine, each with its default, without those that people leave to a command's option.
    Options with the same meaning are one record.
    """
    alike: dict[str, list[str]] = {}
    for name, declared in settings.items():
        if not SET_BY_ANOTHER.search(declared.help):
            default = defaults[name]
            text = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
            alike.setdefault(declared.help, []).append(f"{name}={text}")
    for meaning, options in alike.items():
        yield "`, `".join(options), meaning


if __name__ == "__main__":
    PAGE.write_text(reference())
