"""Fill the template of a page with the places of a search."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from voxbatch.report.page import asset, environment, inline_source
from voxbatch.storage.address import is_remote, redacted


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A place of a search, as the page shows it."""

    clock: str
    """Position in the recording, for people; "" if it is not known."""
    second: float
    speaker: str
    before: str
    match: str
    after: str


@dataclass(frozen=True, slots=True)
class ShownItem:
    """An item with its places."""

    id: str
    audio: str
    """Path or address of the recording."""
    places: Sequence[ShownPlace]


def render_places(title: str, facts: str, items: Iterable[ShownItem], folder: str | None) -> bytes:
    """Return the page of a search.

    Args:
        title: what was looked for.
        facts: how much was found.
        items: the items with their places.
        folder: the folder that the page will be in. None means a bucket, from which a browser reaches no recording.
    """
    style, script = asset("page.css"), asset("places.js")
    policy = (
        f"default-src 'none'; style-src {inline_source(style)}; script-src {inline_source(script)}; "
        "media-src 'self' file: http: https:; base-uri 'none'; form-action 'none'"
    )
    shown = [(item, _source(item.audio, folder), redacted(item.audio)) for item in items]
    page: str = environment().get_template("places.html.jinja").render(
        policy=policy, style=style, script=script, title=title, facts=facts, items=shown
    )  # fmt: skip
    return page.encode("utf-8", "replace")


def _source(audio: str, folder: str | None) -> str:
    """Return the address of a recording for a browser; "" if it has none."""
    if audio.startswith(("http://", "https://")):
        return audio if redacted(audio) == audio else ""
    if is_remote(audio) or folder is None:
        return ""
    return quote(os.fsencode(os.path.relpath(audio, folder)))
