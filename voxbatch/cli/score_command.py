"""`voxbatch score`: the error rates of an OUT, or of the files of other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from voxbatch.analysis.text_kinds import TEXT_KINDS
from voxbatch.cli.options import PathOrAddress, comma, language, store_options
from voxbatch.cli.rules_options import rules_options
from voxbatch.safe_text import counted, escape_controls
from voxbatch.scoring.corpus import ScoreOptions
from voxbatch.scoring.normalize import Rules
from voxbatch.scoring.units import RATES, UNDETERMINED, error_unit
from voxbatch.storage import Stores, redacted

if TYPE_CHECKING:
    from voxbatch.analysis.score import PlaceScore
    from voxbatch.scoring.corpus import CorpusScore, Tally
    from voxbatch.scoring.units import Unit


@click.command(short_help="Score transcripts against references.")
@click.argument("hyp", type=PathOrAddress(exists=True))
@click.option("--ref", type=PathOrAddress(exists=True), help="References: a file or a folder. Default: HYP's own.")
@click.option("--language", metavar="LANG", callback=language, help="Language of items that name none, e.g. en.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(tuple(TEXT_KINDS)),
    metavar="KIND",
    help=f"Kind of files whose names do not tell it: {', '.join(TEXT_KINDS)}.",
)
@rules_options
@click.option(
    "--by",
    metavar="KEYS",
    default="",
    callback=comma,
    help="Also score each value of these keys of the manifest, e.g. speaker,source.",
)
@click.option(
    "--cluster",
    metavar="KEY",
    help="For the intervals, resample items with the same value of this key together, e.g. speaker.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@store_options
def score(
    hyp: str,
    ref: str | None,
    language: str | None,
    kind: str | None,
    by: tuple[str, ...],
    cluster: str | None,
    as_json: bool,
    rules: Rules,
    stores: Stores,
) -> None:
    """Score HYP and print the error rates. HYP is the OUT of a run; or a file with transcripts of any program: JSON
    lines with pred_text, CSV or TSV, NIST's trn, ctm or stm, Kaldi's text, the JSON of Whisper's programs, or plain
    lines; or a folder with one file for each recording.

    For an OUT, the figure is the run's own: items that failed count as deletions. With --ref, texts are matched by id,
    else by the recording's path, else by its name without folder and extension. References without a hypothesis count
    as deletions.
    """
    from voxbatch.analysis.score import is_run, score_place
    from voxbatch.output.layout import FAILURES

    options = ScoreOptions(rules, tuple(dict.fromkeys(by)), cluster)
    result = score_place(hyp, ref, language, kind, stores, options)
    languages = result.corpus.by_language
    if is_run(hyp) and not ref:
        missing = sum(counts.missing for counts in languages.values())
        if missing:
            click.echo(f"the run in {hyp}; {counted(missing, 'item')} of {FAILURES} count as deletions", err=True)
    if result.matching and ref:
        for note in result.matching.notes(redacted(hyp), redacted(ref)):
            click.echo(escape_controls(note), err=True)
    for note in result.notes:
        click.echo(escape_controls(note), err=True)
    if unknown := languages.get(UNDETERMINED):
        count = unknown.items + unknown.missing
        text = f"no language is known for {counted(count, 'item')}; if the texts are English, give --language en"
        click.echo(f"Warning: {text}: the rules for English differ", err=True)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        for line in lines_of(result):
            click.echo(line)


def lines_of(result: PlaceScore) -> Iterator[str]:
    """Yield the error rates as tables, the rules of the comparison, and the figures of times and speakers. On a
    terminal, a table without room leaves out the kinds of errors."""
    from voxbatch.cli.columns import fitting, line_width, table
    from voxbatch.cli.outcome import cluster_note, rules

    for name, unit in RATES.items():
        head = ["", name, "95 % interval", "sub", "del", "ins", f"{unit}s", "items", "missing"]
        if rows := [_row(label, tally) for label, tally in _tallies(result.corpus, unit)]:
            optional = ([head[-1]] if {row[-1] for row in rows} == {"0"} else [], head[3:6])
            yield from table(fitting([head, *rows], line_width(), optional), line_width())
            yield ""
    if cluster := result.corpus.options.cluster_by:
        yield cluster_note(cluster)
    for line in rules(result.corpus):
        yield escape_controls(line)
    if times := result.word_times:
        off = [f"{name}s {side.mean:.3f} s off on average (median {side.median:.3f}, P95 {side.p95:.3f})"
               for name, side in (("start", times.start), ("end", times.end)) if side]  # fmt: skip
        yield "; ".join([f"word times: {times.matched:,} of {times.reference_words:,} words matched", *off])
    if result.speakers:
        yield str(result.speakers)


def _tallies(score: CorpusScore, unit: Unit) -> Iterator[tuple[str, Tally]]:
    """Yield the name and the sums of all items, of each language if there are several, and of each group."""
    total = score.total(unit)
    if not total.items and not total.missing:
        return
    yield "all", total
    if len(score.by_language) > 1:
        languages = score.characters_too if unit == "character" else {}
        languages = languages | {lang: tally for lang, tally in score.by_language.items() if error_unit(lang) == unit}
        yield from sorted(languages.items())
    for key, groups in score.groups.items():
        for value, group in sorted(groups.items()):
            if unit in {error_unit(lang) for lang in group.by_language}:
                yield f"{key} {value}", group.total(unit)


def _row(label: str, tally: Tally) -> list[str]:
    counts, ends = tally.counts, tally.interval
    numbers = (counts.substitutions, counts.deletions, counts.insertions, counts.reference_length, tally.items)
    return [
        escape_controls(label),
        "–" if tally.rate is None else f"{tally.rate:.2%}",
        f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}" if ends else "",
        *(f"{number:,}" for number in (*numbers, tally.missing)),
    ]
