"""Tests that the JSON of services gives the words of all channels and speakers, in the order of their times.

The documents have the shapes of the services' own references; see the table of docs/scoring.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from voxbatch.analysis.readers.services import service_entry
from voxbatch.analysis.score import score_place
from voxbatch.errors import ManifestError

Spoken = list[tuple[str, str]]
CASE = ROOT.parent / "shared" / "cases" / "2026-11-28" / "aws_one_line"


def amazon_item(start: float, content: str, **more: str) -> dict[str, Any]:
    times = {"start_time": f"{start}", "end_time": f"{start + 0.4}"} if start >= 0 else {}
    kind = "pronunciation" if start >= 0 else "punctuation"
    return {"id": 0, "type": kind, "alternatives": [{"confidence": "0.9", "content": content}], **times, **more}


def deepgram_word(start: float, word: str, **more: Any) -> dict[str, Any]:
    written = {"punctuated_word": word} if word[-1] in ".?" else {}
    return {"word": word.strip(".?").lower(), **written, "start": start, "end": start + 0.4, "confidence": 0.9, **more}


def deepgram(*channels: list[dict[str, Any]]) -> dict[str, Any]:
    alternatives = [
        {"transcript": " ".join(word.get("punctuated_word", word["word"]) for word in words), "words": words}
        for words in channels
    ]
    return {
        "metadata": {"channels": len(channels)},
        "results": {"channels": [{"alternatives": [a]} for a in alternatives]},
    }


def azure(channel: int, start: float, text: str, **more: Any) -> dict[str, Any]:
    return {
        "recognitionStatus": "Success",
        "channel": channel,
        "offset": f"PT{start}S",
        "offsetInTicks": start * 1e7,
        "durationInTicks": 5e6,
        "nBest": [{"confidence": 0.9, "lexical": text.lower(), "display": text}],
        **more,
    }


def fast(start: int, text: str, **more: Any) -> dict[str, Any]:
    return {"offsetMilliseconds": start, "durationMilliseconds": 500, "text": text, "locale": "en-US", **more}


def assembly_word(start: int, text: str, speaker: str | None = None) -> dict[str, Any]:
    return {"text": text, "start": start, "end": start + 400, "confidence": 0.9, "speaker": speaker}


def speechmatics(kind: str, start: float, content: str, **more: Any) -> dict[str, Any]:
    alternative = {"content": content, "confidence": 0.9, "language": "en", "speaker": "S1"}
    return {"type": kind, "start_time": start, "end_time": start + 0.4, "alternatives": [alternative | more]}


def google_word(start: float, word: str, **more: Any) -> dict[str, Any]:
    return {"startTime": f"{start}s", "endTime": f"{start + 0.4}s", "word": word, **more}


REV = [{"type": "text", "value": "Hello", "ts": 2.5, "end_ts": 2.9}, {"type": "punct", "value": ", "}]
REV += [{"type": "text", "value": "Bob", "ts": 3.0, "end_ts": 3.4}, {"type": "punct", "value": "."}]
IBM = {
    "result_index": 0,
    "results": [
        {"final": True, "alternatives": [{"transcript": "he has ", "timestamps": [["he", 1, 2], ["has", 2, 3]]}]}
    ],
    "speaker_labels": [{"from": 1, "to": 2, "speaker": 0}, {"from": 2, "to": 3, "speaker": 1}],
}
DOCUMENTS: dict[str, tuple[Any, str, Spoken]] = {
    "Amazon": (
        {
            "results": {
                "transcripts": [{"transcript": "He has."}],
                "items": [amazon_item(0, "He"), amazon_item(1, "has")],
            }
        },
        "He has.",
        [],
    ),
    "Amazon, speakers in the items": (
        {
            "results": {
                "transcripts": [{"transcript": "He has. Oh."}],
                "items": [
                    amazon_item(0, "He", speaker_label="spk_0"),
                    amazon_item(1, "has", speaker_label="spk_0"),
                    amazon_item(-1, "."),
                    amazon_item(2, "Oh", speaker_label="spk_1"),
                    amazon_item(-1, "."),
                ],
            }
        },
        "He has. Oh.",
        [("spk_0", "He"), ("spk_0", "has."), ("spk_1", "Oh.")],
    ),
    "Amazon, speakers beside": (
        {
            "results": {
                "transcripts": [{"transcript": "He oh"}],
                "speaker_labels": {
                    "segments": [
                        {"items": [{"start_time": "0", "speaker_label": "spk_0"}]},
                        {"items": [{"start_time": "1", "speaker_label": "spk_1"}]},
                    ]
                },
                "items": [amazon_item(0, "He"), amazon_item(1, "oh")],
            }
        },
        "He oh",
        [("spk_0", "He"), ("spk_1", "oh")],
    ),
    "Amazon, channels": (
        {
            "results": {
                "transcripts": [{"transcript": "He has oh"}],
                "channel_labels": {
                    "channels": [
                        {"channel_label": "ch_0", "items": [amazon_item(0, "He"), amazon_item(2, "has")]},
                        {"channel_label": "ch_1", "items": [amazon_item(1, "oh")]},
                    ]
                },
            }
        },
        "He oh has",
        [("ch_0", "He"), ("ch_1", "oh"), ("ch_0", "has")],
    ),
    "Amazon, silence": ({"results": {"transcripts": [{"transcript": ""}], "items": []}}, "", []),
    "Amazon, calls": (
        {
            "Transcript": [
                {"ParticipantRole": "AGENT", "Content": "Hello.", "BeginOffsetMillis": 900, "EndOffsetMillis": 990},
                {"ParticipantRole": "CUSTOMER", "Content": "Hi.", "BeginOffsetMillis": 100, "EndOffsetMillis": 400},
            ]
        },
        "Hi. Hello.",
        [("CUSTOMER", "Hi."), ("AGENT", "Hello.")],
    ),
    "Deepgram": (deepgram([deepgram_word(0, "He"), deepgram_word(1, "has.")]), "he has.", []),
    "Deepgram, channels": (
        deepgram([deepgram_word(0, "He"), deepgram_word(2, "has.")], [deepgram_word(1, "oh")]),
        "he oh has.",
        [("channel 0", "he"), ("channel 1", "oh"), ("channel 0", "has.")],
    ),
    "Deepgram, speakers": (
        deepgram([deepgram_word(0, "He", speaker=0), deepgram_word(1, "oh", speaker=1)]),
        "he oh",
        [("speaker 0", "he"), ("speaker 1", "oh")],
    ),
    "Azure": (
        {
            "combinedRecognizedPhrases": [{"channel": 0, "display": "He. Has."}, {"channel": 1, "display": "Oh."}],
            "recognizedPhrases": [azure(0, 0, "He."), azure(0, 2, "Has."), azure(1, 1, "Oh.")],
        },
        "He. Oh. Has.",
        [("channel 0", "He."), ("channel 1", "Oh."), ("channel 0", "Has.")],
    ),
    "Azure, speakers": (
        {
            "combinedRecognizedPhrases": [{"channel": 0, "display": "He. Oh."}],
            "recognizedPhrases": [azure(0, 0, "He.", speaker=1), azure(0, 1, "Oh.", speaker=2)],
        },
        "He. Oh.",
        [("speaker 1", "He."), ("speaker 2", "Oh.")],
    ),
    "Azure, fast": (
        {
            "durationMilliseconds": 3000,
            "combinedPhrases": [{"channel": 0, "text": "He."}, {"channel": 1, "text": "Oh."}],
            "phrases": [fast(900, "He.", channel=0), fast(100, "Oh.", channel=1)],
        },
        "Oh. He.",
        [("channel 1", "Oh."), ("channel 0", "He.")],
    ),
    "AssemblyAI": (
        {
            "id": "1",
            "audio_url": "https://x/a.mp3",
            "text": "He. Oh.",
            "words": [assembly_word(100, "He.", "A"), assembly_word(900, "Oh.", "B")],
            "utterances": [{"speaker": "A", "text": "He.", "start": 100, "end": 500}],
        },
        "He. Oh.",
        [("A", "He."), ("B", "Oh.")],
    ),
    "Rev": (
        {
            "monologues": [
                {"speaker": 1, "elements": REV},
                {"speaker": 0, "elements": [{"type": "text", "value": "Hi", "timestamp": "00:00:01,200"}]},
            ],
            "speakers": [{"id": 1, "name": "Ann"}],
        },
        "Hi Hello, Bob.",
        [("Speaker 0", "Hi"), ("Ann", "Hello, Bob.")],
    ),
    "Speechmatics": (
        {
            "format": "2.9",
            "metadata": {"type": "transcription"},
            "results": [
                speechmatics("word", 0, "He"),
                speechmatics("word", 1, "has"),
                speechmatics("punctuation", 1.4, "."),
                speechmatics("word", 2, "Oh", speaker="S2"),
            ],
        },
        "He has. Oh",
        [("S1", "He"), ("S1", "has."), ("S2", "Oh")],
    ),
    "Google": (
        {
            "name": "1",
            "response": {
                "results": [
                    {
                        "alternatives": [
                            {"transcript": "he has", "words": [google_word(0, "he"), google_word(1, "has")]}
                        ]
                    },
                    {"alternatives": [{}]},
                    {"alternatives": [{"transcript": " known", "words": [google_word(2, "known")]}]},
                ]
            },
        },
        "he has known",
        [],
    ),
    "Google, channels": (
        {
            "results": [
                {"channelTag": 1, "alternatives": [{"transcript": "he", "words": [google_word(1, "he")]}]},
                {"channelTag": 2, "alternatives": [{"transcript": "oh", "words": [google_word(0, "oh")]}]},
            ]
        },
        "oh he",
        [("channel 2", "oh"), ("channel 1", "he")],
    ),
    "Google, speakers": (
        {
            "results": [
                {"alternatives": [{"transcript": "he oh", "words": [google_word(0, "he"), google_word(1, "oh")]}]},
                {"alternatives": [{"words": [google_word(0, "he", speakerTag=1), google_word(1, "oh", speakerTag=2)]}]},
            ]
        },
        "he oh",
        [("Speaker 1", "he"), ("Speaker 2", "oh")],
    ),
    "IBM": (IBM, "he has", [("Speaker 0", "he"), ("Speaker 1", "has")]),
    "whisper.cpp": (
        {"transcription": [{"text": " He", "offsets": {"from": 0, "to": 900}}, {"text": " has", "speaker": "0"}]},
        "He has",
        [("", "He"), ("0", "has")],
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_services_give_what_every_channel_and_speaker_said(name: str) -> None:
    """Channels and speakers are joined by their times, with their names."""
    document, text, spoken = DOCUMENTS[name]
    entry = service_entry(json.loads(json.dumps(document)), "x")
    assert entry is not None
    assert (entry.text, [(part.speaker, part.text) for part in entry.segments]) == (text, spoken)


def test_times_of_words_are_seconds(tmp_path: Path) -> None:
    """AssemblyAI writes milliseconds, Google texts such as 1.4s."""
    for name, start, end in (("AssemblyAI", 0.9, 1.3), ("Google", 2.0, 2.4), ("Amazon", 1.0, 1.4)):
        entry = service_entry(DOCUMENTS[name][0], "x")
        assert entry is not None
        assert entry.words[-1][1:] == pytest.approx((start, end))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_may_be_one_line(tmp_path: Path, name: str, indent: int | None) -> None:
    """Line breaks change nothing, nor does an `id` somewhere."""
    (tmp_path / "h.json").write_text(json.dumps(DOCUMENTS[name][0], indent=indent))
    (tmp_path / "r.txt").write_text(DOCUMENTS[name][1] or "x")
    score = score_place(str(tmp_path / "h.json"), str(tmp_path / "r.txt"), "en").corpus
    assert score.wer == (0 if DOCUMENTS[name][1] else 1)


def test_a_row_on_one_line_is_a_row(tmp_path: Path) -> None:
    """A file of JSON with a single row is scored by its id."""
    (tmp_path / "h.json").write_text('{"id": "a", "pred_text": "he has", "words": []}')
    (tmp_path / "r.jsonl").write_text('{"id": "a", "text": "he has"}\n{"id": "b", "text": "x"}\n')
    assert score_place(str(tmp_path / "h.json"), str(tmp_path / "r.jsonl"), "en").corpus.wer == pytest.approx(1 / 3)


REFUSED = {
    "channels without times": (
        {"combinedRecognizedPhrases": [{"channel": 0, "display": "He."}, {"channel": 1, "display": "Oh."}]},
        "has several channels, and no times",
    ),
    "channels of Deepgram": (
        {"results": {"channels": [{"alternatives": [{"transcript": "x"}]}, {"alternatives": [{"transcript": "y"}]}]}},
        "has several channels, and no times",
    ),
    "half a document": ({"results": {"transcripts": ["x"]}}, "is no whole transcript of a service"),
    "a failed job": ({"jobName": "x", "status": "FAILED", "results": {}}, "give JSON lines, an array of rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_documents_without_an_order_are_refused(tmp_path: Path, name: str) -> None:
    """No channel is dropped, and no order made up."""
    (tmp_path / "h.json").write_text(json.dumps(REFUSED[name][0]))
    (tmp_path / "r.txt").write_text("x")
    with pytest.raises(ManifestError, match=REFUSED[name][1]):
        score_place(str(tmp_path / "h.json"), str(tmp_path / "r.txt"), "en")


@pytest.mark.skipif(not CASE.is_dir(), reason=f"no case in {CASE}")
def test_a_compact_document_of_amazon_is_scored() -> None:
    """The document of the public report has no errors."""
    assert score_place(str(CASE / "aws.json"), str(CASE / "yt.txt"), "en").corpus.wer == 0
