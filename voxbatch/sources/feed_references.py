"""Give the episodes of a feed the transcripts that it names as references.

    <podcast:transcript url="one.vtt" type="text/vtt"/>    →   {"id": "One", …, "text": "He has known"}

The kinds are those of Podcasting 2.0 (podcastindex.org/namespace/1.0): WebVTT, SubRip, JSON and plain text. HTML is not
read, because its headings and links are no speech.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import urljoin

from voxbatch.errors import StorageError
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.source import manifest_error
from voxbatch.sources.columns import Row
from voxbatch.sources.feeds import feed_rows, is_xml
from voxbatch.sources.manifest_file import open_file
from voxbatch.sources.references import MAX_REFERENCE_BYTES, REFERENCE_TOO_LONG
from voxbatch.sources.transcripts import joined, read_transcript
from voxbatch.sources.transcripts.timed_text import TimedText, in_order
from voxbatch.storage import Stores, is_remote, parallel_map, redacted

CONCURRENT_READS = 8
"""Number of transcripts read at a time."""


def _cues(kind: str) -> Callable[[bytes, str], str]:
    return lambda data, name: joined(read_transcript(data, kind, name, TextDecoder()))


def _plain(data: bytes, name: str) -> str:
    return " ".join(TextDecoder().decode(data, name).split())


def _json(data: bytes, name: str) -> str:
    segments = json.loads(TextDecoder().decode(data, name))["segments"]
    return joined(in_order(TimedText(segment["body"], float(segment.get("startTime", 0)), 0.0) for segment in segments))


_READERS = {
    "text/vtt": _cues("vtt"),
    **dict.fromkeys(("application/x-subrip", "application/srt", "text/srt"), _cues("srt")),
    "application/json": _json,
    "text/plain": _plain,
}
"""Functions from the bytes and the name of a transcript to its words, by media type. The first kind that an episode has
is read: cues and segments hold speech alone, where a plain text may have headings."""


def lines_with_references(feed: str, stores: Stores, note: Callable[[str], None]) -> Iterator[str]:
    """Yield a line of a manifest for each episode of a feed, with the `text` of its transcript if that can be read.

    Args:
        feed: path or address.
        note: gets a sentence for each transcript that cannot be read, and one for the episodes without a recording.

    Raises:
        ManifestError, StorageError: it is no feed; see `feed_rows` and `open_file`.
    """
    with open_file(feed, stores) as source:
        if not is_xml(source.begin()):
            raise manifest_error(source.name, "is neither a folder nor a feed (RSS, Atom); give one of them")
        rows = (row for _, row in feed_rows(source) if not isinstance(row, str))
        for row, problem in parallel_map(CONCURRENT_READS, lambda row: _with_text(row, source.base, stores), rows):
            if problem:
                note(f"{row['id']!r} has no reference: {problem}")
            yield json.dumps(row, ensure_ascii=False)
        if source.note:
            note(source.note)


def _with_text(row: Row, base: str, stores: Stores) -> tuple[Row, str]:
    """Return the row of an episode with its `text`, and why it has none although a transcript is named."""
    transcripts = {_media_type(named): named.get("url", "") for named in reversed(row.get("transcripts", []))}
    media_type = next((kind for kind in _READERS if kind in transcripts), None)
    if media_type is None:
        kinds = ", ".join(sorted(transcripts))
        return row, f"transcripts of these kinds are not read: {kinds}" if transcripts else ""
    address = urljoin(base, transcripts[media_type]) if is_remote(base) else transcripts[media_type]
    if not is_remote(address):  # a feed, which strangers write, names no file of this machine
        return row, f"{address!r} is no address"
    try:
        with stores.open(address) as file:
            data = file.read(MAX_REFERENCE_BYTES + 1)
        if len(data) > MAX_REFERENCE_BYTES:
            raise ValueError(REFERENCE_TOO_LONG)
        text = _READERS[media_type](data, address)
        if data.strip() and not text:
            raise ValueError("no words were read from it")
    except (OSError, StorageError) as error:
        return row, str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return row, f"{redacted(address)} is no {media_type}: {error}"
    return {**row, "text": text}, ""


def _media_type(transcript: dict[str, str]) -> str:
    """Return the media type that a feed gives a transcript, without parameters."""
    return transcript.get("type", "").partition(";")[0].strip().lower()
