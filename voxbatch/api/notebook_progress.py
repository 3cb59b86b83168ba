"""Show the progress of a run below the cell of a notebook. Elsewhere nothing is shown that nobody asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape

from voxbatch.display import amounts, progress_line
from voxbatch.runner import Progress

REFRESH_S = 0.5
"""Seconds between two updates: each is a message to the browser."""


def notebook_progress() -> Callable[[Progress], None] | None:
    """Return a function that shows a bar and one line, and changes them in place. None outside of a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    handle = ipython.display.display(_views(0.0, "the run begins"), raw=True, display_id=True)
    shown_at = time.monotonic()

    def show(p: Progress) -> None:
        nonlocal shown_at
        if p.committed == p.items:
            handle.update(_views(1.0, " · ".join(amounts(p))), raw=True)
        elif (now := time.monotonic()) - shown_at >= REFRESH_S:
            shown_at = now
            handle.update(_views(p.fraction, progress_line(p)), raw=True)

    return show


def _views(fraction: float, line: str) -> dict[str, str]:
    """Return the progress for a browser, and for a notebook that is shown as text."""
    return {"text/plain": line, "text/html": f'<progress value="{fraction:.3f}"></progress> {escape(line)}'}
