"""Say in one line what a run of the tests left out, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def in_words(reasons: Iterable[str]) -> str:
    """Return the reasons of skipped tests with their numbers, the commonest first. Each ends in a semicolon.

    >>> in_words(["Skipped: takes jq", "Skipped: takes root", "Skipped: takes jq"])
    ' 2 × takes jq; 1 × takes root;'
    """
    counts = Counter(" ".join(reason.removeprefix("Skipped: ").split()) for reason in reasons)
    return "".join(f" {count} × {reason};" for reason, count in counts.most_common())
