"""Tests that the objects of the Python interface show in one short line what they are about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Recorder
from holds import Hold

import voxbatch as vb

pytestmark = pytest.mark.slow


def test_a_run_and_its_results_show_their_counts(recording: Recorder, tmp_path: Path) -> None:
    """The progress, the run, the summary and each result name the counts and the place, in a line of a terminal."""
    recording("in/a.wav", 40.0)
    (tmp_path / "in" / "b.wav").write_text("no audio")
    out = str(tmp_path / "out")
    with vb.start(tmp_path / "in", out, engine="scripted") as run:
        summary = run.wait()
    assert repr(summary).startswith("Summary(1 done, 1 failed, 40.0 s of audio, RTFx ")
    assert repr(run) == f"BackgroundRun({out!r}, {summary!r})"
    assert repr(run.progress).startswith("Progress(2 of 2 items, 1 failed, 2 committed, RTFx ")
    good, bad = sorted(vb.read_results(out), key=lambda result: result.id)
    assert repr(good).startswith("Result('a.wav', Transcript('")
    assert repr(bad).startswith("Result('b.wav', Failure(kind=")
    assert all(len(repr(value)) < 200 for value in (summary, good, run.progress))


def test_a_score_shows_its_rates() -> None:
    """A score shows the error rates of words and of characters, and the number of items."""
    assert repr(vb.score(["a b"], ["a c"], language="en")) == "CorpusScore(WER 50.00%, 1 item)"
    assert repr(vb.score(["他说"], ["他"], language="zh")) == "CorpusScore(CER 50.00%, 1 item)"


def test_a_comparison_shows_the_rates_of_both(tmp_path: Path) -> None:
    """A comparison shows the items in common, both error rates and how many items changed, on one line."""
    texts = ["so it is", "so it was"]
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(json.dumps({"id": "1", "text": texts[0], "pred_text": text, "lang": "en"}) + "\n")
    assert repr(vb.compare(*map(str, paths))) == "Comparison(1 item, WER 0.00% and 33.33%, 1 changed)"


def test_a_transcriber_and_a_stream_show_their_state(recording: Recorder, tmp_path: Path) -> None:
    """A transcriber names its engine and its model; a stream shows its end."""
    hold = Hold(tmp_path / "hold")
    with vb.Transcriber(engine="scripted", engine_options=hold.engine_options) as transcriber:
        assert repr(transcriber) == "Transcriber(engine='scripted', model='count')"
        segments = transcriber.stream(recording("a.wav", 40.0))
        assert repr(segments) == "SegmentStream(in progress)"
        hold.release()
        transcript = segments.result()
        assert repr(segments) == f"SegmentStream({transcript!r})"
        lost = transcriber.stream("gone.mp3")
        with pytest.raises(vb.AudioError):
            lost.result()
        assert repr(lost).startswith("SegmentStream(AudioError('")
    assert repr(transcriber) == "Transcriber(engine='scripted', model='count', closed)"
