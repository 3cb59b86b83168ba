"""Turn an output line into a row of the table, and into the texts that an opened row shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voxbatch.records import Flag, by_stretch
from voxbatch.report.selection import Row
from voxbatch.scoring.units import error_unit
from voxbatch.storage.address import is_remote, redacted
from voxbatch.word import spaces_before

if TYPE_CHECKING:
    from voxbatch.scoring.counts import ErrorCounts

MAX_WORDS = 10_000
"""Most words of a text that an opened row shows: an hour and a half of speech."""
MAX_WORD_CHARACTERS = 2_000
MAX_NOTE_CHARACTERS, MAX_NOTES = 500, 50
"""Most characters of an id, a place, a message, a warning or a reason; most warnings, and most flags."""


def row_of(
    index: int, line: Mapping[str, Any], lang: str | None, counts: ErrorCounts | None, failure: str | None
) -> Row:
    """Return the row of an item.

    Args:
        lang: language by which it is scored.
        counts: its errors; None without a reference.
        failure: error and message of an item that failed.
    """
    audio, offset = str(line.get("audio_filepath", "")), line.get("offset")
    return Row(
        index=index,
        id=_cut(str(line["id"])),
        # Passwords and signatures of addresses stay out of a page that people pass on.
        audio=_cut(redacted(audio) if is_remote(audio) else audio, 4_000),
        lang=lang,
        duration=None if failure else round(line["audio_duration"], 2),
        offset=round(offset, 2) if isinstance(offset, int | float) else 0.0,
        counts=None
        if counts is None
        else (counts.substitutions, counts.deletions, counts.insertions, counts.reference_length),
        cer=int(error_unit(lang) == "character"),
        confidence=None if failure else line.get("confidence"),
        flags=() if failure else tuple(dict.fromkeys(_cut(str(flag["kind"]), 40) for flag in line["flags"])),
        warnings=0 if failure else len(line["warnings"]),
        failure=failure and _cut(failure),
    )


def table_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the rows as columns, which compress better than objects."""
    return {name: [getattr(row, name) for row in rows] for name in Row.__slots__ if name != "index"}


def written_words(text: str, lang: str | None) -> list[str]:
    """Return the words of a text as they were written, or its characters if the language is written without spaces."""
    words = text.split()
    return list("".join(words)) if error_unit(lang) == "character" else words


def encode_texts(line: Mapping[str, Any], lang: str | None) -> str:
    """Return what an opened row shows of a transcript, as JSON.

    It is the list [words, times, confidences, reference, cells, warnings, flags, is_cut, speakers].
    Times are pairs of hundredths of a second: from the end of the word before to the start, and from the start to the
    end. Confidences are hundredths. Both are empty without word times. The cells (see `cells`) and the reference's
    words are empty without a reference. The speakers are [name, index of the first word] of each turn, or empty. A word
    has the white space before it.
    """
    timed = line.get("words", [])
    words = [str(word["word"]) for word in timed] or written_words(line["pred_text"], lang)
    reference = written_words(line["text"], lang) if line.get("text") is not None else []
    spaces = spaces_before(words, line["pred_text"].strip())[:MAX_WORDS]
    is_cut = len(words) > MAX_WORDS or len(reference) > MAX_WORDS
    words, reference, timed = words[:MAX_WORDS], reference[:MAX_WORDS], timed[:MAX_WORDS]
    cells = ""
    if line.get("text") is not None:
        from voxbatch.report.cells import align_written, encode

        errors = line["substitutions"] + line["insertions"] + line["deletions"]
        cells = encode(align_written(reference, words, lang, equal=not errors))
    times, before = list[int](), 0
    for word in timed:
        start, end = round(word["start"] * 100), round(word["end"] * 100)
        times += [start - before, end - start]
        before = end
    confidences = [-1 if (confidence := word.get("confidence")) is None else round(confidence * 100) for word in timed]
    flags = by_stretch(
        Flag(_cut(str(flag["kind"]), 40), _cut(str(flag["reason"])), flag.get("start"), flag.get("end"))
        for flag in line["flags"][:MAX_NOTES]
    )
    texts = [
        [space + _cut(word, MAX_WORD_CHARACTERS) for space, word in zip(spaces, words, strict=True)],
        times,
        [] if set(confidences) <= {-1} else confidences,
        [_cut(word, MAX_WORD_CHARACTERS) for word in reference],
        cells,
        [_cut(str(warning)) for warning in line["warnings"][:MAX_NOTES]],
        [[flag.kind, flag.reason, flag.start, flag.end] for flag in flags],
        int(is_cut),
        _turns(timed),
    ]
    return json.dumps(texts, separators=(",", ":"))


def _turns(words: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return (speaker, index of the first word) of each turn. Empty if speakers are not told apart."""
    speakers = [str(word.get("speaker") or "") for word in words]
    turns = [(_cut(name, 100), at) for at, name in enumerate(speakers) if at == 0 or name != speakers[at - 1]]
    return turns if any(speakers) else []


def _cut(text: str, most: int = MAX_NOTE_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
