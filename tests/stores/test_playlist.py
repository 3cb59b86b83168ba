"""Tests for HLS playlists: the segments are one recording, local and on a server."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import soundfile
from conftest import Voxbatch
from web_server import served_folder

from voxbatch.audio.waveforms import decode
from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage import StoreOptions, Stores

pytestmark = pytest.mark.slow

SECONDS = 7
KINDS = {
    "ts": ["-hls_segment_type", "mpegts"],
    "mp4": ["-hls_segment_type", "fmp4"],
    "single": ["-hls_flags", "single_file"],
    "single_mp4": ["-hls_segment_type", "fmp4", "-hls_flags", "single_file"],
}
HERE = Stores(StoreOptions(allow_private_addresses=True))


@pytest.fixture(params=KINDS)
def playlist(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a playlist of ffmpeg, with segments of two seconds."""
    tone = np.sin(np.cumsum(np.linspace(0.05, 0.4, SECONDS * 16_000))) * 0.3
    soundfile.write(tmp_path / "tone.wav", tone, 16_000)
    folder = tmp_path / "talk"
    folder.mkdir()
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", "../tone.wav", "-c:a", "aac", "-f", "hls"]
    command += ["-hls_time", "2", "-hls_playlist_type", "vod", *KINDS[request.param], "talk.m3u8"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "talk.m3u8"


def seconds(uri: str) -> float:
    with closing(HERE.recording(uri)) as recording:
        return sum(len(block.samples) for block in decode(recording, uri)) / 16_000


def test_segments_are_one_recording(playlist: Path) -> None:
    """A playlist has the length of its recording, and so have a playlist of it and one on a server."""
    assert seconds(str(playlist)) == pytest.approx(SECONDS, abs=0.15)
    (playlist.parent.parent / "main.m3u8").write_text(
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=900000\nmissing.m3u8\n"
        '#EXT-X-STREAM-INF:BANDWIDTH=64000,CODECS="mp4a.40.2"\ntalk/talk.m3u8\n'
    )
    assert seconds(str(playlist.parent.parent / "main.m3u8")) == pytest.approx(SECONDS, abs=0.15)
    with served_folder(playlist.parent.parent) as (url, _):
        for name in ("talk/talk.m3u8?a=1", "main.m3u8"):
            assert seconds(f"{url}/{name}") == pytest.approx(SECONDS, abs=0.15)


def test_run(playlist: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run of a playlist has one item."""
    done = voxbatch("run", str(playlist), "-o", "out", "--engine", "scripted", "--no-report")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out/transcripts.jsonl").read_text().splitlines()]
    assert [(line["id"], round(line["audio_duration"])) for line in lines] == [("talk.m3u8", SECONDS)]


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("#EXTM3U\n#EXTINF:2,\na.ts\n", FailureKind.CHANGED, "has no end"),
        ("#EXTM3U\n#EXT-X-ENDLIST\n", FailureKind.EMPTY, "no segments"),
        ("#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=k\na.ts\n#EXT-X-ENDLIST\n", FailureKind.NOT_ALLOWED, "encrypted"),
        ("#EXTM3U\n../a.ts\n#EXT-X-ENDLIST\n", FailureKind.NOT_ALLOWED, "is not below the playlist"),
        ("#EXTM3U\n/etc/passwd\n#EXT-X-ENDLIST\n", FailureKind.NOT_ALLOWED, "is not below the playlist"),
        ("#EXTM3U\nhttp://127.0.0.1:1/a.ts\n#EXT-X-ENDLIST\n", FailureKind.NOT_ALLOWED, "only public addresses"),
        ("#EXTM3U\nnone.ts\n#EXT-X-ENDLIST\n", FailureKind.NOT_FOUND, "No such file"),
        ("#EXTM3U\n#EXT-X-BYTERANGE:9@0\na.ts\n#EXT-X-ENDLIST\n", FailureKind.DAMAGED, "ends early"),
        ("a.ts\n", FailureKind.NOT_AUDIO, "no HLS playlist"),
    ],
)
def test_refused_playlists(tmp_path: Path, text: str, kind: FailureKind, reason: str) -> None:
    """A playlist that is not whole, leads elsewhere or cannot be read fails with its reason."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ts").write_bytes(b"x")
    (tmp_path / "in" / "talk.m3u8").write_text(text)
    with pytest.raises(AudioError, match=reason) as caught:
        Stores().recording(str(tmp_path / "in" / "talk.m3u8"))
    assert caught.value.kind is kind


def test_remote_playlist_cannot_name_local_files(tmp_path: Path) -> None:
    """A playlist on a server cannot name a file of this machine."""
    (tmp_path / "talk.m3u8").write_text("#EXTM3U\nfile:///etc/passwd\n#EXT-X-ENDLIST\n")
    with (
        served_folder(tmp_path) as (url, _),
        pytest.raises(AudioError, match="is not below the playlist, and on no server"),
    ):
        HERE.recording(f"{url}/talk.m3u8")
