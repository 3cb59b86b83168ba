"""Tests that the references that people and data sets keep beside recordings are found."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from unicodedata import normalize

import pytest

from voxbatch.manifest import items
from voxbatch.sources.folder import folder_manifest
from voxbatch.sources.opening import open_source
from voxbatch.storage import Stores

STM = ";; c\nT 1 S 0 2 <o,f0,male> he said\nT 1 S 2 3 <o> IGNORE_TIME_SEGMENT_IN_SCORING\nT 1 S 3 4 <o> it 's me\n"
COMMON_VOICE = 'client_id\tpath\tsentence\tlocale\nx\ta.mp3\t"he said\tde\n'
PRAAT = """File type = "ooTextFile"\nObject class = "TextGrid"\n
xmin = 0 \nxmax = 2 \ntiers? <exists> \nsize = 2 \nitem []: \n    item [1]:
        class = "IntervalTier" \n        name = "words" \n        xmin = 0\n        xmax = 2\n        intervals: size=2
        intervals [1]:\n            xmin = 0 \n            xmax = 1 \n            text = "he"
        intervals [2]:\n            xmin = 1 \n            xmax = 2 \n            text = "\"\"said\"\""
    item [2]:\n        class = "IntervalTier" \n        name = "phones" \n        xmin = 0 \n        xmax = 2
        intervals: size = 1\n        intervals [1]:\n            xmin = 0\n            xmax = 2\n            text = "HH"
"""
PRAAT_SHORT = """File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2\n<exists>\n2
"IntervalTier"\n"Ann"\n0\n2\n1\n1\n2\n"\"\"said\"\""\n"IntervalTier"\n"Bob"\n0\n2\n1\n0\n1\n"he"\n"""
ELAN = """<?xml version="1.0"?><ANNOTATION_DOCUMENT><TIME_ORDER><TIME_SLOT TIME_SLOT_ID="t1" TIME_VALUE="0"/>
<TIME_SLOT TIME_SLOT_ID="t2" TIME_VALUE="900"/></TIME_ORDER><TIER TIER_ID="B"><ANNOTATION>
<ALIGNABLE_ANNOTATION ANNOTATION_ID="a2" TIME_SLOT_REF1="t2" TIME_SLOT_REF2="t2">
<ANNOTATION_VALUE>said &amp; left</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER><TIER TIER_ID="A">
<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="t1" TIME_SLOT_REF2="t2">
<ANNOTATION_VALUE>he</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER><TIER TIER_ID="gloss"><ANNOTATION>
<REF_ANNOTATION ANNOTATION_ID="a3" ANNOTATION_REF="a1"><ANNOTATION_VALUE>3SG</ANNOTATION_VALUE></REF_ANNOTATION>
</ANNOTATION></TIER></ANNOTATION_DOCUMENT>"""
TRANSCRIBER = """<?xml version="1.0" encoding="ISO-8859-1"?><!DOCTYPE Trans SYSTEM "trans-14.dtd"><Trans><Episode>
<Section><Turn speaker="s1" startTime="0"><Sync time="0"/>\nil a <Event desc="b" type="noise" extent="instantaneous"/>
été</Turn><Turn><Sync time="1"/>\nlà\n</Turn></Section></Episode></Trans>"""
CHAT = (
    "@UTF8\r\n@Begin\r\n*MOT:\the &-um said (be)cause (.) &=laughs\r\n\tof [//] it . \x150_900\x15\r\n"
    "%mor:\tpro|he v|say\r\n*CHI:\txxx\r\n@End\r\n"
)
LAYOUTS: dict[str, tuple[str, dict[str, str | bytes], str | None]] = {
    "text": ("a.wav", {"a.txt": "he said\n"}, "he said"),
    "text in capitals": ("a.wav", {"a.TXT": "he said"}, "he said"),
    "text of Windows": ("a.wav", {"a.txt": "he said".encode("utf-16")}, "he said"),
    "text of an old Windows": ("a.wav", {"a.txt": "él dijo “sí” – 5 €\n".encode("cp1252")}, "él dijo “sí” – 5 €"),
    "list of an old Windows": ("1-2.wav", {"1.trans.txt": "1-2 él dijo".encode("cp1252")}, "él dijo"),
    "table of an old Windows": ("a.wav", {"metadata.csv": "file_name;text\na.wav;él".encode("cp1252")}, "él"),
    "text with both extensions": ("a.wav", {"a.wav.txt": "he said"}, "he said"),
    "NFC beside NFD": (normalize("NFD", "Café.wav"), {normalize("NFC", "Café.txt"): "he said"}, "he said"),
    "NFD beside NFC": (normalize("NFC", "Café.wav"), {normalize("NFD", "Café.TXT"): "he said"}, "he said"),
    "Montreal Forced Aligner": ("a/1.wav", {"a/1.lab": "he said"}, "he said"),
    "LibriTTS": ("1/a_0.wav", {"1/a_0.original.txt": "He said.", "1/a_0.normalized.txt": "he said"}, "he said"),
    "TEDLIUM": ("dev/sph/T.sph", {"dev/stm/T.stm": STM}, "he said it 's me"),
    "stm beside": ("T.wav", {"T.stm": STM}, "he said it 's me"),
    "VCTK": ("wav48/p225/p225_001.wav", {"txt/p225/p225_001.txt": "he said"}, "he said"),
    "LibriSpeech": (
        "84/12/84-12-0001.flac",
        {"84/12/84-12.trans.txt": "84-12-0000 X\n84-12-0001 HE SAID\n"},
        "HE SAID",
    ),
    "MLS": ("train/audio/1/2/1_2_0.flac", {"train/transcripts.txt": "1_2_0\the said\n"}, "he said"),
    "LJSpeech": ("wavs/LJ001-0001.wav", {"metadata.csv": "LJ001-0001|He said 1.|He said one.\n"}, "He said 1."),
    "VoxForge": ("anon/wav/a0001.wav", {"anon/etc/PROMPTS": "anon/mfc/a0001 HE SAID\n"}, "HE SAID"),
    "AISHELL": ("wav/train/S1/B1W1.wav", {"transcript/aishell_transcript_v0.8.txt": "B1W1 他 说\n"}, "他 说"),
    "OpenSLR": ("wavs/f_1.wav", {"line_index.tsv": "f_1\the said\n"}, "he said"),
    "Hugging Face's splits": (
        "train/a.wav",
        {"train/metadata.csv": "file_name,transcription\na.wav,he said\n"},
        "he said",
    ),
    "Hugging Face's JSON": (
        "x/train/1/a.wav",
        {"x/train/metadata.jsonl": '{"file_name":"1/a.wav","text":"he"}\n'},
        "he",
    ),
    "Common Voice": ("de/clips/a.mp3", {"de/validated.tsv": COMMON_VOICE}, '"he said'),
    "FLEURS": ("audio/test/1.wav", {"test.tsv": "9\t1.wav\the said.\the said\th e\t100\tMALE\n"}, "he said."),
    "TIMIT": ("DR1/SA1.WAV", {"DR1/SA1.TXT": "0 46797 he said\n", "DR1/SA1.WRD": "0 9 he\n"}, "he said"),
    "folder in capitals": ("Audio/a.wav", {"References/a.TXT": "he said"}, "he said"),
    "Praat": ("a.wav", {"a.TextGrid": PRAAT}, 'he "said"'),
    "Praat's short form": ("a.wav", {"a.TextGrid": PRAAT_SHORT.encode("utf-16")}, 'he "said"'),
    "ELAN": ("a.wav", {"a.eaf": ELAN}, "he said & left"),
    "Transcriber": ("a.wav", {"a.trs": TRANSCRIBER.encode("latin-1")}, "il a été là"),
    "CHAT": ("a.wav", {"a.cha": CHAT}, "he said because of it ."),
    "subtitles": ("a.wav", {"a.srt": "1\n00:00:00,000 --> 00:00:01,000\nhe said\n"}, None),
    "a run's outputs": ("day/a.wav", {"txt/day/a.txt": "he said", "txt/a.txt": "he said", "run.json": "{}"}, None),
    "another name": (
        "a.wav",
        {"b.txt": "x", "c.trans.txt": "d he said", "train.tsv": "x\n1\n", "metadata.csv": "\n"},
        None,
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_references_of_data_sets_are_found(tmp_path: Path, name: str) -> None:
    """A folder as a data set has it gives rows with references, for a run and for `voxbatch manifest`."""
    recording, files, text = LAYOUTS[name]
    for path, content in {recording: "", **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with open_source(tmp_path) as source:
        assert [(item.id, item.text) for item in items(source)] == [(recording, text)]
    assert [json.loads(line).get("text") for line in folder_manifest(tmp_path)] == [text]


def test_a_table_means_the_recordings_that_it_names(tmp_path: Path) -> None:
    """A recording of the same name in another folder has no reference in the table."""
    (tmp_path / "transcripts.csv").write_text("path,text\nx/a.wav,of x\na.wav,of the top\n")
    for name in ("a.wav", "x/a.wav", "y/a.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with open_source(tmp_path) as source:
        assert {item.id: item.text for item in items(source)} == {
            "a.wav": "of the top",
            "x/a.wav": "of x",
            "y/a.wav": None,
        }


def test_named_recordings_have_the_references_of_their_folder(tmp_path: Path) -> None:
    """A file, a pattern and a list of files find the same references as the folder, and none of folders above."""
    (tmp_path / "metadata.csv").write_text("file_name,text\n84/84-0.flac,x\n")
    (tmp_path / "84").mkdir()
    for name in ("84-0.flac", "84-1.flac"):
        (tmp_path / "84" / name).touch()
    (tmp_path / "84" / "84.trans.txt").write_text("84-1 HE SAID\n")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/84/84-0.flac\n84/84-1.flac\n")
    for names in (f"{tmp_path}/84/*.flac", [f"{tmp_path}/84/84-0.flac", f"{tmp_path}/84/84-1.flac"]):
        with open_source(names) as source:
            assert [item.text for item in items(source)] == [None, "HE SAID"]
    with open_source(f"@{tmp_path}/list.txt") as source:
        assert [item.text for item in items(source)] == ["x", "HE SAID"]


NFC, NFD = normalize("NFC", "Café/Müller.wav"), normalize("NFD", "Café/Müller.wav")


@pytest.mark.parametrize(("written", "stored"), [(NFC, NFD), (NFD, NFC)], ids=["NFC", "NFD"])
def test_recordings_are_opened_by_their_canonical_name(tmp_path: Path, written: str, stored: str) -> None:
    """A manifest may name a recording in the other form of Unicode, which is what macOS makes of names."""
    (tmp_path / stored).parent.mkdir()
    (tmp_path / stored).write_bytes(b"RIFF")
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": written}, ensure_ascii=False))
    with open_source(tmp_path / "m.jsonl") as source:
        (item,) = items(source)
    with closing(Stores().recording(item.audio)) as recording:
        assert recording.size == 4
