"""Print what a run here would take, before it begins."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Protocol

import click

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.display import format_duration
from voxbatch.engines import ENGINES
from voxbatch.engines.choice import AUTO
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.engines.known_models import engines_of, find
from voxbatch.errors import CheckpointError
from voxbatch.output.run_file import read
from voxbatch.prices import MEASURED_GPU, cheapest
from voxbatch.runner.forecast import RunEstimate, calculate_speed, estimate_run
from voxbatch.runner.steps import steps_of
from voxbatch.runner.workload import Workload, measure_workload
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import is_remote


def print_plan(config: Config) -> None:
    """Print what a run here would do: each pass of a cascade, and the cost of both. On a machine without a GPU, an
    engine for GPUs is planned for those of other machines."""
    if (engine := _engine_elsewhere(config)) is not None:
        for name, value in _lines_elsewhere(config, engine):
            click.echo(escape_controls(f"{name:<8} {value}"))
        return
    passes, second = estimate_run(config), steps_of(config).second_options()
    for number, estimate in enumerate(passes):
        speed = "give --expected-rtfx"
        if number:
            size = f" if the expected WER asks for {second.share:g} of the audio" if second and second.by_wer else ""
            like = "" if estimate.is_chosen else f"{size}, as if its recordings were like the others"
            click.echo(f"\nsecond pass{like}:")
            speed = f"--expected-rtfx is that of {passes[0].model}; for {estimate.model}, see its own --dry-run"
        for name, value in _plan_lines(config, estimate, f"unknown: {speed}"):
            click.echo(escape_controls(f"{name:<8} {value}"))
    prices = [estimate.usd for estimate in passes if estimate.usd is not None]
    if 1 < len(passes) == len(prices):
        click.echo(f"\nboth     about ${sum(prices):,.2f}")
    other = "" if passes[0].before else _other_model(config, passes[0].model)
    click.echo(escape_controls(f"outputs  {config.out}{other}"))


def _other_model(config: Config, model: str) -> str:
    """Return that a local OUT has a run of another model, which refuses this one; "" if it has none. A plan needs no
    access to a bucket."""
    run = None
    if not (config.overwrite or is_remote(config.out)):
        with contextlib.suppress(CheckpointError):  # the run reports it
            run = read(config.stores.out(config.out))
    own = run.identity.get("model", model) if run else model
    if own == model or (find(own) is not None and find(own) == find(model)):
        return ""
    return f", which holds another run (model was {own}): give another OUT by -o"


def _engine_elsewhere(config: Config) -> str | None:
    """Return the engine for GPUs that a run on this machine, which has none, would need; None if it needs none."""
    if engines.has_gpu() or steps_of(config).engines is not ENGINES:
        return None
    names = engines_of(config.model) if config.engine == AUTO and config.model else {config.engine}
    needed = [name for name in ENGINES if name in names and ENGINES[name].uses_gpu]
    return needed[0] if needed and len(needed) == len(names) and engines.install_command(needed[0]) else None


def _lines_elsewhere(config: Config, engine: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the plan of a run on other machines: time and cost for each GPU whose speed is
    known."""
    workload = measure_workload(config)
    yield "engine", f"{engine} (model {config.model or 'of the engine'}), on another machine: this one shows no GPU"
    yield "items", f"{workload.items:,}"
    yield "audio", f"{format_duration(workload.audio_s)} in total"
    plans = [(gpu, plan) for gpu in GPU_SPECS if (plan := _plan_elsewhere(config, engine, workload, gpu))]
    yield from ((re.split("[ -]", gpu)[1], plan) for gpu, plan in plans)
    if plans:
        yield "speeds", "calculated, or measured with made-up weights; without the start of the machine"
    else:
        yield "time", "unknown: give --expected-rtfx, and --usd-per-hour for the cost"
    yield "outputs", config.out


def _plan_elsewhere(config: Config, engine: str, workload: Workload, gpu: str) -> str:
    """Return the time and the cost on a GPU by NVML's name, at the price that is given or else at that of the cheapest
    machine of the table; "" if the speed is unknown."""
    calculated = None if config.expected_rtfx else calculate_speed(config, engine, workload, gpu)
    model = find(config.model or "", engine)
    measured = model.rtfx if model and gpu == MEASURED_GPU else None
    rtfx = config.expected_rtfx or (calculated.rtfx if calculated else measured)
    if not rtfx:
        return ""
    error = f" (may be {100 * calculated.error:.0f} % off)" if calculated else ""
    time = f"about {format_duration(workload.audio_s / rtfx)} at RTFx {rtfx:,g}{error}"
    machine = cheapest(gpu)
    price = config.usd_per_hour or (machine and machine.usd_per_hour)
    if not price:
        return time
    usd = workload.audio_s / rtfx / 3600 * price
    of = "" if config.usd_per_hour or not machine else f", {machine.title or machine.machine}"
    return f"{time}, {f'about ${usd:,.2f}' if usd >= 0.01 else 'less than $0.01'} at ${price:g} an hour{of}"


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
        *([("fetch", p.fetch)] if p.fetch else []),
        *([("before", p.before)] if p.before else []),
        ("items", f"{p.items:,} to do" if p.before else f"{p.items:,}"),
        ("audio", format_audio(p)),
        *([] if p.chunks is None else [steps_of(config).size(p.audio_s, p.chunks)]),
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
    """Return an amount of audio for people: "3:22, 3 items by the headers of a sample", "about 2:11, …"."""
    amount = f"{p.audio_s / 3600:,.1f} hours" if p.audio_s >= 3600 else format_duration(p.audio_s)
    if p.unknown_items:
        known = f"{amount}, and " if p.audio_s else ""
        items = counted(p.unknown_items, "item")
        return f"{known}{items} of unknown duration: the headers of a sample do not tell it"
    about = "about " if p.is_about else ""
    estimated = f", {counted(p.estimated_items, 'item')} by the headers of a sample" if p.estimated_items else ""
    return f"{about}{amount}{estimated}" if estimated else amount
