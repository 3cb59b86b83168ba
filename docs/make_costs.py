"""Write the tables of docs/costs.md from voxbatch/prices.yaml. make_costs_chart.py draws the chart.

python docs/make_costs.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from voxbatch import prices
from voxbatch.clouds.submit import CloudRun, Forecast, SageMaker, task_count
from voxbatch.clouds.submit.submission import GPU_START
from voxbatch.prices import Machine, Speed

PAGE = Path(__file__).parent / "costs.md"
HOURS = 10_000
"""Hours of audio of the tables, in recordings of one hour."""
NAMES = {"NVIDIA L4": "L4", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}
"""Names of the GPUs for people, by NVML's names."""
MARK = "<!-- {} of prices.yaml, by docs/make_costs.py -->\n\n"
"""Line and empty line before a generated table."""


def forecast(name: str, speed: Speed) -> Forecast:
    """Return the forecast of HOURS of audio on the machines of an entry of prices.yaml, as `voxbatch submit` makes it.

    On Cloud Run a task works for up to 50 minutes, on other machines for up to 4 hours, as on SageMaker.
    """
    limits = CloudRun if name == prices.CLOUD_RUN_L4 else SageMaker
    audio_s = 3600.0 * HOURS
    tasks = task_count(audio_s, HOURS, speed.rtfx, limits.task_hours, limits.max_tasks, GPU_START.average_s)
    price = prices.machines()[name].usd_per_hour
    return Forecast(HOURS, audio_s, 0, 0, tasks, speed.rtfx, price, None, GPU_START, full_rtfx=speed.rtfx)


def compared() -> dict[str, Machine]:
    """Return the machines that have a title."""
    return {name: machine for name, machine in prices.machines().items() if machine.title}


def models() -> list[str]:
    """Return the names of the models. All of them have a speed on an H200."""
    return [speed.model for speed in prices.speeds() if speed.gpu == "NVIDIA H200"]


def speed_of(model: str, gpu: str | None) -> Speed | None:
    """Return the speed of a model on a GPU, or None if it is unknown."""
    return next((speed for speed in prices.speeds() if (speed.model, speed.gpu) == (model, gpu)), None)


def day(known: date | str | None) -> str:
    """Return a day for people."""
    return f"{known}" if known else "unknown"


def machines() -> list[list[str]]:
    """Return the table of the machines' prices."""
    head = ["machine", "USD an hour", "price of"]
    rows = [
        [f"`{name}`: {entry.machine.replace('one NVIDIA ', '')}", f"{entry.usd_per_hour:g}", day(entry.priced_on)]
        for name, entry in prices.machines().items()
    ]
    return [head, *rows]


def speeds() -> list[list[str]]:
    """Return the table of the models' speeds."""
    return [["RTFx", *NAMES.values()], *([model, *(_speed(model, gpu) for gpu in NAMES)] for model in models())]


def _speed(model: str, gpu: str) -> str:
    speed = speed_of(model, gpu)
    if speed is None:
        return "no figure"
    error = f" ± {100 * speed.error:.0f} %" if speed.error else ""
    measured = f": {speed.source}" if speed.kind == "measured" else ""
    return f"{speed.rtfx:,}{error}, {speed.kind}{measured}"


def costs() -> list[list[str]]:
    """Return the table of the costs of HOURS of audio: machines by models whose speed is known on several GPUs."""
    shown = [model for model in models() if sum(speed_of(model, gpu) is not None for gpu in NAMES) > 1]
    head = [f"USD for {HOURS:,} hours", *shown]
    rows = []
    for name, machine in compared().items():
        known = [speed_of(model, machine.gpu) for model in shown]
        cells = [_cost(speed, forecast(name, speed)) if speed else "" for speed in known]
        rows.append([machine.title or "", *cells])
    return [head, *rows]


def _cost(speed: Speed, expected: Forecast) -> str:
    """Return the mean cost with the starts, and its range if the speed is modelled: "110 (85 to 156)"."""
    (shortest, longest), work_usd = expected.start_usd or (0.0, 0.0), expected.work_usd or 0.0
    mean = work_usd + (shortest + longest) / 2
    digits = 0 if mean >= 10 else 1
    if not speed.error:
        return f"{mean:,.{digits}f}"
    lowest, highest = work_usd / (1 + speed.error) + shortest, work_usd / (1 - speed.error) + longest
    return f"{mean:,.{digits}f} ({lowest:,.{digits}f} to {highest:,.{digits}f})"


def services() -> list[list[str]]:
    """Return the table of the services' prices."""
    head = ["service", "USD an hour of audio", "price of, by"]
    rows = [
        [entry.service, f"{entry.usd_per_hour:g}", f"[{day(entry.priced_on)}]({entry.source})"]
        for entry in prices.services()
    ]
    return [head, *rows]


TABLES = {"machines": machines, "speeds": speeds, "costs": costs, "services": services}


def page(text: str) -> str:
    """Return a page with its generated tables written anew."""
    for name, table in TABLES.items():
        before, mark, after = text.partition(MARK.format(name))
        if not mark:
            raise SystemExit(f"{PAGE}: this line is missing: {MARK.format(name)}")
        text = before + mark + _markdown(table()) + re.sub(r"\A(?:\|.*\n)*", "", after)
    return text


def _markdown(rows: Iterable[list[str]]) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, *body]).replace(
        "\n", f"\n|{'---|' * len(head)}\n", 1
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
