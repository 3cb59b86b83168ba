"""The outputs of a run that detects languages: languages.jsonl, and the sums for each language in summary.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.lines import DoneLine
from voxbatch.output.products import Products
from voxbatch.output.stored_json import Number
from voxbatch.output.summary import Summary
from voxbatch.scoring.units import UNDETERMINED

BY_LANGUAGE = "languages"
"""Key of summary.json for the sums for each language."""
SHOWN_LANGUAGES = 10


class LanguageLine(DoneLine, kw_only=True):
    """The line of a recording whose language was looked for."""

    language: str | None
    language_probability: Number | None
    recording_duration: Number | None


@dataclass(slots=True)
class LanguageSum:
    """The recordings in one language."""

    recordings: int = 0
    hours: float = 0.0
    """Hours of the whole recordings, as far as their lengths are known."""
    of_unknown_length: int = 0
    """Number of recordings whose length is not known."""


class LanguageSums:
    """The recordings by their language; see products.OwnSums."""

    def __init__(self) -> None:
        self._sums: dict[str, LanguageSum] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a recording."""
        total = self._sums.setdefault(line["language"] or UNDETERMINED, LanguageSum())
        duration = line["recording_duration"]
        total.recordings += 1
        total.hours += (duration or 0.0) / 3600
        total.of_unknown_length += duration is None

    def to_dict(self) -> dict[str, Any]:
        """Return the sums of each language, the one with the most recordings first."""
        ranked = sorted(self._sums.items(), key=lambda pair: (-pair[1].recordings, pair[0]))
        return {BY_LANGUAGE: {tag: {**asdict(total), "hours": round(total.hours, 4)} for tag, total in ranked}}


class DetectedLanguages(Products):
    """The languages of recordings, in the place of transcripts."""

    line = LanguageLine
    counts_missing = False

    def text_of(self, line: Mapping[str, Any]) -> str:
        """See Products."""
        return f"{line['language']} ({line['language_probability']:.2f})" if line["language"] else ""

    def counts(self, line: Mapping[str, Any]) -> None:
        """See Products. A row may have the text, and the counts, of another program."""

    def sums(self) -> LanguageSums:
        """See Products."""
        return LanguageSums()

    def outcome_lines(self, summary: Summary) -> Iterator[str]:
        """See Products."""
        sums = summary.of_kind.get(BY_LANGUAGE, {})
        shown = [
            f"{tag} {total['recordings']:,} ({total['hours']:,.2f} h)"
            for tag, total in islice(sums.items(), SHOWN_LANGUAGES)
        ]
        more = [f"{len(sums) - len(shown):,} more"] if len(sums) > len(shown) else []
        yield f"languages: {', '.join([*shown, *more])}"

    def item_files(self, files: ItemFiles, config: Mapping[str, Any]) -> ItemFiles:
        """See Products."""
        return replace(files, report=False)

    def check_report(self, place: str, identity: Mapping[str, Any]) -> None:
        """See Products."""
        table = f"voxbatch report {place} --export languages.csv"
        reason = f"{place} has the languages of recordings, and no texts"
        raise ConfigError(f"{reason}; for a table of all recordings: {table}")


PRODUCTS = DetectedLanguages()
