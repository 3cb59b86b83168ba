"""Print what a run here would take, before it begins."""

from __future__ import annotations

from typing import Protocol

import click

from voxbatch.config import Config
from voxbatch.display import format_duration
from voxbatch.runner.forecast import RunEstimate, estimate_run
from voxbatch.runner.steps import steps_of
from voxbatch.safe_text import counted, escape_controls


def print_plan(config: Config) -> None:
    """Print what a run here would do: each pass of a cascade, and the cost of both."""
    passes, second = estimate_run(config), steps_of(config).second_options()
    for number, estimate in enumerate(passes):
        speed = "give --expected-rtfx"
        if number:
            size = f" if the expected WER asks for {second.share:g} of the audio" if second and second.by_wer else ""
            click.echo(f"\nsecond pass{size}, as if its recordings were like the others:")
            speed = f"--expected-rtfx is that of {passes[0].model}; for {estimate.model}, see its own --dry-run"
        for name, value in _plan_lines(config, estimate, f"unknown: {speed}"):
            click.echo(escape_controls(f"{name:<8} {value}"))
    prices = [estimate.usd for estimate in passes if estimate.usd is not None]
    if 1 < len(passes) == len(prices):
        click.echo(f"\nboth     about ${sum(prices):,.2f}")
    click.echo(escape_controls(f"outputs  {config.out}"))


def _plan_lines(config: Config, p: RunEstimate, no_speed: str) -> list[tuple[str, str]]:
    """Return the names and values of the estimate of one pass, for people.

    Args:
        no_speed: value for an unknown speed.
    """
    speed = f" ({p.speed})" if p.speed else ""
    no_audio = "unknown: give `duration` in the manifest"
    padded = ", because each short recording is padded" if p.work_s > 1.05 * p.audio_s else ""
    time = (
        f"about {format_duration(p.wall_s)} at RTFx {p.rtfx:g}{speed}{padded}"
        if p.wall_s is not None
        else (no_audio if p.unknown_items else no_speed)
    )
    cost = (
        f"about ${p.usd:,.2f} at ${p.usd_per_hour:g} an hour, without the start of the machine"
        if p.usd is not None
        else (no_audio if p.unknown_items else "unknown: give --usd-per-hour" if p.usd_per_hour is None else no_speed)
    )
    return [
        ("engine", f"{p.engine} (model {p.model})"),
        ("items", f"{p.items:,}"),
        ("audio", format_audio(p)),
        steps_of(config).size(p.audio_s, p.chunks),
        ("time", time),
        ("cost", cost),
    ]


class AudioAmount(Protocol):
    """An expected amount of audio; see runner.forecast.RunEstimate."""

    @property
    def audio_s(self) -> float:
        """Seconds of audio, without the `unknown_items`."""

    @property
    def estimated_items(self) -> int:
        """Number of items whose duration the manifest does not give."""

    @property
    def unknown_items(self) -> int:
        """Number of these items for which there is no estimate either."""

    @property
    def is_about(self) -> bool:
        """True if a duration may be wrong."""


def format_audio(p: AudioAmount) -> str:
    """Return an amount of audio for people: "3:22, 3 of them by the headers of a sample", "about 2:11, …"."""
    amount = f"{p.audio_s / 3600:,.1f} hours" if p.audio_s >= 3600 else format_duration(p.audio_s)
    if p.unknown_items:
        known = f"{amount}, and " if p.audio_s else ""
        items = counted(p.unknown_items, "item")
        return f"{known}{items} of unknown duration: the headers of a sample do not tell it"
    about = "about " if p.is_about else ""
    return f"{about}{amount}, {p.estimated_items:,} of them by the headers of a sample" if p.estimated_items else amount
