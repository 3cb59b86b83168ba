"""Convert the values of `--engine-option NAME=VALUE` into a frozen dataclass, according to its field types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from voxbatch.errors import ConfigError

T = TypeVar("T")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parse(cls: type[T], engine: str, given: Mapping[str, str]) -> T:
    """Return an instance of `cls` with the given options.

    Args:
        cls: a dataclass. Its fields have defaults and are of type int, float, str or bool.
        engine: the name of the engine, for messages.
        given: the options by name, as text.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type.
    """
    fields: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in fields:
            raise ConfigError(f"engine option {name!r} is unknown to {engine}; known are {', '.join(sorted(fields))}")
        kind = fields[name]
        try:
            values[name] = BOOLEANS[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError) as e:
            raise ConfigError(
                f"engine option {name}={text!r}: {engine} takes a value of type {kind.__name__} here"
            ) from e
    return cls(**values)
