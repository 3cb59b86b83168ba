"""Tests for the calibration of confidences: known probabilities are found, and the file is checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Voxbatch
from outputs import owned

from voxbatch.analysis.calibrate import calibrate_run, write_calibration
from voxbatch.errors import ConfigError
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.lines import transcript_line
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import Item, Transcript, Word
from voxbatch.scoring.calibration import (
    CalibrationFile,
    ConfidenceBin,
    Estimator,
    ScoredItem,
    calibrate,
    read_calibration,
    reliability,
)
from voxbatch.storage import Stores


def scored(count: int, seed: int, words: int = 20, speakers: int = 10) -> list[ScoredItem]:
    """Return items whose words are right with the probability sigmoid(0.7 logit + 0.3 mean logit - 0.5). For each four
    words there is a missing one in the reference with a tenth of the wrong words' number.
    """
    random, items = np.random.RandomState(seed), []
    for index in range(count):
        logits = random.normal(random.normal(2.0, 1.0), 1.5, words)
        confidences = np.round(1 / (1 + np.exp(-logits)), 3)
        clipped = np.clip(confidences, 0.001, 0.999)
        seen = np.log(clipped / (1 - clipped))
        p = 1 / (1 + np.exp(-(0.7 * seen + 0.3 * seen.mean() - 0.5)))
        right = random.random_sample(words) < p
        missing = random.binomial(words - right.sum(), 0.2)
        errors, length = int(words - right.sum() + missing), int(words + missing)
        items.append(
            ScoredItem(tuple(confidences.tolist()), tuple(right.tolist()), errors, length, f"s{index % speakers}")
        )
    return items


MODEL: Any = ("scripted", "count", {"words": True}, ["en"])


@pytest.mark.slow
def test_known_probabilities_are_found() -> None:
    """The fit finds the slopes that made the data, and its probabilities are calibrated on other data (the expected
    calibration error in 10 bins is small).
    """
    made = calibrate(scored(1500, 1), *MODEL)
    assert (made.fit.intercept, made.fit.word, made.fit.item) == pytest.approx((-0.5, 0.7, 0.3), abs=0.06)
    others = scored(500, 2)
    p = np.concatenate([made.probabilities(item.confidences) for item in others])
    right = np.array([each for item in others for each in item.right])
    bins = np.minimum((p * 10).astype(int), 9)
    parts = [(bins == b) for b in range(10) if (bins == b).any()]
    assert sum(part.mean() * abs(p[part].mean() - right[part].mean()) for part in parts) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_wer_of_other_items_is_estimated(seed: int) -> None:
    """The estimate for items without references is near their true WER, and the interval contains it."""
    made = calibrate(scored(300, 10 + seed), *MODEL)
    others = scored(300, 20 + seed)
    estimator = Estimator(CalibrationFile("c.json", made))
    for item in others:
        estimator.add("en", item.confidences)
    found = estimator.estimate()
    assert found is not None
    true = sum(item.errors for item in others) / sum(item.length for item in others)
    assert found.wer == pytest.approx(true, rel=0.1)
    assert found.interval[0] <= true <= found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.5 * true


def test_the_calibrated_items_have_their_own_wer() -> None:
    """On the items of the calibration itself, the estimate is the true WER: the two ratios are theirs."""
    items = scored(100, 3)
    made = calibrate(items, *MODEL)
    estimator = Estimator(CalibrationFile("c.json", made))
    for item in items:
        estimator.add("en", item.confidences)
    estimator.add("en", [])  # an item without words
    estimator.add("de", [0.5])  # another language
    estimator.add("en", None)  # an engine without confidences
    found = estimator.estimate()
    assert found is not None
    assert found.wer == pytest.approx(made.wer, abs=1e-6)
    assert (found.items, found.left_out) == (101, 2)
    assert Estimator(CalibrationFile("c.json", made)).estimate() is None


@pytest.mark.slow
def test_errors_that_come_together_widen_the_interval() -> None:
    """If the items of a speaker are all wrong or all right together, the dispersion and the interval grow."""
    items = scored(200, 4)
    bad = [
        ScoredItem(each.confidences, (False,) * 20, 20, 20, each.cluster) if each.cluster == "s1" else each
        for each in items
    ]
    assert calibrate(items, *MODEL).dispersion < 3
    assert calibrate(bad, *MODEL).dispersion > 20


def test_a_reliability_table_by_hand() -> None:
    """Each word is in the row of its confidence, with the confidence 1 in the last one; a word that no count sees is
    left out."""
    items = [
        ScoredItem((0.4, 0.6, 1.0), (True, False, True), 1, 3, "a"),
        ScoredItem((0.6, 0.2), (True, None), 0, 1, "b"),
    ]
    rows = [ConfidenceBin(0.0, 0.5, 1, 0.4, 1), ConfidenceBin(0.5, 0.7, 2, 0.6, 1), ConfidenceBin(0.95, 1.0, 1, 1.0, 1)]
    assert reliability(items) == tuple(rows)
    assert reliability([]) == ()


def test_too_little_is_refused() -> None:
    """With few items or few wrong words there is no calibration."""
    with pytest.raises(ConfigError, match=r"10 items with \d+ wrong words are too few for a calibration; it takes at"):
        calibrate(scored(10, 5), *MODEL)
    with pytest.raises(ConfigError, match="0 items with 0 wrong words are too few"):
        calibrate([], *MODEL)
    right = [ScoredItem((0.9,) * 5, (True,) * 5, 0, 5, str(i)) for i in range(50)]
    with pytest.raises(ConfigError, match="50 items with 0 wrong words"):
        calibrate(right, *MODEL)


# ── files and commands ────────────────────────────────────────────────────────────────────────────────────────────────


def commit(out: Path, items: list[ScoredItem], text: bool = True, **row: Any) -> None:
    """Make an OUT with a transcript for each item: a right word is in the reference, a wrong one is not."""
    out.mkdir()
    store = Stores().out(str(out))
    entries = []
    for index, item in enumerate(items):
        texts = [f"{'w' if is_right else 'x'}o{chr(97 + k)}q" for k, is_right in enumerate(item.right)]
        words = tuple(
            Word(f" {each}", k, k + 1.0, c) for k, (each, c) in enumerate(zip(texts, item.confidences, strict=False))
        )
        reference = " ".join(f"wo{chr(97 + k)}q" for k in range(len(texts))) if text else None
        line = {"audio_filepath": f"/{index}.wav", "speaker": item.cluster, **row}
        given = Item(index, index + 1, str(index), "/x", text=reference, lang="en", row=json.dumps(line).encode())
        heard = Transcript(" ".join(texts), words, audio_duration=20.0)
        own = transcript_line(given, heard, "scripted", "count", "en", None)
        own |= {"text": reference} if text else {}
        entries.append(PartEntry(index, "transcript", json_bytes(own)))
    Checkpoint(store, owned(store, items=len(items))).commit(entries, 1.0)


@pytest.mark.slow
def test_a_run_is_calibrated_and_another_one_estimated(tmp_path: Path) -> None:
    """From OUT to OUT: the file of a scored run estimates the WER of a run without references; a second merge without
    the option keeps the estimate.
    """
    commit(tmp_path / "scored", scored(100, 6))
    commit(tmp_path / "blind", scored(100, 7), text=False)
    made = calibrate_run(Stores().out(str(tmp_path / "scored")), "speaker")
    assert (made.items, made.clusters, made.words, made.languages) == (100, 10, 2000, ("en",))
    path = str(tmp_path / "c.json")
    write_calibration(made, path)
    assert read_calibration(path).calibration == made
    summary = merge_again(Stores().out(str(tmp_path / "blind")), calibration=path)
    true = np.mean([[not each for each in item.right] for item in scored(100, 7)])
    assert summary.estimated_wer is not None
    assert summary.score is None
    assert summary.estimated_wer.wer == pytest.approx(true, rel=0.15)
    stored = json.loads((tmp_path / "blind" / "summary.json").read_text())["estimated_wer"]
    assert stored == json.loads(json_bytes(asdict(summary.estimated_wer)))
    assert merge_again(Stores().out(str(tmp_path / "blind"))).estimated_wer == summary.estimated_wer


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return the file of a calibration."""
    write_calibration(calibrate(scored(100, 8), *MODEL), str(tmp_path / "c.json"))
    return tmp_path / "c.json"


DAMAGE: dict[str, Any] = {
    "cut off": lambda text: text[:-30],
    "not JSON": lambda text: "WER 5 %",
    "a list": lambda text: "[1]",
    "another version": lambda text: text.replace('"version": 1', '"version": 9'),
    "a number too few": lambda text: text.replace('"errors_per_wrong"', '"errors"'),
    "infinite": lambda text: text.replace('"dispersion": ', '"dispersion": 1e999, "d": '),
    "empty": lambda text: "",
    "too large": lambda text: text + " " * (1 << 20),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused(made: Path, kind: str) -> None:
    """Everything that is no calibration is an error with the remedy."""
    made.write_text(DAMAGE[kind](made.read_text()))
    with pytest.raises(ConfigError, match=r"c\.json: not a calibration, damaged, or of another version .* -o FILE"):
        read_calibration(str(made))


@pytest.mark.slow
def test_a_calibration_of_another_model_is_refused(made: Path) -> None:
    """The engine, the model and the options that decide the text must be those of the run. A folder of a model may have
    another name if its files are the same.
    """
    found = read_calibration(str(made)).calibration
    found.refuse_other_model("c.json", "scripted", "count", {"words": True})
    for engine, model, decoding in (
        ("vllm", "count", {"words": True}),
        ("scripted", "other", {"words": True}),
        ("scripted", "count", {"words": False}),
        ("scripted", "count", {"words": True, "beam_size": 5}),
    ):
        with pytest.raises(
            ConfigError, match=r"calibrates scripted, model count.*; this run has .*voxbatch calibrate OUT"
        ):
            found.refuse_other_model("c.json", engine, model, decoding)
    files = {"model_files": "0f"}
    folder = calibrate(scored(100, 8), "faster-whisper", "/models/base", files, ["en"])
    folder.refuse_other_model("c.json", "faster-whisper", "./base", files)


def test_the_command_refuses_what_it_cannot_calibrate(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A place without a run, without references, without confidences or with too few errors: exit code 2, no file."""
    commit(tmp_path / "blind", scored(30, 7), text=False)
    commit(tmp_path / "few", scored(3, 7))
    commit(tmp_path / "mute", [ScoredItem((None,) * 9, (False,) * 9, 9, 9, "s") for _ in range(30)])  # type: ignore[arg-type]
    (tmp_path / "nothing").mkdir()
    for out, message in (
        ("nothing", "no run was started there"),
        ("blind", "blind: no transcript has a reference; run a manifest whose lines have `text`"),
        ("mute", "has word confidences, so there is nothing to calibrate (engine scripted, model count)"),
        ("few", "few: 3 items with"),
    ):
        done = voxbatch("calibrate", out)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert message in done.stderr
    assert "few: no item has the key 'room'" in voxbatch("calibrate", "few", "--cluster", "room").stderr
    assert not (tmp_path / "calibration.json").exists()


def test_commands_from_a_scored_run_to_an_estimate(voxbatch: Voxbatch, tmp_path: Path, made: Path) -> None:
    """The commands of the page, one after the other. A run of another model is refused before OUT exists."""
    commit(tmp_path / "scored", scored(100, 6))
    commit(tmp_path / "blind", scored(100, 7), text=False)
    done = voxbatch("calibrate", "scored", "-o", "new/c.json", "--cluster", "speaker")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100 items in 10 clusters, 2,000 words of which ")
    shown = [line.split() for line in done.stdout.splitlines() if " to " in line]
    stored = json.loads((tmp_path / "new/c.json").read_text())["reliability"]
    assert [row[-3].replace(",", "") for row in shown] == [str(row["words"]) for row in stored]
    assert sum(row["words"] for row in stored) == 2000
    merged = voxbatch("merge", "blind", "--calibration", "new/c.json")
    assert "\nestimated WER " in merged.stdout
    other = voxbatch("run", ROOT / "examples" / "recordings" / "weather.flac", "-o", "out", "--calibration", made)
    assert other.returncode == 2
    assert f"--calibration {made} calibrates scripted, model count" in other.stderr
    assert not (tmp_path / "out").exists()
    missing = voxbatch("run", ROOT / "examples" / "recordings" / "weather.flac", "--calibration", "gone.json")
    assert (missing.returncode, "'gone.json' does not exist" in missing.stderr) == (2, True)


def test_a_run_estimates_its_wer(voxbatch: Voxbatch, tmp_path: Path, made: Path) -> None:
    """`run --calibration` with a real model: the summary and the last lines have the estimate."""
    recording = ROOT / "examples" / "recordings" / "weather.flac"
    assert voxbatch("run", recording, "-o", "first").returncode == 0
    engine = json.loads((tmp_path / "first" / "summary.json").read_text())["engine"]
    content = json.loads(made.read_text())
    content |= {"engine": engine["name"], "model": engine["model"], "decoding": engine["decoding"]}
    made.write_text(json.dumps(content))
    done = voxbatch("run", recording, "-o", "out", "--calibration", made)
    assert done.returncode == 0, done.stderr
    estimate = json.loads((tmp_path / "out" / "summary.json").read_text())["estimated_wer"]
    assert estimate["interval"][0] <= estimate["wer"] <= estimate["interval"][1]
    assert (estimate["items"], estimate["left_out"], estimate["calibration"]) == (1, 0, str(made))
    assert "estimated WER " in done.stderr
