"""Decode texts that people and old programs wrote: UTF-8, UTF-16 with a byte order mark, or else Windows-1252.

Windows-1252 has every letter of Latin-1, and no sequence of bytes is refused. So a text in another encoding, such as
Windows-1251, gives wrong letters; a note names the files.
"""

from __future__ import annotations

from voxbatch.safe_text import counted

UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
SHOWN_NAMES = 3
"""Number of files that a note names."""


class TextDecoder:
    """Decodes texts, and remembers the files that are neither UTF-8 nor UTF-16. Several threads may use it: they only
    add keys to a dictionary."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        """Names of the files that were read as Windows-1252, in order."""

    def decode(self, data: bytes, name: str) -> str:
        """Return a text, or a line of a text, without a byte order mark.

        Args:
            data: the bytes of the text. They are one line only if the text is not in UTF-16.
        """
        if b"\0" in data[:2]:  # UTF-16 without a mark
            return data.decode("utf-16-be" if data[:1] == b"\0" else "utf-16-le", "replace")
        try:
            return data.decode("utf-16" if data.startswith(UTF16_BOMS) else "utf-8-sig")
        except UnicodeDecodeError:
            self._names[name] = None
            return data.decode("cp1252", "replace")

    def note(self) -> str:
        """Return the sentence about the files that are neither UTF-8 nor UTF-16, or ""."""
        names = list(self._names)
        if not names:
            return ""
        shown = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
        count = counted(len(names), "file")
        return f"{count} not in UTF-8, read as Windows-1252: {shown}; see that the letters are right"
