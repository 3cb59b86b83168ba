"""Fill the template: the figures as HTML, and the items as one block of compressed JSON for the page's script.

Jinja2 escapes every value. The block of items is deflated and in base64, so that 10,000 items of 20 words fit in
MAX_BYTES, and no text of a manifest is in the page as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from voxbatch.config import RunOptions
from voxbatch.failure_kinds import FailureKind
from voxbatch.formats import DEFAULT_LIMITS
from voxbatch.report import charts
from voxbatch.report.figures import CONFIDENCE_CLASSES, Figures, PartSpeed, work_over_time
from voxbatch.report.items import encode_texts, row_of, table_columns
from voxbatch.report.selection import Selection
from voxbatch.safe_text import counted, escape_controls
from voxbatch.scoring.units import RATES
from voxbatch.settings import settings_of
from voxbatch.storage.address import StoreOptions
from voxbatch.work import work_of

if TYPE_CHECKING:
    from voxbatch.report.errors import Errors

MAX_BYTES = 2_000_000
MAX_RAW_BYTES = 16 << 20
"""Most bytes of texts before they are compressed, so that a page of long recordings stays fast."""


@dataclass(frozen=True, slots=True)
class RunTitle:
    """The run that a report is about."""

    name: str
    """Last part of the place of OUT."""
    folder: str | None
    """Absolute local folder in which the page lies. None if it is in a bucket."""
    run: str
    items: int
    language: str | None
    """Language of items that name none."""
    is_finished: bool


class Report:
    """The report of a run, filled item by item.

    Args:
        keys: keys of the manifest's lines by which the errors are grouped, besides the language.
    """

    def __init__(self, title: RunTitle, keys: Sequence[str] = ()):
        self._title = title
        self._figures, self._selection = Figures(keys, title.language), Selection()

    def add_transcript(self, index: int, line: Mapping[str, Any], stored: bytes) -> None:
        """Add an item with a transcript."""
        counts = None
        if line.get("text") is not None:
            from voxbatch.scoring.counts import ErrorCounts

            counts = ErrorCounts.of_line(line)
            self._figures.add_errors(line, counts, missing=False)
        row = row_of(index, line, self._figures.language_of(line), counts, failure=None)
        self._figures.add_transcript(row)
        self._selection.add(row, stored)

    def add_failure(self, index: int, line: Mapping[str, Any], kind: FailureKind) -> None:
        """Add an item that failed."""
        lang, counts = self._figures.language_of(line), None
        self._figures.failures[kind] += 1
        if line.get("text") is not None:
            from voxbatch.scoring.counts import count_errors

            counts = count_errors(line["text"], "", lang)
            self._figures.add_errors(line, counts, missing=True)
        self._selection.add(row_of(index, line, lang, counts, f"{line['error']}: {line['message']}"), b"")

    def render(self, summary: Mapping[str, Any], parts: Sequence[PartSpeed]) -> bytes:
        """Return the page.

        Args:
            summary: the content of summary.json, of the items so far if the run is not finished.
            parts: the work in all parts, in the order of their names.
        """
        figures, rows = self._figures, self._selection.rows()
        errors = figures.errors
        style, script = asset("page.css"), asset("page.js")
        folder = _common_folder([row.id for row in rows])
        columns = table_columns(rows)
        columns["id"] = [row_id[len(folder) :] for row_id in columns["id"]]
        head = {"columns": columns, "folder": self._title.folder}
        places = {row.audio.partition(":")[0] for row in rows if "://" in row.audio}
        last_commit = max((part.committed_at for part in parts), default=0.0)
        page = {
            "title": self._title,
            "summary": summary,
            "figures": figures,
            "style": style,
            "script": script,
            "policy": _policy(style, script, places),
            "shown": len(rows),
            "total": self._selection.total,
            "id_folder": escape_controls(folder),
            "finished_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(last_commit)) if last_commit else "",
            "command": command_of(summary["config"]),
            "options": list(_options(summary["config"])),
            "confusions": list(errors.confusions.tables()) if errors else [],
            "rates": errors.totals() if errors else [],
            "groups": list(errors.groups()) if errors else [],
            "failures": figures.failures.most_common(),
            "flags": sorted(figures.flags.items(), key=lambda flag: (-flag[1], flag[0])),
            "charts": list(_charts(figures, parts)),
        }
        template = environment().get_template("page.html.jinja")
        empty = template.render(page, items="", with_text=0).encode("utf-8", "replace")
        room = (MAX_BYTES - len(empty) - 160) * 3 // 4
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


def _common_folder(ids: Sequence[str]) -> str:
    """Return the folder that all ids begin with, with its slash: ["a/b/1", "a/b/2"] → "a/b/". "" without one."""
    if len(ids) < 2:
        return ""
    folders = zip(min(ids).split("/")[:-1], max(ids).split("/")[:-1], strict=False)
    return "".join(f"{name}/" for name, _ in takewhile(lambda pair: pair[0] == pair[1], folders))


_TAKEN: Mapping[str, Any] = {**asdict(DEFAULT_LIMITS), "beside": False}
"""Defaults of a first run for the settings that a later run takes from it."""


def command_of(config: Mapping[str, Any]) -> str:
    """Return the command line of a run: its settings that differ from their defaults, wherever they came from. Return
    "" for a run that asks or speaks, whose questions or texts are more than options.

        {"source": "my calls", "out": "out", "formats": ["srt", "txt"], …}  →
        "voxbatch run 'my calls' -o out --formats srt,txt"
    """
    source = config.get("source")
    if not source or not work_of(config).command_tells_all:
        return ""
    words = ["voxbatch", "run", *([source] if isinstance(source, str) else source), "-o", config["out"]]
    for declared in (*settings_of(RunOptions).values(), *settings_of(StoreOptions).values()):
        default = _TAKEN.get(declared.name, declared.default)
        value = config.get(declared.name, default)
        if value in (default, list(default) if isinstance(default, tuple) else None, None):
            continue
        if declared.name in ("formats", "channel_names"):
            words += [declared.flag, ",".join(value)]
        elif declared.name == "hotwords":
            words += [declared.flag, "FILE"]
        elif isinstance(value, dict):
            words += [word for name, text in value.items() for word in ("--engine-option", f"{name}={text}")]
        elif isinstance(value, list):
            words += [word for text in value for word in (declared.flag, text)]
        elif declared.name != "report":  # its default depends on OUT, and here is a report
            words += [declared.flag] if value is True else [declared.flag, str(value)]
    return escape_controls(shlex.join(words))


def _options(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the settings of a run that differ from their defaults, and its source, as options and values."""
    defaults = {**{field.name: field.default for field in fields(RunOptions)}, **_TAKEN}
    for name, value in config.items():
        is_default = value == defaults.get(name, MISSING) or value in (None, "", [], {}, False)
        if name not in ("out", "report") and not (is_default or (name == "shards" and value == 1)):
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
            yield name.replace("_", " "), escape_controls(shown[:500])


@dataclass(frozen=True, slots=True)
class _Chart:
    """A chart with its caption, and its figures as a sentence for screen readers."""

    title: str
    caption: str
    svg: str
    figures: str


def _charts(figures: Figures, parts: Sequence[PartSpeed]) -> Iterable[_Chart]:
    """Yield the charts. Those of the rates and confidences of one item would say no more than the headline."""
    if figures.errors and figures.errors.rates.total() > 1:
        yield from _rate_charts(figures.errors)
    if figures.with_confidence > 1:
        classes_shown = range(min(figures.confidences), CONFIDENCE_CLASSES)
        counts = [figures.confidences.get(at, 0) for at in classes_shown]
        labels = [f"{at / CONFIDENCE_CLASSES:g}" for at in classes_shown]
        texts = [f"{at / CONFIDENCE_CLASSES:.2f} to {(at + 1) / CONFIDENCE_CLASSES:.2f}: {count:,} items"
                 for at, count in zip(classes_shown, counts, strict=True)]  # fmt: skip
        svg = charts.bars(labels, counts, texts, every=-(-len(counts) // 6))
        yield _Chart("Confidence of items", "Number of items by the mean confidence of their words.", svg,
                     "; ".join(text for text, count in zip(texts, counts, strict=True) if count))  # fmt: skip
    if points := work_over_time(parts):
        total, audio_s = points[-1]
        (time_unit, scale), (audio_unit, audio_scale) = _time_unit(total), _time_unit(audio_s)
        scaled = [(seconds / scale, done_s / audio_scale) for seconds, done_s in points]
        svg = charts.area(scaled, time_unit, audio_unit)
        yield _Chart("Work over time", "Audio that was done, by the time in which work was committed.", svg,
                     f"{_duration(audio_s)} of audio in {_duration(total)}")  # fmt: skip


def _rate_charts(errors: Errors) -> Iterable[_Chart]:
    """Yield the charts of the error rates, for items with references."""
    from voxbatch.report.errors import RATE_CLASSES, RATE_STEP, duration_class

    for name, unit in RATES.items():
        classes = sorted((at, tally) for (at, tally_unit), tally in errors.by_duration.items() if tally_unit == unit)
        rates = [(at, tally, tally.counts.rate) for at, tally in classes if tally.counts.rate is not None]
        if rates:
            labels = [duration_class(at) for at, *_ in rates]
            texts = [f"{label}: {name} {rate:.2%}, {tally.items:,} items"
                     for label, (_, tally, rate) in zip(labels, rates, strict=True)]  # fmt: skip
            svg = charts.bars(labels, [rate for *_, rate in rates], texts, "%", every=-(-len(rates) // 6))
            yield _Chart(f"{name} by duration", "Error rate of the items by the duration of their audio.", svg,
                         "; ".join(texts))  # fmt: skip
    if errors.rates:
        counts = [errors.rates.get(at, 0) for at in range(RATE_CLASSES + 2)]
        labels = ["0", *(f"{at * RATE_STEP:.0%}" for at in range(1, RATE_CLASSES + 1)), ">100%"]
        rate_names = ["no errors", *(f"up to {at * RATE_STEP:.0%}" for at in range(1, RATE_CLASSES + 1)), "above 100%"]
        texts = [f"{rate_name}: {count:,} items" for rate_name, count in zip(rate_names, counts, strict=True)]
        svg = charts.bars(labels, counts, texts, every=5)
        yield _Chart("Error rates of items", "Number of items by error rate; the first bar is without errors.",
                     svg, "; ".join(text for text, count in zip(texts, counts, strict=True) if count))  # fmt: skip


_TIME_UNITS = (("h", 3600, 7200), ("min", 60, 120), ("s", 1, -1))
"""Units of the axis of time: (name, seconds, least seconds on the axis)."""


def _time_unit(seconds: float) -> tuple[str, int]:
    return next((name, size) for name, size, least in _TIME_UNITS if seconds >= least)


def _duration(seconds: float) -> str:
    unit, scale = _time_unit(seconds)
    return f"{seconds / scale:.3g} {unit}"


def _policy(style: str, script: str, schemes: Iterable[str]) -> str:
    """Return the page's content security policy: its own style and script, recordings, and nothing else."""
    media = ["'self'", "file:", "blob:", *sorted({"https:", "http:"} & {f"{scheme}:" for scheme in schemes})]
    return (
        f"default-src 'none'; style-src {inline_source(style)}; script-src {inline_source(script)}; "
        f"media-src {' '.join(media)}; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def inline_source(text: str) -> str:
    """Return the source expression that permits exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files("voxbatch.report") / name).read_text(encoding="utf-8")


@cache
def environment() -> Any:
    """Return the environment of Jinja2 that renders the templates of this package."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"percent": "{:.2%}".format, "count": "{:,}".format, "plain": escape_controls}
    templates.filters |= {"duration": _duration, "counted": counted}
    return templates
