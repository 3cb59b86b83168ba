"""The methods of a Transcript: write it in a format, save it, and show it in a notebook.

A record is below the packages that write it, so a method names its function as text, as the tables of formats and of
kinds of work do.
"""

from __future__ import annotations

import os
from pkgutil import resolve_name
from typing import Any

REPR_CHARACTERS = 60
"""Characters of the text in a repr."""


class TranscriptViews:
    """The texts and pages that a Transcript can be seen as. It has no fields."""

    __slots__ = ()

    def to(self, form: str) -> str:
        """Return the text of a file in one of the formats of `--formats`, such as "srt", "vtt-words" or "textgrid".

        Raises:
            ConfigError: there is no such format.
        """
        return str(self._by("written", form))

    def to_srt(self) -> str:
        """Return subtitles in SubRip."""
        return self.to("srt")

    def to_vtt(self) -> str:
        """Return subtitles in WebVTT."""
        return self.to("vtt")

    def to_txt(self) -> str:
        """Return plain text, one segment on each line."""
        return self.to("txt")

    def to_json(self) -> str:
        """Return one JSON object with all that is known: docs/outputs.md describes it."""
        return self.to("json")

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write a file, in the format of its extension. A file that is there is replaced.

        Args:
            path: "talk.srt", "talk.vtt", "talk.txt", "talk.json", …
            form: the format, where several have one extension: "openai-json" for "talk.json".

        Raises:
            ConfigError: no format has this extension, or there is no such format.
            OSError: the file cannot be written.
        """
        self._by("save", path, form)

    def __repr__(self) -> str:
        """Return the begin of the text and the size, on one line."""
        return str(self._by("summary", REPR_CHARACTERS))

    def _repr_html_(self) -> str:
        """Return the page that a notebook shows: a player, and the words with their times."""
        return str(resolve_name("voxbatch.formats.notebook:notebook_html")(self))

    def _by(self, function: str, *arguments: Any) -> Any:
        return resolve_name(f"voxbatch.formats.one_transcript:{function}")(self, *arguments)
