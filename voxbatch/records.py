"""The frozen records that flow from room to room: a manifest line in, a Transcript or a Failure out.

    Item → Waveform → Chunk → Hypothesis → Transcript | Failure

Inside, positions are integer samples at 16 kHz on the recording's clock; seconds appear only at the edges (Item, Word,
Segment). Records hold data and say what it means; the rooms that make and read them hold the logic. Nothing here
validates: an Item is checked once, where its line is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLING_RATE = 16_000
"""Samples per second of every waveform inside voxbatch: what Whisper and Voxtral were trained on."""

Samples = NDArray[np.float32]
"""Mono audio: float32, shape (num_samples,), full scale ±1."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a manifest: a recording, or a part of one, to transcribe."""

    index: int
    """0-based position among the manifest's items (blank lines do not count): the item's identity within a run."""
    line: int
    """1-based line number in the manifest, for people."""
    id: str
    """Unique within the manifest; output files are named after it."""
    audio: str
    """Where the audio is: an absolute path or a URI, already resolved against the manifest's place."""
    offset: float = 0.0
    """Seconds to skip at the recording's start."""
    duration: float | None = None
    """Seconds to take from there; None means to the end."""
    text: str | None = None
    """The reference transcript, where one is known."""
    lang: str | None = None
    """Language as the line gave it, e.g. "en" or "pt-BR"; None means the run's."""
    channel: int | None = None
    """0-based channel to take; None means mix down."""
    row: dict[str, Any] = field(default_factory=dict)
    """The line's JSON object as it was read: it comes out again in the output line."""


@dataclass(frozen=True, slots=True, eq=False)
class Waveform:
    """A contiguous stretch of a recording: mono float32 at 16 kHz. Long recordings pass as many of these, in order."""

    samples: Samples
    start: int = 0
    """Position of samples[0] on the recording's clock, in samples."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a Chunk lies on its recording's clock, in samples.

    The cores of a recording's chunks partition it: every sample is in exactly one. Where no pause was found to cut in,
    neighbouring chunks also carry each other's audio around the cut (the audio reaches beyond the core), and stitching
    decides by time which words count.
    """

    start: int
    end: int
    """The chunk's audio is [start, end)."""
    core_start: int
    core_end: int
    """The core is [core_start, core_end), inside the audio."""
    silent: bool = False
    """Certain silence or stationary noise: the chunk is not given to an engine, which could only invent text."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """What an engine gets at a time: never longer than its limit, cut in a pause where there is one."""

    item: int
    """Item.index of the recording."""
    index: int
    """0-based position within the recording."""
    samples: Samples
    """Shape (span.end - span.start,)."""
    span: Span
    lang: str | None = None


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    """With the leading space it was decoded with, so that joining words gives the text in any script."""
    start: float
    end: float
    """Seconds, from the chunk's first sample in a Hypothesis, on the recording's clock in a Transcript."""
    confidence: float | None = None
    """0 to 1 where the engine gives one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech between pauses, about a sentence."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What an engine heard in one Chunk."""

    item: int
    chunk: int
    text: str
    words: tuple[Word, ...] = ()
    """Empty where the engine gives no word times. Times count from the chunk's first sample."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """An engine could not transcribe one Chunk; its item fails, the run goes on."""

    item: int
    chunk: int
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in one Item, with times on the recording's clock (0 is the recording's start, not the offset)."""

    text: str
    words: tuple[Word, ...] = ()
    segments: tuple[Segment, ...] = ()
    audio_duration: float = 0.0
    """Seconds of audio that were transcribed."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one Item has no transcript."""

    error: str
    """Class name in errors.py, e.g. "AudioError"."""
    message: str
    retryable: bool = False
    """Whether the same item might succeed another time with nothing changed (a network fault, an engine hiccup)."""


Outcome = Transcript | Failure
