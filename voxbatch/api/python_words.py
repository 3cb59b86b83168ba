"""Say things as a Python program writes them: the options of a message, and the answer to an unknown keyword argument.

Messages are written for the command line, and name its options. `language="de"` is --language de there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from voxbatch.errors import VoxbatchError
from voxbatch.hints import KEYWORD, OPTION, hint

_VALUE = r"""'[^']*'|"[^"]*"|[^\s;:)'"-][^\s;:)]*[^\s;:,.)]|[^\s;:,.)'"-]"""
_OPTION = re.compile(
    r"`[^`]*`|voxbatch \w+ [^;`]*"  # a command stays one
    r"|(?<!\S)(?:(?P<out>-o)|--(?P<name>[a-z][a-z0-9-]*)"
    rf"(?: (?!(?:and|or|needs|with|without) )(?P<value>{_VALUE})(?=[;:,.)]|$| and | or --| --))?)"
    r"(?![\w/=-])"
)
"""A command, or an option and its value. A word after an option is a value if a mark or another option follows it:
"--model takes a folder" has none, and "--model small;" has the value small."""


def in_python(text: str) -> str:
    """Return a text in which options are keyword arguments.

    "take --task translate --model small"    →    'take task="translate" model="small"'
    """
    return _OPTION.sub(_keyword, text)


def _keyword(option: re.Match[str]) -> str:
    if option["out"]:
        return "out"
    if not option["name"]:
        return option[0]
    name, value = option["name"].replace("-", "_"), option["value"] or ""
    if name == "engine_option":
        key, equals, setting = value.partition("=")
        return f'engine_options={{"{key}": "{setting}"}}' if equals else "engine_options"
    if not value or value[0] in "\"'" or value.isdecimal():
        return f"{name}={value}" if value else name
    return f'{name}="{value}"'


def unknown_keyword(name: str, allowed: Collection[str]) -> str:
    """Return the message about a keyword argument that does not exist, with what to write in its place."""
    if answer := hint(KEYWORD, name) or hint(OPTION, f"--{name}"):
        return f"option {name}: unknown. {in_python(answer)}"
    if close := get_close_matches(name, allowed, 1):
        return f"option {name}: unknown; did you mean {close[0]}?"
    return f"option {name}: unknown; the options are {', '.join(sorted(allowed))}"


@contextlib.contextmanager
def python_words() -> Iterator[None]:
    """Name keyword arguments in place of options in the error that leaves this context."""
    try:
        yield
    except VoxbatchError as e:
        e.args = (in_python(str(e)),)
        raise
