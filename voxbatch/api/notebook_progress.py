"""Show the progress of the work below the cell of a notebook. Elsewhere nothing is shown that nobody asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from voxbatch.api.segment_stream import SegmentStream
from voxbatch.display import amounts, format_duration, progress_line
from voxbatch.records import Transcript
from voxbatch.runner import Progress

REFRESH_S = 0.5
"""Seconds between two updates: each is a message to the browser."""


def notebook_progress() -> Callable[[Progress], None] | None:
    """Return a function that shows a bar and one line, and changes them in place. None outside of a Jupyter kernel."""
    if not in_notebook():
        return None
    handle, shown_at = _displayed(_views(0.0, "the run begins")), time.monotonic()

    def show(p: Progress) -> None:
        nonlocal shown_at
        if p.committed == p.items:
            handle.update(_views(1.0, " · ".join(amounts(p))), raw=True)
        elif (now := time.monotonic()) - shown_at >= REFRESH_S:
            shown_at = now
            handle.update(_views(p.fraction, progress_line(p)), raw=True)

    return show


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def shown_result(segments: SegmentStream) -> Transcript:
    """Return the transcript of a recording, and show below the cell how far the work is."""
    handle, shown_at = _displayed(_views(None, "the model is being loaded")), time.monotonic()
    with segments:
        for segment in segments:
            if time.monotonic() - shown_at >= REFRESH_S:
                shown_at = time.monotonic()
                handle.update(_views(None, f"{format_duration(segment.end)} transcribed"), raw=True)
        transcript = segments.result()
    handle.update(_views(1.0, f"{format_duration(transcript.audio_duration)} transcribed"), raw=True)
    return transcript


def _displayed(views: dict[str, str]) -> Any:
    """Show views below the cell, and return their handle."""
    return sys.modules["IPython"].display.display(views, raw=True, display_id=True)


def _views(fraction: float | None, line: str) -> dict[str, str]:
    """Return the progress for a browser, and for a notebook that is shown as text. None is an unknown fraction."""
    value = "" if fraction is None else f' value="{fraction:.3f}"'
    return {"text/plain": line, "text/html": f"<progress{value}></progress> {escape(line)}"}
