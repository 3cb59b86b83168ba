"""Read the JSON of services and programs: Amazon, AssemblyAI, Azure, Deepgram, Google, IBM, Rev, Speechmatics,
whisper.cpp.

    {"results": {"channels": [{"alternatives": [{"transcript": "he has", "words": [{"word": "he", "start": 0.1, …
        →   text "he has", words (("he", 0.1, 0.3), …)

What several channels or speakers say is joined in the order of its times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxbatch.analysis.readers.entry import TextEntry
from voxbatch.scoring.word_times import TimedWord
from voxbatch.sources.transcripts import TimedText, in_order, joined

Json = Mapping[str, Any]
_CLOCK = re.compile(r"(\d+):(\d+):(\d+)[,.](\d{3})")
_UNORDERED = (
    "has several channels, and no times that tell in which order they speak; ask the service for times of words"
)


def service_entry(document: Json, file_id: str) -> TextEntry | None:
    """Return the transcript of a service; None if the document is of no known shape.

    Raises:
        ValueError: the document does not tell in which order its channels speak.
    """
    match document:
        case {"response": {"results": list(results)}} | {"results": list(results)}:
            return _of_results(file_id, results, document)
        case {"results": {"transcripts": list(transcripts)}}:
            words = _words_with_marks(_amazon_items(document["results"]))
            return _entry(file_id, words, _plain(transcripts, "transcript"), are_words=True)
        case {"results": {"channels": list(channels)}}:
            return _deepgram(file_id, channels, document["results"].get("utterances") or ())
        case {"combinedRecognizedPhrases": list(combined)}:
            return _azure(file_id, combined, document.get("recognizedPhrases") or (), "display")
        case {"combinedPhrases": list(combined)}:
            return _azure(file_id, combined, document.get("phrases") or (), "text")
        case {"text": str(text), "audio_url": str()}:  # AssemblyAI
            words = [_timed(word, "text", "start", "end", "speaker", 0.001) for word in document.get("words") or ()]
            return _entry(file_id, words, text, are_words=True)
        case {"monologues": list(monologues)}:
            names = {speaker["id"]: speaker.get("name") for speaker in document.get("speakers") or ()}
            return _entry(file_id, (_monologue(monologue, names) for monologue in monologues))
        case {"Transcript": [{"ParticipantRole": str()}, *_] as turns}:  # Amazon's analytics of calls
            keys = "Content", "BeginOffsetMillis", "EndOffsetMillis", "ParticipantRole"
            return _entry(file_id, (_timed(turn, *keys, unit=0.001) for turn in turns))
        case {"transcription": list(segments)}:  # whisper.cpp
            parts = ({**segment, **segment.get("offsets", {})} for segment in segments)
            return _entry(file_id, (_timed(part, "text", "from", "to", "speaker", 0.001) for part in parts))
    return None


def _of_results(file_id: str, results: Sequence[Json], document: Json) -> TextEntry | None:
    """Return the entry of a service whose results are a list: Speechmatics has words, Google and IBM sentences."""
    if "format" in document:
        return _entry(file_id, _words_with_marks(_speechmatics_items(results)), are_words=True)
    if all("alternatives" in result for result in results):
        return _google(file_id, [result for result in results if result["alternatives"]], document)
    return None


def _entry(file_id: str, texts: Iterable[TimedText], text: str = "", *, are_words: bool = False) -> TextEntry:
    """Return the entry of a file.

    Args:
        text: the text as the service writes it, which has the order of one speaker. With several, the texts are joined.
        are_words: each of the texts is a word.
    """
    ordered = in_order(texts)
    speakers = {spoken.speaker for spoken in ordered}
    words = tuple(TimedWord(word.text, word.start, word.end) for word in ordered) if are_words else ()
    return TextEntry(
        0,
        file_id,
        text if text and len(speakers) < 2 else joined(ordered),
        words=words,
        segments=tuple(ordered) if speakers - {""} else (),
        is_file=True,
    )


def _timed(part: Json, text: str, start: str, end: str, speaker: str, unit: float = 1.0) -> TimedText:
    """Return a text with its times, which are numbers of units in seconds, by the names of its values."""
    begin, finish = (float(part.get(key) or 0) * unit for key in (start, end))
    name = part.get(speaker)
    return TimedText(str(part.get(text) or ""), begin, finish, "" if name is None else str(name))


def _plain(parts: Iterable[Json], key: str) -> str:
    return " ".join(text for part in parts if (text := str(part.get(key) or "").strip()))


def _words_with_marks(items: Iterable[Json]) -> list[TimedText]:
    """Return the words of items, with the marks that follow them. Amazon and Speechmatics have such items."""
    words: list[TimedText] = []
    for item in items:
        if item.get("type") == "punctuation" and words:
            words[-1] = replace(words[-1], text=words[-1].text + str(item.get("content") or ""))
        else:
            words.append(_timed(item, "content", "start_time", "end_time", "speaker"))
    return words


def _amazon_items(results: Json) -> Iterator[Json]:
    """Yield the items of Amazon with their text and speaker. The speakers are in the items or, in older documents, in
    lists of their own by the start."""
    items = results.get("items") or []
    by_start = {
        item.get("start_time"): item.get("speaker_label")
        for segment in (results.get("speaker_labels") or {}).get("segments") or ()
        for item in segment.get("items") or ()
    }
    for channel in (results.get("channel_labels") or {}).get("channels") or ():
        if not any(item.get("channel_label") == channel.get("channel_label") for item in items):
            items = [*items, *({**item, "channel_label": channel.get("channel_label")} for item in channel["items"])]
    for item in items:
        best = item["alternatives"][0] if item.get("alternatives") else {}
        speaker = item.get("speaker_label") or item.get("channel_label") or by_start.get(item.get("start_time"))
        yield {**item, "content": best.get("content"), "speaker": speaker}


def _deepgram(file_id: str, channels: Sequence[Json], utterances: Sequence[Json]) -> TextEntry:
    alternatives = [channel["alternatives"][0] for channel in channels if channel.get("alternatives")]
    spoken = [alternative for alternative in alternatives if alternative.get("transcript")]
    words = [
        _timed({**word, "speaker": _speaker(word, number, len(channels))}, key, "start", "end", "speaker")
        for number, alternative in enumerate(alternatives)
        for word in alternative.get("words") or ()
        for key in ("punctuated_word" if word.get("punctuated_word") else "word",)
    ]
    if all(alternative.get("words") for alternative in spoken):
        return _entry(file_id, words, _plain(alternatives, "transcript"), are_words=True)
    if len(spoken) == 1:
        return _entry(file_id, (), _plain(spoken, "transcript"))
    if utterances:
        return _entry(file_id, (_timed(utterance, "transcript", "start", "end", "channel") for utterance in utterances))
    raise ValueError(_UNORDERED)


def _speaker(part: Json, channel: object, num_channels: int) -> str:
    """Return the name of a speaker: that of the service in a channel; "" if the service tells neither apart."""
    names = [f"channel {channel}"] if num_channels > 1 else []
    names += [f"speaker {part['speaker']}"] if part.get("speaker") is not None else []
    return ", ".join(names)


def _azure(file_id: str, combined: Sequence[Json], phrases: Sequence[Json], key: str) -> TextEntry:
    """Return the entry of Azure's batch or fast transcription, whose times are ticks of 100 ns or milliseconds."""
    channels = {phrase.get("channel") for phrase in phrases}
    texts = []
    for phrase in phrases:
        best = phrase["nBest"][0] if phrase.get("nBest") else phrase
        part = {**phrase, "text": best.get(key), "speaker": _speaker(phrase, phrase.get("channel"), len(channels))}
        units = ("offsetInTicks", "durationInTicks", 1e-7), ("offsetMilliseconds", "durationMilliseconds", 0.001)
        offset, duration, unit = units["offsetMilliseconds" in phrase]
        text = _timed(part, "text", offset, duration, "speaker", unit)
        texts.append(replace(text, end=text.start + text.end))
        if offset not in phrase and len(channels) > 1:
            raise ValueError(_UNORDERED)
    if not texts and len([part for part in combined if part.get(key)]) > 1:
        raise ValueError(_UNORDERED)
    return _entry(file_id, texts, _plain(combined, key))


def _monologue(monologue: Json, names: Mapping[object, str | None]) -> TimedText:
    """Return a monologue of Rev. Its elements have the spaces; times are seconds, or of the form 00:00:01,200."""
    elements = monologue.get("elements") or ()
    text = "".join(str(element.get("value", "")) for element in elements)
    starts = [element.get("ts", element.get("timestamp")) for element in elements]
    ends = [element.get("end_ts", element.get("end_timestamp")) for element in elements]
    times = [_seconds(time) for time in (*starts, *ends) if time is not None] or [0.0]
    number = monologue.get("speaker", "")
    return TimedText(text, times[0], times[-1], names.get(number) or f"Speaker {number}")


def _seconds(time: float | str) -> float:
    if isinstance(time, str) and (clock := _CLOCK.fullmatch(time)):
        hours, minutes, seconds, thousandths = map(int, clock.groups())
        return hours * 3600 + minutes * 60 + seconds + thousandths / 1000
    return float(str(time).removesuffix("s"))


def _speechmatics_items(results: Iterable[Json]) -> Iterator[Json]:
    """Yield the results of Speechmatics with their text and speaker."""
    for result in results:
        best = result["alternatives"][0] if result.get("alternatives") else {}
        names = filter(None, (result.get("channel"), best.get("speaker")))
        yield {**result, "content": best.get("content"), "speaker": ", ".join(names)}


def _google(file_id: str, results: Sequence[Json], document: Json) -> TextEntry:
    """Return the entry of Google, or of IBM, which has the times of words in `timestamps`, and speakers beside."""
    speakers = {label["from"]: f"Speaker {label['speaker']}" for label in document.get("speaker_labels") or ()}
    channels = {result.get("channelTag") for result in results}
    last = results[-1]["alternatives"][0] if results else {}
    if len(results) > 1 and _diarized(last) and not _diarized(results[-2]["alternatives"][0]):
        words = list(_google_words(last, {}, ""))  # the last result has all words again, with the speakers
        return _entry(file_id, words, are_words=True)
    texts: list[TimedText] = []
    has_words = True
    for result in results:
        best = result["alternatives"][0]
        channel = f"channel {result['channelTag']}" if len(channels) > 1 else ""
        words = list(_google_words(best, speakers, channel))
        if words or not best.get("transcript"):
            texts += words
        elif len(channels) > 1:
            raise ValueError(_UNORDERED)
        else:
            has_words = False
    plain = _plain((result["alternatives"][0] for result in results), "transcript")
    return _entry(file_id, texts if has_words else (), plain, are_words=True)


def _diarized(alternative: Json) -> bool:
    return any(word.get("speakerTag") or word.get("speakerLabel") for word in alternative.get("words") or ())


def _google_words(alternative: Json, speakers: Mapping[float, str], channel: str) -> Iterator[TimedText]:
    for word in alternative.get("words") or ():
        start, end = (word.get(f"{side}Time", word.get(f"{side}Offset", 0)) for side in ("start", "end"))
        speaker = word.get("speakerLabel") or word.get("speakerTag")
        name = ", ".join(filter(None, (channel, f"Speaker {speaker}" if speaker else "")))
        yield TimedText(str(word.get("word", "")), _seconds(start), _seconds(end), name)
    for text, start, end in alternative.get("timestamps") or ():
        yield TimedText(str(text), float(start), float(end), speakers.get(start, channel))
