"""Read Transcriber's turns.

<Turn speaker="s1"><Sync time="0"/> the cat <Event desc="b" type="noise"/> sat</Turn>      →   the cat sat
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from voxbatch.sources.transcripts.timed_text import TimedText
from voxbatch.sources.xml_tree import elements


def transcriber_texts(root: Element) -> list[TimedText]:
    """Return the texts of the turns. Each begins at a Sync, or with a further speaker of the turn."""
    names = {speaker.get("id", ""): speaker.get("name") or "" for speaker in elements(root, "Speaker")}
    start, texts = 0.0, list[TimedText]()
    for turn in elements(root, "Turn"):
        start, end = float(turn.get("startTime") or start), float(turn.get("endTime") or start)
        speakers = [names.get(speaker, speaker) for speaker in turn.get("speaker", "").split()] or [""]
        parts = list(_parts(turn, start))
        start = parts[-1][0]
        texts += [
            TimedText(text, time, max(time, end), speakers[min(number, len(speakers) - 1)])
            for time, number, text in parts
        ]
    return texts


def _parts(turn: Element, start: float) -> Iterator[tuple[float, int, str]]:
    """Yield (start, number of the speaker from 0, text). Words that an event divides belong together."""
    number, words = 0, turn.text or ""
    for child in turn:
        if child.tag in ("Sync", "Who"):
            yield start, number, words
            words = ""
        if child.tag == "Sync":
            start = float(child.get("time") or start)
        elif child.tag == "Who":
            number = int(child.get("nb") or 1) - 1
        words += f" {child.tail or ''}"
    yield start, number, words
