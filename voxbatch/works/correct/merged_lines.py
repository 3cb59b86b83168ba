"""Compare a transcripts.jsonl that somebody has changed with what the log gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import digest_of
from voxbatch.output.layout import TRANSCRIPTS
from voxbatch.output.own_files import Key, OwnFiles, key_of
from voxbatch.storage import Store

_REPEATING = {"words": "word", "segments": "text"}
"""Keys that repeat the text in pieces, each with the key of the text there."""


@dataclass(slots=True)
class ChangedLines:
    """The lines of a transcripts.jsonl that somebody has changed."""

    key: Key
    """Key of the file; see own_files.key_of."""
    texts: dict[str, str] = field(default_factory=dict)
    """The changed texts (`pred_text`) by the ids of their items."""
    rest: list[str] = field(default_factory=list)
    """Changes from which nothing is taken, for people. If there are some, the file stays as it is."""


def changed_lines(store: Store, entries: Entries, own: OwnFiles, list_number: int) -> ChangedLines | None:
    """Return the lines that somebody has changed; None if the file is as voxbatch wrote it, or missing.

    Lines in another order are the same. The memory grows with their number.

    Args:
        list_number: number of the list that was merged last. The file has no lines of later ones.

    Raises:
        ConfigError: a line is not JSON.
        CheckpointError: a part is damaged.
    """
    present = digest_of(store, TRANSCRIPTS)
    if not present.bytes or own.has(TRANSCRIPTS, present.sha256):
        return None
    changed, lines, waiting = ChangedLines(key_of(TRANSCRIPTS, present.sha256)), _lines(store), dict[str, Any]()
    later = {part.name for part in entries.parts if part.list_number > list_number}
    for entry in entries:
        if entry.kind != "transcript":
            continue
        ours = json.loads(entry.line)
        row = waiting.pop(ours["id"], None)
        while row is None and (following := next(lines, None)) is not None:
            if following["id"] == ours["id"]:
                row = following
            else:
                waiting[following["id"]] = following
        if row is None and entry.part in later:
            continue
        if row is None:
            changed.rest.append(f"the line of {ours['id']} is missing")
            continue
        keys = sorted(key for key in {*row, *ours} if row.get(key) != ours.get(key) or (key in row) != (key in ours))
        if "pred_text" in keys and isinstance(row.get("pred_text"), str):
            changed.texts[ours["id"]] = row["pred_text"]
            repeated = {key for key in _REPEATING if _times(row, key) == _times(ours, key)}
            keys = [key for key in keys if key != "pred_text" and key not in repeated]
        if keys:
            changed.rest.append(f"{', '.join(keys)} of {ours['id']}")
    unknown = [*waiting, *(row["id"] for row in lines)]
    changed.rest += [f"the line of {item_id}, which is no item with a transcript" for item_id in unknown]
    return changed


def _times(row: Mapping[str, Any], key: str) -> object:
    """Return the words or the segments of a line without their texts."""
    values = row.get(key)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        return values
    return [{name: value for name, value in piece.items() if name != _REPEATING[key]} for piece in values]


def _lines(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the lines of the file as JSON objects."""
    for number, line in enumerate(store.lines(TRANSCRIPTS), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
            if not isinstance(row["id"], str):
                raise ValueError("`id` is no text")
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            where = f"{store.place}/{TRANSCRIPTS}, line {number:,}"
            raise ConfigError(
                f"{where}: no JSON object with `id` ({e}): mend the line, or move the file away, and the next run "
                "writes it again from the parts"
            ) from e
        yield row
