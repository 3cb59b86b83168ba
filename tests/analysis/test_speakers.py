"""Tests for the cpWER: a case by hand, and the figures of meeteval's own readers and functions on the same files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import Voxbatch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from voxbatch.analysis.score import score_place
from voxbatch.scoring.corpus import ScoreOptions
from voxbatch.scoring.speakers import assignment

REFERENCE = "s1 1 A 0 1 <NA> one two three\ns1 1 B 1 2 <NA> four five\ns2 1 A 0 1 <NA> six seven\ns3 1 C 0 1 eight\n"
HYPOTHESIS = "s1 1 x 1 2 four five\ns1 1 y 0 1 one too three\ns1 1 z 2 3 nine\ns2 1 x 0 1 six\n"
BY_HAND = {
    "cpwer": 0.5,  # 4 errors in 8 words
    "errors": 4,
    "substitutions": 1,  # too
    "insertions": 1,  # z says "nine", and no speaker is left
    "deletions": 2,  # "seven", and all that C said
    "reference_words": 8,
    "sessions": 3,
    "missed_speakers": 1,  # C, whose session has no hypothesis
    "false_alarm_speakers": 1,
}


def speakers(hypotheses: Path, references: Path) -> Any:
    return score_place(str(hypotheses), str(references), "fr").to_dict().get("speakers")


def test_speakers_by_hand(tmp_path: Path) -> None:
    """Speakers are assigned so that the errors are fewest, whatever their names; the rest is deleted or inserted."""
    (tmp_path / "r.stm").write_text(REFERENCE)
    (tmp_path / "h.stm").write_text(HYPOTHESIS)
    assert speakers(tmp_path / "h.stm", tmp_path / "r.stm") == BY_HAND


def rows(text: str, *, utterances: bool, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, line in enumerate(text.replace("<NA> ", "").splitlines()):
        session, _, speaker, start, end, words = line.split(None, 5)
        if utterances:
            found.append({"id": f"{session}-{number}", "session": session, "speaker": speaker, key: words})
        else:
            times = {"start_time": float(start), "end_time": float(end)}
            found.append({"session_id": session, "speaker": speaker, "words": words, **times})
    return found


def test_speakers_of_rows(tmp_path: Path) -> None:
    """SegLST (a JSON array of utterances) and WhisperX's segments give the figures of the same stm."""
    (tmp_path / "r.json").write_text(json.dumps(rows(REFERENCE, utterances=False, key="")))
    (tmp_path / "h.json").write_text(json.dumps(rows(HYPOTHESIS, utterances=False, key="")))
    assert speakers(tmp_path / "h.json", tmp_path / "r.json") == BY_HAND
    (tmp_path / "whisperx").mkdir()
    for session in ("s1", "s2"):
        segments = [
            {"start": row["start_time"], "end": row["end_time"], "text": f" {row['words']}", "speaker": row["speaker"]}
            for row in rows(HYPOTHESIS, utterances=False, key="")
            if row["session_id"] == session
        ]
        (tmp_path / "whisperx" / f"{session}.json").write_text(json.dumps({"segments": segments, "language": "fr"}))
    assert speakers(tmp_path / "whisperx", tmp_path / "r.json") == BY_HAND


def test_speakers_of_utterances_that_match(tmp_path: Path) -> None:
    """Rows of the same utterances, with a session and a speaker each, are joined by speaker."""
    utterances = rows(REFERENCE, utterances=True, key="text")
    heard = [
        {"id": row["id"], "speaker": row["speaker"].lower(), "pred_text": row["text"].replace("two", "too")}
        for row in utterances
    ]
    heard[1]["speaker"] = heard[0]["speaker"]  # a wrong speaker: two words deleted, and inserted
    for name, content in (("r.jsonl", utterances), ("h.jsonl", heard)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    found = speakers(tmp_path / "h.jsonl", tmp_path / "r.jsonl")
    assert (found["errors"], found["reference_words"], found["sessions"]) == (1 + 2 + 2, 8, 3)


@pytest.mark.parametrize("seed", range(5))
def test_meeteval_gives_the_same_figures(tmp_path: Path, seed: int) -> None:
    """meeteval reads the same two stm files (without labels, which it takes for words), and counts the same errors.

    It has no wheels, and needs a compiler: requirements-optional.txt.
    """
    meeteval = pytest.importorskip("meeteval", reason="meeteval is not installed")
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(12)]
    lines: dict[str, list[str]] = {"r": [], "h": []}
    for session in range(20):
        for name, texts in lines.items():
            names = [f"{name}{i}" for i in range(rng.randint(1, 4))]
            for turn in range(rng.randint(4, 12)):
                words = " ".join(rng.choices(vocabulary, k=rng.randint(1, 8)))
                texts.append(f"rec{session:02} 1 {rng.choice(names)} {turn * 5} {turn * 5 + 4} {words}\n")
    for name, texts in lines.items():
        (tmp_path / f"{name}.stm").write_text("".join(texts))
    theirs = sum(
        meeteval.wer.cpwer(
            meeteval.io.load(str(tmp_path / "r.stm")), meeteval.io.load(str(tmp_path / "h.stm"))
        ).values(),
        start=meeteval.wer.CPErrorRate.zero(),
    )
    ours = score_place(str(tmp_path / "h.stm"), str(tmp_path / "r.stm"), options=ScoreOptions()).to_dict()["speakers"]
    assert (ours["errors"], ours["reference_words"]) == (theirs.errors, theirs.length)
    assert (ours["missed_speakers"], ours["false_alarm_speakers"]) == (theirs.missed_speaker, theirs.falarm_speaker)
    assert ours["cpwer"] == pytest.approx(theirs.error_rate, abs=1e-6)


def test_texts_without_speakers_have_no_cpwer(tmp_path: Path) -> None:
    """Speakers of the reference alone say nothing."""
    (tmp_path / "r.stm").write_text(REFERENCE)
    (tmp_path / "h.trn").write_text("one two (s1)\n")
    assert speakers(tmp_path / "h.trn", tmp_path / "r.stm") is None


@given(
    st.integers(0, 8).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_the_assignment_is_as_cheap_as_that_of_scipy(costs: list[list[int]]) -> None:
    """Each row has a column of its own, and the sum is the least."""
    columns = assignment(costs)
    assert sorted(columns) == list(range(len(costs)))
    best = sum(np.array(costs)[linear_sum_assignment(costs)]) if costs else 0
    assert sum(row[column] for row, column in zip(costs, columns, strict=True)) == best


def test_a_run_scores_the_speakers_of_its_manifest(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The summary, the last lines, the report and `score` have the cpWER of the manifest's segments. What a failed item
    should have is missing, and a run over the output lines finds the segments again."""
    syllables = 0.1 * (1 + np.sin(np.arange(24_000)[:, None] / 640)) ** 2  # noise as loud at all times is no voice
    soundfile.write(tmp_path / "a.wav", syllables * np.random.default_rng(1).normal(size=(24_000, 2)), 16_000)
    segments = [{"speaker": "Ann", "text": "w0 w1"}, {"speaker": "Bob", "text": "w0 w1 w2 w3"}]
    rows = [
        {"audio_filepath": "a.wav", "lang": "fr", "text": "w0 w0 w1 w1 w2 w3", "segments": segments},
        {"audio_filepath": "gone.wav", "lang": "fr", "text": "w0", "segments": [{"speaker": "Ann", "text": "w0"}]},
        {"audio_filepath": "a.wav", "lang": "fr", "id": "without"},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--engine", "scripted", "--channels", "split", "--log-format", "text")
    done = voxbatch("run", "m.jsonl", "-o", "out", *options)
    assert done.returncode == 3, done.stderr
    assert "cpWER 42.86%, 3 of 7 words in 2 sessions; speakers: 1 missed, 0 too many" in done.stdout
    errors = json.loads((tmp_path / "out" / "summary.json").read_text())["speakers"]
    assert errors == {
        "cpwer": pytest.approx(3 / 7, abs=1e-6), "errors": 3, "substitutions": 0, "insertions": 1, "deletions": 2,
        "reference_words": 7, "sessions": 2, "missed_speakers": 1, "false_alarm_speakers": 0,
    }  # fmt: skip
    assert "<h2>cpWER</h2>" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads(voxbatch("score", "out", "--json").stdout)["speakers"] == errors
    line = json.loads((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()[0])
    assert line["text_segments"] == segments
    lines = ("run", "out/transcripts.jsonl", "-o", "again", "--allow-outside", "--limit", "1")
    assert voxbatch(*lines, *options).returncode == 0
    again = json.loads((tmp_path / "again" / "summary.json").read_text())["speakers"]
    assert (again["errors"], again["reference_words"]) == (2, 6)


def test_many_speakers(tmp_path: Path) -> None:
    """A session of thirty speakers is scored: the number of assignments is not a limit."""
    for name in "rh":
        order = range(30) if name == "r" else reversed(range(30))
        (tmp_path / f"{name}.stm").write_text("".join(f"s1 1 {name}{i} {i} {i + 1} w{i}\n" for i in order))
    found = speakers(tmp_path / "h.stm", tmp_path / "r.stm")
    assert (found["errors"], found["reference_words"]) == (0, 30)
