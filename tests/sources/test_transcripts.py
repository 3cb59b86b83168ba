"""Tests that transcripts of others give all words that were said, once, in order, with the speakers; or the reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from unicodedata import normalize

import pysubs2
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from praatio import textgrid

from voxbatch.analysis.score import score_place
from voxbatch.analysis.text_kinds import TEXT_KINDS
from voxbatch.errors import ManifestError
from voxbatch.formats.document import Document
from voxbatch.manifest import items
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.records import Segment, Transcript, Word
from voxbatch.sources.annotations import reference_text
from voxbatch.sources.opening import open_source
from voxbatch.sources.transcripts import READERS, UNREAD_KINDS, kind_of_text, read_transcript

CASES = ROOT.parent / "shared" / "cases" / "2026-11-28"
Spoken = list[tuple[str, str]]
"""Speakers and texts."""


def read(kind: str, content: str | bytes, language: str | None = None) -> Spoken:
    """Return the speakers and the texts, of which neighbours of one speaker are joined."""
    data = content if isinstance(content, bytes) else content.encode()
    spoken: Spoken = []
    for text in read_transcript(data, kind, "x", TextDecoder(), language):
        if spoken and spoken[-1][0] == text.speaker:
            spoken[-1] = text.speaker, f"{spoken[-1][1]} {text.text}"
        else:
            spoken.append((text.speaker, text.text))
    return spoken


# ── tiers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

Labels = list[tuple[float, float, str]]
UTTERANCES: Labels = [(0, 1, "hello there"), (2, 3, "my friend")]
WORDS: Labels = [(0, 0.5, "hello"), (0.5, 1, "there"), (2, 2.5, "my"), (2.5, 3, "friend")]
SOUNDS: Labels = [(0, 0.1, "h"), (0.1, 0.2, "@"), (0.2, 0.5, "l"), (0.5, 1, "D"), (1, 2, "sil"), (2, 2.2, "m")]
ANSWER: Labels = [(1.1, 1.9, "yes")]
LONG: Labels = [*UTTERANCES, (4, 6, "and now")]
HELLO, HELLO_OF_ANN = [("", "hello there my friend")], [("Ann", "hello there my friend")]


def text_grid(*tiers: tuple[str, Labels]) -> str:
    """Return a TextGrid in the short form."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", "9", "<exists>", str(len(tiers))]
    for name, labels in tiers:
        lines += ['"IntervalTier"', f'"{name}"', "0", "9", str(len(labels))]
        lines += [line for start, end, text in labels for line in (str(start), str(end), f'"{text}"')]
    return "\n".join(lines)


TIERS: dict[str, tuple[list[tuple[str, Labels]], Spoken]] = {
    "two speakers": (
        [("Ann", UTTERANCES), ("Bob", ANSWER)],
        [("Ann", "hello there"), ("Bob", "yes"), ("Ann", "my friend")],
    ),
    "Montreal Forced Aligner": (
        [("Ann - words", WORDS), ("Ann - phones", SOUNDS), ("Bob - words", ANSWER), ("Bob - phones", SOUNDS[-1:])],
        [("Ann", "hello there"), ("Bob", "yes"), ("Ann", "my friend")],
    ),
    "one speaker of it": ([("words", WORDS), ("phones", SOUNDS)], HELLO),
    "WebMAUS": ([("ORT-MAU", WORDS), ("KAN-MAU", WORDS), ("MAU", SOUNDS), ("TRN", UTTERANCES)], HELLO),
    "LaBB-CAT": (
        [
            ("turn - Ann", [(0, 9, "Ann")]),
            ("utterance - Ann", UTTERANCES),
            ("word - Ann", WORDS),
            ("segment - Ann", SOUNDS),
            ("utterance - Bob", ANSWER),
            ("word - Bob", ANSWER),
        ],
        [("Ann", "hello there"), ("Bob", "yes"), ("Ann", "my friend")],
    ),
    "EasyAlign": (
        [("phones", SOUNDS), ("syll", SOUNDS), ("words", WORDS), ("phono", WORDS), ("ortho", UTTERANCES)],
        [("ortho", "hello there my friend")],
    ),
    "SPPAS": ([("PhonAlign", SOUNDS), ("TokensAlign", WORDS), ("Syllables", SOUNDS)], HELLO),
    "silences of P2FA": ([("phone", SOUNDS), ("word", [*WORDS[:2], (1, 2, "sp"), *WORDS[2:]])], HELLO),
    "a tier of all words": ([("Ann", UTTERANCES), ("words", WORDS)], HELLO_OF_ANN),
    "all words of two speakers": (
        [("words", [*WORDS, *ANSWER]), ("Ann", UTTERANCES), ("Bob", ANSWER)],
        [("Ann", "hello there"), ("Bob", "yes"), ("Ann", "my friend")],
    ),
    "one speaker in words": (
        [("Interviewer", UTTERANCES), ("Bob - words", ANSWER), ("Bob", ANSWER)],
        [("Interviewer", "hello there"), ("Bob", "yes"), ("Interviewer", "my friend")],
    ),
    "words that an aligner left out": ([("Ann - words", WORDS[:3]), ("Ann", UTTERANCES)], HELLO_OF_ANN),
    "no words": ([("words", []), ("segments", UTTERANCES)], HELLO),
    "two tiers of one name": ([("Ann", UTTERANCES[:1]), ("Ann", UTTERANCES[1:])], HELLO_OF_ANN),
    "translation": ([("Ann", LONG), ("free translation", LONG)], [("Ann", "hello there my friend and now")]),
    "a speaker called Tone": (
        [("Ann", UTTERANCES), ("Tone", ANSWER)],
        [("Ann", "hello there"), ("Tone", "yes"), ("Ann", "my friend")],
    ),
    "tones": ([("Ann", UTTERANCES), ("tone", [(0.1, 0.2, "H*"), (2.1, 2.2, "L*")])], HELLO_OF_ANN),
    "speakers called Ort and Mot": (
        [("Mot", [(0, 1, "oh is it")]), ("Ort", [(1, 2, "well yes")])],
        [("Mot", "oh is it"), ("Ort", "well yes")],
    ),
    "Chinese": ([("Wang", [(0, 2, "今天很好")]), ("words", [(0, 1, "今天"), (1, 2, "很好")])], [("Wang", "今天很好")]),
    "backchannel": (
        [("Ann", [(0, 9, "well yes I think so")]), ("Bob", [(4, 5, "yes")])],
        [("Ann", "well yes I think so"), ("Bob", "yes")],
    ),
    "empty": ([("Ann", [(0, 9, "")])], []),
}


@pytest.mark.parametrize("name", TIERS)
def test_tiers_of_all_speakers_are_read_once(name: str) -> None:
    """Tiers of sounds, remarks and repetitions are left out; no speaker is."""
    tiers, spoken = TIERS[name]
    assert read("textgrid", text_grid(*tiers)) == spoken


def test_every_name_of_a_speaker_keeps_the_words() -> None:
    """No name of a person hides a tier."""
    for name in [
        "Sylvia",
        "Maurice",
        "Norton",
        "Timothy",
        "Stone",
        "Morton",
        "Phong",
        "Tony",
        "Wordsworth",
        "Marlot",
        "Ortiz",
        "Mau",
        "Note",
    ]:
        for title in ("Mrs ", ""):
            if title or name != "Note":
                grid = text_grid(("Anna", [(0, 1, "hello there")]), (title + name, [(1, 2, "my friend")]))
                assert read("textgrid", grid) == [("Anna", "hello there"), (title + name, "my friend")]


def test_praatio_and_voxbatch_read_the_same(tmp_path: Path) -> None:
    """TextGrids that praatio writes in both forms have the same labels."""
    grid = textgrid.Textgrid()
    grid.addTier(textgrid.IntervalTier("Ann", [(0.25, 1, 'he said "no"'), (1.5, 2, "é")], 0, 3))
    grid.addTier(textgrid.IntervalTier("Bob", [(1, 1.5, "x")], 0, 3))
    for form in ("short_textgrid", "long_textgrid"):
        grid.save(str(tmp_path / "x.TextGrid"), form, includeBlankSpaces=True)
        assert read("textgrid", (tmp_path / "x.TextGrid").read_text()) == [
            ("Ann", 'he said "no"'),
            ("Bob", "x"),
            ("Ann", "é"),
        ]


def test_praat_times_may_have_exponents_and_comments() -> None:
    """Praat writes times near 0 as 1.1e-16, and skips what follows an exclamation mark."""
    grid = text_grid(("Ann", [(1, 2, "second"), (1.1102230246251565e-16, 1, "first")])) + ' ! "no" 5'
    assert read("textgrid", grid) == [("Ann", "first second")]


def binary_string(text: str) -> bytes:
    """Return a string as Praat writes it in binary files."""
    if text.isascii():
        return struct.pack(">h", len(text)) + text.encode()
    return struct.pack(">hh", -1, len(text)) + text.encode("utf-16-be")


def binary_grid() -> bytes:
    """Return a binary TextGrid as Praat 6.4 writes it."""
    data = b"ooBinaryFile\x08TextGrid" + struct.pack(">dd?i", 0, 4, True, 2)
    data += b"\x0cIntervalTier" + binary_string("Ann") + struct.pack(">ddi", 0, 4, 2)
    data += struct.pack(">dd", 0, 1.5) + binary_string("one é") + struct.pack(">dd", 1.5, 4) + binary_string("\r")
    data += b"\x08TextTier" + binary_string("tones") + struct.pack(">ddi", 0, 4, 1)
    return data + struct.pack(">d", 0.5) + binary_string("H*")


def test_binary_text_grids_are_read(tmp_path: Path) -> None:
    """Praat's binary files are read by their content, as a reference and by `score`; one that is cut off is refused."""
    assert read("textgrid", binary_grid()) == [("Ann", "one é")]
    (tmp_path / "r.TextGrid").write_bytes(binary_grid())
    (tmp_path / "h.txt").write_text("one é")
    assert score_place(str(tmp_path / "h.txt"), str(tmp_path / "r.TextGrid"), "en").corpus.wer == 0
    with pytest.raises(ValueError, match="ends within a tier"):
        read("textgrid", binary_grid()[:-5])


# ── ELAN, EXMARaLDA, Transcriber, CHAT ────────────────────────────────────────────────────────────────────────────────


def elan(slots: list[int | None], *tiers: str) -> str:
    """Return an EAF. A tier is "name|attributes|annotations", an annotation "id from to text" or "id of text"."""
    times = "".join(
        f'<TIME_SLOT TIME_SLOT_ID="t{at}"' + ("/>" if time is None else f' TIME_VALUE="{time}"/>')
        for at, time in enumerate(slots)
    )
    document = f'<?xml version="1.0"?><ANNOTATION_DOCUMENT><TIME_ORDER>{times}</TIME_ORDER>'
    for tier in tiers:
        name, attributes, *annotations = tier.split("|")
        document += f'<TIER TIER_ID="{name}" {attributes}>'
        for annotation in annotations:
            identity, first, rest = annotation.split(" ", 2)
            if first.startswith("t"):
                second, text = rest.split(" ", 1)
                kind, place = "ALIGNABLE", f'TIME_SLOT_REF1="{first}" TIME_SLOT_REF2="{second}"'
            else:
                kind, place, text = "REF", f'ANNOTATION_REF="{first}"', rest
            document += (
                f'<ANNOTATION><{kind}_ANNOTATION ANNOTATION_ID="{identity}" {place}><ANNOTATION_VALUE>{text}'
                f"</ANNOTATION_VALUE></{kind}_ANNOTATION></ANNOTATION>"
            )
        document += "</TIER>"
    return document + "</ANNOTATION_DOCUMENT>"


A, B = 'PARTICIPANT="Ann"', 'PARTICIPANT="Bob"'
TOOLBOX = elan(
    [0, 1000, 2000],
    f'ft@A|PARENT_REF="ref@A" {A}|a5 a1 freely',
    f'tx@A|PARENT_REF="ref@A" {A}|a3 a1 he|a4 a1 said',
    f"ref@A|{A}|a1 t1 t2 talk.001",
    f"ref@B|{B}|b1 t0 t1 talk.002",
    f'tx@B|PARENT_REF="ref@B" {B}|b2 b1 first &amp; last',
)
EXB = """<?xml version="1.0" encoding="UTF-8"?><basic-transcription><head><speakertable><speaker id="S0">
<abbreviation>Ann</abbreviation></speaker><speaker id="S1"><abbreviation>Bob</abbreviation></speaker></speakertable>
</head><basic-body><common-timeline><tli id="T0" time="0.0"/><tli id="T1"/><tli id="T2" time="2.0"/><tli id="T3"
time="3.0"/></common-timeline><tier id="A" speaker="S0" category="v" type="t"><event start="T0" end="T1">he sa</event>
<event start="T1" end="T2">id ((coughs)) it </event><event start="T3" end="T4">so</event></tier><tier id="G"
speaker="S0" category="en" type="a"><event start="T0" end="T2">gloss</event></tier>
<tier id="B" speaker="S1" category="v" type="t"><event start="T1" end="T2">oh </event></tier></basic-body>
</basic-transcription>"""
TRS = """<?xml version="1.0" encoding="ISO-8859-1"?><!DOCTYPE Trans SYSTEM "trans-14.dtd"><Trans><Speakers>
<Speaker id="s1" name="Ann"/><Speaker id="s2" name="Bob"/></Speakers><Episode><Section>
<Turn speaker="s1" startTime="0" endTime="2"><Sync time="0"/>he <Event desc="b" type="noise"/> said</Turn>
<Turn speaker="s1 s2" startTime="2" endTime="3"><Sync time="2"/><Who nb="1"/>so<Who nb="2"/>oh</Turn></Section>
</Episode></Trans>"""
CHAT = """@UTF8
@Begin
*CHI:\tno: <I want> [/] I want some(thing) &-um &=laughs +... \x150_900\x15
%mor:\tx
*MOT:\tit's ba^na:na , Santa_Claus gonna [: going to] www .
*MOT:\tchoo+choo hola@s:spa &*CHI:hm (1.5) „ isn't it ? \x15900_1800\x15
@End
"""
DOCUMENTS: dict[str, tuple[str, str, Spoken]] = {
    "words below utterances": (
        "eaf",
        elan([0, None, 2000, 3000], "utt||a1 t0 t2 he said", 'words|PARENT_REF="utt"|a2 t0 t1 he|a3 t1 t2 said'),
        [("", "he said")],
    ),
    "words of empty utterances": (
        "eaf",
        elan([0, None, 2000, 3000], f"utt|{A}|a1 t0 t2 ", f'w|PARENT_REF="utt" {A}|a2 t1 t2 said|a3 t0 t1 he'),
        [("Ann", "he said")],
    ),
    "roots without times": (
        "eaf",
        elan([0, None, None, 3], f"a|{A}|a2 t2 t3 said", f"b|{B}|a1 t1 t2 he"),
        [("Bob", "he"), ("Ann", "said")],
    ),
    "comments beside": ("eaf", elan([0, 1, 2], f"a|{A}|a1 t0 t1 he", "comments||c1 t1 t2 a door"), [("Ann", "he")]),
    "Toolbox": ("eaf", TOOLBOX, [("Bob", "first & last"), ("Ann", "he said")]),
    "EXMARaLDA": ("exb", EXB, [("Ann", "he said it"), ("Bob", "oh"), ("Ann", "so")]),
    "Transcriber": ("trs", TRS, [("Ann", "he said so"), ("Bob", "oh")]),
    "CHAT": (
        "cha",
        CHAT,
        [("CHI", "no I want I want something"), ("MOT", "it's banana , Santa Claus gonna . choo choo hola isn't it ?")],
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_annotations_give_what_each_speaker_said(name: str) -> None:
    """Tiers that depend on others, remarks and codes are left out."""
    kind, document, spoken = DOCUMENTS[name]
    assert read(kind, document) == spoken


# ── subtitles ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TTML = """<?xml version="1.0" encoding="UTF-8"?><!-- c --><tt xmlns="http://www.w3.org/ns/ttml"
xmlns:ttm="http://www.w3.org/ns/ttml#metadata" xmlns:tts="http://www.w3.org/ns/ttml#styling" xml:lang="en"
xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:frameRate="25"><head><metadata><ttm:title>no</ttm:title>
<ttm:agent xml:id="s" type="person"><ttm:name type="full">Ann</ttm:name></ttm:agent></metadata><styling>
<style xml:id="r" style="q"/><style xml:id="q" tts:ruby="text"/></styling></head><body begin="10s"><div>
<p begin="00:00:05:12" dur="2s" ttm:agent="s"><metadata><ttm:desc>no</ttm:desc></metadata>Ann: sec<span
begin="1s">ond&nbsp;one</span><span style="r">no</span><br/>line</p>
<p begin="25t" end="2s">first &lt; x</p></div></body></tt>"""
TWO_LANGUAGES = (
    "<SAMI><HEAD><STYLE><!-- P {} .EN {Name:English; lang: en-US;} .KR {lang:ko-KR;} --></STYLE></HEAD><BODY>"
    "<SYNC Start=2000><P Class=EN ID=Source>Ann<P Class=EN>her life<P Class=KR>그의<SYNC Start=0><P Class=EN>He has<br>"
    "known<P Class=KR>그는</BODY></SAMI>"
)
ROLLED = """1
00:00:00,000 --> 00:00:02,000
He has

2
00:00:02,000 --> 00:00:02,010
He has

3
00:00:02,010 --> 00:00:04,000
He has
known her

4
00:00:04,000 --> 00:00:04,010
known her

5
00:00:04,010 --> 00:00:06,000
known her
all her life
"""
ASS = "[Script Info]\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"


def event(start: int, text: str, name: str = "", layer: int = 0) -> str:
    """Return a line of dialogue."""
    return f"Dialogue: {layer},0:00:{start:02}.00,0:00:{start + 1:02}.00,Default,{name},0,0,0,,{text}\n"


SUBTITLES: dict[str, tuple[str, str, Spoken]] = {
    "order of SubRip": (
        "srt",
        "2\n0:0:2,0 --> 0:0:3,0\nknown\n\n1\n0:0:1,0 --> 0:0:2,0\nHe has",
        [("", "He has known")],
    ),
    "less and more": ("srt", "1\n0:0:1,0 --> 0:0:2,0\n5 < 6 and <i>7</i> > 4", [("", "5 < 6 and 7 > 4")]),
    "hard spaces": ("srt", "1\n0:0:1,0 --> 0:0:2,0\n5\\hkilometres\\Naway", [("", "5 kilometres away")]),
    "rolling captions": ("srt", ROLLED, [("", "He has known her all her life")]),
    "a loop is no rolling caption": (
        "srt",
        "".join(f"{n}\n0:0:{n},0 --> 0:0:{n + 1},0\nThank you.\n\n" for n in range(4)),
        [("", " ".join(["Thank you."] * 4))],
    ),
    "labels of a program": (
        "srt",
        (
            "1\n0:0:1,0 --> 0:0:2,0\nSpeaker 1: He has\n\n2\n0:0:2,0 --> 0:0:3,0\nknown\n\n"
            "3\n0:0:3,0 --> 0:0:4,0\nSPEAKER_02: Oh"
        ),
        [("Speaker 1", "He has known"), ("SPEAKER_02", "Oh")],
    ),
    "names where the speaker changes": (
        "srt",
        "".join(
            f"{n}\n0:0:{n},0 --> 0:0:{n + 1},0\n{text}\n\n"
            for n, text in enumerate(("agent: He has", "known", "customer: Oh", "agent: her"))
        ),
        [("agent", "He has known"), ("customer", "Oh"), ("agent", "her")],
    ),
    "steps are no speakers": (
        "srt",
        "1\n0:0:1,0 --> 0:0:2,0\nStep one: go\n\n2\n0:0:2,0 --> 0:0:3,0\non\n\n3\n0:0:3,0 --> 0:0:4,0\nStep two: stop",
        [("", "Step one: go on Step two: stop")],
    ),
    "voices": (
        "vtt",
        "WEBVTT\n\n0:1.0 --> 0:2.0\n<v.loud Ann &amp; Co>He has</v>\n<v Bob>known</v>",
        [("Ann & Co", "He has"), ("Bob", "known")],
    ),
    "ruby": (
        "vtt",
        "WEBVTT\n\n0:1.0 --> 0:2.0\n<ruby>漢<rp>(</rp><rt>かん<rp>)</rp>字<rt>じ</ruby>を書く",
        [("", "漢字を書く")],
    ),
    "names of Zoom": (
        "vtt",
        (
            "WEBVTT\n\n0:1.0 --> 0:2.0\nSmith, John (he/him): He has\n\n0:2.0 --> 0:3.0\nDr. May Wu: known\n\n"
            "0:3.0 --> 0:4.0\n+1 415 555 0100: her"
        ),
        [("Smith, John (he/him)", "He has"), ("Dr. May Wu", "known"), ("+1 415 555 0100", "her")],
    ),
    "clauses are no names": (
        "vtt",
        "WEBVTT\n\n0:1.0 --> 0:2.0\nI have to say, this: no\n\n0:2.0 --> 0:3.0\nAnd then: yes",
        [("", "I have to say, this: no And then: yes")],
    ),
    "lyrics with several times": (
        "lrc",
        "[ti:x]\n[00:02.00][00:06.5]La\n[00:04:10]he <00:05.00>sang\nalone\n",
        [("", "La he sang alone La")],
    ),
    "rate of MicroDVD": (
        "sub",
        "{1}{1}23.976\n{50}{100}/her life.\n{0}{50}{y:i}He has|/known\n",
        [("", "He has known her life.")],
    ),
    "SubViewer": (
        "sub",
        "[INFORMATION]\n[TITLE]x\n[SUBTITLE]\n[COLF]&HFF,[SIZE]18\n00:00:01.00,00:00:02.00\nHe[br]has\n\n",
        [("", "He has")],
    ),
    "SubViewer 1": (
        "sub",
        "[TITLE]\nx\n[BEGIN]\n*** START ***\n[00:00:01]\nHe|has\n[00:00:02]\n\n[END]\n",
        [("", "He has")],
    ),
    "MPL2": ("sub", "[20][30]has\n[10][20]/He\n", [("", "He has")]),
    "order and drawings": (
        "ass",
        ASS + event(5, r"later\hone\Ntwo") + event(3, r"{\p1}m 0 0 l 9 9{\p0}sign") + event(1, r"{\k20}ka{\k10}ra, x"),
        [("", "kara, x sign later one two")],
    ),
    "names and layers": (
        "ass",
        ASS + event(1, "Smith, J: He", "Smith; J") + event(2, "has", "Smith; J") + event(2, "has", "Smith; J", 1),
        [("Smith; J", "He has")],
    ),
    "braces": ("ass", ASS + event(1, r"a \{b\} c{note}"), [("", "a {b} c")]),
    "TTML": ("ttml", TTML, [("", "first < x"), ("Ann", "second one line")]),
    "YouTube": (
        "xml",
        '<transcript><text start="2">it&amp;#39;s</text><text start="0">he said</text></transcript>',
        [("", "he said it's")],
    ),
    "YouTube's third": (
        "xml",
        '<timedtext format="3"><body><p t="0" d="9"><s>he</s><s t="9"> said</s></p></body></timedtext>',
        [("", "he said")],
    ),
    "labels": ("labels", "2,5\t3,5\tknown\n\\\t100\t200\n0.5\t1.5\tHe has\n4\t4\n", [("", "He has known")]),
}


@pytest.mark.parametrize("name", SUBTITLES)
def test_subtitles_give_the_words_once_in_order(name: str) -> None:
    """Markup, readings, drawings and names are no words; cues come in the order of time."""
    kind, document, spoken = SUBTITLES[name]
    assert read(kind, document) == spoken


def test_one_of_two_languages_is_read() -> None:
    """--language chooses among texts and their translations; without it the file is refused."""
    assert read("smi", TWO_LANGUAGES, "ko") == [("", "그는 그의")]
    assert read("smi", TWO_LANGUAGES, "en-GB") == [("", "He has known her life")]
    with pytest.raises(ValueError, match=r"in several languages \(en, ko\); name the one .* with --language"):
        read("smi", TWO_LANGUAGES)
    divisions = "".join(
        f'<div xml:lang="{lang}"><p begin="1s">{text}</p></div>' for lang, text in (("en", "yes"), ("fr", "oui"))
    )
    assert read("ttml", f'<tt xml:lang=""><body>{divisions}</body></tt>', "fr") == [("", "oui")]
    switched = '<tt><body><div><p begin="1s" xml:lang="en">yes</p><p begin="5s" xml:lang="fr">oui</p></div></body></tt>'
    assert read("ttml", switched) == [("", "yes oui")]


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "sounds alone": ("textgrid", text_grid(("phones", SOUNDS)), r"its tiers have no words \('phones'\)"),
    "a translation without a name": (
        "textgrid",
        text_grid(("Ann", LONG), ("Deutsch", [(a, b, f"x{t}") for a, b, t in LONG])),
        "as a translation has",
    ),
    "no TextGrid": ("textgrid", "hello there", "it has no tiers"),
    "another file of Praat": ("textgrid", b"ooBinaryFile\x05Sound\0\0\0\0", "it is binary, and no TextGrid"),
    "a circle": ("eaf", elan([0], 'a|PARENT_REF="b"|a1 t0 t0 x', 'b|PARENT_REF="a"|a2 a1 x'), "cycle"),
    "glosses alone": ("eaf", elan([0, 1], "gloss||a1 t0 t1 3SG"), "its tiers have no words"),
    "descriptions alone": ("exb", EXB.replace('type="t"', 'type="d"'), "no tier of the type 't'"),
    "no XML": ("eaf", "<ANNOTATION_DOCUMENT><TIER>", "it is no XML: "),
    "entities": ("ttml", '<!DOCTYPE tt [<!ENTITY a "aaaa">]><tt><body><p>&a;</p></body></tt>', "it declares entities"),
    "another XML": ("xml", "<html><body><p>x</p></body></html>", "XML of another kind (<html>)"),
    "deep nesting": ("ttml", f"<tt><body><p>{'<span>' * 3000}x{'</span>' * 3000}</p></body></tt>", "nested too deep"),
    "pictures": ("ttml", '<tt xmlns:s="s"><body><div><p s:backgroundImage="#a"/></div></body></tt>', "it has pictures"),
    "a bad time": ("ttml", '<tt><body><p begin="soon">x</p></body></tt>', "'soon' in place of a time"),
    "another sub": ("sub", "1\n00:00:01 -> x\nhello", "it is no MicroDVD, SubViewer or MPL2"),
    "pictures of a DVD": ("sub", b"\0\0\x01\xba\x44\0\x04\0" * 9, "no MicroDVD"),
    "no events": ("ass", "Dialogue: hello", "no section"),
    "no times of events": ("ass", ASS + "Dialogue: x", "in place of a time"),
    "no SAMI": ("smi", "hello", "no <SYNC>"),
    "captions": ("scc", "Scenarist_SCC V1.0\n\n00:00:01:00\t9420 9420", "convert them"),
    "subtitles for broadcasting": ("stl", b"850STL25.0110" + bytes(2000), "tt convert"),
    "half a track of labels": ("labels", "1\t2\tx\ny", "'y' among lines of start"),
    "no CHAT": ("cha", "hello there", "no line that begins with"),
    "no stm": ("stm", "hello there", "line 1 has no start and end"),
    "WebVTT without times": ("vtt", "WEBVTT\n\nhello there", "no times"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_said(name: str) -> None:
    """A file with text never gives an empty text."""
    kind, content, reason = REFUSED[name]
    with pytest.raises(ValueError, match="(?s)" + reason.replace("(<html>)", r"\(<html>\)")):
        read(kind, content)


@pytest.mark.parametrize(
    "kind", [kind for kind in READERS if kind not in ("textgrid", "stm", "ttml", "xml", "eaf", "exb", "trs")]
)
def test_an_empty_file_is_an_empty_text(kind: str) -> None:
    """Nothing was said in it."""
    assert read(kind, "") == []


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.text(st.characters(categories=["L"]), min_size=1, max_size=9)),
        max_size=9,
        unique_by=lambda event: event[0],
    )
)
def test_pysubs2_and_voxbatch_read_the_same(events: list[tuple[int, str]]) -> None:
    """Files that pysubs2 writes have the words of its events in the order of time."""
    subtitles = pysubs2.SSAFile()
    subtitles.events = [pysubs2.SSAEvent(start * 1000, start * 1000 + 900, text) for start, text in events]
    words = [normalize("NFC", text) for _, text in sorted(events, key=lambda event: event[0])]
    for kind, form in (("srt", "srt"), ("vtt", "vtt"), ("ass", "ass"), ("ssa", "ssa"), ("sub", "microdvd")):
        spoken = read(kind, subtitles.to_string(form, fps=25))
        assert normalize("NFC", "".join(text for _, text in spoken)).split() == words


@pytest.mark.parametrize("names", [("Speaker 1", "Speaker 2"), ("agent", "Smith, John"), (None, None)])
def test_own_files_of_speakers_are_read_back(names: tuple[str | None, str | None]) -> None:
    """Each format that voxbatch writes gives the words and the speakers back, without labels."""
    turns = [(names[0], "Hello there, my {friend}, how are you & yours today? I am fine as ever, as you see."),
             (names[1], "Fine, thanks."), (names[0], "5 < 6 and \\ more.")]  # fmt: skip
    words, segments, at = [], [], 0.0
    for speaker, text in turns:
        first = at
        for word in text.split():
            words.append(Word(f" {word}", at, at + 0.4, speaker=speaker))
            at += 0.5
        segments.append(Segment(text, first, at, speaker))
    text = " ".join(text for _, text in turns)
    document = Document("x", Transcript(text, tuple(words), tuple(segments), at))
    spoken = [(speaker or "", text) for speaker, text in turns]
    spoken = spoken if names[0] else [("", text)]
    for form, kind in (("srt", "srt"), ("vtt", "vtt"), ("vtt-words", "vtt"), ("ttml", "ttml"), ("ass", "ass")):
        heard = [(speaker.replace(";", ","), text) for speaker, text in read(kind, document.written(form))]
        assert heard == spoken, form
    assert [text for _, text in read("textgrid", document.written("textgrid"))] == [text for _, text in spoken]


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kinds_are_those_of_score() -> None:
    """`score` reads each kind, and the content of a file shows most."""
    assert {*READERS, *UNREAD_KINDS} - {"stm"} <= {*TEXT_KINDS}
    assert kind_of_text(["hello there", "0.5\t1.5\tx"]) is None


def test_text_beside_a_recording_has_no_times(tmp_path: Path) -> None:
    """A .txt may have labels or cues, in a folder, in a folder of texts for `score`, and as a file."""
    for name, text in (
        ("a", "0.5\t1.7\tHe has\n2\t3\tknown"),
        ("b", "1\n00:00:01,000 --> 00:00:02,000\nHe has\nknown\n"),
        ("c", "[00:01.00]He has\n[00:02.00]known"),
        ("d", "He has\nknown"),
    ):
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / f"{name}.wav").touch()
    with open_source(tmp_path) as source:
        texts = {item.id: " ".join((item.text or "").split()) for item in items(source)}
    assert texts == dict.fromkeys(("a.wav", "b.wav", "c.wav", "d.wav"), "He has known")
    (tmp_path / "h.jsonl").write_text(
        "".join(json.dumps({"id": name, "pred_text": "He has known"}) + "\n" for name in "abcd")
    )
    assert score_place(str(tmp_path / "h.jsonl"), str(tmp_path), "en").corpus.wer == 0
    for name in "abcd":
        assert score_place(str(tmp_path / f"{name}.txt"), str(tmp_path / "d.txt"), "en").corpus.wer == 0


def test_a_reference_that_cannot_be_read_is_a_bad_line(tmp_path: Path) -> None:
    """The recording has no silent empty reference."""
    (tmp_path / "a.wav").touch()
    (tmp_path / "a.TextGrid").write_text(text_grid(("phones", SOUNDS)))
    with pytest.raises(ManifestError, match=r"the reference cannot be read: .* no words"), open_source(tmp_path):
        pass


def test_speakers_of_transcripts_are_scored(tmp_path: Path) -> None:
    """References and hypotheses with speakers have a cpWER."""
    (tmp_path / "r.TextGrid").write_text(text_grid(("Ann", UTTERANCES), ("Bob", ANSWER)))
    (tmp_path / "h.vtt").write_text(
        "WEBVTT\n\n0:0.0 --> 0:1.0\n<v X>hello there\n\n0:1.0 --> 0:2.0\n<v Y>yes my friend\n"
    )
    score = score_place(str(tmp_path / "h.vtt"), str(tmp_path / "r.TextGrid"), "en")
    assert score.speakers is not None
    assert (score.corpus.wer, score.speakers.errors, score.speakers.reference_words) == (0, 4, 5)


def test_binary_files_are_no_lines(tmp_path: Path) -> None:
    """A file of an unknown kind that is no text is refused."""
    (tmp_path / "h.bin").write_bytes(b"abc\0\0\0def")
    (tmp_path / "r.txt").write_text("abc")
    with pytest.raises(ManifestError, match="is binary; read are"):
        score_place(str(tmp_path / "h.bin"), str(tmp_path / "r.txt"), "en")


SCORED: dict[str, list[tuple[str, str, float]]] = {
    "ass_order_and_drawing": [("a.ass", "ref.txt", 0)],
    "chat_compounds_and_markers": [("m.cha", "ref.txt", 0)],
    "elan_word_tier": [("sub.eaf", "ref.txt", 0)],
    "own_textgrid_of_speakers": [("call.TextGrid", "call.txt", 4 / 41)],
    "ruby_readings": [("ja.vtt", "ref.txt", 0), ("ja.ttml", "ref.txt", 0)],
    "srt_backslash_h": [("a.srt", "ref.txt", 0)],
    "subviewer2_sub": [("a.sub", "ref.txt", 0)],
    "textgrid_speaker_names": [
        (f"tier_{name}.TextGrid", "ref.txt", 0)
        for name in ("Bob", "Maurice", "Mrs_Stone", "Norton", "Sylvia", "Timothy")
    ],
    "txt_reference_with_times": [("a.txt", "e.txt", 0)],
    "zoom_names": [("zoom.vtt", "ref.txt", 0), ("plain.vtt", "ref.txt", 0)],
}
"""Hypotheses, references and rates of the cases."""


@pytest.mark.parametrize("name", SCORED)
def test_cases_are_scored_rightly(name: str) -> None:
    """Inputs that were rebuilt after public reports have their right values."""
    if not (CASES / name).is_dir():
        pytest.skip(f"no cases in {CASES}")
    for hypotheses, references, rate in SCORED[name]:
        language = "ja" if name == "ruby_readings" else "en"
        corpus = score_place(str(CASES / name / hypotheses), str(CASES / name / references), language).corpus
        assert corpus.by_language[language].rate == pytest.approx(rate)
    if name == "txt_reference_with_times":
        for file in ("a.txt", "e.txt"):
            text = reference_text((CASES / name / file).read_bytes(), file, TextDecoder())
            assert text == "hello there my friend"
