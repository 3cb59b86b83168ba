"""Compare two runs, or two files with transcripts, on the items that both have.

Both are scored by the same rules against the same references. The counts in the lines of a run are taken as they are
if these rules made them, so that large runs are compared without their texts. Items match by `id`, else by
`audio_filepath`, never by position. The lines are streamed, several times; a few numbers of each item are in memory.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from voxbatch.analysis.pairs import match_name
from voxbatch.analysis.readers import Role, open_texts
from voxbatch.analysis.score import is_run, require_place
from voxbatch.analysis.text_kinds import TEXT_KINDS
from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.languages import DETECTED_LANGUAGE
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.output import run_file
from voxbatch.output.file_digest import RunningDigest
from voxbatch.output.layout import FAILURES, TRANSCRIPTS
from voxbatch.output.lines import parse_merged_line
from voxbatch.output.summary import Summary, read_summary
from voxbatch.scoring.bootstrap import PairedDifference, paired_difference
from voxbatch.scoring.corpus import NO_VALUE, group_of, line_language
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.normalize import normalizer_name
from voxbatch.scoring.units import error_unit, scored_language
from voxbatch.storage import DEFAULT_STORES, Store, Stores, redacted


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
    changed: tuple[ChangedItem, ...]
    """The items whose number of errors changed most, the largest change first."""

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
        return {**asdict(self), "a": self.a.to_dict(), "b": self.b.to_dict()}


@dataclass(frozen=True, slots=True)
class _ComparedLine:
    """One line of a run or a file."""

    id: str
    path: str | None
    reference: str | None
    text: str | None
    """None if there is no transcript."""
    lang: str | None
    is_given: bool
    """True if somebody gave the language, and the engine did not detect it."""
    counts: ErrorCounts | None
    """Counts in the line, if the present rules of `lang` made them."""
    cluster: str | None


class _ComparedSource:
    """A run or a file, whose lines can be read several times."""

    def __init__(self, place: str, language: str | None, cluster: str | None, stores: Stores):
        require_place(place)
        self.place = redacted(place)
        self._place, self._language, self._stores = place, language, stores
        self._cluster_by = cluster
        self._store: Store | None = None
        self.summary: Summary | None = None
        self._recorded_rules: dict[str, str] = {}
        """Names of the rules that made the counts in the lines, by language."""
        self.is_as_written = False
        """True if all lines were read and are those of the run: nobody has changed a text, so that the counts in a line
        are those of its text."""
        if is_run(place):
            self._store = stores.out(place)
            run = run_file.read_existing(self._store)
            run.check_reader("compare", self.place)
            self._language = language or run.language
            self.summary = read_summary(self._store)
            if self.summary is None or not self._store.exists(TRANSCRIPTS):
                raise ConfigError(f"{self.place}: the run is not finished; run the same command again, then compare")
            self._recorded_rules = self.summary.score.normalizers if self.summary.score else {}

    def entries(self, wanted: Container[int] | None = None) -> Iterator[tuple[int, _ComparedLine]]:
        """Yield (number, line) of the items, of a run first those with a transcript.

        Args:
            wanted: numbers of the lines that are needed. The others of a run are not parsed. None: all lines.

        Raises:
            ManifestError: a line of a file cannot be used.
            CheckpointError: a merged output of a run was changed.
        """
        if self._store is None:
            yield from ((k, entry) for k, entry in enumerate(self._file_entries()) if wanted is None or k in wanted)
            return
        digest, number = RunningDigest(), -1
        for name in (TRANSCRIPTS, FAILURES):
            for line_number, text in enumerate(self._store.lines(name) if self._store.exists(name) else (), 1):
                number += 1
                if wanted is None and name == TRANSCRIPTS:
                    digest.add(text)
                if wanted is None or number in wanted:
                    line = parse_merged_line(self._store, name, line_number, text)
                    yield number, self._run_entry(line, name == TRANSCRIPTS)
        if wanted is None and self.summary is not None:
            self.is_as_written = self.summary.outputs.get(TRANSCRIPTS) == digest.digest()

    def _file_entries(self) -> Iterator[_ComparedLine]:
        with open_texts(self._place, None, self._stores) as texts:
            role = Role.BOTH if texts.kind in TEXT_KINDS and TEXT_KINDS[texts.kind].has_references else Role.HYPOTHESIS
            for entry in texts.entries(role):
                if entry.id == f"line {entry.line}" and entry.row.get("id") is None:
                    reason = f"has neither `id` nor `{AUDIO_KEY}`, by which the items match; add one of them"
                    raise ManifestError(texts.name, [BadLine(entry.line, reason)])
                line = {"lang": entry.lang, DETECTED_LANGUAGE: entry.row.get(DETECTED_LANGUAGE)}
                yield _ComparedLine(
                    id=entry.id,
                    path=entry.path,
                    reference=entry.reference,
                    text=entry.text,
                    lang=line_language(line, self._language),
                    is_given=self._language is not None or not line[DETECTED_LANGUAGE],
                    counts=None,
                    cluster=self._cluster(entry.row),
                )

    def _run_entry(self, line: dict[str, Any], is_done: bool) -> _ComparedLine:
        lang, counts = line_language(line, self._language), None
        tag = scored_language(lang)
        has_counts = is_done and line.get("text") is not None
        has_present_rules = normalizer_name(tag) == self._recorded_rules.get(tag)
        if has_counts and scored_language(line.get("lang")) == tag and has_present_rules:
            counts = ErrorCounts.of_line(line)
        return _ComparedLine(
            id=line["id"],
            path=line[AUDIO_KEY],
            reference=line.get("text"),
            text=line["pred_text"] if is_done else None,
            lang=lang,
            is_given=self._language is not None or not line.get(DETECTED_LANGUAGE),
            counts=counts,
            cluster=self._cluster(line),
        )

    def _cluster(self, row: Mapping[str, Any]) -> str | None:
        return None if self._cluster_by is None else group_of(row, self._cluster_by)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a Compared that a run has; {} for a file."""
        if (summary := self.summary) is None:
            return {}
        engine = summary.facts.engine
        return {
            "engine": engine.name, "model": engine.model,
            "rtfx": summary.rtfx, "wall_s": summary.wall_s, "usd": summary.usd,
        }  # fmt: skip


@dataclass(slots=True)
class _SideItem:
    """All that is kept of an item of one side."""

    number: int
    path: int | None
    """Hash of its path."""
    name: int
    """Hash of its name without folder and extension; see pairs.match_name."""
    reference: int | None
    """Hash of its reference."""
    lang: str | None
    is_given: bool
    counts: ErrorCounts | None
    missing: bool
    cluster: str | None


@dataclass(slots=True)
class _CommonItem:
    """An item in common."""

    ids: tuple[str, str]
    items: tuple[_SideItem, _SideItem]
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

    @property
    def change(self) -> int:
        """Errors of B minus errors of A."""
        a, b = self.counts
        return b.errors - a.errors


def compare_places(
    place_a: str,
    place_b: str,
    language: str | None = None,
    cluster: str | None = None,
    limit: int = 10,
    stores: Stores = DEFAULT_STORES,
) -> Comparison:
    """Return how B differs from A on the items in common.

    Args:
        place_a: the OUT of a finished run, or a file of any kind that open_texts reads; a path or an address.
        place_b: likewise.
        language: language of the items for which neither a manifest nor a run gave one.
        cluster: key of the lines, such as "speaker". Items with the same value are resampled together for the
            interval. Items without the key are one group.
        limit: number of changed items in the result.

    Raises:
        ConfigError: a place does not exist, or its run is not finished; or no item is in both; or no item in common has
            a reference, or the key `cluster`.
        ManifestError: a line of a file cannot be used.
    """
    sources = (
        _ComparedSource(place_a, language, cluster, stores),
        _ComparedSource(place_b, language, cluster, stores),
    )
    all_items = _read(sources[0]), _read(sources[1])
    pairs = _matched(*all_items)
    if not pairs:
        raise ConfigError(
            f"{sources[0].place} and {sources[1].place} have no item in common: ids such as {_example(all_items[0])} "
            f"and {_example(all_items[1])}; give the same recordings the same `id`, or the same `{AUDIO_KEY}`"
        )
    scored = [pair for pair in pairs if any(item.reference is not None for item in pair.items)]
    if not scored:
        raise ConfigError(
            f"{sources[0].place} and {sources[1].place}: no item in common has a reference, so neither is better; add "
            "`text` to the lines of the manifest, and run again"
        )
    if cluster is not None and all(item.cluster == NO_VALUE for pair in scored for item in pair.items):
        raise ConfigError(
            f"{sources[0].place} and {sources[1].place}: no item in common has {quote(cluster)}, by which to "
            "resample; take a key of the manifest's lines"
        )
    other_references = _take_references(scored, sources)
    rescored = [_count(scored, side, source) for side, source in enumerate(sources)]
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
        normalizers={lang: normalizer_name(lang) for lang in sorted({scored_language(pair.lang) for pair in scored})},
        words=_difference(words),
        characters=_difference(characters),
        changed=_changed(scored, limit, sources),
    )


def _read(source: _ComparedSource) -> dict[str, _SideItem]:
    """Return the items of a run or a file by id."""
    items: dict[str, _SideItem] = {}
    for number, entry in source.entries():
        if entry.id in items:
            raise ManifestError(
                source.place, [BadLine(0, f"id {quote(entry.id)} is given twice; give each item its own")]
            )
        items[entry.id] = _SideItem(
            number=number,
            path=None if entry.path is None else hash(entry.path),
            name=hash(match_name(entry.path or entry.id)),
            reference=None if entry.reference is None else hash(entry.reference),
            lang=entry.lang,
            is_given=entry.is_given,
            counts=entry.counts,
            missing=entry.text is None,
            cluster=entry.cluster,
        )
    if not source.is_as_written:
        for item in items.values():
            item.counts = None
    return items


def _example(items: Mapping[str, _SideItem]) -> str:
    return quote(next(iter(items), ""))


def _matched(items_a: Mapping[str, _SideItem], items_b: Mapping[str, _SideItem]) -> list[_CommonItem]:
    """Return the items in common: those with the same id, then those that alone have the same path, then those that
    alone have the same name without folder and extension, as in `score`."""
    pairs = [_pair(key, item, key, items_b[key]) for key, item in items_a.items() if key in items_b]
    rest_a = {key: item for key, item in items_a.items() if key not in items_b}
    rest_b = {key: item for key, item in items_b.items() if key not in items_a}
    for attribute in ("path", "name"):
        key_of = _alone_by(attribute, rest_b)
        for value, key in _alone_by(attribute, rest_a).items():
            if (key_b := key_of.get(value)) is not None:
                pairs.append(_pair(key, rest_a.pop(key), key_b, rest_b.pop(key_b)))
    return pairs


def _alone_by(attribute: str, items: Mapping[str, _SideItem]) -> dict[int, str]:
    """Return the ids of the items whose path or name no other item has, by its hash."""
    values: dict[str, int | None] = {key: getattr(item, attribute) for key, item in items.items()}
    counts = Counter(values.values())
    return {value: key for key, value in values.items() if value is not None and counts[value] == 1}


def _pair(id_a: str, a: _SideItem, id_b: str, b: _SideItem) -> _CommonItem:
    """Return an item in common, with the language of B, or of A if only A was given its language."""
    language_of = a if a.lang is not None and (b.lang is None or (a.is_given and not b.is_given)) else b
    return _CommonItem((id_a, id_b), (a, b), language_of.lang)


def _take_references(pairs: Iterable[_CommonItem], sources: tuple[_ComparedSource, _ComparedSource]) -> int:
    """Give each pair whose references differ, or that has only one, its reference. Return how many have two that
    differ."""
    differing = [pair for pair in pairs if pair.items[0].reference != pair.items[1].reference]
    for side, source in enumerate(sources):
        wanted = {pair.items[side].number: pair for pair in differing if side == 1 or pair.items[1].reference is None}
        for number, entry in source.entries(wanted) if wanted else ():
            if entry.reference is not None:
                wanted[number].reference = entry.reference
    return sum(all(item.reference is not None for item in pair.items) for pair in differing)


def _count(pairs: Iterable[_CommonItem], side: int, source: _ComparedSource) -> int:
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
        pair.items[side].counts = count_errors(reference or "", entry.text or "", pair.lang)
    return sum(not pair.items[side].missing for pair in wanted.values())


def _total(pairs: Iterable[_CommonItem], side: int) -> ErrorCounts:
    return sum((pair.counts[side] for pair in pairs), ErrorCounts())


def _difference(pairs: Iterable[_CommonItem]) -> PairedDifference | None:
    """Return the difference of the rates of B and A. Items of one cluster are resampled together."""
    sums: dict[str | int | None, tuple[ErrorCounts, ErrorCounts]] = {}
    for number, pair in enumerate(pairs):
        clusters = [item.cluster for item in pair.items if item.cluster not in (None, NO_VALUE)]
        key = clusters[0] if clusters else NO_VALUE if pair.items[0].cluster else number
        a, b = pair.counts
        if key in sums:
            a, b = sums[key][0] + a, sums[key][1] + b
        sums[key] = a, b
    return paired_difference(
        [(a.errors, a.reference_length) for a, _ in sums.values()],
        [(b.errors, b.reference_length) for _, b in sums.values()],
    )


def _changed(
    pairs: Iterable[_CommonItem], limit: int, sources: tuple[_ComparedSource, _ComparedSource]
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
