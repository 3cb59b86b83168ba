"""Tests that a score equals what NeMo, the Open ASR Leaderboard and jiwer make of the same real transcripts."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldialign
import pytest
from conftest import Voxbatch, environment

from voxbatch.analysis.score import score_place
from voxbatch.scoring.corpus import CorpusScore, ScoreOptions
from voxbatch.scoring.counts import tokens
from voxbatch.scoring.normalize import Rules

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FEW, MANY = (8, 2), (245, 60)
"""Numbers of recordings in English and in other languages that are transcribed: the shortest ones. The many are 20
minutes together."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Lines with `text` and `pred_text`, and their file."""

    path: Path
    lines: list[dict[str, Any]]


def transcribed(corpus: Path, base_model: Path, folder: Path, counts: tuple[int, int]) -> list[dict[str, Any]]:
    """Transcribe short recordings with Whisper: English ones by tiny.en, others by base."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        row["audio_filepath"] = str(corpus / "speech" / row["audio_filepath"])
    rows.sort(key=lambda row: row["duration"])
    english = [row for row in rows if row["lang"] == "en"][: counts[0]]
    others = [row for row in rows if row["lang"] != "en"][: counts[1]]
    lines = []
    for name, some, options in (("english", english, ()), ("others", others, ("--model", str(base_model)))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        command = [sys.executable, "-m", "voxbatch", "run", f"{name}.jsonl", "-o", name, "--allow-outside", *options]
        command += ["--engine", "faster-whisper"]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr
        lines += [json.loads(line) for line in (folder / name / "transcripts.jsonl").read_text().splitlines()]
    return lines


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"])
def pairs(
    request: pytest.FixtureRequest, corpus: Path, base_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Pairs:
    """Return the pairs of real recordings, as a results manifest of the leaderboard."""
    pytest.importorskip("faster_whisper")
    folder = tmp_path_factory.mktemp("pairs")
    lines = transcribed(corpus, base_model, folder, request.param)
    assert len(lines) == sum(request.param)
    path = folder / "MODEL_voxbatch-whisper_DATASET_speech_test.jsonl"
    path.write_text("".join(json.dumps({**line, "time": 1.0}) + "\n" for line in lines))
    return Pairs(path, lines)


def corpus_score(lines: list[dict[str, Any]], rules: Rules = Rules()) -> CorpusScore:  # noqa: B008 -- it is frozen
    corpus = CorpusScore(options=ScoreOptions(rules))
    for line in lines:
        corpus.add_pair(line["lang"], line["text"], line["pred_text"])
    return corpus


@pytest.fixture(scope="session")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the functions of NeMo's module for word error rates, from its wheel. NeMo itself takes gigabytes, so only
    these functions are executed.
    """
    folder = tmp_path_factory.mktemp("nemo")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["-d", str(folder), "nemo_toolkit==3.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip("NeMo's wheel (nemo_toolkit) cannot be downloaded")
    (wheel,) = folder.iterdir()
    source = zipfile.ZipFile(wheel).read("nemo/collections/asr/metrics/wer.py").decode()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    wanted = ast.Module([node for node in functions if node.name.startswith("word_error_rate")], [])
    names: dict[str, Any] = {}
    code = "from __future__ import annotations\nfrom typing import List, Optional, Tuple, Union\n"
    exec(code, names)
    names["edit_distance"] = kaldialign.edit_distance
    exec(compile(wanted, "wer.py", "exec"), names)
    return names


@pytest.mark.parametrize("rules", [Rules(), Rules("none"), Rules("whisper-basic")], ids=lambda rules: rules.normalizer)
def test_nemo_gives_the_same_rate(pairs: Pairs, nemo: dict[str, Any], rules: Rules) -> None:
    """NeMo's word_error_rate of the normalised texts, and of the texts as they are, is ours to 1e-9. Its rate of
    substitutions, insertions and deletions together is the same, too.
    """
    references, hypotheses = (
        [" ".join(tokens(line[key], line["lang"], rules)) for line in pairs.lines] for key in ("text", "pred_text")
    )
    counts = corpus_score(pairs.lines, rules).total("word").counts
    assert counts.rate == pytest.approx(nemo["word_error_rate"](hypotheses, references), abs=1e-9)
    rate, words, *_ = nemo["word_error_rate_detail"](hypotheses, references)
    assert counts.rate == pytest.approx(rate, abs=1e-9)
    assert counts.reference_length == words


# ── the leaderboard ───────────────────────────────────────────────────────────────────────────────────────────────────

SCORE_RESULTS = """
import contextlib, json, sys, types
sys.modules["num2words"] = types.ModuleType("num2words")  # for languages other than English
sys.path.insert(0, sys.argv[1])
from kaldialign import batch_error_rate
from normalizer import data_utils, eval_utils
lines = eval_utils.read_manifest(sys.argv[2])
texts = [[tuple(data_utils.normalizer(line[key]).split()) for line in lines] for key in ("text", "pred_text")]
rate = batch_error_rate(*texts, merge_compounds=True)["err_rate"]
with contextlib.redirect_stdout(sys.stderr):
    _, results = eval_utils.score_results(sys.argv[3])
print(json.dumps([rate, *results.values()]))
"""
"""The leaderboard's own functions on a folder of results: score_results has the counts, and its rate with two decimals
of a percent; the same call without the rounding comes before.
"""


@pytest.fixture(scope="session")
def leaderboard() -> Path:
    """Return the folder of a copy of huggingface/open_asr_leaderboard."""
    folder = os.environ.get("VOXBATCH_TEST_LEADERBOARD", "")
    if not folder:
        pytest.skip("no copy of huggingface/open_asr_leaderboard: name its folder by VOXBATCH_TEST_LEADERBOARD")
    return Path(folder)


def test_the_leaderboard_gives_the_same_rate(
    pairs: Pairs, leaderboard: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """score_results of the leaderboard gives the counts of `score --leaderboard`, and the same rate to 1e-9. Its
    results name no language: it takes all texts for English.
    """
    pytest.importorskip("datasets")
    results = tmp_path / "results" / pairs.path.name
    results.parent.mkdir()
    keys = ("audio_filepath", "duration", "text", "pred_text")
    rows = [{**{key: line[key] for key in keys}, "time": 1.0} for line in pairs.lines]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-c", SCORE_RESULTS, str(leaderboard), str(results), str(results.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rate, theirs = json.loads(done.stdout)
    scored = voxbatch("score", results, "--leaderboard", leaderboard, "--json")
    ours = json.loads(scored.stdout)["words"]
    assert [ours[kind] for kind in ("substitutions", "insertions", "deletions")] == [
        theirs[kind] for kind in ("sub", "ins", "del")
    ]
    assert ours["errors"] / ours["reference_words"] == pytest.approx(rate, abs=1e-9)
    assert round(100 * ours["wer"], 2) == theirs["wer"]


NORMALIZER = """
class EnglishTextNormalizer:
    def __call__(self, text):
        return text.lower().replace("allan", "allen")
"""


@pytest.fixture
def small_leaderboard(tmp_path: Path) -> Path:
    """Return a folder with rules of the leaderboard's form."""
    package = tmp_path / "leaderboard" / "normalizer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .normalizer import EnglishTextNormalizer\n")
    (package / "normalizer.py").write_text("from . import english_abbreviations\n" + NORMALIZER)
    (package / "english_abbreviations.py").write_text("")
    return package.parent


def test_compounds_are_no_errors_on_the_leaderboard(
    small_leaderboard: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The rules of the folder apply, two words joined are no error, and the rules are named by their checksum."""
    row = {"id": "a", "text": "the white paper of Allan", "pred_text": "The whitepaper off Allen"}
    (tmp_path / "h.jsonl").write_text(json.dumps(row))
    assert json.loads(voxbatch("score", "h.jsonl", "--normalizer", "none", "--json").stdout)["words"]["errors"] > 3
    found = json.loads(voxbatch("score", "h.jsonl", "--leaderboard", small_leaderboard, "--json").stdout)
    assert (found["words"]["errors"], found["words"]["reference_words"]) == (1, 5)
    assert found["by_language"]["und"]["normalizer"].startswith("Open ASR Leaderboard's rules (sha256 ")


def test_what_is_no_leaderboard_is_refused(small_leaderboard: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Another folder, other rules beside it, and texts in other languages are refused."""
    (tmp_path / "h.jsonl").write_text(json.dumps({"id": "a", "text": "a", "pred_text": "a", "lang": "fr"}))
    for options, reason in (
        ((tmp_path,), "normalizer.py cannot be read: No such file or directory; give a copy of the repository hugg"),
        ((small_leaderboard,), "--leaderboard has rules for English only, and a text is in 'fr'; leave it out"),
        ((small_leaderboard, "--case"), "--leaderboard has rules of its own; leave out --normalizer and the options"),
    ):
        done = voxbatch("score", "h.jsonl", "--leaderboard", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
    (small_leaderboard / "normalizer" / "normalizer.py").write_text("import nothing_like_this\n")
    done = voxbatch("score", "h.jsonl", "--leaderboard", small_leaderboard)
    assert "its normaliser cannot be loaded: No module named 'nothing_like_this'" in done.stderr


def test_a_results_file_of_the_leaderboard_is_scored_as_it_is(pairs: Pairs) -> None:
    """`score` of the results file, without options, is the sum over its lines."""
    assert score_place(str(pairs.path)).corpus.wer == corpus_score(pairs.lines).wer
