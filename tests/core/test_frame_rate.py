"""Tests for the frame rates of videos: subtitles begin and end with frames of their own video."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorder, Voxbatch

from voxbatch import frame_rate
from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.ffmpeg_log import FFmpegLog
from voxbatch.errors import ConfigError
from voxbatch.formats import CueLimits
from voxbatch.formats.cues import split_into_cues
from voxbatch.frame_rate import aspect_of_line
from voxbatch.records import Transcript, Word

STREAM = "[info]   Stream #0:0[0x1](und): Video: h264 (High) (avc1 / 0x31637661), yuv420p, 320x180, 70 kb/s"


@pytest.mark.parametrize(
    ("numbers", "rate", "average"),
    [
        ("23.98 fps, 23.98 tbr, 24k tbn", 23.976, None),
        ("29.97 fps, 59.94 tbr, 90k tbn", 29.97, None),  # interlaced
        ("29.83 fps, 30 tbr, 600 tbn", 30.0, None),  # a phone that has lost some frames
        ("29.97 fps, 29.97 tbr, 30k tbn", 29.97, None),
        ("119.88 fps, 119.88 tbr, 120k tbn", 119.88, None),
        ("10.72 fps, 25 tbr, 12800 tbn", 25.0, 10.72),
        ("25 fps, 90k tbr, 90k tbn", 25.0, 25.0),
        ("1k fps, 1k tbr, 1k tbn", None, None),
        ("0.50 fps, 0.50 tbr, 16384 tbn", None, None),
        ("0 fps, 0 tbr, 1k tbn", None, None),
    ],
)
def test_the_frame_rate_of_a_stream_is_read_from_its_header(
    numbers: str, rate: float | None, average: float | None
) -> None:
    """Interlaced video has twice as many fields as frames. No subtitle begins with the ticks of a clock."""
    log = FFmpegLog()
    log.feed(f"{STREAM}, {numbers} (default)\n".encode())
    assert (log.frame_rate, log.average_frame_rate) == (rate, average)


@pytest.mark.parametrize(
    ("size", "side_data", "aspect"),
    [
        ("320x180 [SAR 1:1 DAR 16:9]", "", 1.778),
        ("1080x1920", "", 0.562),
        ("720x576 [SAR 64:45 DAR 16:9]", "", 1.778),
        ("1920x1080 [SAR 1:1 DAR 16:9]", "Display Matrix: rotation of -90.00 degrees", 0.562),
        ("1920x1080", "displaymatrix: rotation of 90.00 degrees", 0.563),
        ("1920x1080", "displaymatrix: rotation of 180.00 degrees", 1.778),
        ("0x0", "", None),
    ],
)
def test_the_shape_of_a_picture_is_that_which_is_shown(size: str, side_data: str, aspect: float | None) -> None:
    """Pixels need not be square, and a phone stores an upright video with its rotation. A second picture, such as a
    preview, does not count."""
    log = FFmpegLog()
    second = "[info]   Stream #0:2: Video: h264, yuv420p, 100x900, 25 fps\n"
    second += "[info]       displaymatrix: rotation of 90.00 degrees"
    header = f"{STREAM.replace('320x180', size)}, 25 fps\n[info]     Side data:\n[info]       {side_data}\n{second}\n"
    log.feed(header.encode())
    assert log.aspect_ratio == pytest.approx(aspect, abs=0.0011)


@pytest.mark.parametrize(
    ("aspect", "columns"), [(16 / 9, 42), (4 / 3, 42), (1, 36), (0.8, 29), (9 / 16, 20), (0.1, 14)]
)
def test_lines_fit_the_shape_of_the_picture(aspect: float, columns: int) -> None:
    """The default line is narrower in a picture that has no room for it; one that a person has chosen stays."""
    assert (CueLimits().columns(aspect), CueLimits().columns(None), CueLimits(30).columns(aspect)) == (columns, 42, 30)
    text = " ".join(["the same words again"] * 30)
    cues = split_into_cues(Transcript(text, audio_duration=60, aspect_ratio=aspect))
    assert max(len(line) for cue in cues for line in cue.lines) <= columns
    assert aspect_of_line({"aspect_ratio": "upright"}) is None


def test_subtitles_of_an_upright_video_have_short_lines(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """The line of a video keeps the shape of its picture, so that a later merge has it without the video."""
    picture = ("-f", "lavfi", "-i", "color=blue:s=90x160:r=25:d=8", "-i", str(recording("sound.wav", 8.0)))
    command = [executable(), "-nostdin", "-v", "error", *picture, "-c:v", "mpeg4", str(tmp_path / "short.mp4")]
    subprocess.run(command, check=True, timeout=60)
    assert voxbatch("run", "short.mp4", "-o", "out", "--engine", "scripted", "--formats", "srt").returncode == 0
    assert json.loads((tmp_path / "out/transcripts.jsonl").read_text())["aspect_ratio"] == 0.562
    (tmp_path / "short.mp4").unlink()
    for options, columns in (((), 20), (("--max-line", "12"), 12), (("--max-line", "42"), 20)):
        assert voxbatch("merge", "out", *options).returncode == 0
        lines = (tmp_path / "out/srt/short.srt").read_text().splitlines()
        longest = max(len(line) for line in lines if "-->" not in line)
        assert columns - 6 < longest <= columns, lines


@pytest.mark.parametrize(
    ("given", "rate"),
    [(None, None), ("auto", "auto"), ("25", 25.0), (50, 50.0), ("23.976", 23.976), ("30000/1001", 29.97)],
)
def test_a_frame_rate_is_given_in_several_ways(given: Any, rate: Any) -> None:
    """A person may give a number or a fraction, as ffmpeg does."""
    assert frame_rate.parsed(given) == rate


@pytest.mark.parametrize("given", ["", "PAL", "9", "250", "1/0", "nan", "inf", "-25", [25], True])
def test_other_texts_are_no_frame_rate(given: Any) -> None:
    """The error says what is allowed."""
    with pytest.raises(ConfigError, match=r"give auto, or frames per second from 10 to 240, such as 25, 29\.97 or"):
        frame_rate.parsed(given)
    assert frame_rate.of_line({"frame_rate": given}) is None


@pytest.mark.parametrize(("rounded", "num", "den"), [(23.976, 24000, 1001), (29.97, 30000, 1001), (25, 25, 1)])
def test_cues_at_the_end_of_two_hours_begin_with_a_frame(rounded: float, num: int, den: int) -> None:
    """The exact rate counts, so that a cue after two hours is not a quarter of a frame too early."""
    words = [Word(f" word{i}.", 7190 + i, 7190.9 + i) for i in range(9)]
    transcript = Transcript("".join(word.text for word in words), tuple(words), frame_rate=rounded)
    cues = split_into_cues(transcript)
    assert len(cues) == 2
    for cue in cues:
        for time in (cue.start_ms, cue.end_ms):
            assert time == round(round(time * num / den / 1000) * 1000 * den / num)


def video(path: Path, rate: str, sound: Path, *options: str) -> None:
    """Write a video with a sound track."""
    picture = ("-f", "lavfi", "-i", f"color=blue:s=64x48:r={rate}:d=4")
    command = [executable(), "-nostdin", "-v", "error", *picture, "-i", str(sound), *options, "-c:v", "mpeg4"]
    subprocess.run([*command, str(path)], check=True, timeout=60)


def frames(path: Path, rate: float) -> list[float]:
    """Return the times of an .srt file in frames."""
    times = re.findall(r"(\d\d):(\d\d):(\d\d),(\d\d\d)", path.read_text())
    return [(3600 * int(h) + 60 * int(m) + int(s) + int(ms) / 1000) * rate for h, m, s, ms in times]


def are_whole(frames: list[float]) -> bool:
    return all(abs(frame - round(frame)) < 0.0005 * 60 for frame in frames)


RATES = {"film": 24000 / 1001, "pal": 25.0, "ntsc": 30000 / 1001, "sport": 50.0, "phone": 25.0, "sound": 24.0}


def test_cues_of_each_video_begin_with_its_own_frames(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """Each video of a manifest has the frame rate of its header, which its line keeps; a row's own comes first. A
    varying rate is told. `merge --frame-rate` takes one for all, and auto takes each its own again.
    """
    sound = recording("sound.wav", 4.0)
    for name, rate in (("film", "24000/1001"), ("pal", "25"), ("ntsc", "30000/1001"), ("sport", "50")):
        video(tmp_path / f"{name}.mp4", rate, sound)
    video(tmp_path / "phone.mp4", "25", sound, "-vf", "select='not(mod(n,3))+not(mod(n,7))'", "-fps_mode", "vfr")
    rows = [{"audio_filepath": f"{name}.mp4"} for name in RATES if name != "sound"]
    rows += [{"audio_filepath": "sound.wav"}, {"audio_filepath": "sound.wav", "id": "own", "frame_rate": "30000/1001"}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = voxbatch("run", "m.jsonl", "-o", "out", "--engine", "scripted", "--formats", "srt")
    assert done.returncode == 0, done.stderr
    lines = {
        line["id"]: line for line in map(json.loads, (tmp_path / "out/transcripts.jsonl").read_text().splitlines())
    }
    srt = tmp_path / "out" / "srt"
    for item, expected in {**RATES, "own": 30000 / 1001}.items():
        assert are_whole(frames(srt / f"{item}.srt", expected)), item
    assert [lines[f"{name}.mp4"]["frame_rate"] for name in ("film", "pal", "ntsc")] == [23.976, 25, 29.97]
    assert "frame_rate" not in lines["sound.wav"]
    assert lines["own"]["frame_rate"] == "30000/1001"
    [told] = lines["phone.mp4"]["warnings"]
    assert told.startswith("the video has a variable frame rate, ")
    assert voxbatch("merge", "out", "--frame-rate", "50").returncode == 0
    assert are_whole(frames(srt / "film.srt", 50)) > are_whole(frames(srt / "film.srt", RATES["film"]))
    assert voxbatch("merge", "out", "--frame-rate", "auto").returncode == 0
    assert are_whole(frames(srt / "film.srt", RATES["film"])) > are_whole(frames(srt / "film.srt", 50))
    refused = voxbatch("merge", "out", "--frame-rate", "PAL")
    assert (refused.returncode, "--frame-rate is PAL; give auto, or frames" in refused.stderr) == (2, True)
