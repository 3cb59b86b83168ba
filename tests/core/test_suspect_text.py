"""Each watchdog fires on its own fault, and none fires on the speech of real speakers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sounds import babble

from voxbatch.decoding import DecodeTask
from voxbatch.decoding.decoder import chunks
from voxbatch.decoding.voices import VoiceListener
from voxbatch.engines.suspect_text import PieceText, reasons, suspicions
from voxbatch.records import (
    CUT_OFF,
    LOST_SPEECH,
    REPETITION,
    SAMPLING_RATE,
    SPEAKING_RATE,
    TEXT_OVER_SILENCE,
    Samples,
    Word,
)
from voxbatch.storage import Stores
from voxbatch.voice import VOICE_WINDOW, Voice

SPEECH = babble(30.0, seed=1)
LIMIT = 561_920
"""Samples of the longest chunk of Voxtral Realtime at 2,400 ms in a context of 512."""


def text_of(length: int) -> str:
    """Return this many characters without repetition and without meaning."""
    letters = np.random.default_rng(length).choice(list("etaoinshrdlu "), max(0, length - 2))
    return f"a{''.join(letters)}a"[:length]


def said(samples: Samples, heard: PieceText) -> str:
    """Return the suspicions as a person reads them."""
    return reasons(suspicions(samples, heard))


def of(seconds: float) -> Samples:
    """Return the first seconds of the speech."""
    return SPEECH[: round(seconds * SAMPLING_RATE)]


LOOP = "the text repeats itself (it compresses "
FAULTS = {
    "empty": (SPEECH, PieceText(""), LOST_SPEECH, "no text over "),
    "blank": (SPEECH, PieceText("  \n"), LOST_SPEECH, "no text over "),
    "slow": (SPEECH, PieceText("Yes."), SPEAKING_RATE, "only 4 characters over "),
    "fast": (of(3), PieceText(text_of(106)), SPEAKING_RATE, "106 characters in 3.0 s of audio, more than anybody spe"),
    "pad": (SPEECH, PieceText(text_of(200), longest_pause=(14.9, 25)), LOST_SPEECH, "no text over "),
    "eos": (SPEECH, PieceText(text_of(200), longest_pause=(12.0, 30)), LOST_SPEECH, "no text over "),
    "loop": (SPEECH, PieceText("Thank you for watching. " * 8), REPETITION, LOOP),
    "loop in Chinese": (SPEECH, PieceText("谢谢观看。" * 20), REPETITION, LOOP),
    "truncated": (SPEECH, PieceText(text_of(400), truncated=True), CUT_OFF, "the text was cut off"),
    "stopped early": (SPEECH, PieceText(text_of(300), untranscribed=(22, 30)), LOST_SPEECH, "the text ended before "),
}


@pytest.mark.parametrize(("samples", "heard", "kind", "what"), FAULTS.values(), ids=FAULTS)
def test_each_check_fires_on_its_own_fault(samples: Samples, heard: PieceText, kind: str, what: str) -> None:
    """Each watchdog fires alone on its own fault, with its kind, and a message that says what and where."""
    (found,) = suspicions(samples, heard)
    assert found.flag.kind == kind
    assert found.flag.reason.startswith(what)


@pytest.mark.parametrize(
    ("samples", "heard"),
    [
        pytest.param(SPEECH, PieceText(text_of(450), longest_pause=(12.0, 13.5)), id="an ordinary text"),
        pytest.param(of(1.9), PieceText(""), id="too short to hold a word for certain"),
        pytest.param(np.zeros(30 * SAMPLING_RATE, np.float32), PieceText(""), id="silence"),
        pytest.param(np.zeros(0, np.float32), PieceText(""), id="nothing"),
        pytest.param(of(3), PieceText(text_of(105)), id="as fast as anybody speaks"),
        pytest.param(of(0.2), PieceText(text_of(21)), id="short, and as fast as anybody speaks"),
        pytest.param(of(7.9), PieceText("a"), id="one letter over less than 8 s"),
        pytest.param(SPEECH, PieceText(text_of(200), longest_pause=(14.9, 24.8)), id="a pause under 10 s"),
        pytest.param(SPEECH, PieceText("no no no no no no no no no"), id="repeated, but short"),
        pytest.param(SPEECH, PieceText(text_of(200), longest_pause=(0.0, 0.0)), id="no pause at all"),
        pytest.param(SPEECH, PieceText(text_of(400), untranscribed=(29.0, 30.0)), id="stopped a second early"),
    ],
)
def test_no_check_fires_just_below_its_bound(samples: Samples, heard: PieceText) -> None:
    """No watchdog fires just below its bound."""
    assert said(samples, heard) == ""


# -- with a voice detector ---------------------------------------------------------------------------------------------


def voice_of(*stretches: tuple[float, float], duration: float = 30.0) -> Voice:
    """Return the probabilities of a detector that is certain of these stretches, in seconds."""
    voice = np.full(-(-round(duration * SAMPLING_RATE) // VOICE_WINDOW), 0.01, np.float32)
    for start, end in stretches:
        voice[round(start * SAMPLING_RATE / VOICE_WINDOW) : round(end * SAMPLING_RATE / VOICE_WINDOW)] = 0.99
    return voice


def words_of(start: float, end: float, count: int) -> tuple[Word, ...]:
    """Return words at an even pace."""
    edges = np.linspace(start, end, count + 1)
    letters = text_of(2_000 + round(start)).replace(" ", "")
    return tuple(Word(f" {letters[5 * i : 5 * i + 4]}", float(a), float(b)) for i, (a, b) in enumerate(pairwise(edges)))


def heard_in(*stretches: tuple[float, float]) -> PieceText:
    """Return a text with three words per second in each stretch."""
    words = tuple(word for start, end in stretches for word in words_of(start, end, round(3 * (end - start))))
    return PieceText("".join(word.text for word in words), words)


@pytest.mark.parametrize(
    ("voice", "heard", "found"),
    [
        pytest.param([(0, 30)], heard_in((0, 30)), [], id="a text over voice"),
        pytest.param([(0, 10), (12, 30)], heard_in((0, 10), (12, 30)), [], id="a pause without voice"),
        pytest.param([(0, 30)], heard_in((0, 10), (11.1, 30)), [], id="a gap of a second"),
        pytest.param([(0, 30)], heard_in((0, 10), (12, 30)), [(LOST_SPEECH, 10, 12)], id="a gap of two seconds"),
        pytest.param([(0, 30)], heard_in((2, 28)), [(LOST_SPEECH, 0, 2), (LOST_SPEECH, 28, 30)], id="both ends"),
        pytest.param([(0, 1)], PieceText(""), [], id="a second without text"),
        pytest.param([(0, 2)], PieceText(""), [(LOST_SPEECH, None, None)], id="two seconds without text"),
        pytest.param([(0, 10)], heard_in((0, 10), (20, 20.6)), [], id="two words over silence"),
        pytest.param([(0, 10)], heard_in((0, 10), (20, 21)), [(TEXT_OVER_SILENCE, 20, 21)], id="three words"),
        pytest.param([(0, 1)], PieceText(text_of(44)), [], id="as fast as anybody speaks in a second of voice"),
        pytest.param([(0, 1)], PieceText(text_of(48)), [(SPEAKING_RATE, None, None)], id="faster"),
    ],
)
def test_voice_decides(voice: list[tuple[float, float]], heard: PieceText, found: list[Any]) -> None:
    """With a voice detector, speech is where it hears a voice, and short gaps and a few words are judged."""
    judged = suspicions(SPEECH, heard, voice_of(*voice))
    assert [(each.flag.kind, each.flag.start, each.flag.end) for each in judged] == [
        (kind, start if start is None else pytest.approx(start), end if end is None else pytest.approx(end))
        for kind, start, end in found
    ]


def test_gaps_between_words_are_judged_without_a_voice_detector() -> None:
    """A gap of ten seconds between two words is suspect if the audio is loud there."""
    assert said(SPEECH, heard_in((0, 15), (24.5, 30))) == ""
    assert said(SPEECH, heard_in((0, 15), (25.5, 30))).endswith(" s of speech (from 15.0 to 25.5 s of this chunk)")


def test_a_pause_without_speech_is_not_suspect() -> None:
    """Twelve seconds of silence or of steady noise between two sentences are not suspect."""
    for level in (0.0, 0.003):
        noise = np.random.default_rng(0).standard_normal(12 * SAMPLING_RATE).astype(np.float32) * np.float32(level)
        samples = np.concatenate([of(8), noise, of(8)])
        assert said(samples, PieceText(text_of(200), longest_pause=(8.0, 20.0))) == ""


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200_000), st.text(max_size=500), st.booleans(), st.floats(0, 1), st.floats(0, 1))
def test_any_audio_with_any_text_is_judged(
    num_samples: int, text: str, truncated: bool, one: float, other: float
) -> None:
    """Any audio with any text is judged, and each suspicion has a weight."""
    samples = SPEECH[:num_samples]
    start, end = sorted((one * len(samples) / SAMPLING_RATE, other * len(samples) / SAMPLING_RATE))
    for quiet in (None, (start, end)):
        assert all(each.weight > 0 for each in suspicions(samples, PieceText(text, (), quiet, quiet, truncated)))


ARTICLES = {
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और "
    "अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए। सभी को इस घोषणा में सन्निहित सभी "
    "अधिकारों और आज़ादियों को प्राप्त करने का हक़ है और इस मामले में जाति, वर्ण, लिंग, भाषा, धर्म, राजनीति या अन्य विचार "
    "प्रणाली, किसी देश या समाज विशेष में जन्म, सम्पत्ति या किसी प्रकार की अन्य मर्यादा आदि के कारण भेदभाव का विचार न किया जाएगा।",
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。"
    "人人有资格享有本宣言所载的一切权利和自由,不分种族、肤色、性别、语言、宗教、政治或其他见解、"
    "国籍或社会出身、财产、出生或其他身分等任何区别。",
    "en": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty twenty one twenty two twenty three twenty four twenty five twenty six twenty seven",
}
"""Articles of the Universal Declaration of Human Rights. The English text is somebody who counts."""


@pytest.mark.parametrize("lang", ARTICLES)
def test_no_script_is_suspect(lang: str) -> None:
    """Text in any script is judged by its characters: in UTF-8 bytes all Devanagari would look like repetition."""
    assert said(SPEECH, PieceText(ARTICLES[lang])) == ""


# -- real recordings ---------------------------------------------------------------------------------------------------


class Real(NamedTuple):
    """Chunks of a recording, and its reference spread evenly over them."""

    row: dict[str, Any]
    chunks: list[tuple[Samples, str]]


@pytest.fixture(scope="module")
def recordings(corpus: Path) -> list[Real]:
    """Return the real recordings of the corpus."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    return [Real(row, list(_spread(corpus / "speech" / row["audio_filepath"], row["text"].split()))) for row in rows]


def _spread(path: Path, words: list[str]) -> Iterator[tuple[Samples, str]]:
    task = DecodeTask(0, str(path), 0.0, None, None, None, LIMIT, 0)
    with closing(Stores().recording(str(path))) as recording:
        parts = [samples.copy() for samples, _ in chunks(task, recording, [], VoiceListener())]
    ends = np.cumsum([0, *map(len, parts)])
    for samples, (begin, end) in zip(parts, pairwise(np.rint(ends / ends[-1] * len(words)).astype(int)), strict=True):
        yield samples, " ".join(words[begin:end])


def _suspect(recordings: list[Real], heard: Callable[[Samples, str], PieceText]) -> list[str]:
    """Return the recordings that have a suspect chunk."""
    return [
        f"{real.row['audio_filepath']}: {why}"
        for real in recordings
        if (why := "; ".join(filter(None, (said(samples, heard(samples, text)) for samples, text in real.chunks))))
    ]


def _evenly(samples: Samples, text: str) -> PieceText:
    """Return a text spoken at an even pace: its longest pause is one word's share."""
    return PieceText(text, longest_pause=(0.0, len(samples) / SAMPLING_RATE / (len(text.split()) + 1)))


def _lost(samples: Samples, text: str) -> PieceText:
    return PieceText("", longest_pause=(0.0, len(samples) / SAMPLING_RATE))


@pytest.mark.slow
def test_real_speech_is_not_suspect(recordings: list[Real]) -> None:
    """True references of real recordings are not suspect: at most one in a hundred is decoded again for nothing.

    The recordings include single digits, and telephone prompts full of numbers. (Measured: none of 371.)
    """
    found = _suspect(recordings, _evenly)
    assert len(found) <= 0.01 * len(recordings), found


@pytest.mark.slow
def test_real_speech_without_text_is_suspect(recordings: list[Real]) -> None:
    """A lost text is noticed in recordings of 4 s or more."""
    long = [real for real in recordings if real.row["duration"] >= 4]
    assert len(_suspect(long, _lost)) >= 0.99 * len(long)


@pytest.mark.slow
def test_ten_seconds_without_text_are_suspect(recordings: list[Real]) -> None:
    """A text that omits 10 s in the middle is noticed in chunks of 12 s or more. (Measured: all of 107.)"""

    def gap(samples: Samples, text: str) -> PieceText:
        middle = len(samples) / SAMPLING_RATE / 2
        return PieceText(text, longest_pause=(middle - 5.001, middle + 5.001))

    long = [Real(real.row, [each]) for real in recordings for each in real.chunks if len(each[0]) >= 12 * SAMPLING_RATE]
    assert len(long) > 100
    assert len(_suspect(long, gap)) >= 0.99 * len(long)
