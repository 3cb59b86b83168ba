"""Test for WebVTT in the `<track>` of a page: a browser shows each cue at its frame."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pysubs2
import pytest
from browser import CHROMIUM, browser
from conftest import Recorder, Voxbatch
from web_server import served_folder

from voxbatch.audio.ffmpeg import executable

PAGE = """<!doctype html><title>talk</title>
<video muted><track kind="subtitles" src="talk.vtt" default></video>
<script>
const video = document.querySelector("video"), track = video.textTracks[0];
// The server of the test sends whole files alone, in which a browser cannot seek.
fetch("talk.webm").then(reply => reply.blob()).then(file => { video.src = URL.createObjectURL(file); });
const seek = time => new Promise(resolve => { video.onseeked = () => resolve(); video.currentTime = time; });
const shows = text => [...track.activeCues].some(cue => cue.text === text);
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_page_shows_the_cues_at_their_frames(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """The browser reads the cues of `--beside` with the times of SubRip, and shows none in the frame before a cue."""
    folder = tmp_path / "talks"
    sound = recording("sound.wav", 8.0)
    folder.mkdir()
    picture = ("-f", "lavfi", "-i", "color=blue:s=64x48:r=25:d=8")
    command = [executable(), "-nostdin", "-v", "error", *picture, "-i", str(sound), "-c:v", "libvpx"]
    subprocess.run([*command, str(folder / "talk.webm")], check=True, timeout=60)
    assert voxbatch("run", "talks", "--beside", "--formats", "srt,vtt", "--engine", "scripted").returncode == 0
    (folder / "page.html").write_text(PAGE)
    cues = [(cue.start, cue.plaintext) for cue in pysubs2.load(str(folder / "talk.srt"))]
    assert len(cues) > 1
    with served_folder(folder) as (site, _), browser() as page:
        page.open(f"{site}/page.html")
        page.wait("track.cues && track.cues.length && video.readyState > 0")
        read = page.evaluate("[...track.cues].map(cue => [Math.round(cue.startTime * 1000), cue.text])")
        assert [(start, text) for start, text in read] == cues
        start, text = cues[1]
        for time, is_shown in ((start + 20, "true"), (start - 20, "false")):
            page.evaluate(f"seek({time / 1000})")
            page.wait(f"shows({json.dumps(text)}) === {is_shown}")
