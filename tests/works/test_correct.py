"""Tests for `voxbatch correct`: what a person changes in the outputs stays, is taken in, and reaches every format."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killed_at
import numpy as np
import power_loss
import pysubs2
import pytest
import servers
import soundfile
from conftest import ROOT, Recorder, Voxbatch, environment

from voxbatch.analysis.results import read_results
from voxbatch.audio.ffmpeg import executable
from voxbatch.output.verify import verify
from voxbatch.records import SAMPLING_RATE, Transcript
from voxbatch.storage import Store, Stores

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
    done = voxbatch("run", "talks", "-o", "out", "--formats", "srt,vtt,ttml,txt", *ENGINE)
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


@pytest.fixture
def again(voxbatch: Voxbatch) -> Callable[..., str]:
    """Return a function that runs the same command again, with more options, and returns its messages."""

    def run(*options: str) -> str:
        done = voxbatch("run", "talks", "-o", "out", "--formats", "srt,vtt,ttml,txt", *ENGINE, *options)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount a folder on itself, so that nothing can be written there."""
    mounts = (["mount", "--bind", str(folder), str(folder)], ["mount", "-o", "remount,ro,bind", str(folder)])
    if os.geteuid() or any(subprocess.run(mount, capture_output=True).returncode for mount in mounts):
        pytest.skip("a read-only folder takes root and the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


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
    shown = voxbatch("correct", "out", "--dry-run").stdout
    assert shown == "1 item to correct\n  a.wav, in srt/a.srt: 1 change\n    w0 w1 w2 [-w3-]{+three+} w4 w5\n"
    done = voxbatch("correct", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 item corrected\n  a.wav, in srt/a.srt: 1 change\n")
    assert "\n1 item corrected by hand, WER of the recogniser 16.67%\n" in done.stdout
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
    assert "hold something else and stay as they are: 1" in again("--beside", "--formats", "srt,vtt,ttml")
    replace_in(ours, ("w0 w1", "zero one"))
    assert voxbatch("correct", "out").returncode == 0
    assert {name: line["pred_text"] for name, line in read_lines(out).items()} == {
        "a.wav": "zero one w2 w3 w4 w5",
        "b.wav": "w0 w1 w2 w3",
    }
    assert ours.read_bytes() == (out / "srt" / "a.srt").read_bytes()
    assert foreign.read_text().endswith("something else\n")


def test_a_file_beside_counts_also_if_the_last_merge_wrote_none_there(
    out: Path, voxbatch: Voxbatch, tmp_path: Path, again: Callable[..., str]
) -> None:
    """A subtitle beside its recording that was changed since is taken in after --no-beside, too. One that nobody has
    changed, and that is of an earlier merge, undoes no correction."""
    again("--beside")
    assert voxbatch("merge", "out", "--no-beside", "--max-line", "20").returncode == 0
    replace_in(out / "vtt" / "b.vtt", ("w1", "one"))
    assert voxbatch("correct", "out", *ESTIMATED).stdout.startswith("1 item corrected\n  b.wav, in vtt/b.vtt")
    assert (tmp_path / "talks/b.srt").read_bytes() == (out / "srt/b.srt").read_bytes()
    replace_in(tmp_path / "talks" / "a.srt", ("w0 w1", "zero one"))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.stdout.startswith(f"1 item corrected\n  a.wav, in {tmp_path}/talks/a.srt: 2 changes\n"), done.stderr
    for _ in range(2):
        assert [line["pred_text"] for line in read_lines(out).values()] == ["zero one w2 w3 w4 w5", "w0 one w2 w3"]
        done = voxbatch("correct", "out", *ESTIMATED)
        assert done.stdout.startswith(f"0 items corrected\n{NOTHING_CHANGED}\n")
        assert "w2 w3" not in done.stdout


def test_files_beside_follow_a_correction(
    out: Path, voxbatch: Voxbatch, again: Callable[..., str], tmp_path: Path
) -> None:
    """A run that replaced the outputs wrote nothing beside the recordings. A correction reaches the files there that
    nobody has changed, and names one that somebody has; a deleted file, and those of other items, stay as they are."""
    again("--beside")
    again("--overwrite", "--no-beside", "--max-line", "20")
    talks = tmp_path / "talks"
    other = (talks / "b.srt").read_bytes()
    replace_in(out / "vtt" / "a.vtt", ("w1", "one"))
    replace_in(talks / "a.ttml", ("w2", "two"))
    (talks / "a.transcript.txt").unlink()
    done = voxbatch("correct", "out", "out/vtt/a.vtt", *ESTIMATED)
    assert f"files beside the recordings: 2, the first is {talks}/a.srt\n" in done.stderr
    assert f"1 file changed by somebody and not replaced: {talks}/a.ttml; to take the changes in: " in done.stderr
    assert (talks / "a.srt").read_bytes() == (out / "srt/a.srt").read_bytes()
    assert "w0 one w2" in " ".join((talks / "a.vtt").read_text().split())
    assert "w0 w1 two" in (talks / "a.ttml").read_text()
    assert not (talks / "a.transcript.txt").exists()
    assert (talks / "b.srt").read_bytes() == other


def retime(path: Path, seconds: float) -> None:
    """Shift all cues of a subtitle file, as editors do."""
    subtitles = pysubs2.load(str(path), encoding="utf-8")
    subtitles.shift(s=seconds)
    subtitles.save(str(path), encoding="utf-8")


def test_subtitles_at_other_times_stay_and_are_told_once(
    out: Path, voxbatch: Voxbatch, again: Callable[..., str]
) -> None:
    """Subtitles with cues at times of a person stay as they are once their text is taken in, and no run warns of them
    any more. A later correction in another file is not undone by them; `correct` says that they lack it."""
    subtitle = out / "srt" / "a.srt"
    replace_in(subtitle, ("w3", "three"), ("w5", "<s>w5</s>"))
    retime(subtitle, 0.5)
    retimed = subtitle.read_bytes()
    assert "not replaced: srt/a.srt" in again()
    done = voxbatch("correct", "out", *ESTIMATED)
    assert "subtitles with cues of your own, which stay as they are: srt/a.srt" in done.stdout, done.stderr
    assert "\n  a.wav, in srt/a.srt: 1 change and its cues\n" in done.stdout
    assert "not replaced" not in done.stderr
    assert again("--max-line", "20") == ""
    assert "00:00:00.500 -->" in (out / "vtt" / "a.vtt").read_text()
    replace_in(out / "vtt" / "a.vtt", ("w1", "one"))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.stdout.startswith("1 item corrected\n  a.wav, in vtt/a.vtt: 1 change\n"), done.stderr
    assert "subtitles with cues of your own that lack a correction; make it there, too: srt/a.srt" in done.stdout
    assert voxbatch("correct", "out", *ESTIMATED).stdout.startswith("0 items corrected\n")
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 one w2 three w4 w5"
    assert subtitle.read_bytes() == retimed
    replace_in(subtitle, ("w1", "one"))
    copy = Path(shutil.copy(subtitle, out.parent / "a.srt"))
    assert voxbatch("correct", "out", str(copy), "--dry-run").stdout == f"0 items to correct\n{NOTHING_CHANGED}\n"
    retime(copy, 1.0)
    told = f"1 item to correct\n  a.wav, in {copy}: its cues\n"
    assert voxbatch("correct", "out", str(copy), "--dry-run").stdout == told
    done = voxbatch("correct", "out", *ESTIMATED)
    assert (done.returncode, "lack a" in done.stdout, again()) == (0, False, "")
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")
    assert voxbatch("correct", "out", "--drop", "srt/a.srt").returncode == 0
    assert "00:00:00,000 -->" in subtitle.read_text()
    assert "00:00:00.000 -->" in (out / "vtt" / "a.vtt").read_text()


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("srt", "w1 w2", "w1\nw2"),
        ("ass", "w1 w2", r"w1\Nw2"),
        ("srt", "w2", "<i>w2</i>"),
        ("ass", ",56,", ",72,"),
        ("ass", "PlayResX: 1920", "PlayResX: 640"),
        ("ass", "Dialogue:", "Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,who?\nDialogue:"),
    ],
)
def test_line_breaks_and_styles_of_a_person_stay(out: Path, voxbatch: Voxbatch, form: str, old: str, new: str) -> None:
    """Line breaks reach all formats, and a file with a style of its own stays, although its words are as before."""
    assert voxbatch("merge", "out", "--formats", "srt,vtt,ass").returncode == 0
    path = out / form / f"a.{form}"
    replace_in(path, (old, new))
    edited = path.read_text()
    done = voxbatch("correct", "out", *ESTIMATED)
    assert f"  a.wav, in {form}/a.{form}: its cues\n" in done.stdout, done.stderr
    assert path.read_text() == edited
    assert ("w0 w1\nw2 w3" in (out / "vtt" / "a.vtt").read_text()) == old.startswith("w1")
    assert voxbatch("correct", "out", *ESTIMATED).stdout.startswith("0 items corrected\n")


def test_a_changed_file_that_says_the_same_is_told(out: Path, voxbatch: Voxbatch) -> None:
    """A file that another program has saved with other line ends gets those of voxbatch again, and is named."""
    path = out / "srt" / "a.srt"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"\n", b"\r\n"))
    dry, done = voxbatch("correct", "out", "--dry-run"), voxbatch("correct", "out", *ESTIMATED)
    assert dry.stdout == f"0 items to correct\n{NOTHING_CHANGED}\n{SAME}: srt/a.srt\n"
    assert (f"{SAME}: srt/a.srt\n" in done.stdout, path.read_bytes()) == (True, before)
    assert SAME not in voxbatch("correct", "out", *ESTIMATED).stdout


@pytest.mark.parametrize(
    ("form", "edit"),
    [
        ("vtt", ("WEBVTT\n", "WEBVTT\n\nSTYLE\n::cue { color: yellow }\n\nNOTE by Ada\n")),
        ("vtt", ("--> 00:00:03.000", "--> 00:00:03.000 line:0 align:start")),
        ("vtt", ("w2", "<c.loud>w2</c>")),
        ("srt", ("w2", '<font color="#ff0000">w2</font>')),
        ("ttml", ("<p ", '<p tts:color="yellow" ')),
        ("ttml", ("<layout>", '<styling><style xml:id="s" tts:color="red"/></styling><layout>')),
    ],
)
def test_styles_and_notes_of_a_person_stay(
    out: Path, voxbatch: Voxbatch, again: Callable[..., str], form: str, edit: tuple[str, str]
) -> None:
    """A file with styles, notes, positions or classes of its own stays as it is, and gives its words."""
    path = out / form / f"a.{form}"
    replace_in(path, edit, ("w1", "one"))
    edited = path.read_text()
    done = voxbatch("correct", "out", *ESTIMATED)
    assert f"  a.wav, in {form}/a.{form}: 1 change" in done.stdout, done.stdout + done.stderr
    assert (path.read_text(), again("--max-line", "20")) == (edited, "")
    assert path.read_text() == edited
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 one w2 w3 w4 w5"


@pytest.mark.parametrize("source", ["txt", "json", "transcripts"])
def test_a_corrected_text_keeps_the_cues_of_a_person(out: Path, voxbatch: Voxbatch, source: str) -> None:
    """A text without times goes into the cues that a person has timed before, with their line breaks; a copy of
    subtitles is undone by --drop, by its name or with everything."""
    before = (out / "srt" / "a.srt").read_text()
    copy = out.parent / "a.srt"
    copy.write_text(
        "1\n00:00:00,100 --> 00:00:01,000\nw0\nw1\n\n2\n00:00:01,100 --> 00:00:02,000\nw2 w3\n\n"
        "3\n00:00:02,100 --> 00:00:03,100\nw4 w5\n"
    )
    done = voxbatch("correct", "out", str(copy), *ESTIMATED)
    assert ": its cues\n" in done.stdout, done.stdout + done.stderr
    if source == "txt":
        replace_in(out / "txt" / "a.txt", ("w1", "one more"), ("w4 w5", ""))
    elif source == "json":
        (out.parent / "texts.jsonl").write_text('{"id": "a.wav", "text": "w0 one more w2 w3"}')
    else:
        path = out / "transcripts.jsonl"
        path.write_text(path.read_text().replace('"w0 w1 w2 w3 w4 w5"', '"w0 one more w2 w3"', 1))
    files = [str(out.parent / "texts.jsonl")] if source == "json" else []
    done = voxbatch("correct", "out", *files, *ESTIMATED)
    assert done.returncode == 0, done.stderr
    text = (out / "srt" / "a.srt").read_text()
    assert text == ("1\n00:00:00,100 --> 00:00:01,000\nw0 one\nmore\n\n2\n00:00:01,100 --> 00:00:02,000\nw2 w3\n\n")
    if source == "txt":
        refused = voxbatch("correct", "out", "--drop", str(copy))
        assert (refused.returncode, "nobody has changed such a file" in refused.stderr) == (2, True)
    dropped = voxbatch("correct", "out", "--drop")
    assert "changes dropped: 0 files, cues of 1 item" in dropped.stderr
    assert "00:00:00,000 -->" in (out / "srt" / "a.srt").read_text()
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 one more w2 w3"
    if source == "json":
        replace_in(copy, ("w0\nw1", "w0\none more"), ("\n3\n00:00:02,100 --> 00:00:03,100\nw4 w5\n", ""))
        assert voxbatch("correct", "out", str(copy), *ESTIMATED).returncode == 0
        assert (out / "srt" / "a.srt").read_text().startswith("1\n00:00:00,100")
        assert "cues of 1 item" in voxbatch("correct", "out", "--drop", str(copy)).stderr
        assert not (out / "srt" / "a.srt").read_text().startswith("1\n00:00:00,100")
    assert before.startswith("1\n00:00:00,000")


@pytest.mark.parametrize("form", ["srt", "vtt", "ass", "ttml"])
def test_all_formats_get_the_cues_of_a_person(out: Path, voxbatch: Voxbatch, form: str) -> None:
    """Cues that a person has divided, joined or shifted in one format are those of all formats, with their lines, also
    in the files of a later merge and after a text is corrected in another one. The words keep the times of the
    audio, and those of vtt-words follow a cue that most of them are outside of."""
    assert (
        voxbatch("merge", "out", "--formats", "srt,vtt,ass,ttml", "--max-line", "10", "--max-lines", "1").returncode
        == 0
    )
    words = read_lines(out)["a.wav"]["words"]
    path = out / form / f"a.{form}"
    subtitles = pysubs2.load(str(path), encoding="utf-8")
    assert [cue.plaintext for cue in subtitles] == ["w0 w1 w2", "w3 w4 w5"]
    first, second = subtitles
    middle = first.end - 500
    subtitles.append(pysubs2.SSAEvent(middle, second.end - 500, r"w1 {\s1}w2{\s0}\Nw3"))
    first.end, first.text, second.start, second.text = middle, "w0", second.end - 500, "w4 w5"
    subtitles.sort()
    subtitles.shift(s=0.5)
    subtitles.save(str(path), encoding="utf-8")
    expected = [(cue.start, cue.end, cue.plaintext) for cue in subtitles]
    done = voxbatch("correct", "out", *ESTIMATED)
    assert f"  a.wav, in {form}/a.{form}: its cues\n" in done.stdout, done.stderr

    def cues(other: str) -> list[tuple[int, int, str]]:
        loaded = pysubs2.load(str(out / other / f"a.{other}"), encoding="utf-8")
        return [(cue.start // 10 * 10, cue.end // 10 * 10, cue.plaintext) for cue in loaded]

    expected = [(start // 10 * 10, end // 10 * 10, text) for start, end, text in expected]
    assert {other: cues(other) for other in ("srt", "vtt", "ass", "ttml")} == dict.fromkeys(
        ("srt", "vtt", "ass", "ttml"), expected
    )
    assert read_lines(out)["a.wav"]["words"] == words
    assert voxbatch("merge", "out", "--formats", "srt,vtt,ass,ttml,vtt-words", "--max-line", "12").returncode == 0
    other = "vtt" if form == "srt" else "srt"
    replace_in(out / other / f"a.{other}", ("w1", "one"))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert f"  a.wav, in {other}/a.{other}: 1 change\n" in done.stdout, done.stderr
    corrected = [(start, end, text.replace("w1", "one")) for start, end, text in expected]
    assert [cues(name) for name in ("srt", "vtt", "ass", "ttml") if name != form] == [corrected] * 3
    assert cues(form) == expected
    assert re.search(r"</c>\n<00:00:02\.41\d><c>w3</c>\n", (out / "vtt-words" / "a.vtt").read_text())
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")


STYLED = {
    "srt": "<i>w0 &\n<b>w1</b></i> <u>w2</u>",
    "vtt": "<i>w0 &amp;\n<b>w1</b></i> <u>w2</u>",
    "ass": r"{\i1}w0 &\N{\b1}w1{\b0}{\i0} {\u1}w2{\u0}",
    "ttml": '<span tts:fontStyle="italic">w0 &amp;<br/><span tts:fontWeight="bold">w1</span></span> '
    '<span tts:textDecoration="underline">w2</span>',
}
"""A cue with styles as a person writes it."""


@pytest.mark.parametrize("form", STYLED)
def test_styles_of_a_person_reach_all_formats(out: Path, voxbatch: Voxbatch, form: str) -> None:
    """Italics, bold and underlined words are so in every format, and stay when another format is corrected."""
    assert voxbatch("merge", "out", "--formats", "srt,vtt,ass,ttml", "--max-line", "10").returncode == 0
    path = out / form / f"a.{form}"
    replace_in(path, ("w0 w1 w2", STYLED[form]))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.returncode == 0, done.stderr
    expected = {
        "srt": "<i>w0 &</i>\n<b><i>w1</i></b> <u>w2</u>",
        "vtt": "<i>w0 &amp;</i>\n<b><i>w1</i></b> <u>w2</u>",
        "ass": r"{\i1}w0 &{\i0}\N{\b1}{\i1}w1{\i0}{\b0} {\u1}w2{\u0}",
        "ttml": '<span tts:fontStyle="italic">w0 &amp;</span><br/><span tts:fontWeight="bold"><span '
        'tts:fontStyle="italic">w1</span></span> <span tts:textDecoration="underline">w2</span>',
    }
    for other in {*STYLED} - {form}:
        assert expected[other] in (out / other / f"a.{other}").read_text(), other
    assert STYLED[form] in path.read_text()
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 & w1 w2 w3 w4 w5"
    other = "vtt" if form == "srt" else "srt"
    replace_in(out / other / f"a.{other}", ("w4", "four"))
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    for name in {*STYLED} - {form}:
        text = (out / name / f"a.{name}").read_text()
        assert (expected[name] in text, "four" in text) == (True, True), name


@pytest.mark.parametrize("form", ["srt", "vtt", "ass", "ttml"])
def test_cues_that_overlap_are_told(out: Path, voxbatch: Voxbatch, form: str) -> None:
    """Both cues of each pair are named with their times, also one that lies below a longer one; they are taken in."""
    assert voxbatch("merge", "out", "--formats", "srt,vtt,ass,ttml").returncode == 0
    path = out / form / f"a.{form}"
    subtitles = pysubs2.load(str(path), encoding="utf-8")
    times = ((0, 2000, "w0 w1"), (500, 1000, "w2"), (1500, 2500, "w3"), (2500, 3200, "w4 w5"))
    subtitles.events = [pysubs2.SSAEvent(*cue) for cue in times]
    subtitles.save(str(path), encoding="utf-8")
    for options in (("--dry-run",), ()):
        shown = voxbatch("correct", "out", *options, *ESTIMATED).stdout
        assert (
            f"  a.wav, in {form}/a.{form}: its cues\n"
            "    0:00.0 to 0:02.0 “w0 w1” overlaps 0:00.5 to 0:01.0 “w2”\n"
            "    0:00.0 to 0:02.0 “w0 w1” overlaps 0:01.5 to 0:02.5 “w3”\n"
        ) in shown
        assert shown.count("overlaps") == 2
    assert (out / "srt/a.srt").read_text().count("-->") == 4


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


def test_a_folder_is_refused_with_the_files_to_name(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The files of a folder are named by a pattern, which takes them in."""
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed" / "a.srt").write_bytes((out / "srt" / "a.srt").read_bytes().replace(b"w1", b"one"))
    refused = voxbatch("correct", "out", "fixed")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"Error: {tmp_path}/fixed is a folder: name its files, such as {tmp_path}/fixed/*.srt\n"
    assert voxbatch("correct", "out", *map(str, (tmp_path / "fixed").glob("*.srt")), *ESTIMATED).returncode == 0
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 one w2 w3 w4 w5"


def test_two_files_that_differ_are_refused(out: Path, voxbatch: Voxbatch) -> None:
    """If two files of an item say different things, none is taken before one is named."""
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    replace_in(out / "txt" / "a.txt", ("w1", "won"))
    refused = voxbatch("correct", "out")
    assert refused.returncode == 2
    assert "srt/a.srt and txt/a.txt were both changed, and say different things" in refused.stderr
    assert voxbatch("correct", "out", "txt/a.txt").returncode == 0
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 won w2 w3 w4 w5"
    assert "one" in (out / "srt" / "a.srt").read_text()


@pytest.mark.parametrize(
    "command", [("correct",), ("correct", "--drop"), ("merge", "--formats", "ass"), ("redact", "-o", "copies")]
)
def test_an_out_that_cannot_be_written_is_to_be_copied(out: Path, voxbatch: Voxbatch, command: tuple[str, ...]) -> None:
    """A command that changes the OUT of a finished run has no other OUT to offer."""
    replace_in(out / "srt" / "a.srt", ("w1 w2", "one"))
    with read_only(out):
        done = voxbatch(command[0], out, *command[1:])
    assert done.returncode == 1
    assert "the file system is read-only: copy OUT to a place that can be written" in done.stderr


def test_changes_are_dropped_by_name(out: Path, voxbatch: Voxbatch) -> None:
    """`--drop` writes the named files, those of a folder, or all of them as they were."""
    names = ("srt/a.srt", "vtt/a.vtt", "vtt/b.vtt", "transcripts.jsonl", "report.html")
    before = {name: (out / name).read_bytes() for name in names}
    for name in names:
        (out / name).write_bytes(b" " + before[name])
    for name, left in (("srt/a.srt", 4), ("vtt/", 2)):
        # transcripts.jsonl is still changed, so that the command ends with its error
        assert voxbatch("correct", "out", "--drop", name, "--dry-run").returncode == 2
        assert voxbatch("correct", "out", "--drop", name).returncode == 1
        assert len([name for name in names if (out / name).read_bytes() != before[name]]) == left
    assert voxbatch("correct", "out", "--drop").returncode == 0
    assert {name: (out / name).read_bytes() for name in names if name != "report.html"} == {
        name: content for name, content in before.items() if name != "report.html"
    }
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")
    assert voxbatch("correct", "out", "--drop", "srt/a.srt").returncode == 2


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_every_step_of_a_drop(out: Path, voxbatch: Voxbatch, tmp_path: Path, stride: int) -> None:
    """Whenever `correct --drop` is killed, the same command writes the named files again. The cues of a person that
    were taken in go with their file."""
    names = ("srt/a.srt", "vtt/b.vtt", "transcripts.jsonl", "report.html")
    before = {name: (out / name).read_bytes() for name in names}
    retime(out / "srt" / "a.srt", 0.24)
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    replace_in(out / "vtt" / "b.vtt", ("w1", "one"))
    for name in names[2:]:
        (out / name).write_bytes(b" " + (out / name).read_bytes())
    shutil.copytree(out, tmp_path / "changed")
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "changed", out)
        code = voxbatch("correct", "out", "--drop", *names, env={killed_at.VARIABLE: str(number)}).returncode
        done = voxbatch("correct", "out", "--drop", *names)
        left = {name: (out / name).read_bytes() for name in names[:2] if (out / name).exists()}
        assert left == {name: before[name] for name in names[:2]}, (number, done.stderr)
        assert [line.get("recognised", {}).get("subtitles") for line in read_lines(out).values()] == [[], None]
        assert (out / "report.html").exists()
        assert verify(Stores().out(str(out))) == []
        number += stride
    assert code == 0
    assert number > 10
    (out / "srt" / "a.srt").unlink()
    refused = voxbatch("correct", "out", "--drop", "srt/a.srt", "srt/x.srt")
    assert (refused.returncode, "srt/x.srt: nobody has changed" in refused.stderr) == (2, True)


@pytest.mark.parametrize("named", [True, False])
def test_changes_beside_recordings_are_dropped_after_the_last_merge_wrote_none_there(
    out: Path, voxbatch: Voxbatch, again: Callable[..., str], tmp_path: Path, named: bool
) -> None:
    """After --no-beside, `--drop` writes a changed file beside a recording again, as the log gives it now. The others
    stay as they are, and one that was deleted stays away. Files that somebody else has put there do not count."""
    again("--beside")
    assert voxbatch("merge", "out", "--no-beside", "--max-line", "20").returncode == 0
    talks = tmp_path / "talks"
    older = (talks / "a.vtt").read_bytes()
    replace_in(talks / "a.srt", ("w1", "one"))
    (talks / "b.srt").unlink()
    (talks / "c.srt").write_text("mine")
    done = voxbatch("correct", "out", "--drop", *["talks/a.srt"] * named)
    assert done.returncode == 0, done.stderr
    assert "changes dropped: 1 file" in done.stderr
    assert (talks / "a.srt").read_bytes() == (out / "srt" / "a.srt").read_bytes()
    assert (talks / "a.vtt").read_bytes() == older
    assert not (talks / "b.srt").exists()
    assert (talks / "c.srt").read_text() == "mine"
    assert voxbatch("correct", "out", "--drop", "talks/a.srt").returncode == 2


@pytest.mark.parametrize("names", [(), ("srt/a.srt",)])
def test_a_change_over_cues_is_dropped_with_them(out: Path, voxbatch: Voxbatch, names: tuple[str, ...]) -> None:
    """A file whose cues were taken in, and that was changed again, loses both at once: the command may be repeated."""
    before = (out / "srt" / "a.srt").read_bytes()
    retime(out / "srt" / "a.srt", 0.24)
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    assert voxbatch("correct", "out", "--drop", *names).returncode == 0
    assert (out / "srt" / "a.srt").read_bytes() == before


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


def test_a_correction_stays_if_the_recording_does(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """With --update, an item with another reference and topic is scored again by its correction. One whose
    recording had changed before gets no correction of the recording before."""
    recording("a.wav", 3.2)
    recording("b.wav", 2.1)
    command = ("run", "m.jsonl", "-o", "out", "--formats", "txt", "--update", *ENGINE)
    last = "w0 w1 w2 three w4 w5"
    for step, text in enumerate(("w0", "w0 w1", "w0 w1 w2", last)):
        rows = [
            {"audio_filepath": f"{name}.wav", "text": text, "lang": "en", "topic": step, "md5": "1"} for name in "ab"
        ]
        rows[1]["md5"] = str(min(step, 2))
        (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert voxbatch(*command).returncode == 0
        if not step:
            replace_in(tmp_path / "out/txt/a.txt", ("w3", "three"))
            replace_in(tmp_path / "out/txt/b.txt", ("w3", "three"))
            assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    lines = read_lines(tmp_path / "out")
    assert (lines["a.wav"]["pred_text"], lines["a.wav"]["text"], lines["a.wav"]["wer"]) == (last, last, 0)
    assert lines["a.wav"]["recognised"]["pred_text"] == "w0 w1 w2 w3 w4 w5"
    assert (lines["b.wav"]["pred_text"], "recognised" in lines["b.wav"]) == ("w0 w1 w2 w3", False)
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")


def test_overwrite_refuses_to_delete_corrections(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Nothing is deleted, also with --limit. Another OUT leaves the corrected file beside the recording, and the one
    command of the message drops the corrections."""
    run = ("run", "talks", "--formats", "srt", "--beside", *ENGINE)
    assert voxbatch(*run, "-o", "out").returncode == 0
    for old, new in (("w1", "one"), ("w2", "two")):
        replace_in(tmp_path / "talks" / "a.srt", (old, new))
        assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = ""
    for options in ((), ("--limit", "1")):
        refused = voxbatch(*run, "-o", "out", "--overwrite", *options)
        message = refused.stderr
        assert (refused.returncode, "corrections by hand of 1 item, which --overwrite" in refused.stderr) == (2, True)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert voxbatch(*run, "-o", "other").returncode == 0
    assert "w0 one two" in (tmp_path / "talks" / "a.srt").read_text()
    command = message.rsplit("to drop them first: ")[1]
    assert "; " not in command
    subprocess.run(command, shell=True, check=True)  # the shell expands the pattern
    done = voxbatch(*run, "-o", "out", "--overwrite")
    assert (done.returncode, read_lines(out)["a.wav"]["pred_text"]) == (0, "w0 w1 w2 w3 w4 w5"), done.stderr


def test_a_correction_is_taken_back(out: Path, voxbatch: Voxbatch, again: Callable[..., str]) -> None:
    """A file that somebody puts back as it was before a correction is a change, too."""
    before = (out / "srt" / "a.srt").read_bytes()
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    assert voxbatch("correct", "out").returncode == 0
    corrected = (out / "srt" / "a.srt").read_bytes()
    (out / "srt" / "a.srt").write_bytes(before)
    assert "not replaced: srt/a.srt" in again()
    assert voxbatch("correct", "out").returncode == 0
    line = read_lines(out)["a.wav"]
    assert (line["pred_text"], line["recognised"]["wer"]) == ("w0 w1 w2 w3 w4 w5", 0)
    (out / "srt" / "a.srt").write_bytes(corrected)
    assert "not replaced: srt/a.srt" in again()


def test_every_reader_has_the_correction(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The score against a reference, flags, tables, data sets and the Python interface have the corrected text."""
    recording("a.wav", 5.2)
    row = {"audio_filepath": "a.wav", "text": "w0 one w2 w3 w4 w5 w6 w7 w8 w9", "lang": "en"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    assert voxbatch("run", "m.jsonl", "-o", "out", "--formats", "txt", *ENGINE).returncode == 0
    before = json.loads(voxbatch("score", "out", "--json").stdout)
    assert before["words"]["errors"] > 0
    replace_in(tmp_path / "out" / "txt" / "a.txt", ("w1", "one"))
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    line = read_lines(tmp_path / "out")["a.wav"]
    assert (line["wer"], line["recognised"]["wer"] > 0) == (0, True)
    assert json.loads(voxbatch("score", "out", "--json").stdout)["words"]["errors"] == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["score"]["wer"] == 0
    assert voxbatch("report", "out", "--export", "items.csv").returncode == 0
    assert ",w0 one w2 w3 w4" in (tmp_path / "items.csv").read_text()
    assert voxbatch("export", "out", "-o", "set").returncode == 0
    shards = b"".join(path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file())
    assert b"w0 one w2" in shards
    (result,) = read_results(Stores().out(str(tmp_path / "out")))
    assert isinstance(result.outcome, Transcript)
    assert result.outcome.text == row["text"]


def test_a_file_without_a_text_is_no_correction(out: Path, voxbatch: Voxbatch, again: Callable[..., str]) -> None:
    """An empty file that a loss of power or another program has left is not taken for a text that was deleted; a
    subtitle without cues is."""
    for name, content in (("srt/a.srt", b""), ("vtt/a.vtt", b"\0" * 80), ("srt/b.srt", b"PK\3\4 no subtitle")):
        (out / name).write_bytes(content)
    done = voxbatch("correct", "out", *ESTIMATED)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "0 items corrected")
    assert "not taken in, because only readable texts are: srt/b.srt\n" in done.stdout
    assert "w0 w1" in (out / "srt" / "a.srt").read_text()
    assert "w0 w1" in (out / "vtt" / "a.vtt").read_text()
    assert (out / "srt" / "b.srt").read_bytes() == b"PK\3\4 no subtitle"
    (out / "vtt" / "b.vtt").write_text("WEBVTT\n\n")
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    assert read_lines(out)["b.wav"]["pred_text"] == ""
    assert "srt/b.srt" in again()


@pytest.mark.parametrize(
    ("form", "old", "new", "shown"),
    [
        ("srt", " --> ", " -> ", "line 2: '00:00:00,000 -> "),
        ("srt", " --> ", " -- ", "line 2: '00:00:00,000 -- "),
        ("srt", "00:00:00,000 --> ", "00:00:59,000 --> ", "line 2: '00:00:59,000 --> "),
        ("srt", "00:00:00,000", "00:00:0x,000", "line 2: '00:00:0x,000 --> "),
        ("vtt", "00:00:00.000 --> 00", "00:00:00.000 --> o0", "line 4: '00:00:00.000 --> o0"),
        ("ass", "0:00:00.00,", "0:00:59.00,", "line 13: 'Dialogue: 0,0:00:59.00,"),
        ("ass", "0:00:00.00,", "0:00;00.00,", "line 13: 'Dialogue: 0,0:00;00.00,"),
        ("ttml", 'begin="00:00:00.000"', 'begin="00:00:59.000"', 'line 10: \'<p begin="00:00:59.000"'),
    ],
)
def test_a_cue_with_broken_times_is_refused(
    out: Path, voxbatch: Voxbatch, form: str, old: str, new: str, shown: str
) -> None:
    """A mistake in the times of a cue is named with its line, and takes no text away; the file stays."""
    assert voxbatch("merge", "out", "--formats", form).returncode == 0
    file = out / form / f"a.{form}"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "0 items corrected"), done.stdout
    assert f"not taken in, because only readable texts are: {form}/a.{form}, {shown}" in done.stdout
    assert "', has no readable times, or ends before it begins\n" in done.stdout
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 w1 w2 w3 w4 w5"
    assert new in file.read_text()
    shutil.copy(file, copy := out.parent / f"a.{form}")
    refused = voxbatch("correct", "out", copy.name, *ESTIMATED)
    assert refused.returncode == 2
    assert f"a.{form}, {shown}" in refused.stderr


def test_a_text_in_an_old_encoding_is_told(out: Path, voxbatch: Voxbatch) -> None:
    """A file that is not in UTF-8 is read as Windows-1252, and the output says so."""
    text = out / "txt" / "a.txt"
    text.write_bytes(text.read_bytes().replace(b"w1", "naïve".encode("cp1252")))
    done = voxbatch("correct", "out", "txt/a.txt", *ESTIMATED)
    assert "1 file not in UTF-8, read as Windows-1252: txt/a.txt" in done.stdout
    assert read_lines(out)["a.wav"]["pred_text"] == "w0 naïve w2 w3 w4 w5"


def test_a_change_of_the_lines_waits_for_further_recordings(
    out: Path, voxbatch: Voxbatch, recording: Recorder, again: Callable[..., str]
) -> None:
    """A run with further recordings does them although transcripts.jsonl was changed. `correct` then takes the change
    in, and writes the lines of all."""
    replace_in(out / "transcripts.jsonl", ('"w0 w1 w2 w3 w4 w5"', '"w0 w1 w2 w3 w4 five"'))
    recording("talks/c.wav", 1.2)
    command = ("run", "talks", "-o", "out", "--formats", "srt,vtt,ttml,txt", *ENGINE)
    done = voxbatch(*command)
    assert (done.returncode, f"voxbatch correct {out}" in done.stderr) == (1, True)
    assert len(read_lines(out)) == 2
    assert (out / "srt" / "c.srt").exists()
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    assert [line["pred_text"] for line in read_lines(out).values()] == ["w0 w1 w2 w3 w4 five", "w0 w1 w2 w3", "w0 w1"]
    assert again() == ""


@pytest.mark.parametrize("options", [("--engine", "ctc"), ("--model", "nowhere"), ("--engine", "whisper")])
def test_an_aligner_that_cannot_be_used_is_refused(out: Path, voxbatch: Voxbatch, options: tuple[str, ...]) -> None:
    """An engine or a model that was asked for is needed: nothing is committed without it."""
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    done = voxbatch("correct", "out", *options)
    assert (done.returncode, done.stderr.startswith("Error: ")) == (2, True)
    assert not list(out.rglob("corrected-*"))


def check_only_speaker(out: Path, item_id: str, old: str, new: str) -> None:
    """Check that all words of a speaker have another one in the lines and in the formats of who speaks when."""
    speakers = {part.get("speaker") for key in ("words", "segments") for part in read_lines(out)[item_id][key]}
    assert (new in speakers, old in speakers) == (True, False)
    for path in (*out.glob("*/*.rttm"), *out.glob("json/*")):
        assert new.replace(" ", "_") in path.read_text().replace(" ", "_")
        assert old.replace(" ", "_") not in path.read_text().replace(" ", "_")


@pytest.mark.parametrize("form", ["srt", "vtt", "ass", "ttml", "txt"])
def test_calls_with_a_speaker_in_each_channel(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path, form: str
) -> None:
    """A word is corrected, and the turns of one side are given to the other. Each word keeps its times, and all formats
    follow."""
    call_of_two(recording, tmp_path)
    sides = ("--channels", "split", "--channel-names", "agent,customer")
    formats = "srt,vtt,ass,ttml,txt,rttm,json"
    done = voxbatch("run", "call.wav", "-o", "out", "--formats", formats, *sides, *ENGINE)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    before = read_lines(out)["call.wav"]
    (path,) = (out / form).glob("call.*")
    replace_in(path, ("customer", "agent"), ("w1", "one"))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.returncode == 0, done.stderr
    line = read_lines(out)["call.wav"]
    assert line["pred_text"] == before["pred_text"].replace("w1", "one")
    assert [word["start"] for word in line["words"]] == [word["start"] for word in before["words"]]
    check_only_speaker(out, "call.wav", "customer", "agent")
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")


@pytest.mark.parametrize(
    ("form", "label", "new"),
    [
        ("srt", r"(agent|customer): ", ""),
        ("srt", r"(agent|customer): ", "- "),
        ("vtt", r"<v (agent|customer)>", ""),
        ("ass", r"(?<=,,)(agent|customer): ", ""),
        ("ass", r"(?<=Default,)(agent|customer)", "Anna"),
        ("ass", r"(?<=agent,0,0,)0(?=,)", "900"),
        ("ttml", r"(?<=>)(agent|customer): ", ""),
        ("txt", r"(agent|customer): ", ""),
    ],
)
def test_a_file_without_the_labels_of_speakers_stays(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path, form: str, label: str, new: str
) -> None:
    """The labels that a person has taken away do not come back, and the words keep their speakers in the others."""
    call_of_two(recording, tmp_path)
    sides = ("--channels", "split", "--channel-names", "agent,customer")
    done = voxbatch("run", "call.wav", "-o", "out", "--formats", "srt,vtt,ass,ttml,txt,rttm", *sides, *ENGINE)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    before, turns = read_lines(out)["call.wav"], (out / "rttm/call.rttm").read_text()
    labels = {
        other: re.findall("agent|customer", (out / other / f"call.{other}").read_text()) for other in ("srt", "vtt")
    }
    (path,) = (out / form).glob("call.*")
    path.write_text(re.sub(label, new, path.read_text()))
    edited = path.read_bytes()
    for _ in range(2):
        done = voxbatch("correct", "out", *ESTIMATED)
        assert (done.returncode, path.read_bytes()) == (0, edited), done.stderr
        assert f"cues of your own, which stay as they are: {form}/{path.name}" in done.stdout
    speakers = [word["speaker"] for word in read_lines(out)["call.wav"]["words"]]
    assert speakers == [word["speaker"] for word in before["words"]]
    assert (out / "rttm/call.rttm").read_text() == turns
    for other in {"srt", "vtt"} - {form}:
        assert re.findall("agent|customer", (out / other / f"call.{other}").read_text()) == labels[other]


def call_of_two(recording: Recorder, folder: Path) -> None:
    """Make call.wav: three turns, the second in the right channel, the others in the left one."""
    recording("agent.wav", 1.6)
    left = soundfile.read(folder / "agent.wav", dtype="float32")[0]
    silence = np.zeros_like(left)
    call = np.concatenate([np.stack(pair, axis=1) for pair in ((left, silence), (silence, left), (left, silence))])
    soundfile.write(folder / "call.wav", call, SAMPLING_RATE)


def test_speakers_that_were_told_apart_get_names(
    corpus: Path, speaker_networks: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The label of a speaker is changed to a name in the subtitle of a conversation, and a word beside it. The text of
    the others stays, and so does the correction in a run that goes on."""
    row = {"audio_filepath": str(corpus / "conversations" / "sample.flac"), "duration": 15}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    command = ("run", "m.jsonl", "-o", "out", "--speakers", "auto", "--speaker-model", speaker_networks, *ENGINE)
    done = voxbatch(*command, "--formats", "srt,rttm,json")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    ((item_id, before),) = read_lines(out).items()
    (path,) = (out / "srt").glob("*.srt")
    replace_in(path, ("Speaker 1:", "Anna:"), (" w3 ", " three "))
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.returncode == 0, done.stderr
    check_only_speaker(out, item_id, "Speaker 1", "Anna")
    line = read_lines(out)[item_id]
    assert line["pred_text"] == before["pred_text"].replace(" w3 ", " three ")
    assert voxbatch(*command, "--formats", "srt,rttm,json,vtt").stderr == ""
    check_only_speaker(out, item_id, "Speaker 1", "Anna")
    assert "<v Anna>" in next((out / "vtt").glob("*")).read_text()


def test_other_kinds_of_runs_are_refused(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Alignments have a text of their own, and are refused in one line."""
    recording("a.wav", 1.5)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav", "text": "hello"}\n')
    assert voxbatch("align", "m.jsonl", "-o", "out", "-q").returncode in (0, 3)
    done = voxbatch("correct", "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "has given texts: correct them in the manifest" in done.stderr


ODD = "Dr. Müller <3 R&D {x} a\\b at 12:30.5 5 < 6 > 4 don't 7 stop. Second sentence — here's more & more …"
"""A text with what is markup in some format."""


def with_pysubs2(path: Path) -> None:
    """Change a word with pysubs2, which writes numbers, headers and styles of its own. In all formats but ASS, it drops
    what is in braces."""
    subtitles = pysubs2.load(str(path), encoding="utf-8")
    for event in subtitles:
        event.text = event.text.replace("sentence", "phrase")
    subtitles.save(str(path), encoding="utf-8")


def with_ffmpeg(*formats: str) -> Callable[[Path], None]:
    """Return a function that changes a word and lets ffmpeg read and write the file, through other formats."""

    def convert(path: Path) -> None:
        replace_in(path, ("sentence", "phrase"))
        present = path
        for number, form in enumerate((*formats, path.suffix[1:])):
            following = path.with_name(f"{number}.{form}")
            command = [executable(), "-v", "error", "-y", "-i", str(present), str(following)]
            subprocess.run(command, check=True)
            present = following
        present.replace(path)

    return convert


def with_ttconv(form: str) -> Callable[[Path], None]:
    """Return a function that changes a word in the item's file of another format, and lets ttconv make this one."""

    def convert(path: Path) -> None:
        pytest.importorskip("ttconv")
        source = path.parents[2] / f"source.{form}"
        source.write_text((path.parents[1] / form / f"a.{form}").read_text().replace("sentence", "phrase"))
        command = [sys.executable, "-m", "ttconv.tt", "convert", "-i", str(source), "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)

    return convert


def with_sed(path: Path) -> None:
    """Change a word with sed."""
    subprocess.run(["sed", "-i", "s/sentence/phrase/", str(path)], check=True)


def as_subtitle_edit(path: Path) -> None:
    """Change a word as Subtitle Edit saves SubRip: with a byte order mark, CRLF, italics and numbers from 100."""
    text = path.read_text().replace("sentence", "<i>phrase</i>")
    text = re.sub(r"^(\d+)$", lambda number: str(int(number[1]) + 99), text, flags=re.MULTILINE)
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))


def as_notepad(path: Path) -> None:
    """Change a word as Notepad saves "Unicode": UTF-16 with a byte order mark and CRLF."""
    path.write_bytes(path.read_text().replace("sentence", "phrase").replace("\n", "\r\n").encode("utf-16"))


def with_json(path: Path) -> None:
    """Change a word with Python's json, which writes the lines with other spaces and escapes."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["pred_text"] = line["pred_text"].replace("sentence", "phrase")
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("srt/a.srt", with_sed),
        ("srt/a.srt", with_pysubs2),
        ("srt/a.srt", with_ffmpeg()),
        ("srt/a.srt", with_ffmpeg("ass")),
        ("srt/a.srt", as_subtitle_edit),
        ("srt/a.srt", as_notepad),
        ("vtt/a.vtt", with_sed),
        ("vtt/a.vtt", with_pysubs2),
        ("vtt/a.vtt", with_ffmpeg()),
        ("vtt-words/a.vtt", with_sed),
        ("ass/a.ass", with_sed),
        ("ass/a.ass", with_pysubs2),
        ("ass/a.ass", with_ffmpeg()),
        ("ttml/a.ttml", with_sed),
        ("ttml/a.ttml", with_pysubs2),
        ("ttml/a.ttml", with_ttconv("ttml")),
        ("ttml/a.ttml", with_ttconv("srt")),
        ("vtt/a.vtt", with_ttconv("vtt")),
        ("txt/a.txt", with_sed),
        ("txt/a.txt", as_notepad),
        ("transcripts.jsonl", with_sed),
        ("transcripts.jsonl", with_json),
    ],
)
def test_files_of_other_programs_are_taken_in(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    """A word that was changed by another program is the only change, whatever else the program writes."""
    recording("a.wav", len(ODD.split()) / 2 + 0.2)
    (tmp_path / "says.json").write_text(json.dumps({"count": [ODD]}))
    says = ("--engine-option", f"says={tmp_path}/says.json")
    done = voxbatch("run", "a.wav", "-o", "out", "--formats", FORMATS, *ENGINE, *says)
    assert done.returncode == 0, done.stderr
    before = read_lines(tmp_path / "out")["a.wav"]
    assert before["pred_text"] == ODD
    change(tmp_path / "out" / name)
    done = voxbatch("correct", "out", *ESTIMATED)
    assert done.returncode == 0, (done.stdout, done.stderr)
    line = read_lines(tmp_path / "out")["a.wav"]
    lost = "{x} " if change is with_pysubs2 and not name.startswith("ass") else ""
    assert line["pred_text"] == ODD.replace("sentence", "phrase").replace(lost, "")
    times = [(word["start"], word["end"]) for word in before["words"] if word["word"] != lost.strip()]
    assert [(word["start"], word["end"]) for word in line["words"]] == times
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")


def test_new_words_get_their_times_from_the_audio(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Words that Whisper tiny.en has misheard and a person has corrected are aligned with the recording. The others
    keep their times and confidences."""
    pytest.importorskip("faster_whisper")
    pytest.importorskip("pocketsphinx")
    shutil.copy(ROOT / "examples" / "recordings" / "weather.flac", tmp_path)
    assert voxbatch("run", "weather.flac", "-o", "out", "--formats", "srt", "-q").returncode == 0
    before = read_lines(tmp_path / "out")["weather.flac"]
    assert "The morning will guide right with light winds" in before["pred_text"]
    replace_in(tmp_path / "out/srt/weather.srt", ("guide right\n", "be dry,\n"))
    done = voxbatch("correct", "out")
    assert done.returncode == 0, done.stderr
    line = read_lines(tmp_path / "out")["weather.flac"]
    assert "The morning will be dry, with light winds" in line["pred_text"]
    at = line["pred_text"].split().index("be")
    be, dry = line["words"][at : at + 2]
    assert (be["word"], dry["word"], line["recognised"]["estimated_words"]) == ("be", "dry,", 0)
    assert (be["start"], be["end"], dry["end"]) == pytest.approx((3.34, 3.42, 3.74), abs=0.1)
    assert [*line["words"][:at], *line["words"][at + 2 :]] == [*before["words"][:at], *before["words"][at + 2 :]]


ESTIMATED = ("--engine", "none")
"""No word is looked for in the audio, which takes seconds."""
SAME = "changed files that say the same, which are written as before"
NOTHING_CHANGED = "no file has a change that is new; edit a subtitle or a text of OUT, save it, and run again"


def contents(store: Store) -> dict[str, Any]:
    """Return all files of an OUT except for those that have the time of a commit, and the logs of digests, of which a
    command that was killed leaves more. The config of the summary names the place."""
    names = [name for name in store.names("") if not re.match(r"digests/|\.voxbatch-probe|.*/corrected-", name)]
    files: dict[str, Any] = {name: store.read(name) for name in names}
    files["summary.json"] = {**json.loads(files["summary.json"]), "config": {}}
    return files


@pytest.fixture
def place_of_copies(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Return a function from a name to a place: a folder, or a prefix in a bucket."""
    if request.param == "local":
        yield lambda name: str(tmp_path / name)
        return
    with servers.placed(request.getfixturevalue(request.param), monkeypatch) as place:
        yield lambda name: f"{place.server.scheme}://{place.bucket}/{name}"


@pytest.mark.parametrize(
    ("place_of_copies", "stride"),
    [
        ("local", 2),
        ("google", 8),
        ("amazon", 8),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in ("local", "google", "amazon", "seaweed")),
    ],
    indirect=["place_of_copies"],
)
def test_killed_at_every_step_of_a_correction(
    out: Path, voxbatch: Voxbatch, place_of_copies: Callable[[str], str], stride: int
) -> None:
    """Whenever `correct` is killed, the same command, or the run itself, ends in the bytes of an undisturbed one, in a
    folder and in two kinds of buckets."""
    edits = {
        "srt/a.srt": (b"w1 w2", b"one"),
        "vtt/b.vtt": (b"w1", b"w1 more"),
        "transcripts.jsonl": (b'w0 w1 w2 w3"', b'w0 w1 more w2 w3"'),
    }

    def edited(name: str) -> str:
        """Return the place of a copy of the finished OUT with changed files."""
        place = place_of_copies(f"{name}/out")
        store = Stores().out(place)
        for path in out.rglob("*"):
            if path.is_file():
                content, relative = path.read_bytes(), str(path.relative_to(out))
                if relative in edits:
                    content = content.replace(*edits[relative])
                store.create(relative, [content])
        return place

    undisturbed = edited("undisturbed")
    assert voxbatch("correct", undisturbed, *ESTIMATED).returncode == 0
    wanted = contents(Stores().out(undisturbed))
    assert [json.loads(line)["pred_text"] for line in (wanted["transcripts.jsonl"] or b"").splitlines()] == [
        "w0 one w3 w4 w5",
        "w0 w1 more w2 w3",
    ]
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        place = edited(f"killed{number}")
        code = voxbatch("correct", place, *ESTIMATED, env={killed_at.VARIABLE: str(number)}).returncode
        is_committed = bool([name for name in Stores().out(place).names("parts") if "/corrected-" in name])
        again = ("run", "talks", "-o", place, "--formats", "srt,vtt,ttml,txt", *ENGINE, "--report")
        command = again if is_committed and number % 2 else ("correct", place, *ESTIMATED)
        done = voxbatch(*command)
        assert done.returncode == 0, (number, done.stderr)
        left = contents(Stores().out(place))
        if (
            command is again or "://" not in place
        ):  # the report names a folder, and the settings of the run that wrote it
            left["report.html"] = wanted["report.html"]
        assert left == wanted, number
        assert verify(Stores().out(place)) == []
        number += stride
    assert code == 0
    assert number > 20


def test_killed_at_every_step_of_a_drop_of_all(out: Path, voxbatch: Voxbatch) -> None:
    """Whenever `correct --drop` is killed, the same command, or the run itself, ends in the bytes of an undisturbed
    one: the changed text of one file is gone, and so are the cues of another one, whose text stays."""
    replace_in(out / "srt" / "a.srt", ("w1", "one"))
    retime(out / "srt" / "a.srt", 0.5)
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    replace_in(out / "vtt" / "b.vtt", ("w1", "two"))
    undisturbed = Path(shutil.copytree(out, out.parent / "undisturbed"))
    assert voxbatch("correct", undisturbed, "--drop").returncode == 0
    wanted = contents(Stores().out(str(undisturbed)))
    texts = [json.loads(line)["pred_text"] for line in (wanted["transcripts.jsonl"] or b"").splitlines()]
    assert texts == ["w0 one w2 w3 w4 w5", "w0 w1 w2 w3"]
    assert b"00:00:00,000 -->" in (wanted["srt/a.srt"] or b"")
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        place = Path(shutil.copytree(out, out.parent / f"killed{number}"))
        code = voxbatch("correct", place, "--drop", env={killed_at.VARIABLE: str(number)}).returncode
        again = ("run", "talks", "-o", place, "--formats", "srt,vtt,ttml,txt", *ENGINE, "--report")
        done = voxbatch(*(("correct", place, "--drop") if number % 2 else again))
        assert done.returncode == 0, (number, done.stderr)
        if not number % 2:  # a run drops nothing itself
            assert voxbatch("correct", place, "--drop").returncode == 0
        left = contents(Stores().out(str(place)))
        left["report.html"] = wanted["report.html"]  # it names the folder, and the settings of the run that wrote it
        assert left == wanted, number
        assert verify(Stores().out(str(place))) == []
        number += 3
    assert code == 0
    assert number > 10


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.long)])
def test_a_correction_continues_after_a_loss_of_power(out: Path, voxbatch: Voxbatch, stride: int) -> None:
    """After any loss of power, the same command ends with the files of an undisturbed one."""
    replace_in(out / "srt" / "a.srt", ("w1 w2", "one"))
    arguments = ["correct", str(out), *ESTIMATED]
    code, states = power_loss.states([sys.executable, "-m", "voxbatch", *arguments], out, environment())
    expected = contents(Stores().out(str(out)))
    assert (code, len(states) > 10) == (0, True)
    for state in states[::-stride]:
        power_loss.restore(state, out)
        done = voxbatch(*arguments)
        left = sorted((os.path.relpath(path, out), len(content)) for path, content in state.items())
        assert done.returncode == 0, (left, done.stderr)
        assert contents(Stores().out(str(out))) == expected, left


def test_a_corrected_file_alone_names_its_run(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """`correct FILE` finds OUT by the folder of a file beside its recording, by the recording, and above a file in OUT.
    A file elsewhere needs the OUT.
    """
    recording("talks/day/a.wav", 2.1)
    recording("alone.wav", 2.1)
    assert voxbatch("run", "talks", "--beside", *ENGINE).returncode == 0
    assert voxbatch("run", "alone.wav", "--beside", "--formats", "srt,txt", *ENGINE).returncode == 0
    for file, out, word in (
        ("talks/day/a.srt", "talks", "w1"),
        ("alone.srt", "alone", "w1"),
        ("alone.transcript.txt", "alone", "w2"),
        ("talks.voxbatch/srt/day/a.srt", "talks", "w2"),
    ):
        replace_in(tmp_path / file, (word, "new"))
        done = voxbatch("correct", file, "--engine", "none")
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 item corrected"), done.stderr
        assert " new " in next(iter(read_lines(tmp_path / f"{out}.voxbatch").values()))["pred_text"]
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "alone.srt", tmp_path / "elsewhere" / "alone.srt")
    refused = voxbatch("correct", "elsewhere/alone.srt")
    told = "elsewhere/alone.srt is a file, and no run is near it; give the OUT of its run first: voxbatch correct OUT "
    assert (refused.returncode, f"{told}elsewhere/alone.srt" in refused.stderr) == (2, True), refused.stderr
    refused = voxbatch("correct", "nothing.srt")
    assert (refused.returncode, "there is no file nothing.srt; give" in refused.stderr) == (2, True), refused.stderr


def test_another_model_is_compared_with_what_a_person_has_corrected(
    out: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A correction is the reference of an item that has none, so that `compare` shows where a later text differs."""
    replace_in(out / "srt" / "a.srt", ("w1 w2", "one two"))
    assert voxbatch("correct", "out", *ESTIMATED).returncode == 0
    (tmp_path / "says.json").write_text(json.dumps({"count": ["w0 one w2 w3 w4 w5", "w0 w1 w2 w3"]}))
    other = ("run", "talks", "-o", "other", *ENGINE, "--engine-option", f"says={tmp_path}/says.json")
    assert voxbatch(*other).returncode == 0
    compared = json.loads(voxbatch("compare", "out", "other", "--json").stdout)
    [item] = compared["changed"]
    assert (item["reference"], item["text_b"]) == ("w0 one two w3 w4 w5", "w0 one w2 w3 w4 w5")
    assert (item["errors_a"], item["errors_b"], compared["without_reference"]) == (0, 1, 1)
