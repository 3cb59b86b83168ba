"""Draw docs/images/costs.svg from voxbatch/prices.yaml: the cost of 10,000 hours of audio, by machine and service.

python docs/make_costs_chart.py
"""

from __future__ import annotations

import math
from pathlib import Path

import svg
from make_costs import HOURS, compared, forecast, speed_of

from voxbatch import prices

PLACE = Path(__file__).parent / "images" / "costs.svg"
MODELS = ("Voxtral Realtime", "Parakeet")
"""Models of the chart. The tables of the page have the others."""
TOP, ROW = 78.0, 29.0
"""Top of the first bar, and the distance between two."""
DECADE = 150.0
"""Length of a bar for 10 USD. The scale is logarithmic: 100 USD have two of it."""


def chart() -> str:
    """Return the chart of the costs of HOURS of audio, the dearest first. A bar lies behind its name."""
    ours = [
        (f"{model}, {machine.title}".replace("`", ""), sum(expected.usd) / 2, "fill-soft")
        for name, machine in compared().items()
        for model in MODELS
        if (speed := speed_of(model, machine.gpu))
        if (expected := forecast(name, speed)).usd
    ]
    theirs = [(entry.service, HOURS * entry.usd_per_hour, "fill-faint") for entry in prices.services()]
    bars = sorted([*ours, *theirs], key=lambda bar: -bar[1])
    title = f"USD for {HOURS:,} hours of audio, starts included"
    drawn = [svg.text(10, 24, title, "bold"), svg.text(630, 24, "logarithmic", "fill-quiet", "end")]
    drawn += [svg.box(10, 44, 18, 18, "fill-faint", 3), svg.text(36, 59, "services")]
    drawn += [svg.box(136, 44, 18, 18, "fill-soft", 3), svg.text(162, 59, "voxbatch: modelled, or made-up weights")]
    for number, (name, usd, classes) in enumerate(bars):
        y = TOP + ROW * number
        drawn += [svg.box(10, y, round(DECADE * math.log10(usd), 1), ROW - 4, classes, 3)]
        drawn += [svg.text(18, y + 18, name), svg.text(630, y + 18, f"{usd:,.0f}", "bold", "end")]
    return svg.picture(drawn, TOP + ROW * len(bars) + 8, title)


if __name__ == "__main__":
    PLACE.write_text(chart())
