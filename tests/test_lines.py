"""Tests for the output lines: the manifest's row with a place that any reader finds, and the same keys in each line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from voxbatch.output.lines import failure_line, transcript_line
from voxbatch.records import Failure, Item, Transcript


def item(path: str, audio: str, **row: Any) -> Item:
    content = {"audio_filepath": path, **row}
    return Item(0, 1, "x", audio, text=row.get("text"), row=json.dumps(content).encode())


def transcribed(given: Item, folder: str | None = "/day", lang: str | None = None) -> dict[str, Any]:
    return transcript_line(given, Transcript("Hi.", audio_duration=1.0), "scripted", "count", lang, folder)


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("a.wav", "/day", "/day/a.wav"),
        ("./x/../a b.wav", "/day", "/day/a b.wav"),
        ("../a.wav", "/day/jobs", "/day/a.wav"),
        ("/else/a.wav", "/day", "/else/a.wav"),
        ("x/a.wav", "gs://calls/day/", "gs://calls/day/x/a.wav"),
        ("gs://calls/a.wav", "/day", "gs://calls/a.wav"),
        ("https://host/a.wav?b=1", "/day", "https://host/a.wav?b=1"),
        ("a.wav", None, "/mnt/day/a.wav"),
    ],
)
def test_relative_paths_become_absolute(path: str, folder: str | None, expected: str) -> None:
    """A relative path is resolved against the folder of the run's first start, wherever the folder is mounted now. An
    absolute path or an address stays as it is.
    """
    given = item(path, f"/mnt/day/{path}")
    assert transcribed(given, folder)["audio_filepath"] == expected
    assert failure_line(given, Failure("AudioError", "gone"), None, folder)["audio_filepath"] == expected


def test_each_line_has_the_same_keys() -> None:
    """A line without a reference or a language has the same keys as one with both, so that tables can be loaded."""
    with_all, without = transcribed(item("a", "/a", text="hi"), lang="en"), transcribed(item("b", "/b"))
    assert [key for key in with_all if key != "text"] == list(without)
    assert (without["lang"], without["wer"], without["reference_length"]) == (None, None, None)
    assert (with_all["lang"], with_all["wer"], with_all["reference_length"]) == ("en", 0.0, 1)
