"""Match the items of two runs or files, and count the errors of both by the same rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from voxbatch.analysis.compared_source import ComparedSource
from voxbatch.analysis.pairs import MOST_FOLDERS, path_ends
from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.json_line import quote
from voxbatch.scoring.corpus import NO_VALUE
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.normalize import Rules
from voxbatch.scoring.units import scored_language


@dataclass(slots=True)
class SideItem:
    """All that is kept of an item of one side."""

    number: int
    path: int | None
    """Hash of its path."""
    ends: tuple[int, ...]
    """Hashes of the ends of its path without the extension, from the name alone to the longest; see pairs.path_ends."""
    reference: int | None
    """Hash of its reference."""
    lang: str | None
    is_given: bool
    counts: ErrorCounts | None
    missing: bool
    cluster: str | None
    groups: tuple[str, ...]


@dataclass(slots=True)
class CommonItem:
    """An item in common."""

    ids: tuple[str, str]
    items: tuple[SideItem, SideItem]
    lang: str | None
    """The language by whose rules both are scored."""
    reference: str | None = None
    """The reference of B, if A has another one; or that of A, if B has none."""

    @property
    def counts(self) -> tuple[ErrorCounts, ErrorCounts]:
        """The errors of both, once they are counted."""
        a, b = (item.counts for item in self.items)
        assert a is not None
        assert b is not None
        return a, b

    def group(self, number: int) -> str:
        """Return the value of a key by which the items are grouped: that of B, or of A if only A has one."""
        a, b = (item.groups[number] for item in self.items)
        return a if b == NO_VALUE else b

    @property
    def change(self) -> int:
        """Errors of B minus errors of A."""
        a, b = self.counts
        return b.errors - a.errors


def read_items(source: ComparedSource) -> dict[str, SideItem]:
    """Return the items of a run or a file by id."""
    items: dict[str, SideItem] = {}
    for number, entry in source.entries():
        if entry.id in items:
            raise ManifestError(
                source.place, [BadLine(0, f"id {quote(entry.id)} is given twice; give each item its own")]
            )
        items[entry.id] = SideItem(
            number=number,
            path=None if entry.path is None else hash(entry.path),
            ends=tuple(map(hash, reversed(path_ends(entry.path or entry.id)))),
            reference=None if entry.reference is None else hash(entry.reference),
            lang=entry.lang,
            is_given=entry.is_given,
            counts=entry.counts,
            missing=entry.text is None,
            cluster=entry.cluster,
            groups=entry.groups,
        )
    if not source.is_as_written:
        for item in items.values():
            item.counts = None
    return items


def match_items(items_a: Mapping[str, SideItem], items_b: Mapping[str, SideItem]) -> list[CommonItem]:
    """Return the items in common: those with the same id, then those that alone have the same path, then those that
    alone have the same end of it, the longest first and at last the name alone, as in `score`."""
    pairs = [_pair(key, item, key, items_b[key]) for key, item in items_a.items() if key in items_b]
    rest_a = {key: item for key, item in items_a.items() if key not in items_b}
    rest_b = {key: item for key, item in items_b.items() if key not in items_a}
    for folders in (None, *range(MOST_FOLDERS, -1, -1)):
        key_of = _alone_by(folders, rest_b)
        for value, key in _alone_by(folders, rest_a).items():
            if (key_b := key_of.get(value)) is not None:
                pairs.append(_pair(key, rest_a.pop(key), key_b, rest_b.pop(key_b)))
    return pairs


def _alone_by(folders: int | None, items: Mapping[str, SideItem]) -> dict[int, str]:
    """Return the ids of the items whose name with so many folders no other item has, by its hash. None: whose path."""
    values = {
        key: item.path if folders is None else next(iter(item.ends[folders : folders + 1]), None)
        for key, item in items.items()
    }
    counts = Counter(values.values())
    return {value: key for key, value in values.items() if value is not None and counts[value] == 1}


def _pair(id_a: str, a: SideItem, id_b: str, b: SideItem) -> CommonItem:
    """Return an item in common, with the language of B, or of A if only A was given its language."""
    language_of = a if a.lang is not None and (b.lang is None or (a.is_given and not b.is_given)) else b
    return CommonItem((id_a, id_b), (a, b), language_of.lang)


def take_references(pairs: Iterable[CommonItem], sources: tuple[ComparedSource, ComparedSource]) -> int:
    """Give each pair whose references differ, or that has only one, its reference. Return how many have two that
    differ."""
    differing = [pair for pair in pairs if pair.items[0].reference != pair.items[1].reference]
    for side, source in enumerate(sources):
        wanted = {pair.items[side].number: pair for pair in differing if side == 1 or pair.items[1].reference is None}
        for number, entry in source.entries(wanted) if wanted else ():
            if entry.reference is not None:
                wanted[number].reference = entry.reference
    return sum(all(item.reference is not None for item in pair.items) for pair in differing)


def take_given_references(pairs: Iterable[CommonItem], source: ComparedSource) -> None:
    """Give each pair the reference that a further file has for it; see match_items."""
    by_id = {pair.ids[1]: pair for pair in pairs}
    matches = match_items({item_id: pair.items[1] for item_id, pair in by_id.items()}, read_items(source))
    wanted = {match.items[1].number: by_id[match.ids[0]] for match in matches}
    for number, entry in source.entries(wanted):
        wanted[number].reference, wanted[number].lang = entry.text, wanted[number].lang or entry.lang


def count_items(pairs: Iterable[CommonItem], side: int, source: ComparedSource, rules: Rules) -> int:
    """Count the errors of the items whose counts are not known or are not by the rules of their pair. Return their
    number."""
    wanted = {}
    for pair in pairs:
        item = pair.items[side]
        is_other_language = scored_language(item.lang) != scored_language(pair.lang)
        if item.counts is None or pair.reference is not None or is_other_language:
            wanted[item.number] = pair
    for number, entry in source.entries(wanted) if wanted else ():
        pair = wanted[number]
        reference = entry.reference if pair.reference is None else pair.reference
        pair.items[side].counts = count_errors(reference or "", entry.text or "", pair.lang, rules)
    return sum(not pair.items[side].missing for pair in wanted.values())


def count_by_rules(
    pairs: Sequence[CommonItem], side: int, source: ComparedSource, rules: Sequence[Rules]
) -> list[list[ErrorCounts]]:
    """Return the errors of one side by each of several rules, in the order of the pairs."""
    places = {pair.items[side].number: at for at, pair in enumerate(pairs)}
    counts = [[ErrorCounts()] * len(pairs) for _ in rules]
    for number, entry in source.entries(places) if places else ():
        pair = pairs[places[number]]
        reference = entry.reference if pair.reference is None else pair.reference
        for counted, rule in zip(counts, rules, strict=True):
            counted[places[number]] = count_errors(reference or "", entry.text or "", pair.lang, rule)
    return counts
