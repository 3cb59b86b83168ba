"""Tests for `voxbatch validate`: bad lines by kind, missing local recordings, and headers of local and remote ones."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import servers
from conftest import ManifestWriter, Recorder, Voxbatch

from voxbatch.audio.ffmpeg import executable


def write(path: Path, *names: str) -> None:
    """Write a manifest that names these recordings."""
    path.write_text("".join(json.dumps({"audio_filepath": name}) + "\n" for name in names))


def test_bad_lines_are_one_line_for_each_kind(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Many bad lines are counted by kind with examples; --all lists them, up to the first 1,000."""
    lines = ["x"] * 3000 + ['{"audio_filepath": 5}', '{"path": "a.wav"}']
    (tmp_path / "bad.jsonl").write_text("\n".join(lines[-2:] + lines[:-2]))
    done = voxbatch("validate", "bad.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "Error: bad.jsonl: 3,002 bad lines",
        (
            "  998 × not JSON: Expecting value at column 1, near 'x'; write one JSON object a line "
            "(line 3, line 4, line 5, …)"
        ),
        "  1 × `audio_filepath` is 5; it must be a string, the recording's path (line 1)",
        "  1 × has no `audio_filepath`, its keys: 'path'; rename `path` to `audio_filepath` (line 2)",
        "bad.jsonl: … and 2,002 more bad lines",
    ]
    assert len(voxbatch("validate", "bad.jsonl", "--all").stderr.splitlines()) == 1001


def test_a_missing_recording_is_not_valid(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """Local recordings that are missing, empty or folders are counted by kind, with the exit code of such a run."""
    manifest(0.1)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "folder.wav").mkdir()
    write(tmp_path / "m.jsonl", "r0.wav", "empty.wav", *(f"gone{i}.wav" for i in range(5000)), "folder.wav")
    done = voxbatch("validate", "m.jsonl")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [
        "m.jsonl: 5,003 items, 5,002 of them cannot be transcribed",
        (
            "  5,000 × No such file or directory "
            f"(line 3: {tmp_path}/gone0.wav, line 4: {tmp_path}/gone1.wav, line 5: {tmp_path}/gone2.wav, …)"
        ),
        f"  1 × the file is empty (line 2: {tmp_path}/empty.wav)",
        f"  1 × it is a folder (line 5003: {tmp_path}/folder.wav)",
        "unknown duration: no item gives it, and --check-audio reads the headers; 0 with a reference",
    ]
    listed = voxbatch("validate", "m.jsonl", "--all").stdout.splitlines()
    assert listed[1] == f"line 3: {tmp_path}/gone0.wav: No such file or directory"
    assert len(listed) == 5002 + 2


def test_a_manifest_outside_of_its_folder_is_told(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A manifest that a shell writes to another folder has a note with the command that moves it."""
    recording("my calls/a.wav", 0.5)
    for place, note in (
        ("my calls/m.jsonl", ""),
        ("m.jsonl", "its paths are relative to my calls: to use this manifest, mv m.jsonl 'my calls/'\n"),
    ):
        with (tmp_path / place).open("w") as file:
            done = voxbatch("manifest", "my calls", stdout=file, stderr=subprocess.PIPE, capture_output=False)
        assert (done.returncode, done.stderr) == (0, note)
        assert '"a.wav"' in (tmp_path / place).read_text()
    assert voxbatch("manifest", "my calls").stderr == ""


def test_advice_is_no_option_of_another_command(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A place that delivers no recording ends the check, without the option by which a run goes on."""
    write(tmp_path / "m.jsonl", *(f"calls/{i}.wav" for i in range(40)))
    done = voxbatch("validate", "m.jsonl", "--check-audio")
    assert done.returncode == 1
    assert re.search(r"; nothing arrived from / in the meantime \(\d+ recordings tried\)$", done.stderr.strip())


def test_headers_are_read_on_request(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """--check-audio opens each recording: it adds up the hours, finds what is no audio, and tells a video without
    sound. It says how many headers tell no duration.
    """
    recording("a.wav", 36)
    recording("b.flac", 36)
    (tmp_path / "text.mp3").write_text("hello")
    for name, content in (("silent.mp4", "color=s=32x32:d=0.2"), ("c.mka", "sine=d=1")):
        made = [executable(), "-loglevel", "error", "-f", "lavfi", "-i", content, str(tmp_path / name)]
        subprocess.run(made, check=True)
    names = ("a.wav", "b.flac", "text.mp3", "gone.wav", "silent.mp4", "c.mka")
    lines: list[dict[str, object]] = [{"audio_filepath": name} for name in names]
    lines.append({"audio_filepath": "a.wav", "offset": 40})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    done = voxbatch("validate", "m.jsonl", "--check-audio")
    assert (done.returncode, done.stderr) == (3, "")
    shown = done.stdout.splitlines()
    assert shown[0] == "m.jsonl: 7 items, 3 of them cannot be transcribed"
    assert shown[1].startswith("  1 × not audio in a format that libsndfile or ffmpeg knows: it looks like text (")
    assert shown[2] == f"  1 × No such file or directory (line 4: {tmp_path}/gone.wav)"
    assert shown[3].startswith("  1 × `offset` is 40, and the recording ends at 36.00 s (line 7: ")
    empty = "the video has no audio track: no text will come of it"
    assert shown[4] == f"  1 × {empty} (line 5: {tmp_path}/silent.mp4)"
    assert shown[5] == "0.03 hours by the headers of 4 recordings; 0 with a reference"


def test_headers_of_remote_recordings_are_read(
    voxbatch: Voxbatch, recording: Recorder, tmp_path: Path, place: servers.Place
) -> None:
    """Recordings in a bucket are looked at only with --check-audio, which names the ones that are missing."""
    place.put("a.wav", recording("a.wav", 3.6).read_bytes())
    write(tmp_path / "m.jsonl", f"{place.uri}/a.wav", f"{place.uri}/gone.wav")
    done = voxbatch("validate", "m.jsonl", "--allow-outside")
    assert (done.returncode, done.stdout.splitlines()[:2]) == (
        0,
        [
            "m.jsonl: 2 items, no problem found",
            "2 recordings at addresses were not looked at; --check-audio reads the headers",
        ],
    )
    done = voxbatch("validate", "m.jsonl", "--allow-outside", "--check-audio")
    assert done.returncode == 3
    assert done.stdout.splitlines()[0] == "m.jsonl: 2 items, 1 of them cannot be transcribed"
    assert f"line 2: {place.uri}/gone.wav" in done.stdout.splitlines()[1]
