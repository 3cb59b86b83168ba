"""Messages of an engine to the user, which it yields between its results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of an engine to the user."""

    text: str
    is_warning: bool = False
    is_progress: bool = False
    """True for the state of a download, which the next message replaces: it is shown in the progress, not as a line of
    the log. An empty text is only a sign of life, from an engine that works on a long chunk."""
