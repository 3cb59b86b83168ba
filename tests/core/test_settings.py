"""Tests for the declarations of settings: each declaration gives an option, a variable, a keyword and a check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner
from conftest import understood
from scripted_engine import ScriptedOptions

from voxbatch.api.keyword_types import RunKeywords
from voxbatch.cli import cli
from voxbatch.config import Config, RunOptions
from voxbatch.engines.faster_whisper import FasterWhisperOptions
from voxbatch.errors import ConfigError
from voxbatch.settings import GROUPS, USES, Setting, parse, setting, settings_of
from voxbatch.storage import StoreOptions

RUN = {**settings_of(RunOptions), **settings_of(StoreOptions)}
OPTIONS = {param.name: param for param in cli.commands["run"].params if isinstance(param, click.Option)}


@pytest.mark.parametrize("declared", RUN.values(), ids=RUN)
def test_a_setting_is_an_option_a_variable_and_a_keyword(declared: Setting) -> None:
    """The option and the keyword have the name, the help and the group of the setting."""
    option = OPTIONS[declared.name]
    assert (option.help, getattr(option, "group", None)) == (declared.help, declared.group)
    assert option.envvar == "VOXBATCH_" + option.opts[-1].split("/")[0][2:].upper().replace("-", "_")
    assert declared.name in RunKeywords.__annotations__
    assert declared.group in GROUPS
    assert declared.use in USES


@pytest.mark.parametrize("kind", [RunOptions, StoreOptions, FasterWhisperOptions])
def test_a_declared_default_is_in_range(kind: type) -> None:
    """The default of each setting has the declared type and keeps the declared limits."""
    for declared in settings_of(kind).values():
        kinds = get_args(declared.hint) or (declared.hint,)
        assert type(declared.default) in kinds or isinstance(declared.default, tuple | dict), declared.name
        assert declared.broken_rule(declared.default) == ""


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        ({"minimum": 0.5}, 0.25, "--size is 0.25; it must be at least 0.5"),
        ({"minimum": 1, "maximum": 6}, 7, "--size is 7; it must be from 1 to 6"),
        ({"choices": ("a", "b")}, "c", "--size 'c': known are a, b"),
    ],
)
def test_a_value_out_of_range_is_refused(declared: dict[str, Any], value: Any, message: str) -> None:
    """The error names the option, the value and the rule. None and a value in range are accepted."""
    size = Setting(name="size", default=None, help="", **declared)
    size.check(None)
    size.check({7: 6, 0.25: 0.5, "c": "b"}[value])
    with pytest.raises(ConfigError) as caught:
        size.check(value)
    assert str(caught.value) == message


def test_a_dataclass_with_settings_is_an_ordinary_one() -> None:
    """A field made with `setting` has its default, also a dictionary, of which each instance has its own copy."""

    @dataclass
    class Engine:
        size: int = setting(3, help="")
        more: Mapping[str, str] = setting({}, help="")

    assert Engine() == Engine(size=3, more={})
    assert Engine().more is not Engine().more
    assert Config(source="m.jsonl", out="out").engine_options == {}


def test_engine_options_are_parsed_by_their_types() -> None:
    """The texts of engine options are converted to the types of the fields."""
    options = parse(ScriptedOptions, "scripted", {"delay_s": "0.5", "shuffle": "TRUE", "concurrency": "3"})
    assert options == ScriptedOptions(delay_s=0.5, shuffle=True, concurrency=3)
    with pytest.raises(ConfigError, match="engine option 'beam' is unknown to faster-whisper; known are beam_size, "):
        parse(FasterWhisperOptions, "faster-whisper", {"beam": "1"})


def test_the_identity_holds_the_settings_that_decide_the_text() -> None:
    """The identity always names the language, and the other settings only if they are given."""
    config = Config(source="m.jsonl", out="out", max_hours=3.0)
    assert config.identity() == {"language": None}
    config = Config(source="m.jsonl", out="out", language="English", audio_stream=0)
    assert config.identity() == {"language": "en", "audio_stream": 0}


@pytest.mark.parametrize("command", sorted({"run", "ask", "submit", "listen"} & {*cli.commands}))
def test_the_help_shows_each_option_once_under_its_title(command: str) -> None:
    """The groups of options follow each other in one order, the common options first."""
    is_short = any("--help-all" in param.opts for param in cli.commands[command].params)
    text = CliRunner().invoke(cli, [command, "--help-all" if is_short else "--help"]).stdout
    titles = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert titles[0] == "Options"
    assert titles == [title for title in GROUPS if title in titles]
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("\nOptions:\n")[2], re.MULTILINE)
    long = [param.opts[-1] for param in cli.commands[command].params if isinstance(param, click.Option)]
    assert sorted(shown) == sorted([*long, "--help"])


def test_the_examples_of_the_help_parse() -> None:
    """The program accepts the three examples in the help of `run`."""
    text = CliRunner().invoke(cli, ["run", "--help"]).stdout
    examples = re.findall(r"^    voxbatch (run .*)$", text, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        understood(*shlex.split(example))
