"""Draw docs/images/costs.svg from voxbatch/prices.yaml: the cost of 10,000 hours of audio, by machine and service.

python docs/make_costs_chart.py
"""

from __future__ import annotations

from pathlib import Path

import pygal
from make_costs import HOURS, compared, forecast, speed_of
from pygal.style import Style

from voxbatch import prices

PLACE = Path(__file__).parent / "images" / "costs.svg"
MODELS = ("Voxtral Realtime", "Parakeet")
"""Models of the chart. The tables of the page have the others."""
SIZES = {"label_font_size": 11, "value_font_size": 11}


def chart() -> pygal.HorizontalStackedBar:
    """Return the chart of the costs of HOURS of audio, on a logarithmic axis, the dearest last."""
    ours = [
        (f"{model}, {machine.title}".replace("`", ""), sum(expected.usd) / 2)
        for name, machine in compared().items()
        for model in MODELS
        if (speed := speed_of(model, machine.gpu))
        if (expected := forecast(name, speed)).usd
    ]
    theirs = [(entry.service, HOURS * entry.usd_per_hour) for entry in prices.services()]
    bars = sorted([*((name, usd, None) for name, usd in ours), *((name, None, usd) for name, usd in theirs)], key=_usd)
    drawn = pygal.HorizontalStackedBar(
        width=900,
        height=120 + 22 * len(bars),
        logarithmic=True,
        zero=1,
        y_labels=[10**power for power in range(5)],
        disable_xml_declaration=True,
        js=(),
        no_prefix=True,
        style=Style(background="white", plot_background="white", font_family="sans-serif", **SIZES),
        title=f"USD for {HOURS:,} hours of audio, with the starts of the machines",
        legend_at_bottom=True,
        truncate_legend=-1,
        truncate_label=-1,
        print_values=True,
        value_formatter=lambda usd: f"{usd:,.0f}" if usd else "",
    )
    drawn.x_labels = [name for name, *_ in bars]
    drawn.add("voxbatch, speeds modelled or measured with made-up weights", [usd for _, usd, _ in bars])
    drawn.add("services", [usd for *_, usd in bars])
    return drawn


def _usd(bar: tuple[str, float | None, float | None]) -> float:
    return bar[1] or bar[2] or 0.0


if __name__ == "__main__":
    PLACE.write_text(chart().render())
