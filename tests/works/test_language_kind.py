"""Tests for `voxbatch language`: which languages are heard where, what is said about recordings without speech or in
several languages, and what the other commands do with its OUT.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import soundfile
from conftest import ROOT, Recorder, Voxbatch, environment
from fork_server import ForkServer
from killed_at import VARIABLE
from whisper_base import needs_tiny_en

from voxbatch.decoding import Decoded
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Hypothesis, Span
from voxbatch.storage.circuit_breaker import Reachable
from voxbatch.works.language.options import DetectionOptions
from voxbatch.works.language.steps import Detection, detection

EXAMPLES = ROOT / "examples" / "recordings"
SPOKEN = ("hold-the-line.wav", "museum.wav")
Heard = tuple[float, dict[str, float]]
"""Seconds of a window, and the probabilities of the languages in it."""


def lines(out: Path, name: str = "languages.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


# -- from the results of the windows to a language


def detected(*windows: Heard, candidates: tuple[str, ...] = (), claimed_s: float | None = None) -> Detection:
    """Return the detection of a recording whose windows follow each other."""
    spans, hypotheses, at = list[Span](), list[Hypothesis](), 0
    for index, (seconds, languages) in enumerate(windows):
        end = at + round(seconds * SAMPLING_RATE)
        spans.append(Span(at, end, at, end))
        hypotheses.append(Hypothesis(0, index, "", languages=tuple(languages.items())))
        at = end
    decoded = Decoded(0, tuple(spans), (), 0.0, Reachable("", 0.0), claimed_s=claimed_s)
    return detection(decoded, hypotheses, candidates)


def test_windows_count_by_their_length() -> None:
    """The probability of a language is its mean over the windows with speech, weighted by their lengths."""
    detection = detected((30, {"de": 0.9, "nl": 0.1}), (30, {}), (10, {"nl": 0.7, "de": 0.3}))
    assert detection.language == "de"
    assert dict(detection.probabilities) == pytest.approx({"de": 0.75, "nl": 0.25})
    assert [window.language for window in detection.windows] == ["de", None, "nl"]
    assert detection.audio_duration == 70


def test_only_candidates_have_probabilities() -> None:
    """The probabilities of the candidates add up to 1, also in a window in which none of them is likely."""
    detection = detected((30, {"pl": 0.6, "cs": 0.3, "sk": 0.1}), (30, {"pl": 1.0}), candidates=("cs", "sk"))
    assert detection.language == "cs"
    assert dict(detection.probabilities) == pytest.approx({"cs": 0.375, "sk": 0.125})


def test_several_languages_are_told() -> None:
    """Windows that are certain of different languages cause a warning; an uncertain one does not."""
    detection = detected((30, {"de": 0.9}), (30, {"en": 0.8}), (30, {"de": 0.7}))
    assert detection.warnings == ("several languages: de in 2, en in 1 of 3 windows",)
    assert not detected((30, {"de": 0.9}), (30, {"nl": 0.4, "de": 0.3})).warnings


@pytest.mark.parametrize(
    ("claimed_s", "warning"),
    [
        (None, "no speech in the 60.0 s that were heard"),
        (600.0, "no speech in the 60.0 s that were heard; more --windows hear more of it"),
    ],
)
def test_no_speech_has_no_language(claimed_s: float | None, warning: str) -> None:
    detection = detected((30, {}), (30, {}), claimed_s=claimed_s)
    assert (detection.language, detection.probabilities, detection.warnings) == (None, (), (warning,))


@pytest.mark.parametrize(("claimed_s", "recording_s"), [(None, 30.0), (600.0, 600.0), (0.0, None)])
def test_the_length_is_that_of_the_whole_recording(claimed_s: float | None, recording_s: float | None) -> None:
    """The length comes from the decoder if it came to the end, else from the header, else it is unknown."""
    assert detected((30, {"de": 1.0}), claimed_s=claimed_s).recording_s == recording_s


@pytest.mark.parametrize("candidates", [("en",), ("en", "English"), ("en", "klingonish")])
def test_candidates_must_be_a_choice(candidates: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--candidates"):
        DetectionOptions(candidates=candidates)


# -- runs of a real model


@pytest.fixture(scope="module")
def run_here(
    tmp_path_factory: pytest.TempPathFactory, base_model: Path, fork_server: ForkServer
) -> Callable[..., tuple[Path, str]]:
    """Return a function that detects the languages of a manifest's rows, and gives OUT and what the run printed."""

    def run(*rows: dict[str, Any], options: tuple[str, ...] = ()) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("languages")
        (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["language", str(folder / "m.jsonl"), "-o", str(folder / "out"), "--model", str(base_model), *options]
        done = fork_server.run(command, environment(), cwd=folder, timeout=240)
        assert done.returncode in (0, 3), done.stderr
        return folder / "out", done.stdout

    return run


@pytest.fixture(scope="module")
def finished(run_here: Callable[..., tuple[Path, str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the OUT of a run over English, the same with a wrong `lang`, silence and a missing file; and what the run
    printed."""
    folder = tmp_path_factory.mktemp("recordings")
    soundfile.write(folder / "silent.wav", np.zeros(40 * SAMPLING_RATE), SAMPLING_RATE)
    return run_here(
        {"audio_filepath": str(EXAMPLES / SPOKEN[0]), "text": "please hold", "pred_text": "fold", "speaker": "a"},
        {"audio_filepath": str(EXAMPLES / SPOKEN[0]), "id": "wrong", "lang": "de", "hotwords": "line"},
        {"audio_filepath": str(folder / "silent.wav")},
        {"audio_filepath": str(folder / "missing.wav"), "lang": "fr"},
    )


def test_lines_have_the_language_and_its_probability(finished: tuple[Path, str]) -> None:
    """A line has the language, the windows in which it was heard, and all keys of its row."""
    first, wrong, _ = lines(finished[0])
    assert (first["language"], first["lang"], first["text"], first["speaker"]) == ("en", "en", "please hold", "a")
    assert first["pred_text"] == "fold"
    assert 0.5 < first["language_probability"] <= 1
    length = soundfile.info(EXAMPLES / SPOKEN[0]).duration
    assert first["audio_duration"] == first["recording_duration"] == pytest.approx(length, abs=0.001)
    probability = first["language_probability"]
    window = {"start": 0.0, "end": first["audio_duration"], "language": "en", "probability": probability}
    assert first["windows"] == [window]
    assert all(other["probability"] < probability for other in first["alternatives"])
    assert (wrong["language"], wrong["lang"]) == ("en", "de")
    assert [flag["kind"] for flag in wrong["flags"]] == ["other_language"]


def test_silence_has_no_language(finished: tuple[Path, str]) -> None:
    silent = lines(finished[0])[2]
    assert (silent["language"], silent["language_probability"], silent["lang"]) == (None, None, None)
    assert silent["warnings"] == ["no speech in the 40.0 s that were heard"]
    assert (silent["audio_duration"], silent["recording_duration"]) == (40, 40)


def test_a_failure_is_one_as_in_other_runs(finished: tuple[Path, str]) -> None:
    (failure,) = lines(finished[0], "failures.jsonl")
    assert (failure["error_kind"], failure["lang"], failure["line"]) == ("not_found", "fr", 4)


def test_the_summary_has_the_hours_of_each_language(finished: tuple[Path, str]) -> None:
    """The hours are those of whole recordings; `und` stands for those without a language. The run prints them."""
    out, printed = finished
    summary = json.loads((out / "summary.json").read_text())
    jsonschema.validate(summary, json.loads((ROOT / "docs" / "summary.schema.json").read_text()))
    hours = 2 * soundfile.info(EXAMPLES / SPOKEN[0]).duration / 3600
    assert summary["languages"] == {
        "en": {"recordings": 2, "hours": pytest.approx(hours, abs=1e-4), "of_unknown_length": 0},
        "und": {"recordings": 1, "hours": pytest.approx(40 / 3600, abs=1e-4), "of_unknown_length": 0},
    }
    assert (summary["done"], summary["failed"], summary["score"]) == (3, 1, None)
    assert f"languages: en 2 ({hours:.2f} h), und 1 (0.01 h)" in printed
    assert "silent.wav: (no speech)" in printed
    assert f"languages  {out}/languages.jsonl" in printed


def test_the_languages_are_a_manifest_of_a_run(finished: tuple[Path, str], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run of languages.jsonl takes each recording in its language, and scores it with the `text` of its row."""
    manifest = (finished[0] / "languages.jsonl").read_text()
    (tmp_path / "next.jsonl").write_text(manifest.replace('"hotwords": "line", ', ""))  # only Whisper takes them
    done = voxbatch("run", "next.jsonl", "-o", "next", "--engine", "scripted")
    assert done.returncode == 0, done.stderr
    first, wrong, silent = lines(tmp_path / "next", "transcripts.jsonl")
    assert [(line["lang"], line["detected_language"]) for line in (first, wrong, silent)] == [
        ("en", None), ("de", None), (None, None),
    ]  # fmt: skip
    assert first["reference_length"] == 2
    assert first["language_probability"] == lines(finished[0])[0]["language_probability"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("status", "OUT", "--verify"), 0, "verified: no problem found"),
        (("flags", "OUT"), 0, "other_language"),
        (("merge", "OUT"), 3, "languages: en 2"),
        (("report", "OUT", "--export", "table.csv"), 0, "table.csv"),
        (("report", "OUT"), 2, "has the languages of recordings, and no texts; for a table"),
        (("merge", "OUT", "--formats", "srt"), 2, "no texts; leave out --formats and --beside"),
        (("merge", "OUT", "--mux"), 2, "no texts; transcribe them first"),
        (("score", "OUT"), 2, "no texts; transcribe them first: voxbatch run OUT/languages.jsonl"),
        (("compare", "OUT", "OUT"), 2, "no texts; transcribe them first"),
        (("calibrate", "OUT"), 2, "no texts; transcribe them first"),
        (("export", "OUT", "-o", "set"), 2, "no texts; transcribe them first"),
    ],
)
def test_other_commands_take_the_languages_or_refuse_them_in_a_line(
    finished: tuple[Path, str], voxbatch: Voxbatch, tmp_path: Path, command: tuple[str, ...], code: int, said: str
) -> None:
    shutil.copytree(finished[0], tmp_path / "OUT")
    done = voxbatch(*command)
    assert done.returncode == code, done.stderr
    assert said in (done.stdout + done.stderr).replace(str(tmp_path) + "/", "")
    if code == 2:
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_table_has_a_column_for_the_language(finished: tuple[Path, str], voxbatch: Voxbatch, tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "OUT")
    assert voxbatch("report", "OUT", "--export", "table.csv").returncode == 0
    head, *rows = (tmp_path / "table.csv").read_text().splitlines()
    column = head.split(",").index("language")
    assert [row.split(",")[column] for row in rows] == ["en", "en", "", ""]
    assert {"language_probability", "recording_duration", "audio_duration"} <= {*head.split(",")}


def test_windows_are_spread_over_a_long_recording(
    run_here: Callable[..., tuple[Path, str]], corpus: Path, tmp_path: Path
) -> None:
    """A recording in two languages is heard in both, and a warning tells it. --candidates leaves out one of them."""
    spoken = []
    for name in ("kerstin_de_110utt.m4a", "librispeech_test_other_100utt_10spk.ogg"):
        from faster_whisper.audio import decode_audio

        spoken.append(decode_audio(str(corpus / "speech" / "longform" / name))[: 120 * SAMPLING_RATE])
    soundfile.write(tmp_path / "both.flac", np.concatenate(spoken), SAMPLING_RATE)
    row = {"audio_filepath": str(tmp_path / "both.flac")}
    (line,) = lines(run_here(row, options=("--windows", "4"))[0])
    assert [(window["start"], window["language"]) for window in line["windows"]] == [
        (15.0, "de"), (75.0, "de"), (135.0, "en"), (195.0, "en"),
    ]  # fmt: skip
    assert (line["audio_duration"], line["recording_duration"]) == (120, 240)
    assert line["warnings"] == ["several languages: de in 2, en in 2 of 4 windows"]
    (line,) = lines(run_here(row, options=("--windows", "1", "--candidates", "English,fr"))[0])
    assert line["language"] == "en"
    assert [window["start"] for window in line["windows"]] == [105.0]


@pytest.mark.parametrize("killed_after", [4, 6])
def test_a_killed_run_resumes_with_the_same_bytes(
    voxbatch: Voxbatch, base_model: Path, tmp_path: Path, killed_after: int
) -> None:
    """A run that was killed after a part continues, and two shards merge: the bytes are those of one run in peace."""
    for name in SPOKEN:
        shutil.copy(EXAMPLES / name, tmp_path)
    soundfile.write(tmp_path / "silent.wav", np.zeros(SAMPLING_RATE), SAMPLING_RATE)
    command = ("language", *SPOKEN, "silent.wav", "--model", base_model, "--part-items", "1")
    assert voxbatch(*command, "-o", "peace").returncode == 0
    assert voxbatch(*command, "-o", "war", env={VARIABLE: str(killed_after)}).returncode == -9
    assert voxbatch(*command, "-o", "war").returncode == 0
    for shard in ("0/2", "1/2"):
        assert voxbatch(*command, "-o", "shards", "--shard", shard).returncode == 0
    peace = (tmp_path / "peace" / "languages.jsonl").read_bytes()
    for out in ("war", "shards"):
        assert (tmp_path / out / "languages.jsonl").read_bytes() == peace
        summary, wanted = (json.loads((tmp_path / name / "summary.json").read_text()) for name in (out, "peace"))
        assert summary["languages"] == wanted["languages"]


def test_a_dry_run_tells_the_windows(voxbatch: Voxbatch, base_model: Path, recording: Recorder) -> None:
    done = voxbatch("language", recording("a.wav", 2), "-o", "out", "--model", base_model, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "windows  at most 3 of 30 s for each recording" in done.stdout


# -- refusals


@needs_tiny_en
def test_a_model_of_one_language_is_refused(voxbatch: Voxbatch, recording: Recorder) -> None:
    done = voxbatch("language", recording("a.wav", 1), "-o", "out", "--model", "tiny.en")
    assert done.returncode == 2
    assert "knows the language en alone" in done.stderr
    assert "--model base" in done.stderr


@pytest.mark.parametrize("engine", ["vllm", "transducers", "onnx-asr", "scripted", "none-such"])
def test_engines_that_do_not_detect_are_refused(voxbatch: Voxbatch, recording: Recorder, engine: str) -> None:
    """One line names the engine and the model that work."""
    done = voxbatch("language", recording("a.wav", 1), "-o", "out", "--engine", engine)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert f"engine {engine} does not detect languages" in done.stderr
    assert "--engine faster-whisper --model base" in done.stderr


def test_an_unknown_candidate_is_refused(voxbatch: Voxbatch, recording: Recorder, base_model: Path) -> None:
    command = ("language", recording("a.wav", 1), "-o", "out", "--model", base_model)
    done = voxbatch(*command, "--candidates", "en,gsw")
    assert done.returncode == 2
    assert "--candidates gsw: Whisper does not know it" in done.stderr
