"""Add up a corpus one item at a time: errors over reference length, overall, by language, and by keys of the rows.

Sums are kept, and how many items have the same errors and the same length, which the intervals need (bootstrap.py). So
a million items of one sentence take no more memory than some thousands. Rates are never averaged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from voxbatch.languages import DETECTED_LANGUAGE, language_tag
from voxbatch.safe_text import counted
from voxbatch.scoring.counts import RATE_DIGITS, ErrorCounts, count_characters, count_errors, rounded
from voxbatch.scoring.normalize import DEFAULT_RULES, Rules, normalizer_name
from voxbatch.scoring.units import Unit, error_unit, scored_language

_StoredCount = Annotated[int, msgspec.Meta(ge=0, le=10**15)]

NO_VALUE = "(none)"
"""Group of the items that lack the key by which they are grouped, or have `null` there."""


def line_language(line: Mapping[str, Any], language: str | None) -> str | None:
    """Return the language by which a line is scored: the `lang` that was given, else `language`, else the detected one.

    Args:
        line: an output line, a line of a manifest, or any line with `lang`.
        language: language of lines for which none was given.
    """
    lang = line.get("lang")
    tag = language_tag(lang) if isinstance(lang, str) else ""
    return (language or tag) if line.get(DETECTED_LANGUAGE) else (tag or language)


@dataclass(slots=True)
class Tally:
    """The sum over items that are counted in the same unit."""

    counts: ErrorCounts = field(default_factory=ErrorCounts)
    items: int = 0
    missing: int = 0
    """Number of items with a reference but without a transcript."""
    empty_references: int = 0
    """Number of items, with or without a transcript, whose normalised reference has no word."""
    empty_hypotheses: int = 0
    """Number of items whose transcript, normalised, has no word."""
    units: Counter[tuple[int, int]] = field(default_factory=Counter, compare=False, repr=False)
    """Number of items by (errors, reference length)."""
    clusters: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    """(errors, reference length) of each cluster. If there are clusters, they are resampled, and not the items."""
    stored_interval: tuple[float, float] | None = field(default=None, compare=False)
    """The interval of a tally that was read from a file, which has no units."""

    def add(self, counts: ErrorCounts, *, missing: bool, cluster: str | None = None) -> None:
        """Add the counts of one item.

        Args:
            missing: the item has no transcript.
            cluster: the group of items whose errors belong together, for the interval. None: the item alone.
        """
        self.counts += counts
        self.items += not missing
        self.missing += missing
        self.empty_references += not counts.reference_length
        self.empty_hypotheses += not missing and not counts.hypothesis_length
        self._add_unit(cluster, (counts.errors, counts.reference_length))

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        self.counts += other.counts
        self.items += other.items
        self.missing += other.missing
        self.empty_references += other.empty_references
        self.empty_hypotheses += other.empty_hypotheses
        self.units.update(other.units)
        for cluster, unit in other.clusters.items():
            self._add_unit(cluster, unit)

    @property
    def rate(self) -> float | None:
        """Errors / reference length, as it is reported. None without a reference text."""
        return self.counts.reported_rate

    @property
    def match_error_rate(self) -> float | None:
        """Errors / (errors + equal tokens), as it is reported: at most 1. None if both texts are empty."""
        return rounded(self.counts.match_error_rate)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the rate, as it is reported. None with fewer than two items or clusters."""
        units = Counter(self.clusters.values()) if self.clusters else self.units
        if not units:
            return self.stored_interval
        from voxbatch.scoring.bootstrap import rate_interval

        ends = rate_interval(units)
        return ends and (round(ends[0], RATE_DIGITS), round(ends[1], RATE_DIGITS))

    def to_dict(self, lang_unit: Unit) -> dict[str, Any]:
        """Return the sums and the rate as values for JSON: `wer` if `lang_unit` is "word", else `cer`."""
        interval = self.interval
        return {
            "wer" if lang_unit == "word" else "cer": self.rate,
            "interval": None if interval is None else list(interval),
            "match_error_rate": self.match_error_rate,
            "errors": self.counts.errors,
            "substitutions": self.counts.substitutions,
            "insertions": self.counts.insertions,
            "deletions": self.counts.deletions,
            f"reference_{lang_unit}s": self.counts.reference_length,
            "items": self.items,
            "missing": self.missing,
            "empty_references": self.empty_references,
            "empty_hypotheses": self.empty_hypotheses,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], lang_unit: Unit) -> Tally:
        """Rebuild a tally from the result of `to_dict`.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: `to_dict` did not write this value.
        """
        of_errors = ("substitutions", "insertions", "deletions", f"reference_{lang_unit}s")
        of_texts = ("items", "missing", "empty_references", "empty_hypotheses")
        counts = msgspec.convert([stored[name] for name in (*of_errors, *of_texts)], list[_StoredCount])
        interval = msgspec.convert(stored["interval"], tuple[float, float] | None)
        items, missing, empty_references, empty_hypotheses = counts[4:]
        errors = ErrorCounts(*counts[:4])
        return cls(errors, items, missing, empty_references, empty_hypotheses, stored_interval=interval)

    def _add_unit(self, cluster: str | None, unit: tuple[int, int]) -> None:
        if cluster is None:
            self.units[unit] += 1
        else:
            errors, length = self.clusters.get(cluster, (0, 0))
            self.clusters[cluster] = errors + unit[0], length + unit[1]


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Rules by which texts are compared and items are grouped."""

    rules: Rules = DEFAULT_RULES
    by: tuple[str, ...] = ()
    """Keys of the rows by which the score is also grouped, such as ("speaker", "source")."""
    cluster_by: str | None = None
    """Key of the rows whose values are resampled for the intervals. None resamples items."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of the rows that are needed."""
        return self.by if self.cluster_by is None else (*self.by, self.cluster_by)


DEFAULT_OPTIONS = ScoreOptions()
"""The options of `voxbatch run`."""


@dataclass(slots=True)
class CorpusScore:
    """The score of a corpus. Give it every item that has a reference: `add_pair` with a transcript, `add_missing`
    without; or `add`, if the errors are already counted."""

    by_language: dict[str, Tally] = field(default_factory=dict)
    """The sums by language, in the unit of the language."""
    characters_too: dict[str, Tally] = field(default_factory=dict)
    """The sums in characters of the languages that are counted in words and in characters, which is Korean."""
    options: ScoreOptions = DEFAULT_OPTIONS
    groups: dict[str, dict[str, CorpusScore]] = field(default_factory=dict)
    """The score of the items that have a value of a key of `options.by`: key → value → score."""
    normalizers: dict[str, str] = field(default_factory=dict, compare=False)
    """Names of the rules by language, if the score was read from a file."""
    stored_totals: dict[str, Tally] = field(default_factory=dict, compare=False)
    """The totals by unit, if the score was read from a file, with their intervals."""

    def add_pair(
        self, lang: str | None, reference: str, hypothesis: str, row: Mapping[str, Any] | None = None
    ) -> ErrorCounts:
        """Count the errors of an item with a transcript, add them, and return them.

        Args:
            row: the item's line of the manifest or the output, which has the keys of the options.
        """
        counts = count_errors(reference, hypothesis, lang, self.options.rules)
        self.add(lang, counts, row, count_characters(reference, hypothesis, lang, self.options.rules))
        return counts

    def add_missing(self, lang: str | None, reference: str, row: Mapping[str, Any] | None = None) -> ErrorCounts:
        """Add an item with a reference and no transcript: the whole reference counts as deleted. Return its counts."""
        counts = count_errors(reference, "", lang, self.options.rules)
        self.add(lang, counts, row, count_characters(reference, "", lang, self.options.rules), missing=True)
        return counts

    def add(
        self,
        lang: str | None,
        counts: ErrorCounts,
        row: Mapping[str, Any] | None = None,
        characters: ErrorCounts | None = None,
        *,
        missing: bool = False,
    ) -> None:
        """Add an item whose errors are counted.

        Args:
            counts: the errors in the unit of the language.
            row: see `add_pair`.
            characters: the errors in characters of a language that is counted in both units.
            missing: the item has no transcript.
        """
        name, row = scored_language(lang), row or {}
        cluster = None if self.options.cluster_by is None else group_of(row, self.options.cluster_by)
        self.by_language.setdefault(name, Tally()).add(counts, missing=missing, cluster=cluster)
        if characters is not None:
            self.characters_too.setdefault(name, Tally()).add(characters, missing=missing, cluster=cluster)
        for key in self.options.by:
            group = self.groups.setdefault(key, {}).setdefault(
                group_of(row, key), CorpusScore(options=replace(self.options, by=()))
            )
            group.add(lang, counts, row, characters, missing=missing)

    def total(self, lang_unit: Unit) -> Tally:
        """Return the sum over the languages that are counted in words, or in characters. The two cannot be added."""
        if lang_unit in self.stored_totals:
            return self.stored_totals[lang_unit]
        total = Tally()
        for lang, tally in self.by_language.items():
            if error_unit(lang) == lang_unit:
                total.merge(tally)
        for tally in self.characters_too.values() if lang_unit == "character" else ():
            total.merge(tally)
        return total

    @property
    def wer(self) -> float | None:
        """Word error rate over the languages that are counted in words; None without such a reference."""
        return self.total("word").rate

    @property
    def rates(self) -> str:
        """The rates of words and of characters for people, such as "WER 2.91%". Empty without a reference."""
        totals = (("WER", self.total("word").rate), ("CER", self.total("character").rate))
        return ", ".join(f"{name} {rate:.2%}" for name, rate in totals if rate is not None)

    def __repr__(self) -> str:
        """Return the rates and the number of items on one line; `to_dict` has everything."""
        num_items = sum(tally.items for tally in self.by_language.values())
        return f"CorpusScore({', '.join(filter(None, (self.rates, counted(num_items, 'item'))))})"

    def normalizer(self, lang: str) -> str:
        """Return the name of the rules by which the texts of a language were compared, with their version."""
        return self.normalizers.get(lang) or normalizer_name(lang, self.options.rules)

    def values(self, key: str) -> set[str]:
        """Return the values of a key of the options that the items have."""
        if key in self.options.by:
            return set(self.groups.get(key, {}))
        return {cluster for tally in self.by_language.values() for cluster in tally.clusters}

    def to_dict(self) -> dict[str, Any]:
        """Return the score for a summary: `wer` over languages with words, `cer` over others, None without items.

        {"wer": 0.25, "cer": null, "items": 2, "missing": 0,
         "words": {"wer": 0.25, "interval": [0.1, 0.4], "errors": 2, …, "items": 2, "missing": 0},
         "characters": {"cer": null, "errors": 0, …},
         "by_language": {"en": {"wer": 0.25, …, "normalizer": "Whisper's English rules (…)"}},
         "by": {"speaker": {"A": {"wer": 0.2, …}}}}
        """
        words, characters = self.total("word").to_dict("word"), self.total("character").to_dict("character")
        tallies = self.by_language.values()
        score = {
            "wer": words["wer"],
            "cer": characters["cer"],
            "items": sum(tally.items for tally in tallies),
            "missing": sum(tally.missing for tally in tallies),
            "words": words,
            "characters": characters,
            "interval_by": self.options.cluster_by or "item",
            "by_language": {lang: self._language(lang) for lang in sorted(self.by_language)},
        }
        if self.options.by:
            groups = {key: sorted(self.groups.get(key, {}).items()) for key in self.options.by}
            score["by"] = {key: {value: group.to_dict() for value, group in values} for key, values in groups.items()}
        return score

    def _language(self, lang: str) -> dict[str, Any]:
        entry = {**self.by_language[lang].to_dict(error_unit(lang)), "normalizer": self.normalizer(lang)}
        if lang in self.characters_too:
            entry["characters"] = self.characters_too[lang].to_dict("character")
        return entry

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> CorpusScore:
        """Rebuild a score from the result of `to_dict`, without its groups.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: `to_dict` did not write this value.
        """
        languages = stored["by_language"]
        normalizers = {lang: entry["normalizer"] for lang, entry in languages.items() if "normalizer" in entry}
        return cls(
            {lang: Tally.from_dict(entry, error_unit(lang)) for lang, entry in languages.items()},
            {
                lang: Tally.from_dict(entry["characters"], "character")
                for lang, entry in languages.items()
                if "characters" in entry
            },
            normalizers=msgspec.convert(normalizers, dict[str, str]),
            stored_totals={
                "word": Tally.from_dict(stored["words"], "word"),
                "character": Tally.from_dict(stored["characters"], "character"),
            },
        )


def group_of(row: Mapping[str, Any], key: str) -> str:
    """Return the name of the group to which a row belongs by a key: its value as text.

    {"speaker": "A"} → "A"        {"speaker": 7} → "7"        {} → "(none)"
    """
    value = row.get(key)
    if value is None:
        return NO_VALUE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
