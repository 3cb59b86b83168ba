"""Messages of an engine to the user, which it yields between its results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of an engine to the user."""

    text: str
    is_warning: bool = False
