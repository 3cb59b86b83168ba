"""Fill the template: the figures as HTML, and the items as one block of compressed JSON for the page's script.

Jinja2 escapes every value. The block of items is deflated and in base64, so that 10,000 items of 20 words fit in
MAX_BYTES, and no text of a manifest is in the page as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from voxbatch.report import charts
from voxbatch.report.figures import (
    CONFIDENCE_CLASSES,
    DURATIONS_S,
    RATE_CLASSES,
    RATE_STEP,
    Figures,
    Group,
    PartSpeed,
)
from voxbatch.report.items import encode_texts, row_of, table_columns
from voxbatch.report.selection import Selection
from voxbatch.safe_text import escape_controls
from voxbatch.scoring import ErrorCounts, count_errors
from voxbatch.scoring.bootstrap import rate_interval

MAX_BYTES = 2_000_000
"""Most bytes of the page."""
MAX_RAW_BYTES = 16 << 20
"""Most bytes of texts before they are compressed, so that a page of long recordings stays fast."""
MAX_GROUP_ROWS = 50
"""Most groups of a key that are listed, the largest first."""
MAX_REASONS = 20
"""Most reasons of failures that are listed."""


@dataclass(frozen=True, slots=True)
class RunTitle:
    """The run that a report is about."""

    name: str
    """Last part of the place of OUT."""
    folder: str | None
    """Absolute local folder in which the page lies. None if it is in a bucket."""
    run: str
    """Key of the run."""
    items: int
    """Number of items in the manifest."""
    language: str | None
    """Language of items that name none."""
    is_finished: bool


class Report:
    """The report of a run, filled item by item.

    Args:
        title: the run.
        keys: keys of the manifest's lines by which the errors are grouped, besides the language.
    """

    def __init__(self, title: RunTitle, keys: Sequence[str] = ()):
        self._title, self._keys = title, tuple(keys)
        self._figures, self._selection = Figures(keys, title.language), Selection()

    def add_transcript(self, index: int, line: Mapping[str, Any], stored: bytes) -> None:
        """Add an item with a transcript.

        Args:
            index: Item.index.
            line: its line of transcripts.jsonl.
            stored: the same line as it is stored.
        """
        lang = self._figures.language_of(line)
        counts = None
        if line.get("text") is not None:
            counts = ErrorCounts(line["substitutions"], line["insertions"], line["deletions"], line["reference_length"])
        row = row_of(index, line, lang, counts, failure=None)
        self._figures.add_transcript(line, counts, row)
        self._selection.add(row, stored)

    def add_failure(self, index: int, line: Mapping[str, Any], reason: str) -> None:
        """Add an item that failed, with the reason as `failure_reasons` names it."""
        lang, text = self._figures.language_of(line), line.get("text")
        counts = None if text is None else count_errors(text, "", lang)
        self._figures.add_failure(line, counts, reason)
        self._selection.add(row_of(index, line, lang, counts, f"{line['error']}: {line['message']}"), b"")

    def add_part(self, speed: PartSpeed) -> None:
        """Add the work of a part, in the order of the parts."""
        self._figures.parts.append(speed)

    def render(self, summary: Mapping[str, Any]) -> bytes:
        """Return the page.

        Args:
            summary: the content of summary.json, of the items so far if the run is not finished.
        """
        figures, rows = self._figures, self._selection.rows()
        style, script = _asset("page.css"), _asset("page.js")
        head = {
            "columns": table_columns(rows),
            "folder": self._title.folder,
        }
        places = {row.audio.partition(":")[0] for row in rows if "://" in row.audio}
        page = {
            "title": self._title,
            "summary": summary,
            "figures": figures,
            "style": style,
            "script": script,
            "policy": _policy(style, script, places),
            "shown": len(rows),
            "total": self._selection.total,
            "rates": [_Rate.of(name, figures) for name in ("word", "character")],
            "has_rates": bool(figures.by_language),
            "groups": [("language", _group_rows(figures.by_language))]
            + [(key, _group_rows(groups)) for key, groups in figures.by_key.items()],
            "failures": figures.failures.most_common(MAX_REASONS),
            "flags": sorted(figures.flags.items(), key=lambda each: (-each[1], each[0])),
            "charts": list(_charts(figures)),
        }
        template = _environment().get_template("page.html.jinja")
        empty = template.render(page, items="", with_text=0).encode("utf-8", "replace")
        room = (MAX_BYTES - len(empty) - 64) * 3 // 4
        block, with_text = _fit(head, {row.index: at for at, row in enumerate(rows)}, self._texts(rows), room)
        items = base64.b64encode(block).decode()
        text: str = template.render(page, items=items, with_text=with_text)
        return text.encode("utf-8", "replace")

    def _texts(self, rows: Iterable[Any]) -> list[tuple[int, str]]:
        """Return (index, JSON) of the texts of the items that are shown, the most telling first."""
        shown, texts, size = {row.index for row in rows}, list[tuple[int, str]](), 0
        for index, line in self._selection.lines():
            if index in shown:
                text = encode_texts(line, self._figures.language_of(line))
                size += len(text)
                texts.append((index, text))
                if size > MAX_RAW_BYTES:
                    break
        return texts


def _fit(
    head: Mapping[str, Any], places: Mapping[int, int], texts: Sequence[tuple[int, str]], room: int
) -> tuple[bytes, int]:
    """Return the compressed items with as many of the texts as have room, and the number of those texts."""
    count = len(texts)
    while True:
        column = ["0"] * len(places)
        for index, text in texts[:count]:
            column[places[index]] = text
        block = zlib.compress(f'{json.dumps(head)[:-1]},"texts":[{",".join(column)}]}}'.encode(), 9)
        if len(block) <= room or not count:
            return block, count
        count = min(count - 1, int(count * room / len(block) * 0.97))


@dataclass(frozen=True, slots=True)
class _Rate:
    """A headline error rate."""

    name: str
    unit: str
    group: Group
    value: float | None
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, unit: str, figures: Figures) -> _Rate:
        """Return the rate over the items that are counted in a unit."""
        group = figures.total(unit)
        return cls("WER" if unit == "word" else "CER", unit, group, group.counts.rate, rate_interval(group.pairs))


@dataclass(frozen=True, slots=True)
class _GroupRow:
    """A row of a table of groups."""

    name: str
    unit: str
    group: Group
    rate: float | None
    interval: tuple[float, float] | None
    share: float
    """Length of the bar, of the longest one."""


def _group_rows(groups: Mapping[tuple[str, str], Group]) -> list[_GroupRow]:
    """Return the largest groups, by their name."""
    largest = sorted(groups.items(), key=lambda each: (-each[1].counts.reference_length, each[0]))[:MAX_GROUP_ROWS]
    longest = max((group.counts.rate or 0.0 for _, group in largest), default=0.0)
    return [
        _GroupRow(
            escape_controls(name), unit, group, group.counts.rate, rate_interval(group.pairs),
            (group.counts.rate or 0.0) / longest if longest else 0.0,
        )
        for (name, unit), group in sorted(largest, key=lambda each: each[0])
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Chart:
    """A chart with its caption, and its figures as a sentence for screen readers."""

    title: str
    caption: str
    svg: str
    figures: str


def _charts(figures: Figures) -> Iterable[_Chart]:
    """Yield the charts for which there are figures."""
    for unit, name in (("word", "WER"), ("character", "CER")):
        classes = [(at, figures.by_duration[at, unit]) for at in range(len(DURATIONS_S))
                   if (at, unit) in figures.by_duration]  # fmt: skip
        rates = [(at, group, group.counts.rate) for at, group in classes if group.counts.rate is not None]
        if rates:
            labels = [_duration_class(at) for at, *_ in rates]
            texts = [f"{label}: {name} {rate:.2%}, {group.items:,} items"
                     for label, (_, group, rate) in zip(labels, rates, strict=True)]  # fmt: skip
            svg = charts.bars(labels, [rate for *_, rate in rates], texts, lambda value: f"{value:.1%}")
            yield _Chart(f"{name} by duration", "Error rate of the items by the duration of their audio.", svg,
                         "; ".join(texts))  # fmt: skip
    if figures.rates:
        counts = [figures.rates.get(at, 0) for at in range(RATE_CLASSES + 2)]
        labels = ["0", *(f"{at * RATE_STEP:.0%}" for at in range(1, RATE_CLASSES + 1)), ">100%"]
        texts = [f"{_rate_class(at)}: {count:,} items" for at, count in enumerate(counts)]
        svg = charts.bars(labels, counts, texts, lambda value: f"{value:,.0f}", every=5)
        yield _Chart("Error rates of items", "Number of items by error rate; the first bar is without errors.",
                     svg, "; ".join(text for text, count in zip(texts, counts, strict=True) if count))  # fmt: skip
    if figures.with_confidence:
        counts = [figures.confidences.get(at, 0) for at in range(CONFIDENCE_CLASSES)]
        labels = [f"{at / CONFIDENCE_CLASSES:g}" for at in range(CONFIDENCE_CLASSES)]
        texts = [f"{at / CONFIDENCE_CLASSES:.2f} to {(at + 1) / CONFIDENCE_CLASSES:.2f}: {count:,} items"
                 for at, count in enumerate(counts)]  # fmt: skip
        svg = charts.bars(labels, counts, texts, lambda value: f"{value:,.0f}", every=4)
        yield _Chart("Confidence of items", "Number of items by the mean confidence of their words.", svg,
                     "; ".join(text for text, count in zip(texts, counts, strict=True) if count))  # fmt: skip
    if points := figures.speed_over_time():
        total, top = points[-1][0], max(speed for _, speed in points)
        unit, scale = next((name, size) for name, size, least in _TIME_UNITS if total >= least)
        scaled = [(seconds / scale, speed) for seconds, speed in points]
        svg = charts.area(scaled, lambda time: f"{time:g} {unit}", lambda speed: f"{speed:,.3g}×")
        yield _Chart("Speed over time", "Seconds of audio per second, over the time in which work was committed.", svg,
                     f"at most {top:,.3g} times real time, over {total / scale:.3g} {unit}")  # fmt: skip


_TIME_UNITS = (("h", 3600, 7200), ("min", 60, 120), ("s", 1, 0))
"""Units of the axis of time: (name, seconds, least seconds on the axis)."""


def _duration_class(at: int) -> str:
    """Return the name of a class of durations: "2–5 s"."""
    if at + 1 == len(DURATIONS_S):
        return f"> {DURATIONS_S[at] / 3600:g} h"
    least, most = DURATIONS_S[at], DURATIONS_S[at + 1]
    return f"{least:g}–{most:g} s" if most <= 60 else f"{least / 60:g}–{most / 60:g} min"


def _rate_class(at: int) -> str:
    if at == 0:
        return "no errors"
    return "above 100%" if at > RATE_CLASSES else f"up to {at * RATE_STEP:.0%}"


def _policy(style: str, script: str, schemes: Iterable[str]) -> str:
    """Return the page's content security policy: its own style and script, recordings, and nothing else."""
    media = ["'self'", "file:", *sorted({"https:", "http:"} & {f"{scheme}:" for scheme in schemes})]
    return (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        f"media-src {' '.join(media)}; base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    """Return the source expression that permits exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (resources.files("voxbatch.report") / name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": "{:.2%}".format, "count": "{:,}".format, "plain": escape_controls}
    return environment
