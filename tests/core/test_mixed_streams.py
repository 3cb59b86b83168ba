"""Tests for a conversation that is divided over audio streams: its streams are mixed, and those of dubs are not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import ROOT
from decoded_samples import decoded

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.mixed_streams import speak_in_turn
from voxbatch.records import SAMPLING_RATE

CASES = ROOT.parent / "shared" / "cases" / "2026-11-28"
MEETING = CASES / "obs_mic_and_desktop_tracks" / "meeting.mkv"
needs_meeting = pytest.mark.skipif(not MEETING.is_file(), reason=f"no {MEETING}")
TURNS = np.arange(200) % 20 < 10


@pytest.mark.parametrize(
    ("streams", "is_conversation"),
    [
        ([TURNS, ~TURNS], True), ([TURNS, np.roll(~TURNS, 2)], True), ([TURNS, TURNS], False),
        ([TURNS, np.ones(200, np.bool_)], False), ([TURNS, ~TURNS, np.ones(200, np.bool_)], False), ([TURNS], False),
        ([], False),
    ],
)  # fmt: skip
def test_a_conversation_is_told_from_dubs_and_mixes(streams: list[np.ndarray], is_conversation: bool) -> None:
    """People who talk in turn overlap a little; a dub, and a stream that is the mix already, overlap with all."""
    assert speak_in_turn(streams) == is_conversation


@needs_meeting
@pytest.mark.slow
def test_the_mix_is_the_sum_of_the_streams() -> None:
    """Each side is at its own time, and nothing is cut off."""
    mixed, warnings = decoded(MEETING)
    assert warnings[0].startswith("audio streams 0, 1 were mixed, because they speak in turn (0: aac")
    alone = [decoded(MEETING, audio_stream=number)[0] for number in (0, 1)]
    size = max(map(len, alone))
    total = np.sum([np.pad(samples, (0, size - len(samples))) for samples in alone], axis=0)
    assert np.allclose(mixed[: size - 160], total[: size - 160], atol=1e-3)


@needs_meeting
@pytest.mark.slow
def test_streams_at_the_same_time_are_not_mixed(tmp_path: Path) -> None:
    """A dub speaks while the original does."""
    speech = decoded(MEETING, audio_stream=0)[0]
    for number, samples in enumerate((speech, np.roll(speech, SAMPLING_RATE // 10))):
        soundfile.write(tmp_path / f"{number}.wav", samples, SAMPLING_RATE)
    path = tmp_path / "film.mka"
    inputs = [option for number in (0, 1) for option in ("-i", str(tmp_path / f"{number}.wav"))]
    maps = ["-map", "0", "-map", "1", "-c:a", "flac"]
    subprocess.run([executable(), "-loglevel", "error", *inputs, *maps, str(path)], check=True)
    assert decoded(path)[1][0].startswith("audio stream 0 was taken, the first with voice of 2")
