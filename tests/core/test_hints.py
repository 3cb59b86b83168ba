"""Tests for the words of other programs and their answers: a table over the table."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from voxbatch.cli import cli
from voxbatch.cli.commands import COMMANDS
from voxbatch.cli.usage_errors import DESTRUCTIVE, message_of
from voxbatch.formats import WRITERS
from voxbatch.hints import COMMAND, FORMAT, FURTHER, HINTS, OPTION, SETTING, SOURCE, VALUE, hint


def refused(*words: str) -> str:
    """Return the message that refuses a command line."""
    with pytest.raises(click.ClickException) as error:
        cli.main([*words], prog_name="voxbatch", standalone_mode=False)
    return message_of(error.value)


def options_of(command: str) -> set[str]:
    """Return the options of a command, with those that all commands have."""
    names = (name for param in COMMANDS[command].params for name in (*param.opts, *param.secondary_opts))
    return {*names, "--help", "--version"}


@pytest.mark.parametrize("word", HINTS[OPTION])
def test_an_option_of_another_program_is_answered(word: str) -> None:
    """A command has no such option, and says what it has in its place, also in the spelling of argparse."""
    spelling = f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word
    command = "ask" if word in options_of("run") else "run"
    assert refused(command, "talk.mp3", spelling).endswith(f"{hint(OPTION, word)}.")


@pytest.mark.parametrize("word", HINTS[VALUE])
def test_a_value_of_another_program_is_answered(word: str) -> None:
    """An option has no such value, and says what does the same."""
    assert refused("run", "talk.mp3", *word.split("=")).endswith(f"{hint(VALUE, word)}.")


@pytest.mark.parametrize("word", HINTS[FURTHER])
def test_a_further_argument_is_answered(word: str, tmp_path: Path) -> None:
    """sclite and jiwer take the references as an argument."""
    assert refused(word, *[str(tmp_path)] * 3).endswith(hint(FURTHER, word))


@pytest.mark.parametrize("word", HINTS[SOURCE])
def test_a_word_that_is_no_recording_is_answered(word: str) -> None:
    """The value of a switch of another program would be a recording here."""
    assert refused("run", "talk.mp3", "--verbose", word.capitalize()).endswith(hint(SOURCE, word))


@pytest.mark.parametrize("word", HINTS[COMMAND])
def test_a_word_that_is_no_command_is_answered(word: str) -> None:
    """A word that people type as a command names the command that was meant."""
    assert refused(word).endswith(hint(COMMAND, word))


@pytest.mark.parametrize("word", HINTS[SETTING])
def test_a_setting_of_nemo_is_answered(word: str) -> None:
    """NeMo's programs take name=value, also with a plus sign."""
    assert refused("run", f"+{word.replace('-', '_')}=x").endswith(hint(SETTING, word))


def test_no_format_of_voxbatch_is_answered() -> None:
    """The names of formats that exist are no words of others."""
    assert not HINTS[FORMAT].keys() & WRITERS.keys()


@pytest.mark.parametrize("word", HINTS[FORMAT])
def test_a_format_of_another_name_is_answered(word: str) -> None:
    """--formats says what the format is called here."""
    assert refused("run", "talk.mp3", "--formats", f"srt,{word}").endswith(hint(FORMAT, word))


def test_the_short_help_names_the_options_of_subtitles(capsys: pytest.CaptureFixture[str]) -> None:
    """Its last lines lead to the options that only --help-all explains."""
    cli.main(["run", "--help"], prog_name="voxbatch", standalone_mode=False)
    last = capsys.readouterr().out.split("Show this message and exit.")[1]
    assert all(name in last for name in ("--mux", "--burn", "--max-line", "--max-lines", "--max-cps", "--frame-rate"))


@pytest.mark.parametrize("answer", sorted({answer for answers in HINTS.values() for answer in answers.values()}))
def test_an_answer_names_what_exists(answer: str) -> None:
    """Each command and each option of an answer exists: those of the command that it names, else of `run`."""
    for sentence in re.split("; |`", answer):
        command = (re.findall(r"voxbatch (\w+)", sentence) or ["run"])[0]
        assert command in COMMANDS
        assert {*re.findall(r"--[a-z][a-z-]*", sentence)} <= options_of(command) - {*DESTRUCTIVE}
