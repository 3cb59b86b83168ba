"""Output for people: live progress on a terminal, progress events elsewhere, and the result at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from voxbatch.latency import PERCENTILES
from voxbatch.log import Log
from voxbatch.runner import Progress

REFRESH_S = 0.1
"""Seconds between two updates of the progress line."""
EVENT_S = 10.0
"""Seconds between two progress events, without a terminal."""
SHOWN = 5
"""Number of transcripts that are shown at the end of a run."""
SHOWN_CHARACTERS = 100
"""Maximum characters of each transcript that is shown."""

Observer = Callable[[Progress], None]


def clock(seconds: float) -> str:
    """Return seconds for people: 7.84 → "7.8 s"; 75.4 → "1:15"; 3675 → "1:01:15"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def remaining_s(p: Progress) -> float | None:
    """Return the seconds left at the present speed, or None before anything is finished.

    The estimate uses the audio if all durations are known, and the number of items otherwise.
    """
    finished, todo = p.done + p.failed, p.items - p.resumed
    if p.unknown == 0 and p.known_audio_s and p.audio_s:
        return max(0.0, p.known_audio_s - p.audio_s) / p.rtfx
    return p.wall_s / finished * (todo - finished) if finished else None


def describe(p: Progress) -> str:
    """Return the progress as one line: audio, items, speed, time left and failures."""
    total = f" / {clock(p.known_audio_s)}" if p.unknown == 0 and p.known_audio_s else ""
    left = remaining_s(p)
    parts = [
        f"{clock(p.audio_s)}{total} audio",
        f"{p.resumed + p.done + p.failed:,} / {p.items:,} items",
        f"RTFx {p.rtfx:.1f}",
        f"{clock(left)} left" if left is not None else "",
        f"{p.failed:,} failed" if p.failed else "",
    ]
    return " · ".join(part for part in parts if part)


@contextlib.contextmanager
def live(log: Log) -> Iterator[Observer]:
    """Show a progress line on a terminal. Log lines appear above it."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(BarColumn(30), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        write, log.write = log.write, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)

        def show(p: Progress) -> None:
            """Update the progress line."""
            by_audio = p.unknown == 0 and p.known_audio_s > 0
            done, total = (p.audio_s, p.known_audio_s) if by_audio else (p.done + p.failed, p.items - p.resumed)
            bar.update(task, completed=done, total=total, description=describe(p))

        try:
            yield _every(REFRESH_S, show)
        finally:
            log.write = write


@contextlib.contextmanager
def events(log: Log) -> Iterator[Observer]:
    """Log a `progress` event every EVENT_S seconds."""

    def tell(p: Progress) -> None:
        """Log one event."""
        log.info(
            "progress", items=p.items, done=p.resumed + p.done, failed=p.failed, audio_s=round(p.audio_s, 1),
            wall_s=round(p.wall_s, 1), rtfx=round(p.rtfx, 2), parts=p.parts,
        )  # fmt: skip

    yield _every(EVENT_S, tell)


def _every(seconds: float, act: Observer) -> Observer:
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


def outcome(summary: dict[str, Any], heads: list[tuple[str, str]], places: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the last lines of a run: the first transcripts, counts, error rates, speed, and the places of the outputs.

    Args:
        summary: see finalize.merge.
        heads: (id, text) of the first transcripts.
        places: (description, place) of each output.
    """
    for item_id, heard in heads[:SHOWN]:
        text = " ".join(heard.split())  # a text with line breaks must still fill one line
        shown = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
        yield f"{item_id}: {shown or '(no speech)'}"
    more = summary["done"] - min(SHOWN, len(heads))
    if more > 0:
        yield f"… and {more:,} more"
    yield ""
    yield _counts(summary)
    yield from _score(summary.get("score"))
    rtfx = f", RTFx {summary['rtfx']:.1f}" if summary["rtfx"] else ""
    yield f"{clock(summary['audio_s'])} of audio in {clock(summary['wall_s'])}{rtfx}"
    yield from _latency(summary)
    if summary.get("usd") is not None:
        yield f"cost about ${summary['usd']:,.2f}, the start of machines left out"
    engine = summary["engine"]
    yield f"engine {engine['name']}, model {engine['model']} ({engine['license']}; {engine['origin']})"
    width = max(len(what) for what, _ in places)
    yield from (f"{what:<{width}}  {place}" for what, place in places)


def _latency(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the latency and the peak GPU memory in one line. The summary of an older version has neither figure."""
    chunk, peak = (summary.get("latency") or {}).get("chunk") or {}, summary.get("peak_gpu_bytes")
    figures = []
    if chunk.get("count"):
        shown = ", ".join(f"P{percent} {chunk[f'p{percent}_s']:.2f} s" for percent in PERCENTILES)
        figures.append(f"latency of a chunk: {shown}")
    if peak is not None:
        figures.append(f"peak GPU memory {peak / 1e9:.1f} GB")
    if figures:
        yield "; ".join(figures)


def _counts(summary: dict[str, Any]) -> str:
    failed = ", ".join(f"{count:,} {name}" for name, count in summary["failures_by_error"].items())
    warned = f", {summary['with_warnings']:,} with warnings" if summary["with_warnings"] else ""
    done = f"{summary['done']:,} done + {summary['failed']:,} failed = {summary['items']:,} items"
    return f"{done}{f' ({failed})' if failed else ''}{warned}"


def _score(score: dict[str, Any] | None) -> Iterator[str]:
    for unit, name in (("words", "wer"), ("characters", "cer")):
        tally = score[unit] if score else None
        if tally and tally[name] is not None:
            detail = ", ".join(f"{tally[kind]:,} {kind}" for kind in ("substitutions", "insertions", "deletions"))
            missing = f"; {tally['missing']:,} without a transcript" if tally["missing"] else ""
            yield f"{name.upper()} {tally[name]:.2%} ({detail} over {tally[f'reference_{unit}']:,} {unit}{missing})"
