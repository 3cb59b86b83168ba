"""Inputs that were rebuilt after public bug reports (../shared/cases) are transcribed, listed and scored rightly."""

from __future__ import annotations

import ast
import json
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from whisper_base import needs_tiny_en

import voxbatch as vb
from voxbatch.formats.cues import split_into_cues
from voxbatch.manifest import items
from voxbatch.records import LOST_SPEECH, Transcript, Word
from voxbatch.sources.opening import open_source

CASES = ROOT.parent / "shared" / "cases"
pytestmark = pytest.mark.skipif(not (CASES / "cases.jsonl").is_file(), reason=f"no cases in {CASES}")


def _reference(table: Path) -> str:
    """Return the text of the only row of a table, which most recordings of the cases share; "" without the cases."""
    return table.read_text().strip().rpartition(",")[2].lower() if table.is_file() else ""


ASK = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
HE = _reference(CASES / "speechbrain_wrd" / "test.csv")
AUDIO: dict[str, tuple[str, str, float]] = {
    "tv_stereo_to_51": ("tv.ts", f"{HE} {HE}", 9.1),
    "mp3_44k_then_22k": ("joined.mp3", f"{HE} {HE}", 9.1),
    "radio_dump_aac_24k_48k": ("radio.aac", f"{HE} {HE}", 9.1),
    "film_51_dialogue_in_centre": ("film.mka", ASK, 11),
    "mixer_8ch_one_hum": ("mixer.flac", ASK, 11),
    "mic4_fan_noise": ("mics.flac", ASK, 11),
    "dc_offset_5pct": ("dc.flac", ASK, 11),
    "dc_offset_2pct_last_words_lost": ("dc.flac", ASK, 11),
    "dc_offset_10pct_louder": ("dc.flac", ASK, 11),
    "quiet_minus56": ("quiet.flac", ASK, 11),
    "second_speaker_24dB_lower": ("call.flac", HE, 16.5),
    "first_track_undecodable_apac": ("iphone.mov", HE, 4.5),
    "obs_first_track_only_noise": ("obs.mp4", HE, 4.5),
    "chained_opus_mono_stereo": ("chain.opus", f"{HE} {HE}", 9),
    "cat_two_wavs": ("all.wav", f"{HE} {HE}", 9),
}
"""Recording, its text, and length in seconds."""
MAX_WER = 0.1
"""One or two words, which depend on the processor: its sums decide between "life" and "lives". The cases lost more."""
LISTS: dict[str, tuple[str, list[tuple[str, str | None]]]] = {
    "voice_memos_qta": ("memos", [("New Recording 2.qta", None), ("New Recording.m4a", None)]),
    "csv_mac_line_ends": ("calls.csv", [("a.wav", "he has")]),
    "tsv_mac_line_ends": ("calls.tsv", [("a.wav", "he has")]),
    "folder_reference_nfc_recording_nfd": ("in", [("Cafe\u0301 Mu\u0308ller.wav", HE)]),
    "hf_audiofolder_splits": ("ds", [("test/b.wav", "he has known"), ("train/a.wav", "he has known")]),
    "speechbrain_wrd": ("test.csv", [("utt1", HE.upper())]),
}
"""Source, and the ids and references of its items."""
SCORES: dict[str, tuple[str, str | None, float]] = {
    **dict.fromkeys(
        (
            "turkish_dotted_I", "english_curly_apostrophe", "english_backtick_apostrophe",
            "english_zero_width_soft_hyphen", "its_gotta", "arabic_diacritics", "arabic_tatweel", "hebrew_niqqud",
            "hindi_devanagari_digits", "romanian_cedilla",
        ),
        ("t.jsonl", None, 0.0),
    ),
    "score_srt": ("hyp.srt", "ref.srt", 0.0),
    "score_vtt": ("hyp.vtt", "ref.vtt", 0.0),
    "lines_that_begin_with_numbers": ("hyp.txt", "ref.txt", 1 / 7),
    "ids_nfc_nfd": ("hyp.jsonl", "ref.jsonl", 0.0),
}  # fmt: skip
"""Hypotheses, references and word error rate."""
CUES = "thai_cue_begins_with_mark"


def test_all_cases_are_here() -> None:
    """Each of the cases is one of the tests."""
    names = {json.loads(line)["name"] for line in (CASES / "cases.jsonl").read_text().splitlines()}
    assert names == {*AUDIO, *LISTS, *SCORES, CUES}


@pytest.fixture(scope="module")
def transcriber() -> Iterator[vb.Transcriber]:
    """Yield a loaded tiny.en."""
    with vb.Transcriber(engine="faster-whisper", language="en") as transcriber:
        yield transcriber


@needs_tiny_en
@pytest.mark.slow
@pytest.mark.parametrize("name", AUDIO)
def test_audio(transcriber: vb.Transcriber, name: str) -> None:
    """The words are there, each sentence at its time; what is missing is flagged."""
    file, text, seconds = AUDIO[name]
    transcript = transcriber.transcribe(CASES / name / file)
    wer = vb.score([text], [transcript.text], language="en").wer
    assert wer is not None
    assert wer <= MAX_WER
    assert transcript.audio_duration == pytest.approx(seconds, abs=0.1)
    if text.startswith(f"{HE[:10]}") and len(text) > len(HE):
        assert transcript.words[len(transcript.words) // 2].start == pytest.approx(seconds / 2, abs=0.3)
    is_lost = name == "second_speaker_24dB_lower"
    assert [flag.kind for flag in transcript.flags if flag.kind == LOST_SPEECH] == [LOST_SPEECH] * is_lost


@pytest.mark.parametrize("name", LISTS)
def test_list(tmp_path: Path, name: str) -> None:
    """The recordings and their references are found."""
    source, wanted = LISTS[name]
    place = shutil.copytree(CASES / name, tmp_path / name)
    with open_source(str(place / source)) as opened:
        assert [(item.id, item.text) for item in items(opened)] == wanted


@pytest.mark.parametrize("name", SCORES)
def test_score(name: str) -> None:
    """Other spellings of the same words are no errors."""
    hypotheses, references, wer = SCORES[name]
    score = vb.score(CASES / name / hypotheses, ref=references and CASES / name / references, language="en")
    assert score.wer == pytest.approx(wer)


def test_cues() -> None:
    """No cue and no line of Thai begins with a combining mark."""
    program = (CASES / CUES / "cues.py").read_text()
    tokens = ast.literal_eval(re.findall(r"^tokens = (.*)", program, re.MULTILINE)[0])  # of Whisper, with cut letters
    words = tuple(Word(token, at / 2, (at + 1) / 2, 0.9) for at, token in enumerate(tokens))
    cues = split_into_cues(Transcript("".join(tokens), words, (), len(tokens) / 2, (), None, ()))
    assert not [line for cue in cues for line in cue.lines if unicodedata.category(line[0]).startswith("M")]
