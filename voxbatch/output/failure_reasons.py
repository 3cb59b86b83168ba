"""Short reasons of the failures of a run, for the end of its report."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from voxbatch.errors import AudioError, LanguageError, TranscriptionError
from voxbatch.output.layout import FAILURES
from voxbatch.storage import Store

MAX_LINES = 10_000
"""Lines of failures.jsonl that are read for the reasons. A bucket gives them in a second or two."""

_BY_ERROR = {
    AudioError.__name__: "damaged or not audio",
    LanguageError.__name__: "of a language that the model does not know",
    TranscriptionError.__name__: "refused by the engine",
}
"""Reason by the name of the error, if the message says nothing more special."""
_BY_MESSAGE = (
    (re.compile(r"no such file|does not exist|not found|\b404\b", re.IGNORECASE), "no such file"),
    (re.compile(r"permission denied|access denied|denies access|forbidden|\b40[13]\b", re.IGNORECASE), "access denied"),
    (re.compile(r"unreachable|timed out|does not answer|busy or failing|connection", re.IGNORECASE), "unreachable"),
    (re.compile(r"needs ffmpeg", re.IGNORECASE), "ffmpeg is missing"),
    (re.compile(r"hours of audio", re.IGNORECASE), "too long"),
    (re.compile(r"^no audio|: no audio", re.IGNORECASE), "without audio"),
    (re.compile(r"was asked for", re.IGNORECASE), "without the channel or stream"),
    (re.compile(r"only public addresses", re.IGNORECASE), "not allowed"),
)
"""Reason by a pattern in the message of an AudioError. The first one that matches counts."""


@dataclass(frozen=True, slots=True)
class FailureReasons:
    """The reasons of failures."""

    counts: tuple[tuple[str, int], ...]
    """(reason, number of items), the most frequent first."""
    retryable: int
    """Number of items that may succeed with nothing changed."""


def read_reasons(store: Store) -> FailureReasons:
    """Return the reasons in the first MAX_LINES lines of failures.jsonl, as far as they can be read.

    Raises:
        StorageError: OUT cannot be read.
    """
    counts, retryable = Counter[str](), 0
    with contextlib.closing(store.lines(FAILURES)) as lines:
        for line in islice(lines, MAX_LINES):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                counts[reason_of(str(row["error"]), str(row["message"]))] += 1
                retryable += row.get("retryable") is True
    return FailureReasons(tuple(counts.most_common()), retryable)


def reason_of(error: str, message: str) -> str:
    """Return the short reason of a failure."""
    without_places = re.sub(r"\S*/\S*", "", message)
    found = next((reason for pattern, reason in _BY_MESSAGE if pattern.search(without_places)), None)
    return found if found and error == AudioError.__name__ else _BY_ERROR.get(error, error)
