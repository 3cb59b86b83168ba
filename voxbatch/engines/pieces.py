"""Pieces of a chunk: the audio of one call of a model, and the other pieces of a second attempt.

A chunk is one piece at first. If its text is suspect (`suspect_text`), `recut` makes other pieces of the same audio,
and `joined` makes one text of their texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from voxbatch import records
from voxbatch.engines.suspect_text import PieceText
from voxbatch.records import SAMPLING_RATE, TRANSCRIBE, Hints, Question, Samples, Word
from voxbatch.text.chunking import quietest_position

SPLIT_S = 8.0
"""Length from which a suspect chunk is decoded again in two halves. A shorter chunk is decoded again behind a little
silence."""
SHIFT = 6_720
"""Number of samples of silence in front of a short suspect chunk: 420 ms, which is 5.25 tokens of Voxtral Realtime. The
quarter of a token is one encoder frame, so each token of audio pools other encoder frames than in the first round. A
shift by whole tokens would give each token the same frames again."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a chunk's audio that becomes one request."""

    samples: Samples
    """Samples of shape (num_samples,), at most `max_chunk_samples` of the family."""
    lang: str | None = None
    """Primary subtag of the language. None means that the language is unknown."""
    lead: int = 0
    """Number of samples of silence at the front that are not part of the chunk."""
    hints: Hints | None = None
    task: str = TRANSCRIBE
    """See Chunk."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuestionPiece(Piece):
    """A question and all its recordings, which become one request."""

    question: Question
    recordings: tuple[int, ...] = ()
    """Lengths of the recordings, one after another in `samples`; see `Chunk.recordings`."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpokenPiece(Piece):
    """A text to speak, which becomes one request. `samples` is the speech, at the rate of the model, once there is
    one."""

    spoken: records.TextPiece


def joined(pieces: list[Piece], texts: list[PieceText]) -> PieceText:
    """Join the texts of consecutive pieces into one, with times from the chunk's first sample."""
    if len(texts) == 1 and not pieces[0].lead:
        return texts[0]
    offset, words = 0.0, list[Word]()
    pauses, untranscribed = list[tuple[float, float]](), list[tuple[float, float]]()
    text_after_eos = list[tuple[float, int]]()
    for piece, piece_text in zip(pieces, texts, strict=True):
        zero = offset - piece.lead / SAMPLING_RATE
        words += [
            replace(w, start=max(offset, w.start + zero), end=max(offset, w.end + zero)) for w in piece_text.words
        ]
        if piece_text.longest_pause:
            start, end = (max(offset, place + zero) for place in piece_text.longest_pause)
            pauses.append((pauses.pop()[0] if pauses and pauses[-1][1] == start else start, end))
        if piece_text.untranscribed:
            untranscribed.append((max(offset, piece_text.untranscribed[0] + zero), piece_text.untranscribed[1] + zero))
        text_after_eos += [(max(offset, at + zero), characters) for at, characters in piece_text.text_after_eos]
        offset = zero + len(piece.samples) / SAMPLING_RATE
    parts = filter(None, (piece_text.text.strip() for piece_text in texts))
    text = "".join(word.text for word in words) if words else " ".join(parts)
    truncated = any(piece_text.truncated for piece_text in texts)
    sure = [piece_text.confidence for piece_text in texts if piece_text.confidence is not None]
    return PieceText(
        text, tuple(words), _longest(pauses), _longest(untranscribed), truncated, tuple(text_after_eos),
        fmean(sure) if sure else None,
    )  # fmt: skip


def _longest(stretches: list[tuple[float, float]]) -> tuple[float, float] | None:
    return max(stretches, key=lambda stretch: stretch[1] - stretch[0], default=None)


def recut(piece: Piece, limit: int) -> list[Piece]:
    """Return the audio of a piece as the pieces of a second round.

    From SPLIT_S on these are two halves, cut at the quietest place near the middle. Shorter audio is one piece, behind
    a little silence.

    Args:
        limit: length of the longest piece that the model takes, in samples.
    """
    samples = piece.samples
    if len(samples) >= SPLIT_S * SAMPLING_RATE:
        middle = len(samples) // 2
        at, _ = quietest_position(samples, middle - SAMPLING_RATE * 2, middle + SAMPLING_RATE * 2)
        return [replace(piece, samples=samples[:at]), replace(piece, samples=samples[at:])]
    lead = min(SHIFT, limit - len(samples))
    return [replace(piece, samples=np.concatenate([np.zeros(lead, np.float32), samples]), lead=lead)]
