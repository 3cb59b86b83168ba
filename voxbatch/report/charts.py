"""Draw the charts as inline SVG, with pygal.

Of pygal's drawing only the shapes and the texts stay. Its style sheet, its script and its comment, which has the date,
are removed: the page's own style sheet colours the classes, so that a chart follows light and dark, and the same
figures give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

WIDTH, HEIGHT = 480, 180
"""Units of the drawing. The page scales it to the column's width."""


def bars(labels: Sequence[str], values: Sequence[float | None], titles: Sequence[str], show: Callable[[float], str],
         every: int = 1) -> str:  # fmt: skip
    """Return a bar chart.

    Args:
        titles: text of each bar for a pointer that rests on it.
        show: text of a value on the axis.
        every: one label in so many is shown.
    """
    chart = _chart(_pygal().Bar, show, margin_bottom=4)
    chart.x_labels = [label if i % every == 0 else "" for i, label in enumerate(labels)]
    chart.add("", list(values))
    return _svg(chart, titles)


def area(points: Sequence[tuple[float, float]], show_x: Callable[[float], str], show: Callable[[float], str]) -> str:
    """Return a filled line through the points."""
    chart = _chart(_pygal().XY, show, fill=True, show_dots=False, x_value_formatter=show_x, include_x_axis=True)
    chart.add("", list(points))
    return _svg(chart, [])


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


def _chart(kind: Any, show: Callable[[float], str], **settings: Any) -> Any:
    return kind(
        width=WIDTH, height=HEIGHT, js=[], show_legend=False, margin=8, spacing=6, truncate_label=-1, min_scale=3,
        max_scale=5, value_formatter=show, **settings,
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
