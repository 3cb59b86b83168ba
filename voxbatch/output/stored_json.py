"""Write a JSON object for OUT, and read one that was stored there as a record whose types are checked."""

from __future__ import annotations

import json
from threading import RLock
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from voxbatch.word import Number

__all__ = ["Count", "Moment", "Number", "json_bytes", "parse_json", "read_json", "record_of"]
_T = TypeVar("_T")
_lock = RLock()
"""Held while msgspec converts: its first conversion to a class keeps an unfinished description in the class, and
another thread that finds it crashes the process (msgspec 0.22)."""

Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
"""A count of items, parts or bytes. No OUT has more."""
Moment = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, up to the year 9999, so that they have a date."""


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """Return a value as JSON in UTF-8. Lone surrogates (from file names that are not UTF-8) are escaped."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()


def read_json(content: bytes | str, kind: type[_T]) -> _T:
    """Return a stored JSON object as a record. Unknown keys are ignored.

    Raises:
        ValueError: the content is not JSON, a key is missing, or a value has another type or is out of range.
    """
    return record_of(parse_json(content), kind)


def parse_json(content: bytes | str) -> Any:
    """Return the value of JSON, in which each number is finite.

    The decoder is Python's: msgspec's refuses lone surrogates.

    Raises:
        ValueError: the content is not JSON.
    """
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def record_of(value: Any, kind: type[_T]) -> _T:
    """Return values from JSON as a record; see `read_json`. A class that is no dataclass has a method `from_json`."""
    with _lock:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=lambda inner, stored: inner.from_json(stored))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
