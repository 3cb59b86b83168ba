"""Tests for scoring: normalization of texts, counts of errors, and sums over a corpus."""

from __future__ import annotations

import json
import re
import unicodedata
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

import jiwer
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whisper_normalizer.english import EnglishNumberNormalizer, EnglishTextNormalizer

from voxbatch.errors import ConfigError
from voxbatch.scoring.bootstrap import rate_interval
from voxbatch.scoring.corpus import CorpusScore, ScoreOptions, line_language
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.english import without_brackets
from voxbatch.scoring.normalize import Rules, normalize_unicode, normalizer, normalizer_name
from voxbatch.scoring.replacements import read_replacements
from voxbatch.scoring.units import error_unit, scored_language

TEXTS = st.text(max_size=60)
LANGS = st.sampled_from(["en", "fr", "hi", "ja", "th", None])
SENTENCES = st.lists(st.sampled_from(["one", "day", "red", "dog", "ran", "home", "far"]), max_size=12).map(" ".join)
COUNTS = st.builds(ErrorCounts, *[st.integers(0, 50)] * 4)


# --- normalization


@pytest.mark.parametrize(
    ("lang", "written", "normal"),
    [
        ("en", "It's my COLOUR, Mr. Grey!", "it is my color mister gray"),
        ("en-US", "Um, we're   gonna go.", "we are going to go"),
        ("EN_gb", "can't", "can not"),
        ("fr", "L’homme — 50 % d'ÉTÉ", "l homme 50 d été"),
        ("de", "Straße, STRASSE: weiß?", "strasse strasse weiss"),
        ("es", "¿Qué? ¡Sí!", "qué sí"),
        ("ja", "ＡＢＣ、カタカナ。", "abc カタカナ"),
        ("tr", "a+b = c_d", "a b c d"),
        (None, "Don't\tstop\u00a0now", "don t stop now"),
    ],
)
def test_texts_normalise_to_expected_form(lang: str | None, written: str, normal: str) -> None:
    """English is normalized by Whisper's rules; other languages lose only case, punctuation and symbols."""
    assert normalizer(lang)(written) == normal


@pytest.mark.parametrize("word", ["हिन्दी", "ภาษาไทยที่", "தமிழ்", "עִבְרִית", "বাংলা", "မြန်မာ"])
def test_combining_marks_stay(word: str) -> None:
    """Combining marks such as vowel signs and tone marks are part of a word and stay."""
    normal = normalizer("und")(f"«{word}!»")
    assert unicodedata.normalize("NFC", normal) == unicodedata.normalize("NFC", unicodedata.normalize("NFKC", word))


@pytest.mark.parametrize(
    ("lang", "written", "same"),
    [
        ("tr", "İSTANBUL güzel. IŞIK açık", "istanbul güzel ışık açık"),
        ("az-Latn", "BAKI İl, i\u0307ki", "bakı il iki"),
        ("ro", "ŞI o fată înţelege", "și o fată înțelege"),
        ("fr", "Le cœur d’Œdipe, ex æquo", "le coeur d'oedipe ex aequo"),
        ("ar", "السَّلَامُ كتـــاب ١٢٫٥", "السلام كتاب 12.5"),
        ("arz", "قَالَ", "قال"),
        ("ar", "کتاب علی", "كتاب علي"),
        ("fa", "مي\u200cخواهم ۵ كتاب", "می\u200cخواهم 5 کتاب"),
        ("fa", "خانه\u0654 ما", "خانۀ ما"),
        ("ur", "اُردُو ۹ هے", "اردو 9 ہے"),
        ("vi", unicodedata.normalize("NFD", "Hòa bình, thủy, KHỎE"), "hoà bình thuỷ khoẻ"),
        ("mr", "र्\u200dया", "ऱ्या"),
        ("lo", "ນ\u0ecd\u0ec9າ", "ນ້ຳ"),
        ("he", "שָׁלוֹם \ufb2aל", "שלום של"),
        ("hi", "१० बजे", "10 बजे"),
        ("bn", "উত্\u200dসব ৫", "উৎসব 5"),
        ("ml", "അവന്\u200d", "അവൻ"),
        ("th", "เเม่น้ํา ๑๐", "แม่น้ำ 10"),
        ("ru", "ещё", "еще"),
        ("en", "I don`t know, it´s what they′ll see", "I don't know, it's what they'll see"),
        ("en", "{BREATH} the co\u00adoper\u200bation… was ﬁne", "The cooperation was fine"),
        ("de", "a ❤\ufe0f {SMACK} Mo\u00adnat\u2060e\ufeff …", "a ❤ Monate"),
        ("uk", "п’ять пʼять п`ять", "п'ять п'ять п'ять"),
        (None, "١٢ a\u200fb", "12 ab"),
    ],
)
def test_spellings_of_the_same_words_are_equal(lang: str | None, written: str, same: str) -> None:
    """The scoring form of a language leaves no error between two spellings of the same letters."""
    assert count_errors(written, same, lang).errors == count_errors(same, written, lang).errors == 0


@pytest.mark.parametrize(
    ("lang", "text", "other"),
    [
        ("tr", "ilik", "ılık"), ("en", "I", "ı"), ("fr", "cote", "côte"), ("de", "schon", "schön"),
        ("da", "læse", "laese"), ("lv", "ģ", "g"), ("ar", "آن", "ان"), ("yi", "אַ", "אָ"), ("fa", "آب", "اب"),
        ("hi", "हिन्दी", "हनद"), ("th", "มา", "ม้า"), ("my", "မာ", "မ"), ("ps", "ي", "ی"), ("bg", "ё", "е"),
    ],
)  # fmt: skip
def test_letters_and_vowels_stay_different(lang: str, text: str, other: str) -> None:
    """No form makes letters equal that the language tells apart, or deletes marks that are vowels."""
    assert count_errors(text, other, lang).errors == 1


@given(TEXTS)
@example("\u0345\u0301a\u00b4\u1fb4")
def test_unicode_normaliser_is_idempotent(text: str) -> None:
    """Normal text is unchanged, and contains no punctuation, symbols or unusual spaces."""
    normal = normalizer("fr")(text)
    assert normalizer("fr")(normal) == normal
    assert not [char for char in normal if unicodedata.category(char)[0] in "PSZ" and char != " "]


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_ascii_is_normalised_like_any_other_text(text: str) -> None:
    """The fast way for ASCII gives what the way for all characters gives: a letter beside the text changes nothing."""
    assert f"{normalizer('fr')(f'{text} ł')}" == f"{normalizer('fr')(text)} ł".strip()


def test_very_long_number_is_scored() -> None:
    """A model in a loop may write a number of 5,000 digits, which is one wrong word and no crash."""
    assert count_errors("number one", "number " + "1" * 5000, "en") == ErrorCounts(1, 0, 0, 2)


@pytest.mark.parametrize(
    ("lang", "subtag"),
    [
        ("pt-BR", "pt"),
        ("EN_us", "en"),
        (" zh-Hant-TW", "zh"),
        ("cmn", "zh"),
        ("yue", "yue"),
        (None, "und"),
        ("", "und"),
    ],
)
def test_language_is_the_primary_subtag(lang: str | None, subtag: str) -> None:
    """Regions and scripts do not make another language."""
    assert scored_language(lang) == subtag


def test_error_unit_depends_on_the_script() -> None:
    """Languages written without spaces are counted in characters, whatever their region; all others in words."""
    assert {error_unit(lang) for lang in ["zh", "zh-CN", "yue", "ja", "JA-jp", "th", "lo", "km", "my", "bo"]} == {
        "character"
    }
    assert {error_unit(lang) for lang in ["en", "ko", "vi", "hi", "ar", None, ""]} == {"word"}


PACKAGE = EnglishTextNormalizer()
WHISPER = Rules("whisper")


def library_rules(text: str) -> str:
    """Return what the package makes of a text, or our own rules where the package fails."""
    try:
        return " ".join(PACKAGE(" ".join(text.split())).split())
    except (AssertionError, ValueError, ArithmeticError):
        return normalize_unicode(text)


NUMBERS = sorted(EnglishNumberNormalizer().words)
ENGLISH_TEXT = """
    the cat mr. st she's he'd been gone done got it's can't um uh uh's colour half a and th s nd well-known twenty-one
    half-past 'tis (laughs) [x] <unk> i'm y'all no. etc.. o'clock one's two-thirds 1st 21st, five, été 5 20 1,000 3.5
    1960s $5 20% $ % - -- ½ x² it’s naïve "yes" “so so,” been. One. Um, Uh! ’s d’une 1.5.2 [ ( ) >
"""
"""Words that the English rules treat in every way."""
ENGLISH_WORDS = ENGLISH_TEXT.split() + re.findall(r"(?<=\\b)[a-z']+", " ".join(PACKAGE.replacers))


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(st.one_of(st.sampled_from(ENGLISH_WORDS), st.sampled_from(NUMBERS)), max_size=14).map(" ".join))
@example("she's been one and a half minus um five dollars and seven cents")
@example("he's gotta go, they'd gotta")
@example(f"the {'a' * 60} one {'two ' * 60} cat")
def test_english_rules_are_those_of_the_package(text: str) -> None:
    """Remembering words and numbers changes nothing: the result is what the package makes of the whole text."""
    assert normalizer("en", WHISPER)(text) == library_rules(text)


@given(st.text("()[]<>ab ", max_size=30))
def test_brackets_are_removed_as_in_the_package(text: str) -> None:
    """Unclosed, nested and empty brackets are treated as the package's expressions treat them."""
    expected = re.sub(r"\(([^)]+?)\)", "", re.sub(r"[<\[][^>\]]*[>\]]", "", text))
    assert without_brackets(text) == expected.translate(str.maketrans("<[(", ";;;"))


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "fr"])
def test_a_megabyte_of_brackets_is_normalised(lang: str) -> None:
    """Text that is only brackets costs linear time; the package's expressions would take hours."""
    assert normalizer(lang)("(" * 1_000_000) == normalizer(lang)("[<" * 500_000) == ""


# --- counts


@pytest.mark.parametrize(
    ("lang", "reference", "hypothesis", "counts"),
    [
        ("en", "the cat sat", "the cat sat down", ErrorCounts(0, 1, 0, 3)),
        ("en", "the cat sat", "the sat", ErrorCounts(0, 0, 1, 3)),
        ("en", "the cat sat", "the dog sat", ErrorCounts(1, 0, 0, 3)),
        ("en", "The cat sat.", "the  CAT, sat", ErrorCounts(0, 0, 0, 3)),
        ("en", "", "thank you", ErrorCounts(0, 2, 0, 0)),
        ("zh", "今天 天气好。", "今天气很好", ErrorCounts(2, 0, 0, 5)),
        ("ja", "カタカナ", "カタカタ", ErrorCounts(1, 0, 0, 4)),
        ("zh", "ＡＢ型血。", "AB型", ErrorCounts(0, 0, 1, 4)),
        ("th", "ไทย ดี", "ไทยดี่", ErrorCounts(0, 1, 0, 5)),
        ("hi", "मैं घर जा रहा हूँ", "में घर जा रहा हूँ", ErrorCounts(1, 0, 0, 5)),
        ("en", "yes", "oh yes I think so yes indeed", ErrorCounts(0, 6, 0, 1)),
        ("en", "[laughter] so, uh, <unk> twenty one people", "so 21 people (laughs)", ErrorCounts(0, 0, 0, 3)),
        ("de", "[Gelächter] also, <unk> ja", "also ja (lacht) 【Musik】", ErrorCounts(0, 0, 0, 2)),
    ],
)
def test_counts_match_hand_counted_errors(lang: str, reference: str, hypothesis: str, counts: ErrorCounts) -> None:
    """Substitutions, insertions, deletions and reference length equal counts made by hand."""
    assert count_errors(reference, hypothesis, lang) == counts


@given(TEXTS, LANGS)
def test_a_text_equals_itself(text: str, lang: str | None) -> None:
    """A text against itself has no errors; against nothing it has only deletions."""
    same, nothing = count_errors(text, text, lang), count_errors(text, "", lang)
    assert same.errors == 0
    assert nothing == ErrorCounts(0, 0, nothing.reference_length, same.reference_length)


@given(SENTENCES, SENTENCES)
def test_errors_are_the_levenshtein_distance(reference: str, hypothesis: str) -> None:
    """The number of errors equals that of the textbook recurrence, written out here."""
    ref, hyp = reference.split(), hypothesis.split()
    row = list(range(len(hyp) + 1))
    for i, word in enumerate(ref, 1):
        diagonal, row[0] = row[0], i
        for j, heard in enumerate(hyp, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != heard))
    assert count_errors(reference, hypothesis, "fr").errors == row[-1]


def heard(text: str, random: Random, others: list[str]) -> str:
    """Return a text as a model might write it: with errors, other case and punctuation, cut off, or in a loop."""
    words = text.split()
    kept = [random.choice(others) if random.random() < 0.1 else word for word in words if random.random() > 0.05]
    kept = [word for each in kept for word in ([each, random.choice(others)] if random.random() < 0.05 else [each])]
    fate = random.random()
    if fate < 0.05:
        return ""
    if fate < 0.1:
        return " ".join(words[: len(words) // 2])
    return " ".join(kept * 20 if fate < 0.15 else kept).capitalize() + "."


@pytest.mark.slow
def test_real_pairs_have_the_counts_of_jiwer(corpus: Path) -> None:
    """On the references of all test recordings, in five languages, jiwer finds the same substitutions, deletions and
    insertions, for each pair and for the corpus.
    """
    lines = (corpus / "speech" / "manifest.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["text"]]
    vocabulary, random = " ".join(row["text"] for row in rows).split(), Random(19)
    score, normal = CorpusScore(), []
    for row in rows:
        lang, reference, hypothesis = row["lang"], row["text"], heard(row["text"], random, vocabulary)
        normal.append((normalizer(lang)(reference), normalizer(lang)(hypothesis)))
        expected, found = jiwer.process_words(*normal[-1]), score.add_pair(lang, reference, hypothesis)
        assert found == ErrorCounts(
            expected.substitutions, expected.insertions, expected.deletions,
            expected.hits + expected.substitutions + expected.deletions,
        )  # fmt: skip
        assert found.rate == pytest.approx(expected.wer, abs=1e-9)
        assert found.match_error_rate == pytest.approx(expected.mer, abs=1e-9)
    assert len(normal) >= 300
    total = jiwer.process_words([reference for reference, _ in normal], [hypothesis for _, hypothesis in normal])
    counts = score.total("word").counts
    assert counts.rate == pytest.approx(total.wer, abs=1e-9)
    assert (counts.substitutions, counts.deletions, counts.insertions) == (
        total.substitutions, total.deletions, total.insertions,
    )  # fmt: skip


def test_rate_is_errors_per_reference_word() -> None:
    """The rate is errors over reference length: above 1 with many insertions, and None without a reference."""
    assert ErrorCounts(1, 1, 0, 4).rate == 0.5
    assert ErrorCounts(0, 6, 0, 3).rate == 2.0
    assert ErrorCounts(0, 6, 0, 0).rate is None


def test_long_and_repeated_transcripts_are_counted() -> None:
    """A quarter of an hour of speech, and a model stuck on one sentence."""
    sentence = "we walked along the river until the bridge came in sight "
    long = count_errors(sentence * 250, (sentence * 249).replace("river", "road"), "en")
    stuck = count_errors(sentence, sentence * 100, "en")
    assert (long.errors, long.reference_length) == (249 + 11, 2750)
    assert stuck == ErrorCounts(0, 99 * 11, 0, 11)


def test_korean_is_counted_in_words_and_in_characters() -> None:
    """A wrong space costs two words of three, and no character of seven."""
    score = CorpusScore()
    score.add_pair("ko", "나는 학교에 간다", "나는 학교 에 간다")
    score.add_missing("ko-KR", "네")
    summary = score.to_dict()
    assert (summary["wer"], summary["cer"], summary["items"], summary["missing"]) == (3 / 4, 1 / 8, 1, 1)
    assert summary["by_language"]["ko"]["characters"]["reference_characters"] == 8
    assert CorpusScore.from_dict(summary).to_dict() == summary


@pytest.mark.parametrize(
    ("rules", "lang", "written", "normal"),
    [
        (Rules(case=True), "en", "Mr. Grey's colour, um", "Mr Grey s colour um"),
        (Rules(punctuation=True), "en", "Yes, Mr. Grey [coughs]!", "yes, mr. grey !"),
        (Rules(case=True, punctuation=True), "fr", "L’été,  oui.", "L'été, oui."),
        (Rules("none"), "en", " Yes,  <unk> Sir. ", "Yes, <unk> Sir."),
        (Rules("basic"), "en", "It's 5 o'clock", "it s 5 o clock"),
        (Rules("english"), "fr", "It's colour", "it is color"),
        (Rules("whisper-basic"), "hi", "हिन्दी", "ह न द"),
        (WHISPER, "hi", "हिन्दी", "ह न द"),
        (WHISPER, "eng", "It’s {BREATH} ok", "it s breath ok"),
    ],
)
def test_rules_can_be_chosen(rules: Rules, lang: str, written: str, normal: str) -> None:
    """Each normaliser and switch does what its name says, and its name is in the result."""
    assert normalizer(lang, rules)(written).strip() == normal


def test_names_of_rules_have_the_version() -> None:
    """The name of the rules says which library or Unicode version they come from, and what was switched on."""
    version = metadata.version("whisper-normalizer")
    assert normalizer_name("en") == f"Whisper's English rules (whisper-normalizer {version}), scoring form 3"
    assert normalizer_name("en", WHISPER) == f"Whisper's English rules (whisper-normalizer {version})"
    unicode = unicodedata.unidata_version
    assert normalizer_name("en", Rules(case=True)) == f"basic rules (Unicode {unicode}), scoring form 3, case kept"
    assert normalizer_name("en", Rules("none")) == "no rules: words are separated by spaces"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalizer": "nemo"}, "normalizer 'nemo': allowed are auto, english, basic, whisper, whisper-basic, none"),
        ({"normalizer": "english", "case": True}, "these rules remove both; give them with --normalizer basic"),
        ({"normalizer": "none", "punctuation": True}, "the texts are compared as they are"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    """An unknown normaliser, or one that cannot keep what shall be kept, is an error."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        Rules(**settings)


@pytest.mark.parametrize(
    "text", ['{"O.K.": "okay", "ok then": "well", "uh": "", "cat": "dog"}', "O.K.\tokay\r\nok then\twell\ncat\tdog\n"]
)
def test_words_of_a_file_are_replaced_after_the_rules(text: str, tmp_path: Path) -> None:
    """Whole words are replaced once, the longest first, and both columns are normalised like the texts."""
    (tmp_path / "words.txt").write_text(text)
    rules = Rules(replacements=read_replacements(str(tmp_path / "words.txt")))
    assert normalizer("en", rules)("OK then, a CAT; o.k.? cats um") == "well a dog okay cats"
    assert normalizer("fr", rules)("OK then, dog, cat") == "well dog dog"
    assert normalizer("zh", rules)("cat") == "dog"
    assert "replacements of words.txt (SHA-256 " in normalizer_name("en", rules)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\tb\nonly one\n", "line 2: 'only one' does not have two columns; write the words that are replaced, a tab"),
        (b"a\tb\tc\n", "line 1: 'a\\tb\\tc' does not have two columns"),
        (b"a\tb\n\tc\n", "line 2: '\\tc' does not have two columns"),
        (b"a\tb\na\tc\n", "line 2: 'a' is in two lines; keep one of them"),
        (b"a\tb\n\xe9\tc\n", "line 2: is not UTF-8; save the file as UTF-8"),
        (b'{"a": "b",\n "c" "d"}', "line 2: not JSON: "),
        (b'["a"]', "line 1: is not a JSON object"),
        (b'{"a": 1}', "'a': 1 is not a replacement"),
        (b"\n\n", "holds no replacement"),
    ],
)
def test_a_bad_file_of_replacements_is_an_error(data: bytes, message: str, tmp_path: Path) -> None:
    """The error names the file, the line, what is wrong and what to write."""
    (tmp_path / "words.tsv").write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(f"words.tsv: {message}")):
        read_replacements(str(tmp_path / "words.tsv"))


# --- sums


def test_corpus_rate_is_not_the_mean_of_rates() -> None:
    """One error in 1 word and none in 9 make 10 %, not the average of 50 %."""
    score = CorpusScore()
    score.add("en", ErrorCounts(1, 0, 0, 1))
    score.add("en", ErrorCounts(0, 0, 0, 9))
    assert score.to_dict()["wer"] == 0.1


def test_a_missing_transcript_counts_as_deletions() -> None:
    """An item with a reference and no transcript counts as missing, and all of its words as deleted."""
    score = CorpusScore()
    score.add("en", ErrorCounts(0, 0, 0, 4))
    assert score.add_missing("en", "It's gone.") == ErrorCounts(0, 0, 3, 3)
    assert score.to_dict()["by_language"]["en"] == {
        "wer": round(3 / 7, 6),
        "interval": [0.0, 1.0],
        "match_error_rate": round(3 / 7, 6),
        "errors": 3,
        "substitutions": 0,
        "insertions": 0,
        "deletions": 3,
        "reference_words": 7,
        "items": 1,
        "missing": 1,
        "empty_references": 0,
        "empty_hypotheses": 0,
        "normalizer": normalizer_name("en"),
    }


def test_words_and_characters_are_never_added_together() -> None:
    """Languages counted in words make the WER, the others the CER, and each language has its own rate."""
    score = CorpusScore()
    score.add("en", ErrorCounts(1, 0, 0, 10))
    score.add("fr-CA", ErrorCounts(2, 0, 0, 10))
    score.add("zh-TW", ErrorCounts(0, 0, 3, 6))
    summary = score.to_dict()
    assert (summary["wer"], summary["cer"], summary["items"], summary["missing"]) == (0.15, 0.5, 3, 0)
    assert summary["words"]["reference_words"] == 20
    assert summary["characters"]["reference_characters"] == 6
    assert {lang: row.get("wer", row.get("cer")) for lang, row in summary["by_language"].items()} == {
        "en": 0.1,
        "fr": 0.2,
        "zh": 0.5,
    }


@pytest.mark.parametrize(
    ("line", "language", "used"),
    [
        ({"lang": "de"}, "en", "de"),
        ({"lang": "German"}, None, "de"),
        ({}, "en", "en"),
        ({"lang": "de", "detected_language": "de"}, "en", "en"),
        ({"lang": "de", "detected_language": "de"}, None, "de"),
        ({"lang": None}, None, None),
        ({}, None, None),
    ],
)
def test_the_given_language_comes_before_the_detected_one(
    line: dict[str, str], language: str | None, used: str | None
) -> None:
    """A line is scored by its own `lang`, else the language of the command, else the detected one."""
    assert (line_language(line, language) or None) == used


def test_each_key_has_a_table_of_its_own() -> None:
    """The items are grouped by each key; an item without the key is in a group of its own."""
    score = CorpusScore(options=ScoreOptions(by=("speaker", "take")))
    score.add("en", ErrorCounts(1, 0, 0, 10), {"speaker": "A", "take": 1})
    score.add("zh", ErrorCounts(0, 0, 2, 10), {"speaker": "A", "take": 2})
    score.add("en", ErrorCounts(0, 0, 0, 10), {"speaker": "B", "take": None})
    score.add_missing("en", "red dog", {"speaker": "B"})
    by = score.to_dict()["by"]
    assert {key: list(values) for key, values in by.items()} == {"speaker": ["A", "B"], "take": ["(none)", "1", "2"]}
    assert [(by["speaker"][who]["wer"], by["speaker"][who]["cer"]) for who in "AB"] == [
        (0.1, 0.2),
        (round(2 / 12, 6), None),
    ]
    assert by["speaker"]["B"]["missing"] == by["take"]["(none)"]["missing"] == 1


def test_empty_texts_are_counted_apart() -> None:
    """An empty reference, an empty transcript and a missing one are three different things."""
    score = CorpusScore()
    score.add_pair("en", "[noise]", "hello there")
    score.add_pair("en", "one day", " - ")
    score.add_pair("en", "", "")
    score.add_missing("en", "red dog")
    words = score.to_dict()["words"]
    seen = {name: words[name] for name in ("items", "missing", "empty_references", "empty_hypotheses", "wer")}
    assert seen == {"items": 3, "missing": 1, "empty_references": 2, "empty_hypotheses": 2, "wer": 6 / 4}
    assert words["match_error_rate"] == 1.0


def test_the_interval_is_that_of_the_items_or_of_the_clusters() -> None:
    """The corpus, each language and each group have an interval; with clusters, items of one count as one."""
    by_item, by_speaker = CorpusScore(), CorpusScore(options=ScoreOptions(cluster_by="speaker"))
    for n in range(200):
        counts = ErrorCounts(n % 20 // 10 * 2, 0, 0, 10)
        by_item.add("en", counts)
        by_speaker.add("en", counts, {"speaker": n % 20})
    one, other = by_item.total("word").interval, by_speaker.total("word").interval
    assert one == rate_interval({(0, 10): 100, (2, 10): 100})
    assert other == rate_interval({(0, 100): 10, (20, 100): 10})
    assert by_item.to_dict()["by_language"]["en"]["interval"] == list(one or ())
    assert (by_item.to_dict()["interval_by"], by_speaker.to_dict()["interval_by"]) == ("item", "speaker")


def test_a_stored_score_is_read_with_its_intervals() -> None:
    """The output of to_dict is read again, to the same values."""
    score = CorpusScore()
    for n in range(50):
        score.add("en" if n % 2 else "zh", ErrorCounts(n % 3, 0, 0, 10))
    stored = json.loads(json.dumps(score.to_dict()))
    assert CorpusScore.from_dict(stored).to_dict() == stored


def test_an_empty_corpus_has_no_rates() -> None:
    """An empty corpus has no rate, rather than a perfect one."""
    summary = CorpusScore().to_dict()
    assert (summary["wer"], summary["cer"], summary["items"], summary["by_language"]) == (None, None, 0, {})


@pytest.mark.slow
@given(st.lists(st.tuples(LANGS, COUNTS), max_size=30), st.randoms())
def test_order_does_not_matter(rows: list[tuple[str | None, ErrorCounts]], random: Random) -> None:
    """The same items in any order give the same JSON bytes."""
    one, other = CorpusScore(), CorpusScore()
    for lang, counts in rows:
        one.add(lang, counts)
    random.shuffle(rows)
    for lang, counts in rows:
        other.add(lang, counts)
    assert json.dumps(one.to_dict()) == json.dumps(other.to_dict())
