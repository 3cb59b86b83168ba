"""Tests for the words that an engine is told to expect: --hotwords, the row key `hotwords`, and --prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ManifestWriter, Voxbatch
from whisper_base import needs_tiny_en

from voxbatch.config import RunOptions
from voxbatch.manifest import LineError, parse_line


@needs_tiny_en
def test_whisper_spells_a_hotword(corpus: Path, tmp_path: Path, voxbatch: Voxbatch) -> None:
    """tiny.en writes the city of Basle as a herb, unless it is told; the words of a row replace those of the run."""
    audio = str(corpus / "speech" / "ljspeech_flac" / "LJ001-0028.flac")
    rows = [
        {"id": "run", "audio_filepath": audio},
        {"id": "row", "audio_filepath": audio, "hotwords": ["Paris", "Rome"]},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.txt").write_text("Strasburg\n\n Basle \nLubeck\n")
    done = voxbatch(
        "run", "m.jsonl", "-o", "out", "--engine", "faster-whisper", "--hotwords", "words.txt",
        "--prompt", "About printing.",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines())
    assert {line["id"]: "Basle" in line["pred_text"] for line in lines} == {"run": True, "row": False}
    identity = json.loads((tmp_path / "out" / "run.json").read_text())["identity"]
    assert (identity["hotwords"], identity["prompt"]) == ("Strasburg, Basle, Lubeck", "About printing.")


@pytest.mark.slow
@needs_tiny_en
def test_more_hotwords_than_fit_are_told() -> None:
    """The first words that fit are taken, so that the text before has room, too."""
    from functools import partial

    from faster_whisper import WhisperModel

    from voxbatch.engines.known_models import bundled_folder
    from voxbatch.engines.whisper_input import HOTWORD_TOKENS, encoded_text, fitting_hotwords

    encode = partial(encoded_text, WhisperModel(str(bundled_folder()), device="cpu", compute_type="int8"))
    words = [f"Term{number}" for number in range(100)]
    kept, warning = fitting_hotwords(encode, ", ".join(words))
    count = len(kept.split(", "))
    assert kept.split(", ") == words[:count]
    assert len(encode(kept)) <= HOTWORD_TOKENS < len(encode(f"{kept}, {words[count]}"))
    assert warning == f"the last {100 - count} of 100 hotwords have no room"
    assert fitting_hotwords(encode, "Basle, Lubeck") == ("Basle, Lubeck", None)


@pytest.mark.parametrize(
    ("value", "hotwords"),
    [
        (None, None),
        ("Basle, Lubeck", "Basle, Lubeck"),
        ([" Basle", "Lubeck"], "Basle, Lubeck"),
        ([], None),
        (" ", None),
    ],
)
def test_hotwords_of_a_row(value: object, hotwords: str | None) -> None:
    """A text and a list of texts are the same."""
    row = json.dumps({"audio_filepath": "a.wav", "hotwords": value}).encode()
    assert parse_line(row, 1, 0, "/data").hotwords == hotwords


def test_hotwords_of_a_row_are_texts() -> None:
    """Anything else is a bad line."""
    with pytest.raises(LineError, match=r"`hotwords` is 7; it must be a string, a list of strings, or null"):
        parse_line(b'{"audio_filepath": "a.wav", "hotwords": 7}', 1, 0, "/data")


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [
        (("--prompt", "Hello"), {}, "--prompt: the engine scripted cannot tell"),
        ((), {"hotwords": "Basle"}, "`hotwords` in the manifest: the engine scripted cannot tell"),
        (("--hotwords", "empty.txt"), {}, "has no words; write one name or term on each line"),
        (("--task", "translate"), {}, "--task translate: count of the engine scripted was not trained to translate"),
        (("--task", "translate", "--dry-run"), {}, "count of the engine scripted was not trained to translate"),
        (("--prompt", "Hello", "--dry-run"), {}, "--prompt: the engine scripted cannot tell"),
    ],
)
def test_an_engine_without_a_way_refuses(
    voxbatch: Voxbatch, manifest: ManifestWriter, options: tuple[str, ...], row: dict[str, str], message: str
) -> None:
    """Nothing is written to OUT."""
    path = manifest(1.0, **row)
    (path.parent / "empty.txt").write_text("\n")
    done = voxbatch("run", path, "-o", "out", "--engine", "scripted", *options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (path.parent / "out").exists()


def test_hints_belong_to_the_identity() -> None:
    """An OUT of a version without hotwords can be continued."""
    assert RunOptions(hotwords="Basle").identity() == {"language": None, "hotwords": "Basle"}


@needs_tiny_en
def test_models_that_did_not_learn_to_translate() -> None:
    """English-only models, and those that were trained again to be faster."""
    from voxbatch import engines
    from voxbatch.engines.known_models import is_trained_to_translate

    assert not engines.create("faster-whisper", "tiny.en", {}).spec.translates
    names = "Systran/faster-whisper-large-v3", "openai/whisper-large-v3-turbo", "distil-whisper/distil-large-v3.5-ct2"
    assert [is_trained_to_translate(name) for name in names] == [True, False, False]
