"""Tests for the accuracy of word times: differences by hand, from files, in a run, and of real speech."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import ManifestWriter, Voxbatch
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.analysis.score import score_place
from voxbatch.output.stored_json import record_of
from voxbatch.scoring.records import TimeAccuracy
from voxbatch.scoring.word_times import TimedWord, WordTimes, timed_words

MILLISECONDS = st.integers(0, 60_000)


def spoken(words: str, seconds: float = 0.0) -> list[TimedWord]:
    """Return words that take 0.4 s every 0.5 s."""
    return [TimedWord(word, 0.5 * i + seconds, 0.5 * i + 0.4 + seconds) for i, word in enumerate(words.split())]


def accuracy(reference: list[TimedWord], hypothesis: list[TimedWord]) -> TimeAccuracy:
    times = WordTimes()
    times.add(reference, hypothesis, "en")
    found = times.accuracy()
    assert found is not None
    return found


def test_differences_of_words_that_match() -> None:
    """The times of equal words are compared, whatever their case and punctuation; other words only lower the share."""
    heard = [TimedWord("The", 0.02, 0.4), TimedWord("dog", 9.0, 9.9), TimedWord("Sat,", 0.9, 1.5)]
    assert accuracy(spoken("the cat sat down"), heard).to_dict() == {
        "reference_words": 4,
        "matched": 2,
        "matched_share": 0.5,
        "start": {"mean": 0.06, "median": 0.02, "p95": 0.1},
        "end": {"mean": 0.05, "median": 0.0, "p95": 0.1},
    }


@given(st.lists(st.tuples(MILLISECONDS, MILLISECONDS), min_size=1, max_size=50))
def test_figures_are_those_of_the_plain_list(shifts: list[tuple[int, int]]) -> None:
    """Mean and percentiles equal those of the list of all differences."""
    reference = [TimedWord(f"w{i}", float(i), i + 0.5) for i in range(len(shifts))]
    heard = [
        TimedWord(word.text, word.start + a / 1000, word.end - b / 1000)
        for word, (a, b) in zip(reference, shifts, strict=True)
    ]
    found = accuracy(reference, heard)
    for part, differences in ((found.start, [a for a, _ in shifts]), (found.end, [b for _, b in shifts])):
        assert part is not None
        ranked = sorted(differences)
        assert part.mean == pytest.approx(statistics.fmean(differences) / 1000, abs=1e-6)
        assert part.median == ranked[(len(ranked) + 1) // 2 - 1] / 1000
        assert part.p95 == ranked[-(-95 * len(ranked) // 100) - 1] / 1000
    assert record_of(json.loads(json.dumps(found.to_dict())), TimeAccuracy) == found


def test_no_reference_times_no_figures() -> None:
    """There is no accuracy without reference words, and there are no differences without a match."""
    assert WordTimes().accuracy() is None
    found = accuracy(spoken("a b"), [])
    assert (found.matched, found.start, found.end) == (0, None, None)


@pytest.mark.parametrize(
    "value", [None, 5, "words", {}, [1, None], [{"word": "a"}], [{"word": 1, "start": 0, "end": 1}]]
)
def test_other_values_have_no_words(value: object) -> None:
    """A row's `words` of another kind have no times."""
    assert timed_words(value) == []


def rows_of(words: list[TimedWord]) -> list[dict[str, Any]]:
    return [{"word": word.text, "start": word.start, "end": word.end} for word in words]


def test_times_from_files(tmp_path: Path) -> None:
    """A ctm against a ctm, and rows against the `words` of a manifest, give the same figures."""
    reference, heard = spoken("the cat sat"), spoken("the cat at", 0.25)
    for name, words in (("r.ctm", reference), ("h.ctm", heard)):
        lines = [f"talk 1 {word.start:.2f} {word.end - word.start:.2f} {word.text}\n" for word in words]
        (tmp_path / name).write_text("".join(lines))
    (tmp_path / "m.jsonl").write_text(json.dumps({"id": "talk", "text": "the cat sat", "words": rows_of(reference)}))
    (tmp_path / "h.jsonl").write_text(json.dumps({"id": "talk", "pred_text": "the cat at", "words": rows_of(heard)}))
    for hypotheses, references in (("h.ctm", "r.ctm"), ("h.jsonl", "m.jsonl"), ("h.jsonl", "r.ctm")):
        found = score_place(str(tmp_path / hypotheses), str(tmp_path / references), "fr").to_dict()["word_times"]
        assert (found["reference_words"], found["matched"]) == (3, 2)
        assert found["start"] == found["end"] == {"mean": 0.25, "median": 0.25, "p95": 0.25}


def test_a_run_keeps_the_times_of_its_manifest(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The summary of a run has the accuracy, `score` gives the same, failed items lower the share of matched words, and
    a run over the output lines finds the reference words again.
    """
    words = rows_of(spoken("w0 w1 w2", 0.1))
    manifest(1.5, None, text="w0 w1 w2", lang="fr", words=words)
    scripted = ("--engine", "scripted", "--log-format", "text")
    assert voxbatch("run", "m.jsonl", "-o", "out", *scripted).returncode == 3
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["word_times"]
    assert (found["reference_words"], found["matched"]) == (6, 3)
    assert found["start"]["mean"] == pytest.approx(0.1)
    assert json.loads(voxbatch("score", "out", "--json").stdout)["word_times"] == found
    (line,) = map(json.loads, (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines())
    assert (line["text_words"], len(line["words"])) == (words, 3)
    assert voxbatch("run", "out/transcripts.jsonl", "-o", "again", "--allow-outside", *scripted).returncode == 0
    again = json.loads((tmp_path / "again" / "summary.json").read_text())["word_times"]
    assert (again["matched"], again["start"]) == (3, found["start"])


def test_times_of_real_digits(corpus: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Spoken digits, joined with silence between them, have known times: Whisper's are within a quarter of a second for
    most words.
    """
    pytest.importorskip("faster_whisper")
    rate, at, samples, words = 8000, 1.0, [np.zeros(8000)], []
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    for row in [row for row in rows if row["audio_filepath"].startswith("fsdd/")]:
        sound, found_rate = soundfile.read(corpus / "speech" / row["audio_filepath"])
        assert found_rate == rate
        loud = np.flatnonzero(np.abs(sound) > 0.05 * np.abs(sound).max())
        sound = sound[loud[0] : loud[-1]]
        words.append({"word": row["text"], "start": at, "end": at + len(sound) / rate})
        samples += [sound, np.zeros(rate // 2)]
        at += len(sound) / rate + 0.5
    soundfile.write(tmp_path / "digits.wav", np.concatenate(samples), rate)
    text = " ".join(word["word"] for word in words)
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": "digits.wav", "text": text, "words": words}))
    assert voxbatch("run", "m.jsonl", "-o", "out", "--engine", "faster-whisper").returncode == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["word_times"]
    assert found["reference_words"] == len(words)
    assert found["matched_share"] > 0.8
    assert found["start"]["median"] < 0.25
