r"""Read SubStation Alpha: the dialogue of its events, in the order of time.

Dialogue: 0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,{\i1}He has\Nknown her      →   Ann: He has known her
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from voxbatch.sources.transcripts.timed_text import TimedText, split_lines

_FIELDS = ["layer", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text"]
"""The fields of an event in a file that does not name them."""
_PART = re.compile(r"\\[{}]|\{([^{}]*)\}|\\[Nnh]|[^\\{]+|.")
"""A part of a text: an escaped brace, overrides, a space, or characters."""
_DRAWING = re.compile(r"\\p(\d+)")
_WORD_JOINER = "\u2060"
"""Character without width, with which voxbatch's own files hide markup."""
_SPACES = frozenset((r"\N", r"\n", r"\h"))


def substation_texts(document: str) -> list[TimedText]:
    """Return the dialogue of a file. A text that several layers show at the same time is one.

    Raises:
        ValueError: the file has no events.
    """
    if document.strip() and not re.search(r"^\[events\]", document, re.IGNORECASE | re.MULTILINE):
        raise ValueError("it has no section [Events]; save the subtitles again")
    return list(dict.fromkeys(_events(document)))


def _events(document: str) -> Iterator[TimedText]:
    is_events, names = False, _FIELDS
    for line in split_lines(document):
        key, _, value = line.partition(":")
        is_events = line.strip().lower() == "[events]" if line.startswith("[") else is_events
        if is_events and key == "Format":
            names = [name.strip().lower() for name in value.split(",")]
        elif is_events and key == "Dialogue":
            fields = dict(zip(names, value.strip().split(",", len(names) - 1), strict=False))
            speaker = (fields.get("name") or fields.get("actor") or "").strip()
            text = _plain(fields.get("text", ""))
            label, colon, rest = text.partition(": ")
            if colon and label.replace(",", ";") == speaker:  # voxbatch's own files have the name in the text, too
                text = rest
            yield TimedText(text, _seconds(fields.get("start", "")), _seconds(fields.get("end", "")), speaker)


def _plain(text: str) -> str:
    """Return a text without overrides and drawings."""
    words, is_drawing = "", False
    for part in _PART.finditer(text):
        if part[1] is not None:
            for mode in _DRAWING.findall(part[1]):
                is_drawing = int(mode) > 0
        elif not is_drawing:
            words += part[0][1] if part[0] in (r"\{", r"\}") else " " if part[0] in _SPACES else part[0]
    return " ".join(words.replace(_WORD_JOINER, "").split())


def _seconds(time: str) -> float:
    """Return the seconds of a time: "1:00:02.50" → 3602.5.

    Raises:
        ValueError: it is no time.
    """
    try:
        hours, minutes, seconds = time.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError as error:
        raise ValueError(f"an event has {time[:20]!r} in place of a time; save the subtitles again") from error
