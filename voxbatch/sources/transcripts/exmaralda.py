"""Read EXMARaLDA's basic transcriptions (.exb).

The events of a tier lie between points of a timeline, of which some have times. An event may end within a word:

    T0–T1 "he sa", T1–T2 "id "      →   he said
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate, groupby, pairwise
from xml.etree.ElementTree import Element

from voxbatch.sources.transcripts.timed_text import TimedText, in_order, interpolated
from voxbatch.sources.xml_tree import elements, full_text

_REMARK = re.compile(r"\(\([^()]*\)\)")
"""What HIAT and cGAT have in double brackets: ((coughs)), ((1.2s))."""


def exmaralda_texts(root: Element) -> list[TimedText]:
    """Return what the tiers of transcriptions (type "t") of a basic-transcription say.

    Raises:
        ValueError: only tiers of other types have text.
    """
    points = list(elements(root, "tli"))
    values = [None if (value := point.get("time")) is None else float(value) for point in points]
    times = dict(zip((point.get("id", "") for point in points), interpolated(values), strict=True))
    speakers = {
        speaker.get("id"): full_text(next(elements(speaker, "abbreviation"), None)).strip() or speaker.get("id", "")
        for speaker in elements(root, "speaker")
    }
    tiers = list(elements(root, "tier"))
    texts = in_order(
        text
        for tier in tiers
        if tier.get("type") == "t"
        for text in _texts(tier, times, speakers.get(tier.get("speaker"), ""))
    )
    if not texts and any(full_text(tier).strip() for tier in tiers):
        raise ValueError("no tier of the type 't' has text; set the type of the tiers of what was said in EXMARaLDA")
    return texts


def _texts(tier: Element, times: Mapping[str, float], speaker: str) -> Iterator[TimedText]:
    """Yield the words of each event. A word belongs to the event in which it begins."""
    order = {point: index for index, point in enumerate(times)}
    events = sorted(elements(tier, "event"), key=lambda event: order.get(event.get("start", ""), 0))
    texts = [full_text(event) for event in events]
    # Words do not go on after a gap.
    joins = [event.get("end") == after.get("start") for event, after in pairwise(events)]
    texts = [text if joined else f"{text} " for text, joined in zip(texts, [*joins, False], strict=True)]
    speech = _REMARK.sub(lambda remark: " " * len(remark[0]), "".join(texts))
    starts = [0, *accumulate(map(len, texts))]
    words = re.finditer(r"\S+", speech)
    for index, group in groupby(words, lambda word: bisect_right(starts, word.start()) - 1):
        start, end = (times.get(events[index].get(key, ""), 0.0) for key in ("start", "end"))
        yield TimedText(" ".join(word[0] for word in group), start, end, speaker)
