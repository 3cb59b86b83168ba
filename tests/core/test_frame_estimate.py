"""Tests for the durations of recordings without a header: frames all over the file decide, not the first ones.

Some inputs are those of reports (../shared/cases).
"""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import ROOT, Voxbatch

from voxbatch.audio import frame_estimate
from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.waveforms import decode, probe
from voxbatch.records import SAMPLING_RATE
from voxbatch.storage import DEFAULT_STORES

CASES = ROOT.parent / "shared" / "cases" / "2026-11-28"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases in {CASES}")
ENCODINGS = {
    "vbr.mp3": ("-c:a", "libmp3lame", "-q:a", "5", "-write_xing", "0"),
    "xing.mp3": ("-c:a", "libmp3lame", "-q:a", "5"),
    "cbr.mp3": ("-c:a", "libmp3lame", "-b:a", "48k", "-write_xing", "0"),
    "adts.aac": ("-c:a", "aac", "-b:a", "64k"),
}
SECONDS = 131.0


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of 11 s of noise between two minutes of silence."""
    path = tmp_path_factory.mktemp("frames") / "pauses.wav"
    samples = np.zeros(round(SECONDS * SAMPLING_RATE), np.float32)
    samples[: 5 * SAMPLING_RATE] = np.random.default_rng(0).normal(0, 0.2, 5 * SAMPLING_RATE)
    samples[-6 * SAMPLING_RATE :] = np.random.default_rng(1).normal(0, 0.2, 6 * SAMPLING_RATE)
    soundfile.write(path, samples, SAMPLING_RATE, subtype="PCM_16")
    return path


def encoded(wave: Path, name: str) -> Path:
    path = wave.with_name(name)
    command = [executable(), "-v", "error", "-y", "-i", str(wave), *ENCODINGS[name], str(path)]
    subprocess.run(command, check=True)
    return path


def seconds_of(path: Path) -> float | None:
    with closing(DEFAULT_STORES.recording(str(path))) as recording:
        return probe(recording)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_short_file_is_measured(wave: Path, name: str) -> None:
    """The frames of a file that is one block are added up, also between tags and after bytes that are no frames."""
    path = encoded(wave, name)
    assert seconds_of(path) == pytest.approx(SECONDS, abs=0.1)
    data = path.read_bytes()
    junk = b"\xff\xfb" + bytes(range(256)) * 40
    path.write_bytes(data[: len(data) // 2] + junk + data[len(data) // 2 :] + b"TAG" + bytes(125))
    assert seconds_of(path) == pytest.approx(SECONDS, abs=0.3)


@pytest.mark.parametrize("name", ["vbr.mp3", "cbr.mp3", "adts.aac"])
def test_a_long_file_is_sampled(wave: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Blocks all over the file give its duration within a few percent."""
    path = encoded(wave, name)
    monkeypatch.setattr(frame_estimate, "BLOCK_BYTES", 1500)
    monkeypatch.setattr(frame_estimate, "LOCAL_BLOCKS", 24)
    assert seconds_of(path) == pytest.approx(SECONDS, rel=0.15)


def test_the_header_of_the_first_of_two_files_is_not_that_of_both(wave: Path) -> None:
    """Two files in one have the length of both."""
    path = encoded(wave, "xing.mp3")
    path.write_bytes(path.read_bytes() * 2)
    assert seconds_of(path) == pytest.approx(2 * SECONDS, abs=0.3)


def test_other_files_have_no_frames(wave: Path, tmp_path: Path) -> None:
    """A text, an empty file and random bytes are left to others."""
    noise, long_tag = np.random.default_rng(0).bytes(100_000), b"ID3\4\0\0\x7f\x7f\x7f\x7f"
    for content in (b"", b"\xff", b"hello" * 100, noise, long_tag):
        (tmp_path / "x").write_bytes(content)
        with closing(DEFAULT_STORES.recording(str(tmp_path / "x"))) as recording:
            assert frame_estimate.estimated_seconds(recording) is None


@needs_cases
def test_the_plan_says_about(voxbatch: Voxbatch) -> None:
    """A dry run is right about silence after speech, says that it may be wrong, and does not say so of a WAV file."""
    plan = ("--dry-run", "--engine", "scripted", "-o", "out")
    shown = voxbatch("run", CASES / "adts_estimate" / "pauses.aac", *plan).stdout
    assert re.search(r"^audio +about 2:11, ", shown, re.MULTILINE)
    shown = voxbatch("run", CASES / "false_flag_from_environment" / "talk.mp4", *plan).stdout
    assert re.search(r"^audio +about 2\.0 s, ", shown, re.MULTILINE)
    shown = voxbatch("run", CASES / "mp3_free_format" / "free.mp3", *plan).stdout
    assert re.search(r"^audio +1 item of unknown duration", shown, re.MULTILINE)
    shown = voxbatch("run", ROOT / "examples" / "recordings" / "museum.wav", *plan).stdout
    assert re.search(r"^audio +\d+\.\d s, ", shown, re.MULTILINE)


@needs_cases
def test_validate_says_unknown(voxbatch: Voxbatch) -> None:
    """A duration that nothing tells is not 0.00 hours, and a short one is shown as seconds."""
    free, talk = CASES / "mp3_free_format" / "free.mp3", CASES / "false_flag_from_environment" / "talk.mp4"
    assert "\nunknown duration: no header tells it;" in voxbatch("validate", free, "--check-audio").stdout
    assert "\nunknown duration: no item gives it, and --check-audio" in voxbatch("validate", free).stdout
    assert "\n2.0 s by the headers of 1 recording;" in voxbatch("validate", talk, "--check-audio").stdout


@needs_cases
def test_free_format_is_read_without_a_doubt() -> None:
    """The frames of free format do not tell their lengths, so nothing is known about bytes that are no frames."""
    path, warnings = str(CASES / "mp3_free_format" / "free.mp3"), list[str]()
    with closing(DEFAULT_STORES.recording(path)) as recording:
        samples = sum(len(block.samples) for block in decode(recording, path, warn=warnings.append))
    assert warnings == []
    assert samples / SAMPLING_RATE > 5
