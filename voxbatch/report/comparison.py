"""Fill the template of a comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxbatch.report.page import asset, environment, inline_source


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """An item of a comparison: its words in columns of the reference, A and B. An error is in brackets."""

    name: str
    counts: str
    labels: Sequence[str]
    columns: Sequence[Sequence[str]]


def render_comparison(
    verdict: str, facts: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], items: Sequence[ComparedItem]
) -> bytes:
    """Return the page of a comparison.

    Args:
        verdict: which side is better.
        facts: lines below it.
        rows: (label, values of A and B).
        items: the items that changed most.
    """
    style = asset("page.css")
    text: str = environment().get_template("comparison.html.jinja").render(
        policy=f"default-src 'none'; style-src {inline_source(style)}; base-uri 'none'; form-action 'none'",
        style=style, verdict=verdict, facts=facts, rows=rows, items=items,
    )  # fmt: skip
    return text.encode("utf-8", "replace")
