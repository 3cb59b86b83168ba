"""The keyword arguments of the Python interface, and the RunOptions that they make.

The names are those of config.RunOptions and storage.StoreOptions, which also say what each option means and check its
value.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, TypedDict, get_args, get_type_hints

from voxbatch.config import RunOptions, load_profile
from voxbatch.errors import ConfigError
from voxbatch.storage import StoreOptions


class TranscribeKeywords(TypedDict, total=False):
    """Options for the transcription of a recording."""

    engine: str
    model: str | None
    engine_options: Mapping[str, object]
    kernel_cache: str | None
    language: str | None
    profile: str | None
    audio_stream: int | None
    max_hours: float
    s3_endpoint_url: str | None
    anonymous: bool
    requester_pays: bool
    allow_private_addresses: bool
    max_http_gb: float


class ShardKeywords(TranscribeKeywords, total=False):
    """Options of a run whose shards several processes transcribe."""

    formats: str | Collection[str]
    beside: bool
    report: bool | None
    max_line: int
    max_lines: int
    max_cps: float
    limit: int | None
    allow_outside: bool
    only_under: str | Collection[str]
    include: str | Collection[str]
    fail_unreachable: bool
    calibration: str | None
    part_items: int
    part_seconds: float
    decoders: int
    workers: int
    expected_rtfx: float | None
    usd_per_hour: float | None


class RunKeywords(ShardKeywords, total=False):
    """Options of a run."""

    overwrite: bool
    update: bool
    retry_failed: str | None


_TYPES: dict[type, str] = {
    str: "a string",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
}
"""Types of values that are checked here, in words."""
_LISTS = ("formats", "only_under", "include")


def run_options(given: Mapping[str, Any], keywords: type) -> RunOptions:
    """Return the options of a run that keyword arguments make. The settings of a profile rank below the arguments.

    Args:
        given: the keyword arguments.
        keywords: the TypedDict of those that are allowed.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or is out of range.
    """
    allowed = get_type_hints(keywords)
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in allowed:
            close = get_close_matches(name, allowed, 1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(sorted(allowed))}"
            raise ConfigError(f"option {name}: unknown; {hint}")
        settings[name] = checked(name, value, allowed[name])
    options = settings.pop("engine_options", {})
    if settings.get("profile"):
        profile = load_profile(settings["profile"])
        profile.pop("description", None)
        profile_options = profile.pop("engine_options", {})
        if settings.get("engine", "auto") not in ("auto", profile.get("engine")):  # they are for the profile's engine
            profile.pop("model", None)
            profile_options = {}
        settings, options = {**profile, **settings}, {**profile_options, **options}
    for name in _LISTS:
        if name in settings:
            settings[name] = _texts(settings[name])
    store_names = {each.name for each in fields(StoreOptions)}
    store_options = StoreOptions(**{name: value for name, value in settings.items() if name in store_names})
    rest = {name: value for name, value in settings.items() if name not in store_names}
    texts = {name: _option_text(value) for name, value in options.items()}
    return RunOptions(**rest, engine_options=texts, store_options=store_options)


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value of an option, with a path as a string.

    Raises:
        ConfigError: the value has the wrong type.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    kinds = [kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if kind in _TYPES]
    if name in _LISTS:
        is_right = isinstance(value, str) or (isinstance(value, Collection) and all(isinstance(v, str) for v in value))
        wanted = "a string or a list of strings"
    elif not kinds:
        is_right, wanted = isinstance(value, Mapping), "a dictionary"
    else:
        is_right = type(value) in kinds or (type(value) is int and float in kinds)
        wanted = " or ".join(_TYPES[kind] for kind in kinds)
    if not is_right:
        raise ConfigError(f"option {name} is {value!r}; it must be {wanted}")
    return value


def _texts(value: str | Collection[str]) -> tuple[str, ...]:
    """Return a list of strings. A string is split at commas, as on the command line."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else tuple(value)


def _option_text(value: object) -> str:
    """Return the value of an engine option as the command line gives it: True → "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)
