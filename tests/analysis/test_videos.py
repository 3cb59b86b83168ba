"""Tests for the copies of videos with subtitles: the streams by ffmpeg's own hashes, never over another file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch

from voxbatch.audio.ffmpeg import executable

SUBTITLES = "1\n00:00:00,000 --> 00:00:01,000\nold\n"


def ffmpeg(*options: str | Path) -> str:
    """Return what ffmpeg writes to standard output."""
    command = [executable(), "-nostdin", "-v", "error", "-y", *map(str, options)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def streams(path: Path) -> list[tuple[str, str]]:
    """Return (kind, hash of the packets) of each stream."""
    lines = ffmpeg("-i", path, "-map", "0", "-c", "copy", "-f", "streamhash", "-").splitlines()
    return [(kind, digest) for _, kind, digest in (line.split(",") for line in lines)]


@pytest.mark.slow
def test_a_copy_has_all_streams_and_the_subtitles(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A copy has the video's streams packet by packet, and the cues of OUT as one more track. Nothing else is replaced:
    not by a second run, which does not take the copies for recordings, nor where somebody else's file is. With --burn,
    later, the picture is another one.
    """
    folder = tmp_path / "videos"
    folder.mkdir()
    recording("videos/sound.wav", 2.0)
    (tmp_path / "old.srt").write_text(SUBTITLES)
    picture = ("-f", "lavfi", "-i", "color=blue:s=64x48:r=5:d=2")
    sound = ("-i", folder / "sound.wav")
    ffmpeg(*picture, *sound, "-map", "0", "-map", "1", "-c:v", "mpeg4", "-c:a", "aac", folder / "talk.mp4")
    ffmpeg("-i", folder / "talk.mp4", "-i", tmp_path / "old.srt", "-map", "0", "-map", "1", "-c", "copy", "-c:s", "srt",
           folder / "two.MKV")  # fmt: skip
    (folder / "kept.mp4").write_bytes((folder / "talk.mp4").read_bytes())
    (folder / "kept.subtitled.mp4").write_text("mine")
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "srt", "--mux")
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    assert "videos with subtitles written: 2, the first is " in done.stderr
    assert "there before, and not replaced: 1, the first is " in done.stderr
    for name, copy in (("talk.mp4", "talk.subtitled.mp4"), ("two.MKV", "two.subtitled.mkv")):
        before, after = streams(folder / name), streams(folder / copy)
        assert (after[:-1], after[-1][0]) == (before, "s")
        cues = ffmpeg("-i", folder / copy, "-map", f"0:s:{len(before) - 2}", "-f", "srt", "-")
        assert cues.strip() == (tmp_path / "out" / "srt" / f"{Path(name).stem}.srt").read_text().strip()
    assert (folder / "kept.subtitled.mp4").read_text() == "mine"
    assert "nothing to do: 4 items done before" in voxbatch(*command).stderr
    refused = voxbatch("merge", "out", "--burn")
    assert "videos with subtitles written: 2, the first is " in refused.stderr
    assert "; this run did not write it, or somebody has changed it: move it away, then voxbatch" in refused.stderr
    assert (folder / "kept.subtitled.mp4").read_text() == "mine"
    assert "there before, and left as they are: 2, " in voxbatch("merge", "out", "--burn").stderr
    burnt, before = streams(folder / "talk.subtitled.mp4"), streams(folder / "talk.mp4")
    assert (len(burnt), burnt[0] == before[0], burnt[1]) == (2, False, before[1])
    assert not list(tmp_path.glob("**/.*"))


@pytest.mark.slow
def test_a_copy_without_room_for_it_is_made_later(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path, small_disk: Path
) -> None:
    """A copy without room in the folder of temporary files is a warning; the next merge makes the copy."""
    recording("sound.wav", 2.0)
    (tmp_path / "videos").mkdir()
    picture = ("-f", "lavfi", "-i", "testsrc=s=320x240:r=10:d=2", "-i", tmp_path / "sound.wav")
    ffmpeg(*picture, "-c:v", "rawvideo", "-pix_fmt", "yuv420p", tmp_path / "videos" / "talk.mkv")
    run = ("run", "videos", "-o", "out", "--engine", "scripted", "--mux", "-q")
    done = voxbatch(*run, env={"TMPDIR": str(small_disk)})
    assert f"cannot be stored in {small_disk}: No space left on device; free space there" in done.stderr
    assert not (tmp_path / "videos" / "talk.subtitled.mkv").exists()
    assert "videos with subtitles written: 1" in voxbatch("merge", "out", "--mux").stderr


@pytest.mark.slow
def test_a_copy_follows_its_subtitles(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A correction makes a copy again as it was, with a track or in the picture, also back to the first text and after
    it was copied elsewhere and back, and not if nothing has changed. One that somebody has changed stays.
    """
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 2.0)
    video, copy = tmp_path / "videos" / "talk.mkv", tmp_path / "videos" / "talk.subtitled.mkv"
    ffmpeg("-f", "lavfi", "-i", "color=blue:s=64x48:r=5:d=2", "-i", tmp_path / "sound.wav", "-c:v", "mpeg4", video)

    def cues() -> str:
        return ffmpeg("-i", copy, "-map", "0:s:0", "-f", "srt", "-")

    assert voxbatch("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "srt", "--mux").returncode == 0
    subtitle = tmp_path / "out" / "srt" / "talk.srt"
    for old, new in (("w1", "one"), ("one", "w1")):
        subtitle.write_text(subtitle.read_text().replace(old, new))
        done = voxbatch("correct", "out", "--engine", "none")
        assert done.returncode == 0, done.stderr
        assert "videos with subtitles written: 1, the first is " in done.stderr
        assert f"w0 {new} w2" in cues()
    copy.write_bytes(copy.read_bytes())
    before = copy.stat()
    assert "there before, and left as they are: 1" in voxbatch("merge", "out", "--mux").stderr
    assert copy.stat().st_mtime_ns == before.st_mtime_ns
    assert "videos with subtitles written: 1" in voxbatch("merge", "out", "--burn").stderr
    burnt = streams(copy)
    subtitle.write_text(subtitle.read_text().replace("w0", "nought"))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    again = streams(copy)
    assert ([kind for kind, _ in again], again[0] == burnt[0], again[1:]) == (["v", "a"], False, burnt[1:])
    assert "videos with subtitles written: 1" in voxbatch("merge", "out", "--max-line", "10").stderr
    assert streams(copy)[0] != again[0]
    copy.write_bytes(copy.read_bytes() + b"mine")
    subtitle.write_text(subtitle.read_text().replace("w1", "one"))
    done = voxbatch("correct", "out", "--engine", "none")
    assert (done.returncode, "videos" in done.stderr) == (0, False)
    assert "there before, and not replaced: 1" in voxbatch("merge", "out", "--mux").stderr
    assert copy.read_bytes().endswith(b"mine")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["out/srt/talk.srt", "videos/talk.srt", "out/vtt/talk.vtt"])
def test_a_copy_has_the_times_of_a_person(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path, place: str) -> None:
    """Subtitles that a person has put at other times, in OUT or beside the video, with Windows' line ends, are those of
    the copy once `correct` has read them: after it, and by a later --mux."""
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 2.0)
    video, copy = tmp_path / "videos" / "talk.mkv", tmp_path / "videos" / "talk.subtitled.mkv"
    ffmpeg("-f", "lavfi", "-i", "color=blue:s=64x48:r=5:d=3", "-i", tmp_path / "sound.wav", "-c:v", "mpeg4", video)
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "srt,vtt", "--beside", "--mux")
    assert voxbatch(*command).returncode == 0

    def cues() -> str:
        return ffmpeg("-i", copy, "-map", "0:s:0", "-f", "srt", "-")

    begin = cues()
    assert begin.startswith("1\n00:00:00,000 -->")
    text = (tmp_path / place).read_text().replace("00:00:00", "00:00:01").replace("w1", "one")
    (tmp_path / place).write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    done = voxbatch("correct", "out", "--engine", "none")
    assert "videos with subtitles written: 1, the first is " in done.stderr
    assert cues().startswith("1\n00:00:01,000 -->")
    assert "w0 one w2" in cues()
    copy.unlink()
    assert voxbatch("merge", "out", "--mux").returncode == 0
    assert cues().startswith("1\n00:00:01,000 -->")


@pytest.mark.slow
def test_a_cue_after_a_long_break_keeps_its_time(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A cue 50 minutes after the one before it is at its time in an mp4: 31 bits hold 35 minutes of ffmpeg's
    microseconds. The track names the language of the text."""
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 2.0)
    video, copy = tmp_path / "videos" / "talk.mp4", tmp_path / "videos" / "talk.subtitled.mp4"
    ffmpeg("-f", "lavfi", "-i", "color=blue:s=64x48:r=5:d=2", "-i", tmp_path / "sound.wav", "-c:v", "mpeg4", video)
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--language", "de", "--formats", "srt", "--mux")
    assert voxbatch(*command).returncode == 0
    words = (tmp_path / "out" / "srt" / "talk.srt").read_text().split("\n")[2].split()
    cues = f"1\n00:00:00,000 --> 00:00:01,000\n{words[0]}\n\n2\n00:50:01,000 --> 00:50:02,000\n{' '.join(words[1:])}\n"
    (tmp_path / "out" / "srt" / "talk.srt").write_text(cues)
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    assert ffmpeg("-i", copy, "-map", "0:s:0", "-f", "srt", "-").strip() == cues.strip()
    assert "language=deu" in ffmpeg("-i", copy, "-map", "0:s:0", "-c", "copy", "-f", "ffmetadata", "-")


@pytest.mark.slow
def test_the_picture_has_the_styles_of_a_person(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """ASS subtitles that a person has styled are those of --burn: they are seen where the person has put them."""
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 2.0)
    copy = tmp_path / "videos" / "talk.subtitled.mkv"
    ffmpeg("-f", "lavfi", "-i", "color=black:s=320x240:r=5:d=2", "-i", tmp_path / "sound.wav", "-c:v", "mpeg4",
           tmp_path / "videos" / "talk.mkv")  # fmt: skip
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "ass", "--burn")
    assert voxbatch(*command).returncode == 0

    def brightness(top: int) -> int:
        crop = ffmpeg("-ss", "1", "-i", copy, "-frames:v", "1", "-vf", f"crop=320:120:0:{top},format=gray,signalstats,"
                      "metadata=print:file=-", "-f", "null", "-")  # fmt: skip
        return int(float(crop.split("YMAX=")[1].split()[0]))

    assert (brightness(0) < 60, brightness(120) > 150) == (True, True)
    styled = tmp_path / "out" / "ass" / "talk.ass"
    styled.write_text(styled.read_text().replace(",,w0", r",,{\an8}w0"))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    assert (brightness(0) > 150, brightness(120) < 60) == (True, True)


@pytest.mark.slow
def test_a_styled_line_fits_into_a_narrow_picture(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """ASS subtitles that a person has styled are wrapped in a vertical video, and not cut off at its sides."""
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 6.0)
    copy = tmp_path / "videos" / "talk.subtitled.mkv"
    ffmpeg("-f", "lavfi", "-i", "color=black:s=180x320:r=5:d=6", "-i", tmp_path / "sound.wav", "-c:v", "mpeg4",
           tmp_path / "videos" / "talk.mkv")  # fmt: skip
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "ass", "--burn")
    assert voxbatch(*command).returncode == 0
    styled = tmp_path / "out" / "ass" / "talk.ass"
    styled.write_text(styled.read_text().replace(",56,&H00FFFFFF,", ",60,&H0000FFFF,"))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    edge = "crop=4:320:0:0,format=gray,signalstats,metadata=print:file=-"
    frames = ffmpeg("-i", copy, "-vf", edge, "-f", "null", "-")
    assert max(float(part.split()[0]) for part in frames.split("YMAX=")[1:]) < 60


@pytest.mark.slow
def test_another_frame_rate_than_that_of_the_video_is_told(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """Subtitles begin with frames of their video, or else of the rate for all. --mux names the command that takes each
    its own; for an OUT that does not have them, the rate.
    """
    (tmp_path / "videos").mkdir()
    recording("sound.wav", 2.0)
    for name, rate in (("a.mp4", "25"), ("b.mp4", "30000/1001"), ("c.mp4", "24000/1001"), ("d.mp4", "24")):
        ffmpeg("-f", "lavfi", "-i", f"color=blue:s=64x48:r={rate}:d=2", "-i", tmp_path / "sound.wav",
               "-c:v", "mpeg4", tmp_path / "videos" / name)  # fmt: skip
    command = ("run", "videos", "-o", "out", "--engine", "scripted", "--formats", "srt", "--mux")
    assert "frames a second: " not in voxbatch(*command).stderr
    said = voxbatch("merge", "out", "--frame-rate", "24", "--mux").stderr
    for rate, name in (("25", "a"), ("29.97", "b"), ("23.976", "c")):
        told = f"videos with {rate} frames a second: 1, the first is {tmp_path}/videos/{name}.mp4; the subtitles begin "
        assert f"{told}with frames of 24 a second, unless: voxbatch merge {tmp_path}/out --frame-rate auto " in said
    assert said.count("frames a second: ") == 3
    said = voxbatch("merge", "out", "--frame-rate", "25", "--mux").stderr
    assert "videos with 24 frames a second: 1, " in said
    assert "videos with 25 frames" not in said
