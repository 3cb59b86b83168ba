"""The command `compare`: two runs side by side, and which of them is better."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from voxbatch.cli.commands import WIDTH
from voxbatch.cli.options import PathOrAddress, comma, language, store_options
from voxbatch.cli.rules_options import rules_options
from voxbatch.safe_text import counted, escape_controls
from voxbatch.scoring.units import RATES
from voxbatch.storage import Stores

if TYPE_CHECKING:
    from voxbatch.analysis.compare import ChangedItem, Comparison
    from voxbatch.scoring.bootstrap import PairedDifference
    from voxbatch.scoring.counts import ErrorCounts
    from voxbatch.scoring.normalize import Rules

MAX_BLOCKS = 6
"""Most groups of lines for the texts of one item."""
EXIT_WORSE = 1
"""Exit code if B is worse by more than --fail-if-worse allows."""


def _points(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter(f"{value} is no number of points, such as 0.2; give 0 or more")
    return value


@click.command(short_help="Compare two runs: which is better, and where.")
@click.argument("run_a", type=PathOrAddress(exists=True))
@click.argument("run_b", type=PathOrAddress(exists=True))
@click.option(
    "--ref",
    type=PathOrAddress(exists=True),
    metavar="REF",
    help="References, a file or a folder as `score` takes them, in place of those of the runs.",
)
@click.option(
    "--fail-if-worse",
    type=float,
    callback=_points,
    metavar="POINTS",
    help="Exit with code 1 if the WER or CER of RUN_B is higher by more than this, e.g. 0.2.",
)
@click.option(
    "--cluster",
    metavar="KEY",
    help="For the intervals, resample items with the same value of this key together, e.g. speaker.",
)
@click.option(
    "--by",
    metavar="KEYS",
    default="",
    callback=comma,
    help="Also score each value of these keys of the manifest, e.g. speaker,source.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Show N changed items."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option(
    "--html", "page", metavar="FILE", help="Also write a page with both sides, word by word: a file or an address."
)
@click.option("--language", metavar="LANG", callback=language, help="Language of items that name none, e.g. en.")
@rules_options
@store_options
def compare(
    run_a: str,
    run_b: str,
    ref: str | None,
    fail_if_worse: float | None,
    cluster: str | None,
    by: tuple[str, ...],
    limit: int,
    as_json: bool,
    page: str | None,
    language: str | None,
    rules: Rules,
    stores: Stores,
) -> None:
    """Compare RUN_B with RUN_A on the items that both have. Each is the OUT of a run, or a file as `score` takes it.

    Items match by id, else by audio_filepath. An item without a transcript counts as deletions. Both are scored by the
    same rules against the same references. A difference of less than 0 means that RUN_B is better.
    """
    from voxbatch.analysis.compare import compare_places

    comparison = compare_places(run_a, run_b, language, cluster, limit, stores, rules, tuple(dict.fromkeys(by)), ref)
    for text in _warnings(comparison, ref):
        click.echo(f"Warning: {text}", err=True)
    if page is not None:
        _write_page(page, comparison, cluster, rules, stores)
    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
    else:
        for line in _report(comparison, cluster, rules):
            click.echo(line)
    if fail_if_worse is not None and comparison.is_worse_by_more_than(fail_if_worse):
        click.echo(f"RUN_B is worse by more than --fail-if-worse {fail_if_worse:g} points", err=True)
        sys.exit(EXIT_WORSE)


def _warnings(comparison: Comparison, ref: str | None) -> Iterator[str]:
    if ref is not None and (missing := comparison.without_reference):
        are = "is" if missing == 1 else "are"
        yield f"no reference in --ref for {counted(missing, 'item')} in common, which {are} not scored"
    if comparison.other_references:
        count = counted(comparison.other_references, "item")
        yield f"references that differ between A and B: {count}; both are scored against the reference of B"
    if comparison.other_languages:
        count = counted(comparison.other_languages, "item")
        yield f"languages that differ between A and B: {count}; both are scored by the rules of one language"
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        if side.missing:
            yield f"no transcript in {name}: {counted(side.missing, 'item')} in common; their words count as deleted"


def _write_page(place: str, comparison: Comparison, cluster: str | None, rules: Rules, stores: Stores) -> None:
    from voxbatch.analysis import open_target
    from voxbatch.cli.side_by_side import word_columns
    from voxbatch.report.comparison import ComparedItem, render_comparison

    differences = (("WER", comparison.words), ("CER", comparison.characters))
    lines = [line for name, value in differences if value is not None for line in _verdict(name, value, cluster)]
    verdict = next(
        (line[2:] for line in lines if line.startswith("→ ")), "more items are needed to say which is better"
    )
    items = [
        ComparedItem(
            escape_controls(item.id),
            _errors(item),
            *word_columns(item.reference, {"A": item.text_a, "B": item.text_b}, item.lang, rules),
        )
        for item in comparison.changed
    ]
    facts = [*(line for line in lines if not line.startswith("→ ")), _common(comparison)]
    facts += [line.strip() for line in _options(comparison) if line]
    content = render_comparison(f"{verdict[0].upper()}{verdict[1:]}", facts, list(_rows(comparison)), items)
    target, name = open_target(place, stores, alternative="choose another file with --html")
    target.write(name, [content])


def _errors(item: ChangedItem) -> str:
    return f"{item.errors_a:,} → {item.errors_b:,} errors of {item.reference_length:,}"


def _common(comparison: Comparison) -> str:
    common = f"{counted(comparison.common, 'item')} in common"
    common += f", {comparison.only_a:,} only in A, {comparison.only_b:,} only in B"
    return f"{common}; {comparison.without_reference:,} without a reference" if comparison.without_reference else common


def _report(comparison: Comparison, cluster: str | None, rules: Rules) -> Iterator[str]:
    yield from _table(comparison)
    yield from _options(comparison)
    yield ""
    yield _common(comparison)
    for lang, name in comparison.normalizers.items():
        yield from textwrap.wrap(escape_controls(f"rules for {lang}: {name}"), WIDTH, subsequent_indent="  ")
    for name, difference in (("WER", comparison.words), ("CER", comparison.characters)):
        if difference is not None:
            yield ""
            yield from _verdict(name, difference, cluster)
            if name == "WER":
                yield from _other_rules(comparison)
    yield from _groups(comparison, cluster)
    if comparison.changed:
        yield ""
        yield f"Items that changed most, with errors in brackets ({len(comparison.changed)}):"
        for item in comparison.changed:
            yield ""
            yield from _changed(item, rules)


def _table(comparison: Comparison) -> Iterator[str]:
    from voxbatch.cli.columns import end_of, line_width

    rows = [("", ["A", "B"]), *_rows(comparison)]
    widest = 2 + max(len(value) for _, values in rows for value in values)
    column = min(max(widest, (WIDTH - 15) // 2), (line_width() - 15) // 2)
    for label, values in rows:
        cells = [end_of(value, column - 2) for value in values]
        yield f"{label:<15}{cells[0]:<{column}}{cells[1]}".rstrip()


def _groups(comparison: Comparison, cluster: str | None) -> Iterator[str]:
    """Yield a table of the differences by group, for each unit in which errors are counted."""
    from voxbatch.cli.columns import line_width, table
    from voxbatch.cli.outcome import cluster_note

    for name, unit in RATES.items():
        rows = [["", f"{name} A", f"{name} B", "B − A", "95 % interval", f"{unit}s", "items", "better"]]
        for group in comparison.groups:
            if group.unit == unit:
                rates = [f"{counts.rate:.2%}" for counts in (group.a, group.b)]
                difference, ends = group.difference.difference, group.difference.interval
                better = "" if not group.difference.is_certain else "B" if difference < 0 else "A"
                shown = " to ".join(f"{100 * end:+.2f}" for end in ends or ())
                numbers = f"{group.b.reference_length:,}", f"{group.items:,}"
                label = escape_controls(f"{group.key} {group.value}")
                rows.append([label, *rates, f"{100 * difference:+.2f}", shown, *numbers, better])
        if len(rows) > 1:
            yield ""
            yield from (line.rstrip() for line in table(rows, line_width()))
    if comparison.groups and cluster is not None:
        yield cluster_note(cluster)


def _options(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each option that differs, except the engine and model, which have a row."""
    if comparison.options:
        yield ""
        yield "options that differ (A → B):"
    for name, values in comparison.options.items():
        a, b = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
        yield from textwrap.wrap(escape_controls(f"  {name}: {a} → {b}"), WIDTH, subsequent_indent="    ")


def _rows(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield the label and the values of A and B of each row that has a value."""
    from voxbatch.display import format_duration

    def percent(counts: ErrorCounts) -> str:
        return "" if counts.rate is None else f"{counts.rate:.2%}"

    def errors(counts: ErrorCounts) -> str:
        return f"{counts.errors:,} of {counts.reference_length:,}" if counts.reference_length else ""

    def kinds(counts: ErrorCounts) -> str:
        return f"{counts.substitutions:,} / {counts.deletions:,} / {counts.insertions:,}"

    sides = comparison.a, comparison.b
    rows = [
        ("run", [side.place for side in sides]),
        ("model", [side.model or "" for side in sides]),
        ("engine", [side.engine or "" for side in sides]),
        ("items", [f"{side.items:,}" for side in sides]),
    ]
    if comparison.words:
        rows += [
            ("WER", [percent(side.words) for side in sides]),
            ("word errors", [errors(side.words) for side in sides]),
            ("  sub/del/ins", [kinds(side.words) for side in sides]),
        ]
    if comparison.characters:
        rows += [
            ("CER", [percent(side.characters) for side in sides]),
            ("char. errors", [errors(side.characters) for side in sides]),
            ("  sub/del/ins", [kinds(side.characters) for side in sides]),
        ]
    rows += [
        ("speed (RTFx)", ["" if side.rtfx is None else f"{side.rtfx:,.1f}" for side in sides]),
        ("wall time", ["" if side.wall_s is None else format_duration(side.wall_s) for side in sides]),
        ("cost", ["" if side.usd is None else f"${side.usd:,.2f}" for side in sides]),
    ]
    for label, values in rows:
        if any(values):
            yield label, [escape_controls(value) for value in values]


def _verdict(name: str, difference: PairedDifference, cluster: str | None) -> Iterator[str]:
    """Yield the difference in words, and whether other recordings would show it, too."""
    line = f"{name} of B − {name} of A: {100 * difference.difference:+.2f} points"
    if difference.interval is None or difference.probability_b_better is None:
        yield f"{line}; more items are needed for an interval"
        return
    low, high = difference.interval
    yield f"{line}, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    probability = difference.probability_b_better
    shown = "> 99.9 %" if probability > 0.999 else "< 0.1 %" if probability < 0.001 else f"{probability:.1%}"
    from voxbatch.scoring.bootstrap import FEW_UNITS, RESAMPLES

    units = "items" if cluster is None else escape_controls(f"groups of {cluster}")
    if difference.has_sign:
        verdict = f"{'B' if high < 0 else 'A'} is better"
        if not difference.is_certain:
            verdict = f"no certain difference: {difference.units} {units} are too few, compare {FEW_UNITS} or more"
    elif low == high == 0:
        verdict = "no difference"
    else:
        verdict = "no certain difference: the interval includes 0, so it may be chance"
    yield f"probability that B is better: {shown} ({RESAMPLES:,} resamples of {units})"
    yield f"→ {verdict}"


def _other_rules(comparison: Comparison) -> Iterator[str]:
    """Yield the difference by other normalisers, and whether they turn its sign."""
    others = [f"{name} {100 * other.difference:+.2f}" for name, other in comparison.other_rules.items()]
    if others:
        yield f"by other --normalizer rules: {', '.join(others)} points"
    if comparison.other_signs:
        names = " and ".join(comparison.other_signs)
        yield f"→ the sign depends on the rules: by {names}, the other side has fewer errors"


def _changed(item: ChangedItem, rules: Rules) -> Iterator[str]:
    from voxbatch.cli.columns import end_of, line_width
    from voxbatch.cli.side_by_side import side_by_side

    counts = _errors(item)
    yield f"{end_of(escape_controls(item.id), line_width() - len(counts) - 2)}: {counts}"
    texts = {"A": item.text_a, "B": item.text_b}
    yield from side_by_side(item.reference, texts, item.lang, WIDTH, MAX_BLOCKS, rules)
