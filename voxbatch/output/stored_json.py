"""Write a JSON object for OUT, and read fields of one that was stored there, with a check of their types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")

MAX_COUNT = 10**15
"""Largest number that any count of items, parts or bytes can have."""


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """Return a value as JSON in UTF-8. Lone surrogates (from file names that are not UTF-8) are escaped."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()


def field(stored: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """Return the value of a key.

    Raises:
        KeyError: the key is missing.
        TypeError: the value has another type, or `stored` is not such an object.
    """
    value = stored[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {value!r:.80}")
    return value


def optional(stored: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    """Return the value of a key, or None if the key is missing or its value is null.

    Raises:
        TypeError: the value has another type, or `stored` is not such an object.
    """
    return None if stored.get(name) is None else field(stored, name, kind)


def count(stored: Mapping[str, Any], name: str) -> int:
    """Return the value of a key that holds a count.

    Raises:
        KeyError: the key is missing.
        TypeError, ValueError: the value is not a number that a count can have.
    """
    value = field(stored, name, int)
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} is {str(value)[:80]}")
    return value


def number(stored: Mapping[str, Any], name: str) -> float:
    """Return the value of a key that holds a finite number.

    Raises:
        KeyError: the key is missing.
        TypeError, ValueError: the value is not a finite number.
    """
    value = stored[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.80}")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return value
