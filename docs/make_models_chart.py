"""Draw docs/images/models.svg and models-cpu.svg from the table of models: published word error rate against speed; of
GPUs with the price by size.

python docs/make_models_chart.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import svg

from voxbatch import prices
from voxbatch.engines.known_models import KNOWN_MODELS, find
from voxbatch.profiles import load_profile

IMAGES = Path(__file__).parent / "images"
PLACE, CPU_PLACE = IMAGES / "models.svg", IMAGES / "models-cpu.svg"
LEFT, TOP, RIGHT, BOTTOM = 52.0, 66.0, 604.0, 500.0
"""Edges of the field with the points."""
RADIUS = 6.0
"""Radius of the cheapest model; the area is in proportion to the price of an hour of audio."""
LETTER, ROW = 10.0, 21.0
"""Width of a letter, at most, and height of a line of text."""


@dataclass(frozen=True)
class Point:
    """A model: times real time, word error rate in percent, and the lines of its label."""

    speed: float
    wer: float
    label: tuple[str, ...]
    radius: float = RADIUS


@dataclass(frozen=True)
class Axes:
    """The ticks of both axes, of which the first and the last are the edges. That of the speed is logarithmic."""

    title: str
    speed: str
    wer: str
    speeds: tuple[float, ...]
    wers: tuple[int, ...]

    def x(self, speed: float) -> float:
        """Return the place of a speed."""
        low, high = self.speeds[0], self.speeds[-1]
        return LEFT + (RIGHT - LEFT) * math.log(speed / low) / math.log(high / low)

    def y(self, wer: float) -> float:
        """Return the place of a word error rate."""
        low, high = self.wers[0], self.wers[-1]
        return BOTTOM - (BOTTOM - TOP) * (wer - low) / (high - low)


def chart() -> str:
    """Return the chart of the models that have a published word error rate and a measured speed."""
    models = [model for model in KNOWN_MODELS if model.wer is not None and model.rtfx]
    cheapest = max(model.rtfx or 0 for model in models)
    usd_per_hour = prices.machines()[prices.RENTED_H200].usd_per_hour
    points = []
    for model in models:
        speed = model.rtfx or 1
        label = (model.name.rpartition("/")[2], f"{usd_per_hour / speed:.4f} USD an hour")
        points.append(Point(speed, model.wer or 0, label, RADIUS * math.sqrt(cheapest / speed)))
    axes = Axes(
        title="Models on one H200: published WER, speed and price",
        speed="times real time, measured with made-up weights",
        wer="WER in %, Open ASR Leaderboard",
        speeds=(500, 1000, 2000, 5000, 10_000, 20_000),
        wers=(5, 6, 7, 8),
    )
    return _drawn(axes, points)


def cpu_chart() -> str:
    """Return the chart of Whisper's sizes on two cores: the speed of tiny.en is that of the profile cpu, and those of
    the others follow from their operations."""
    tiny = find("tiny.en")
    assert tiny
    assert tiny.gmac
    rate = load_profile("cpu")["expected_rtfx"] * tiny.gmac
    sizes = [model for model in KNOWN_MODELS if model.clean and model.gmac]
    points = [Point(rate / (model.gmac or 1), model.clean or 0, (model.name,)) for model in sizes]
    axes = Axes(
        title="Whisper on two cores: published WER and speed",
        speed="times real time; tiny.en is measured, the others calculated",
        wer="WER in %, LibriSpeech test-clean",
        speeds=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
        wers=(1, 2, 3, 4, 5, 6, 7, 8),
    )
    return _drawn(axes, points)


def _drawn(axes: Axes, points: Sequence[Point]) -> str:
    drawn = [svg.text(10, 24, axes.title, "bold"), svg.text(10, 50, axes.wer, "fill-quiet")]
    for wer in axes.wers:
        drawn += [svg.path(f"M{LEFT:g} {axes.y(wer):.1f}H{RIGHT:g}", "line-line", 1)]
        drawn += [svg.text(LEFT - 12, round(axes.y(wer) + 6, 1), f"{wer}", "fill-quiet", "end")]
    for speed in axes.speeds:
        drawn += [svg.text(round(axes.x(speed), 1), BOTTOM + 26, f"{speed:,g}", "fill-quiet", "middle")]
    drawn += [svg.text(RIGHT, BOTTOM + 54, axes.speed, "fill-quiet", "end")]
    taken = [_square(axes, point) for point in points]
    for point in points:
        place = f'cx="{axes.x(point.speed):.1f}" cy="{axes.y(point.wer):.1f}" r="{point.radius:.1f}"'
        drawn += [f'<circle {place} class="fill-accent" fill-opacity="0.8"/>']
        label = _place(axes, point, taken)
        taken.append(label)
        for number, line in enumerate(point.label):
            classes = "fill-quiet" if number else "bold"
            drawn += [svg.text(round(label[0], 1), round(label[1] + 16 + ROW * number, 1), line, classes)]
    return svg.picture(drawn, BOTTOM + 66, f"{axes.title}, as points")


Rectangle = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def _square(axes: Axes, point: Point) -> Rectangle:
    x, y = axes.x(point.speed), axes.y(point.wer)
    return (x - point.radius, y - point.radius, x + point.radius, y + point.radius)


def _place(axes: Axes, point: Point, taken: Sequence[Rectangle]) -> Rectangle:
    """Return the place of a label: the one nearest to its point that covers no point and no other label."""
    width, height = LETTER * max(map(len, point.label)), ROW * len(point.label)
    left, top, right, bottom = _square(axes, point)
    middle = (top + bottom - height) / 2
    columns = (right + 5, left - 5 - width, (left + right - width) / 2)
    sides = sorted(
        ((x, middle + dy) for x in columns for dy in range(-100, 101, 4)), key=lambda side: abs(side[1] - middle)
    )
    free = [
        (x, y, x + width, y + height)
        for x, y in sides
        if x >= LEFT and x + width <= RIGHT and y + height <= BOTTOM
        if not any(x < b and a < x + width and y < d and c < y + height for a, c, b, d in taken)
    ]
    assert free, f"no place for {point.label}"
    return free[0]


if __name__ == "__main__":
    PLACE.write_text(chart())
    CPU_PLACE.write_text(cpu_chart())
