"""Tests for the log: an event is one line for a machine or for a person."""

from __future__ import annotations

import json
import threading
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.log import Log


@given(
    st.text(), st.dictionaries(st.text().filter(lambda name: name not in ("self", "event")), st.text() | st.floats())
)
def test_every_json_event_is_one_line(event: str, fields: dict[str, Any]) -> None:
    """A JSON event is one line for any field values, with severity, time and message in the form of Cloud Logging."""
    lines: list[str] = []
    Log(as_json=True, write=lines.append).warning(event, **fields)
    (line,) = lines
    assert "\n" not in line
    found = json.loads(line)
    expected = {"severity": "WARNING", "message": event} | fields
    assert all(found[name] == value or value != value for name, value in expected.items())
    assert "time" in fields or datetime.fromisoformat(found["time"]).tzinfo is not None


@pytest.mark.parametrize(
    ("severity", "fields", "line"),
    [
        ("info", {"items": 12, "part": "p"}, "part committed: items=12, part=p"),
        ("info", {}, "part committed"),
        ("warning", {"text": "a sentence"}, "Warning: a sentence"),
        ("error", {"text": "a sentence"}, "Error: a sentence"),
    ],
)
def test_text_event_shows_fields_or_its_sentence(severity: str, fields: dict[str, Any], line: str) -> None:
    """A text event shows its name and fields, or its sentence."""
    lines: list[str] = []
    getattr(Log(write=lines.append), severity)("part_committed", **fields)
    assert lines == [line]


def test_text_event_escapes_control_characters() -> None:
    """A value cannot write to the terminal or begin a new line; a sentence may have several lines. JSON keeps the
    value.
    """
    lines: list[str] = []
    Log(write=lines.append).info("part_committed", part="a\x1b[2J\nb")
    Log(write=lines.append).error("failed", text="gs://b/\x1b]0;x\x07\x9bm\nthe next line")
    Log(as_json=True, write=lines.append).info("part_committed", part="a\x1b[2J\nb")
    assert lines[:2] == [r"part committed: part=a\x1b[2J\nb", "Error: gs://b/\\x1b]0;x\\x07\\x9bm\nthe next line"]
    assert json.loads(lines[2])["part"] == "a\x1b[2J\nb"


def test_quiet_keeps_warnings_and_errors() -> None:
    """--quiet hides information only; warnings and errors are shown."""
    lines: list[str] = []
    log = Log(quiet=True, write=lines.append)
    log.info("a")
    log.warning("b")
    log.error("c")
    assert lines == ["Warning: b", "Error: c"]


def test_threads_do_not_mix_their_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """Each event is written whole, also from several threads."""
    log = Log(as_json=True)

    def write() -> None:
        for _ in range(50):
            log.info("x" * 500)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["x" * 500] * 200
