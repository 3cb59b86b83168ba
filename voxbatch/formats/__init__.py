"""Write a Transcript as the text of a file: subtitles, plain text, tables with times, or JSON; and name the file.

The package opens no file and chooses no folder. Give each format a folder of its own, because an item may be called
"summary". The name of a file is derived from the item's id: it is safe below any folder, and never the name of another
item's file. To add a format, write a function and put it in WRITERS.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxbatch.frame_rate import AUTO, DEFAULT, exact

MAX_LINE = 42
NARROWEST = 14
"""Columns of a line of the narrowest picture."""
SQUARE_COLUMNS = 36
"""Columns that fill a square picture, drawn by libass in the size that it gives subtitles: 16/288 of the height, by
letters half as wide as they are high."""


@dataclass(frozen=True, slots=True)
class CueLimits:
    """The shape of cues. The defaults are those of Netflix's Timed Text Style Guide for adult programmes in English: 42
    characters, 2 lines, 20 characters per second, 2 frames between two cues."""

    max_line: int = MAX_LINE
    """Columns of a line. A wide character (Chinese, Japanese, Korean) takes two columns, so 21 of them fill 42. The
    default is narrower for a picture that has no room for it: see `columns`."""
    max_lines: int = 2
    max_cps: float = 20.0
    """Reading speed in columns per second. A cue outlasts its speech if a reader needs more time and the gap after it
    allows it. Faster speech is not cut."""
    frame_rate: float | str = AUTO
    """Frames per second of all videos, or AUTO. Cues begin and end with a frame."""
    min_gap: int = 2
    """Frames without a cue between two cues."""

    def columns(self, aspect_ratio: float | None) -> int:
        """Return the columns of a line for a picture by its width divided by its height: 42 → 20 for 9:16."""
        if self.max_line != MAX_LINE or aspect_ratio is None:
            return self.max_line
        return max(NARROWEST, min(MAX_LINE, round(SQUARE_COLUMNS * aspect_ratio)))

    def frames_per_second(self, of_video: float | None) -> float:
        """Return the exact frame rate at which the cues of a recording begin, by that of its video."""
        return exact((of_video or DEFAULT) if isinstance(self.frame_rate, str) else self.frame_rate)


DEFAULT_LIMITS = CueLimits()


@dataclass(frozen=True, slots=True)
class Writer:
    """A format of an item's file. The file's encoding is UTF-8."""

    extension: str
    """Extension of the file, without a dot."""
    function: str
    """Module of this package, and its function from a Document to the text of the file. Most runs write no format, so
    `pkgutil.resolve_name` imports the module at its first use."""
    suffix: str = ""
    """Extension beside a recording, if it differs there: another format has the same one, or a run would read the file:
    talk.txt beside talk.mp3 is its reference."""

    @property
    def beside(self) -> str:
        """Extension of the file beside a recording."""
        return self.suffix or self.extension


WRITERS: dict[str, Writer] = {
    "srt": Writer("srt", "subtitles:srt"),
    "vtt": Writer("vtt", "subtitles:vtt"),
    "vtt-words": Writer("vtt", "subtitles:vtt_words", "words.vtt"),
    "ttml": Writer("ttml", "subtitles:ttml"),
    "ass": Writer("ass", "subtitles:ass"),
    "txt": Writer("txt", "tables:txt", "transcript.txt"),
    "tsv": Writer("tsv", "tables:tsv"),
    "ctm": Writer("ctm", "tables:ctm"),
    "rttm": Writer("rttm", "tables:rttm"),
    "textgrid": Writer("TextGrid", "tables:textgrid"),
    "json": Writer("json", "json_formats:to_json"),
    "whisperx-json": Writer("json", "json_formats:whisperx_json", "whisperx.json"),
    "openai-json": Writer("json", "json_formats:openai_json", "openai.json"),
}
"""The writer of each format. The name of the format is also the name of its folder, and of the choice
of --formats."""
EXTENSIONS = sorted({writer.extension for writer in WRITERS.values()})
