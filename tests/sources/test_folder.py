"""Tests of the files that a folder walk takes for recordings."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.waveforms import decode
from voxbatch.manifest import items
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES
from voxbatch.sources.opening import open_source
from voxbatch.storage import Stores

MUXERS = {
    **dict.fromkeys([".3ga", ".3gp", ".3gpp"], "-f 3gp -c:a aac"), ".3g2": "-f 3g2 -c:a aac",
    **dict.fromkeys([".aacp", ".adts"], "-f adts"),
    **dict.fromkeys([".avi", ".divx"], "-f avi"), **dict.fromkeys([".dts"], "-f dts -strict -2 -c:a dca"),
    **dict.fromkeys([".f4a", ".f4b", ".m4a", ".m4b", ".m4p", ".m4r", ".m4v", ".mp4", ".f4v"], "-f mp4 -c:a aac"),
    **dict.fromkeys([".qt", ".qta", ".mov"], "-f mov"), **dict.fromkeys([".weba", ".webm"], "-f webm"),
    **dict.fromkeys([".ogm", ".ogx", ".ogv", ".oga", ".ogg"], "-f ogg -c:a libvorbis"),
    **dict.fromkeys([".m2p", ".mpe", ".mpeg", ".mpg", ".tod", ".vob"], "-f vob"),
    **dict.fromkeys([".mp1", ".mp2", ".mpa", ".m2a"], "-f mp2"), ".mpga": "-f mp3",
    **dict.fromkeys([".m2t", ".ts"], "-f mpegts"), **dict.fromkeys([".m2ts", ".mts"], "-f mpegts -mpegts_m2ts_mode 1"),
    **dict.fromkeys([".ra", ".rm", ".rmvb"], "-f rm -c:a ac3"), **dict.fromkeys([".eac3", ".ec3"], "-f eac3"),
    **dict.fromkeys([".wma", ".wmv", ".asf"], "-f asf"), ".bwf": "-f wav", ".wave": "-f wav",
    ".rf64": "-f wav -rf64 always",
    ".mxf": "-f mxf -c:v mpeg2video", ".dv": "-target pal-dv", ".aif": "-f aiff", ".aifc": "-f aiff", ".snd": "-f au",
    ".amr": "-f amr -ar 8000 -ac 1",
    ".alaw": "-f alaw -ar 8000 -ac 1", ".ulaw": "-f mulaw -ar 8000 -ac 1",
    ".g722": "-f g722 -ar 16000 -ac 1", ".opus": "-f opus",
    ".mlp": "-f mlp -strict -2", ".thd": "-f truehd -strict -2", ".sln": "-f s16le -ar 8000 -ac 1",
    **{
        f".sln{khz}": f"-f s16le -ar {44_100 if khz == 44 else 1000 * khz} -ac 1"
        for khz in (12, 16, 24, 32, 44, 48, 96, 192)
    },
}  # fmt: skip
"""ffmpeg's options that write a file with an extension, where the extension itself does not tell."""
NO_ENCODER = {".ape", ".awb", ".g729", ".gsm", ".mpc", ".spx", ".tak"}
"""Extensions for which ffmpeg has a decoder and no encoder."""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", sorted(RECORDING_SUFFIXES - NO_ENCODER))
def test_walked_extensions_are_decoded(tmp_path: Path, suffix: str) -> None:
    """A file with an extension that the walk takes is decoded: two seconds of a tone, with a picture in some."""
    path = tmp_path / f"x{suffix}"
    if suffix in (".sph", ".nist"):
        soundfile.write(path, np.sin(np.arange(32_000) / 8), 16_000, format="NIST")
    else:
        picture = ["-f", "lavfi", "-i", "testsrc=s=720x576:r=25:d=2"] if suffix in (".mxf", ".dv") else []
        sound = ["-f", "lavfi", "-i", "sine=300:d=2:r=48000", "-ac", "2"]
        options = MUXERS.get(suffix, "").split()
        command = [executable(), "-v", "error", "-y", *picture, *sound, *options, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    with open_source(tmp_path) as source:
        (item,) = items(source)
    with contextlib.closing(Stores().recording(item.audio)) as recording:
        decoded = np.concatenate([block.samples for block in decode(recording, item.audio)])
    assert abs(len(decoded) - 32_000) < 3200
    assert np.abs(decoded).max() > 0.05


def test_typescript_is_no_recording(tmp_path: Path) -> None:
    """A folder with source code takes no .ts and .mts file that is a text, and takes a transport stream."""
    packet = b"G" + bytes(187)
    for name, content in {
        "app.ts": b"Get = () => 1;\n" * 30,
        "short.mts": b"G",
        "video.ts": packet * 4,
        "camera.MTS": (bytes(4) + packet) * 4,
        "empty.ts": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    with open_source(tmp_path) as source:
        assert [item.id for item in items(source)] == ["camera.MTS", "video.ts"]
