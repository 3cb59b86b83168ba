"""Tests for videos without an audio track, as b-roll: no failure of a run, but an empty transcript with a warning."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from conftest import Recorder, Voxbatch

import voxbatch as package
from voxbatch.audio.ffmpeg import executable
from voxbatch.output.beside import BESIDE
from voxbatch.output.own_files import OwnFiles
from voxbatch.storage import Stores

WARNING = "the video has no audio track"


def ffmpeg(*options: str | Path) -> None:
    """Write a file."""
    subprocess.run([executable(), "-nostdin", "-v", "error", *map(str, options)], check=True, timeout=60)


def videos(folder: Path, recording: Recorder) -> None:
    """Write a video with sound, one with a silent track, and one without a track."""
    folder.mkdir()
    picture = ("-f", "lavfi", "-i", "color=s=32x32:d=2")
    sound = recording("sound.wav", 2.0)
    ffmpeg(*picture, "-i", sound, "-c:v", "mpeg4", folder / "talk.mp4")
    ffmpeg(*picture, "-f", "lavfi", "-i", "anullsrc", "-t", "2", "-c:v", "mpeg4", folder / "silent.mp4")
    ffmpeg(*picture, "-c:v", "mpeg4", folder / "broll.mp4")


def lines(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_b_roll_ends_as_an_empty_transcript(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A folder with a video without a track is done with exit code 0, as with a silent track: an empty text and an
    empty file, and the line tells why. No copy with subtitles is made of either, which is told.
    """
    videos(tmp_path / "videos", recording)
    done = voxbatch("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "srt", "--mux")
    assert done.returncode == 0, done.stderr
    assert "3 done + 0 failed = 3 items, 1 with warnings" in done.stdout
    assert "warnings: voxbatch flags out --warnings\n" in done.stdout
    for place in ("out", "out/transcripts.jsonl"):
        assert voxbatch("flags", place, "--warnings").stdout == f"broll.mp4: {WARNING}\n"
    assert done.stdout.startswith(f"broll.mp4: ({WARNING})\nsilent.mp4: (no speech)\n")
    transcripts = lines(tmp_path / "out" / "transcripts.jsonl")
    broll = transcripts["broll.mp4"]
    assert (broll["pred_text"], broll["audio_duration"], broll["warnings"]) == ("", 0.0, [WARNING])
    assert broll["flags"] == transcripts["silent.mp4"]["flags"] == []
    assert transcripts["silent.mp4"]["warnings"] == []
    assert [(tmp_path / f"out/srt/{name}.srt").read_text() for name in ("broll", "silent")] == ["", ""]
    unmade = "videos with subtitles not made, because nobody speaks in them: 2, the first is "
    assert f"{unmade}{tmp_path}/videos/broll.mp4" in done.stderr
    assert sorted(path.name for path in (tmp_path / "videos").glob("*.subtitled.*")) == ["talk.subtitled.mp4"]
    assert voxbatch("redact", "out", "-o", "shared").returncode == 0
    shared = lines(tmp_path / "shared" / "transcripts.jsonl").values()
    assert [line["pred_text"] for line in shared if line["audio_duration"] == 0] == [""]


def test_work_that_needs_sound_fails_without_it(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """No question about a recording without sound can be answered: the item fails, and the run says so. A file with a
    cover or with subtitles alone is no video.
    """
    videos(tmp_path / "videos", recording)
    options = ("--engine", "scripted", "--engine-option", "task=ask")
    asked = voxbatch("ask", "videos/broll.mp4", "-o", "asked", "--prompt", "Who?", *options)
    assert (asked.returncode, "1 no audio track" in asked.stdout) == (3, True), asked.stderr
    (tmp_path / "cues.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nold\n")
    ffmpeg("-i", tmp_path / "cues.srt", "-c:s", "srt", "-f", "matroska", tmp_path / "cues.mka")
    done = voxbatch("run", "cues.mka", "-o", "out", "--engine", "scripted")
    assert (done.returncode, "1 not audio" in done.stderr) == (3, True), done.stderr


def test_b_roll_gets_no_empty_file_beside(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """Players and editors refuse an empty subtitle. One that an earlier merge wrote goes, and a person's file stays."""
    folder = tmp_path / "videos"
    videos(folder, recording)
    (folder / "broll.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\nmine\n")
    (folder / "silent.vtt").write_bytes(b"WEBVTT\n\n")
    OwnFiles(Stores().out(str(tmp_path / "out"))).mark([(f"{folder}/silent.vtt", BESIDE)])
    done = voxbatch("run", "videos", "-o", "out", "--beside", "--formats", "srt,vtt", "--engine", "scripted")
    assert done.returncode == 0, done.stderr
    assert f"files not written beside recordings without speech: 4, the first is {folder}/" in done.stderr
    assert sorted(path.name for path in folder.glob("*.[sv][rt]t")) == ["broll.vtt", "talk.srt", "talk.vtt"]
    assert (tmp_path / "out/vtt/broll.vtt").read_text() == "WEBVTT\n\n"


def test_python_gives_an_empty_transcript_of_b_roll(recording: Recorder, tmp_path: Path) -> None:
    """The same from Python: an empty text with the warning."""
    videos(tmp_path / "videos", recording)
    transcript = package.transcribe(tmp_path / "videos" / "broll.mp4", engine="scripted")
    assert (transcript.text, transcript.warnings) == ("", (WARNING,))
