"""Tests for languages: names become codes, and a misspelt name gets a suggestion."""

from __future__ import annotations

import json

import pytest
from conftest import ManifestWriter, Voxbatch

from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError
from voxbatch.languages import ISO_639_1, NAMES, SAME_CODE, language_tag, three_letter_code, unknown_language
from voxbatch.manifest import parse_line


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("english", "en"),
        ("English ", "en"),
        ("EN", "en"),
        ("en-US", "en-US"),
        ("PT_br", "pt_br"),
        ("deutsch", "de"),
        ("Français", "fr"),
        ("Haitian Creole", "ht"),
        ("yue", "yue"),
        ("eng", "en"),
        ("ger", "de"),
        ("deu-AT", "de-AT"),
        ("spa_Latn", "es_Latn"),
        ("cmn_hans_cn", "zh_hans_cn"),
        ("arb", "ar"),
        ("iw", "he"),
        ("Chinese (Taiwan)", "zh"),
        ("klingon", "klingon"),
    ],
)
def test_names_become_codes(text: str, tag: str) -> None:
    """A name, in English or in the language itself, becomes the code; the region of a tag stays."""
    assert language_tag(text) == tag


def test_videos_name_a_language_by_three_letters() -> None:
    """The code of ISO 639-2 is the terminological one, also of a tag that has another one of the language."""
    tags = {
        "en": "eng",
        "de": "deu",
        "ger": "deu",
        "pt-BR": "por",
        "zh-TW": "zho",
        "fa": "fas",
        "yue": "yue",
        "": "und",
    }
    assert {tag: three_letter_code(tag) for tag in tags} == tags
    assert all(SAME_CODE[three_letter_code(code)] == code for code in ISO_639_1)


def test_every_code_has_a_name() -> None:
    """All 184 codes have a name that leads back to them, and further codes lead to one of them."""
    assert set(SAME_CODE.values()) == ISO_639_1
    assert not ISO_639_1.intersection(SAME_CODE)
    assert len(ISO_639_1) == 184
    assert {language_tag(name) for name in NAMES.values()} == ISO_639_1
    assert not [code for code in ISO_639_1 if language_tag(code) != code or unknown_language(code)]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("englsh", "did you mean english (en)?"),
        ("Germn", "did you mean german (de)?"),
        ("dutsch", "did you mean deutsch (de)?"),
        ("xx", "give a code such as en, or a name"),
        ("en,de", "one language is given, or none: a multilingual model hears that of each recording"),
        ("klingon", "give a code such as en, or a name"),
    ],
)
def test_an_unknown_language_is_refused_with_a_suggestion(text: str, hint: str) -> None:
    """--language takes codes and names; a misspelt name gets the nearest one as a suggestion."""
    with pytest.raises(ConfigError) as caught:
        RunOptions(language=text)
    assert str(caught.value) == f"--language {language_tag(text)}: no known language; {hint}"


def test_names_work_in_options_and_rows() -> None:
    """The name and the code make the same run, in an option and in a manifest's line."""
    assert RunOptions(language="English") == RunOptions(language="en")
    line = json.dumps({"audio_filepath": "a.wav", "lang": "German"}).encode()
    assert parse_line(line, 1, 0, "/").lang == "de"


def test_score_takes_a_name(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """`score` without a language warns that the rules for English differ; with its name, they are used."""
    pair = {"audio_filepath": "a.wav", "text": "It's my colour, Mr. Grey", "pred_text": "it is my color mister gray"}
    path = manifest()
    path.write_text(json.dumps(pair))
    unknown, known = voxbatch("score", path, "--json"), voxbatch("score", path, "--language", "English", "--json")
    assert json.loads(unknown.stdout)["wer"] == 0.666667
    assert "no language is known for 1 item; if the texts are English, give --language en" in unknown.stderr
    assert (json.loads(known.stdout)["wer"], known.stderr) == (0.0, "")
    refused = voxbatch("score", path, "--language", "englsh")
    assert (refused.returncode, "did you mean english (en)?" in refused.stderr) == (2, True)
