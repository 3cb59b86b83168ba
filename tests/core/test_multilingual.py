"""Tests with a real multilingual model: each recording gets its own language, its own rules and its own score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Voxbatch

from voxbatch.cli.advice import command_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LANGUAGES = ("en", "de", "fr", "es")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """Return a folder with a manifest of a recording in each language, without `lang`, and a missing recording."""
    place = tmp_path_factory.mktemp("mixed")
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    lines = []
    for spoken in LANGUAGES:
        for row in [row for row in rows if row["lang"] == spoken and 5 < row["duration"] < 20][:1]:
            path = str(corpus / "speech" / row["audio_filepath"])
            lines.append({"audio_filepath": path, "text": row["text"], "spoken": spoken})
    lines.append({"audio_filepath": "gone.wav", "text": "it's gone", "spoken": "en"})
    (place / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def results(out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the lines of transcripts.jsonl, and the score of the summary."""
    lines = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    return lines, json.loads((out / "summary.json").read_text())["score"]


def test_each_recording_gets_its_own_language(voxbatch: Voxbatch, folder: Path, base_model: Path) -> None:
    """The detected language chooses the rules, is in each line, and has a score of its own; `score` agrees. The
    language of the recording that is missing stays unknown.
    """
    done = voxbatch("run", folder / "m.jsonl", "--model", base_model, "--allow-outside", "-o", folder / "out", "-v")
    assert done.returncode == 3, done.stderr
    lines, score = results(folder / "out")
    assert [(line["lang"], line["detected_language"]) for line in lines] == [(line["spoken"],) * 2 for line in lines]
    assert {lang: each["items"] for lang, each in score["by_language"].items()} == {
        **dict.fromkeys(LANGUAGES, 1),
        "und": 0,
    }
    assert score["by_language"]["und"]["missing"] == 1
    assert all(score["by_language"][lang]["wer"] < 0.5 for lang in LANGUAGES), score
    assert all(0 <= word["confidence"] <= 1 for line in lines for word in line["words"])
    assert json.loads(voxbatch("score", folder / "out", "--json").stdout) == score
    assert "by language: de " in done.stdout
    assert "texts compared by basic rules" in done.stdout


def test_a_given_language_is_not_called_detected(voxbatch: Voxbatch, folder: Path, base_model: Path) -> None:
    """With --language, every line has that language, and none has a detected one, even if a row brings one along."""
    first = {**json.loads((folder / "m.jsonl").read_text().splitlines()[0]), "detected_language": "cy"}
    (folder / "one.jsonl").write_text(json.dumps(first))
    command = ("--model", base_model, "--allow-outside", "-o", folder / "given", "--language", "English")
    assert voxbatch("run", folder / "one.jsonl", *command).returncode == 0
    ((line,), score) = results(folder / "given")
    assert (line["lang"], line["detected_language"], list(score["by_language"])) == ("en", None, ["en"])


def test_an_english_only_model_warns_of_other_languages(voxbatch: Voxbatch, folder: Path) -> None:
    """tiny.en says at the start that it knows only English, marks the recordings in other languages as unsure, and does
    not mark English ones. With a language, it refuses the others and names a model for them.
    """
    command = ("run", folder / "m.jsonl", "--allow-outside", "--model", "tiny.en")
    done = voxbatch(*command, "-o", folder / "english")
    assert done.returncode == 3
    assert "model tiny.en knows only English: take another for other languages (--quality best)" in done.stderr
    lines, _ = results(folder / "english")
    unsure = {(line["spoken"], any("knows English only" in each for each in line["warnings"])) for line in lines}
    assert ("en", True) not in unsure
    assert ("de", True) in unsure
    foreign = [line["spoken"] for line in lines if any(flag["kind"] == "other_language" for flag in line["flags"])]
    assert foreign
    assert "en" not in foreign
    assert "probably not in English, and model tiny.en knows nothing else: voxbatch run " in done.stdout
    assert "model tiny.en knows English only" in voxbatch("flags", folder / "english").stdout
    refused = voxbatch(*command, "-o", folder / "german", "--language", "deutsch")
    assert refused.returncode == 2
    assert "--language de: model tiny.en knows only en; take a model that knows more: --quality best" in refused.stderr
    corrected = command_with(["voxbatch", *map(str, command)], "-o", str(folder / "german"), "--language", "deutsch")
    assert refused.stderr.splitlines()[-1] == f"  {corrected.replace('--model tiny.en ', '')} --quality best"


def test_speech_is_translated(voxbatch: Voxbatch, folder: Path, base_model: Path) -> None:
    """Each text is English, and so is `lang`; the spoken language is told, given or detected. References of the speech
    pass through, and are not compared.
    """
    rows = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    german, french = (next(row for row in rows if row["spoken"] == lang) for lang in ("de", "fr"))
    (folder / "two.jsonl").write_text(f"{json.dumps({**german, 'lang': 'de'})}\n{json.dumps(french)}\n")
    command = ("run", folder / "two.jsonl", "--model", base_model, "--allow-outside", "--task", "translate")
    done = voxbatch(*command, "-o", folder / "translated")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "translated" / "transcripts.jsonl").read_text().splitlines()]
    assert [(line["lang"], line["spoken_language"], line["detected_language"]) for line in lines] == [
        ("en", "de", None), ("en", "fr", "fr"),
    ]  # fmt: skip
    for line, row in zip(lines, (german, french), strict=True):
        assert {"the", "of", "and", "they", "you", "to", "a", "is"} & {*line["pred_text"].lower().split()}
        assert (line["reference_text"], line["wer"], "text" in line) == (row["text"], None, False)
    identity = json.loads((folder / "translated" / "run.json").read_text())["identity"]
    assert identity["task"] == "translate"
    scored = voxbatch("score", folder / "translated")
    assert (scored.returncode, "no item has a reference" in scored.stderr) == (2, True), scored.stderr
