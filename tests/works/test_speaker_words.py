"""Tests for the speakers of words: each word gets the speaker of its turn, and a run asks for that before it loads."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import ManifestWriter, Voxbatch
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, SpeakerCount, Transcript, Turn, Word
from voxbatch.text.speakers import NEAREST_S, with_speakers
from voxbatch.works.speakers.options import speaker_count


def words(*spans: tuple[str, float, float]) -> Transcript:
    """Return a transcript of words with their times."""
    return Transcript("x", tuple(Word(f" {text}", start, end) for text, start, end in spans))


def test_words_get_the_speaker_that_overlaps_them_most() -> None:
    """Turns of one speaker add up; a word beside all turns gets the nearest one within half a second, or nobody."""
    turns = [Turn(1.0, 2.0, 4), Turn(1.8, 3.0, 0), Turn(2.1, 2.3, 4), Turn(2.5, 2.9, 4), Turn(9.0, 10.0, 1)]
    spoken = words(
        ("early.", 0.0, 0.4), ("Hello", 0.5, 0.9), ("there", 1.1, 1.95), ("yes", 1.8, 2.2), ("two", 2.1, 3.0),
        ("far", 5.0, 6.0), ("near", 10.4, 10.4),
    )  # fmt: skip
    named = [replace(turn, name="Ann") if turn.speaker == 0 else turn for turn in turns]
    assert [word.speaker for word in with_speakers(spoken, named).words] == [
        None, "Speaker 1", "Speaker 1", "Ann", "Ann", None, "Speaker 3",
    ]  # fmt: skip
    transcript = with_speakers(spoken, turns)
    assert [(word.text.strip(), word.speaker) for word in transcript.words] == [
        ("early.", None), ("Hello", "Speaker 1"), ("there", "Speaker 1"), ("yes", "Speaker 2"), ("two", "Speaker 2"),
        ("far", None), ("near", "Speaker 3"),
    ]  # fmt: skip
    assert [(segment.text, segment.speaker) for segment in transcript.segments] == [
        ("early.", None), ("Hello there", "Speaker 1"), ("yes two", "Speaker 2"), ("far", None), ("near", "Speaker 3"),
    ]  # fmt: skip
    assert transcript.text == "early. Hello there yes two far near"


@pytest.mark.parametrize("shards", [2, pytest.param(8, marks=pytest.mark.long)])
def test_speakers_are_the_same_in_shards_and_after_kills(
    corpus: Path, speaker_networks: Path, tmp_path: Path, voxbatch: Voxbatch, shards: int
) -> None:
    """A telephone call has two speakers, and a recording with a side in each channel too. Shards that are each killed
    after their first result, and resumed, write the bytes of one process.
    """
    folder = corpus / "conversations"
    call, rate = soundfile.read(folder / "sample.flac", dtype="float32", frames=15 * SAMPLING_RATE)
    is_left = np.arange(len(call)) // (4 * rate) % 2 == 0
    soundfile.write(tmp_path / "sides.wav", np.stack([call * is_left, call * ~is_left], axis=1), rate)
    rows = [
        {"audio_filepath": str(folder / "sample.flac")},
        {"audio_filepath": str(folder / "trn00.flac"), "duration": 15},
        {"audio_filepath": "sides.wav"},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--engine", "scripted", "--part-items", "1", "--channels", "auto", "--speakers", "auto")
    command = ("run", "m.jsonl", *options, "--speaker-model", speaker_networks)
    done = voxbatch(*command, "-o", "one")
    assert done.returncode == 0, done.stderr
    codes = [
        voxbatch(*command, "-o", "many", "--shard", f"{shard}/{shards}", "--engine-option", f"kill_after={after}")
        for shard in range(shards)
        for after in (1, -1)
    ]
    assert {done.returncode for done in codes[1::2]} == {0}
    assert -signal.SIGKILL in {done.returncode for done in codes[::2]}
    lines = (tmp_path / "one" / "transcripts.jsonl").read_text()
    assert (tmp_path / "many" / "transcripts.jsonl").read_text() == lines
    for line in (lines.splitlines()[0], lines.splitlines()[2]):
        assert {segment.get("speaker") for segment in json.loads(line)["segments"]} >= {"Speaker 1", "Speaker 2"}


times = st.integers(0, 60).map(lambda tenths: tenths / 10)
spans = st.tuples(times, times).map(sorted)


@given(st.lists(spans, max_size=12), st.lists(st.tuples(spans, st.integers(0, 2)), max_size=8))
def test_the_speaker_of_a_word_is_that_of_a_plain_search(
    spoken: list[Sequence[float]], talked: list[tuple[Sequence[float], int]]
) -> None:
    """Each word has the speaker that a search over all turns finds, up to the names, and ties."""
    turns = sorted((Turn(start, end, speaker) for (start, end), speaker in talked), key=lambda turn: turn.start)
    transcript = with_speakers(words(*(("w", start, end) for start, end in sorted(map(tuple, spoken)))), turns)
    names: dict[str, set[int]] = {}
    for word in transcript.words:
        overlaps, distances = dict.fromkeys((0, 1, 2), 0.0), dict.fromkeys((0, 1, 2), 99.0)
        for turn in turns:
            overlap = min(word.end, turn.end) - max(word.start, turn.start)
            overlaps[turn.speaker] += max(0.0, overlap)
            distances[turn.speaker] = min(distances[turn.speaker], -overlap)
        most, nearest = max(overlaps.values()), min(distances.values())
        best = {speaker for speaker in overlaps if overlaps[speaker] >= most - 1e-9} if most > 1e-9 else set()
        best |= {speaker for speaker in distances if distances[speaker] <= nearest + 1e-9} if most <= 1e-9 else set()
        if most > 1e-9 or abs(nearest - NEAREST_S) > 1e-9:  # the last digit of a sum may tip the scale at the limit
            assert (word.speaker is None) == (most <= 1e-9 and nearest > NEAREST_S)
        if word.speaker is not None:
            names[word.speaker] = names.get(word.speaker, {0, 1, 2}) & best
    assert all(names.values())
    assert list(names) == [f"Speaker {number}" for number in range(1, 1 + len(names))]


@pytest.mark.parametrize(("text", "limits"), [("auto", (1, None)), ("2", (2, 2)), ("2-4", (2, 4)), ("3-3", (3, 3))])
def test_numbers_of_speakers(text: str, limits: tuple[int, int | None]) -> None:
    """A number is exact, and a range has both ends."""
    assert speaker_count(text) == SpeakerCount(*limits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speakers": "0"}, "--speakers 0: the number must be at least 1"),
        ({"speakers": "4-2"}, "--speakers 4-2: the number must be at least 1, and the first one not above the second"),
        ({"speakers": "two"}, "--speakers 'two': give a number, two numbers such as 2-4, or auto"),
        ({"speakers": "2", "channels": "split"}, "--channels split makes each channel a speaker"),
        ({"speaker_model": "x"}, "--speaker-model needs --speakers"),
        ({"speaker_names": "x"}, "--speaker-names needs --speakers"),
    ],
)
def test_contradictions_are_refused(options: dict[str, str], message: str) -> None:
    """The options are checked before anything else."""
    with pytest.raises(ConfigError, match=message):
        RunOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine-option", "words=false"), "--speakers needs the times of words"),
        (("--speaker-model", "./nothing"), "nothing"),
    ],
)
def test_a_run_that_cannot_tell_speakers_apart_stops_before_it_loads(
    voxbatch: Voxbatch, manifest: ManifestWriter, options: tuple[str, ...], message: str
) -> None:
    """--speakers may stand before SOURCE without a number. Nothing is written to OUT."""
    path = manifest(1.0)
    done = voxbatch("run", "--speakers", path, "-o", "out", "--engine", "scripted", *options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (path.parent / "out").exists()
