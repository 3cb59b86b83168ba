"""Convert a manifest's lines to Items. Every line is checked once, here, and every bad line is reported with its
number.

Both passes stream: `survey` reads the whole manifest and keeps 20 bytes a line in temporary files, and `items` reads it
again and builds the items that are wanted. Finding the lines is the job of `sources`. This package does not open
recordings and does not check that they exist. `item_line` says what a line may hold.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, islice

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.item_line import item_key, parse_line
from voxbatch.manifest.json_line import LineError
from voxbatch.manifest.path_policy import DEFAULT_POLICY, PathPolicy
from voxbatch.manifest.source import CHANGED_ADVICE, BadLines, InheritableSource, Source
from voxbatch.records import Item
from voxbatch.storage.columns import Column, ItemSet, repeated_hashes

__all__ = [
    "DEFAULT_POLICY",
    "InheritableSource",
    "LineError",
    "PathPolicy",
    "Source",
    "Survey",
    "item_key",
    "items",
    "parse_line",
    "survey",
]

MAX_LANGUAGES = 200
"""Number of different `lang` values that a survey counts separately. All others are counted together as "…"."""
_FLOAT = struct.Struct("<f").pack


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Result of one pass over a manifest without bad lines."""

    items: int
    fingerprint: str
    """sha256 over the lines that were used, without blank lines, line ends and byte order marks. It does not depend on
    the location of the file."""
    durations: Column
    """Duration in seconds of each item, float32; NaN if the line gives none."""
    keys: Column
    """Hash of the id and hash of the line of each item, two uint64. Every process computes the same hashes, so that a
    later run finds the items of this one in another manifest. See `item_key`."""
    known_s: float
    """Sum of all durations that the lines give, in seconds."""
    with_text: int
    """Number of items with a reference."""
    languages: Counter[str]
    """Number of items by `lang`, for the items that have one."""
    with_hotwords: int = 0
    """Number of items with hotwords of their own."""


def survey(source: Source, policy: PathPolicy = DEFAULT_POLICY, limit: int | None = None) -> Survey:
    """Read every line, or the first `limit` items, and check all of it, in almost constant memory.

    Raises:
        ManifestError: some lines are bad. The error holds the first ManifestError.LIMIT of them and their total number.
            It is also raised for a manifest without items, and for one that is written to meanwhile.
    """
    bad, digest = BadLines(), hashlib.sha256()
    durations, keys, known_s = Column("<f4"), Column("<u8", width=2), 0.0
    languages: Counter[str] = Counter()
    with_text = with_hotwords = 0
    for index, (line, text) in enumerate(islice(source.lines(), limit)):
        digest.update(text + b"\n")
        try:
            item = parse_line(text, line, index, source.base, policy, source.id_root)
        except LineError as error:
            bad.add(line, str(error))
            continue
        keys.append(item_key(item.id, text))
        durations.append(_FLOAT(math.nan if item.duration is None else item.duration))
        known_s += item.duration or 0.0
        with_text += item.text is not None
        with_hotwords += item.hotwords is not None
        if (lang := item.lang) is not None:
            languages[lang if lang in languages or len(languages) < MAX_LANGUAGES else "…"] += 1
    if len(repeated := repeated_hashes(keys)):
        from voxbatch.manifest.duplicates import duplicates

        bad += duplicates(source, policy, limit, repeated)
    if source.has_changed():  # it may have been read before its writer had finished
        raise ManifestError(source.name, [BadLine(0, f"changed while it was being read; {CHANGED_ADVICE}")])
    if bad.total:
        raise ManifestError(source.name, [source.placed(bad_line) for bad_line in bad.first], bad.total)
    if not durations:
        raise ManifestError(source.name, [BadLine(0, "no items: the manifest has no line that is not blank")])
    return Survey(len(durations), digest.hexdigest(), durations, keys, known_s, with_text, languages, with_hotwords)


def items(
    source: Source,
    policy: PathPolicy = DEFAULT_POLICY,
    limit: int | None = None,
    wanted: ItemSet | None = None,
) -> Iterator[Item]:
    """Yield the items of a surveyed manifest, in order.

    Args:
        limit: number of lines to read; None reads all.
        wanted: only these items are parsed and yielded. None yields all.

    Raises:
        ManifestError: a line is bad.
    """
    every = enumerate(islice(source.lines(), limit))
    for index, (line, text) in every if wanted is None else compress(every, wanted):
        try:
            item = parse_line(text, line, index, source.base, policy, source.id_root)
        except LineError as error:
            raise ManifestError(source.name, [source.placed(BadLine(line, str(error)))]) from error
        yield item
