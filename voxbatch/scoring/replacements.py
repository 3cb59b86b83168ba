"""Read the words that replace others in normalised texts, such as "okay" for "ok": a user's own addition to the rules.

The file is a JSON object, {"ok": "okay", "uh": ""}, or has two columns in each line, separated by a tab.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.safe_text import counted
from voxbatch.scoring.normalize import Replacements

_REMEDY = "write the words that are replaced, a tab, and the words that replace them (or nothing)"


def replacements_of(pairs: Mapping[str, str]) -> Replacements:
    """Return the replacements of a dictionary, {"ok": "okay", "uh": ""}.

    Raises:
        ConfigError: it is empty, or an entry is not a replacement.
    """
    _check_pairs("replace", pairs)
    if not pairs:
        raise ConfigError('replace: holds no replacement; write {"ok": "okay"}')
    data = json.dumps(dict(pairs)).encode()
    return Replacements(f"{counted(len(pairs), 'replacement')} of Python ({_digest(data)})", tuple(pairs.items()))


def read_replacements(path: str) -> Replacements:
    """Return the replacements of a file.

    Raises:
        ConfigError: the file cannot be read, or a line of it is not a replacement.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}; give a JSON object or a table of two columns") from e
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{path}: line {line}: is not UTF-8; save the file as UTF-8") from e
    pairs = _json_pairs(path, text) if text.lstrip().startswith(("{", "[")) else _table_pairs(path, text)
    if not pairs:
        raise ConfigError(f"{path}: holds no replacement; {_REMEDY}")
    return Replacements(f"replacements of {os.path.basename(path)} ({_digest(data)})", tuple(pairs.items()))


def _digest(data: bytes) -> str:
    return f"SHA-256 {hashlib.sha256(data).hexdigest()[:8]}…"


def _json_pairs(path: str, text: str) -> dict[str, str]:
    try:
        pairs = json.loads(text)
    except json.JSONDecodeError as e:
        raise ConfigError(f'{path}: line {e.lineno}: not JSON: {e.msg}; write {{"ok": "okay"}}') from e
    except (RecursionError, ValueError) as e:
        raise ConfigError(f'{path}: not JSON: {e}; write {{"ok": "okay"}}') from e
    if not isinstance(pairs, dict):
        raise ConfigError(f'{path}: line 1: is not a JSON object; write {{"ok": "okay"}}')
    _check_pairs(path, pairs)
    return pairs


def _check_pairs(place: str, pairs: Mapping[Any, Any]) -> None:
    for old, new in pairs.items():
        if not isinstance(old, str) or not old.strip() or not isinstance(new, str):
            raise ConfigError(
                f"{place}: {old!r}: {new!r} is not a replacement; both must be texts, the first not empty"
            )


def _table_pairs(path: str, text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if not line.strip():
            continue
        line = line.rstrip("\n")
        columns = line.split("\t")
        old = columns[0].strip()
        if len(columns) != 2 or not old:
            raise ConfigError(f"{path}: line {number}: {line[:40]!r} does not have two columns; {_REMEDY}")
        if pairs.setdefault(old, columns[1].strip()) != columns[1].strip():
            raise ConfigError(f"{path}: line {number}: {old!r} is in two lines; keep one of them")
    return pairs
