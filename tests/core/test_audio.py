"""Tests for audio decoding: reading in blocks gives the samples of reading at once, and bad files end in a plain error
without side effects.

Tests that use the fixtures `ffmpeg` or `wav` run with the ffmpeg of the wheel; the long tests run them with the
system's, too.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGTERM

import imageio_ffmpeg
import numpy as np
import psutil
import pytest
import soundfile
import soxr
from conftest import environment
from web_server import served_folder

from voxbatch.audio import libraries
from voxbatch.audio.ffmpeg import FFmpegKilledError, executable, version
from voxbatch.audio.ffmpeg_stream import FFmpegStream, command
from voxbatch.audio.waveforms import decode, probe
from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.storage import Stores
from voxbatch.storage.recording import FileRecording, Recording
from voxbatch.storage.temporary_files import temporary_file


def signal(rate: int, seconds: float = 12.0, channels: int = 1) -> Samples:
    """Return a rising tone of varying loudness with a little noise, so that no two places are alike. Shape (frames,
    channels).
    """
    t = np.arange(round(seconds * rate)) / rate
    sweep = 0.3 * np.sin(2 * np.pi * (150 + 40 * t) * t) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t))
    noise = np.random.default_rng(rate).standard_normal((len(t), channels))
    return (sweep[:, None] + 0.01 * noise).astype(np.float32)


def decoded(path: Path | str, **options: object) -> tuple[Samples, list[str]]:
    """Return all samples and the warnings, and assert that the blocks are contiguous."""
    warnings: list[str] = []
    with closing(Stores().recording(str(path))) as recording:
        blocks = list(decode(recording, str(path), warn=warnings.append, **options))  # type: ignore[arg-type]
    assert blocks[0].start == round(float(str(options.get("offset", 0))) * SAMPLING_RATE)
    assert all(len(block.samples) and block.samples.dtype == np.float32 for block in blocks)
    assert all(a.start + len(a.samples) == b.start for a, b in pairwise(blocks))
    return np.concatenate([block.samples for block in blocks]), warnings


def by_ffmpeg(source: Path, name: str, *options: str) -> Path:
    """Convert the source to another format with the ffmpeg that reads it."""
    target = source.with_name(name)
    subprocess.run([executable(), "-y", "-loglevel", "error", "-i", source, *options, target], check=True)
    return target


@pytest.fixture
def wav(tmp_path: Path, ffmpeg: dict[str, str]) -> Path:
    """Return a file of 12 s, 16 kHz, 16 bit."""
    soundfile.write(tmp_path / "source.wav", signal(16_000), 16_000, subtype="PCM_16")
    return tmp_path / "source.wav"


# ── rates and formats ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 44_101, 96_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_resampling_by_blocks_equals_resampling_at_once(tmp_path: Path, rate: int, channels: int) -> None:
    """Resampling block by block gives the samples of one call of the resampler for the whole mono mix."""
    samples = signal(rate, 21.3, channels)
    soundfile.write(path := tmp_path / "a.wav", samples, rate, subtype="FLOAT")
    out, warnings = decoded(path)
    wanted = soxr.resample(samples.mean(axis=1), rate, SAMPLING_RATE, quality="HQ")
    assert abs(len(out) - len(wanted)) <= 1
    size = min(len(out), len(wanted))
    assert np.abs(out[:size] - wanted[:size]).max() <= 1e-5
    assert warnings == []


@pytest.mark.slow
def test_resampling_equals_librosa_soxr_hq(tmp_path: Path) -> None:
    """The resampling equals librosa's soxr_hq."""
    librosa = pytest.importorskip("librosa")
    soundfile.write(path := tmp_path / "a.wav", samples := signal(44_100), 44_100, subtype="FLOAT")
    wanted = librosa.resample(samples[:, 0], orig_sr=44_100, target_sr=SAMPLING_RATE, res_type="soxr_hq")
    out, _ = decoded(path)
    size = min(len(out), len(wanted))
    assert abs(len(out) - len(wanted)) <= 1
    assert np.abs(out[:size] - wanted[:size]).max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "subtype"),
    [
        *[("a.wav", each) for each in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")],
        ("a.wav", "IMA_ADPCM"), ("a.wav", "GSM610"), ("a.flac", "PCM_16"), ("a.flac", "PCM_24"), ("a.ogg", "VORBIS"),
        ("a.mp3", "MPEG_LAYER_III"), ("a.aiff", "PCM_16"), ("a.au", "PCM_16"), ("a.au", "ULAW"),
        ("a.w64", "PCM_16"), ("a.rf64", "PCM_16"), ("a.caf", "PCM_16"), ("a.wavex", "PCM_16"),
    ],
)  # fmt: skip
def test_libsndfile_formats_give_exact_samples(tmp_path: Path, name: str, subtype: str) -> None:
    """Formats that libsndfile reads give its exact samples, whatever the file name says."""
    path = tmp_path / name
    soundfile.write(path, signal(16_000), 16_000, subtype=subtype, format=path.suffix[1:].upper())
    wanted, _ = soundfile.read(path, dtype="float32")
    path = path.rename(tmp_path / "named.txt")
    out, warnings = decoded(path)
    assert len(out) == len(wanted)
    assert np.abs(out - wanted).max() < 1e-6
    assert warnings == []


@pytest.mark.slow
def test_opus_is_decoded_at_48_khz(tmp_path: Path) -> None:
    """Opus made from 16 kHz is decoded at 48 kHz, as another reader (PyAV) does, and not at 16 kHz as by libsndfile."""
    import av

    path = tmp_path / "a.ogg"
    soundfile.write(path, signal(16_000), 16_000, subtype="OPUS", format="OGG")
    with av.open(str(path)) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        assert file.streams.audio[0].rate == 48_000
    wanted = soxr.resample(np.concatenate(frames, axis=1)[0].astype(np.float32), 48_000, SAMPLING_RATE, "HQ")
    out, warnings = decoded(path)
    assert len(out) == 12 * SAMPLING_RATE
    assert warnings == []
    size = min(len(out), len(wanted))
    assert np.abs(out[:size] - wanted[:size]).max() < 1e-3


FFMPEG_ONLY = {
    "a.m4a": ["-c:a", "aac"], "alac.m4a": ["-c:a", "alac"], "a.aac": ["-c:a", "aac"], "a.mka": ["-c:a", "aac"],
    "flac.mka": ["-c:a", "flac"], "a.wma": ["-c:a", "wmav2"], "a.mp2": ["-c:a", "mp2"], "a.wv": ["-c:a", "wavpack"],
    "a.tta": ["-c:a", "tta"], "a.g722": ["-c:a", "g722"], "a.ts": ["-c:a", "aac"], "a.webm": ["-c:a", "libopus"],
}  # fmt: skip


def correlation(one: Samples, other: Samples) -> float:
    """Return the correlation of the common length of two signals."""
    size = min(len(one), len(other))
    return float(np.corrcoef(one[:size], other[:size])[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", FFMPEG_ONLY)
def test_ffmpeg_decodes_formats_unknown_to_libsndfile(wav: Path, name: str) -> None:
    """Formats that libsndfile cannot read are decoded by ffmpeg; a slice equals that range of the whole recording."""
    path = by_ffmpeg(wav, name, *FFMPEG_ONLY[name])
    out, warnings = decoded(path)
    assert warnings == []
    assert abs(len(out) / SAMPLING_RATE - 12) < 0.2
    part, _ = decoded(path, offset=6.3, duration=2.0)
    assert len(part) == 2 * SAMPLING_RATE
    around = out[round(6.3 * SAMPLING_RATE) - 1600 :][: len(part) + 3200]
    lag = int(np.correlate(around, part[:16_000], "valid").argmax())
    assert abs(lag - 1600) <= (1600 if name == "a.wma" else 240)
    assert correlation(around[lag:], part) > 0.98


def test_lossless_format_through_ffmpeg_gives_exact_samples(wav: Path) -> None:
    """A lossless format gives back the exact samples, also in slices. Tags in the header of ffmpeg's pipe format are
    not read as samples.
    """
    wanted, _ = soundfile.read(wav, dtype="float32")
    path = by_ffmpeg(wav, "a.tta", "-metadata", "title=" + "x" * 5_001)
    assert np.array_equal(decoded(path)[0], wanted)
    assert np.array_equal(decoded(path, offset=7.25, duration=1.5)[0], wanted[116_000:140_000])


# ── slices and channels ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["wav", "flac"])
@pytest.mark.parametrize(("offset", "duration"), [(3.3, 4.0), (9.99, 2.0), (11.5, None), (0.0001, 0.5)])
def test_slice_at_16_khz_has_exact_samples(wav: Path, suffix: str, offset: float, duration: float | None) -> None:
    """At 16 kHz, a slice has exactly the samples of the whole recording."""
    path = by_ffmpeg(wav, f"a.{suffix}")
    whole, _ = decoded(path)
    begin = round(offset * SAMPLING_RATE)
    end = None if duration is None else begin + round(duration * SAMPLING_RATE)
    assert np.array_equal(decoded(path, offset=offset, duration=duration)[0], whole[begin:end])


@pytest.mark.parametrize(("rate", "suffix"), [(8_000, "wav"), (44_100, "wav"), (44_100, "mp3"), (48_000, "ogg")])
def test_slice_at_other_rates_differs_only_at_its_edges(tmp_path: Path, rate: int, suffix: str) -> None:
    """At other rates, a slice has the samples of the whole recording except for the edges of the resampler. The offset
    lies on the sample grid of the file.
    """
    soundfile.write(path := tmp_path / f"a.{suffix}", signal(rate), rate)
    whole, _ = decoded(path)
    part, _ = decoded(path, offset=5.25, duration=3.0)
    wanted = whole[84_000 : 84_000 + len(part)]
    assert abs(len(part) - 48_000) <= 1
    assert np.abs(part - wanted)[800:-800].max() < 1e-3
    assert np.abs(part - wanted).max() < 0.1


def test_offset_past_the_end_fails_and_duration_past_the_end_warns(wav: Path) -> None:
    """An offset after the end is an error with both times; a duration beyond the end is a warning."""
    with pytest.raises(AudioError, match=r"^offset 12 s is past the recording's end \(12\.00 s\)$"):
        decoded(wav, offset=12.0)
    with pytest.raises(AudioError, match="no audio after 60 s"):
        decoded(by_ffmpeg(wav, "a.m4a"), offset=60.0)
    out, warnings = decoded(wav, offset=10.0, duration=5.0)
    assert len(out) == 2 * SAMPLING_RATE
    assert warnings == ["the recording ended 3.00 s before the manifest's 5 s"]


def test_duration_that_leaves_out_audio_warns(wav: Path) -> None:
    """A duration without an offset that leaves out more than 50 ms of audio is a warning."""
    assert decoded(wav, duration=7.0)[1] == ["the recording continues after the manifest's duration of 7 s"]
    assert decoded(wav, duration=10.0)[1] == ["the recording continues after the manifest's duration of 10 s"]
    assert decoded(wav, duration=11.96)[1] == []
    assert decoded(wav, duration=12.04)[1] == []
    assert decoded(wav, duration=1.0, offset=1.0)[1] == []


def test_requested_channel_is_returned_alone(tmp_path: Path) -> None:
    """A requested channel is returned alone; a missing channel is an error that lists the channels."""
    both = signal(16_000, 3.0, channels=2)
    soundfile.write(path := tmp_path / "a.wav", both, 16_000, subtype="FLOAT")
    for channel in (0, 1):
        assert np.array_equal(decoded(path, channel=channel)[0], both[:, channel])
    with pytest.raises(AudioError, match=r"channel 2 was asked for; the recording has channels 0 to 1; .* `channel`$"):
        decoded(path, channel=2)
    soundfile.write(path, both[:, 0], 16_000, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"channel 1 was asked for; the recording has channel 0 alone; "):
        decoded(path, channel=1)


def test_probe_returns_header_duration(wav: Path) -> None:
    """`probe` returns the duration of the header without decoding."""
    with closing(Stores().recording(str(wav))) as recording:
        assert probe(recording) == 12.0


@pytest.mark.parametrize("kind", ["m4a", "mp3", "mkv", "webm", "avi", "flv", "ts", "mpg", "wma", "aac", "ac3", "wv"])
def test_probe_estimates_the_duration_of_all_formats(wav: Path, kind: str) -> None:
    """Formats whose header libsndfile cannot read have a duration to a tenth, also if they are remote: then the first
    64 KiB and the size tell it. Only the bit rate tells that of AAC and transport streams.
    """
    path = by_ffmpeg(wav, f"a.{kind}", *(("-ar", "44100") if kind == "flv" else ()))
    with closing(Stores().recording(str(path))) as local, closing(Distant(os.open(path, os.O_RDONLY))) as distant:
        assert probe(local, certain=True) is None
        assert probe(local) == pytest.approx(12.0, rel=0.1)
        distant.fileno = lambda: pytest.fail("the recording was copied")  # type: ignore[method-assign]
        assert probe(distant) == pytest.approx(12.0, rel=0.2)


def test_probe_prints_nothing_and_wants_an_audio_track(wav: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An MP3 that was cut off makes libmpg123 print a warning; `probe` does not ask it, and counts the frames that are
    left, whatever the header claims. A video without sound has no duration."""
    cut = by_ffmpeg(wav, "a.mp3").read_bytes()
    silent = by_ffmpeg(wav, "silent.mkv", "-f", "lavfi", "-i", "color=size=32x32:rate=5", "-map", "1", "-t", "2")
    with closing(FileRecording.in_memory(cut[: len(cut) // 2])) as recording:
        assert probe(recording) == pytest.approx(6.0, abs=0.1)
    with closing(Stores().recording(str(silent))) as recording:
        assert probe(recording) is None
    assert capfd.readouterr().err == ""


# ── recordings that are fetched while they are read ───────────────────────────────────────────────────────────────────


class Distant(FileRecording):
    """A local file that is read like a large remote recording: range by range, and as a file only by ffmpeg."""

    is_file = False
    fails_after = 1 << 60
    """Number of bytes after which reads fail."""

    def pread(self, count: int, at: int) -> bytes:
        if at + count > self.fails_after:
            raise StorageError("the network is down")
        return super().pread(count, at)


def outcome(recording: Recording, path: Path, offset: float) -> tuple[bytes, list[str]]:
    """Return the bytes of all samples and the warnings, or the error."""
    warnings: list[str] = []
    try:
        blocks = list(decode(recording, str(path), offset=offset, warn=warnings.append))
        return b"".join(block.samples.tobytes() for block in blocks), warnings
    except AudioError as e:
        return b"", [*warnings, str(e)]


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, pytest.param(3.3, marks=pytest.mark.long)])
def test_remote_recording_decodes_like_local_one(corpus: Path, ffmpeg: dict[str, str], offset: float) -> None:
    """A remote recording gives the samples, warnings and errors of a local one, for every format and damage."""
    odd = [path for path in sorted((corpus / "odd").rglob("*")) if path.is_file() and path.parent.name != "manifests"]
    for path in [*odd, *sorted((corpus / "speech" / "longform").iterdir())[::4]]:
        with closing(Stores().recording(str(path))) as local, closing(Distant(os.open(path, os.O_RDONLY))) as distant:
            assert outcome(distant, path, offset) == outcome(local, path, offset), path


@pytest.mark.parametrize("good", [0, 30_000])
def test_network_failure_is_not_reported_as_damage(wav: Path, good: int) -> None:
    """If the storage of a remote recording fails, at the header or later, the recording is not reported as damaged or
    ended.
    """
    with closing(Distant(os.open(wav, os.O_RDONLY))) as distant:
        distant.fails_after = good
        with pytest.raises(StorageError, match="the network is down"):
            list(decode(distant, str(wav)))


# ── odd samples ──────────────────────────────────────────────────────────────────────────────────────────────────────


def written(tmp_path: Path, samples: Samples, rate: int = 16_000) -> Path:
    """Write the samples to a file of 32-bit floats."""
    soundfile.write(path := tmp_path / "odd.wav", samples, rate, subtype="FLOAT")
    return path


def test_invalid_samples_become_silence(tmp_path: Path) -> None:
    """A few invalid samples become silence with a warning, and a huge one does not scale the others down; if most
    samples are invalid, the recording is refused.
    """
    samples = signal(16_000)[:, 0]
    broken, places = samples.copy(), [5, 100_000, 150_000, 170_000]
    broken[places] = [np.nan, np.inf, 1e30, -np.inf]
    out, warnings = decoded(written(tmp_path, broken))
    samples[places] = 0
    assert np.array_equal(out, samples)
    assert warnings == ["4 samples were NaN, infinite or absurdly large and became silence"]
    broken[:96_001] = np.nan
    with pytest.raises(AudioError, match=r"96,004 of 192,000 samples are NaN, infinite or absurdly large"):
        decoded(written(tmp_path, broken))


@pytest.mark.parametrize("scale", [32_768.0, 1e30])
def test_float_file_on_integer_scale_is_scaled_down(tmp_path: Path, scale: float) -> None:
    """A float file on an integer scale is scaled down to ±1 with a warning, and the sound stays the same."""
    samples = signal(16_000)[:, 0]
    out, warnings = decoded(written(tmp_path, samples * np.float32(scale)))
    assert 0.5 < np.abs(out).max() <= 1
    assert correlation(out, samples) > 0.98
    assert len(warnings) == 1
    assert warnings[0].endswith("where full scale is 1; scaled down")


def test_slight_overshoot_stays_unchanged(tmp_path: Path) -> None:
    """Samples slightly above full scale, as lossy decoders produce them, stay unchanged."""
    samples = signal(16_000)[:, 0] * 5
    out, warnings = decoded(written(tmp_path, samples))
    assert np.array_equal(out, samples)
    assert warnings == []


# ── damaged files ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_audio_after_damage_is_read_with_a_warning(wav: Path) -> None:
    """Audio after a damaged section is read with a warning, also if only a part was requested."""
    path = by_ffmpeg(wav, "a.flac")
    whole, _ = decoded(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 300] = os.urandom(300)
    path.write_bytes(data)
    out, warnings = decoded(path)
    assert len(warnings) == 1
    assert warnings[0].startswith("damaged: ")
    assert warnings[0].endswith("; ffmpeg decodes the rest")
    assert len(out) > 10 * SAMPLING_RATE
    assert np.array_equal(out[:64_000], whole[:64_000])
    assert np.array_equal(out[-64_000:], whole[-64_000:])
    assert decoded(path, offset=5.0, duration=2.0)[1][0].startswith("damaged: ")


@pytest.mark.parametrize("suffix", ["mp3", "ogg"])
def test_concatenated_files_are_read_to_the_end(wav: Path, suffix: str) -> None:
    """Two concatenated files are read to the end; an offset in the second file works."""
    path = by_ffmpeg(wav, f"a.{suffix}")
    single, _ = decoded(path)
    path.write_bytes(path.read_bytes() * 2)
    double, warnings = decoded(path)
    assert abs(len(double) - 2 * len(single)) < SAMPLING_RATE // 5
    assert correlation(double[: len(single)], single) > 0.99
    if suffix == "mp3":
        claim = r"the header claims 12\.\d+ s, and the file holds 24\.\d+ s, all of which was read"
        assert re.fullmatch(claim, "".join(warnings))
    else:
        assert not warnings
    late, _ = decoded(path, offset=15.0, duration=2.0)
    assert correlation(late, double[15 * SAMPLING_RATE :]) > 0.99


@pytest.mark.slow
def test_appended_audio_and_tags_are_told_apart(wav: Path) -> None:
    """Two seconds after three minutes of MP3 are not mistaken for a tag, and a tag is not mistaken for audio."""
    long = by_ffmpeg(wav, "long.mp3", "-af", "aloop=loop=14:size=192000", "-b:a", "320k", "-ar", "44100")
    tail = by_ffmpeg(wav, "tail.mp3", "-t", "2", "-b:a", "320k", "-ar", "44100")
    seconds = len(decoded(long)[0]) / SAMPLING_RATE
    assert tail.stat().st_size < 0.05 * long.stat().st_size
    data = long.read_bytes()
    long.write_bytes(data + tail.read_bytes())
    assert len(decoded(long)[0]) / SAMPLING_RATE == pytest.approx(seconds + 2, abs=0.2)
    long.write_bytes(data + b"TAG" + bytes(100_000))
    out, warnings = decoded(long)
    assert len(out) / SAMPLING_RATE == pytest.approx(seconds, abs=0.1)
    assert warnings == []


def test_raw_format_is_recognised_in_an_address(wav: Path) -> None:
    """A format that only the extension reveals is recognized in an address, too, whatever its query is."""
    path = by_ffmpeg(wav, "a.g722", "-c:a", "g722")
    with closing(Stores().recording(str(path))) as recording:
        assert list(decode(recording, "https://host/a.g722?signature=b.wav"))


@pytest.mark.parametrize("content", [b"", b"x", b"RIFF", b"<!DOCTYPE html><html></html>", b"\0" * 5000])
@pytest.mark.parametrize("name", ["a.wav", "a.g722x"])
def test_file_without_audio_gives_a_one_line_error(
    tmp_path: Path, ffmpeg: dict[str, str], content: bytes, name: str
) -> None:
    """A file without audio gives a plain error of one line, whatever its name is."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AudioError) as raised:
        decoded(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    assert "/dev/fd" not in str(raised.value)
    if not content:
        assert str(raised.value) == "the file is empty"


@pytest.mark.parametrize(
    ("complaint", "wanted"),
    [
        ("[error] file:/dev/fd/16: Invalid argument", "Invalid argument"),
        ("[in#0 @ 0x55d2] [error] Error opening input: Protocol not found", "Protocol not found"),
        ("[mov @ 0x55d2] [error] moov atom not found", "moov atom not found"),
        ("ffmpeg: error while loading libavcodec.so", "ffmpeg: error while loading libavcodec.so"),
        ("[fatal] Error opening input file file:/dev/fd/3.", "Error opening input file calls/a.m4a."),
        ("[error] file:/dev/fd/16: Invalid data found when processing input",
         "not audio in a format that libsndfile or ffmpeg knows: it looks like a RIFF file"),
    ],
)  # fmt: skip
def test_error_messages_name_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, wanted: str
) -> None:
    """Some versions of ffmpeg name the file descriptor that they read; the error message names the
    recording instead.
    """
    (program := tmp_path / "ffmpeg").write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
    program.chmod(0o755)
    (path := tmp_path / "a.m4a").write_bytes(b"RIFF")
    for module in ("ffmpeg", "ffmpeg_stream"):
        monkeypatch.setattr(f"voxbatch.audio.{module}.executable", lambda: str(program))
    with open(path, "rb") as file, pytest.raises(AudioError) as raised:
        FFmpegStream(FileRecording(os.dup(file.fileno())), "calls/a.m4a", 0.0, reason="unknown")
    assert str(raised.value) == wanted


def test_error_messages_name_no_temporary_file(tmp_path: Path, wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If temporary files cannot be kept, the message names the recording and the folder, and is the same each time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError) as raised:
        temporary_file(str(wav), [b"x"])
    reason = f"cannot be stored in {tmp_path}/gone: No such file or directory; free space there, or set TMPDIR"
    assert str(raised.value) == f"{wav}: {reason}"


@pytest.mark.parametrize(
    ("rate", "channels", "wanted"), [(1, 1, "1 Hz"), (4_000_000, 1, "4000000 Hz"), (8_000, 65, "65")]
)
def test_rate_and_channel_count_out_of_range_are_refused(tmp_path: Path, rate: int, channels: int, wanted: str) -> None:
    """Sampling rates and channel counts outside of the permitted range are refused with that range."""
    soundfile.write(path := tmp_path / "a.wav", np.zeros((100, channels), np.float32), rate, subtype="PCM_16")
    with pytest.raises(AudioError, match=rf"the header claims {wanted}.*are allowed"):
        decoded(path)


def test_header_without_samples_is_an_error(tmp_path: Path) -> None:
    """A header without samples is reported as such."""
    soundfile.write(path := tmp_path / "a.wav", np.zeros(0, np.float32), 16_000)
    with pytest.raises(AudioError, match="no audio: the file holds a header but no samples"):
        decoded(path)


# ── confinement ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(wav: Path) -> Iterator[tuple[str, list[str]]]:
    """Start a local web server that serves the recordings, and list the requests that it gets."""
    with served_folder(wav.parent) as (url, asked):
        yield f"{url}/{wav.name}", asked


SCRIPTS = {
    "hls": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:12\n#EXTINF:12.0,\n{}\n#EXT-X-ENDLIST\n",
    "m3u": "#EXTM3U\n#EXTINF:12,x\n{}\n",
    "pls": "[playlist]\nNumberOfEntries=1\nFile1={}\nVersion=2\n",
    "concat": "ffconcat version 1.0\nfile '{}'\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\na=control:{}\nm=audio 5004 RTP/AVP 0\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration='
    '"PT12S"><Period><AdaptationSet mimeType="audio/mp4"><Representation id="0" bandwidth="1"><BaseURL>{}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>",
    "asx": '<asx version="3.0"><entry><ref href="{}"/></entry></asx>',
    "asf": "[Reference]\r\nRef1={}\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_files_that_name_other_files_open_nothing(server: tuple[str, list[str]], wav: Path, kind: str) -> None:
    """A file that names another file or an address, under any extension, neither opens nor fetches it."""
    url, asked = server
    for target in (url, str(wav), wav.name, f"file:{wav}"):
        for name in ("x.m3u8", "x.wav", "x.mp3", "x.mka", "x.g722z"):
            (path := wav.with_name(name)).write_text(SCRIPTS[kind].format(target))
            with pytest.raises(AudioError):
                decoded(path)
    assert asked == []


@pytest.mark.parametrize("closed", ["formats", "protocols", None])
def test_each_whitelist_alone_stops_a_playlist(server: tuple[str, list[str]], wav: Path, closed: str | None) -> None:
    """If ffmpeg is forced to read a playlist, either whitelist alone stops it; without both, it is read."""
    url, asked = server
    segment = by_ffmpeg(wav, "segment.ts", "-c:a", "aac")
    (path := wav.with_name("x.m3u8")).write_text(SCRIPTS["hls"].format(url.replace(wav.name, segment.name)))
    recording = FileRecording(os.open(path, os.O_RDONLY))
    arguments = command(recording, path.name, 0.0, audio_stream=0, has_stale_header=False, packets=2)
    if closed != "protocols":
        arguments[arguments.index("-protocol_whitelist") + 1] = "file,pipe,http,tcp"
    if closed != "formats":
        at = arguments.index("-format_whitelist")
        del arguments[at : at + 2]
    at = arguments.index("-i")
    arguments[at:at] = ["-f", "hls"]
    done = subprocess.run(arguments, capture_output=True, pass_fds=(recording.fileno(),))
    recording.close()
    assert bool(asked) == bool(done.stdout) == (closed is None)


# ── an ffmpeg that is killed ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_stopped_ffmpeg_is_no_damage_of_the_recording(wav: Path) -> None:
    """An ffmpeg that somebody stops within a file, so that it exits by itself, is an error, not a short recording with
    a warning.
    """
    soundfile.write(wav, np.tile(signal(16_000), (30, 1)), 16_000, subtype="PCM_16")
    path, warnings = by_ffmpeg(wav, "long.mka", "-c:a", "copy"), list[str]()
    with closing(Stores().recording(str(path))) as recording:
        others = set(psutil.Process().children())  # servers and helper processes that other tests keep
        blocks = decode(recording, str(path), warn=warnings.append)
        next(blocks)
        (process,) = set(psutil.Process().children()) - others
        process.terminate()
        with pytest.raises(FFmpegKilledError, match=r"^ffmpeg was stopped by a signal$"):
            list(blocks)
    assert not warnings
    assert not process.is_running()


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
@pytest.mark.usefixtures("unread")
def test_ffmpeg_killed_before_its_first_output_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An ffmpeg that is killed while it starts does not make the recording one that is not audio."""
    (path := tmp_path / "a.m4a").write_bytes(b"not read")
    (chosen := tmp_path / "ffmpeg").write_text(f"#!/bin/sh\nkill -{int(number)} $$\n")
    chosen.chmod(0o755)
    monkeypatch.setenv("VOXBATCH_FFMPEG", str(chosen))
    with pytest.raises(FFmpegKilledError, match=f"^ffmpeg was killed by signal {int(number)}$"):
        decoded(path)


# ── choice of ffmpeg ──────────────────────────────────────────────────────────────────────────────────────────────────


def program(folder: Path, version: str) -> Path:
    """Write a program named ffmpeg that prints this version."""
    folder.mkdir(parents=True)
    (path := folder / "ffmpeg").write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def unread() -> Iterator[None]:
    """Clear the cached path and version of ffmpeg."""
    executable.cache_clear()
    version.cache_clear()
    yield
    executable.cache_clear()
    version.cache_clear()


@pytest.mark.usefixtures("unread")
def test_ffmpeg_of_the_wheel_precedes_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ffmpeg of the wheel has priority over the system's, and VOXBATCH_FFMPEG over both."""
    system = program(tmp_path / "system", "ffmpeg version 5.1.9-0+deb12u1 Copyright (c) 2000-2026")
    chosen = program(tmp_path / "chosen", "ffmpeg version n8.0 Copyright")
    monkeypatch.setenv("PATH", f"{system.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("VOXBATCH_FFMPEG", raising=False)
    assert executable() == imageio_ffmpeg.get_ffmpeg_exe()
    assert version().endswith(f" (imageio-ffmpeg {imageio_ffmpeg.__version__})")
    assert libraries() == {"ffmpeg": version(), "libsndfile": soundfile.__libsndfile_version__}

    for cached in (executable, version):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert (executable(), version()) == (str(system), "5.1.9-0+deb12u1 (system)")

    for cached in (executable, version):
        cached.cache_clear()
    monkeypatch.setenv("VOXBATCH_FFMPEG", str(chosen))
    assert (executable(), version()) == (str(chosen), "n8.0 (VOXBATCH_FFMPEG)")


@pytest.mark.usefixtures("unread")
def test_run_without_ffmpeg_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without ffmpeg is possible; a VOXBATCH_FFMPEG that is missing or does not run is refused."""
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VOXBATCH_FFMPEG", raising=False)
    assert libraries()["ffmpeg"] == "not installed"
    monkeypatch.setenv("VOXBATCH_FFMPEG", "/no/ffmpeg")
    with pytest.raises(ConfigError, match="VOXBATCH_FFMPEG=/no/ffmpeg: no such program"):
        libraries()
    monkeypatch.setenv("VOXBATCH_FFMPEG", "/bin/false")
    with pytest.raises(ConfigError, match=r"^/bin/false does not run as ffmpeg: .* exit status 1"):
        libraries()


# ── memory ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_long_recording_needs_little_memory(tmp_path: Path) -> None:
    """Two hours of 8 kHz FLAC, nearly all silence, need at most 150 MB more memory than one second."""
    short, long = tmp_path / "short.flac", tmp_path / "long.flac"
    soundfile.write(short, signal(8_000, 1.0), 8_000)
    with soundfile.SoundFile(long, "w", 8_000, 1) as file:
        for minute in range(120):
            file.write(np.concatenate([signal(8_000, 1.0)[:, 0], np.zeros(59 * 8_000)]) if minute % 30 == 0 else
                       np.zeros(60 * 8_000))  # fmt: skip
    code = """
        import resource, sys
        from voxbatch.audio.waveforms import decode
        from voxbatch.storage import Stores
        peaks = []
        for path in sys.argv[1:]:
            count = sum(len(block.samples) for block in decode(Stores().recording(path), path))
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(count, peaks[1] - peaks[0])
    """.replace("\n        ", "\n")
    command = [sys.executable, "-c", code, str(short), str(long)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count == 7_200 * SAMPLING_RATE
    assert kilobytes < 150_000


# ── what else ffmpeg reads ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.sln", ["-ar", "8000", "-f", "s16le"]), ("a.sln16", ["-ar", "16000", "-f", "s16le"]),
        ("a.SLN48", ["-ar", "48000", "-f", "s16le"]), ("a.latm", ["-c:a", "aac", "-f", "latm"]), ("a.nut", []),
        ("a.sox", []), ("a.thd", ["-ar", "48000", "-c:a", "truehd", "-strict", "-2"]), ("a.sbc", ["-ar", "16000"]),
        ("a.wtv", ["-c:a", "mp2"]),
    ],
)  # fmt: skip
def test_further_formats_are_read_at_their_rate(wav: Path, name: str, options: list[str]) -> None:
    """Headerless ones have the rate that their extension names; the others are recognised by their content."""
    seconds = soundfile.info(wav).duration
    assert sum(map(len, [decoded(by_ffmpeg(wav, name, *options))[0]])) / SAMPLING_RATE == pytest.approx(
        seconds, abs=0.1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sub_format", "codec", "bits"),
    [(1, "pcm_s16le", 16), (3, "pcm_f32le", 32), (6, "pcm_alaw", 8), (7, "pcm_mulaw", 8)],
)
def test_numbers_in_extensible_wave64_are_no_integers(
    wav: Path, tmp_path: Path, sub_format: int, codec: str, bits: int
) -> None:
    """libsndfile takes such numbers for integers, and ffmpeg does not."""
    raw, plain, path = tmp_path / "raw", tmp_path / "plain.wav", tmp_path / "a.w64"
    outputs = [
        "-ac",
        "1",
        "-c:a",
        codec,
        str(plain),
        "-ac",
        "1",
        "-c:a",
        codec,
        "-f",
        codec.removeprefix("pcm_"),
        str(raw),
    ]
    subprocess.run([executable(), "-loglevel", "error", "-i", str(wav), *outputs], check=True)
    rate, size, data = soundfile.info(plain).samplerate, bits // 8, raw.read_bytes()
    ids = {"riff": "2e91cf11a5d628db04c10000", "wave": "f3acd3118cd100c04f8edb8a"}
    guid = struct.pack("<H", sub_format) + bytes.fromhex("000000001000800000aa00389b71")
    fmt = struct.pack("<HHIIHHHHI", 0xFFFE, 1, rate, size * rate, size, bits, 22, bits, 4) + guid
    chunks = b"".join(
        name + bytes.fromhex(ids["wave"]) + struct.pack("<Q", 24 + len(part)) + part + bytes(-len(part) % 8)
        for name, part in ((b"fmt ", fmt), (b"data", data))
    )
    head = b"riff" + bytes.fromhex(ids["riff"]) + struct.pack("<Q", 40 + len(chunks))
    path.write_bytes(head + b"wave" + bytes.fromhex(ids["wave"]) + chunks)
    assert np.allclose(decoded(path)[0], decoded(plain)[0], atol=1e-6)
