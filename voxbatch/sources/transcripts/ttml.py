"""Read TTML and its profiles (IMSC, EBU-TT-D, DFXP), and the XML of YouTube.

    <p begin="1s" ttm:agent="a">He has<br/>known her</p>      →   TimedText("He has known her", 1, …, "Ann")

Times of TTML are relative to the element above. Ruby is left out: it says how the characters beside it are read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.etree.ElementTree import Element

from voxbatch.sources.transcripts.timed_text import TimedText
from voxbatch.sources.xml_tree import attribute, elements, full_text, local_name

_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)(?::(\d+)(?:\.\d+)?)?")
_OFFSET = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|f|t)?")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, None: 1.0}
_FRAME_RATE = 30.0
"""Frames per second of a document that does not name them (TTML 2)."""
_RUBY = frozenset(("text", "textContainer", "delimiter"))
"""Values of tts:ruby for what stands beside the characters."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The place of a text, and the text."""

    begin: float = 0.0
    end: float = 0.0
    agent: str = ""
    lang: str = ""
    paragraph: int = 0
    """Number of the paragraph."""
    text: str = ""


def ttml_texts(root: Element) -> list[TimedText]:
    """Return the paragraphs of TTML, with the languages that xml:lang names.

    Raises:
        ValueError: a time cannot be read, or the document has pictures in place of text.
    """
    document = _Document(root)
    top = _Part(lang=attribute(root, "lang") or "")
    parts = [part for body in elements(root, "body") for part in document.parts(body, top)]
    if not any(part.text.strip() for part in parts) and any(
        attribute(element, "backgroundImage") or local_name(element) == "image" for element in root.iter()
    ):
        raise ValueError("it has pictures of the text (IMSC's image profile), which are not read")
    return [document.timed_text([*group]) for _, group in groupby(parts, lambda part: (part.paragraph, part.agent))]


class _Document:
    """The parameters of a document, and the reader of its elements."""

    def __init__(self, root: Element):
        frame_rate = attribute(root, "frameRate")
        numerator, denominator = map(float, re.findall(r"\d+", attribute(root, "frameRateMultiplier") or "1 1"))
        self._frame_rate = float(frame_rate or _FRAME_RATE) * numerator / denominator
        self._tick_rate = float(attribute(root, "tickRate") or (self._frame_rate if frame_rate else 1))
        self._styles = {attribute(style, "id"): style for style in elements(root, "style")}
        self._names = {
            attribute(agent, "id"): full_text(next(elements(agent, "name"), None)).strip()
            for agent in elements(root, "agent")
        }
        self._paragraphs = 0

    def parts(self, element: Element, above: _Part) -> Iterator[_Part]:
        """Yield the texts of an element, in the order of the document.

        Args:
            above: the place of the element that has this one.
        """
        name = local_name(element)
        if name == "br":
            yield replace(above, text=" ")
        if "metadata" in element.tag or self._ruby(element) in _RUBY or name in ("br", "set", "rt", "rp"):
            return
        begin, end, duration = (self._seconds(attribute(element, key)) for key in ("begin", "end", "dur"))
        start = above.begin + (begin or 0.0)
        stop = above.begin + end if end is not None else start + duration if duration is not None else above.end
        self._paragraphs += name == "p"
        place = _Part(
            start,
            stop,
            (attribute(element, "agent") or above.agent).split(" ")[0],
            # A word in another language is no translation.
            above.lang if name == "span" else attribute(element, "lang") or above.lang,
            self._paragraphs,
        )
        if name in ("p", "span"):
            yield replace(place, text=element.text or "")
        for child in element:
            yield from self.parts(child, place)
            if name in ("p", "span"):
                yield replace(place, text=child.tail or "")

    def timed_text(self, parts: Sequence[_Part]) -> TimedText:
        """Return the text of a paragraph, from the begin of its first word, without the name of its speaker, which
        voxbatch's own files have there."""
        first = next((part for part in parts if part.text.strip()), parts[0])
        speaker = self._names.get(first.agent, first.agent)
        text = " ".join("".join(part.text for part in parts).split())
        text = text.removeprefix(f"{speaker}: ") if speaker else text
        return TimedText(text, first.begin, max(part.end for part in parts), speaker, lang=first.lang)

    def _ruby(self, element: Element | None, depth: int = 0) -> str | None:
        """Return the value of tts:ruby of an element or of its styles."""
        if element is None or depth > len(self._styles):
            return None
        styles = (self._styles.get(name) for name in (attribute(element, "style") or "").split())
        return attribute(element, "ruby") or next(
            filter(None, (self._ruby(style, depth + 1) for style in styles)), None
        )

    def _seconds(self, time: str | None) -> float | None:
        if time is None:
            return None
        if clock := _CLOCK.fullmatch(time.strip()):
            hours, minutes, seconds, frames = clock.groups()
            return int(hours) * 3600 + int(minutes) * 60 + float(seconds) + int(frames or 0) / self._frame_rate
        if offset := _OFFSET.fullmatch(time.strip()):
            units = {**_UNITS, "f": 1 / self._frame_rate, "t": 1 / self._tick_rate}
            return float(offset[1]) * units[offset[2]]
        raise ValueError(f"it has {time[:20]!r} in place of a time; save the subtitles again")


def youtube_texts(root: Element) -> list[TimedText]:
    """Return the texts of YouTube's XML: `<text start dur>`, or `<p t d>` in milliseconds."""
    lines = [(text, "start", "dur", 1.0) for text in elements(root, "text")]
    lines += [(text, "t", "d", 0.001) for text in elements(root, "p")]
    texts = list[TimedText]()
    for text, start_key, duration_key, unit in lines:
        start, duration = (float(text.get(key) or 0) * unit for key in (start_key, duration_key))
        words = html.unescape(full_text(text))  # `<text>` is escaped twice
        texts.append(TimedText(words, start, start + duration))
    return texts
