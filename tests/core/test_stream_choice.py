"""Tests for the choice among the audio streams of a recording: by number, by language, or by who speaks when."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile
from decoded_samples import decoded

from voxbatch.audio.ffmpeg import executable
from voxbatch.config import RunOptions
from voxbatch.errors import AudioError, ConfigError
from voxbatch.records import SAMPLING_RATE, Samples

SECONDS = 24
HOST, GUEST = 0, 1
Streams = Mapping[str, Samples]


def voice(corpus: Path, side: int) -> Samples:
    """Return a speaker who speaks for 5 s, then is silent for 5 s, and so on; the two sides take turns."""
    names = ("ljspeech_flac", "librispeech_test_other")
    files = sorted((corpus / "speech" / names[side]).rglob("*.flac"))
    speech = np.zeros(0, np.float32)
    for file in files:
        samples, rate = soundfile.read(file, dtype="float32")
        if rate == SAMPLING_RATE or side == HOST:
            speech = np.concatenate([speech, samples])
        if len(speech) > SECONDS * SAMPLING_RATE:
            break
    place = np.arange(SECONDS * SAMPLING_RATE) // (5 * SAMPLING_RATE) % 2
    return np.where(place == side, speech[: len(place)] / np.abs(speech).max() / 3, 0).astype(np.float32)


@pytest.fixture(scope="module")
def host(corpus: Path) -> Samples:
    """Return the first speaker."""
    return voice(corpus, HOST)


@pytest.fixture(scope="module")
def guest(corpus: Path) -> Samples:
    """Return the second speaker."""
    return voice(corpus, GUEST)


def written(path: Path, streams: list[Samples], codec: str, tags: tuple[str, ...] = ()) -> Path:
    """Write a file with a picture and these audio streams, as a camera or a recorder does."""
    inputs, maps = ["-f", "lavfi", "-i", f"color=c=black:s=160x128:r=25:d={SECONDS}"], ["-map", "0"]
    for number, samples in enumerate(streams):
        part = path.with_name(f"{number}.wav")
        soundfile.write(part, samples, SAMPLING_RATE)
        inputs += ["-i", str(part)]
        maps += ["-map", str(number + 1)]
    language = [option for at, tag in enumerate(tags) for option in (f"-metadata:s:a:{at}", f"language={tag}")]
    encode = ["-c:v", "mpeg2video", "-b:v", "20k", "-c:a", codec, "-ar", "48000"]
    subprocess.run(
        [executable(), "-y", "-loglevel", "error", *inputs, *maps, *encode, *language, str(path)], check=True
    )
    return path


def likeness(samples: Samples, expected: Samples) -> float:
    """Return the correlation of two recordings."""
    size = min(len(samples), len(expected))
    return float(np.corrcoef(samples[:size], expected[:size])[0, 1])


CONTAINERS = [("a.mxf", "pcm_s16le"), ("a.mov", "pcm_s16le"), ("a.mkv", "flac")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "codec"), CONTAINERS)
def test_several_streams_are_mixed(tmp_path: Path, host: Samples, guest: Samples, name: str, codec: str) -> None:
    """The streams that are named are mixed, the others are left out; `all` mixes all of them. Nothing is doubtful."""
    hum = (0.1 * np.sin(2 * np.pi * 50 * np.arange(len(host)) / SAMPLING_RATE)).astype(np.float32)
    path = written(tmp_path / name, [host, hum, guest], codec)
    for streams, expected in (("0,2", host + guest), ("1,2", hum + guest), ("all", host + hum + guest), (2, guest)):
        samples, warnings = decoded(path, audio_stream=streams)
        assert likeness(samples, expected) > 0.99
        assert warnings == []
    with pytest.raises(AudioError, match=r"^audio stream 7 was asked for; the recording has audio streams 0 to 2$"):
        decoded(path, audio_stream="0,7")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "codec"), CONTAINERS[1:])  # MXF has no languages
def test_a_language_takes_its_streams(tmp_path: Path, host: Samples, guest: Samples, name: str, codec: str) -> None:
    """The stream that is tagged with the language is taken, also if it has less voice. A conversation in the language
    is mixed. A language that no stream has fails the recording, and names the streams.
    """
    path = written(tmp_path / name, [host + guest, host, guest], codec, ("eng", "ger", "ger"))
    samples, warnings = decoded(path, audio_stream="en")
    assert likeness(samples, host + guest) > 0.99
    assert warnings == []
    samples, warnings = decoded(path, audio_stream="de")
    assert likeness(samples, host + guest) > 0.99
    assert warnings[0].startswith("audio streams 1, 2 were mixed, because they speak in turn (0: eng, ")
    with pytest.raises(
        AudioError, match=r"^an audio stream in the language fr was asked for; the recording has 0: eng"
    ):
        decoded(path, audio_stream="fr")


def test_one_stream_is_all_of_a_recording(tmp_path: Path, host: Samples) -> None:
    """A file with one stream has no other one; a language that it is not tagged with is not known to be wrong."""
    path = tmp_path / "a.wav"
    soundfile.write(path, host, SAMPLING_RATE)
    for streams in ("all", "de", 0):
        assert np.array_equal(decoded(path, audio_stream=streams)[0], decoded(path)[0])
    with pytest.raises(AudioError, match=r"^audio stream 2 was asked for; the recording has audio stream 0 only$"):
        decoded(path, audio_stream="0,2")


@pytest.mark.slow
def test_the_mix_is_preferred_to_a_microphone(tmp_path: Path, host: Samples, guest: Samples) -> None:
    """A recorder that writes a microphone each and their mix has everybody in one stream, wherever it stands."""
    for streams, mix in (([host, guest, host + guest], 2), ([host, host + guest], 1), ([host + guest, guest], 0)):
        samples, warnings = decoded(written(tmp_path / "a.mkv", streams, "flac"))
        assert likeness(samples, host + guest) > 0.99
        assert warnings[0].startswith(f"audio stream {mix} was taken, ")
        assert len(warnings) == 1


@pytest.mark.slow
def test_a_doubtful_choice_names_the_streams(tmp_path: Path, host: Samples, guest: Samples) -> None:
    """Streams that speak at the same time for half of it may be dubs or people who interrupt each other. The first one
    is taken, and a warning says how the others can be mixed in."""
    interrupting = guest + np.roll(np.where(np.arange(len(host)) < len(host) // 2, host, 0), 800)
    path = written(tmp_path / "a.mov", [host, interrupting], "pcm_s16le")
    samples, warnings = decoded(path)
    assert likeness(samples, host) > 0.99
    assert warnings[0].startswith("audio stream 0 was taken, the first with voice of 2 (0: pcm_s16le, ")
    assert "audio streams 0,1 may be one conversation: " in warnings[1]
    assert warnings[1].endswith("--audio-stream 0,1 mixes them")
    tagged = written(tmp_path / "b.mov", [host, interrupting], "pcm_s16le", ("eng", "ger"))
    assert len(decoded(tagged)[1]) == 1


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("1", 1), (2, 2), ("02", 2), ("2,0", "0,2"), ("1,1", 1), ("all", "all"), ("German", "de"), ("ger", "de"),
        ("pt-BR", "pt-BR"),
    ],
)  # fmt: skip
def test_streams_are_written_in_one_way(text: str | int, streams: str | int) -> None:
    """Two runs with the same streams have the same identity."""
    options = RunOptions(audio_stream=text)
    assert options.audio_stream == options.identity()["audio_stream"] == streams


@pytest.mark.parametrize("text", ["", "-1", -1, "1,", "first", "0-2", "99999"])
def test_other_texts_are_refused(text: str | int) -> None:
    """The message gives the value, and the values that are right."""
    with pytest.raises(ConfigError, match=f"^--audio-stream {text}: give numbers from 0, such as 1 or 0,2; all; or a"):
        RunOptions(audio_stream=text)
