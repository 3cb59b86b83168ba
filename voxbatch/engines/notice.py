"""What an engine has to say to people, between its results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    is_warning: bool = False
