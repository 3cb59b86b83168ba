"""Tests for finding voice: at any level and offset, in one of many channels, and in one of many audio streams."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import ROOT
from decoded_samples import decoded

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.voice_mix import VoiceMix
from voxbatch.engines.suspect_text import PieceText, suspicions
from voxbatch.records import LOST_SPEECH, SAMPLING_RATE, Samples, Word
from voxbatch.voice import at_usual_level, has_detector, is_silent, speech_probabilities, voice_seconds

needs_detector = pytest.mark.skipif(not has_detector(), reason="faster-whisper is not installed")
SPEECH: Samples = soundfile.read(ROOT / "examples" / "recordings" / "weather.flac", dtype="float32")[0]
SPEECH = SPEECH / np.abs(SPEECH).max()
T = np.arange(len(SPEECH)) / SAMPLING_RATE
HUM = (0.3 * np.sin(2 * np.pi * 50 * T) + 0.1 * np.sin(2 * np.pi * 150 * T)).astype(np.float32)


def hiss(level: float, seed: int = 0) -> Samples:
    """Return white noise as long as the speech."""
    return (level * np.random.default_rng(seed).standard_normal(len(SPEECH))).astype(np.float32)


def music() -> Samples:
    """Return chords that change twice a second, as loud as the speech."""
    step = (2 * T).astype(int)
    chord = sum(np.sin(2 * np.pi * 220 * 2 ** ((note + step * 5 % 12) / 12) * T) for note in (0, 4, 7, 12))
    envelope = np.exp(-3 * (2 * T % 1))
    return (0.15 * chord * envelope).astype(np.float32)


@needs_detector
@pytest.mark.parametrize("offset", [0.02, 0.1, -0.05, None])
@pytest.mark.parametrize("peak_db", [-15, -30])
def test_offset_hides_no_voice(offset: float | None, peak_db: float) -> None:
    """A constant offset, and one that jumps (None), hide no voice from the detector. Without this, an offset of 0.05
    leaves a probability of 0.34 of a voice at −30 dB."""
    quiet = SPEECH * 10 ** (peak_db / 20)
    shift = np.where(T < 5, 0.08, -0.03) if offset is None else np.float64(offset)
    voice = voice_seconds((quiet + shift).astype(np.float32))
    assert voice == pytest.approx(voice_seconds(SPEECH), rel=0.15)


@needs_detector
@pytest.mark.parametrize(("peak_db", "bits"), [(-56, 16), (-62, 16), (-70, 24), (-80, 24)])
def test_quiet_voice_is_heard(peak_db: float, bits: int) -> None:
    """A voice whose peaks are at −62 dB (16 bits) or −80 dB (24 bits) is heard, and is not silence."""
    scale = 2.0 ** (bits - 1)
    quiet = (np.round(SPEECH * 10 ** (peak_db / 20) * scale) / scale).astype(np.float32)
    assert voice_seconds(quiet) == pytest.approx(voice_seconds(SPEECH), rel=0.4 if bits == 16 else 0.15)
    assert not is_silent(quiet)


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(160_000, np.float32),
        np.full(160_000, 0.05, np.float32),
        np.round(hiss(0.7)) / np.float32(32_768),
        hiss(3e-5),
        np.linspace(0, 2, len(SPEECH), dtype=np.float32) * hiss(2e-5),
    ],
    ids=["zeros", "offset", "dither", "faint noise", "noise that fades in"],
)
def test_silence_stays_silence(samples: Samples) -> None:
    """Digital silence, an offset alone, dither and faint noise hold no voice, although quiet recordings are
    amplified."""
    assert is_silent(samples) or speech_probabilities(samples).max() < 0.4
    assert voice_seconds(samples) == 0


def test_usual_recordings_are_not_changed() -> None:
    """The voice detector gets the very samples of usual recordings, and so their transcripts stay the same."""
    for usual in (SPEECH, SPEECH * 0.02, SPEECH + np.float32(0.005), SPEECH + hiss(0.1)):
        assert at_usual_level(usual) is usual


@needs_detector
@pytest.mark.parametrize("fainter_db", [20, 24, 30, 45])
def test_lost_words_of_a_quiet_speaker_are_flagged(fainter_db: float) -> None:
    """Text that is missing over a speaker who is 20 to 45 dB quieter than the one before is flagged as lost speech,
    and a pause with noise is not."""
    end = len(SPEECH) / SAMPLING_RATE
    text = PieceText(" Here is the weather.", (Word(" Here is the weather.", 0.2, end - 0.2, 0.9),))
    quiet = SPEECH * 10 ** (-fainter_db / 20) + hiss(1e-4)
    call = np.concatenate([SPEECH, quiet]).astype(np.float32)
    (lost,) = [each.flag for each in suspicions(call, text, speech_probabilities(call)) if each.flag.start]
    assert (lost.kind, lost.start, lost.end) == (LOST_SPEECH, end - 0.2, 2 * end)
    pause = np.concatenate([SPEECH, hiss(10 ** (-fainter_db / 20))]).astype(np.float32)
    assert not [each for each in suspicions(pause, text, speech_probabilities(pause)) if each.flag.start]


# ── several channels ─────────────────────────────────────────────────────────────────────────────────────────────────


def mixed(channels: list[Samples], layout: str = "") -> tuple[Samples, str]:
    """Return the mix of some channels, fed in blocks, and the sentence about the choice."""
    mix = VoiceMix(len(channels), layout)
    blocks = np.array_split(np.stack(channels, axis=1), 7)
    return np.concatenate([*map(mix, blocks), mix.finish()]), mix.choice()


def correlation(samples: Samples) -> float:
    """Return the correlation with the speech."""
    return float(np.corrcoef(samples[: len(SPEECH)], SPEECH)[0, 1])


@pytest.mark.parametrize("noise", [HUM, hiss(0.3)], ids=["hum", "hiss"])
@pytest.mark.parametrize("count", [3, 8])
def test_voice_beside_a_loud_noise_is_taken(noise: Samples, count: int) -> None:
    """A voice in one channel is taken, although another channel is louder; also without a voice detector."""
    channels = [hiss(1e-4, number) for number in range(count)]
    channels[0], channels[2] = noise, SPEECH * 0.5
    samples, choice = mixed(channels)
    assert correlation(samples) > (0.99 if has_detector() else 0.5)
    if has_detector():
        assert choice == f"{count} channels: by voice, channel 2 was taken for {T[-1]:.1f} s; see `channel`"


@pytest.mark.slow
@needs_detector
def test_dialogue_in_the_centre_is_taken_from_the_music() -> None:
    """In 5.1 with music as loud as the dialogue, the centre is taken. Without music, the standard downmix is kept."""
    silent = np.zeros_like(SPEECH)
    loud = 4 * music()
    samples, choice = mixed([loud, loud, SPEECH * 0.3, silent, silent, silent], "5.1(side)")
    assert correlation(samples) > 0.99
    assert "channel 2 was taken" in choice
    samples, choice = mixed([silent, silent, SPEECH * 0.3, silent, silent, silent], "5.1(side)")
    assert correlation(samples) > 0.99
    assert "the standard downmix was taken" in choice


@needs_detector
def test_speakers_with_a_microphone_each_are_all_heard() -> None:
    """Two speakers who take turns within seconds are both heard beside an input that hums louder than they speak."""
    first, second = SPEECH.copy(), SPEECH.copy()
    first[5 * SAMPLING_RATE :] = second[: 5 * SAMPLING_RATE] = 0
    samples, choice = mixed([4 * HUM, first, second, hiss(1e-4)])
    assert correlation(samples) > 0.95
    assert "the mix of channels 1, 2 was taken" in choice


# ── several audio streams ────────────────────────────────────────────────────────────────────────────────────────────


def video(folder: Path, *tracks: Samples) -> Path:
    """Write a video with some audio streams."""
    inputs = ["-f", "lavfi", "-i", "color=s=16x16:r=1:d=9"]
    for number, samples in enumerate(tracks):
        soundfile.write(folder / f"{number}.wav", samples, SAMPLING_RATE)
        inputs += ["-i", str(folder / f"{number}.wav")]
    maps = [argument for number in range(len(tracks) + 1) for argument in ("-map", str(number))]
    path = folder / "video.mp4"
    options = ["-c:v", "mpeg4", "-c:a", "aac", str(path)]
    subprocess.run([executable(), "-y", "-loglevel", "error", *inputs, *maps, *options], check=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("first", [hiss(0.1), HUM], ids=["hiss", "hum"])
def test_stream_with_voice_is_taken_before_one_with_noise(
    tmp_path: Path, ffmpeg: dict[str, str], first: Samples
) -> None:
    """A first stream that holds only noise is not taken; of two with voice, the first one is."""
    samples, (warning,) = decoded(video(tmp_path, first, SPEECH * 0.2, SPEECH))
    assert np.abs(samples).max() < 0.4
    assert warning.startswith("audio stream 1 was taken, the first with voice of 3 (0: aac, ")


@pytest.mark.slow
def test_stream_after_an_undecodable_one_is_taken(tmp_path: Path, ffmpeg: dict[str, str]) -> None:
    """If no decoder knows the codec of the first stream, as with Apple's spatial audio, the next one is taken, and both
    facts are in the warnings."""
    path = video(tmp_path, hiss(0.1), SPEECH)
    before, _, after = path.read_bytes().partition(b"mp4a")
    path.write_bytes(before + b"apac" + after.replace(b"esds", b"free", 1))
    samples, (taken, undecodable) = decoded(path)
    assert voice_seconds(samples) == pytest.approx(voice_seconds(SPEECH), rel=0.2)
    assert taken.startswith("audio stream 1 was taken, the first with voice of 2 (0: ")
    assert undecodable.startswith("audio stream 0 cannot be decoded: ")
