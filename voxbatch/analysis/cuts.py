"""Cut transcripts into the utterances of a data set: of one speaker, from pause to pause, 3 to 30 s by default.

A cut may fall where two words are PAUSE_S apart, and where a segment ends. Without word times, a cut is made of whole
segments. Utterances are as long as fits, and end at the longest of the pauses in reach.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from voxbatch.analysis.dataset_options import BY_SPEAKER, DatasetOptions
from voxbatch.formats.names import output_name
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.lines import CASCADE_KEY
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.run_file import Run
from voxbatch.records import Segment, Word
from voxbatch.text.stitching import mean
from voxbatch.work import additions_of

PAUSE_S = 0.2
"""Seconds between two words where a cut may fall. The closure of a stop consonant takes up to 0.15 s."""
LONG_PAUSE_S = 2.0
"""Seconds without a word that no cut contains: perhaps music, or speech that the engine missed."""
EDGE_S = 0.3
"""Seconds of a pause that a cut takes before its first word and after its last word, at most."""
SPLITS = TRAIN, DEV, TEST = ("train", "dev", "test")
_NUMBERED = re.compile(r"Speaker \d+")
"""Label of a speaker whose voice has no name. It means another person in each recording."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One utterance of a data set."""

    id: str
    """Name of its files. It has no dot, because WebDataset takes what precedes the first dot as the key."""
    split: str
    """One of SPLITS."""
    recording: str
    """Place of the recording, as in the output line."""
    channel: int | None
    offset: float
    duration: float
    """Seconds on the recording's clock."""
    text: str
    lang: str | None
    speaker: str | None
    """Name of the speaker; if the voice has no name, the label with the id of the item."""
    confidence: float | None
    agree: bool | None
    """See works.cascade.overlay. None if only one model did the item."""
    words: tuple[Mapping[str, Any], ...]
    """`word`, `start` and `end` in seconds from the start of the cut, and `confidence`."""
    heard_to: float = field(default=0.0, repr=False)
    """Second of the recording up to which the item went."""
    heard_all: bool = field(default=False, repr=False)
    """True if that is the end of the recording, because its row gives no `duration`."""


def cuts_of(line: Mapping[str, Any], run: Run, options: DatasetOptions, left_out: Counter[str]) -> Iterator[Cut]:
    """Yield the cuts of one line of transcripts.jsonl.

    Args:
        left_out: counts the others by the reason, in words that follow "cuts".
    """
    has_own_names = any(added.names_speakers for added in additions_of(run.identity))
    transcript, agree = read_transcript(line), (line.get(CASCADE_KEY) or {}).get("agree")
    tokens: Sequence[Word | Segment] = transcript.words or transcript.segments
    first_s = line.get("offset") or 0.0
    last_s = first_s + transcript.audio_duration
    heard_until = list(accumulate((token.end for token in tokens), max, initial=first_s))
    positions = _positions(transcript.text, tokens)
    for begin, end in _ranges(tokens, {segment.end for segment in transcript.segments}, options):
        first, last, words = tokens[begin], tokens[end - 1], transcript.words[begin:end]
        before = min(heard_until[begin], first.start) if begin else first_s
        after = tokens[end].start if end < len(tokens) else last_s
        start = round(max(first_s, first.start - EDGE_S, (before + first.start) / 2), 3)
        stop = round(min(last_s, last.end + EDGE_S, max(last.end, (last.end + after) / 2)), 3)
        sure = [word.confidence for word in words if word.confidence is not None]
        confidence = mean(sure) if words else transcript.confidence
        reason = _reason(line, options, stop - start, confidence, agree)
        if heard_until[begin] > first.start + PAUSE_S or after < last.end - PAUSE_S:
            reason = reason or "in which several people speak"
        if reason:
            left_out[reason] += 1
            continue
        label = first.speaker or line.get("speaker")
        speaker = None if label is None else str(label)
        if first.speaker and (_NUMBERED.fullmatch(first.speaker) or has_own_names):
            speaker = f"{line['id']} {first.speaker}"
        place = str(line[AUDIO_KEY]).removeprefix(f"{run.folder}/")  # so that a data set may move
        key = speaker if options.split_by == BY_SPEAKER and speaker else place
        text = transcript.text[positions[begin][0] : positions[end - 1][1]] if positions else ""
        stem = output_name(line["id"], "flac").removesuffix(".flac").replace(".", "%2E").replace("/", "_")
        digest = hashlib.sha256(line["id"].encode("utf-8", "surrogatepass")).hexdigest()[:8]
        yield Cut(
            id=f"{stem[:100]}-{digest}-{round(start * 1000):09d}",
            split=split_of(key, options),
            recording=line[AUDIO_KEY],
            channel=line.get("channel"),
            offset=start,
            duration=round(stop - start, 3),
            text=text or " ".join(token.text.strip() for token in tokens[begin:end]),
            lang=line.get("lang"),
            speaker=speaker,
            confidence=None if confidence is None else round(confidence, 3),
            agree=agree,
            words=tuple(
                {
                    "word": word.text, "start": round(word.start - start, 3), "end": round(word.end - start, 3),
                    "confidence": word.confidence,
                }
                for word in words
            ),
            heard_to=last_s,
            heard_all=line.get("duration") is None,
        )  # fmt: skip


def split_of(key: str, options: DatasetOptions) -> str:
    """Return the split of a recording or a speaker. It depends on the key alone, so a later data set with more
    recordings has those of this one in the same splits."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    percent = int.from_bytes(digest[:8], "big") / 2**64 * 100
    if percent < options.test:
        return TEST
    return DEV if percent < options.test + options.dev else TRAIN


def _reason(
    line: Mapping[str, Any], options: DatasetOptions, seconds: float, confidence: float | None, agree: bool | None
) -> str:
    """Return the reason why a cut is left out; "" if it is taken."""
    wer, least, highest = line.get("wer"), options.min_confidence, options.max_wer
    if seconds < options.min_seconds:
        return f"shorter than {options.min_seconds:g} s"
    if seconds > options.max_seconds:
        return f"longer than {options.max_seconds:g} s without a pause"
    if least is not None and (confidence is None or confidence < least):
        return "with less confidence"
    if highest is not None and (wer is None or 100 * wer > highest):
        return "without a reference" if wer is None else "of items with more errors"
    return "of items without agreement" if options.agree and not agree else ""


def _ranges(
    tokens: Sequence[Word | Segment], segment_ends: set[float], options: DatasetOptions
) -> Iterator[tuple[int, int]]:
    """Yield the ranges [begin, end) of the tokens of each cut."""
    limit, least = options.max_seconds - 2 * EDGE_S, options.min_seconds
    begin, edges = 0, list[int]()  # where the tokens from `begin` on may be cut
    for at, (before, token) in enumerate(pairwise(tokens), 1):
        pause = token.start - before.end
        if pause >= PAUSE_S or before.end in segment_ends:
            edges.append(at)
        if token.speaker != before.speaker or pause >= LONG_PAUSE_S:
            yield begin, at
            begin, edges = at, []
        while edges and token.end - tokens[begin].start > limit:
            long_enough = [edge for edge in edges if tokens[edge - 1].end - tokens[begin].start >= least] or edges[:1]
            end = max(long_enough, key=lambda edge: (tokens[edge].start - tokens[edge - 1].end, edge))
            yield begin, end
            begin, edges = end, [edge for edge in edges if edge > end]
    if tokens:
        yield begin, len(tokens)


def _positions(text: str, tokens: Sequence[Word | Segment]) -> list[tuple[int, int]]:
    """Return where each token begins and ends in the text; [] if one is not in it. The words of an output line have
    lost their spaces, and only the text tells which words had one."""
    positions, at = list[tuple[int, int]](), 0
    for token in tokens:
        word = token.text.strip()
        at = text.find(word, at)
        if at < 0:
            return []
        positions.append((at, at + len(word)))
        at += len(word)
    return positions
