"""Give the columns and the JSON keys that others use the keys of a manifest.

    {"path": "a.mp3", "sentence": "Guten Tag."}   →   {"audio_filepath": "a.mp3", "text": "Guten Tag."}

Columns with the usual names get ours; see COLUMNS. Others pass through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from voxbatch.manifest.json_line import AUDIO_KEY, LineError, quote

Row = dict[str, Any]
Rows = Iterator[tuple[int, Row | str]]
"""(line number, the row or the reason why there is none)."""
COLUMNS: dict[str, tuple[str, ...]] = {
    AUDIO_KEY: (
        "audio_filepath", "path", "file_name", "filename", "file", "audio", "wav", "audio_path", "audio_file", "url",
        "wav_filename", "wav_path", "file_path", "filepath", "audio_file_name", "audio_file_path", "audio_filename",
        "recording", "recording_path", "wav_file", "audio_url", "uri",
    ),
    "text": (
        "text", "sentence", "transcription", "transcript", "reference", "ref", "ground_truth", "wrd",
        "raw_transcription", "normalized_text", "text_normalized", "raw_text", "txt", "reference_text", "ref_text",
        "reference_transcript", "gold", "tgt_text", "text_tn",
    ),
    "lang": ("lang", "language", "locale"),
    "offset": ("offset", "start"),
    "duration": ("duration",),
    "channel": ("channel",),
    "id": ("id",),
}  # fmt: skip
"""Names of columns that have a meaning, by the key of a manifest, in any case of letters and with "_", "-" or a space
between words. The first one that a table has is taken."""
END = "end"
"""Column with the end of a part, in seconds, in place of a duration."""
OF_ANOTHER_FILE = {"recording", "sources", "offset", "start", "end", "channel"}
"""Keys of a recording in an archive that tell where it was cut from: those of Lhotse, and of voxbatch's data sets."""
DATA_ROOT = re.compile(r"^(\$data_(root|folder)|\{data_(root|folder)\})/")
"""SpeechBrain's name for the folder of the data set, which mostly holds the manifest."""


def names_recordings(header: Sequence[str], required: str | None) -> bool:
    """Return whether a table with these columns names recordings; see `text_table`."""
    names = set(map(column_name, header))
    if required:  # Hugging Face admits audio_file_name, too
        return any(name.endswith(required) for name in names)
    return not names.isdisjoint(COLUMNS[AUDIO_KEY])


def column_name(name: str) -> str:
    """Return the name of a column as COLUMNS has it: " Audio-File " → "audio_file"."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def column_keys(names: Iterable[str]) -> dict[str, str]:
    """Return the column for each key of a manifest that a table has."""
    original = {column_name(name): name for name in reversed(list(names))}
    columns = {
        key: next((original[alias] for alias in aliases if alias in original), None) for key, aliases in COLUMNS.items()
    }
    if "duration" not in original and "start" in original and END in original:
        columns[END] = original[END]
    return {key: name for key, name in columns.items() if name is not None}


def with_duration(row: Row) -> Row:
    """Return the row with `duration` in place of the end of a part."""
    end = row.pop(END, None)
    if end is None:
        return row
    is_part = isinstance(end, int | float) and isinstance(row.get("offset"), int | float)
    return {**row, "duration": round(end - row["offset"], 6) if is_part else end}


def renamed(row: Row) -> Row:
    """Return a JSON object with the keys of a manifest in place of other usual names; see COLUMNS."""
    values = _of_lhotse(row)
    fields = {key: values.pop(name) for key, name in column_keys(values).items()}
    audio = fields.get(AUDIO_KEY)
    if isinstance(audio, dict) and isinstance(audio.get("path"), str):
        fields[AUDIO_KEY] = audio["path"]
    elif isinstance(audio, str):
        fields[AUDIO_KEY] = DATA_ROOT.sub("", audio)
    if "text" not in fields and isinstance(values.get("words"), str):  # SpeechBrain; in other files, a list with times
        fields["text"] = values.pop("words")
    return {**with_duration(fields), **values}


def facts_of(row: Row) -> Row:
    """Return what a JSON object says of the recording in an archive beside it, with the keys of a manifest; not where
    that was cut from."""
    return renamed({key: value for key, value in row.items() if key not in OF_ANOTHER_FILE})


def _of_lhotse(row: Row) -> Row:
    """Return a copy of a row, of which a cut or a recording of Lhotse has the keys of a manifest.

    Raises:
        LineError: its audio comes from a command or from memory.
    """
    values = dict(row)
    recording = values.pop("recording", values)
    sources = recording.pop("sources", None) if isinstance(recording, dict) else None
    if not isinstance(sources, list) or not sources or not isinstance(sources[0], dict):
        return dict(row)
    if sources[0].get("type") not in ("file", "url"):
        raise LineError(f"has audio of the type {quote(sources[0].get('type'))}; write it to a file, and name that")
    has_sides = len(sources[0].get("channels") or ()) > 1
    channel = values.pop("channel", None)
    return {
        **values,
        AUDIO_KEY: sources[0].get("source"),
        **of_supervisions(values),
        **({"channel": channel} if has_sides and isinstance(channel, int) else {}),
    }


def of_supervisions(cut: Row) -> Row:
    """Return the text and the language of the supervisions of a cut of Lhotse."""
    supervisions = [part for part in cut.get("supervisions") or () if isinstance(part, dict)]
    texts = [str(part["text"]) for part in supervisions if part.get("text")]
    languages = [str(part["language"]) for part in supervisions if part.get("language")]
    return {**({"text": " ".join(texts)} if texts else {}), **({"lang": languages[0]} if languages else {})}
