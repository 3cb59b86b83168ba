"""Print the outcome of a finished run: its first transcripts, its figures, the places of its outputs, and advice."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from voxbatch.cli.advice import failure_lines, language_line, short_path
from voxbatch.cli.columns import MIN_COLUMN
from voxbatch.config import Config
from voxbatch.display import first_failures, format_duration
from voxbatch.engines import known_details
from voxbatch.errors import CheckpointError, StorageError
from voxbatch.failure_kinds import NO_AUDIO_TRACK, in_words
from voxbatch.formats.document import Document
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_names import short_name
from voxbatch.output.layout import existing_outputs
from voxbatch.output.lines import parse_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.products import Products
from voxbatch.output.summary import Summary
from voxbatch.safe_text import counted, escape_controls
from voxbatch.scoring.corpus import CorpusScore
from voxbatch.scoring.units import RATES, UNDETERMINED
from voxbatch.storage import Store, Stores
from voxbatch.work import Work, additions_of, work_of

SHOWN_TRANSCRIPTS = 5
SHOWN_LINES = 20
"""Maximum lines of the transcript of a single recording on a terminal."""
SHOWN_CHARACTERS = 100
"""Maximum characters of each transcript that is shown, except on a terminal: there it fills one line."""


def print_texts(summary: Summary, config: Config, form: str) -> None:
    """Print the whole transcripts of a merged run to standard output in a format, in the order of the list. If there
    are several texts, each has a line before it with the name of its recording, as `head` writes it.

    Raises:
        StorageError: they cannot be read.
    """
    store, kind = config.stores.out(config.out), work_of(summary.facts.config)
    text_key, limits = kind.resolve("products").text_key, ItemFiles.of(summary.facts.config).limits
    for line in map(json.loads, store.lines(kind.merged)):
        if form == "txt" and summary.items > 1:
            click.echo(escape_controls(f"==> {line['id']} <=="))
        document = Document(line["id"], read_transcript(line, text_key), short_name(line["id"]), limits)
        sys.stdout.buffer.write(document.written(form).encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def print_outcome(
    summary: Summary,
    out: str,
    stores: Stores,
    argv: Sequence[str] = (),
    verbose: bool = False,
    to_stderr: bool = False,
    shows_items: bool = True,
    is_unchanged: bool = False,
    first_done: NDArray[np.intp] | None = None,
) -> None:
    """Print the outcome of a merged run. Outputs that cannot be read are left out: the run itself is finished.

    Args:
        argv: the arguments of this program. Empty if no command is to be advised.
        verbose: print also latencies, memory, the origin of the model, and the rules of the score.
        to_stderr: standard output has the transcripts, which are not shown here.
        shows_items: show the first transcripts and the first failed items.
        is_unchanged: an earlier run has printed the transcripts and figures: leave them out.
        first_done: positions of the items whose transcripts are shown. None for the first ones of the list.
    """
    store = stores.out(out)
    failures = [(item.path, item.reason) for item in first_failures(store)] if summary.failed and shows_items else []
    places, shown = list[tuple[str, str]](), out if not argv or out in argv else short_path(out)
    with contextlib.suppress(StorageError):
        places = [(label, os.path.join(shown, name)) for label, name in existing_outputs(store)]
    lines, language = place_lines(places), ""
    if not is_unchanged:
        kind = work_of(summary.facts.config)
        texts = first_texts(store, kind, first_done) if shows_items and not to_stderr else []
        lines, language = outcome_lines(summary, texts, places, shown, verbose), language_line(summary, argv, out)
    for line in (*lines, *failure_lines(summary, failures, argv, out), *([language] if language else [])):
        click.echo(escape_controls(line), err=to_stderr)


def first_texts(store: Store, kind: Work, only: NDArray[np.intp] | None = None) -> list[tuple[str, str]]:
    """Return (id, text) of the first transcripts, or of the first texts that were spoken; [] if they cannot be read.

    Args:
        only: positions of the items to look at, in ascending order. None for all.
    """
    products: Products = kind.resolve("products")
    with contextlib.suppress(StorageError, CheckpointError, ValueError, KeyError, TypeError):
        # One parsed line at a time.
        lines = map(json.loads, store.lines(kind.merged)) if only is None else _transcripts(store, only)
        shown = islice(lines, SHOWN_TRANSCRIPTS)
        return [(line["id"], products.text_of(line) or _why_empty(line)) for line in shown]
    return []


def _transcripts(store: Store, only: NDArray[np.intp]) -> Iterator[dict[str, Any]]:
    """Return the lines of the transcripts among some items."""
    run = run_file.read_existing(store)
    entries = Entries(store, run, only=only)
    return (parse_line(store, entry, run.products) for entry in entries if entry.kind == "transcript")


def _why_empty(line: Mapping[str, Any]) -> str:
    """Return the reason why a transcript is empty, if there was nothing to hear."""
    return f"({NO_AUDIO_TRACK})" if NO_AUDIO_TRACK in line["warnings"] else ""


def outcome_lines(
    summary: Summary,
    texts: list[tuple[str, str]],
    places: list[tuple[str, str]],
    out: str = "",
    verbose: bool = False,
) -> Iterator[str]:
    """Yield the last lines of a run: the first transcripts, counts, error rates, speed, and the places of the outputs.

    Args:
        texts: (id, text) of the first transcripts.
        places: (description, place) of each output.
        out: OUT, for the command that lists the flagged items. Empty if no command is to be shown.
        verbose: see `print_outcome`.
    """
    yield from _shown_texts(summary, texts[:SHOWN_TRANSCRIPTS])
    yield ""
    failed = in_words(summary.failures_by_kind)
    warned = f", {summary.with_warnings:,} with warnings" if summary.with_warnings else ""
    counts = f"{summary.done:,} done + {summary.failed:,} failed = {counted(summary.items, 'item')}"
    yield f"{counts}{f' ({failed})' if failed else ''}{warned}"
    yield from _scores(summary, verbose)
    rtfx = f", RTFx {summary.rtfx:.1f}" if summary.rtfx else ""
    yield f"{format_duration(summary.audio_s)} of audio in {format_duration(summary.wall_s)}{rtfx}"
    if verbose:
        yield from _latency(summary)
    if summary.usd is not None:
        yield f"cost about ${summary.usd:,.2f}, without the start of the machines"
    engine = summary.facts.engine
    config = summary.facts.config
    second = "".join(f"; {added.name} {config[added.name]}" for added in additions_of(config) if added.overlay)
    details = known_details(engine.license, engine.origin if verbose else "unknown")
    yield f"engine {engine.name}, model {engine.model}{details}{second}"
    yield from place_lines(places)
    if summary.with_warnings and out:
        yield f"warnings: voxbatch flags {shlex.quote(out)} --warnings"
    if summary.flags.items:
        listed = f"; list them, the worst first: voxbatch flags {shlex.quote(out)}" if out else ""
        yield f"{counted(summary.flags.items, 'transcript')} flagged as doubtful{listed}"


def place_lines(places: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for the place of each output."""
    width = max((len(description) for description, _ in places), default=0)
    yield from (f"{description:<{width}}  {place}" for description, place in places)


def _shown_texts(summary: Summary, texts: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the first transcripts, a line for each; on a terminal, the lines of the text of a single recording."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    if is_terminal and summary.items == 1 and texts and texts[0][1].strip():
        lines = textwrap.wrap(texts[0][1], width)
        yield from lines[:SHOWN_LINES]
        if len(lines) > SHOWN_LINES:
            yield f"… and {len(lines) - SHOWN_LINES:,} more lines"
        return
    for item_id, transcript in texts:
        text = " ".join(transcript.split())  # a text with line breaks must still fill one line
        room = max(MIN_COLUMN, width - len(f"{item_id}: ")) if is_terminal else SHOWN_CHARACTERS
        shown = text if len(text) <= room else text[: room - 1] + "…"
        yield f"{item_id}: {shown or '(no speech)'}"
    if texts and (more := summary.done - len(texts)) > 0:
        yield f"… and {more:,} more"


def _latency(summary: Summary) -> Iterator[str]:
    """Yield the latency and the peak GPU memory in one line, as far as they were measured."""
    figures = []
    if summary.latency.chunk.count:
        chunk = summary.latency.chunk
        figures.append(f"latency of a chunk: P50 {chunk.p50_s:.2f} s, P90 {chunk.p90_s:.2f} s, P95 {chunk.p95_s:.2f} s")
    if summary.peak_gpu_bytes is not None:
        figures.append(f"peak GPU memory {summary.peak_gpu_bytes / 1e9:.1f} GB")
    if figures:
        yield "; ".join(figures)


def _scores(summary: Summary, verbose: bool) -> Iterator[str]:
    """Yield all error rates of a run; if asked, also the rules by which the texts were compared."""
    if summary.score:
        yield from _error_rates(summary.score)
        yield from rules(summary.score) if verbose else ()
        if UNDETERMINED in summary.score.by_language:
            yield f"{UNDETERMINED}: no language is known; if it is English, give --language en to `voxbatch score`"
    if summary.speakers:
        yield str(summary.speakers)
    products: Products = work_of(summary.facts.config).resolve("products")
    yield from products.outcome_lines(summary)
    if summary.estimated_wer:
        low, high = summary.estimated_wer.interval
        yield f"estimated WER {summary.estimated_wer.wer:.2%}, 95 % interval {low:.2%} to {high:.2%}"


def _error_rates(score: CorpusScore) -> Iterator[str]:
    """Yield the error rate of words and that of characters, each if there are references in such languages; and the
    rate of each language if there are several."""
    for name, unit in RATES.items():
        tally = score.total(unit)
        if tally.rate is not None:
            c = tally.counts
            detail = f"{c.substitutions:,} substitutions, {c.insertions:,} insertions, {c.deletions:,} deletions"
            missing = f"; {tally.missing:,} without a transcript" if tally.missing else ""
            interval = f", 95 % interval {ends[0]:.2%} to {ends[1]:.2%}" if (ends := tally.interval) else ""
            yield f"{name} {tally.rate:.2%}{interval} ({detail} over {c.reference_length:,} {unit}s{missing})"
    if len(score.by_language) > 1:
        rates = ((lang, tally.rate) for lang, tally in sorted(score.by_language.items()))
        yield "by language: " + ", ".join(f"{lang} {rate:.2%}" for lang, rate in rates if rate is not None)


def cluster_note(cluster: str) -> str:
    """Return the line that explains the intervals of a table of groups, and those that are absent."""
    return escape_controls(f"intervals by {cluster}; a row with one {cluster} has none")


def rules(score: CorpusScore) -> Iterator[str]:
    """Yield the rules by which the texts were compared."""
    for name in sorted({*map(score.normalizer, score.by_language)}):
        languages = ", ".join(lang for lang in sorted(score.by_language) if score.normalizer(lang) == name)
        yield f"texts compared by {name}: {languages}"
