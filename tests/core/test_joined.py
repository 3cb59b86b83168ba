"""Tests for recordings whose parameters change: joined files, chained Ogg, programmes of a television recording.
Nothing is lost, and the times stay right.

They run with the ffmpeg of the wheel; the long tests run them with the system's, too.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
from decoded_samples import decoded

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.joined import file_starts
from voxbatch.audio.waveforms import decode
from voxbatch.errors import AudioError
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.storage import Stores
from voxbatch.storage.recording import FileRecording

SECONDS = 2
PITCHES = (400, 800, 1_200)
"""Tone of each part in Hz."""
JOINED = "the recording is 2 files, one after the other, which were read in this order"


def pitches(samples: Samples) -> list[int]:
    """Return the pitch in the middle of each part, to 100 Hz; 0 is silence."""
    heard = []
    for middle in range(SECONDS * SAMPLING_RATE // 2, len(samples), SECONDS * SAMPLING_RATE):
        part = samples[middle - 4_000 : middle + 4_000]
        heard.append(round(int(np.abs(np.fft.rfft(part)).argmax()) * 2, -2) if np.abs(part).max() > 0.01 else 0)
    return heard


def join(folder: Path, name: str, *parts: str) -> Path:
    """Write parts of SECONDS each, each encoded with its own options of ffmpeg, and join their bytes. Those of a
    "piped" file are written to a pipe, so that their headers give no lengths."""
    target = folder / name
    for number, (pitch, options) in enumerate(zip(PITCHES, parts, strict=False)):
        part = folder / f"{number}.{name}"
        tone = ["-f", "lavfi", "-i", f"sine=frequency={pitch}:duration={SECONDS}:sample_rate=48000"]
        output = "-" if name.startswith("piped") else str(part)
        command = [executable(), "-y", "-loglevel", "error", *tone, *options.split(), output]
        piped = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        with open(target, "ab") as file:
            file.write(piped or part.read_bytes())
    return target


STREAMS = {
    "a.mp3": ("-ar 44100 -ac 2", "-ar 22050 -ac 1"),
    "mono.mp3": ("-ar 44100 -ac 1", "-ar 44100 -ac 2", "-ar 48000 -ac 2"),
    "a.mp2": ("-ar 16000 -ac 1", "-ar 48000 -ac 2"),
    "a.aac": ("-ar 24000 -ac 1", "-ar 48000 -ac 2", "-ar 24000 -ac 1"),
    "a.ac3": ("-ar 48000 -ac 2", "-ar 32000 -ac 6"),
    "a.ts": ("-c:a ac3 -ac 2", "-c:a ac3 -ac 6", "-c:a ac3 -ac 2"),
    "lower.ts": ("-c:a aac -ar 48000 -ac 2", "-c:a aac -ar 24000 -ac 1"),
    "higher.ts": ("-c:a aac -ar 16000 -ac 1 -b:a 32k", "-c:a aac -ar 48000 -ac 2"),
    "rate.ts": ("-c:a aac -ar 44100 -ac 1", "-c:a aac -ar 48000 -ac 2"),
    "a.opus": ("-ac 1", "-ac 2", "-ac 1"),
    "a.ogg": ("-c:a libvorbis -ar 22050 -ac 1", "-c:a libvorbis -ar 44100 -ac 2"),
    "flac.ogg": ("-c:a flac -ar 16000 -ac 1", "-c:a flac -ar 48000 -ac 2"),
}


def most_long(names: Iterable[str], *quick: str) -> list[object]:
    """Return parameters for a test, of which all but a few are for the long tests."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", most_long(STREAMS, "a.mp3", "a.aac", "a.ts", "higher.ts", "a.opus"))
def test_changes_within_a_stream_keep_the_times(tmp_path: Path, ffmpeg: dict[str, str], name: str) -> None:
    """If the rate or the channels change, each part is heard at its time, and no silence is added."""
    samples, warnings = decoded(join(tmp_path, name, *STREAMS[name]))
    count = len(STREAMS[name])
    assert len(samples) / SAMPLING_RATE == pytest.approx(count * SECONDS, abs=0.08 * count)
    assert pitches(samples)[:count] == list(PITCHES[:count])
    assert not any("silence" in warning for warning in warnings)


FILES = {
    "a.wav": ("-ar 8000 -ac 1", "-ar 44100 -ac 2 -c:a pcm_s24le"),
    "a.aiff": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.w64": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.caf": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.au": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.flac": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.m4a": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.mov": ("-c:a pcm_s16le -ar 16000 -ac 1", "-c:a aac"),
    "fragments.mp4": ("-c:a aac -movflags frag_keyframe+empty_moov",) * 2,
    "a.mka": ("-c:a libvorbis -ar 16000 -ac 1", "-c:a libvorbis -ar 44100 -ac 2"),
    "live.webm": ("-c:a libopus -ac 1 -live 1",) * 2,
    "a.wma": ("-c:a wmav2 -ar 16000 -ac 1", "-c:a wmav2 -ar 44100 -ac 2"),
    "a.flv": ("-c:a aac -ar 44100 -ac 1", "-c:a aac -ar 22050 -ac 2"),
    "a.avi": ("-c:a mp3 -ar 22050 -ac 1", "-c:a mp3 -ar 44100 -ac 2"),
    "a.tta": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "a.voc": ("-ar 16000 -ac 1", "-ar 44100 -ac 2"),
    "rf64.wav": ("-rf64 always -ar 16000 -ac 1", "-rf64 always -ar 44100 -ac 2"),
    "piped.wav": ("-f wav -ar 16000 -ac 1", "-f wav -ar 44100 -ac 2"),
    "piped.au": ("-f au -ar 16000 -ac 1", "-f au -ar 44100 -ac 2"),
    "piped.w64": ("-f w64 -ar 16000 -ac 1", "-f w64 -ar 44100 -ac 2"),
    "piped.flac": ("-f flac -ar 16000 -ac 1", "-f flac -ar 44100 -ac 2"),
}


@pytest.mark.parametrize("name", most_long(FILES, "a.wav", "piped.wav", "a.flac", "a.m4a", "a.mka"))
def test_joined_files_are_read_one_after_the_other(tmp_path: Path, ffmpeg: dict[str, str], name: str) -> None:
    """Files that were joined are decoded each with its own parameters, and a warning says so. An offset may be in the
    second one."""
    path = join(tmp_path, name, *FILES[name])
    samples, warnings = decoded(path)
    assert len(samples) / SAMPLING_RATE == pytest.approx(2 * SECONDS, abs=0.2)
    assert pitches(samples) == list(PITCHES[:2])
    assert warnings[0] == JOINED
    part, _ = decoded(path, offset=2.5, duration=1.0)
    assert np.array_equal(part, samples[40_000:56_000])


KINDS = {
    "wav": "-ar 16000",
    "mp3": "-ar 22050 -ac 1",
    "raw.mp3": "-ar 22050 -ac 1 -id3v2_version 0 -write_xing 0",
    "flac": "-ar 16000",
    "ogg": "-c:a libvorbis",
    "aac": "-c:a aac",
    "m4a": "-c:a aac",
    "ts": "-c:a aac",
    "ac3": "-ac 1",
    "eac3": "-ac 1",
    "wma": "-c:a wmav2",
    "tta": "",
    "wv": "",
    "webm": "-c:a libopus",
    "flv": "-c:a aac",
}
"""Formats of which two are joined: their headers give the length of the file, of frames, or no length."""
QUICK_PAIRS = {
    ("wav", "flac"), ("mp3", "wav"), ("flac", "mp3"), ("ogg", "mp3"), ("aac", "raw.mp3"), ("mp3", "aac"),
    ("m4a", "wav"), ("wv", "wv"), ("ts", "ogg"), ("flac", "aac"), ("flv", "ts"), ("tta", "ac3"), ("flac", "raw.mp3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a first and a second file of each kind, with noise around the tones: pure tones repeat, and
    so do headers that occur in them by chance."""
    folder = tmp_path_factory.mktemp("halves")
    for number, pitch in enumerate(PITCHES[:2]):
        for kind, options in KINDS.items():
            tone = f"aevalsrc=0.5*sin({pitch}*2*PI*t)+0.01*random({number}):s=48000:d={SECONDS}"
            command = [executable(), "-y", "-loglevel", "error", "-f", "lavfi", "-i", tone, *options.split()]
            subprocess.run([*command, folder / f"{number}.{kind}"], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(first, second, marks=() if (first, second) in QUICK_PAIRS else pytest.mark.long)
        for first, second in product(KINDS, KINDS)
    ],
)
def test_joined_files_of_two_formats_are_both_read(tmp_path: Path, halves: Path, first: str, second: str) -> None:
    """Audio that follows the end of a file is decoded with its own format, and a warning says so."""
    path = tmp_path / f"a.{first}"
    path.write_bytes((halves / f"0.{first}").read_bytes() + (halves / f"1.{second}").read_bytes())
    samples, warnings = decoded(path)
    assert len(samples) / SAMPLING_RATE == pytest.approx(2 * SECONDS, abs=0.2)
    assert pitches(samples)[:2] == list(PITCHES[:2])
    streams = {"mp3", "raw.mp3"}, {"aac"}, {"ts"}, {"ogg"}, {"ac3", "eac3"}
    if not any({first, second} <= stream for stream in streams):  # one stream, whose decoder reads on
        assert warnings[0] == JOINED


def test_what_follows_flac_and_is_not_known_is_told(tmp_path: Path, halves: Path) -> None:
    """The bytes after the samples that a FLAC file's header counts are told if nothing can decode them."""
    path = tmp_path / "a.flac"
    path.write_bytes((halves / "0.flac").read_bytes() * 2 + np.random.default_rng(0).bytes(50_000))
    samples, warnings = decoded(path)
    assert pitches(samples) == [PITCHES[0]] * 2
    assert re.fullmatch(
        r"file 2 of 2: (the [\d,]+ bytes after the claimed length were not read|damaged: .*)", warnings[1]
    )


def test_a_stream_within_a_file_is_one_file(tmp_path: Path) -> None:
    """MPEG audio in a WAV file, whose header gives no length, is no second file."""
    path = join(tmp_path, "piped.wav", "-f wav -c:a libmp3lame")
    assert decoded(path)[1] == []


@pytest.mark.parametrize("level", [0, -30, 30])
def test_steady_signals_are_one_file(tmp_path: Path, level: int) -> None:
    """Silence, and a constant whose bytes look like headers of frames, do not seem to be several files."""
    path = tmp_path / "a.flac"
    soundfile.write(path, np.full(240 * 8_000, level, np.int16), 8_000)
    with closing(Stores().recording(str(path))) as recording:
        assert file_starts(recording, None) == [0]


def wav(path: Path, seconds: float, rate: int) -> bytes:
    """Write a WAV file of 8 bits, and return its bytes."""
    t = np.arange(round(seconds * rate)) / rate
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 400 * t), rate, subtype="PCM_U8")
    return path.read_bytes()


def test_joined_wav_files_without_padding(tmp_path: Path) -> None:
    """A file of an odd number of bytes whose writer left out the padding is followed by the next one, too."""
    path = tmp_path / "a.wav"
    odd = bytearray(wav(path, 2001 / 8000, 8000))
    size = 44 + 2001
    odd[4:8] = (size - 8).to_bytes(4, "little")
    path.write_bytes(odd[:size] + wav(path, 1.0, 16_000))
    samples, warnings = decoded(path)
    assert len(samples) == pytest.approx(16_000 + 4_002, abs=2)
    assert warnings == [JOINED]


def test_second_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A joined file that cannot be decoded is left out with a warning; the length and the limits are those of the
    rest."""
    path = tmp_path / "a.wav"
    broken = b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00" + bytes(16) + b"data\x00\x00\x00\x00"
    path.write_bytes(wav(path, 1.0, 16_000) + broken + wav(path, 1.0, 16_000))
    samples, warnings = decoded(path)
    assert len(samples) == 2 * SAMPLING_RATE
    assert warnings[0] == JOINED.replace("2", "3")
    assert warnings[1].startswith("file 2 of 3 was left out: ")
    assert decoded(path, duration=1.5)[1][-1] == "the recording continues after the manifest's duration of 1.5 s"
    with pytest.raises(AudioError, match="no audio after 3 s"):
        decoded(path, offset=3.0)


class Distant(FileRecording):
    """A recording that is fetched in ranges. Its descriptor stands for a copy."""

    is_file = False
    is_copied = False

    def fileno(self) -> int:
        """Return the descriptor."""
        self.is_copied = True
        return super().fileno()


def test_remote_joined_file_is_read_in_ranges(tmp_path: Path) -> None:
    """A joined WAV file that is fetched in ranges gives the samples of a local one, without a copy of it."""
    path = tmp_path / "a.wav"
    path.write_bytes(wav(path, 1.0, 8_000) + wav(path, 1.0, 16_000))
    with closing(Distant(os.open(path, os.O_RDONLY))) as recording:
        samples = np.concatenate([block.samples for block in decode(recording, "a.wav")])
        assert not recording.is_copied
    assert np.array_equal(samples, decoded(path)[0])


def test_remote_mp3_tells_what_was_not_read(tmp_path: Path, halves: Path) -> None:
    """An MP3 file that is fetched in ranges is not searched for other files, but the bytes after its frames are told,
    unless they are a tag or padding."""
    path, warnings = tmp_path / "a.mp3", list[str]()
    mp3, other = (halves / "0.mp3").read_bytes(), (halves / "1.flac").read_bytes()
    for rest in (b"TAG" + bytes(125), bytes(90_000), other):
        path.write_bytes(mp3 + rest)
        assert warnings == []
        with closing(Distant(os.open(path, os.O_RDONLY))) as recording:
            blocks = list(decode(recording, "a.mp3", warn=warnings.append))
        assert sum(len(block.samples) for block in blocks) == pytest.approx(SECONDS * SAMPLING_RATE, abs=3_000)
    assert warnings == [f"the last {len(other):,} bytes of the file are no MPEG audio and were not read"]
