"""Tests for channels that are recognised alone: which recordings are split, how they are cut, joined and written."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import Recorder, Voxbatch
from decoded_samples import decoded

from voxbatch.audio.waveforms import decode
from voxbatch.config import RunOptions
from voxbatch.decoding.voices import VoiceListener, cut_channels
from voxbatch.errors import ConfigError
from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Hypothesis, Samples, Span, Waveform, Word
from voxbatch.storage import Stores
from voxbatch.text.crosstalk import CrosstalkGate
from voxbatch.text.speakers import stitch_channels

SECOND = SAMPLING_RATE


def syllables(seconds: float, seed: int) -> Samples:
    """Return noise whose loudness varies like syllables. Shape (frames,)."""
    times = np.arange(round(seconds * SECOND)) / SECOND
    noise = np.random.default_rng(seed).standard_normal(len(times))
    return np.asarray(noise * 0.1 * (1 + np.sin(times * 25)) ** 2, np.float32)


def turns(seconds: float, turn_s: float = 5.0) -> Samples:
    """Return two channels of which one after the other is loud. Shape (frames, 2)."""
    is_first = (np.arange(round(seconds * SECOND)) // round(turn_s * SECOND)) % 2 == 0
    return np.stack([syllables(seconds, 1) * is_first, syllables(seconds, 2) * ~is_first], axis=1)


def crosstalk(call: Samples, level_db: float) -> Samples:
    """Return a call in which each channel also has the other one, 12 ms late."""
    return np.asarray(call + 10 ** (level_db / 20) * np.roll(call[:, ::-1], round(0.012 * SECOND), axis=0), np.float32)


CALL = turns(40)
MUSIC = np.stack([0.8 * syllables(40, 1) + 0.4 * syllables(40, 2), 0.7 * syllables(40, 1)], axis=1)
"""Two channels with the same loud sound and some of their own."""
SILENT = np.zeros(40 * SECOND, np.float32)


ONE, THREE = MUSIC[:, 0], np.stack([syllables(40, seed) for seed in (3, 4, 5)], axis=1)
SAME = "the channels hold the same sound: they were transcribed as one"


@pytest.mark.parametrize(
    ("samples", "mode", "channels", "warnings"),
    [
        (CALL, "auto", 2, []),
        (crosstalk(CALL, -15), "auto", 2, []),
        (MUSIC, "auto", 1, []),
        (MUSIC, "split", 2, []),
        (np.stack([ONE, ONE], axis=1), "split", 1, [SAME]),
        (np.stack([ONE, -0.5 * ONE], axis=1), "auto", 1, [SAME]),
        (np.stack([ONE, SILENT], axis=1), "auto", 1, ["silent in the first 40 s: channel 1"]),
        (np.stack([SILENT, ONE], axis=1), "split", 2, ["silent in the first 40 s: channel 0"]),
        (ONE, "auto", 1, []),
        (ONE, "split", 1, ["the recording has one channel: it was transcribed without speakers"]),
        (THREE, "split", 3, []),
        (THREE, "auto", 1, ["3 channels: by voice, the mix by loudness was taken for 40.0 s; see `channel`"]),
    ],
)
def test_calls_are_split(tmp_path: Path, samples: Samples, mode: str, channels: int, warnings: list[str]) -> None:
    """A call has a side in each channel; music, dual mono and a silent channel are recognised and told."""
    soundfile.write(tmp_path / "a.wav", samples, SECOND, subtype="FLOAT")
    found, told = decoded(tmp_path / "a.wav", channels=mode)
    assert (1 if found.ndim == 1 else found.shape[1], told) == (channels, warnings)
    if channels > 1:
        np.testing.assert_array_equal(found, samples)


def test_channels_are_resampled_alone(tmp_path: Path) -> None:
    """A separate channel has the samples that `channel` gives."""
    soundfile.write(tmp_path / "a.wav", CALL, 44_100, subtype="FLOAT")
    found, _ = decoded(tmp_path / "a.wav", channels="split")
    with closing(Stores().recording(str(tmp_path / "a.wav"))) as recording:
        alone = np.concatenate([block.samples for block in decode(recording, "a.wav", channel=1)])
    np.testing.assert_array_equal(found[:, 1], alone)


@pytest.mark.slow
def test_the_chunks_of_each_channel_partition_the_recording() -> None:
    """Each channel is cut in its own pauses, whatever the sizes of the blocks, and the levels cover the recording. No
    sample is changed but by muting."""
    call = crosstalk(turns(200, turn_s=7.0), -15)
    cuts = []
    for size in (SECOND, 7 * SECOND + 11):
        blocks = [Waveform(call[at : at + size], at + 160) for at in range(0, len(call), size)]
        listener = VoiceListener()
        spans = []
        for samples, span in cut_channels(listener.heard(blocks), 30 * SECOND, SECOND):
            assert span.channel is not None
            heard = call[span.start - 160 : span.end - 160, span.channel]
            np.testing.assert_array_equal(samples, np.where(samples == 0, 0, heard))
            spans.append(span)
        for channel in (0, 1):
            cores = [(span.core_start, span.core_end) for span in spans if span.channel == channel]
            assert (cores[0][0], cores[-1][1]) == (160, len(call) + 160)
            assert all(before[1] == after[0] for before, after in pairwise(cores))
        assert [len(levels) for levels in listener.levels] == [len(call) // LEVEL_FRAME] * 2
        cuts.append((spans, listener.levels))
    assert cuts[0] == cuts[1]


@pytest.mark.parametrize("level_db", [-15, -25])
def test_crosstalk_is_muted_and_no_word_is_cut(level_db: float) -> None:
    """While one side speaks, the channel of the other one is silent, from the second turn on and up to REACH around its
    own words; a quiet word over the other side stays.
    """
    clean = turns(60)
    word = slice(round(21 * SECOND), round(21.5 * SECOND))
    clean[word, 1] += 0.5 * syllables(0.5, 7)  # 6 dB below the first channel
    gate, call = CrosstalkGate(2), crosstalk(clean, level_db)
    muted = np.concatenate([gate(call), gate.finish()])
    assert len(muted) == len(call)
    for channel in (0, 1):
        own, rest = muted[:, channel], call[:, channel]
        spoken = clean[:, channel] != 0
        assert (own[spoken] == rest[spoken]).mean() > 0.999
        count = np.cumsum(np.pad(spoken, SECOND // 2))
        away = count[SECOND - 1 : len(spoken) + SECOND - 1] == count[: len(spoken)]  # half a second from its own words
        away[: 6 * SECOND] = False
        assert (own[away] == 0).mean() > 0.97
    np.testing.assert_array_equal(muted[word, 1], call[word, 1])


def level(*loudness: tuple[float, int]) -> bytes:
    """Return the levels of a channel: seconds and dB of each stretch."""
    return b"".join(bytes([100 + db]) * round(seconds * SECOND / LEVEL_FRAME) for seconds, db in loudness)


LEVELS = (level((2, -20), (2, -35)), level((2, -35), (1, -24), (1, -90)))
"""The first channel speaks for 2 s; then the second one, 11 dB louder than in the first, and after 3 s nobody but the
noise of the first channel."""


def test_words_are_merged_by_time_without_crosstalk() -> None:
    """A word goes if the other channel is more than 10 dB louder while it is spoken. The rest is in order of time."""
    spans = [Span(SECOND, 5 * SECOND, SECOND, 5 * SECOND, channel=channel) for channel in (0, 1)]
    first = (
        Word(" Hello", 0.0, 1.0, 0.5),
        Word(" there.", 1.5, 2.1, 1.0),
        Word(" False.", 2.1, 2.9, 0.1),
        Word(" Bye", 3.2, 3.6),
    )
    second = Word("False.", 0.2, 0.9, 0.1), Word(" Yes.", 2.0, 2.8, 0.75)
    hypotheses = [Hypothesis(0, at, "x", words, language="en") for at, words in enumerate((first, second))]
    transcript = stitch_channels(spans, hypotheses, LEVELS, ("agent",), ("decoded",))
    assert [(word.text, word.start, word.speaker) for word in transcript.words] == [
        (" Hello", 1.0, "agent"), (" there.", 2.5, "agent"), (" Yes.", 3.0, "Speaker 2"), (" Bye", 4.2, "agent"),
    ]  # fmt: skip
    assert transcript.text == "Hello there. Yes. Bye"
    assert [(segment.text, segment.speaker) for segment in transcript.segments] == [
        ("Hello there.", "agent"), ("Yes.", "Speaker 2"), ("Bye", "agent"),
    ]  # fmt: skip
    assert transcript.warnings == (
        "decoded",
        "channel 0: left out 1 words that another channel holds much louder",
        "channel 1: left out 1 words that another channel holds much louder",
    )
    assert (transcript.confidence, transcript.audio_duration, transcript.language) == (0.75, 4.0, "en")


def test_a_word_without_a_length_stays_or_goes_with_the_word_before_it() -> None:
    """Such a word was said within the time of the word before it, and at its own time the other side may speak."""
    words = (
        Word(" of", 0.5, 2.2),
        Word(" bondage.", 2.3, 2.3),
        Word(" False.", 2.3, 2.9),
        Word(" Too.", 3.5, 3.5),
    )
    span, silence = Span(0, 4 * SECOND, 0, 4 * SECOND, channel=0), Hypothesis(0, 1, "")
    spans = [span, replace(span, channel=1)]
    transcript = stitch_channels(spans, [Hypothesis(0, 0, "x", words), silence], LEVELS)
    assert transcript.text == "of bondage."


def test_channels_without_word_times_are_merged_by_their_chunks() -> None:
    """The chunks of both channels are segments, in the order of their starts."""
    spans = [
        Span(a * SECOND, b * SECOND, a * SECOND, b * SECOND, channel=c) for a, b, c in ((0, 2, 0), (0, 4, 1), (2, 4, 0))
    ]
    hypotheses = [Hypothesis(0, at, text) for at, text in enumerate(("one", "two", "three"))]
    transcript = stitch_channels(spans, hypotheses, LEVELS)
    assert [(segment.text, segment.start, segment.speaker) for segment in transcript.segments] == [
        ("one", 0.0, "Speaker 1"), ("two", 0.0, "Speaker 2"), ("three", 2.0, "Speaker 1"),
    ]  # fmt: skip
    assert transcript.text == "one two three"


def test_a_run_splits_calls_and_tells_mono(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """Both sides are in one transcript with their names, the length counts once, mono has no speakers, `channel` takes
    one.
    """
    soundfile.write(tmp_path / "call.wav", CALL, SECOND)
    recording("mono.wav", 1.0)
    rows = [
        {"audio_filepath": "call.wav"},
        {"audio_filepath": "mono.wav"},
        {"audio_filepath": "call.wav", "channel": 1},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--engine", "scripted", "--channels", "split", "--channel-names", "agent,customer", "--formats", "rttm")
    done = voxbatch("run", "m.jsonl", "-o", "out", *options, "--report")
    assert done.returncode == 0, done.stderr
    call, mono, alone = map(json.loads, (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines())
    assert mono["warnings"] == ["the recording has one channel: it was transcribed without speakers"]
    assert {word["speaker"] for word in call["words"]} == {"agent", "customer"}
    starts = [word["start"] for word in call["words"]]
    assert starts == sorted(starts)
    assert (call["audio_duration"], alone["audio_duration"]) == (40.0, 40.0)
    assert not any("speaker" in word for line in (mono, alone) for word in line["words"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["audio_s"] == 81.0
    assert " agent <NA>" in (tmp_path / "out" / "rttm" / "call.rttm").read_text()


def test_nothing_but_mono_cannot_be_split(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """Before a model is loaded and anything is written to OUT, by the headers alone; unknown formats may have two."""
    for name in ("a.wav", "b.flac"):
        recording(name, 1.0)
    done = voxbatch("run", ".", "-o", "out", "--engine", "scripted", "--channels", "split")
    message = "--channels split needs two channels or more, and SOURCE has 2 recordings with one; leave it out"
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "c.mp4").write_bytes(b"no header")
    assert voxbatch("run", ".", "-o", "out", "--engine", "scripted", "--channels", "split").returncode == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel_names": ("agent",)}, "--channel-names needs --channels split or --channels auto"),
        ({"channels": "auto", "channel_names": ("a", "a")}, "--channel-names a,a: give each channel a name of its own"),
        ({"channels": "left"}, "--channels 'left': known are split, auto"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], message: str) -> None:
    """The options are checked before anything else."""
    with pytest.raises(ConfigError, match=message):
        RunOptions(**options)  # type: ignore[arg-type]


def test_the_identity_has_the_channels_only_if_they_are_recognised_alone() -> None:
    """An OUT of a version without channels can be continued."""
    assert RunOptions().identity() == {"language": None}
    options = RunOptions(channels="split", channel_names=("a", "b"))
    assert options.identity() == {"language": None, "channels": "split", "channel_names": ("a", "b")}
