"""Tests for stretches in another language than the one asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ManifestWriter, Voxbatch

from voxbatch.records import Flag, Segment, Transcript, Word
from voxbatch.text import drift
from voxbatch.text.common_words import COMMON_WORDS
from voxbatch.text.drift import drift_flags

TEXTS = {
    "fr": "Nous avons parlé avec les habitants du quartier, et ils nous ont dit que la rue est dangereuse pour les "
    "enfants. Il faut donc que la mairie trouve une solution avant la fin de l'année, parce que rien ne change.",
    "en": "I think that we have to look at the whole problem again, and then they will see what can be done about it. "
    "You know, it was not what I had expected when she told me that there would be some changes.",
    "es": "Yo no sé lo que ha pasado con la casa, pero mi hermano me dijo que todo estaba muy bien cuando se fue de "
    "allí. Hay que hablar con él porque no es la primera vez que pasa una cosa como esta en el barrio.",
    "de": "Ich weiß nicht, ob wir das noch schaffen, aber die Leute haben gesagt, dass der Zug heute später kommt. "
    "Wenn er nicht kommt, dann müssen wir mit dem Auto fahren, und das dauert noch eine Stunde.",
    "pt": "Eu não sei o que aconteceu com a casa, mas o meu irmão disse que estava tudo muito bem quando ele foi "
    "embora. É preciso falar com ele porque não é a primeira vez que isso acontece no bairro.",
    "cs": "Já nevím, co se stalo s tím domem, ale můj bratr mi řekl, že je všechno v pořádku a že tam byl jen chvíli. "
    "Musíme s ním mluvit, protože to není poprvé, co se něco takového stalo.",
    "sk": "Ja neviem, čo sa stalo s tým domom, ale môj brat mi povedal, že je všetko v poriadku a že tam bol len "
    "chvíľu. Musíme s ním hovoriť, pretože to nie je prvýkrát, čo sa niečo také stalo.",
    "da": "Jeg ved ikke, hvad der er sket med huset, men min bror sagde, at det hele var i orden, da han gik derfra. "
    "Vi er nødt til at tale med ham, for det er ikke den første gang, at sådan noget sker her.",
    "no": "Jeg vet ikke hva som har skjedd med huset, men broren min sa at alt var i orden da han dro derfra. Vi må "
    "snakke med ham, for det er ikke den første gangen at noe slikt skjer her.",
    "ru": "Я не знаю, что случилось с домом, но мой брат сказал мне, что всё было в порядке, когда он ушёл оттуда. "
    "Надо поговорить с ним, потому что это уже не первый раз, когда у нас такое случается.",
    "fi": "En tiedä mitä talolle on tapahtunut, mutta veljeni sanoi että kaikki oli kunnossa kun hän lähti sieltä. "
    "Meidän on nyt puhuttava hänen kanssaan, koska tämä ei ole ensimmäinen kerta kun näin on käynyt.",
    "sw": "Sijui ni nini kimetokea kwa nyumba, lakini kaka yangu aliniambia kuwa kila kitu kilikuwa sawa alipoondoka "
    "huko. Ni lazima tuzungumze naye kwa sababu hii si mara ya kwanza jambo kama hili kutokea.",
}  # fmt: skip
CLOSE = (("cs", "sk"), ("sk", "cs"), ("da", "no"), ("no", "da"), ("nb", "da"), ("es", "pt"), ("pt", "es"))


def spoken(*parts: str) -> Transcript:
    """Return a transcript of parts, one word every half second."""
    texts = " ".join(parts).split()
    words = tuple(Word(f" {text}", i / 2, i / 2 + 0.5) for i, text in enumerate(texts))
    return Transcript(" ".join(texts), words, audio_duration=len(words) / 2)


def times(*parts: str) -> tuple[float, float]:
    """Return the start and the end of the second part as `spoken`."""
    first, second = (len(part.split()) for part in parts)
    return first / 2, (first + second) / 2


def places(flags: Sequence[Flag]) -> list[tuple[float | None, float | None]]:
    return [(flag.start, flag.end) for flag in flags]


@pytest.mark.parametrize("language", TEXTS)
def test_a_right_text_has_no_flag(language: str) -> None:
    """Written with or without capitals and punctuation, and also many times over."""
    text = TEXTS[language]
    plain = "".join(char for char in text.lower() if char.isalpha() or char in " '")
    for right in (text, plain, text.upper(), " ".join([text] * 20)):
        assert not [*drift_flags(spoken(right), language)]


@pytest.mark.parametrize("written", list(TEXTS))
@pytest.mark.parametrize("asked", list(TEXTS))
def test_a_text_in_another_language_has_one_flag_over_all_of_it(asked: str, written: str) -> None:
    """The flag begins and ends within eight words of the text. Close languages, and Swahili, which has no list of
    common words, are not flagged."""
    flags = [*drift_flags(spoken(TEXTS[written]), asked)]
    if asked == written or (asked, written) in CLOSE or written == "sw":
        assert not flags
    else:
        (flag,) = flags
        assert flag.kind == "other_language"
        assert flag.reason.endswith(f"; {asked} was asked for")
        assert flag.start is not None
        assert flag.start <= 4
        assert flag.end is not None
        assert flag.end >= len(TEXTS[written].split()) / 2 - 4


@pytest.mark.parametrize("asked", [language for language in TEXTS if language != "en"])
def test_a_drift_in_the_middle_of_an_hour_is_found_with_its_place(asked: str) -> None:
    """Ten seconds of English in an hour of another language are one flag, which is right to a second. In a language
    without a list of common words, it takes 27 seconds, and the place is right to 18 seconds."""
    half = " ".join([TEXTS[asked]] * 90)
    english, exact = (f"{TEXTS['en']} {TEXTS['en']}", 18) if asked == "sw" else (TEXTS["en"].partition(" You")[0], 1)
    (flag,) = drift_flags(spoken(half, english, half), asked)
    start, end = times(half, english)
    assert flag.start == pytest.approx(start, abs=exact)
    assert flag.end == pytest.approx(end, abs=exact)
    assert "words are probably English" in flag.reason


def test_neighbours_in_one_language_are_one_flag_and_others_are_not() -> None:
    """A French sentence of eight words divides nothing; a drift into another language is another flag."""
    english, french = TEXTS["en"], "Il faut que la mairie trouve une solution."
    (flag,) = drift_flags(spoken(TEXTS["fr"], english, french, english, TEXTS["fr"]), "fr")
    assert places([flag]) == [times(TEXTS["fr"], f"{english} {french} {english}")]
    flags = [*drift_flags(spoken(TEXTS["fr"], english, TEXTS["fr"], TEXTS["de"]), "fr")]
    assert [flag.reason.split()[4] for flag in flags] == ["English;", "German;"]
    assert len({*places(flags)}) == 2


@pytest.mark.parametrize(
    "inside",
    [
        "I think that we have to look at it.",
        "Michael Jackson, Elton John, The Beatles, Bob Dylan, Johnny Cash, Frank Sinatra et The Rolling Stones",
        "2026, 42, 17, 100, 3.14, 1 000 000, 12:30, 7, 8, 9, 10 et 11",
        "help@the-company.com, www.the-shop.com, to-be@or-not.to-be.com",
        "Il a dit « to be or not to be » à tous les élèves, et nous avons écouté « let it be » avec eux.",
    ],
    ids=["short", "names", "numbers", "addresses", "quotes"],
)
def test_names_numbers_and_short_quotes_are_no_drift(inside: str) -> None:
    """Only words count, at least twelve in a row."""
    assert not [*drift_flags(spoken(TEXTS["fr"], inside, TEXTS["fr"]), "fr")]
    assert not [*drift_flags(spoken(inside), "fr")]


def test_only_languages_that_py3langid_knows_are_judged() -> None:
    """Klingon is not."""
    assert not [*drift_flags(spoken(TEXTS["en"]), "tlh")]


def test_both_judges_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch that py3langid names otherwise than its common words has no flag."""

    class Other:
        labels = ("fr", "en", "fi")

        def classify(self, _: str) -> tuple[str, float]:
            return "fi", 1.0

    monkeypatch.setattr(drift, "_identifier", Other)
    assert not [*drift_flags(spoken(TEXTS["en"]), "fr")]


def test_without_py3langid_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is left out."""
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    drift._identifier.cache_clear()
    try:
        assert not [*drift_flags(spoken(TEXTS["en"]), "fr")]
    finally:
        drift._identifier.cache_clear()


def test_right_texts_do_not_load_py3langid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is only used where common words suspect a text."""
    monkeypatch.setattr(drift, "_identifier", lambda: pytest.fail("loaded"))
    for language in TEXTS.keys() & COMMON_WORDS.keys():
        assert not [*drift_flags(spoken(" ".join([TEXTS[language]] * 20)), language)]


def test_an_engine_without_word_times_gives_the_times_of_segments() -> None:
    """Its segments are the chunks."""
    parts = (TEXTS["fr"], TEXTS["en"], TEXTS["fr"])
    segments = tuple(Segment(part, i * 30.0, i * 30.0 + 30.0) for i, part in enumerate(parts))
    (flag,) = drift_flags(Transcript(" ".join(parts), (), segments, 90.0), "fr")
    assert places([flag]) == [(30.0, 60.0)]


def test_no_reference_of_real_recordings_is_flagged(corpus: Path) -> None:
    """371 references in five languages are right, one by one and joined."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    for language in {row["lang"] for row in rows}:
        texts = [row["text"] for row in rows if row["lang"] == language]
        for text in (*texts, " ".join(texts), " ".join(texts).lower()):
            assert not [*drift_flags(spoken(text), language)]


def test_a_run_flags_a_drift_and_a_cascade_does_that_item_again(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """`voxbatch flags` lists the item with its times. The large model does exactly this item again, and its text
    counts."""
    french, drifted = TEXTS["fr"], f"{TEXTS['fr']} {TEXTS['en']}"
    says = {"small": [french, french, drifted, french], "large": ["", "", f"{french} {french}", ""]}
    (tmp_path / "says.json").write_text(json.dumps(says))
    source = manifest(20.0, 20.0, 42.0, 20.0)
    options = ("--engine", "scripted", "--engine-option", f"says={tmp_path / 'says.json'}", "--language", "fr")
    assert voxbatch("run", source, "-o", tmp_path / "one", "--model", "small", *options).returncode == 0
    listed = voxbatch("flags", tmp_path / "one").stdout
    assert listed.startswith("1 of 4 transcripts flagged: other_language 1\n\n")
    number = len(TEXTS["en"].split())
    start, end = times(french, TEXTS["en"])
    assert f"\n  other_language at 0:{start:.1f} to 0:{end:.1f}: {number} words are probably English; fr" in listed
    both = ("--cascade", "small,large:0.5", "--engine-option", "confidence=true")
    assert voxbatch("run", source, "-o", tmp_path / "two", *options, *both).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "two" / "transcripts.jsonl").read_text().splitlines()]
    assert [row["cascade"] is not None for row in rows] == [False, False, True, False]
    assert (rows[2]["model"], rows[2]["pred_text"]) == ("large", says["large"][2])
    assert rows[2]["cascade"]["reason"] == "the text of small is in another language than the one asked for"
