"""Tests for `voxbatch redact`: no byte of a secret in its outputs, silence in the sound, kills, and what is found."""

from __future__ import annotations

import importlib.util
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import soundfile
from conftest import ROOT, Recorder, Voxbatch
from killed_at import VARIABLE
from numpy.typing import NDArray
from servers import Place

from voxbatch.config import FORMATS
from voxbatch.errors import StorageError
from voxbatch.records import SAMPLING_RATE, Item, Transcript, Word
from voxbatch.storage import DEFAULT_STORES
from voxbatch.works.redact.detector import find_secrets
from voxbatch.works.redact.engine import PACKAGES
from voxbatch.works.redact.key import own_key
from voxbatch.works.redact.options import RedactionOptions
from voxbatch.works.redact.rules import PatternRule, RedactionRules, load, own_name
from voxbatch.works.redact.steps import RedactedItem, redacted_item
from voxbatch.works.redact.transcript import pieces_of

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, PACKAGES)),
    reason="the detectors are not installed: pip install 'voxbatch[redact]'",
)

CALL = (
    "Hello , my name is Olga Brandstetter . The card is 44015500 okay 12345670 and the mail is olga at wombat dot org"
)
SECRETS = ("Olga", "Brandstetter", "44015500", "12345670", "wombat")
OTHERS = ("Hello", "card", "okay", "mail")


@pytest.fixture(scope="module")
def rules() -> RedactionRules:
    return load(None, DEFAULT_STORES)


def found(
    text: str, lang: str | None, rules: RedactionRules, speakers: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Return the kind and the words of each secret in a text."""
    words = text.split()
    secrets = find_secrets(words, speakers or [None] * len(words), lang, rules)
    return [(secret.kind, " ".join(words[at].strip(".,") for at in secret.pieces)) for secret in secrets]


# -- what is found


@pytest.mark.parametrize(
    ("lang", "text", "kind", "secret"),
    [
        ("en", "It is four four oh one, double five. And 0012 3456.", "card", "four four oh one double five 0012 3456"),
        ("en", "Call me at plus 44 20 7946 0958.", "phone", "44 20 7946 0958"),
        ("en", "My PIN is 4 4 1 2.", "code", "4 4 1 2"),
        ("en", "My social security number is 078-05-1120.", "national_id", "078-05-1120"),
        ("en", "Born on the third of May 1984. Nice.", "date_of_birth", "third of May 1984"),
        ("en", "write to j dot smith at example dot co dot uk please", "email", "j dot smith at example dot co dot uk"),
        ("de", "Karte vierundvierzig null eins zwo 1234 5678.", "card", "vierundvierzig null eins zwo 1234 5678"),
        ("de", "Er wohnt in der Hauptstraße 12, 10115 Berlin.", "address", "Hauptstraße 12 10115 Berlin"),
        ("fr", "Appelez-moi au zéro six douze soixante-dix-huit 34", "phone", "zéro six douze soixante-dix-huit 34"),
        ("fr", "J'habite 12 rue de la Paix, 75002 Paris.", "address", "12 rue de la Paix 75002 Paris"),
        ("es", "Mi tarjeta es cuarenta y cuatro cero uno 5500 12", "card", "cuarenta y cuatro cero uno 5500 12"),
        ("es", "mi DNI es 12345678Z", "national_id", "12345678Z"),
        ("en", "You can charge $997,155,973,166,267,1 please …", "card", "$997,155,973,166,267,1"),
        ("es", "El IVA-SS-41797-999-4873-11466 .", "number", "IVA-SS-41797-999-4873-11466"),
        ("de", "Meine E-Mail ist Haiker-Punkt vom Atmei-Punkt-Kom.", "email", "Haiker-Punkt vom Atmei-Punkt-Kom"),
        ("en", "hello my name is oliver smith and i call about the weather", "person", "oliver smith"),
        ("it", "la carta 4401 5500 1234 567", "card", "4401 5500 1234 567"),
        ("en", "Sure, the card is 1-847, UM-2370, UM-2257 please.", "card", "1-847 UM-2370 UM-2257"),
        ("en", "My pen is 247. The bank is closed.", "code", "247"),
        ("en", "Yes, it is four nine, seven one.", "code", "four nine seven one"),
        ("en", "I live at 53 Hero, Wexcombe.", "address", "53 Hero Wexcombe"),
        ("en", "They moved to SW-1-A-2-BX.", "address", "SW-1-A-2-BX"),
        ("de", "Mein Geburtstagung war der 10. Juni 1973.", "date_of_birth", "10 Juni 1973"),
        ("fr", "Mon portable L06 fit, 1, 2, 8, 9, 4, 7, 3.", "phone", "L06"),
        ("fr", "Nous avons vu Yanic Malvoix au bureau.", "person", "Yanic Malvoix"),
        ("fr", "Hier, étienne Bourmy est venu.", "person", "étienne Bourmy"),
        ("fr", "Il est au 20 Voltaire, 7-5-01-1 Lyon.", "address", "7-5-01-1 Lyon"),
        ("es", "Escriba Andrés.olmborri.com por favor", "email", "Andrés.olmborri.com"),
        ("de", "Meine Kartennummer ist 7407 dann 0321 ok2653, ok788.", "card", "7407 0321 ok2653 ok788"),
        ("fr", "Merci de virer sur LibanFR208, 5, 5, 4, 6, 0, 5.", "phone", "LibanFR208 5 5 4 6 0 5"),
        ("fr", "Le cryptogramme est si 3.8.", "code", "3.8"),
        ("fr", "Je suis étienne d'Elchand.", "person", "étienne d'Elchand"),
        ("fr", "Je suis véronique montier.", "person", "véronique"),
        ("fr", "Écriver Thierry.verlan.arobas.voubatemail.com", "email", "Thierry.verlan.arobas.voubatemail.com"),
        ("de", "Ich habe mit Annegret-Ackerstädter gesprochen.", "person", "Annegret-Ackerstädter"),
        ("de", "Meine Kartennummer ist 0 8 1 6 4 7 4 5 8 8 1 2 1 8 9te auf", "card", "0 8 1 6 4 7 4 5 8 8 1 2 1 8 9te"),
        ("en", "My PI N is $2580.", "code", "$2580"),
        ("fr", "Merci de virer sur LibanFR38 6, 2, 1, 5, 8 5, 9.", "phone", "LibanFR38 6 2 1 5 8 5 9"),
        ("es", "Puede cargarlo en la 2.056 vale 2.523 luego 2.426, vale 4.375.", "card", "2.056 2.523 2.426 4.375"),
        ("it", "la carta quattro quattro zero uno trentadue due", "number", "quattro quattro zero uno trentadue due"),
        ("fr", "Le cryptogramme est 5-8-05.", "code", "5-8-05"),
        ("fr", "Mon cas des 7,8,9.", "code", "7,8,9"),
        ("fr", "Mon numéro de carte est 9,097e, 1,477, puis 0,160, puis 4,655.", "card", "9,097e 1,477 0,160 4,655"),
        ("de", "Der Kot lautet ein sieben.", "code", "ein sieben"),
        ("en", "My mobile number is 212555819, one of you knows it.", "phone", "212555819 one"),
        ("es", "La cuenta es la 8-0-8-2 luego 0-6-6-6, en 9-2.", "account", "9-2"),
        ("es", "Mi número es el 6 3 8 4, e 2 4 6 0, e 2.", "phone", "6 3 8 4 2 4 6 0 2"),
        ("de", "Ich heiße Brandstetter.", "person", "Brandstetter"),
        ("en", "We will see Anna March the third.", "person", "Anna"),
        ("fr", "La réservation est au nom de Camille Malrand.", "person", "Camille Malrand"),
        ("en", "My code is - five two one.", "code", "five two one"),
        ("en", "The card is 4401 5500 yes 1234 no 5670.", "card", "4401 5500 1234 5670"),
    ],
)  # fmt: skip
def test_a_secret_is_found(lang: str, text: str, kind: str, secret: str, rules: RedactionRules) -> None:
    """Numbers in digits and words, in groups of any kind, with a digit too few, and addresses are found."""
    assert (kind, secret) in found(text, lang, rules)


@pytest.mark.parametrize(
    ("lang", "text", "secrets"),
    [
        ("en", "We saw Garith? Ferris? worth? at work .", ["Garith? Ferris? worth?"]),
        ("de", "Gestern war Friedere? gewüßt? stetter? hier .", ["Friedere? gewüßt? stetter?"]),
        ("fr", "Je m'appelle bénédict? Vervie .", ["bénédict? Vervie"]),
        ("en", "Please ask for a meal your? whenridge? .", ["a meal your? whenridge? ."]),
        ("de", "Hier spricht die riemhof? mehr . Sie kommt .", ["die riemhof? mehr ."]),
        ("fr", "Nous avons vu soulène? le? rang? au bureau .", ["soulène? le? rang?"]),
        ("fr", "Pouvez-vous me passer au dîle? verneau? , s'il vous plaît ?", ["au dîle? verneau?"]),
        ("es", "La señora villadarte? le llamará mañana .", ["villadarte?"]),
        ("de", "Ich habe mitteil? gelindteil? gesprochen .", ["mitteil? gelindteil?"]),
        ("fr", "Mon mari s'appelle Solène? .", ["Solène?"]),
        ("fr", "Je suis né? à Lyon .", []),
        ("en", "She saw me? digging? in the garden .", []),
        ("es", "Son las diez y tardas? tres horas .", []),
        ("de", "Ihr besitzt die Tschechische? Staatsbürgerschaft? seit Mai .", []),
        ("de", "Er sagt danke. Vielen? Leuten? gefällt es .", []),
        ("en", "The train? leaves? at ten? past? Monday .", []),
    ],
)
def test_a_name_that_the_recogniser_doubts_is_found(
    lang: str, text: str, secrets: list[str], rules: RedactionRules
) -> None:
    """A word with a low confidence (?) is a part of a name beside it, and needs no capital if it is nearly a name."""
    words = text.split()
    confidences = [0.5 if word.endswith("?") else 0.95 for word in words]
    redacted = find_secrets([word.strip("?") for word in words], [None] * len(words), lang, rules, confidences)
    assert [" ".join(words[at] for at in secret.pieces) for secret in redacted] == secrets


@pytest.mark.parametrize(
    "text",
    [
        "In 2019, 2020, 2021 and 2022 we had 300 people and 10,000 dollars.",
        "The train leaves at 10:45 and takes 3 hours, one of the fastest.",
        "We will meet in May, at the market in Paris.",
        "Chapter 7 has 12 pages; it costs $45.90, or 1 200 000 euros in all.",
        "One, two, three, go! They said it was ever so good.",
        "We read about it on www.example.com and in the Yanic.",
        "They sold 300 units in 2019 450 in 2020, and left at 10h45.",
        "It costs 12,500, one of the best.",
        "He was born in Maine, in March.",
    ],
)
def test_other_numbers_and_words_stay(text: str, rules: RedactionRules) -> None:
    """Years, times, amounts and words that are also names are no secrets."""
    assert not found(text, "en", rules)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["five", "B5", "mail", "dot", "Anna"])
def test_a_word_that_a_recogniser_repeats_takes_no_long_time(word: str, rules: RedactionRules) -> None:
    """The time grows with the number of words, and not with its square: it would be 20 s."""
    start = time.process_time()
    find_secrets([word] * 3000, [None] * 3000, "en", rules)
    assert time.process_time() - start < 7


def test_a_repeat_that_a_recogniser_repeats_is_read(rules: RedactionRules) -> None:
    """Thousands of words that each double the next one are no deep recursion."""
    text = "double " * 3000 + "five 4401 5500 1234 5670"
    assert [kind for kind, _ in found(text, "en", rules)] == ["card"]


def test_a_number_goes_over_the_turns_of_speakers(rules: RedactionRules) -> None:
    """Words of another speaker between the parts of a number are not a part of it."""
    text = "four four oh one go ahead please 5500 1234 5670"
    speakers = ["a", "a", "a", "a", "b", "b", "b", "a", "a", "a"]
    assert found(text, "en", rules, speakers) == [("card", "four four oh one 5500 1234 5670")]


@pytest.mark.parametrize(
    ("turns", "secret"),
    [
        ("My:a Hello,:b name:a this:b is:a is:b Olgavia:a support.:b Quilmarsh.:a", "Olgavia Quilmarsh"),
        ("olgavia:a yes:b at:a yes:b wombat:a okay:b dot:a sure:b org:a", "olgavia at wombat dot org"),
        ("security:a yes:b code:a I:b is:a see:b 4:a a:b 4:a code:b 1:a then:b 2:a", "4 4 1 2"),
        ("He:a So:b lives:a I:b at:a see,:b 12:a he:b Wombat:a does.:b Street.:a", "12 Wombat Street"),
        ("project:a you:b heron:a say:b", "project heron"),
    ],
)
def test_a_secret_is_found_where_two_people_talk_at_once(turns: str, secret: str, rules: RedactionRules) -> None:
    """The words of a speaker are looked at without those of another one between them, too."""
    words, speakers = zip(*(turn.split(":") for turn in turns.split()), strict=True)
    own = replace(rules, patterns=[PatternRule("person", "own", own_name("project heron"))])
    redacted = " ".join(texts for _, texts in found(" ".join(words), "en", own, speakers))
    assert {*secret.split()} <= {*redacted.split()}


def test_check_digits_never_take_a_secret_back(rules: RedactionRules) -> None:
    """A number with wrong check digits is as much of a secret as one with right ones, which is marked."""
    for number, is_right in (("4539 1488 0343 6467", True), ("4539 1488 0343 6468", False)):
        (secret,) = find_secrets(number.split(), [None] * 4, "en", rules)
        assert (secret.kind, secret.is_checked) == ("card", is_right)


def test_a_word_that_the_recogniser_has_divided_is_one() -> None:
    """The parts of a number with hyphens are one word with the times of all; words of Chinese stay."""
    words = (Word(" is", 0, 1), Word(" 4401", 1, 2), Word("-550", 2, 3), Word("-1234.", 3, 4))
    whole = pieces_of(Transcript("is 4401-550-1234.", words))
    assert [(piece.text, piece.start, piece.end) for piece in whole] == [("is", 0, 1), ("4401-550-1234.", 1, 4)]
    assert len(pieces_of(Transcript("你好", (Word("你", 0, 1), Word("好", 1, 2))))) == 2


# -- the copy of an item


def copied(words: list[dict[str, Any]], offset: float = 0.0, **options: Any) -> tuple[RedactedItem, NDArray[np.int16]]:
    """Return the copy of an item with 4 s of sound, and its samples."""
    row = {
        "pred_text": " ".join(word["word"] for word in words), "words": words, "segments": [], "audio_duration": 4.0,
        "lang": "en",
    }  # fmt: skip
    item = Item(0, 1, "a", "/a.wav", offset=offset, row=json.dumps(row).encode())
    samples = np.full(4 * SAMPLING_RATE, 1000, np.int16)
    copy = redacted_item(item, samples, 4.0, load(None, DEFAULT_STORES), RedactionOptions(**options))
    return copy, soundfile.read(io.BytesIO(copy.flac), dtype="int16")[0]


def word(text: str, start: float, end: float, speaker: str | None = None) -> dict[str, Any]:
    return {"word": text, "start": start, "end": end, **({"speaker": speaker} if speaker else {})}


def test_a_margin_never_enters_another_word_and_times_count_from_the_copy() -> None:
    """The copy of a part of a recording begins at 0, and its silence has a margin only where nobody speaks."""
    words = [
        word("the", 10.0, 11.0),
        word("card", 11.0, 11.4),
        word("4401550012345670", 11.5, 12.0),
        word("so", 13, 14),
    ]
    copy, samples = copied(words, offset=10.0)
    assert [(w.text, w.start, w.end) for w in copy.words][2] == ("[CARD]", 1.5, 2.0)
    silent = np.flatnonzero(samples == 0) / SAMPLING_RATE
    assert (silent[0], silent[-1]) == pytest.approx((1.4, 2.25), abs=0.001)
    assert copy.line["cut_words"] == 0


def test_a_word_that_is_said_at_the_same_time_is_counted() -> None:
    """A word of another speaker over a secret is cut, too, and the line says so."""
    words = [word("card", 0, 1, "a"), word("okay", 1.2, 1.8, "b"), word("4401550012345670", 1, 2, "a")]
    copy, samples = copied(words, sound="tone")
    assert copy.line["cut_words"] == 1
    changed = np.flatnonzero(samples != 1000)
    assert len(changed) >= SAMPLING_RATE
    assert 2000 < np.abs(samples[changed]).max() <= 3000


# -- runs


@pytest.fixture
def out(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> Path:
    """Return an OUT whose transcripts, names of files, columns and failures have secrets."""
    rows = []
    for number in range(3):
        name = f"olga-brandstetter-44015500-{number}.wav"
        recording(f"Brandstetter/{name}", 30)
        rows.append({"audio_filepath": f"Brandstetter/{name}", "customer": "Brandstetter", "note": "44015500"})
    rows.append({"audio_filepath": "Brandstetter/olga-missing-12345670.wav"})
    (tmp_path / "says.json").write_text(json.dumps({"count": [CALL] * 4}))
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = voxbatch(*transcription(tmp_path))
    assert done.returncode == 3, done.stderr
    return tmp_path / "out"


def transcription(folder: Path) -> tuple[str, ...]:
    """Return the command that makes OUT."""
    return (
        "run", "m.jsonl", "-o", "out", "--engine", "scripted", "--engine-option", f"says={folder}/says.json",
        "--language", "en", "--formats", "srt,json", "-q",
    )  # fmt: skip


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def leaks(folder: Path) -> list[tuple[Path, str]]:
    """Return the secrets that stand in a file, or in the name of one."""
    return [
        (path, secret)
        for path in files(folder)
        for secret in SECRETS
        if secret.lower().encode() in (path.read_bytes() + str(path.relative_to(folder)).encode()).lower()
    ]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]


def test_no_byte_of_a_secret_is_in_the_copies(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """No file of the copies, and no name of one, has a secret of the text, the names of files or the columns."""
    before = {path: path.read_bytes() for path in files(out)}
    (tmp_path / "Brandstetter" / "olga-brandstetter-44015500-2.wav").unlink()
    done = voxbatch("redact", out, "-o", "shared", "--formats", ",".join(FORMATS))
    assert done.returncode == 3, done.stderr
    shared = tmp_path / "shared"
    assert not leaks(shared)
    copies = lines(shared)
    assert len(copies) == 2
    for copy in copies:
        assert all(word in copy["pred_text"] for word in OTHERS)
        assert {"[PERSON]", "[CARD]", "[EMAIL]"} <= {*copy["pred_text"].replace(" .", "").split()}
    key = out / "redaction.key"
    assert {path: path.read_bytes() for path in files(out)} == {**before, key: key.read_bytes()}
    summary = json.loads((shared / "summary.json").read_text())
    assert summary["redactions"].keys() == {"card", "email", "person"}
    assert "\nno detector finds everything: look through review.csv, and check a sample\n" in done.stdout
    jsonschema.validate(summary, json.loads((ROOT / "docs" / "summary.schema.json").read_text()))


def test_secrets_are_silent_and_other_words_are_not_cut(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The samples of a secret are zero in the copy, and those of all other words are as they were."""
    assert voxbatch("redact", out, "-o", "shared", "-q").returncode == 0
    copy = lines(tmp_path / "shared")[0]
    assert copy["cut_words"] == 0
    samples, rate = soundfile.read(tmp_path / "shared" / copy["audio_filepath"], dtype="int16")
    original, _ = soundfile.read(tmp_path / "Brandstetter" / "olga-brandstetter-44015500-0.wav", dtype="int16")
    assert (rate, len(samples)) == (16_000, len(original))
    for word in copy["words"]:
        part = slice(round(word["start"] * rate), round(word["end"] * rate))
        if word["word"].startswith("["):
            assert not samples[part].any()
        else:
            assert np.array_equal(samples[part], original[part])


@pytest.mark.parametrize("changes", [2, 4, 5, 6, 8, 12])
def test_kills_change_no_byte(changes: int, out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run that is killed anywhere and started again ends in the bytes of one that is never killed."""
    command = ("redact", out, "--part-items", "1", "--formats", "srt", "-q")
    assert voxbatch(*command, "-o", "whole").returncode == 0
    killed = voxbatch(*command, "-o", "killed", env={VARIABLE: str(changes)})
    assert killed.returncode != 0
    assert not leaks(tmp_path / "killed")
    assert voxbatch(*command, "-o", "killed").returncode == 0
    whole, again = (
        {
            str(path.relative_to(folder)): path.read_bytes()
            for path in files(folder)
            if path.suffix in (".jsonl", ".srt", ".flac", ".csv") and "parts" not in path.parts
        }
        for folder in (tmp_path / "whole", tmp_path / "killed")
    )
    assert len(whole) == 2 + 2 * 3
    assert again == whole


@pytest.mark.parametrize("changes", [3, 9, 15, 25, 30])
def test_a_run_that_redacts_is_continued_after_a_kill(
    changes: int, out: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """`run --redact` is the run and the redaction of its OUT, wherever it is killed. Failed items give exit code 3."""
    run = [*transcription(tmp_path), "--part-items", "1", "--redact"]
    assert voxbatch("redact", out, "-o", "shared", "--formats", "srt,json", "-q").returncode == 0
    for folder, redacted in ((out, tmp_path / "first"), (tmp_path / "shared", tmp_path / "apart")):
        folder.rename(redacted)
    out.mkdir()
    (out / "redaction.key").write_bytes((tmp_path / "first" / "redaction.key").read_bytes())
    assert voxbatch(*run, "shared", env={VARIABLE: str(changes)}).returncode == -9
    assert not (tmp_path / "shared").exists() or not leaks(tmp_path / "shared")
    assert voxbatch(*run, "shared").returncode == 3
    assert {path.name: path.read_bytes() for path in (tmp_path / "shared" / "srt").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "apart" / "srt").iterdir()
    }
    assert lines(tmp_path / "shared") == lines(tmp_path / "apart")


def test_a_shard_is_not_redacted(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Other shards may still be at work at the end of one."""
    done = voxbatch(*transcription(tmp_path), "--redact", "shared", "--shard", "0/2")
    assert done.returncode == 2
    assert "run voxbatch redact OUT -o FOLDER when all shards are complete" in done.stderr


def test_texts_alone_need_no_recordings(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """With --sound none, no recording is read or written, and the rest is the same."""
    for path in (tmp_path / "Brandstetter").iterdir():
        path.unlink()
    done = voxbatch("redact", out, "-o", "shared", "--sound", "none", "-q")
    assert done.returncode == 0, done.stderr
    assert [copy["pred_text"].count("[CARD]") for copy in lines(tmp_path / "shared")] == [2, 2, 2]
    assert not [path for path in files(tmp_path / "shared") if path.suffix == ".flac"]


def test_corrections_leave_no_earlier_copy(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The copies are made of the corrected texts. Those made before are in no file afterwards: --update, which would
    keep them in parts/, is refused, and --overwrite makes all again."""
    command = ("redact", out, "-o", "shared", "--keep", "file_name", "-q")
    assert voxbatch(*command).returncode == 0
    earlier = [*files(tmp_path / "shared" / "parts")]
    subtitle = next((out / "srt").rglob("*-0.srt"))
    subtitle.write_text(subtitle.read_text().replace("Hello", "Hello Margaret"))
    assert voxbatch("correct", out, "--engine", "none").returncode == 0
    done = voxbatch(*command, "--update")
    assert done.returncode == 2
    assert "1 item with another text now, whose earlier copy would stay in parts/" in done.stderr
    assert "-o, or add --overwrite" in done.stderr
    done = voxbatch(*command, "--overwrite")
    assert done.returncode == 0, done.stderr
    counts = [copy["pred_text"].count("[PERSON]") for copy in lines(tmp_path / "shared")]
    assert counts == [2, 1, 1]
    assert len(earlier) == 3
    assert not [path for path in earlier if path.exists()]


def test_update_takes_further_transcripts(out: Path, voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A transcript that came later is copied by --update, beside the copies that are there."""
    command = ("redact", out, "-o", "shared", "--sound", "none", "-q")
    assert voxbatch(*command).returncode == 0
    before = lines(tmp_path / "shared")
    recording("Brandstetter/olga-missing-12345670.wav", 30)
    again = voxbatch(*transcription(tmp_path), "--retry-failed", "all")
    assert again.returncode == 0, again.stderr
    done = voxbatch(*command, "--update")
    assert done.returncode == 0, done.stderr
    after = lines(tmp_path / "shared")
    assert after[:3] == before
    assert len(after) == 4


def test_a_damaged_key_is_refused(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A key that is too short makes no ids."""
    key = out / "redaction.key"
    key.write_bytes(b"short")
    done = voxbatch("redact", out, "-o", "shared")
    assert done.returncode == 1
    assert f"{key} has 5 bytes instead of 32: restore it, or delete it and choose a new OUT with -o" in done.stderr
    assert not (tmp_path / "shared").exists()


def test_an_out_without_a_key_that_cannot_be_written_is_refused() -> None:
    """The message says when the right to write is needed."""
    with pytest.raises(StorageError, match="the first run that redacts an OUT writes a key there"):
        own_key(DEFAULT_STORES.out("/proc/self"))


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_an_out_in_a_bucket_is_copied_to_a_bucket(out: Path, voxbatch: Voxbatch, tmp_path: Path, place: Place) -> None:
    """OUT and its copies may be in buckets, and the copies are those of local folders."""
    assert voxbatch("redact", out, "-o", "shared", "-q").returncode == 0
    for path in files(out):
        place.put(str(path.relative_to(out)), path.read_bytes())
    done = voxbatch("redact", place.uri, "-o", f"{place.uri}-copies", "-q")
    assert done.returncode == 0, done.stderr
    copies = place.server.look(place.bucket, "run 1-copies/transcripts.jsonl")[0]
    assert copies == (tmp_path / "shared" / "transcripts.jsonl").read_bytes()


def test_only_and_keep_and_own_rules(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """--only and --keep choose kinds, a file for --rules adds names and patterns, and its words are not stored."""
    (tmp_path / "rules.yaml").write_text("names: [Okay]\npatterns: {other: ['the mail']}\n")
    done = voxbatch(
        "redact", out, "-o", "own", "--only", "other,person", "--rules", "rules.yaml", "--sound", "none", "-q"
    )
    assert done.returncode == 0, done.stderr
    text = lines(tmp_path / "own")[0]["pred_text"]
    assert ("44015500 [PERSON] 12345670" in text, "and [OTHER] is" in text, "[EMAIL]" in text) == (True, True, False)
    assert b"the mail" not in (tmp_path / "own" / "run.json").read_bytes()


def asked(out: Path, voxbatch: Voxbatch, *answers: object) -> None:
    """Ask about the recordings of OUT; the engine gives these answers."""
    rows = (out.parent / "m.jsonl").read_text().splitlines()
    prompts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    lines = [json.dumps({**json.loads(row), "prompt": prompt}) for row, prompt in zip(rows, prompts, strict=False)]
    (out.parent / "questions.jsonl").write_text("\n".join(lines))
    done = voxbatch("ask", "questions.jsonl", "-o", "asked", "--engine", "scripted", "-q")
    assert done.returncode == 0, done.stderr


def test_secrets_that_answers_list_are_redacted(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A text that an answer lists is redacted in the transcript of its item alone, without regard to case and
    punctuation. Texts that do not occur, and items without an answer, are counted."""
    first = [
        {"kind": "other", "text": "okay, 12345670"},
        {"kind": "person", "text": "Jan"},
        {"kind": "code", "text": "*"},
    ]
    asked(out, voxbatch, first, [{"kind": "other", "text": "HELLO"}])
    done = voxbatch("redact", out, "-o", "shared", "--answers", "asked", "--only", "other,code", "--sound", "none")
    assert done.returncode == 0, done.stderr
    texts = [copy["pred_text"] for copy in lines(tmp_path / "shared")]
    assert ["44015500 [OTHER] and" in text for text in texts] == [True, False, False]
    assert [text.startswith("[OTHER]") for text in texts] == [False, True, False]
    assert "1 item without an answer" in done.stderr
    assert "2 texts of answers that are not in their transcripts" in done.stderr
    assert lines(tmp_path / "shared")[0]["redactions"][0]["rule"] == "answer"
    assert not [
        path for path in files(tmp_path / "shared") if b"HELLO" in (text := path.read_bytes()) or b"asked" in text
    ]
    again = voxbatch("redact", out, "-o", "shared", "--only", "other,code", "--sound", "none")
    assert again.returncode == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("[Jan", "JSON is malformed"),
        ("Who?", "JSON is malformed"),
        (["Jan"], "Expected `object`, got `str` - at `$[0]`"),
        ([{"kind": "person", "text": "Jan", "why": "name"}], "unknown field `why` - at `$[0]`"),
        ([{"kind": "person"}], "missing required field `text` - at `$[0]`"),
        ([{"kind": "name", "text": "Jan"}], "Invalid enum value 'name' - at `$[0].kind`"),
        ([{"kind": "person", "text": 5}], "Expected `str`, got `int` - at `$[0].text`"),
    ],
)
def test_answers_of_another_shape_are_refused(answer: object, words: str, out: Path, voxbatch: Voxbatch) -> None:
    """The message names the item, what is wrong and the schema, and quotes no text of the answer."""
    asked(out, voxbatch, answer)
    done = voxbatch("redact", out, "-o", "shared", "--answers", "asked")
    assert done.returncode == 2
    assert "asked: the answer of item 'Brandstetter/olga-" in done.stderr
    assert words in done.stderr
    assert "a text and a kind, one of card, iban" in done.stderr
    assert "Jan" not in done.stderr


def test_an_out_that_has_no_complete_answers_is_refused(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Transcripts are no answers, and of an unfinished OUT secrets would stay."""
    done = voxbatch("redact", out, "-o", "shared", "--answers", out)
    assert done.returncode == 2
    assert "has no answers: give the OUT of voxbatch ask" in done.stderr
    asked(out, voxbatch, [], [])
    (tmp_path / "asked" / "summary.json").unlink()
    done = voxbatch("redact", out, "-o", "shared", "--answers", "asked")
    assert done.returncode == 2
    assert "asked is not finished; run the same voxbatch ask again" in done.stderr
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--keep", "cards"), ("cards", "known are card")),
        (("--keep", "card", "--only", "card"), ("both name card",)),
        (("--rules", "bad.yaml"), ("bad.yaml", "its keys must be among names")),
        (("--rules", "number.yaml"), ("number.yaml", "its keys must be among names")),
        (("--rules", "pattern.yaml"), ("pattern '('", "give a regular expression")),
    ],
)
def test_wrong_options_are_refused(
    arguments: tuple[str, ...], words: tuple[str, ...], out: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """An error names the option, the value and what is allowed."""
    for name, text in (("bad", "words: [a]"), ("number", "names: 5"), ("pattern", "patterns: {other: ['(']}")):
        (tmp_path / f"{name}.yaml").write_text(text)
    done = voxbatch("redact", out, "-o", "shared", *arguments)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
