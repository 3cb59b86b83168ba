"""Tests for parsing messages: the requested run and the place of its outputs, without a server."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.clouds.listen.message import Ignored, ReceivedMessage, RunRequest, UploadedRecording, read
from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.errors import MessageError

OUT = "gs://calls/out/"
HERE = PlaceRules(OUT, ("gs://calls/in/",), ("gs://calls/in/audio/",))


def said(data: Any, **attributes: str) -> ReceivedMessage:
    return ReceivedMessage("1", data if isinstance(data, bytes) else json.dumps(data).encode(), attributes)


def told(key: str, event: str = "OBJECT_FINALIZE", bucket: str = "calls", **attributes: str) -> ReceivedMessage:
    """Return a notification without a payload."""
    place = {"bucketId": bucket, "objectId": key, "objectGeneration": "7"}
    return said(b"", eventType=event, payloadFormat="NONE", **place, **attributes)


@pytest.mark.parametrize(
    ("key", "out"),
    [
        ("in/day.jsonl", "gs://calls/out/day"),
        ("in/2026/11/20.jsonl.gz", "gs://calls/out/2026/11/20"),
        ("in/DAY.JSONL", "gs://calls/out/DAY"),
        ("in/a b+ü%\u2028.jsonl", "gs://calls/out/a b+ü%\u2028"),
        ("in//day.jsonl", "gs://calls/out//day"),
    ],
)
def test_uploaded_manifest_is_a_run(key: str, out: str) -> None:
    """An uploaded manifest is run with its outputs below OUT at its path below the prefix; names
    are not URL-decoded.
    """
    assert read(told(key), HERE) == RunRequest(f"gs://calls/{key}", out)


def test_recording_is_run_below_a_recordings_place() -> None:
    """A recording below a recordings prefix is run; elsewhere it waits for the manifest that names it."""
    expected = UploadedRecording(
        "gs://calls/in/audio/a.flac", "7", "gs://calls/in/audio/", "gs://calls/out/audio/a.flac"
    )
    assert read(told("in/audio/a.flac"), HERE) == expected
    assert isinstance(read(told("in/a.flac"), HERE), Ignored)


@pytest.mark.parametrize(
    "message",
    [
        told("in/day.jsonl", "OBJECT_DELETE"),
        told("in/day.jsonl", "OBJECT_METADATA_UPDATE"),
        told("in/day.jsonl", "OBJECT_ARCHIVE"),
        told("other/day.jsonl"),
        told("in2/day.jsonl"),
        told("IN/day.jsonl"),
        told("in/day.jsonl", bucket="strangers"),
        told("in/day.csv"),
        told("in/day.jsonl.tmp"),
        told("in/folder/"),
        told("in/.hidden/day.jsonl"),
        told("in/.jsonl"),
        told("out/audio/a.flac.jsonl"),
    ],
)
def test_other_events_are_ignored(message: ReceivedMessage) -> None:
    """Other events, places and file types, and our own outputs, are ignored with a reason."""
    found = read(message, HERE)
    assert isinstance(found, Ignored)
    assert found.reason


def test_own_outputs_are_ignored() -> None:
    """Everything in the bucket is accepted if no prefix is set, except for our own outputs."""
    assert isinstance(read(told("out/x.jsonl"), PlaceRules(OUT)), Ignored)
    assert read(told("x.jsonl"), PlaceRules(OUT)) == RunRequest("gs://calls/x.jsonl", "gs://calls/out/calls/x")


@pytest.mark.parametrize(
    ("prefixes", "out"),
    [
        (("gs://calls/in/",), "in day/x"),
        (("gs://calls/in/in day/", "gs://calls/in/b/"), "in day/x"),
        (("gs://calls/in/", "gs://other/in/"), "calls/in/in day/x"),
        ((), "calls/in/in day/x"),
    ],
)
def test_outputs_of_several_places_do_not_collide(prefixes: tuple[str, ...], out: str) -> None:
    """The folder of a run is named by its path below the common folder of all prefixes, or also by its bucket."""
    assert read(told("in/in day/x.jsonl"), PlaceRules(OUT, prefixes)) == RunRequest(
        "gs://calls/in/in day/x.jsonl", OUT + out
    )


@pytest.mark.parametrize(
    ("data", "order"),
    [
        ({"manifest": "gs://calls/in/m.jsonl"}, RunRequest("gs://calls/in/m.jsonl", "gs://calls/out/m")),
        ({"manifest": "gs://calls/in/m.jsonl", "output": "gs://calls/out/x/"},
         RunRequest("gs://calls/in/m.jsonl", "gs://calls/out/x")),
        ({"manifest": "gs://calls/in/day/", "output": "gs://calls/out/day"},
         RunRequest("gs://calls/in/day/", "gs://calls/out/day")),
    ],
)  # fmt: skip
def test_json_message_is_a_run(data: Any, order: RunRequest) -> None:
    """If a JSON message gives no output, the output is named like that of an upload."""
    assert read(said(data), HERE) == order


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "the message is []"),
        ("gs://calls/in/m.jsonl", "the message is gs://calls/in/m.jsonl"),
        ({}, "manifest is missing"),
        ({"manifest": 3}, "manifest is 3"),
        ({"manifest": "/etc/passwd"}, "manifest is /etc/passwd; it must be an address"),
        ({"manifest": "gs://calls/in/m.jsonl", "shards": 3}, "has unknown keys (shards)"),
        ({"manifest": "gs://calls/else/m.jsonl"}, "lies below none of gs://calls/in/: put it there"),
        ({"manifest": "gs://calls/in/../m.jsonl"}, "has no valid address"),
        ({"manifest": "gs://calls/in/m.jsonl", "output": "gs://else/x"}, "does not lie in gs://calls/out/"),
        ({"manifest": "gs://calls/in/m.jsonl", "output": "gs://calls/out-of-order"}, "does not lie in gs://calls/out/"),
        ({"manifest": "gs://calls/in/m.jsonl", "output": "https://host/x"}, "is no address in a bucket"),
        *(
            ({"manifest": "gs://calls/in/m.jsonl", "output": f"gs://calls/out{end}"}, "which holds all runs")
            for end in ("", "/", "//")
        ),
        ({"manifest": "gs://calls/in/.jsonl"}, "which holds all runs"),
        ({"manifest": "gs://calls/in/day/"}, "is a folder, and no output is named for it"),
    ],
)
def test_invalid_messages_are_refused(data: Any, reason: str) -> None:
    """A message that can never be run is refused with the value and the rule."""
    with pytest.raises(MessageError) as refused:
        read(said(data), HERE)
    assert reason in str(refused.value)


@pytest.mark.parametrize("rules", [HERE, PlaceRules(None)])
def test_errors_hide_signatures(rules: PlaceRules) -> None:
    """No secret of a signed address is in the error, which appears in logs and in the dead-letter topic."""
    with pytest.raises(MessageError) as refused:
        read(said({"manifest": "https://host/m.jsonl?signature=SECRET"}), rules)
    assert "SECRET" not in str(refused.value)


def test_upload_without_an_out_is_refused() -> None:
    """An upload is refused without -o OUT, with a hint to set it; a message may give its own output."""
    with pytest.raises(MessageError, match="start voxbatch listen with -o OUT"):
        read(told("in/day.jsonl"), PlaceRules(None))
    given = {"manifest": "gs://calls/in/m.jsonl", "output": "s3://elsewhere/x"}
    assert read(said(given), PlaceRules(None)) == RunRequest("gs://calls/in/m.jsonl", "s3://elsewhere/x")


@pytest.mark.parametrize("key", ["in/../out/day.jsonl", "in/./day.jsonl"])
def test_upload_whose_name_leads_elsewhere_is_refused(key: str) -> None:
    """An object with a part "." or ".." in its name is refused."""
    with pytest.raises(MessageError, match="has no valid address"):
        read(told(key), HERE)


def test_notification_without_an_object_is_refused() -> None:
    """A notification without the name of its object is refused."""
    with pytest.raises(MessageError, match="without bucketId or objectId"):
        read(said(b"", eventType="OBJECT_FINALIZE", bucketId="calls"), HERE)


@given(st.binary(), st.dictionaries(st.sampled_from(["eventType", "bucketId", "objectId"]), st.text()))
def test_any_message_is_read_or_refused(data: bytes, attributes: dict[str, str]) -> None:
    """Any message is a run, an upload, ignored, or refused with MessageError; no other error is raised."""
    with contextlib.suppress(MessageError):
        assert isinstance(read(ReceivedMessage("1", data, attributes), HERE), RunRequest | UploadedRecording | Ignored)


@given(st.text(min_size=1).map(lambda text: text.replace("\0", "")))
def test_every_output_is_below_out(name: str) -> None:
    """The outputs of a run stay below OUT for every object name."""
    try:
        found = read(told(f"in/{name}.jsonl"), HERE)
    except MessageError:
        return
    if isinstance(found, RunRequest):
        assert found.out.startswith(OUT)
        assert not {".", ".."} & set(found.out.split("/"))
