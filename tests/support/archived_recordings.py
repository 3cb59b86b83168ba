"""The rows of a source, and the bytes of the recordings that they name in archives and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from voxbatch.sources.opening import open_source
from voxbatch.storage import Stores


def rows(source: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a source."""
    with open_source(str(source)) as opened:
        return [json.loads(line) for _, line in opened.lines()]


def contents(base: str | Path, found: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return the recordings of rows.

    Args:
        base: place that the rows begin at.
    """
    read = []
    for row in found:
        with closing(Stores().recording(f"{base}/{row['audio_filepath']}")) as recording:
            read.append(recording.pread(recording.size + 1, 0))
    return read
