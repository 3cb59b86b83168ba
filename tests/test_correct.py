"""Tests for `voxbatch correct`: what a person changes in the outputs stays, is taken in, and reaches every format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorder, Voxbatch

ENGINE = ("--engine", "scripted", "--log-format", "text", "-q")
FORMATS = "srt,vtt,vtt-words,ass,ttml,txt,json,textgrid,ctm"
SECONDS = {"a": 3.2, "b": 2.1}
"""Lengths of the recordings, in which the engine hears w0 w1 w2 …, a word each half second."""


def read_lines(out: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of transcripts.jsonl by their ids."""
    return {line["id"]: line for line in map(json.loads, (out / "transcripts.jsonl").read_text().splitlines())}


def replace_in(path: Path, *pairs: tuple[str, str]) -> None:
    """Replace texts in a file; each must be there."""
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture
def out(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a finished run of talks/a.wav and talks/b.wav, with files beside them."""
    for name, seconds in SECONDS.items():
        recording(f"talks/{name}.wav", seconds)
    done = voxbatch("run", "talks", "-o", "out", "--formats", "srt,vtt,txt", *ENGINE)
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


@pytest.fixture
def again(voxbatch: Voxbatch) -> Callable[..., str]:
    """Return a function that runs the same command again, with more options, and returns its messages."""

    def run(*options: str) -> str:
        done = voxbatch("run", "talks", "-o", "out", "--formats", "srt,vtt,txt", *ENGINE, *options)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def test_an_edited_file_stays_until_its_change_is_taken_in(
    out: Path, voxbatch: Voxbatch, again: Callable[..., str]
) -> None:
    """The same command, and one with other settings, leave an edited subtitle and name it; `correct` takes it in, and
    all formats, the report and the summary follow; the next run has nothing to say."""
    replace_in(out / "srt" / "a.srt", ("w3", "three"))
    edited, report = (out / "srt" / "a.srt").read_bytes(), (out / "report.html").read_bytes()
    for options in ((), ("--max-line", "20")):
        assert "1 file changed by somebody and not replaced: srt/a.srt; to take the changes in: voxbatch" in again(
            *options
        )
        assert (out / "srt" / "a.srt").read_bytes() == edited
    done = voxbatch("correct", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 item corrected\n  a.wav, in srt/a.srt: 1 change\n")
    line = read_lines(out)["a.wav"]
    assert line["pred_text"] == "w0 w1 w2 three w4 w5"
    assert [(word["word"], word["start"]) for word in line["words"]][2:5] == [("w2", 1.0), ("three", 1.5), ("w4", 2.0)]
    assert (line["recognised"]["pred_text"], line["recognised"]["wer"]) == ("w0 w1 w2 w3 w4 w5", round(1 / 6, 6))
    assert (out / "report.html").read_bytes() != report
    for name in ("srt/a.srt", "vtt/a.vtt", "txt/a.txt"):
        assert "w2 three w4" in " ".join((out / name).read_text().split()), name
    corrections = json.loads((out / "summary.json").read_text())["corrections"]
    assert (corrections["items"], corrections["score"]["wer"]) == (1, round(1 / 6, 6))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert again("--max-line", "20") == ""
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_corrected_file_beside_a_recording_is_taken_in(
    out: Path, voxbatch: Voxbatch, tmp_path: Path, again: Callable[..., str]
) -> None:
    """A subtitle beside its recording is voxbatch's if voxbatch wrote it there. One that was there before is nobody's
    correction."""
    foreign, ours = tmp_path / "talks" / "b.srt", tmp_path / "talks" / "a.srt"
    foreign.write_text("1\n00:00:00,000 --> 00:00:02,000\nsomething else\n")
    assert "hold something else and stay as they are: 1" in again("--beside", "--formats", "srt,vtt")
    replace_in(ours, ("w0 w1", "zero one"))
    assert voxbatch("correct", "out").returncode == 0
    assert {name: line["pred_text"] for name, line in read_lines(out).items()} == {
        "a.wav": "zero one w2 w3 w4 w5",
        "b.wav": "w0 w1 w2 w3",
    }
    assert ours.read_bytes() == (out / "srt" / "a.srt").read_bytes()
    assert foreign.read_text().endswith("something else\n")


@pytest.mark.parametrize("form", ["srt", "vtt", "vtt-words", "ass", "ttml", "txt"])
def test_each_format_is_taken_in(out: Path, voxbatch: Voxbatch, form: str) -> None:
    """A word that is changed, one that is left out and one that is added reach transcripts.jsonl from each format."""
    assert voxbatch("merge", "out", "--formats", FORMATS).returncode == 0
    (path,) = (out / form).glob("a.*")
    replace_in(path, ("w1", "one"), ("w3", ""), ("w4", "w4 more"))
    done = voxbatch("correct", "out")
    assert done.returncode == 0, done.stderr
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 one w2 w4 more w5"
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")


def test_lines_of_transcripts_are_taken_in(out: Path, voxbatch: Voxbatch) -> None:
    """A changed `pred_text` of transcripts.jsonl is a correction. Another key is not, and then the file stays."""
    replace_in(out / "transcripts.jsonl", ('"pred_text": "w0 w1', '"pred_text": "w0 so w1'))
    done = voxbatch("correct", "out")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "2 items corrected"), done.stderr
    assert read_lines(out)["b.wav"]["pred_text"] == "w0 so w1 w2 w3"
    replace_in(out / "transcripts.jsonl", ('"engine": "scripted"', '"engine": "me"'))
    refused = voxbatch("correct", "out")
    assert refused.returncode == 1
    assert "transcripts.jsonl: engine of a.wav, transcripts.jsonl: engine of b.wav" in refused.stdout
    assert "transcripts.jsonl was changed or damaged: " in refused.stderr
    assert '"engine": "me"' in (out / "transcripts.jsonl").read_text()


def test_given_files_are_taken_in(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Copies of subtitles, texts and lines of JSON are matched with their items; the latest correction counts."""
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed" / "a.srt").write_bytes((out / "srt" / "a.srt").read_bytes().replace(b"w1", b"one"))
    (tmp_path / "b.txt").write_text("w0 w1 two w3\n")
    assert voxbatch("correct", "out", "fixed/a.srt", "b.txt").returncode == 0
    assert [line["pred_text"] for line in read_lines(out).values()] == ["w0 one w2 w3 w4 w5", "w0 w1 two w3"]
    rows = [{"id": "a.wav", "text": "w0 one w2 w3 w4 five"}, {"audio_filepath": "talks/b.wav", "text": "w0 w1 w2 w3"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert voxbatch("correct", "out", "rows.jsonl").returncode == 0
    lines = read_lines(out)
    assert [line["pred_text"] for line in lines.values()] == ["w0 one w2 w3 w4 five", "w0 w1 w2 w3"]
    assert lines["a.wav"]["recognised"]["pred_text"] == "w0 w1 w2 w3 w4 w5"
    assert lines["b.wav"]["recognised"]["wer"] == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"c.srt": "1\n00:00:00,000 --> 00:00:01,000\nx\n"}, "c.srt: no item with a transcript has this name"),
        ({"a.docx": "x"}, "texts are taken from .srt, .vtt,"),
        ({"rows.jsonl": "{}\n"}, "rows.jsonl, line 1: it needs `id` or `audio_filepath`, and `text` or `pred_text`"),
        ({"rows.jsonl": "w0\n"}, "rows.jsonl, line 1: not JSON"),
        ({"rows.jsonl": '{"id": "nobody", "text": "x"}\n'}, "nobody: no item with a transcript has this name"),
        ({}, "srt/a.srt: no item with a transcript has this name, or nobody has changed the file"),
    ],
    ids=str,
)
def test_what_cannot_be_taken_in_is_refused(
    out: Path, voxbatch: Voxbatch, tmp_path: Path, files: dict[str, str], message: str
) -> None:
    """A file without an item, without a text or unchanged is refused in one line, and nothing changes."""
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    before = (out / "summary.json").read_bytes()
    done = voxbatch("correct", "out", *(files or ("out/srt/a.srt",)))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"Error: .*{re.escape(message)}.*\n", done.stderr), done.stderr
    assert (out / "summary.json").read_bytes() == before


def test_two_files_that_differ_are_refused(out: Path, voxbatch: Voxbatch) -> None:
    """If two files of an item say different things, none is taken before one is named."""
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    replace_in(out / "txt" / "a.txt", ("w1", "won"))
    refused = voxbatch("correct", "out")
    assert refused.returncode == 2
    assert "srt/a.srt and txt/a.txt were both changed, and say different things" in refused.stderr
    assert voxbatch("correct", "out", "out/txt/a.txt").returncode == 0
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 won w2 w3 w4 w5"
    assert "one" in (out / "srt" / "a.srt").read_text()


def test_changes_are_dropped_by_name(out: Path, voxbatch: Voxbatch) -> None:
    """`--drop` writes the named files, those of a folder, or all of them as they were."""
    names = ("srt/a.srt", "vtt/a.vtt", "vtt/b.vtt", "transcripts.jsonl", "report.html")
    before = {name: (out / name).read_bytes() for name in names}
    for name in names:
        (out / name).write_bytes(before[name] + b" ")
    for arguments, count in ((("srt/a.srt",), 1), (("vtt/",), 2)):
        # transcripts.jsonl is still changed, so that the command ends with its error
        assert voxbatch("correct", "out", "--drop", *arguments).returncode == 1
        changed = [name for name in names if (out / name).read_bytes() != before[name]]
        assert len(changed) == {"srt/a.srt": 4, "vtt/": 2}[arguments[0]], count
    assert voxbatch("correct", "out", "--drop").returncode == 0
    assert {name: (out / name).read_bytes() for name in names if name != "report.html"} == {
        name: content for name, content in before.items() if name != "report.html"
    }
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")
    assert voxbatch("correct", "out", "--drop", "srt/a.srt").returncode == 2


def test_a_correction_stays_in_further_runs(
    out: Path, voxbatch: Voxbatch, recording: Recorder, again: Callable[..., str], tmp_path: Path
) -> None:
    """A folder that grows, --update and --retry-failed keep a correction. A recording that is replaced is transcribed
    again, and the message says that its correction does not count any more."""
    replace_in(out / "txt" / "a.txt", ("w1", "one"))
    assert voxbatch("correct", "out").returncode == 0
    recording("talks/0.wav", 1.2)
    assert "correction" not in again()
    (tmp_path / "talks" / "b.wav").unlink()
    assert "correction" not in again("--update")
    assert "correction" not in again("--retry-failed", "all")
    assert [line["pred_text"] for line in read_lines(out).values()] == ["w0 w1", "w0 one w2 w3 w4 w5", "w0 w1 w2 w3"]
    recording("talks/a.wav", 1.7)
    said = again()
    assert "1 item recognised anew, because the recording or its line has changed; the corrections " in said
    assert "do not count any more: a.wav" in said
    assert "recognised" not in read_lines(out)["a.wav"]
    replace_in(out / "txt" / "a.txt", ("w1", "eins"))
    assert voxbatch("correct", "out").returncode == 0
    assert "correction" not in again()
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 eins w2"


def test_other_kinds_of_runs_are_refused(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Alignments have a text of their own, and are refused in one line."""
    recording("a.wav", 1.5)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav", "text": "hello"}\n')
    assert voxbatch("align", "m.jsonl", "-o", "out", "-q").returncode in (0, 3)
    done = voxbatch("correct", "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no transcripts of voxbatch run" in done.stderr
