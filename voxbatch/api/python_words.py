"""Say things as a Python program writes them: the options of a message, and the answer to an unknown keyword argument.

Messages are written for the command line, and name its options. `language="de"` is --language de there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import get_type_hints

from voxbatch.api.keyword_types import AskKeywords, RunKeywords, SpeakKeywords
from voxbatch.errors import VoxbatchError
from voxbatch.hints import KEYWORD, OPTION, hint

_KEYWORDS = {
    name: hint for types in (RunKeywords, AskKeywords, SpeakKeywords) for name, hint in get_type_hints(types).items()
}
_NAMES = "|".join(name.replace("_", "-") for name in ("engine_option", *sorted(_KEYWORDS)))
_QUOTED = r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?!\w)"""
_VALUE = r"""'[^']*'|"[^"]*"|[^\s;:)'"-][^\s;:)]*[^\s;:,.)]|[^\s;:,.)'"-]"""


def in_python(text: str, own: Iterable[str] = ()) -> str:
    """Return a text in which options are keyword arguments.

    "take --task translate --model small"    →    'take task="translate" model="small"'

    Commands, quotations and other programs' options stay.

    Args:
        own: texts of the user, such as paths, which the text may repeat. They stay as they are.
    """
    return _options_in(own).sub(_keyword, text)


def _options_in(own: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of what must stay, or of an option and its value.

    A word after an option is a value if a mark or another option follows it: "--model takes a folder" has none, and
    "--model small;" has the value small.
    """
    kept = "".join(f"{re.escape(text)}|" for text in sorted(own, key=len, reverse=True))
    return re.compile(
        rf"{kept}`[^`]*`|voxbatch \w+ [^;`]*|{_QUOTED}"  # a command stays one
        rf"|(?<!\S)(?:(?P<out>-o)|--(?P<name>{_NAMES})"
        rf"(?: (?!(?:and|or|needs|with|without) )(?P<value>{kept}{_VALUE})(?=[;:,.)]|$| and | or | --| --))?)"
        r"(?![\w/=-])"
    )


def _keyword(option: re.Match[str]) -> str:
    if option["out"]:
        return "out"
    if not option["name"]:
        return option[0]
    name, value = option["name"].replace("-", "_"), option["value"] or ""
    if name == "engine_option":
        key, equals, setting = value.partition("=")
        value = setting if setting.isdecimal() else f'"{setting}"'
        return f'engine_options={{"{key}": {value}}}' if equals else "engine_options"
    if not value:
        return f"{name}=True" if _KEYWORDS[name] is bool else name
    if value[0] in "\"'" or value.isdecimal():
        return f"{name}={value}"
    return f'{name}="{value}"'


def unknown_keyword(name: str, allowed: Collection[str]) -> str:
    """Return the message about a keyword argument that does not exist, with what to write in its place."""
    if answer := hint(KEYWORD, name) or hint(OPTION, f"--{name}"):
        return f"option {name}: unknown. {in_python(answer)}"
    if close := get_close_matches(name, allowed, 1):
        return f"option {name}: unknown; did you mean {close[0]}?"
    return f"option {name}: unknown; the options are {', '.join(sorted(allowed))}"


@contextlib.contextmanager
def python_words(*own: object) -> Iterator[None]:
    """Name keyword arguments in place of options in the error that leaves this context.

    Args:
        own: values that the user has given. What looks like an option in them is none.
    """
    try:
        yield
    except VoxbatchError as e:
        e.args = (in_python(str(e), _like_options(own)),)
        raise


def _like_options(values: Iterable[object]) -> Iterator[str]:
    """Yield the texts and paths in values that look as if they had options."""
    for value in values:
        if isinstance(value, str | os.PathLike):
            if re.search(r"(?<!\S)-", text := str(value)):
                yield text
        elif isinstance(value, Mapping):
            yield from _like_options(value.values())
        elif isinstance(value, list | tuple):
            yield from _like_options(value)
