"""The keyword arguments of the Python interface, and the RunOptions that they make.

`config` and `storage.address` declare each keyword, with its type, meaning and limits. The module `keyword_types` is
made from them, for type checkers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, cleandoc, signature
from textwrap import fill
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from voxbatch.api.python_log import python_log
from voxbatch.api.python_words import in_python, python_words, unknown_keyword
from voxbatch.config import ModelChoice, RunOptions
from voxbatch.engines.quality import take_quality
from voxbatch.errors import ConfigError
from voxbatch.profiles import for_engine, load_profile
from voxbatch.settings import Setting, settings_of
from voxbatch.storage import StoreOptions, Stores

F = TypeVar("F", bound=Callable[..., Any])

DOCSTRING_WIDTH = 116
"""Columns of a docstring, which `help` indents by four."""
_DECLARATIONS = ModelChoice, RunOptions, StoreOptions
"""Dataclasses that declare the keyword arguments of a run."""
_WORDS: dict[type, str] = {
    str: "a string",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
}
"""Types of values that are checked here, in words."""


def _declared(*declarations: type) -> dict[str, Setting]:
    """Return the settings that dataclasses declare, by name."""
    return {name: declared for kind in declarations for name, declared in settings_of(kind).items()}


def with_keywords(types: type, *declarations: type) -> Callable[[F], F]:
    """Return a decorator that shows each keyword argument of a function: with its default in the signature, and with
    its meaning in the docstring.

    `help` and the completion of notebooks read them. `Unpack[…]` tells the names to type checkers alone.

    Args:
        types: the TypedDict of the keyword arguments.
        declarations: dataclasses that declare settings which a run does not have.
    """
    hints = get_type_hints(types)
    settings = {name: entry for name, entry in _declared(*declarations, *_DECLARATIONS).items() if name in hints}
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=declared.default, annotation=hints[name])
        for name, declared in settings.items()
    ]
    meanings = "\n".join(_meaning(declared) for declared in settings.values())

    def shown(function: F) -> F:
        before = signature(function)
        own = [value for value in before.parameters.values() if value.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = before.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\nOptions:\n{meanings}"
        return function

    return shown


def _meaning(declared: Setting) -> str:
    """Return the lines of an option in a docstring: the help of the command line in Python's words."""
    text = in_python(declared.help).replace(" Repeatable.", "").replace("TIME (90s, 10m, 1h)", "so many seconds")
    return fill(f"{declared.name}: {text}", DOCSTRING_WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)


def run_options(keywords: Mapping[str, Any], types: type) -> RunOptions:
    """Return the options of a run that keyword arguments make. The settings of a profile rank below the arguments.

    Args:
        types: the TypedDict of those that are allowed.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or is out of range.
    """
    with python_words(keywords):
        return _run_options(keywords, types)


def _run_options(keywords: Mapping[str, Any], types: type) -> RunOptions:
    of_stores = settings_of(StoreOptions)
    declared = _declared(*_DECLARATIONS)
    allowed = declared.keys() & types.__annotations__.keys()
    settings: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in allowed:
            raise ConfigError(unknown_keyword(name, allowed))
        settings[name] = checked(declared[name], value)
    if quality := settings.pop("quality", None):
        declared["quality"].check(quality)
        python_log().info("quality", text=take_quality(quality, settings, keywords))
    options = settings.pop("engine_options", {})
    if settings.get("profile"):
        profile, profile_options = for_engine(load_profile(settings["profile"]), settings.get("engine", "auto"))
        settings, options = {**profile, **settings}, {**profile_options, **options}
    for name, value in settings.items():
        if get_origin(declared[name].hint) is tuple:  # a string is split at commas, as on the command line
            parts = map(str.strip, value.split(",")) if isinstance(value, str) else value
            settings[name] = tuple(part for part in parts if part or not isinstance(value, str))
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    stores = Stores(StoreOptions(**{name: value for name, value in settings.items() if name in of_stores}))
    values = {name: value for name, value in settings.items() if name not in of_stores}
    return RunOptions(**values, engine_options=texts, stores=stores)


def checked(declared: Setting, value: Any) -> Any:
    """Return the value of an option, with a path as a string.

    Raises:
        ConfigError: the value has the wrong type.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    kinds = [kind for kind in (get_args(declared.hint) or (declared.hint,)) if kind in _WORDS]
    if get_origin(declared.hint) is tuple:
        is_right = isinstance(value, str) or (isinstance(value, Collection) and all(isinstance(v, str) for v in value))
        wanted = "a string or a list of strings"
    elif get_origin(declared.hint) is Mapping:
        is_right, wanted = isinstance(value, Mapping), "a dictionary"
    else:
        is_right = type(value) in kinds or (type(value) is int and float in kinds)
        wanted = " or ".join(_WORDS[kind] for kind in kinds)
    if not is_right:
        raise ConfigError(f"option {declared.name} is {value!r}; it must be {wanted}")
    return value


def place_of(value: object, name: str) -> str:
    """Return the path or the address that an argument is, with ~ as the home folder.

    Raises:
        ConfigError: it is of another type.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is of type {type(value).__name__}; give a path or an address")
    return os.fspath(os.path.expanduser(value))
