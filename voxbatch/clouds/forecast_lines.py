"""Print what a run would take on a cloud platform, before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import click

from voxbatch.cli.estimates import format_audio
from voxbatch.clouds.submit import Forecast, Target
from voxbatch.display import format_duration
from voxbatch.safe_text import escape_controls


def print_forecast(forecast: Forecast, platform: Target) -> None:
    """Print the forecast; warn if the platform ends a task before its work is done."""
    limit_s = forecast.limit_s or platform.job_limit_s
    for line in _forecast_lines(forecast, limit_s):
        click.echo(line)
    at_a_time = platform.tasks_of_new_project
    if at_a_time and forecast.wall_s and forecast.tasks > at_a_time:
        rounds = math.ceil(forecast.tasks / at_a_time)
        total = _range(*(format_duration(rounds * wall_s) for wall_s in forecast.wall_s))
        click.echo(f"quota    a new project runs {at_a_time} tasks at a time, so that all take about {total}")
    if forecast.wall_s and limit_s and forecast.wall_s[1] > limit_s:
        unless = "" if forecast.limit_s else " unless the job has another limit (TASK_TIMEOUT)"
        click.echo(
            f"Warning: {platform.title} ends a task after {format_duration(limit_s)}{unless}. The work that is done "
            "by then is safe. It continues if the job retries the task, or if you submit the run again. Give "
            "more --tasks",
            err=True,
        )


def _forecast_lines(forecast: Forecast, limit_s: int | None) -> Iterator[str]:
    """Yield the expected size, time and cost of a run, for people."""
    f = forecast
    if f.before:
        yield escape_controls(f"before   {f.before}")
    if f.items is not None:
        yield f"items    {f.items:,}{' to do' * bool(f.before)}"
        yield f"audio    {format_audio(f)}"
    yield f"tasks    {f.tasks:,}"
    missing = "`duration` in the manifest" if f.unknown_items else "--expected-rtfx"
    if f.items is None:
        missing = "a SOURCE that can be read from here"
    if f.work_s is None or f.wall_s is None:
        yield f"time     unknown: give {missing}"
    else:
        work = f"{format_duration(f.work_s / f.tasks)}{{}} at RTFx {f.rtfx:g}{f' ({f.speed})' if f.speed else ''}"
        if f.start:
            start = _range(format_duration(f.start.shortest_s), format_duration(f.start.longest_s))
            total = _range(*map(format_duration, f.wall_s))
            yield f"time     about {total}: {work.format(' of work')}, after a start of {start} (modelled)"
        else:
            yield f"time     about {work.format('')}, and a start of unknown length"
    if f.usd is None:
        yield f"cost     unknown: give {missing if f.wall_s is None else '--usd-per-hour'}{_bounds(f, limit_s)}"
    elif f.start_usd:
        parts = f"${f.work_usd:,.2f} of work, {_usd(f.start_usd)} of starts{' and the second pass' * bool(f.second_s)}"
        yield f"cost     about {_usd(f.usd)} at ${f.usd_per_hour:g} an hour and task: {parts}"
    else:
        yield f"cost     about ${f.usd[0]:,.2f} at ${f.usd_per_hour:g} an hour and task, and the start of each"
    if f.second:
        text = f"{f.second.model} does about {f.second.share:g} of the audio again, in the last task alone:"
        price = "" if f.second_usd is None else f", ${f.second_usd:,.2f}"
        unknown = "time and cost unknown, and not in the above"
        yield f"second   {text} {unknown if f.second.work_s is None else f'{format_duration(f.second_s)}{price}'}"
    if f.starts_outweigh:
        yield f"advice   {_advice(f)}"


def _bounds(forecast: Forecast, limit_s: int | None) -> str:
    """Return the price of the starts, and that of an attempt of all tasks up to their limit: what is known of a price
    without the hours of audio."""
    most_usd = forecast.most_usd(limit_s)
    if forecast.start_usd is None or most_usd is None or not limit_s:
        return ""
    return (
        f"; the starts cost about {_usd(forecast.start_usd)}, and tasks of {format_duration(limit_s)}, their limit, "
        f"${most_usd:,.2f} an attempt"
    )


def _advice(forecast: Forecast) -> str:
    """Return what to do about starts that cost more than the work."""
    assert forecast.start is not None  # starts_outweigh
    hours = f"{forecast.break_even_hours:,.1f} hours of audio"
    formula = f"{format_duration(forecast.start.average_s)} x RTFx {forecast.full_rtfx:g}"
    if forecast.tasks > 1:
        fewer = replace(forecast, tasks=forecast.paying_tasks)
        usd = f" is about {_usd(fewer.usd)}, in" if fewer.usd else " takes about"
        time = _range(*map(format_duration, fewer.wall_s or ()))
        return (
            f"the starts cost more than the work: --tasks {fewer.tasks}{usd} {time}. A start costs as much as {hours} "
            f"({formula})"
        )
    usd_per_hour, starts = forecast.usd_per_hour, 24 * 3600 / forecast.start.average_s
    price = "" if usd_per_hour is None else f"${24 * usd_per_hour:,.2f} a day, "
    return (
        f"the start costs more than the work: a run pays from {hours} ({formula}). Collect recordings for fewer runs. "
        f"A worker that is always on has no start; it costs {price}as much as {starts:.0f} starts"
        f"{'' if price else ' a day'}"
    )


def _range(lowest: str, highest: str) -> str:
    """Return a range for people: "3:00 to 6:00", or one value if both are the same."""
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _usd(prices: tuple[float, float]) -> str:
    """Return a range of prices for people: "$0.07 to $0.14"."""
    return _range(*(f"${price:,.2f}" for price in prices))
