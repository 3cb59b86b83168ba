"""Write a Transcript as json, srt, vtt, txt or ctm text.

The package opens no file and chooses no folder. Give each format a folder of its own, because an item may be called
"summary". To add a format, write a function and put it in WRITERS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from voxbatch.formats.cues import Cue, complete_sources, split_into_cues, without_control_characters
from voxbatch.formats.file_names import EXTENSIONS, output_name, percent_encode
from voxbatch.formats.subtitles import srt, vtt
from voxbatch.records import Segment, Transcript, Word

__all__ = ["WRITERS", "Cue", "output_name", "split_into_cues", "transcript_dict"]
Writer = Callable[[str, Transcript], str]
"""A function from (item id, transcript) to the text of the file."""


def txt(item_id: str, transcript: Transcript) -> str:
    """Return the transcript with one segment per line, or on one line if there are no segments."""
    segments = complete_sources(transcript.segments, transcript.text)
    texts = [segment.text for segment in segments] or [transcript.text]
    return "".join(" ".join(without_control_characters(text).split()) + "\n" for text in texts)


def ctm(item_id: str, transcript: Transcript) -> str:
    """Return NIST CTM, one word per line: file, channel, start, duration, word, and the confidence if the engine gives
    one.

    Spaces separate the fields. So characters that no field may hold are percent-encoded in the id, and "_" replaces a
    space within a word. The text is empty if the engine gives no word times.
    """
    name = re.sub(r"^;|[\s%\x00-\x20\x7f-\x9f\ud800-\udfff]", percent_encode, item_id)
    lines = []
    for word in transcript.words:
        if text := "_".join(without_control_characters(word.text).split()):
            confidence = "" if word.confidence is None else f" {word.confidence:.3f}"
            duration = max(0.0, word.end - word.start)
            lines.append(f"{name} 1 {word.start:.3f} {duration:.3f} {text}{confidence}\n")
    return "".join(lines)


def to_json(item_id: str, transcript: Transcript) -> str:
    """Return one JSON object on one line: `version`, `id` and `transcript_dict`. UTF-8, but lone surrogates are
    escaped."""
    text = json.dumps({"version": 1, "id": item_id, **transcript_dict(transcript)}, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def transcript_dict(transcript: Transcript) -> dict[str, Any]:
    """Return the transcript as values for JSON. Seconds and confidences have 3 decimals; words have no leading space.

    {"text": "Hi.", "words": [{"word": "Hi.", "start": 0.5, "end": 0.8, "confidence": 0.93}],
     "segments": [{"text": "Hi.", "start": 0.5, "end": 0.8}], "audio_duration": 1.0, "warnings": []}
    """
    words: list[dict[str, Any]] = []
    for word in transcript.words:
        words.append({"word": word.text.strip(), **_span(word)})
        if word.confidence is not None:
            words[-1]["confidence"] = round(float(word.confidence), 3)
    return {
        "text": transcript.text,
        "words": words,
        "segments": [{"text": s.text.strip(), **_span(s)} for s in transcript.segments],
        "audio_duration": round(float(transcript.audio_duration), 3),
        "warnings": list(transcript.warnings),
    }


def _span(timed: Word | Segment) -> dict[str, float]:
    return {"start": round(float(timed.start), 3), "end": round(float(timed.end), 3)}


WRITERS: dict[str, Writer] = {"srt": srt, "vtt": vtt, "txt": txt, "ctm": ctm, "json": to_json}
"""The writer of each format. The name of the format is also the extension of the file. The file's encoding is UTF-8."""

assert tuple(WRITERS) == EXTENSIONS
