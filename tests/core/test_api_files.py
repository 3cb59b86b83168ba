"""Tests for recordings that are not files with a name: bytes, files in memory, and open files."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT, Recorder

import voxbatch as vb

pytestmark = pytest.mark.slow
RECORDINGS = ROOT / "examples" / "recordings"
FORMATS = ["weather.flac", "museum.wav", "recipe.mp3", "platform-four.ogg", "library.opus", "appointment.m4a"]


@pytest.fixture
def transcriber() -> Any:
    """Yield a transcriber with the scripted engine."""
    with vb.Transcriber(engine="scripted") as open_transcriber:
        yield open_transcriber


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_of_a_file_are_the_file(name: str, transcriber: vb.Transcriber) -> None:
    """Bytes of any format, without a name, give the transcript and the warnings of their file."""
    path = RECORDINGS / name
    assert transcriber.transcribe(path.read_bytes()) == transcriber.transcribe(path)


def test_files_are_read_from_their_position(
    transcriber: vb.Transcriber, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in memory, an open file and a spooled file are read to their end, stay open, and leave no file behind."""
    path, before = RECORDINGS / "weather.flac", os.listdir(RECORDINGS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected, data = transcriber.transcribe(path), path.read_bytes()
    prefixed = io.BytesIO(b"header" + data)
    prefixed.seek(len(b"header"))
    with tempfile.SpooledTemporaryFile() as spooled, path.open("rb") as file:
        spooled.write(data)
        spooled.seek(0)
        for recording in (io.BytesIO(data), prefixed, spooled, file, bytearray(data), memoryview(data)):
            assert transcriber.transcribe(recording) == expected
        assert not prefixed.closed
        assert not file.closed
        assert transcriber.transcribe(data, duration=2).audio_duration == 2
    assert os.listdir(RECORDINGS) == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("audio", "reason"),
    [
        (b"", "the recording is 0 bytes long"),
        (io.BytesIO(b""), "the recording is 0 bytes long; if it was just written, call seek(0) before"),
    ],
)
def test_no_bytes_are_an_empty_recording(audio: Any, reason: str, transcriber: vb.Transcriber) -> None:
    """An upload of 0 bytes is the fault of the recording, as an empty file is, and not of the call."""
    with pytest.raises(vb.AudioError) as failed:
        transcriber.transcribe(audio)
    assert (failed.value.kind, failed.value.retryable) == (vb.FailureKind.EMPTY, False)
    assert str(failed.value) == reason


def test_a_file_in_text_mode_is_refused(transcriber: vb.Transcriber) -> None:
    """The error of a file in text mode says what to do."""
    text: Any = io.StringIO("text")
    with pytest.raises(vb.ConfigError, match=r'the file gives text; open it in binary mode, open\(path, "rb"\)'):
        transcriber.transcribe(text)


def test_a_file_that_cannot_be_read_is_named(transcriber: vb.Transcriber) -> None:
    """A file whose read fails, such as a server's response, is not a full folder of temporary files."""
    ours, theirs = socket.socketpair()
    theirs.sendall(b"RIFF")
    ours.settimeout(0.1)
    with theirs, ours, ours.makefile("rb", buffering=0) as file, pytest.raises(vb.AudioError) as failed:
        transcriber.transcribe(file)
    assert str(failed.value) == "the open file cannot be read: timed out"


def test_an_error_does_not_name_the_temporary_file(transcriber: vb.Transcriber, recording: Recorder) -> None:
    """Bytes that are no recording are named so, and a file by its own name."""
    with pytest.raises(vb.AudioError, match=r"^cannot decode the bytes: ") as of_bytes:
        transcriber.transcribe(b"%PDF-1.7 no audio")
    assert "PDF" in str(of_bytes.value)
    named = io.BytesIO(b"no audio")
    named.name = "call.wav"
    with pytest.raises(vb.AudioError, match=r"^cannot decode call\.wav: "):
        transcriber.transcribe(named)
    with pytest.raises(vb.ConfigError, match="sampling_rate=16000 is for arrays"):
        transcriber.transcribe(recording("a.wav", 1).read_bytes(), sampling_rate=16_000)


# ── paths ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("nope/a.wav", "not_found", "cannot open {}/nope/a.wav: it does not exist: there is no folder {}/nope"),
        ("tlak.wav", "not_found", "cannot open {}/tlak.wav: it does not exist; did you mean {}/talk.wav?"),
        (
            "talk.wav/a.wav",
            "not_found",
            "cannot open {}/talk.wav/a.wav: it does not exist: there is no folder {}/talk.wav",
        ),
        ("*.wav", "not_found", "cannot open {}/*.wav: it is a pattern, which voxbatch.run takes"),
        (".", "not_audio", "{} is a folder; voxbatch.run transcribes all recordings in it"),
        ("~/tlak.wav", "not_found", "cannot open {}/tlak.wav: it does not exist; did you mean {}/talk.wav?"),
    ],
)
def test_a_wrong_path_says_what_to_do(
    name: str,
    kind: str,
    message: str,
    transcriber: vb.Transcriber,
    recording: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A path that cannot be opened is an error of the recording that no retry mends, with what was perhaps meant."""
    folder = Path(recording("talk.wav", 2)).parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(vb.AudioError) as error:
        transcriber.transcribe(name)
    assert str(error.value) == message.replace("{}", str(folder))
    assert (error.value.kind, error.value.retryable) == (kind, False)


def test_a_tilde_is_the_home_folder(
    recording: Recorder, tmp_path: Path, transcriber: vb.Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings, OUT and runs to read or to compare may lie in ~, which no shell expands here."""
    recording("in/talk.wav", 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert transcriber.transcribe("~/in/talk.wav").words
    assert vb.run(["~/in/talk.wav"], "~/out", engine="scripted").done == 1
    assert len(list(vb.read_results("~/out"))) == 1
    with pytest.raises(vb.UsageError, match="no item in common has a reference"):
        vb.compare("~/out", "~/out")


@pytest.mark.parametrize("source", [5, None, b"RIFF", [b"RIFF"]])
def test_a_source_of_another_type_is_refused(source: Any) -> None:
    """A run takes places; the message names what takes bytes and arrays."""
    with pytest.raises(vb.ConfigError, match="the source is of type "):
        vb.run(source, engine="scripted")


def test_two_recordings_of_one_name_have_their_own_out(recording: Recorder, tmp_path: Path) -> None:
    """A recording whose name another one had gets an OUT of its own if none is given, as by the command."""
    for name in ("talk.wav", "talk.flac"):
        assert vb.run(recording(name, 2), engine="scripted").items == 1
    assert {path.name for path in tmp_path.rglob("*.voxbatch")} == {"talk.voxbatch", "talk.flac.voxbatch"}


def test_rows_in_place_of_a_source_are_answered_with_a_manifest() -> None:
    """Rows and a table, whose names of columns look like places, are answered with what writes a manifest."""
    rows = [{"audio_filepath": "a.wav"}]
    for source in (rows, pa.Table.from_pylist(rows)):
        with pytest.raises(vb.ConfigError, match=r"has rows; write them to a manifest of JSON lines, in pandas by `"):
            vb.run(source, engine="scripted")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda value: vb.run("a.wav", value, engine="scripted"), "out"),
        (lambda value: list(vb.read_results(value)), "out"),
        (lambda value: vb.compare(value, "b"), "a"),
        (lambda value: vb.score("a.jsonl", ref=value), "ref"),
        (lambda value: vb.score(["a"], ["a"], language="en", replace=value), "replace"),
    ],
)
def test_a_place_of_another_type_is_refused(call: Callable[[Any], object], name: str) -> None:
    """An argument that names a place is a path or an address."""
    with pytest.raises(vb.ConfigError, match=f"^{name} is of type list; give a path or an address$"):
        call([{"text": "a"}])
