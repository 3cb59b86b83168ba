"""Tests that programs of others read the outputs of one real run, each with its own code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pysubs2
import pytest
import soundfile
from conftest import ROOT, environment
from praatio import textgrid

from voxbatch.audio.ffmpeg import executable
from voxbatch.config import FORMATS

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
TAKEN = ("weather", "platform-four", "museum")
ENGINE = ("--engine", "faster-whisper")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, whose OUT is far from its manifest."""

    out: Path
    lines: list[dict[str, Any]]


def transcribe(folder: Path, out: Path, *options: str) -> int:
    """Run the manifest of a folder, and return the exit code."""
    command = [sys.executable, "-m", "voxbatch", "run", "m.jsonl", "-o", str(out), *ENGINE, *options]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Transcribe three examples with Whisper tiny.en in all formats. The first has no reference, and a missing
    recording fails.
    """
    pytest.importorskip("faster_whisper")
    folder, out = tmp_path_factory.mktemp("jobs"), tmp_path_factory.mktemp("results") / "run"
    shutil.copytree(EXAMPLES / "recordings", folder / "recordings")
    known = {row["id"]: row for row in map(json.loads, (EXAMPLES / "manifest.jsonl").read_text().splitlines())}
    rows = [known[each] for each in TAKEN]
    del rows[0]["text"]
    rows.append({"audio_filepath": "gone.wav", "topic": None})
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert transcribe(folder, out, "--formats", ",".join(FORMATS)) == 3
    return Run(out, [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()])


def words_of(text: str) -> list[str]:
    """Return the letters and digits of each word, to compare texts whose punctuation differs."""
    return re.findall(r"[\w']+", text.casefold())


def test_pandas_reads_the_lines(run: Run) -> None:
    """pandas makes a table with one row for each item, and numbers are numbers."""
    table = pd.read_json(run.out / "transcripts.jsonl", lines=True)
    assert list(table["id"]) == [line["id"] for line in run.lines]
    assert list(table["pred_text"]) == [line["pred_text"] for line in run.lines]
    assert (table["audio_duration"].dtype, table["wer"].dtype) == ("float64", "float64")
    assert table["wer"].isna().tolist() == [True, False, False]
    assert set(table["engine"]) == {"faster-whisper"}
    failed = pd.read_json(run.out / "failures.jsonl", lines=True)
    assert (failed["error"][0], bool(failed["retryable"][0])) == ("AudioError", False)


def test_datasets_reads_the_lines(run: Run, tmp_path: Path) -> None:
    """Hugging Face's datasets loads both files, with words as a list of records, and finds the recordings."""
    datasets = pytest.importorskip("datasets")
    for name in ("transcripts", "failures"):
        table = datasets.load_dataset(
            "json", data_files=str(run.out / f"{name}.jsonl"), split="train", cache_dir=str(tmp_path)
        )
        lines = [json.loads(line) for line in (run.out / f"{name}.jsonl").read_text().splitlines()]
        assert list(table["id"]) == [line["id"] for line in lines]
    path = str(run.out / "transcripts.jsonl")
    table = datasets.load_dataset("json", data_files=path, split="train", cache_dir=str(tmp_path))
    assert table[1]["words"] == run.lines[1]["words"]
    assert all(Path(place).is_file() for place in table["audio_filepath"])


def test_datasets_reads_a_run_with_mixed_rows(tmp_path: Path) -> None:
    """Rows with and without a reference, a language or words load as one table."""
    datasets = pytest.importorskip("datasets")
    rows = [{"audio_filepath": "silence.wav", "id": f"{i}", "lang": "en" if i % 2 else None} for i in range(4)]
    rows[2]["text"] = rows[3]["text"] = "red bird"
    soundfile.write(tmp_path / "silence.wav", [0.0] * 16_000, 16_000)
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert transcribe(tmp_path, tmp_path / "out") == 0
    path = tmp_path / "out" / "transcripts.jsonl"
    table = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert list(table["deletions"]) == [None, None, 2, 2]
    assert not (tmp_path / "out" / "failures.jsonl").exists(), "datasets refuses an empty file"


def test_nemo_and_the_leaderboard_find_their_keys(run: Run) -> None:
    """Every line is an object with the keys of NeMo's manifests, an existing recording, and texts."""
    for line in run.lines[1:]:
        assert Path(line["audio_filepath"]).is_absolute()
        assert soundfile.info(line["audio_filepath"]).duration == pytest.approx(line["duration"], abs=0.01)
        assert (type(line["text"]), type(line["pred_text"])) == (str, str)


def test_pysubs2_reads_ttml(run: Run) -> None:
    """pysubs2 reads the whole text in cues that do not overlap."""
    for line in run.lines:
        found = pysubs2.load(str(run.out / "ttml" / f"{line['id']}.ttml"))
        assert words_of(" ".join(event.plaintext for event in found)) == words_of(line["pred_text"])
        assert all(one.end <= other.start for one, other in pairwise(found))
        assert found[-1].end / 1000 <= line["audio_duration"] + 1


def test_subtitles_of_speech_keep_the_rules_of_broadcasters(run: Run) -> None:
    """By pysubs2: at most two lines of 42 characters, 5/6 s to 7 s, gaps of 2 frames or at least 12 of 24 a second, no
    break in a text that fits a line, and no word alone that does not end a sentence.
    """
    for line in run.lines:
        cues = pysubs2.load(str(run.out / "srt" / f"{line['id']}.srt"))
        for cue in cues:
            lines = cue.plaintext.split("\n")
            assert len(lines) <= 2
            assert max(map(len, lines)) <= 42
            assert len(lines) == 1 or len(" ".join(lines)) > 42
            assert 833 <= cue.duration <= 7000
            assert len(cue.plaintext.split()) > 1 or cue.plaintext.endswith((".", "?", "!"))
        gaps = [round((following.start - cue.end) * 24 / 1000) for cue, following in pairwise(cues)]
        assert all(gap == 2 or gap >= 12 for gap in gaps)


@pytest.mark.parametrize("form", ["srt", "vtt", "vtt-words"])
def test_ffmpeg_reads_the_subtitles(run: Run, form: str) -> None:
    """ffmpeg converts the subtitles to SubRip with the same times and words."""
    for line in run.lines:
        extension = form.partition("-")[0]
        path = str(run.out / form / f"{line['id']}.{extension}")
        command = [executable(), "-v", "error", "-i", path, "-f", "srt", "-"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        found = pysubs2.SSAFile.from_string(done.stdout, format_="srt")
        expected = pysubs2.load(str(run.out / "srt" / f"{line['id']}.srt"))
        assert [(event.start, event.end) for event in found] == [(event.start, event.end) for event in expected]
        assert words_of(" ".join(event.plaintext for event in found)) == words_of(line["pred_text"])


def test_praatio_reads_the_text_grids(run: Run) -> None:
    """praatio reads both tiers, with every word at its time, and finds nothing to repair."""
    for line in run.lines:
        path = str(run.out / "textgrid" / f"{line['id']}.TextGrid")
        grid = textgrid.openTextgrid(path, includeEmptyIntervals=False, reportingMode="error")
        assert grid.tierNames == ("words", "segments")
        assert grid.validate(reportingMode="error")
        found = [(entry.label, entry.start) for entry in grid.getTier("words").entries]
        assert found == [(word["word"], pytest.approx(word["start"], abs=0.01)) for word in line["words"]]


def test_sclite_scores_the_ctm(run: Run, tmp_path: Path) -> None:
    """NIST sclite reads each CTM against an STM of its own text, and counts no error: no word has punctuation, and the
    names match.
    """
    if shutil.which("sctk") is None:
        pytest.skip("there is no sctk on PATH: apt-get install sctk")
    for line in run.lines:
        reference = " ".join(words_of(line["pred_text"]))
        stm = tmp_path / f"{line['id']}.stm"
        stm.write_text(f"{line['id']} 1 speaker 0.0 {line['audio_duration'] + 1:.2f} {reference}\n")
        command = ["sctk", "sclite", "-r", str(stm), "stm", "-h", str(run.out / "ctm" / f"{line['id']}.ctm"), "ctm"]
        done = subprocess.run([*command, "-o", "rsum", "stdout"], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        (total,) = re.findall(r"\| Sum +\|(.*)", done.stdout)
        num_words = len(reference.split())
        assert [int(count) for count in total.split()[:7] if count != "|"] == [1, num_words, num_words, 0, 0, 0]


def test_json_has_the_keys_of_whisperx_and_openai(run: Run) -> None:
    """Both objects have every word once, in segments that follow each other."""
    for line in run.lines:
        whisperx = json.loads((run.out / "whisperx-json" / f"{line['id']}.json").read_text())
        openai = json.loads((run.out / "openai-json" / f"{line['id']}.json").read_text())
        words = [word["word"] for word in line["words"]]
        assert [word["word"] for segment in whisperx["segments"] for word in segment["words"]] == words
        assert [word["word"] for word in whisperx["word_segments"]] == words
        assert [word["word"] for word in openai["words"]] == words
        assert [segment["id"] for segment in openai["segments"]] == list(range(len(openai["segments"])))
        assert openai["text"] == line["pred_text"]
        assert whisperx["language"] == openai["language"] == "en"


def test_tables_of_segments_read_back(run: Run) -> None:
    """pandas reads Whisper's TSV as whole milliseconds and texts."""
    for line in run.lines:
        table = pd.read_csv(run.out / "tsv" / f"{line['id']}.tsv", sep="\t", quoting=3)
        assert list(table["text"]) == [segment["text"] for segment in line["segments"]]
        assert list(table["start"]) == [round(segment["start"] * 1000) for segment in line["segments"]]
