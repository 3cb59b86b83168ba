"""Draw the charts as inline SVG, with pygal.

Of pygal's drawing only the shapes and the texts stay. Its style sheet, its script and its comment, which has the date,
are removed: the page's own style sheet colours the classes, so that a chart follows light and dark, and the same
figures give the same bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

WIDTH, HEIGHT = 480, 180
"""Units of the drawing. The page scales it to the column's width."""
MOST_STEPS = 5
"""Most steps of an axis."""
LEAST = 1e-9
"""Value below which an axis shows no difference from 0."""


def bars(labels: Sequence[str], values: Sequence[float], titles: Sequence[str], unit: str = "", every: int = 1) -> str:
    """Return a bar chart.

    Args:
        titles: text of each bar for a pointer that rests on it.
        unit: of the values on their axis: "" for counts, "%" for rates.
        every: one label in so many is shown.
    """
    chart = _chart(_pygal().Bar, margin_bottom=4)
    chart.x_labels = [label if i % every == 0 else "" for i, label in enumerate(labels)]
    chart.y_labels = ticks(max(values), unit)
    chart.add("", list(values))
    return _svg(chart, titles)


def area(points: Sequence[tuple[float, float]], unit_x: str, unit: str) -> str:
    """Return a filled line through the points, whose last one has the largest values.

    Args:
        unit_x, unit: of the two axes.
    """
    chart = _chart(_pygal().XY, fill=True, show_dots=False, include_x_axis=True)
    chart.x_labels, chart.y_labels = ticks(points[-1][0], unit_x), ticks(points[-1][1], unit)
    chart.add("", list(points))
    return _svg(chart, [])


def ticks(largest: float, unit: str) -> list[dict[str, Any]]:
    """Return the values of an axis from 0, and their texts, which differ: they have the digits of the step.

        ticks(0.07, "%")  →  0 %, 2 %, 4 %, 6 %, 8 %        ticks(1, "")  →  0, 1

    Args:
        unit: "" for counts, whose steps are whole numbers.
    """
    scale = 100 if unit == "%" else 1
    largest = largest * scale if largest > LEAST else 1.0
    power = 10.0 ** math.floor(math.log10(largest / MOST_STEPS))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if largest / step <= MOST_STEPS)
    step = max(1.0, step) if not unit else step
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    space = "" if unit in ("", "%") else " "
    return [
        {"value": number * step / scale, "label": f"{number * step:,.{digits}f}{space}{unit}"}
        for number in range(math.ceil(largest / step - 1e-9) + 1)
    ]


@cache
def _pygal() -> Any:
    """Import pygal, without two of its habits.

    It takes lxml where lxml is installed, whose elements differ from those that `_svg` changes. Its finder of plugins
    is of a kind that Python deprecates: Python warns about it whenever anything is imported later.
    """
    import pygal
    from pygal.etree import etree

    etree.to_etree()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]
    return pygal


def _chart(kind: Any, **settings: Any) -> Any:
    return kind(
        width=WIDTH, height=HEIGHT, js=[], show_legend=False, margin=8, spacing=6, truncate_label=-1, **settings,
    )  # fmt: skip


def _svg(chart: Any, titles: Sequence[str]) -> str:
    """Return the drawing as text, hidden from screen readers: the page gives its figures as a sentence."""
    import xml.etree.ElementTree as ET

    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _LEFT_OUT or callable(child.tag) or "tooltip-overlay" in child.get("class", ""):
                parent.remove(child)
        parent.attrib.pop("style", None)
    for bar, title in zip((g for g in root.iter("g") if g.get("class") == "bar"), titles, strict=False):
        ET.SubElement(bar, "title").text = title
    root.attrib = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "class": "chart", "aria-hidden": "true"}
    return ET.tostring(root, encoding="unicode")


_LEFT_OUT = {"defs", "desc", "title"}
