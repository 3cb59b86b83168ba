"""Write a single transcript that belongs to no OUT: as a text, as a file, and on one line."""

from __future__ import annotations

import os
from pathlib import Path

from voxbatch.errors import ConfigError
from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document
from voxbatch.records import Transcript
from voxbatch.safe_text import counted


def written(transcript: Transcript, form: str) -> str:
    """Return the text of a file in one of WRITERS. Its name in tables is that of the recording.

    Raises:
        ConfigError: there is no such format.
    """
    if form not in WRITERS:
        raise ConfigError(f"there is no format {form!r}; give one of {', '.join(WRITERS)}")
    return Document(os.path.basename(transcript.audio) or "recording", transcript).written(form)


def save(transcript: Transcript, path: str | os.PathLike[str], form: str | None) -> None:
    """Write a transcript to a file; see `Transcript.save`."""
    extension = os.path.splitext(path)[1].removeprefix(".").lower()
    forms = {writer.extension.lower(): name for name, writer in reversed(WRITERS.items())}  # the first one of each
    if form is None and extension not in forms:
        extensions = ", ".join(f".{writer}" for writer in forms)
        raise ConfigError(f"{os.fspath(path)}: no format has the extension {extension!r}; take one of {extensions}")
    Path(path).write_bytes(written(transcript, form or forms[extension]).encode())


def summary(transcript: Transcript, characters: int) -> str:
    """Return the begin of the text and the size: "Transcript('Here is …', 32 words, 9.6 s, language 'en')"."""
    text = transcript.text
    begin = text if len(text) <= characters else f"{text[:characters]}…"
    facts = [repr(begin), counted(len(transcript.words), "word"), f"{transcript.audio_duration:.1f} s"]
    facts += [f"language {transcript.language!r}"] if transcript.language else []
    facts += [counted(len(transcript.flags), "flag")] if transcript.flags else []
    return f"Transcript({', '.join(facts)})"
