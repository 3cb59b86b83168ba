"""Find the lines of a manifest whose ids repeat those of earlier lines, by the 64-bit hashes of the ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import ManifestError
from voxbatch.manifest.item_line import id_key, parse_line
from voxbatch.manifest.json_line import LineError, quote
from voxbatch.manifest.path_policy import PathPolicy
from voxbatch.manifest.source import BadLines, Source
from voxbatch.records import Item


def earliest_duplicates(repeated: NDArray[np.int64], hashes: Iterable[int], limit: int) -> tuple[set[int], int]:
    """Return (the hashes of the `limit` earliest duplicates, the number of duplicates of all other hashes).

    Args:
        repeated: the result of `repeated_hashes`.
        hashes: the hashes in their first order, as signed integers. They are read up to the last of these duplicates.
        limit: number of duplicates to find, at least 1.
    """
    earliest: set[int] = set()
    has_occurred = np.zeros(len(repeated), np.bool_)
    for value in hashes:
        at = int(np.searchsorted(repeated, value))
        if at < len(repeated) and repeated[at] == value:
            if has_occurred[at]:
                earliest.add(value)
                limit -= 1
                if limit == 0:
                    break
            has_occurred[at] = True
    ordered = np.array(sorted(earliest), np.int64)
    num_found = np.searchsorted(repeated, ordered, "right") - np.searchsorted(repeated, ordered)
    return earliest, len(repeated) - int(num_found.sum())


def duplicates(source: Source, policy: PathPolicy, limit: int | None, repeated: NDArray[np.int64]) -> BadLines:
    """Return the lines that repeat an earlier id. The manifest is read again: first to find the earliest of these
    lines, then to compare the ids themselves.

    Args:
        repeated: the hashes of ids that repeat; see `repeated_hashes`.
    """
    bad = BadLines()

    def hash_of(item: Item) -> int:
        return int.from_bytes(id_key(item.id), "little", signed=True)

    suspects, num_others = earliest_duplicates(
        repeated, map(hash_of, _good_items(source, policy, limit)), ManifestError.LIMIT
    )
    first_line: dict[str, int] = {}
    for item in _good_items(source, policy, limit):
        if hash_of(item) not in suspects:
            continue
        first = first_line.setdefault(item.id, item.line)
        if first != item.line:
            advice = "name each recording once" if source.grows else "give each line its own `id`"
            bad.add(item.line, f"id {quote(item.id)} is also {source.place(first)}'s; {advice}")
    bad.total += num_others
    return bad


def _good_items(source: Source, policy: PathPolicy, limit: int | None) -> Iterator[Item]:
    """Yield the items of the lines that can be used."""
    for index, (line, text) in enumerate(islice(source.lines(), limit)):
        with contextlib.suppress(LineError):
            yield parse_line(text, line, index, source.base, policy, source.id_root)
