"""Tests that messages name keyword arguments to a Python program, and that words of other libraries are answered."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import voxbatch as vb
from voxbatch.api.keyword_types import RunKeywords, TranscribeKeywords
from voxbatch.api.keywords import run_options
from voxbatch.api.python_words import in_python, unknown_keyword
from voxbatch.hints import HINTS, KEYWORD, OPTION


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--language de: model tiny.en knows only en", 'language="de": model tiny.en knows only en'),
        ("take a model that knows more: --quality best", 'take a model that knows more: quality="best"'),
        ("--task translate --model small; others", 'task="translate" model="small"; others'),
        ("--model takes a folder", "model takes a folder"),
        ("add --update, or erase by --overwrite.", "add update=True, or erase by overwrite=True."),
        ("by --max-line 42, --max-lines 2 and --max-cps 20", "by max_line=42, max_lines=2 and max_cps=20"),
        ("With vLLM: --engine-option device=cuda; all", 'With vLLM: engine_options={"device": "cuda"}; all'),
        ("With faster-whisper: --engine-option beam_size=5", 'With faster-whisper: engine_options={"beam_size": 5}'),
        ('by --prompt "…" and --hotwords FILE', 'by prompt="…" and hotwords="FILE"'),
        ("--speakers 'two': give a number", "speakers='two': give a number"),
        ("by --speakers, their number by --speakers 2-4", 'by speakers, their number by speakers="2-4"'),
        ("The folder is given by -o", "The folder is given by out"),
        ("again: voxbatch run SOURCE --retry-failed", "again: voxbatch run SOURCE --retry-failed"),
        ("`voxbatch report --export FILE` writes one", "`voxbatch report --export FILE` writes one"),
        ("--model ./model", 'model="./model"'),
        ("it is --", "it is --"),
        (
            "'talk --model b.mp3' is no file; take --model small;",
            "'talk --model b.mp3' is no file; take model=\"small\";",
        ),
        ('"talk --model b.mp3" is no file', '"talk --model b.mp3" is no file'),
        (r"'it\'s --model b' is no file", r"'it\'s --model b' is no file"),
        (
            "the item's --model small and the run's --model tiny",
            'the item\'s model="small" and the run\'s model="tiny"',
        ),
        ("ffmpeg takes --overshoot 3; give --limit 3", "ffmpeg takes --overshoot 3; give limit=3"),
    ],
)
def test_options_become_keyword_arguments(text: str, expected: str) -> None:
    """An option with its value is a keyword argument; a command that the text names stays a command."""
    assert in_python(text) == expected


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: vb.transcribe("a --model b.mp3"), "a --model b.mp3: it does not exist"),
        (lambda: vb.run("my --model x"), "my --model x: does not exist"),
        (lambda: vb.run(["a.mp3", "my --model x"]), "my --model x"),
        (lambda: list(vb.read_results("a --formats srt")), "a --formats srt: there is no run here"),
        (lambda: vb.Transcriber(model="x --quality best"), 'model="x --quality best": there is no such folder'),
    ],
)
def test_the_words_of_the_user_stay(
    call: Callable[[], object], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path or a value that looks like an option is quoted as it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mp3").touch()
    with pytest.raises(vb.VoxbatchError, match=re.escape(place)):
        call()


WORDS = sorted({word.removeprefix("--") for word in (*HINTS[OPTION], *HINTS[KEYWORD]) if not re.match("-[a-z]", word)})


@pytest.mark.parametrize("word", WORDS)
def test_a_keyword_of_another_library_is_answered(word: str) -> None:
    """A keyword argument that other libraries have is refused with the one to write here."""
    name = word.replace("-", "_")
    for types in (TranscribeKeywords, RunKeywords):
        if name not in types.__annotations__:
            with pytest.raises(vb.ConfigError, match=rf"^option {name}: unknown\. \w") as error:
                run_options({name: True}, types)
            answer = str(error.value)
            names = {*re.findall(r"\b([a-z_]+)=", answer)}
            ours = {"offset", "duration", "sampling_rate", "on_progress", "level"}
            assert names <= {*RunKeywords.__annotations__, *ours}
            assert "--" not in re.sub("voxbatch [a-z]+ [^;`]*|`[^`]*`", "", answer)


def test_a_misspelt_keyword_is_answered_with_the_nearest() -> None:
    """The nearest name is offered if the table has no answer, else all."""
    names = TranscribeKeywords.__annotations__
    assert unknown_keyword("langauge", names) == "option langauge: unknown; did you mean language?"
    assert unknown_keyword("xyz", ["b", "a"]) == "option xyz: unknown; the options are a, b"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "bset"}, "quality='bset': known are fast, balanced, best"),
        ({"quality": "best", "model": "small"}, "quality and model both choose the model; leave out one of them"),
        ({"language": "xx"}, 'language="xx": no known language; give a code such as en, or a name'),
        ({"formats": "srt,parquet"}, 'formats="parquet": A table of all items: voxbatch report '),
        ({"speakers": "two"}, "speakers='two': give a number, two numbers such as 2-4, or auto"),
        ({"max_hours": 0}, "max_hours is 0; it must be at least 0.001"),
        ({"channel_names": "a,b"}, 'channel_names needs channels="split" or channels="auto"'),
    ],
)
def test_a_wrong_value_names_the_keyword(options: dict[str, object], message: str) -> None:
    """A message about a wrong value names the keyword argument, as Python spells it."""
    with pytest.raises(vb.ConfigError, match=f"^{re.escape(message)}"):
        run_options(options, RunKeywords)


def test_a_number_of_speakers_may_be_a_number() -> None:
    """`speakers=2` is `speakers="2"`."""
    assert run_options({"speakers": 2}, TranscribeKeywords) == run_options({"speakers": "2"}, TranscribeKeywords)
    with pytest.raises(vb.ConfigError, match=r"^speakers=0: the number must be at least 1"):
        run_options({"speakers": 0}, TranscribeKeywords)
