"""Read the feed of a podcast, RSS or Atom, as a manifest of its episodes.

    <item><title>One</title><enclosure url="https://h/1.mp3"/></item>
    →  {"audio_filepath": "https://h/1.mp3", "id": "One"}

The title is the id. Of episodes with one title, the oldest has it alone, and the others have a number, so that no id
changes when the feed grows. The addresses of transcripts that the feed names pass through as `transcripts`. An episode
without a recording is left out, and counted in a note. The names are those of RSS 2.0, Media RSS, Atom and Podcasting
2.0.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin
from xml.etree.ElementTree import Element, ParseError

from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources.columns import Row, Rows
from voxbatch.sources.xml_tree import DeclaresEntities, full_text, parsed
from voxbatch.storage import is_remote

MAX_BYTES = 256 << 20
"""Largest feed: one of 100,000 episodes."""
_ATOM, _MEDIA, _PODCAST = (
    "{http://www.w3.org/2005/Atom}",
    "{http://search.yahoo.com/mrss/}",
    "{https://podcastindex.org/namespace/1.0}",
)
_BOM = b"\xef\xbb\xbf"


def is_xml(begin: bytes) -> bool:
    """Return whether a file that begins so is XML."""
    return begin.removeprefix(_BOM).lstrip().startswith(b"<")


def feed_rows(source: Source) -> Rows:
    """Return a row for each episode of a feed, in its order.

    Raises:
        ManifestError: it is no feed, or names no recording.
    """
    if source.size > MAX_BYTES:
        raise manifest_error(source.name, f"has {source.size:,} bytes, and a feed has at most {MAX_BYTES:,}")
    data = os.pread(source.file.fileno(), source.size, 0)
    try:
        root = parsed(data)
    except DeclaresEntities as error:
        raise manifest_error(source.name, "declares XML entities, which is not allowed in a feed") from error
    except ParseError as error:
        raise manifest_error(source.name, f"is no well-formed XML ({error}); give a feed, RSS or Atom") from error
    episodes = root.findall("channel/item") or root.findall(f"{_ATOM}entry")
    rows = [row for episode in episodes if (row := _row(episode, source.base))]
    if not rows:
        reason = "has no episode with a recording" if episodes else "is XML, and no feed of a podcast (RSS, Atom)"
        raise manifest_error(source.name, reason)
    if len(rows) < len(episodes):
        source.note = f"{len(episodes) - len(rows):,} of {len(episodes):,} entries of the feed have no recording"
    seen: Counter[str] = Counter()
    for row in reversed(rows):  # feeds begin with the newest
        seen[row["id"]] += 1
        if seen[row["id"]] > 1:
            row["id"] += f" ({seen[row['id']]})"
    return enumerate(rows, 1)


def _row(episode: Element, base: str) -> Row | None:
    """Return the row of an episode, or None if it has no recording."""
    address = _recording(episode)
    if not address:
        return None
    if is_remote(base):
        address = urljoin(base, address)
    title = _text(episode, "title", f"{_ATOM}title") or _text(episode, "guid", f"{_ATOM}id") or address
    row: dict[str, Any] = {AUDIO_KEY: address, "id": title.replace("/", "-")}
    for key, names in _PASSED_ON.items():
        if value := _text(episode, *names):
            row[key] = value
    if "published" in row:
        with contextlib.suppress(ValueError):  # a date of Atom stays as it is
            row["published"] = parsedate_to_datetime(row["published"]).isoformat()
    transcripts = [dict(element.attrib) for element in episode.iter(f"{_PODCAST}transcript")]
    return row | ({"transcripts": transcripts} if transcripts else {})


_PASSED_ON = {"guid": ("guid", f"{_ATOM}id"), "published": ("pubDate", f"{_ATOM}published")}
"""Keys that pass through, and the elements that they are from."""


def _recording(episode: Element) -> str:
    """Return the address of an episode's recording: the first one that is not an image or a text."""
    enclosures = [(element.get("url"), element.get("type")) for element in episode.iter("enclosure")]
    enclosures += [
        (element.get("href"), element.get("type"))
        for element in episode.iter(f"{_ATOM}link")
        if element.get("rel") == "enclosure"
    ]
    enclosures += [
        (element.get("url"), element.get("type") or element.get("medium"))
        for element in episode.iter(f"{_MEDIA}content")
    ]
    return next(
        (url.strip() for url, kind in enclosures if url and not (kind or "").lower().startswith(("image", "text"))), ""
    )


def _text(episode: Element, *names: str) -> str:
    """Return the text of the first of these elements that has one, with single spaces."""
    texts = (" ".join(full_text(episode.find(name)).split()) for name in names)
    return next(filter(None, texts), "")
