"""Draw docs/images/models.svg from the table of models: published word error rate against speed, price by size.

python docs/make_models_chart.py
"""

from __future__ import annotations

from pathlib import Path

import pygal
from pygal.style import Style

from voxbatch import prices
from voxbatch.engines.known_models import KNOWN_MODELS

PLACE = Path(__file__).parent / "images" / "models.svg"
RADIUS = 3.0
"""Pixels of the radius of the cheapest model; the area is in proportion to the price of an hour of audio."""


def chart() -> pygal.XY:
    """Return the chart of the models that have a published word error rate and a measured speed."""
    models = [model for model in KNOWN_MODELS if model.wer is not None and model.rtfx]
    cheapest = max(model.rtfx or 0 for model in models)
    usd_per_hour = prices.machines()[prices.RENTED_H200].usd_per_hour
    drawn = pygal.XY(
        stroke=False,
        width=900,
        height=480,
        logarithmic=False,
        disable_xml_declaration=True,
        js=(),
        no_prefix=True,
        style=Style(background="white", plot_background="white", font_family="sans-serif", label_font_size=13),
        title="Published WER and speed on one H200 (area: price of an hour of audio)",
        x_title="times real time, measured with made-up weights",
        y_title="WER in %, Open ASR Leaderboard",
        legend_at_bottom=True,
        legend_at_bottom_columns=2,
        truncate_legend=-1,
        range=(4, 9),
    )
    for model in sorted(models, key=lambda model: -(model.rtfx or 0)):
        speed = model.rtfx or 1
        usd = f"{usd_per_hour / speed:.4f} USD an hour"
        radius = RADIUS * (cheapest / speed) ** 0.5
        drawn.add(f"{model.name}: {usd}", [{"value": (speed, model.wer), "node": {"r": round(radius, 1)}}])
    return drawn


if __name__ == "__main__":
    PLACE.write_text(chart().render())
