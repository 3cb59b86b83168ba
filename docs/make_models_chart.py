"""Draw docs/images/models.svg and models-cpu.svg from the table of models: published word error rate against speed; of
GPUs with the price by size.

python docs/make_models_chart.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pygal
from pygal.style import Style

from voxbatch import prices
from voxbatch.engines.known_models import KNOWN_MODELS, find
from voxbatch.profiles import load_profile

IMAGES = Path(__file__).parent / "images"
PLACE, CPU_PLACE = IMAGES / "models.svg", IMAGES / "models-cpu.svg"
RADIUS = 3.0
"""Pixels of the radius of the cheapest model; the area is in proportion to the price of an hour of audio."""


def chart() -> pygal.XY:
    """Return the chart of the models that have a published word error rate and a measured speed."""
    models = [model for model in KNOWN_MODELS if model.wer is not None and model.rtfx]
    cheapest = max(model.rtfx or 0 for model in models)
    usd_per_hour = prices.machines()[prices.RENTED_H200].usd_per_hour
    drawn = _empty(
        title="Published WER and speed on one H200 (area: price of an hour of audio)",
        x_title="times real time, measured with made-up weights",
        y_title="WER in %, Open ASR Leaderboard",
        range=(4, 9),
    )
    for model in sorted(models, key=lambda model: -(model.rtfx or 0)):
        speed = model.rtfx or 1
        usd = f"{usd_per_hour / speed:.4f} USD an hour"
        radius = RADIUS * (cheapest / speed) ** 0.5
        drawn.add(f"{model.name}: {usd}", [{"value": (speed, model.wer), "node": {"r": round(radius, 1)}}])
    return drawn


def cpu_chart() -> pygal.XY:
    """Return the chart of Whisper's sizes on two cores: the speed of tiny.en is that of the profile cpu, and those of
    the others follow from their operations."""
    models = [model for model in KNOWN_MODELS if model.clean and model.gmac]
    tiny = find("tiny.en")
    assert tiny
    assert tiny.gmac
    rate = load_profile("cpu")["expected_rtfx"] * tiny.gmac
    drawn = _empty(
        title="Published WER and speed of Whisper on two cores",
        x_title="times real time, logarithmic; tiny.en is measured, the others are calculated",
        y_title="WER in %, LibriSpeech test-clean",
        range=(1, 8),
        logarithmic=True,
    )
    for model in models:
        speed = float(f"{rate / (model.gmac or 1):.2g}")
        drawn.add(f"{model.name}: {speed:g}", [{"value": (speed, model.clean), "node": {"r": RADIUS}}])
    return drawn


def _empty(**settings: Any) -> pygal.XY:
    """Return a chart without models that loads nothing."""
    style = Style(background="white", plot_background="white", font_family="sans-serif", label_font_size=13)
    size = {"width": 900, "height": 480, "legend_at_bottom": True, "legend_at_bottom_columns": 2, "truncate_legend": -1}
    plain = {"stroke": False, "disable_xml_declaration": True, "js": (), "no_prefix": True, "style": style}
    return pygal.XY(**{**size, **plain, **settings})


if __name__ == "__main__":
    PLACE.write_text(chart().render())
    CPU_PLACE.write_text(cpu_chart().render())
