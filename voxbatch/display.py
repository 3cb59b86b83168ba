"""Output for people: live progress on a terminal, progress events elsewhere, and the result at the end."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

from voxbatch.config import Config
from voxbatch.engines import known_details
from voxbatch.log import Log
from voxbatch.output.failure_reasons import FailureReasons
from voxbatch.output.summary import Summary
from voxbatch.runner import Progress, RunResult, Usage
from voxbatch.safe_text import counted
from voxbatch.scoring import UNDETERMINED, CorpusScore, Unit
from voxbatch.storage import longest_wait

REFRESH_S = 0.1
"""Seconds between two updates of the progress line."""
BAR_WIDTH = 30
"""Columns of the bar."""
SHOWN_START_S = 2.0
"""Seconds after which the progress says that the manifest is being read."""
EVENT_S = 10.0
"""Seconds between two progress events, without a terminal."""
SHOWN_TRANSCRIPTS = 5
"""Number of transcripts that are shown at the end of a run."""
SHOWN_REASONS = 3
"""Number of reasons of failures that are shown at the end of a run."""
SHOWN_CHARACTERS = 100
"""Maximum characters of each transcript that is shown, except on a terminal: there it fills one line."""

MIN_COLUMN = 40
"""Least width of a column of text that is wrapped."""

Observer = Callable[[Progress], None]


def aligned(label: str, text: str) -> str:
    """Return a label and a text. On a terminal the text is a column beside the label; in a file it is one line."""
    if not sys.stdout.isatty():
        return label + text
    width = max(MIN_COLUMN, shutil.get_terminal_size().columns - len(label))
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return label + f"\n{' ' * len(label)}".join(lines)


def format_duration(seconds: float) -> str:
    """Return seconds for people: 7.84 → "7.8 s"; 75.4 → "1:15"; 3675 → "1:01:15"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def format_audio(audio_s: float, estimated_items: int, unknown_items: int) -> str:
    """Return the expected amount of audio for people: "3:22, 3 of them by the headers of a sample".

    Args:
        audio_s: seconds of audio, without the `unknown_items`.
        estimated_items: number of items whose duration the manifest does not give.
        unknown_items: number of these items for which there is no estimate either.
    """
    amount = f"{audio_s / 3600:,.1f} hours" if audio_s >= 3600 else format_duration(audio_s)
    if unknown_items:
        known = f"{amount}, and " if audio_s else ""
        return f"{known}{unknown_items:,} items of unknown duration: the headers of a sample do not tell it"
    return f"{amount}, {estimated_items:,} of them by the headers of a sample" if estimated_items else amount


def progress_line(p: Progress, usd_per_hour: float | None = None) -> str:
    """Return the progress as one line: audio, items, speed, time left, cost, failures, and what the run waits for."""
    parts = [*_amounts(p), *_rest(p, usd_per_hour), f"waiting: {p.waiting}" if p.waiting else ""]
    return " · ".join(part for part in parts if part)


def _amounts(p: Progress) -> list[str]:
    """Return what was done: audio, items, failures and speed."""
    total_s = p.total_audio_s
    about = "about " if p.measured < p.unknown else ""
    total = f" / {about}{format_duration(total_s)}" if total_s else ""
    failed = f" ({p.resumed_failed + p.failed:,} failed)" if p.resumed_failed + p.failed else ""
    items = f"{p.resumed + p.done + p.failed:,} / {p.items:,} items{failed}"
    return [f"{format_duration(p.audio_s)}{total} audio", items, f"RTFx {p.rtfx:.1f}"]


def _rest(p: Progress, usd_per_hour: float | None) -> list[str]:
    """Return what is expected: the time left, and the cost so far and in total if the price is known."""
    left_s = p.remaining_s
    rest = [] if left_s is None else [f"{format_duration(left_s)} left"]
    if usd_per_hour is not None:
        total = "" if left_s is None else f" of about ${(p.wall_s + left_s) / 3600 * usd_per_hour:,.2f}"
        rest.append(f"${p.wall_s / 3600 * usd_per_hour:,.2f}{total}")
    return rest


def can_animate() -> bool:
    """Return whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextlib.contextmanager
def live_progress(log: Log, usd_per_hour: float | None = None) -> Iterator[Observer]:
    """Show a bar and two or three lines below it on a terminal. Log lines appear above it.

    The second line has what was done, and a third one what the run waits for. Lines that are wider than the terminal
    are cut off.

    Args:
        log: its text lines are shown above the bar.
        usd_per_hour: price of the machine; None if it is unknown.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)
    latest: list[Progress] = []
    started_at = time.monotonic()

    def render() -> Group:
        """Return the lines. The thread of Live calls this several times a second."""
        lines: list[Table | Text] = []
        waiting = ""
        if latest:
            p, grid = latest[0], Table.grid(padding=(0, 1))
            rest = " · ".join([f"{p.fraction:.0%}", *_rest(p, usd_per_hour)])
            grid.add_row(
                ProgressBar(1.0, p.fraction, BAR_WIDTH, complete_style="green", finished_style="green"),
                Text(rest, no_wrap=True),
            )
            lines = [grid, Text(" · ".join(_amounts(p)), no_wrap=True, overflow="ellipsis")]
            waiting = p.waiting
        elif time.monotonic() - started_at >= SHOWN_START_S:
            waiting = "the manifest is being read"
        if wait := longest_wait():  # a request of this process: the manifest, OUT, a model
            waiting = str(wait)
        if waiting:
            lines.append(Text(f"waiting: {waiting}", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    with Live(get_renderable=render, console=console, refresh_per_second=1 / REFRESH_S, transient=True):
        write, log.write = log.write, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
        try:
            yield lambda p: latest.__setitem__(slice(None), [p])
        finally:
            log.write = write


@contextlib.contextmanager
def counter(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many of `total` things are done: yield a function of their number."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        last = 0.0

        def show(number: int) -> None:
            """Update the line, at most every REFRESH_S."""
            nonlocal last
            if (now := time.monotonic()) - last >= REFRESH_S:
                last = now
                status.update(f"{number:,} of {total:,} {what}")

        yield show


@contextlib.contextmanager
def progress_events(log: Log, usd_per_hour: float | None = None) -> Iterator[Observer]:
    """Log a `progress` event every EVENT_S seconds.

    Args:
        log: receives the events.
        usd_per_hour: price of the machine; None if it is unknown.
    """

    def tell(p: Progress) -> None:
        """Log one event."""
        log.info(
            "progress", text=progress_line(p, usd_per_hour), items=p.items, done=p.resumed + p.done, failed=p.failed,
            audio_s=round(p.audio_s, 1), wall_s=round(p.wall_s, 1), rtfx=round(p.rtfx, 2), parts=p.parts,
            total_audio_s=_rounded(p.total_audio_s), remaining_s=_rounded(p.remaining_s), waiting=p.waiting,
        )  # fmt: skip

    yield _throttled(EVENT_S, tell)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _throttled(seconds: float, act: Observer) -> Observer:
    """Return an observer that calls `act` at most once in `seconds`."""
    last = time.monotonic()

    def observe(progress: Progress) -> None:
        """Call `act` if it is due."""
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            act(progress)

    return observe


def outcome_lines(
    summary: Summary,
    texts: list[tuple[str, str]],
    places: list[tuple[str, str]],
    reasons: FailureReasons | None = None,
    command: str = "",
    out: str = "",
) -> Iterator[str]:
    """Yield the last lines of a run: the first transcripts, counts, error rates, speed, and the places of the outputs.

    Args:
        summary: the summary of all shards.
        texts: (id, text) of the first transcripts.
        places: (description, place) of each output.
        reasons: the reasons of the failures, if there are failures and they can be read.
        command: the command of the run, to which --retry-failed can be added. Empty if there is none.
        out: OUT, for the command that lists the flagged items. Empty if no command is to be shown.
    """
    for item_id, transcript in texts[:SHOWN_TRANSCRIPTS]:
        text = " ".join(transcript.split())  # a text with line breaks must still fill one line
        room = SHOWN_CHARACTERS
        if sys.stdout.isatty():
            room = max(MIN_COLUMN, shutil.get_terminal_size().columns - len(f"{item_id}: "))
        shown = text if len(text) <= room else text[: room - 1] + "…"
        yield f"{item_id}: {shown or '(no speech)'}"
    more = summary.done - min(SHOWN_TRANSCRIPTS, len(texts))
    if more > 0:
        yield f"… and {more:,} more"
    yield ""
    failed = ", ".join(f"{count:,} {name}" for name, count in summary.failures_by_error.items())
    warned = f", {summary.with_warnings:,} with warnings" if summary.with_warnings else ""
    counts = f"{summary.done:,} done + {summary.failed:,} failed = {counted(summary.items, 'item')}"
    yield f"{counts}{f' ({failed})' if failed else ''}{warned}"
    if summary.score:
        yield from _error_rates(summary.score)
        yield from _normalizers(summary.score)
    if summary.estimated_wer:
        low, high = summary.estimated_wer.interval
        yield f"estimated WER {summary.estimated_wer.wer:.2%}, 95 % interval {low:.2%} to {high:.2%}"
    rtfx = f", RTFx {summary.rtfx:.1f}" if summary.rtfx else ""
    yield f"{format_duration(summary.audio_s)} of audio in {format_duration(summary.wall_s)}{rtfx}"
    yield from _latency(summary)
    if summary.usd is not None:
        yield f"cost about ${summary.usd:,.2f}, without the start of the machines"
    engine = summary.facts.engine
    yield f"engine {engine.name}, model {engine.model}{known_details(engine.license, engine.origin)}"
    width = max((len(description) for description, _ in places), default=0)
    yield from (f"{description:<{width}}  {place}" for description, place in places)
    if summary.flags and summary.flags.items:
        listed = f"; list them, the worst first: voxbatch flags {shlex.quote(out)}" if out else ""
        yield f"{counted(summary.flags.items, 'transcript')} flagged as doubtful{listed}"
    if summary.failed and reasons:
        yield _failures(summary.failed, reasons, command)


def _failures(failed: int, reasons: FailureReasons, command: str) -> str:
    """Return the line with the reasons of failures and the next command: "3 failed: 2 no such file, 1 damaged or not
    audio; …"."""
    shown = reasons.counts[:SHOWN_REASONS]
    others = failed - sum(count for _, count in shown)
    counts = [f"{count:,} {reason}" for reason, count in shown] + ([f"{others:,} for other reasons"] if others else [])
    line = f"{failed:,} failed: {', '.join(counts)}"
    if not command:
        return line
    if reasons.retryable:
        return f"{line}; retry with: {command} --retry-failed"
    return f"{line}; mend them, and retry with: {command} --retry-failed all"


def _latency(summary: Summary) -> Iterator[str]:
    """Yield the latency and the peak GPU memory in one line, as far as they were measured."""
    figures = []
    if summary.latency and summary.latency.chunk.count:
        chunk = summary.latency.chunk
        figures.append(f"latency of a chunk: P50 {chunk.p50_s:.2f} s, P90 {chunk.p90_s:.2f} s, P95 {chunk.p95_s:.2f} s")
    if summary.peak_gpu_bytes is not None:
        figures.append(f"peak GPU memory {summary.peak_gpu_bytes / 1e9:.1f} GB")
    if figures:
        yield "; ".join(figures)


def _error_rates(score: CorpusScore) -> Iterator[str]:
    """Yield the error rate of words and that of characters, each if there are references in such languages."""
    units: tuple[tuple[Unit, str], ...] = (("word", "WER"), ("character", "CER"))
    for unit, name in units:
        tally = score.total(unit)
        if tally.rate is not None:
            c = tally.counts
            detail = f"{c.substitutions:,} substitutions, {c.insertions:,} insertions, {c.deletions:,} deletions"
            missing = f"; {tally.missing:,} without a transcript" if tally.missing else ""
            interval = f", 95 % interval {ends[0]:.2%} to {ends[1]:.2%}" if (ends := tally.interval) else ""
            yield f"{name} {tally.rate:.2%}{interval} ({detail} over {c.reference_length:,} {unit}s{missing})"


def _normalizers(score: CorpusScore) -> Iterator[str]:
    """Yield the rate of each language if there are several, and the rules by which the texts were compared."""
    tallies = sorted(score.by_language.items())
    if len(tallies) > 1:
        rates = ((lang, tally.rate) for lang, tally in tallies)
        yield "by language: " + ", ".join(f"{lang} {rate:.2%}" for lang, rate in rates if rate is not None)
    for name in sorted({score.normalizer(lang) for lang, _ in tallies}):
        languages = ", ".join(lang for lang, _ in tallies if score.normalizer(lang) == name)
        yield f"texts compared by {name}: {languages}"
    if UNDETERMINED in score.by_language:
        yield f"{UNDETERMINED}: no language is known; if it is English, give --language en to `voxbatch score`"


def log_result(config: Config, result: RunResult, log: Log) -> None:
    """Log the figures of a finished run, and whether other shards are still to come.

    Among the figures, `items` is done + failed + resumed. A figure is None if it is unknown. The figures are for
    programs: in a log of text there are none, because the outcome follows.
    """
    p, summary, usage = result.progress, result.summary, result.usage or Usage(0.0, 0.0, 0.0, 0.0)
    price, shard = config.usd_per_hour, f"{config.shard}/{config.shards}"
    if log.as_json:
        log.info(
            "run_finished", shard=shard, items=p.items, done=p.done, failed=p.failed, resumed=p.resumed,
            audio_s=round(p.audio_s, 1), audio_hours=round(p.audio_s / 3600, 4), wall_s=round(p.wall_s, 2),
            rtfx=round(p.audio_s / p.wall_s, 2) if result.usage else None,
            usd=None if price is None else round(p.wall_s / 3600 * price, 6),
            wer=summary.score.wer if summary and summary.score else None,
            decode_cpu_s=round(usage.decode_cpu_s, 2), engine_s=round(usage.engine_s, 2),
            starved_s=round(usage.starved_s, 2), short_s=round(usage.short_s, 2),
        )  # fmt: skip
    if summary is None:
        failed = p.resumed_failed + p.failed
        counts = f"{p.items - failed:,} done + {failed:,} failed = {counted(p.items, 'item')}"
        log.info("shard_done", text=f"shard {shard} is done: {counts}; the last shard to finish merges")
