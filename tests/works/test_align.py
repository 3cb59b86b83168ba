"""Tests for `voxbatch align`: words get the times at which they are spoken, and what does not fit is told."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import ROOT
from ctc_networks import write_network, write_speech
from numpy.typing import NDArray

import voxbatch
from voxbatch.engines import Feed
from voxbatch.engines.align import aligned as aligned_chunks
from voxbatch.engines.align.english import phones, spoken
from voxbatch.engines.align.pocketsphinx import Pocketsphinx
from voxbatch.engines.align.trellis import States, best_path
from voxbatch.errors import ConfigError, ManifestError
from voxbatch.records import Chunk, ChunkFailure, GivenText, Hypothesis, Samples, Span

HAS_POCKETSPHINX = all(map(importlib.util.find_spec, ("pocketsphinx", "icu4py")))
WORDS = ["the", "quick,", "brown", "Fox", "jumps", "over", "the", "(lazy)", "dog;", "and", "now", "—", "it", "sleeps."]
"""A dash is no word: nothing of it is spoken."""


def ctc_states(target: Sequence[int]) -> States:
    """Return the states of one word of characters, with the blank 0 around each."""
    columns, leaves_out = [0], [False]
    for index, character in enumerate(target):
        columns += [character, 0]
        leaves_out += [index > 0 and character != target[index - 1], False]
    words = [-1, *[0] * (len(columns) - 2), -1]
    return States(np.array(columns), np.array(leaves_out), np.array(words))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_path_is_that_of_the_definition_of_ctc(seed: int) -> None:
    """The path has the highest score of all sequences of characters that collapse to the text: repetitions first, then
    blanks, are removed."""
    numbers = np.random.default_rng(seed)
    target = numbers.integers(1, 3, numbers.integers(1, 4)).tolist()
    scores = numbers.normal(size=(7, 3)).astype(np.float32)
    sequences = [
        sequence
        for sequence in itertools.product(range(3), repeat=7)
        if [character for character, _ in itertools.groupby(sequence) if character] == target
    ]
    best = max(sequences, key=lambda sequence: float(scores[range(7), sequence].sum()))
    states = ctc_states(target)
    path = best_path(scores, states)
    assert tuple(states.columns[path.states]) == best
    assert path.score == pytest.approx(float(scores[range(7), best].sum()), abs=1e-4)


def test_too_few_frames_have_no_path() -> None:
    """Two equal characters need a blank between them, so three frames."""
    with pytest.raises(ValueError, match="2 frames are too few"):
        best_path(np.zeros((2, 2), np.float32), ctc_states([1, 1]))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("Fox,", ["fox"]), ("don’t", ["don't"]), ("well-known", ["well", "known"]), ("—", []), ("Café", ["cafe"]),
        ("Mr.", ["mister"]), ("&", ["and"]),
        *([("21st", ["twenty", "first"]), ("$5", ["five", "dollars"]), ("1984", ["nineteen", "eighty", "four"]),
           ("3.5", ["three", "point", "five"]), ("007", ["zero", "zero", "seven"])] if HAS_POCKETSPHINX else []),
    ],
)  # fmt: skip
def test_words_as_they_are_spoken(written: str, words: list[str]) -> None:
    """Signs are left out, and numbers and abbreviations are written as words."""
    assert spoken(written) == words


def test_unknown_words_are_pronounced_by_rules() -> None:
    """The dictionary comes first, also below an ending; then letters of an abbreviation; then groups of letters."""
    dictionary = {"fox": "F AA K S", "b": "B IY", "c": "S IY"}
    assert phones("fox", dictionary.get) == ["F", "AA", "K", "S"]
    assert phones("fox's", dictionary.get) == ["F", "AA", "K", "S", "Z"]
    assert phones("bc", dictionary.get) == ["B", "IY", "S", "IY"]
    assert phones("shoosh", dictionary.get) == ["SH", "UW", "SH"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a network that hears tones."""
    pytest.importorskip("icu4py", reason="the extra `align` is not installed")
    return write_network(tmp_path_factory.mktemp("models") / "tones")


def write_manifest(folder: Path, **row: Any) -> Path:
    """Write a manifest of one row."""
    path = folder / "m.jsonl"
    path.write_text(json.dumps({"audio_filepath": "a.wav", **row}, ensure_ascii=False) + "\n")
    return path


def aligned(folder: Path, network: Path, text: str) -> dict[str, Any]:
    """Align a text with a.wav, and return the output line."""
    voxbatch.run(write_manifest(folder, text=text), out=folder / "out", task="align", model=str(network), report=False)
    line: dict[str, Any] = json.loads((folder / "out" / "transcripts.jsonl").read_text())
    return line


@pytest.mark.parametrize("repeats", [1, 10], ids=["one window", "several windows"])
def test_words_get_their_times(tmp_path: Path, network: Path, warm_decoders: None, repeats: int) -> None:
    """Each word starts when it is spoken, with its spelling, whatever windows the recording is cut into. The text is
    unchanged, and no WER is measured."""
    tokens = [word for word in WORDS if word != "—"] * repeats
    starts = write_speech(tmp_path / "a.wav", tokens)
    text = "\n".join([" ".join(WORDS)] * repeats)
    line = aligned(tmp_path, network, text)
    assert line["pred_text"] == text
    assert [word["word"].strip().removesuffix(" —") for word in line["words"]] == tokens
    assert [word["start"] for word in line["words"]] == pytest.approx(starts, abs=0.03)
    assert line["warnings"] == []
    assert (line["wer"], "text" in line, line["reference_text"]) == (None, False, text)


def test_text_that_is_not_in_the_audio_is_told(tmp_path: Path, network: Path, warm_decoders: None) -> None:
    """A sentence that nobody says has no times. The words around it keep theirs."""
    starts = write_speech(tmp_path / "a.wav", ["alpha", "bravo", "charlie", "delta"])
    line = aligned(tmp_path, network, "alpha bravo nobody ever said these words charlie delta")
    assert [word["word"].strip() for word in line["words"]] == ["alpha", "bravo", "charlie", "delta"]
    assert [word["start"] for word in line["words"]] == pytest.approx(starts, abs=0.03)
    (warning,) = line["warnings"]
    assert "not in the audio: 5 words of the text, 'nobody ever said these words'" in warning


def test_audio_that_is_not_in_the_text_is_passed_over(tmp_path: Path, network: Path, warm_decoders: None) -> None:
    """Words that the text lacks move no other word."""
    starts = write_speech(tmp_path / "a.wav", ["alpha", "nobody", "wrote", "these", "delta"])
    line = aligned(tmp_path, network, "alpha delta")
    assert [word["start"] for word in line["words"]] == pytest.approx([starts[0], starts[-1]], abs=0.03)


@pytest.mark.parametrize(
    ("row", "options", "error", "message"),
    [
        ({}, {}, ManifestError, "has no `text`"),
        ({"text": "в чащах юга"}, {}, ManifestError, "not of the script Latin"),
        ({"text": "yes"}, {"channels": "split"}, ConfigError, "channels: a text"),
        ({"text": "yes"}, {"model": "/nowhere"}, ConfigError, "no model.onnx there"),
        ({"text": "yes"}, {"engine": "vllm"}, ConfigError, "known are auto, ctc, pocketsphinx"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, network: Path, row: dict[str, str], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A row that cannot be aligned is refused before a model is loaded, and nothing is written."""
    settings = {"model": str(network), **options}
    with pytest.raises(error, match=message):
        voxbatch.run(write_manifest(tmp_path, **row), out=tmp_path / "out", task="align", **settings)
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.skipif(HAS_POCKETSPHINX, reason="the extra `align` is installed")
def test_the_missing_extra_is_named(tmp_path: Path) -> None:
    """The message has the command that installs pocketsphinx."""
    with pytest.raises(ConfigError, match=r"pip install 'voxbatch\[align\]'"):
        voxbatch.run(write_manifest(tmp_path, text="yes"), out=tmp_path / "out", task="align")


@pytest.mark.skipif(not HAS_POCKETSPHINX, reason="the extra `align` is not installed")
def test_times_do_not_depend_on_the_recordings_before() -> None:
    """pocketsphinx scores a recording, and digital silence, the same after any other one. So shards and resumed runs
    give the same bytes.
    """
    paths = sorted((ROOT / "examples" / "recordings").glob("*.flac"))[:2]
    recordings = [*(soundfile.read(path, 48_000, dtype="float32")[0] for path in paths), np.zeros(48_000, np.float32)]
    model = Pocketsphinx()
    try:
        scores = [model.scores(recording) for recording in recordings]
        for index in (1, 2, 0, 2):
            np.testing.assert_array_equal(model.scores(recordings[index]), scores[index])
    finally:
        model.close()


class Fragile:
    """An acoustic model that fails at loud audio."""

    frame_s, jump_cost = 0.02, 1.0

    def scores(self, samples: Samples) -> NDArray[np.float32]:
        if samples.max() > 0.5:
            raise MemoryError
        return np.zeros((len(samples) // 320, 2), np.float32)

    def units(self, word: str, lang: str) -> list[list[int]]:
        return [[1]]

    def states(self, words: Sequence[list[list[int]]]) -> States:
        return ctc_states([1] * len(words))

    def close(self) -> None:
        pass


def test_an_error_fails_its_recording_alone() -> None:
    """Chunks of two recordings come by turns. All chunks of the one at which the model fails have failed from then on,
    and each chunk has one result."""
    feed = Feed(10**9)
    for index in range(3):
        for item in range(2):
            samples = np.full(16_000, 0.9 if (item, index) == (1, 1) else 0.1, np.float32)
            span = Span(16_000 * index, 16_000 * (index + 1), 16_000 * index, 16_000 * (index + 1))
            feed.put(Chunk(item, index, samples, span, given=GivenText("yes no", is_last=index == 2)))
    feed.close()
    results = [
        result for result in aligned_chunks(Fragile(), feed, "en") if isinstance(result, Hypothesis | ChunkFailure)
    ]
    assert sorted((result.item, result.chunk) for result in results) == [(i, n) for i in range(2) for n in range(3)]
    failed = [(result.item, result.chunk) for result in results if isinstance(result, ChunkFailure)]
    assert (1, 1) in failed
    assert (1, 2) in failed
    assert {item for item, _ in failed} == {1}


@pytest.mark.skipif(not HAS_POCKETSPHINX, reason="the extra `align` is not installed")
def test_english_needs_no_model(tmp_path: Path, warm_decoders: None) -> None:
    """The default engine finds all words of real speech, and tells a sentence that is not spoken. They come as
    subtitles, too. A recording without sound has no times."""
    rows = [json.loads(line) for line in (ROOT / "examples" / "manifest.jsonl").read_text().splitlines()][:2]
    first, second = ({**row, "audio_filepath": str(ROOT / "examples" / row["audio_filepath"])} for row in rows)
    begin, end = second["text"].split(" All of ")
    second["text"] = f"{begin} Children threw pebbles at the broken windows every evening before supper. All of {end}"
    soundfile.write(tmp_path / "silence.wav", np.zeros(32_000), 16_000)
    third = {"id": "silence", "audio_filepath": str(tmp_path / "silence.wav"), "text": "Nobody speaks."}
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in (first, second, third)))
    voxbatch.run(manifest, out=tmp_path / "out", task="align", formats=["srt"], report=False)
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert [line["pred_text"] for line in lines] == [row["text"] for row in (first, second, third)]
    assert [word["word"].strip() for word in lines[0]["words"]] == first["text"].split()
    assert lines[0]["warnings"] == []
    assert 2 < next(word["start"] for word in lines[0]["words"] if word["word"].strip() == "The") < 4
    (warning,) = lines[1]["warnings"]
    assert "'Children threw pebbles at the broken windows every evening before supper.'" in warning
    assert (lines[2]["words"], lines[2]["warnings"][-1]) == ([], "not in the audio: no word of the text")
    subtitles = (tmp_path / "out" / "srt" / "weather.srt").read_text()
    assert "Here is the weather for the north coast." in subtitles.replace("\n", " ")
