"""Compare two runs, or two files with transcripts, on the items that both have.

Both are scored by the same rules against the same references. The counts in the lines of a run are taken as they are
if these rules made them, so that large runs are compared without their texts. Items match by `id`, else by
`audio_filepath`, never by position. The lines are streamed, several times; a few numbers of each item are in memory.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from voxbatch.analysis.common_items import (
    CommonItem,
    SideItem,
    count_by_rules,
    count_items,
    match_items,
    read_items,
    take_given_references,
    take_references,
)
from voxbatch.analysis.compared_source import ComparedSource
from voxbatch.analysis.readers import Role
from voxbatch.errors import ConfigError
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.safe_text import counted
from voxbatch.scoring.bootstrap import PairedDifference, paired_difference
from voxbatch.scoring.corpus import NO_VALUE
from voxbatch.scoring.counts import ErrorCounts
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules, normalizer_name
from voxbatch.scoring.units import Unit, error_unit, scored_language
from voxbatch.storage import DEFAULT_STORES, Stores

OTHER_RULES = ("auto", "whisper", "none")
"""Normalisers by which the difference of the word error rates is given, too: its sign may depend on them."""
MAX_RECOUNTED = 200_000
"""Most reference words that are counted by other normalisers, too."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two runs or files. The counts are of the items in common that have a reference."""

    place: str
    items: int
    """Number of its items, also of those that the other one lacks."""
    missing: int
    """Number of items in common without a transcript. Their references count as deleted."""
    words: ErrorCounts
    """Errors in languages that are counted in words."""
    characters: ErrorCounts
    """Errors in languages that are counted in characters."""
    rescored: int
    """Number of items in common whose texts were scored again, because their lines have no counts by these rules."""
    engine: str | None = None
    """None for a file, like the fields below."""
    model: str | None = None
    rtfx: float | None = None
    """Speed of the whole run: seconds of audio / seconds of wall time."""
    wall_s: float | None = None
    usd: float | None = None
    """Cost of the whole run. None also if no price was known."""

    @property
    def wer(self) -> float | None:
        """Word error rate of the items in common."""
        return self.words.reported_rate

    @property
    def cer(self) -> float | None:
        """Character error rate of the items in common in languages without spaces."""
        return self.characters.reported_rate

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON, with the rates."""
        return {"wer": self.wer, "cer": self.cer, **asdict(self)}


@dataclass(frozen=True, slots=True)
class ChangedItem:
    """An item in common whose number of errors differs."""

    id: str
    lang: str
    errors_a: int
    errors_b: int
    reference_length: int
    reference: str
    text_a: str | None
    """None if A has no transcript."""
    text_b: str | None


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """The items in common that have one value of a key, and are counted in the same unit."""

    key: str
    value: str
    unit: Unit
    items: int
    a: ErrorCounts
    b: ErrorCounts
    difference: PairedDifference

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON, with the rates: `wer_a` and `wer_b`, or `cer_a` and `cer_b`."""
        name = "wer" if self.unit == "word" else "cer"
        rates = {f"{name}_a": self.a.reported_rate, f"{name}_b": self.b.reported_rate}
        return {"key": self.key, "value": self.value, "items": self.items, **rates, **asdict(self.difference)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing A with B. A negative difference means that B has fewer errors."""

    a: Compared
    b: Compared
    common: int
    """Number of items in both."""
    only_a: int
    only_b: int
    without_reference: int
    """Number of items in common that have no reference in A nor in B. They are not scored."""
    other_references: int
    """Number of items in common whose references differ. Both are scored against that of B."""
    other_languages: int
    """Number of items in common to which A gives another language than B. Both are scored by the rules of one."""
    normalizers: Mapping[str, str]
    """Rules of normalisation by language."""
    words: PairedDifference | None
    """Difference of the word error rates. None if no item in common is counted in words."""
    characters: PairedDifference | None
    """Difference of the character error rates."""
    options: Mapping[str, tuple[Any, Any]]
    """Options and versions of two runs that differ, by name, with the values of A and B. Empty if one is a file."""
    changed: tuple[ChangedItem, ...]
    """The items whose number of errors changed most, the largest change first."""
    groups: tuple[ComparedGroup, ...] = ()
    """The differences by the values of keys."""
    other_rules: Mapping[str, PairedDifference] = field(default_factory=dict)
    """Difference of the word error rates by other normalisers, by their names. Empty with more than MAX_RECOUNTED
    reference words."""

    @property
    def other_signs(self) -> list[str]:
        """Names of the other normalisers by which the other side has fewer errors."""
        own = self.words.difference if self.words else 0.0
        return [name for name, other in self.other_rules.items() if other.difference * own < 0]

    def __repr__(self) -> str:
        """Return the number of items in common and the rates of A and B on one line; `to_dict` has everything."""
        pairs = ("WER", self.a.wer, self.b.wer), ("CER", self.a.cer, self.b.cer)
        rates = [f"{name} {a:.2%} and {b:.2%}" for name, a, b in pairs if a is not None and b is not None]
        return f"Comparison({', '.join((counted(self.common, 'item'), *rates, f'{len(self.changed):,} changed'))})"

    def is_worse_by_more_than(self, points: float) -> bool:
        """Return whether a rate of B exceeds that of A by more than so many percentage points.

        The rates themselves decide, exactly: for these recordings, B is worse. The interval says whether other
        recordings would show it, too.
        """
        limit = Fraction(str(points)) / 100
        pairs = (self.a.words, self.b.words), (self.a.characters, self.b.characters)
        return any(
            Fraction(b.errors, b.reference_length) - Fraction(a.errors, a.reference_length) > limit
            for a, b in pairs
            if a.reference_length and b.reference_length
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        sides = {"a": self.a.to_dict(), "b": self.b.to_dict()}
        return {
            **asdict(self),
            **sides,
            "other_signs": self.other_signs,
            "groups": [group.to_dict() for group in self.groups],
        }


def compare_places(
    place_a: str,
    place_b: str,
    language: str | None = None,
    cluster: str | None = None,
    limit: int = 10,
    stores: Stores = DEFAULT_STORES,
    rules: Rules = DEFAULT_RULES,
    by: tuple[str, ...] = (),
    ref: str | None = None,
) -> Comparison:
    """Return how B differs from A on the items in common.

    Args:
        place_a: the OUT of a finished run, or a file of any kind that open_texts reads; a path or an address.
        place_b: likewise.
        language: language of the items for which neither a manifest nor a run gave one.
        cluster: key of the lines, such as "speaker". Items with the same value are resampled together for the
            interval. Items without the key are one group.
        limit: number of changed items in the result.
        rules: the rules by which all texts are normalised.
        by: keys of the lines, for each value of which the difference is also given.
        ref: a file or a folder with the references, in place of those of both.

    Raises:
        ConfigError: a place does not exist, or its run is not finished; or no item is in both; or no item in common has
            a reference, or the key `cluster`, or one of `by`.
        ManifestError: a line of a file cannot be used.
    """
    sources = (
        ComparedSource(place_a, language, cluster, rules, stores, by),
        ComparedSource(place_b, language, cluster, rules, stores, by),
    )
    all_items = read_items(sources[0]), read_items(sources[1])
    pairs = match_items(*all_items)
    if ref is None:
        scored = [pair for pair in pairs if any(item.reference is not None for item in pair.items)]
    else:
        take_given_references(pairs, ComparedSource(ref, language, None, rules, stores, role=Role.REFERENCE))
        scored = [pair for pair in pairs if pair.reference is not None]
    if reason := _reason_to_refuse(all_items, pairs, scored, cluster, by):
        raise ConfigError(f"{sources[0].place} and {sources[1].place}{reason}")
    other_references = take_references(scored, sources) if ref is None else 0
    rescored = [count_items(scored, side, source, rules) for side, source in enumerate(sources)]
    words = [pair for pair in scored if error_unit(pair.lang) == "word"]
    characters = [pair for pair in scored if error_unit(pair.lang) == "character"]
    a, b = (
        Compared(
            place=source.place,
            items=len(all_items[side]),
            missing=sum(pair.items[side].missing for pair in scored),
            words=_total(words, side),
            characters=_total(characters, side),
            rescored=rescored[side],
            **source.facts(),
        )
        for side, source in enumerate(sources)
    )
    return Comparison(
        a=a,
        b=b,
        common=len(pairs),
        only_a=len(all_items[0]) - len(pairs),
        only_b=len(all_items[1]) - len(pairs),
        without_reference=len(pairs) - len(scored),
        other_references=other_references,
        other_languages=sum(len({item.lang for item in pair.items if item.lang}) > 1 for pair in scored),
        normalizers={
            lang: normalizer_name(lang, rules) for lang in sorted({scored_language(pair.lang) for pair in scored})
        },
        words=_difference(words),
        characters=_difference(characters),
        options=_other_options(sources),
        changed=_changed(scored, limit, sources),
        groups=tuple(_groups(words, "word", by)) + tuple(_groups(characters, "character", by)),
        other_rules=_by_other_rules(words, sources, rules),
    )


def _reason_to_refuse(
    all_items: tuple[Mapping[str, SideItem], Mapping[str, SideItem]],
    pairs: Sequence[CommonItem],
    scored: Sequence[CommonItem],
    cluster: str | None,
    by: Sequence[str],
) -> str:
    """Return the end of a sentence that says why nothing can be compared, or ""."""
    if not pairs:
        a, b = (quote(next(iter(items), "")) for items in all_items)
        return (
            f" have no item in common: ids such as {a} and {b}; give the same recordings the same `id`, or the same "
            f"`{AUDIO_KEY}`"
        )
    if not scored:
        return (
            ": no item in common has a reference, so neither is better; add `text` to the lines of the manifest, and "
            "run again, or give --ref FILE"
        )
    if cluster is not None and all(item.cluster == NO_VALUE for pair in scored for item in pair.items):
        return f": no item in common has {quote(cluster)}, by which to resample; take a key of the manifest's lines"
    for number, key in enumerate(by):
        if all(pair.group(number) == NO_VALUE for pair in scored):
            return f": no item in common has {quote(key)}, by which to group; take a key of the manifest's lines"
    return ""


def _other_options(sources: tuple[ComparedSource, ComparedSource]) -> dict[str, tuple[Any, Any]]:
    """Return the options that differ. One that only one of the runs has is None in the other."""
    summaries = [source.summary for source in sources]
    if None in summaries:
        return {}
    a, b = (summary.facts.options for summary in summaries if summary)
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def _total(pairs: Iterable[CommonItem], side: int) -> ErrorCounts:
    return sum((pair.counts[side] for pair in pairs), ErrorCounts())


def _by_other_rules(
    pairs: Sequence[CommonItem], sources: tuple[ComparedSource, ComparedSource], rules: Rules
) -> dict[str, PairedDifference]:
    """Return the differences of the word error rates by other normalisers, by their names."""
    if _total(pairs, 1).reference_length > MAX_RECOUNTED:
        return {}
    names = [name for name in OTHER_RULES if name != rules.normalizer or rules != Rules(name)]
    sides = [count_by_rules(pairs, side, source, [*map(Rules, names)]) for side, source in enumerate(sources)]
    differences = {
        name: _difference(pairs, list(zip(*(side[number] for side in sides), strict=True)))
        for number, name in enumerate(names)
    }
    return {name: difference for name, difference in differences.items() if difference is not None}


def _difference(
    pairs: Sequence[CommonItem], counts: Sequence[tuple[ErrorCounts, ErrorCounts]] | None = None
) -> PairedDifference | None:
    """Return the difference of the rates of B and A. Items of one cluster are resampled together.

    Args:
        counts: errors of both sides of each item. None: those of the rules of the comparison.
    """
    sums: dict[str | int | None, tuple[ErrorCounts, ErrorCounts]] = {}
    for number, pair in enumerate(pairs):
        clusters = [item.cluster for item in pair.items if item.cluster not in (None, NO_VALUE)]
        key = clusters[0] if clusters else NO_VALUE if pair.items[0].cluster else number
        a, b = counts[number] if counts else pair.counts
        if key in sums:
            a, b = sums[key][0] + a, sums[key][1] + b
        sums[key] = a, b
    return paired_difference(
        [(a.errors, a.reference_length) for a, _ in sums.values()],
        [(b.errors, b.reference_length) for _, b in sums.values()],
    )


def _groups(pairs: Sequence[CommonItem], unit: Unit, by: Sequence[str]) -> Iterator[ComparedGroup]:
    """Yield the differences of the groups that have words, by key and then by value."""
    for number, key in enumerate(by):
        members = defaultdict[str, list[CommonItem]](list)
        for pair in pairs:
            members[pair.group(number)].append(pair)
        for value, items in sorted(members.items()):
            if (difference := _difference(items)) is not None:
                yield ComparedGroup(key, value, unit, len(items), _total(items, 0), _total(items, 1), difference)


def _changed(
    pairs: Iterable[CommonItem], limit: int, sources: tuple[ComparedSource, ComparedSource]
) -> tuple[ChangedItem, ...]:
    """Return the items whose number of errors changed most, with their texts."""
    top = heapq.nlargest(limit, (pair for pair in pairs if pair.change), key=lambda pair: (abs(pair.change), pair.ids))
    numbers = [{pair.items[side].number for pair in top} for side in range(2)]
    texts = [dict(source.entries(wanted)) if wanted else {} for source, wanted in zip(sources, numbers, strict=True)]
    changed = []
    for pair in top:
        a, b = (texts[side][item.number] for side, item in enumerate(pair.items))
        counts_a, counts_b = pair.counts
        reference = b.reference if pair.reference is None else pair.reference
        changed.append(
            ChangedItem(
                id=pair.ids[1],
                lang=scored_language(pair.lang),
                errors_a=counts_a.errors,
                errors_b=counts_b.errors,
                reference_length=counts_b.reference_length,
                reference=reference or "",
                text_a=a.text,
                text_b=b.text,
            )
        )
    return tuple(changed)
