"""The files that `voxbatch correct` takes in: files of the run, copies of them, and lines of JSON with texts."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.safe_text import counted
from voxbatch.storage import Store, Stores, is_remote, redacted
from voxbatch.works.correct.passages import BROKEN, broken_times, is_readable

_FORMS = {".srt": "srt", ".vtt": "vtt", ".ass": "ass", ".ssa": "ass", ".ttml": "ttml", ".dfxp": "ttml", ".txt": "txt"}
"""The format of a file by its extension."""
_ROWS = (".jsonl", ".json")
_TEXT_KEYS = ("pred_text", "text")
"""Keys of the corrected text in a line of JSON; the first one that it has."""


@dataclass(frozen=True, slots=True)
class TextInFile:
    """The corrected text of an item in a file that a person has named."""

    file: str
    text: str
    form: str | None = None
    """The format of the file. None for the text of a line of JSON."""


class ChosenFiles:
    """The files that are taken in: those of the run, or those that a person has named.

    Several threads may ask for texts.
    """

    def __init__(self, names: Sequence[str], store: Store, stores: Stores) -> None:
        """Read the files that are not of the run.

        Args:
            names: paths or addresses. Empty for all files of the run.

        Raises:
            ConfigError: a file cannot be read, or is of a kind from which no text is taken.
        """
        self._is_all = not names
        self._own, self._rows, self._files = set[str](), dict[str, TextInFile](), list[TextInFile]()
        self._of_item = dict[int, list[TextInFile]]()
        self._taken = set[str]()
        for name in names:
            place = name if is_remote(name) else os.path.abspath(name)
            if (inner := name_in_out(store, name)) is not None:
                self._own.add(inner)
            elif posixpath.splitext(place)[1].lower() in _ROWS:
                self._rows.update(_rows(place, _content(place, stores)))
            else:
                self._own.add(place)
                self._files.append(_text(place, _content(place, stores)))

    def includes(self, name: str) -> bool:
        """Return whether a file of the run is taken in: a name in OUT, or a place beside a recording."""
        return self._is_all or name in self._own

    def take(self, name: str) -> None:
        """Record that a file of the run was changed."""
        self._taken.add(name)

    def match(self, names: Iterable[tuple[int, str]]) -> None:
        """Find the items of the files that are not of the run.

        Args:
            names: index of each item, and the name of its files.

        Raises:
            ConfigError: a file belongs to several items.
        """
        if not self._files:
            return
        stems = [posixpath.splitext(text.file)[0].split("/") for text in self._files]
        items = [list[tuple[int, int, str]]() for _ in stems]
        for index, name in names:
            parts = name.split("/")
            for stem, candidates in zip(stems, items, strict=True):
                if stem[-1] == parts[-1]:
                    candidates.append((stem[-len(parts) :] == parts, index, name))
        for text, candidates in zip(self._files, items, strict=True):
            best = [pair for pair in candidates if pair[0]] or candidates
            if len(best) > 1:
                shown = ", ".join(name for _, _, name in best[:3])
                raise ConfigError(
                    f"{redacted(text.file)} may be of {counted(len(best), 'item')} ({shown}): give its folder"
                )
            for _, index, _ in best:
                self._of_item.setdefault(index, []).append(text)

    def texts_of(self, index: int, item_id: str, path: str) -> list[TextInFile]:
        """Return the texts of an item, by its index, its id, or the path of its recording."""
        texts = self._of_item.get(index, [])
        rows = [self._rows[key] for key in (item_id, path) if key in self._rows][:1]
        self._taken.update(key for key in (item_id, path) if key in self._rows)
        self._taken.update(text.file for text in texts)
        return [*texts, *rows]

    def unmatched(self) -> list[str]:
        """Return what no item has, once all items have asked."""
        return sorted(({*self._own, *self._rows}) - self._taken)


def name_in_out(store: Store, name: str) -> str | None:
    """Return the name in OUT of a file or folder by its path or address, or by that name; None of any
    other file."""
    place = name if is_remote(name) else os.path.abspath(name) + "/" * name.endswith("/")
    inner = place.removeprefix(f"{store.place}/")
    if inner != place:
        return inner
    is_elsewhere = is_remote(name) or os.path.lexists(name)
    return name if not is_elsewhere and store.exists(name) else None


def _content(place: str, stores: Stores) -> bytes:
    try:
        with stores.open(place) as file:
            return file.read()
    except IsADirectoryError as e:
        raise ConfigError(f"{place} is a folder: name its files, such as {place}/*.srt") from e
    except OSError as e:
        raise ConfigError(f"{redacted(place)} cannot be read: {e.strerror or e}") from e


def _text(place: str, content: bytes) -> TextInFile:
    if (form := _FORMS.get(posixpath.splitext(place)[1].lower())) is None:
        raise ConfigError(f"{redacted(place)}: texts are taken from {', '.join((*_FORMS, *_ROWS))}")
    text = TextDecoder().decode(content, place)
    if place_of_error := broken_times(form, text):
        raise ConfigError(f"{redacted(place)}, {place_of_error}, {BROKEN}")
    if not is_readable(form, text):
        raise ConfigError(f"{redacted(place)} cannot be read as {form}: save it again in the format of its extension")
    return TextInFile(place, text, form)


def _rows(place: str, content: bytes) -> Mapping[str, TextInFile]:
    """Return the texts of lines of JSON by `id`, or else by `audio_filepath`."""
    rows = dict[str, TextInFile]()
    for number, line in enumerate(TextDecoder().decode(content, place).split("\n"), 1):
        if line.strip():
            row = _row(line, f"{redacted(place)}, line {number:,}")
            key = next((row[name] for name in ("id", AUDIO_KEY) if isinstance(row.get(name), str)), None)
            text = next((row[name] for name in _TEXT_KEYS if isinstance(row.get(name), str)), None)
            if key is None or text is None:
                needed = f"it needs `id` or `{AUDIO_KEY}`, and `text` or `pred_text`"
                raise ConfigError(f"{redacted(place)}, line {number:,}: {needed}")
            if "id" not in row and not is_remote(key):
                key = os.path.join(os.path.dirname(place), key)
            rows[key] = TextInFile(f"{posixpath.basename(place)}:{number}", text)
    return rows


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{where}: not JSON: {e}") from e
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a JSON object is needed")
    return row
