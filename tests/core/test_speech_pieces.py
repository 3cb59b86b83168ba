"""Tests for the pieces of a text that is spoken: none ends after an abbreviation of its language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.speech.abbreviations import _KNOWN, _WORDS_TOO, is_abbreviation
from voxbatch.speech.pieces import SENTENCE_PAUSE_S, split

BEFORE_NAMES = {
    "en": "Ms. Mx. Mr. Mrs. Dr. St. Ph.D. Atty. Prof. Mmes. Sen. Gen. Lt. Hon. Rev. Capt. J. U.S.",
    "fr": "M. Mme. Mmes. Mlle. Dr. Me. Pr. St. Mgr. J. J.-C. MM. Gén.",
    "de": "Dr. Prof. Hr. Fr. St. J. Dipl.-Ing. z.B. bzw. vgl. geb.",
    "es": "Sr. Sra. Srta. Dr. Dra. D. Dña. Ud. Av. J. Ing. Lic. Sta. Gral. EE.UU.",
    "it": "Sig. Dott. Prof. Avv. Ing. S. J. Geom. Arch. On. Mons.",
    "pt": "Sr. Sra. Dr. Dra. Prof. Av. R. J. Eng. D. Exmo.",
    "nl": "Dhr. Mevr. Mw. dr. drs. ir. mr. prof. St. J. Hr.",
    "ar": "د. أ. م. أ.د.",
    "hi": "डॉ. श्री. प्रो. कु.",
}
BEFORE_NUMBERS = {
    "en": "approx. est. Vol. Ch. Eq. Tel. Figs. No. Fig. p. pp. Jan. ed. cf. sec.",
    "fr": "no. p. av. art. vol. chap. env. tél. fig. janv.",
    "de": "Nr. ca. Abs. Art. Bd. S. Tel. Jan. Okt. inkl. zzgl. Abb. Kap. etw.",
    "es": "pág. núm. art. vol. cap. tel. p. aprox. fig.",
    "it": "pag. n. art. vol. cap. tel. fig. ca.",
    "pt": "n. p. pág. art. vol. cap. tel. núm. séc.",
    "nl": "nr. blz. ca. bijv. art. tel. jl. mln.",
    "ar": "ص. ج.",
    "hi": "सं. पृ.",
}
WORD = {"ar": "كتاب", "hi": "किताब"}
NAME = {"ar": "خالد", "hi": "शर्मा"}
EXAMPLES = [
    (lang, abbreviation, following)
    for table, number in ((BEFORE_NAMES, ""), (BEFORE_NUMBERS, "12"))
    for lang, abbreviations in table.items()
    for abbreviation in abbreviations.split()
    for following in [number or NAME.get(lang, "Smith")]
]


@pytest.mark.parametrize(("lang", "abbreviation", "following"), EXAMPLES)
def test_no_piece_ends_after_an_abbreviation(lang: str, abbreviation: str, following: str) -> None:
    """Wherever the limit of a piece falls, an abbreviation and what follows it stay together."""
    word = WORD.get(lang, "word")
    for count in range(25, 60):
        text = f"{word} " * count + f"{abbreviation} {following} " + f"{word} " * 30
        pieces = [piece for piece, _ in split(text.strip(), lang)]
        assert " ".join(pieces).split() == text.split()
        assert any(f"{abbreviation} {following}" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("lang", "text"),
    [
        ("en", "She said no. Then she left."), ("en", "It is art. He likes it."), ("en", "We met. You left."),
        ("fr", "Il parle de art. Puis il part."),
        ("de", "Das ist schön. Er kommt."), ("es", "Dijo que no. Luego se fue."),
        ("it", "Ha detto di no. Poi uscì."), ("nl", "Hij was red. Toen ging hij."), ("xx", "It was so. He left."),
    ],
)  # fmt: skip
def test_sentences_that_end(lang: str, text: str) -> None:
    """A word that is also an abbreviation ends a sentence, unless a number follows."""
    sentence, following = text.split(". ", 1)
    assert not is_abbreviation(f"{sentence.split()[-1]}.", following, lang)


def test_a_pause_follows_a_sentence() -> None:
    """A piece still ends at the end of a sentence."""
    first, second = f"Ms. Smith said {'so ' * 30}to Dr. Jones.", f"She {'walked ' * 20}home."
    assert split(f"{first} {second}", "en") == [(first, SENTENCE_PAUSE_S), (second, 0.0)]


@given(st.sampled_from(sorted(_KNOWN)), st.text("aB. .!?12Ms\n", max_size=400))
def test_nothing_is_lost(lang: str, text: str) -> None:
    """The pieces have all words that have a sound, in order."""
    pieces = " ".join(piece for piece, _ in split(text, lang)).split()
    assert [word for word in pieces if any(map(str.isalnum, word))] == [
        word for word in text.split() if any(map(str.isalnum, word))
    ]


def test_tables() -> None:
    """Words that are abbreviations, too, are among the abbreviations."""
    assert all(words <= _KNOWN[lang] for lang, words in _WORDS_TOO.items())
