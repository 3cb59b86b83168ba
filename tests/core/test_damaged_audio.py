"""Tests for damaged and ambiguous recordings: no audio is lost without a warning, and times stay right.

Tests that use the fixture `source` run with the ffmpeg of the wheel; the long tests run them with the system's, too.
"""

from __future__ import annotations

import re
import struct
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
from decoded_samples import decoded

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.structure import ogg_pages
from voxbatch.audio.vorbis import samples_before_zero
from voxbatch.errors import AudioError
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.storage import Stores

SECONDS = 24.0


def tones() -> Samples:
    """Return a signal whose pitch rises with every second, so that `pitches` tells which second is where."""
    t = np.arange(int(SECONDS * SAMPLING_RATE)) / SAMPLING_RATE
    return (0.5 * np.sin(2 * np.pi * (300 + 100 * np.floor(t)) * t)).astype(np.float32)


def pitches(samples: Samples) -> list[int | None]:
    """Return which second of `tones` is heard in the middle of each second; None for silence."""
    heard: list[int | None] = []
    for at in range(SAMPLING_RATE // 4, len(samples) - SAMPLING_RATE // 2, SAMPLING_RATE):
        part = samples[at : at + SAMPLING_RATE // 2]
        peak = float(np.abs(np.fft.rfft(part)).argmax()) * 2
        heard.append(None if np.abs(part).max() < 0.01 else round((peak - 300) / 100))
    return heard


def convert(source: Path, name: str, *options: str) -> Path:
    """Convert the source with the ffmpeg that is tested."""
    target = source.with_name(name)
    command = [executable(), "-y", "-loglevel", "error", "-i", str(source), *options, str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def source(tmp_path: Path, ffmpeg: dict[str, str]) -> Path:
    """Return a WAV file with `tones`."""
    soundfile.write(tmp_path / "source.wav", tones(), SAMPLING_RATE, subtype="PCM_16")
    return tmp_path / "source.wav"


FORMATS = {
    "a.wav": [], "a.flac": [], "a.mp3": [], "vbr.mp3": ["-q:a", "5"], "no_header.mp3": ["-write_xing", "0"],
    "lsf.mp3": ["-ar", "22050"],
    "a.mp2": [], "a.ogg": [], "a.opus": [], "a.aac": [], "fast.m4a": ["-movflags", "+faststart"],
    "a.mka": ["-c:a", "aac"], "a.webm": [], "a.ts": ["-c:a", "aac"], "a.flv": ["-c:a", "aac"],
    "a.wma": ["-c:a", "wmav2"], "a.wv": [], "a.tta": [], "a.ac3": [], "a.aiff": [], "a.au": [], "a.caf": [],
    "a.w64": [],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_lost_audio_is_told(source: Path, name: str) -> None:
    """A sound file gives no warning. A file that is cut in half gives its first part, and one whose middle third is
    zeros gives the rest, each with a warning.
    """
    path = convert(source, name, *FORMATS[name])
    sound, warnings = decoded(path)
    assert warnings == []
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 7])  # within a frame, also if all frames have the same length
    half, warnings = decoded(path)
    assert len(half) < 0.7 * len(sound)
    assert pitches(half)[:7] == list(range(7))
    assert warnings
    third = len(data) // 3
    path.write_bytes(data[:third] + bytes(third) + data[2 * third :])
    rest, warnings = decoded(path)
    assert pitches(rest)[:5] == list(range(5))
    assert warnings


def test_both_lengths_are_in_the_warning(source: Path) -> None:
    """A truncated file gives the seconds that are there and those that its header claims."""
    data = source.read_bytes()
    source.write_bytes(data[: 44 + 8 * 2 * SAMPLING_RATE])
    assert decoded(source)[1] == ["the file was cut off: it ends after 8.00 s, and its header claims 24.00 s"]


@pytest.mark.parametrize("claimed_s", [0, 0.5, 11.0])
def test_stale_wav_header_loses_no_audio(source: Path, claimed_s: float) -> None:
    """A WAV file whose header claims less than half of the audio is read to its end."""
    data = bytearray(source.read_bytes())
    struct.pack_into("<I", data, 40, int(claimed_s * 2 * SAMPLING_RATE))
    source.write_bytes(data)
    samples, warnings = decoded(source)
    assert pitches(samples) == list(range(int(SECONDS)))
    claim = [f"the header claims {claimed_s:.2f} s, and the file holds 24.00 s, all of which was read"]
    assert warnings == (claim if claimed_s else [])  # 0 is also written by programs that cannot know the length


def test_bytes_after_the_audio_are_told(source: Path) -> None:
    """Bytes after the audio that are in no chunk may be audio. They are not read, and the warning says so."""
    source.write_bytes(source.read_bytes() + np.random.default_rng(0).bytes(64_000))
    samples, (warning,) = decoded(source)
    assert len(samples) == SECONDS * SAMPLING_RATE
    assert warning == (
        "the header claims 24.00 s, which were read; the 64,000 bytes after them were not: 2.00 s if they are audio"
    )


def test_second_chunk_of_audio_is_told(source: Path) -> None:
    """Decoders read one chunk of audio. If there is another one, the warning says so."""
    source.write_bytes(source.read_bytes() + b"data" + struct.pack("<I", 64_000) + bytes(64_000))
    assert decoded(source)[1] == ["the file has 2 chunks of audio, of which one was read"]


def test_wav_that_was_written_to_a_pipe_gives_no_warning(source: Path) -> None:
    """A header that cannot know the length claims nothing."""
    data = bytearray(source.read_bytes())
    for unknown in (0xFFFFFFFF, 0x7FFFF000, 0x80000000 - 36):
        struct.pack_into("<I", data, 40, unknown)
        source.write_bytes(data)
        samples, warnings = decoded(source)
        assert len(samples) == SECONDS * SAMPLING_RATE
        assert warnings == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast.m4a", "a.mka", "a.ogg", "a.opus", "a.flv"])
def test_times_after_damage_stay_right(source: Path, name: str) -> None:
    """Audio that cannot be read becomes silence of the same length, in formats with timestamps."""
    path = convert(source, name, *FORMATS[name])
    data = path.read_bytes()
    begin, end = len(data) // 2, len(data) * 2 // 3
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    samples, warnings = decoded(path)
    heard = pitches(samples)
    assert heard[:8] + heard[20:23] == [*range(8), *range(20, 23)]
    assert all(second in (number, None) for number, second in enumerate(heard[:23]))
    assert any(re.search(r"\d\.\d\d s without readable audio are kept as silence", each) for each in warnings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gap.mka", "gap.mp4", "gap.ts"])
def test_gap_in_timestamps_becomes_silence(source: Path, name: str) -> None:
    """A gap in the timestamps, as a recorder leaves it that was paused, is kept as silence."""
    path = convert(source, name, "-c:a", "aac", "-af", "aselect=not(between(t\\,10\\,12.99))")
    samples, warnings = decoded(path)
    heard = pitches(samples)
    assert heard[:10] + heard[13:23] == [*range(10), *range(13, 23)]
    assert heard[11] is None
    assert re.fullmatch(r"(2\.9|3\.0)\d s without readable audio are kept as silence", "".join(warnings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late.mkv", "late.mp4", "late.ts"])
def test_audio_that_starts_after_the_video_keeps_its_times(source: Path, name: str) -> None:
    """Audio that starts 3 s after the video has its times on the video's clock."""
    path = source.with_name(name)
    video = ["-f", "lavfi", "-i", "testsrc=d=20:s=64x64:r=5", "-itsoffset", "3", "-i", str(source)]
    command = [executable(), "-y", "-loglevel", "error", *video, "-c:v", "mpeg4", "-c:a", "aac", str(path)]
    subprocess.run(command, check=True)
    samples, warnings = decoded(path)
    assert pitches(samples)[:23] == [None, None, None, *range(20)]
    assert warnings == []
    part, _ = decoded(path, offset=8.0, duration=2.0)
    assert pitches(part) == [5, 6]


@pytest.mark.slow
def test_joined_files_lose_nothing(source: Path) -> None:
    """Timestamps that start again in the middle of a file leave no audio out."""
    path = convert(source, "a.ts", "-c:a", "aac")
    single, _ = decoded(path)
    path.write_bytes(path.read_bytes() * 2)
    samples, _ = decoded(path)
    assert len(samples) == pytest.approx(2 * len(single), abs=0.1 * SAMPLING_RATE)


def with_two_streams(source: Path, name: str, first: str) -> Path:
    path = source.with_name(name)
    inputs = ["-f", "lavfi", "-i", first, "-i", str(source), "-map", "0", "-map", "1"]
    subprocess.run([executable(), "-y", "-loglevel", "error", *inputs, "-c:a", "aac", str(path)], check=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two.mkv", "two.mp4"])
def test_first_audio_stream_with_sound_is_taken(source: Path, name: str) -> None:
    """The first of several audio streams that has sound is taken, with a warning, unless a number is given."""
    path = with_two_streams(source, name, "anullsrc=r=16000:d=24")
    samples, (warning,) = decoded(path)
    assert pitches(samples)[:20] == list(range(20))
    assert re.fullmatch(
        r"audio stream 1 was taken, the first with (voice|sound) of 2 "
        r"\(0: aac, 16000 Hz, .*; 1: aac, 16000 Hz, mono\); see --audio-stream",
        warning,
    )
    samples, warnings = decoded(path, audio_stream=0)
    assert set(pitches(samples)) == {None}
    assert warnings == []
    samples, warnings = decoded(path, audio_stream=1)
    assert pitches(samples)[:20] == list(range(20))
    assert warnings == []
    with pytest.raises(AudioError, match=r"^audio stream 2 was asked for; the recording has audio streams 0 to 1$"):
        decoded(path, audio_stream=2)


@pytest.mark.slow
def test_the_stream_that_is_tagged_with_the_language_is_taken(source: Path) -> None:
    """A film has a stream for each language. A language that no stream is tagged with changes nothing."""
    path = source.with_name("film.mkv")
    inputs = ["-f", "lavfi", "-i", "sine=440:d=24", "-i", str(source), "-map", "0", "-map", "1", "-c:a", "aac"]
    tags = ["-metadata:s:a:0", "language=eng", "-metadata:s:a:1", "language=ger"]
    subprocess.run([executable(), "-y", "-loglevel", "error", *inputs, *tags, str(path)], check=True)
    for language, taken in (("de", "audio stream 1 was taken"), ("en-GB", "audio stream 0 was taken")):
        warning = decoded(path, language=language)[1][0]
        assert warning.startswith(taken)
        assert f"in the language {language}" in warning
    assert decoded(path, language="fr")[1] == decoded(path)[1]


@pytest.mark.slow
def test_audio_stream_of_a_file_with_one_stream(source: Path) -> None:
    """A file with one audio stream has audio stream 0 only, whatever reads it."""
    for path in (source, convert(source, "a.m4a")):
        assert pitches(decoded(path, audio_stream=0)[0])[:20] == list(range(20))
        with pytest.raises(AudioError, match=r"^audio stream 1 was asked for; the recording has audio stream 0 only$"):
            decoded(path, audio_stream=1)


def test_zeros_in_uncompressed_audio_are_told(source: Path) -> None:
    """A second of equal samples within sound is told; digital silence at the start and at the end is not."""
    samples = tones()
    samples[: 2 * SAMPLING_RATE] = samples[-2 * SAMPLING_RATE :] = 0
    soundfile.write(source, samples, SAMPLING_RATE, subtype="PCM_16")
    assert decoded(source)[1] == []
    samples[5 * SAMPLING_RATE : 8 * SAMPLING_RATE] = 0
    soundfile.write(source, samples, SAMPLING_RATE, subtype="PCM_16")
    assert decoded(source)[1] == ["every sample from 5.00 to 8.00 s is the same: audio may be lost there"]


def test_vorbis_cut_without_encoding_keeps_its_times_and_its_end(source: Path) -> None:
    """A Vorbis file that `ffmpeg -c copy` cut within a page gives the samples from the cut to the end."""
    begin = 20.05
    whole, cut = convert(source, "a.ogg", "-c:a", "libvorbis"), source.with_name("cut.ogg")
    subprocess.run([executable(), "-loglevel", "error", "-ss", f"{begin}", "-i", whole, "-c", "copy", cut], check=True)
    early = {}
    for path in (whole, cut):
        with closing(Stores().recording(str(path))) as recording:
            early[path] = samples_before_zero(recording)
    assert early[whole] == 0
    assert early[cut] > SAMPLING_RATE // 4
    expected = decoded(whole, offset=begin)[0]
    samples, warnings = decoded(cut)
    assert warnings == []
    assert len(samples) == len(expected) == round((SECONDS - begin) * SAMPLING_RATE)
    assert np.allclose(samples, expected, atol=1e-3)
    assert np.allclose(decoded(cut, offset=1.0)[0], samples[SAMPLING_RATE:], atol=1e-3)


def test_caf_with_alac_keeps_its_end(source: Path) -> None:
    """ALAC in CAF, whose last packet is rarely full, gives all samples that were written."""
    num_samples = 40 * 4096 + 2100
    soundfile.write(source, tones()[:num_samples], SAMPLING_RATE, subtype="PCM_16")
    samples, warnings = decoded(convert(source, "a.caf", "-c:a", "alac"))
    assert warnings == []
    assert np.array_equal(samples, decoded(source)[0])


def test_state_of_ogg_pages(source: Path) -> None:
    """A changed byte makes a page damaged, a missing page is noticed, and so is the end within a page."""
    path = convert(source, "a.ogg")
    data = path.read_bytes()
    pages = [match.start() for match in re.finditer(b"OggS", data)]

    def state(content: bytes) -> tuple[bool, bool, bool]:
        path.write_bytes(content)
        with closing(Stores().recording(str(path))) as recording:
            found = ogg_pages(recording)
        assert found is not None
        return found.has_several_streams, found.is_damaged, found.is_cut

    assert state(data) == (False, False, False)
    assert state(data[: pages[3] + 100] + b"\xff\x00\xff" + data[pages[3] + 103 :]) == (False, True, False)
    assert state(data[: pages[3]] + data[pages[4] :]) == (False, True, False)
    assert state(data[: pages[4] + 100]) == (False, False, True)
    assert state(data[: pages[4]]) == (False, False, False)
    assert state(data + data) == (True, False, False)
