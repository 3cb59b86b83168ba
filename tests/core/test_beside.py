"""Tests for files beside the recordings: written once, never over a file of somebody else."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorder, Voxbatch
from outputs import RUN, owned
from servers import Place

from voxbatch.analysis.videos import own_copies, write_videos
from voxbatch.audio.ffmpeg import executable
from voxbatch.config import FORMATS
from voxbatch.formats import CueLimits
from voxbatch.log import Log
from voxbatch.output import merge
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import _stale_files
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.storage import Store, Stores

TEXT = "We went down to the harbour early in the morning."
ENGINE = ("--engine", "scripted", "--log-format", "text")


class Videos:
    """A folder of videos, and a run that has transcribed them and has not merged."""

    def __init__(self, folder: Path, paths: list[str], **row: Any):
        self.folder, self.store = folder / "videos", Stores().out(str(folder / "out"))
        self.run, self.said = replace(RUN, items=len(paths)), list[str]()
        entries = []
        for i, path in enumerate(paths):
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
            line: dict[str, Any] = {
                "audio_filepath": str(place),
                "id": f"{i}/{path}",
                "lang": "en",
                "pred_text": TEXT,
                "words": [],
            }
            segments: list[dict[str, Any]] = [{"text": TEXT, "start": 0.0, "end": 4.0}]
            line |= {
                "segments": segments,
                "audio_duration": 4.0,
                "warnings": [],
                "flags": [],
                "confidence": None,
                **row,
            }
            entries.append(PartEntry(i, "transcript", json_bytes(line)))
        Checkpoint(self.store, owned(self.store, items=len(paths))).commit(entries, 1.0)

    def merge(self, *formats: str, max_line: int = 42) -> None:
        """Merge with files beside the videos, and keep what was logged."""
        self.said.clear()
        files = ItemFiles(formats or ("srt",), CueLimits(max_line), True)
        merge.merge(self.store, self.run, files, Log(write=self.said.append))

    def files(self) -> list[str]:
        """Return the files among the videos that are not empty."""
        found = [path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size]
        return sorted(str(path.relative_to(self.folder)) for path in found)


def test_files_are_named_after_the_recordings(tmp_path: Path) -> None:
    """talk.mp4 gets talk.srt, whatever the item's id is; recordings with one stem keep their extensions."""
    videos = Videos(tmp_path, ["talk.mp4", "a/both.mp4", "a/both.wav", "b/both.mp4"])
    videos.merge("srt", "vtt-words")
    assert videos.files() == [
        f"{name}.{form}" for name in ("a/both.mp4", "a/both.wav", "b/both", "talk") for form in ("srt", "words.vtt")
    ]
    assert videos.folder.joinpath("talk.srt").read_bytes() == videos.store.read("srt/0/talk.srt")
    assert videos.said == [f"files beside the recordings: 8, the first is {videos.folder}/talk.srt"]


def test_a_translation_is_named_by_its_language(tmp_path: Path) -> None:
    """A transcript of another run keeps its name beside the recording; players list both by language."""
    videos = Videos(tmp_path, ["talk.mp4", "day.one.mp4"], spoken_language="de")
    (videos.folder / "talk.srt").write_text("1\n00:00:00,000 --> 00:00:02,000\nGuten Tag.\n")
    videos.merge("srt", "vtt-words", "txt")
    endings = ("srt", "transcript.txt", "words.vtt")
    names = [f"{name}.en.{ending}" for name in ("day.one", "talk") for ending in endings]
    assert videos.files() == sorted([*names, "talk.srt"])
    assert "Guten Tag" in (videos.folder / "talk.srt").read_text()
    assert not any("stay as they are" in text for text in videos.said)


def test_the_copy_of_a_translated_video_is_named_by_its_language(tmp_path: Path) -> None:
    """The copy with the translation is beside that of another run. `forget` finds the copy, and no other one."""
    videos = Videos(tmp_path, ["talk.mp4"], spoken_language="de")
    video, other = videos.folder / "talk.mp4", videos.folder / "talk.subtitled.mp4"
    picture = ("-f", "lavfi", "-i", "color=blue:s=64x48:r=5:d=2", "-c:v", "mpeg4")
    subprocess.run([executable(), "-v", "error", "-y", *picture, str(video)], check=True)
    other.write_text("the speech")
    videos.merge()
    for _ in range(2):
        write_videos(videos.store, False, Log(write=videos.said.append))
    assert videos.files() == ["talk.en.srt", "talk.en.subtitled.mp4", "talk.mp4", "talk.subtitled.mp4"]
    assert other.read_text() == "the speech"
    assert ["left as they are: 1" in text for text in videos.said[-2:]] == [False, True]
    assert own_copies(str(video), OwnFiles(videos.store)) == [str(videos.folder / "talk.en.subtitled.mp4")]


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    """An existing file with other content is kept and told. A file that a person edited after the run is kept, too."""
    videos = Videos(tmp_path, ["talk.mp4", "other.mp4"])
    theirs = videos.folder / "talk.srt"
    theirs.write_text("mine")
    videos.merge()
    assert theirs.read_text() == "mine"
    assert "hold something else and stay as they are: 1, the first is" in videos.said[1]
    assert f"{theirs}; move them away and run" in videos.said[1]
    edited = videos.folder / "other.srt"
    edited.write_text("corrected by hand")
    videos.merge(max_line=20)
    assert (theirs.read_text(), edited.read_text()) == ("mine", "corrected by hand")
    theirs.unlink()
    videos.merge(max_line=20)
    assert theirs.read_bytes() == videos.store.read("srt/0/talk.srt")


@pytest.mark.slow
def test_changed_settings_replace_our_files(tmp_path: Path) -> None:
    """Files that an earlier merge wrote get the new shape, also after a merge that was killed half-way."""
    videos = Videos(tmp_path, ["talk.mp4", "other.mp4"])
    videos.merge()
    first = videos.folder.joinpath("talk.srt").read_bytes()
    videos.merge(max_line=20)
    assert videos.folder.joinpath("talk.srt").read_bytes() == videos.store.read("srt/0/talk.srt") != first
    videos.merge(max_line=30)
    files = {name: videos.folder.joinpath(name).read_bytes() for name in videos.files()}
    videos.merge(max_line=20)
    for name, content in list(files.items())[:1]:  # killed after the file beside was written, before the one in OUT
        videos.folder.joinpath(name).write_bytes(content)
    videos.merge(max_line=30)
    assert {name: videos.folder.joinpath(name).read_bytes() for name in videos.files()} == files
    assert len(videos.said) == 1


@pytest.mark.parametrize("row", [{"offset": 1.5}, {"channel": 0}])
def test_parts_of_recordings_have_no_file_beside(tmp_path: Path, row: dict[str, Any]) -> None:
    """An item that is a part of its recording has its file in OUT only."""
    videos = Videos(tmp_path, ["talk.mp4"], **row)
    videos.merge()
    assert videos.files() == []
    assert "are a part of a recording or share it with another item: 1" in videos.said[0]


def test_two_items_of_one_recording_have_no_file_beside(tmp_path: Path) -> None:
    """Two items that name the same recording cannot both be named after it."""
    videos = Videos(tmp_path, ["talk.mp4", "./talk.mp4"])
    videos.merge()
    assert videos.files() == []
    assert videos.store.names("srt") == ["srt/0/talk.srt", "srt/1/%2E/talk.srt"]


def test_places_that_cannot_be_written_are_a_warning(tmp_path: Path) -> None:
    """A folder that is gone, and a web server, cost a warning with the count and the first reason, and no item."""
    videos = Videos(tmp_path, ["gone/talk.mp4", "here.mp4"])
    videos.folder.joinpath("gone/talk.mp4").unlink()
    videos.folder.joinpath("gone").rmdir()
    videos.merge()
    assert videos.files() == ["here.srt"]
    assert not videos.folder.joinpath("gone").exists()
    assert "cannot be written beside their recordings: 1; they are in" in videos.said[1]
    assert videos.said[1].endswith(f"The first reason: {videos.folder}/gone is missing")
    web = Videos(tmp_path / "web", ["talk.mp4"], audio_filepath="https://host/talk.mp4")
    web.merge()
    assert "The first reason: -o https://host: a web server takes no outputs" in web.said[0]


def test_each_format_has_a_file_of_its_own(tmp_path: Path) -> None:
    """All formats can lie beside one recording: the second one of an extension says which it is."""
    videos = Videos(tmp_path, ["talk.mp4"])
    videos.merge(*FORMATS)
    assert len(list(videos.folder.glob("talk.*"))) == 1 + len(FORMATS)
    assert {"talk.vtt", "talk.words.vtt", "talk.json", "talk.openai.json", "talk.whisperx.json"} <= set(videos.files())


def test_one_command_writes_subtitles_beside(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """`run FOLDER --beside` writes SubRip; the same command again with other limits, and `merge`, rewrite it; --verify
    compares with the latest settings.
    """
    recording("videos/a.wav", 12.2)
    done = voxbatch("run", "videos", "--beside", *ENGINE)
    assert done.returncode == 0, done.stderr
    beside, copy = tmp_path / "videos/a.srt", tmp_path / "videos.voxbatch/srt/a.srt"
    texts = [beside.read_text()]
    for command in (
        ("run", "videos", "--beside", "--max-line", "20", *ENGINE),
        ("merge", "videos.voxbatch", "--max-line", "30", "--max-lines", "1"),
        ("merge", "videos.voxbatch", "--max-cps", "5"),
    ):
        assert voxbatch(*command).returncode == 0
        assert beside.read_text() == copy.read_text()
        texts.append(beside.read_text())
        assert voxbatch("status", "videos.voxbatch", "--verify").returncode == 0
    assert len(set(texts[:3])) == 3
    assert max(map(len, texts[2].splitlines())) <= 30


def test_a_further_run_keeps_the_files_of_the_last_one(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """Formats, limits of subtitles and files beside recordings that a command does not give are those of the last run
    in OUT, or of `merge`, also for further recordings. Those that it gives replace them. --overwrite forgets them."""
    recording("videos/a.wav", 12.2)
    videos, out = tmp_path / "videos", tmp_path / "videos.voxbatch"
    assert voxbatch("run", "videos", "--beside", "--formats", "vtt", "--max-line", "20", *ENGINE).returncode == 0
    before = {path: path.read_bytes() for path in (videos / "a.vtt", out / "vtt/a.vtt")}
    recording("videos/b.wav", 12.2)
    done = voxbatch("run", "videos", "--stdout", "vtt", *ENGINE)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert (videos / "b.vtt").read_bytes() == before[videos / "a.vtt"]
    assert done.stdout.encode().count(before[videos / "a.vtt"]) == 2
    assert not (out / "srt").exists()
    assert voxbatch("merge", "videos.voxbatch", "--max-line", "30", "--no-beside").returncode == 0
    merged = (out / "vtt/a.vtt").read_bytes()
    assert voxbatch("run", "videos", "--max-lines", "1", *ENGINE).returncode == 0
    longest = max(map(len, (out / "vtt/a.vtt").read_text().splitlines()))
    assert (out / "vtt/a.vtt").read_bytes() != merged
    assert 20 < longest <= 30
    assert {path: path.read_bytes() for path in videos.glob("a.vtt")} == {videos / "a.vtt": before[videos / "a.vtt"]}
    assert voxbatch("run", "videos", "--overwrite", *ENGINE).returncode == 0
    assert sorted(path.name for path in out.glob("*/a.*")) == ["a.srt", "a.txt"]
    assert max(map(len, (out / "srt/a.srt").read_text().splitlines())) > 30


def test_a_text_beside_is_no_reference(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """The text beside a recording has a name that no later run takes for its reference, also if `merge` wrote it."""
    recording("videos/a.wav", 12.2)
    assert voxbatch("run", "videos", *ENGINE).returncode == 0
    assert voxbatch("merge", "videos.voxbatch", "--beside", "--formats", "srt,txt").returncode == 0
    assert sorted(path.name for path in tmp_path.joinpath("videos").iterdir()) == ["a.srt", "a.transcript.txt", "a.wav"]
    assert (
        tmp_path.joinpath("videos/a.transcript.txt").read_text() == (tmp_path / "videos.voxbatch/txt/a.txt").read_text()
    )
    again = voxbatch("run", "videos", "-o", "again", "--beside", "--formats", "srt,txt", *ENGINE)
    assert again.returncode == 0, again.stderr
    assert "WER" not in again.stdout


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_a_bucket_is_written_beside(place: Place, tmp_path: Path) -> None:
    """A recording in a bucket gets its file next to the object, and a file of somebody else stays there, too."""
    bucket: Store = Stores().out(place.uri)
    bucket.create("b/theirs.srt", [b"mine"])
    ours, theirs = (
        Videos(tmp_path / name, ["x.mp4"], audio_filepath=f"{place.uri}/b/{name}.mp4") for name in ("talk", "theirs")
    )
    ours.merge()
    theirs.merge()
    assert bucket.read("b/talk.srt") == ours.store.read("srt/0/x.srt")
    assert bucket.read("b/theirs.srt") == b"mine"
    assert "stay as they are: 1" in theirs.said[0]


def test_a_file_beside_stays_when_only_the_name_in_out_changes(tmp_path: Path) -> None:
    """Items whose ids collide have other names in OUT. The names beside follow the recordings: that of now stays."""
    videos = Videos(tmp_path, ["talk.mp4", "day.mp4"])
    line, place = {"id": "0/talk.mp4", "audio_filepath": str(videos.folder / "talk.mp4")}, str(videos.folder / "talk")
    for present, beside in ((place, None), (None, f"{place}.srt")):
        stale = _stale_files(line, ["srt"], Entries(videos.store, videos.run), present)
        assert {file.name: file.beside for file in stale}["srt/0/talk.srt"] == beside


def test_a_name_that_an_item_no_longer_has_alone(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """When talk.flac joins talk.wav, talk.srt would be that of either: it goes, in OUT and beside. One that a person
    has corrected stays, and is named."""
    recordings = tmp_path / "in"
    for name in ("talk.wav", "day.wav"):
        recording(name, 2, recordings)
    command = ("run", "in", "-o", "out", *ENGINE, "--beside", "--no-report")
    assert voxbatch(*command).returncode == 0
    assert sorted(path.name for path in recordings.glob("*.srt")) == ["day.srt", "talk.srt"]
    (recordings / "day.srt").write_text("1\n00:00:00,000 --> 00:00:02,000\nby hand\n")
    for name in ("talk", "day"):
        (recordings / f"{name}.flac").write_bytes((recordings / f"{name}.wav").read_bytes())
    done = voxbatch(*command)
    assert done.returncode == 0
    names = ["day.flac.srt", "day.wav.srt", "talk.flac.srt", "talk.wav.srt"]
    assert sorted(path.name for path in (tmp_path / "out" / "srt").iterdir()) == names
    assert sorted(path.name for path in recordings.glob("*.srt")) == ["day.flac.srt", "day.srt", *names[1:]]
    assert f"1 file changed by somebody and not replaced: {recordings}/day.srt" in done.stderr
    assert voxbatch("status", "out", "--verify").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in recordings.iterdir()}
    assert voxbatch(*command).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in recordings.iterdir()} == before
