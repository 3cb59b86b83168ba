"""Parts of the pictures of the documentation.

A picture is an SVG of `WIDTH` units with text of 17 units or more, so that a phone shows it readably. It takes the
fonts of the reader's system, and light or dark colours as the page has them: it loads nothing.
"""

from __future__ import annotations

from html import escape

WIDTH = 640
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"
LIGHT = {
    "ink": "#1b262c",
    "quiet": "#5a6870",
    "line": "#b8c4c9",
    "panel": "#f2f6f6",
    "paper": "#ffffff",
    "accent": "#00796b",
    "soft": "#cfe8e4",
    "second": "#b4530a",
    "faint": "#fbe6d3",
    "bad": "#b3261e",
}
"""Colours of the roles on a light page. Each text has a contrast of 4.5 or more to `paper` and `panel`."""
DARK = {
    "ink": "#e6ecee",
    "quiet": "#a3b1b7",
    "line": "#4d5a61",
    "panel": "#232c31",
    "paper": "#171d21",
    "accent": "#4db6a6",
    "soft": "#12423c",
    "second": "#f0a35e",
    "faint": "#4a2f17",
    "bad": "#ff8a80",
}
"""The same roles on a dark page."""


def style(extra: str = "") -> str:
    """Return the style sheet of a picture: the classes fill-ROLE and line-ROLE for each role, and `extra`."""
    light, dark = ("".join(f"--{role}:{colour};" for role, colour in roles.items()) for roles in (LIGHT, DARK))
    fills = "".join(f".fill-{role}{{fill:var(--{role})}}" for role in LIGHT)
    lines = "".join(f".line-{role}{{stroke:var(--{role});fill:none}}" for role in LIGHT)
    return (
        f"<style>svg{{{light}}}@media (prefers-color-scheme: dark){{svg{{{dark}}}}}"
        f"text{{font-family:{SANS};font-size:18px;fill:var(--ink)}}.mono{{font-family:{MONO};font-size:17px}}"
        f".bold{{font-weight:600}}{fills}{lines}{extra}</style>"
    )


def picture(parts: list[str], height: float, title: str, *, extra: str = "", width: float = WIDTH) -> str:
    """Return the file of a picture that shows `parts`; `title` is for readers who do not see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">\n<title>{escape(title)}</title>\n{style(extra)}\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def text(x: float, y: float, words: str, classes: str = "", anchor: str = "start") -> str:
    """Return a line of text whose baseline starts, ends or has its middle at a point."""
    return f'<text x="{x:g}" y="{y:g}" class="{classes}" text-anchor="{anchor}">{escape(words, quote=False)}</text>'


def box(x: float, y: float, width: float, height: float, classes: str = "fill-panel", radius: float = 8) -> str:
    """Return a rectangle with round corners."""
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} rx="{radius:g}" class="{classes}"/>'


def path(commands: str, classes: str = "line-quiet", width: float = 2) -> str:
    """Return a line along an SVG path."""
    return f'<path d="{commands}" class="{classes}" stroke-width="{width:g}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, classes: str = "quiet") -> str:
    """Return a straight arrow, level or upright, whose point is at (to_x, to_y)."""
    size = 7
    dx, dy = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    back_x, back_y = to_x - dx * size, to_y - dy * size
    side_x, side_y = dy * size * 0.7, dx * size * 0.7
    point = f"M{to_x:g} {to_y:g}L{back_x + side_x:g} {back_y + side_y:g}L{back_x - side_x:g} {back_y - side_y:g}z"
    return (
        path(f"M{x:g} {y:g}L{back_x:g} {back_y:g}", f"line-{classes}") + f'<path d="{point}" class="fill-{classes}"/>'
    )
