"""Read SAMI, whose elements have no ends.

<SYNC Start=2000><P Class=ENCC>her life.      →   TimedText("her life.", 2, 2, lang="en-US")
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from voxbatch.sources.transcripts.timed_text import TimedText

_CLASS = re.compile(r"\.([\w-]+)\s*\{[^{}]*?\blang\s*:\s*([\w-]+)", re.IGNORECASE)
"""A class of paragraphs with its language: `.ENCC {Name: English; lang: en-US; SAMIType: CC;}`."""


def sami_texts(document: str) -> list[TimedText]:
    """Return the paragraphs of SAMI, with the languages of their classes. SAMI has no ends, so that each has its start.

    Raises:
        ValueError: the document has no paragraph with a time.
    """
    parser = _Parser({name.lower(): tag for name, tag in _CLASS.findall(document)})
    parser.feed(document)
    parser.close()
    if document.strip() and not parser.texts:
        raise ValueError("it has no <SYNC> with a time; save the subtitles again")
    return parser.texts


class _Parser(HTMLParser):
    """Collects the paragraphs. Those with the name of the speaker (`ID=Source`) are left out."""

    def __init__(self, languages: dict[str, str]) -> None:
        super().__init__()
        self.texts: list[TimedText] = []
        self._languages = languages
        """Tags by the classes of paragraphs, in lower case."""
        self._start = 0.0
        self._is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph, or a text at a time."""
        values = {name: value or "" for name, value in attrs}
        if tag == "sync":
            digits = re.match(r"\d+", values.get("start", ""))
            self._start, self._is_text = int(digits[0]) / 1000 if digits else self._start, True
            self.texts.append(TimedText("", self._start, self._start))
        elif tag == "p" and self.texts:
            name = values.get("class", "").lower()
            self._is_text = values.get("id", "").lower() != "source"
            self.texts.append(TimedText("", self._start, self._start, lang=self._languages.get(name, name)))
        elif tag == "br":
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        """Add characters to the last text."""
        if self._is_text:
            self.texts[-1] = replace(self.texts[-1], text=self.texts[-1].text + data)
