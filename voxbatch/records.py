"""The frozen records that flow from package to package: a manifest line in, a Transcript or a Failure out.

    Item → Waveform → Chunk → Hypothesis → Transcript | Failure

Inside, positions are integer samples at 16 kHz on the recording's clock. Seconds appear only at the edges (Item, Word,
Segment). Records hold data and define its meaning; the packages that make and read the records hold the logic. Records
do not validate: an Item is checked once, when its line is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxbatch.answer_options import AnswerOptions

SAMPLING_RATE = 16_000
"""Samples per second of every waveform inside voxbatch. Whisper and Voxtral were trained on this rate."""

Samples = NDArray[np.float32]
"""Mono audio: float32, shape (num_samples,), full scale ±1."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a manifest: a recording, or a part of a recording, to transcribe."""

    index: int
    """0-based position among the manifest's items (blank lines do not count). It identifies the item within a run."""
    line: int
    """1-based line number in the manifest, for people."""
    id: str
    """Identifier that is unique within the manifest. Output files are named after it."""
    audio: str
    """Place of the audio: an absolute path or a URI, already resolved against the manifest's folder."""
    offset: float = 0.0
    """Seconds to skip at the start of the recording."""
    duration: float | None = None
    """Seconds to take from there. None means to the end."""
    text: str | None = None
    """The reference transcript, if there is one."""
    lang: str | None = None
    """Tag of the language that the line gives, e.g. "en" or "pt-BR". None means the language of the run."""
    channel: int | None = None
    """0-based channel to take. None means a mixdown of all channels."""
    row: bytes = b"{}"
    """The line's JSON object as it was read, in UTF-8, without a line end. The output line repeats its keys and values.
    It is not kept parsed, because a parsed object can take 50 times as much memory."""
    prompt: str | None = None
    """Question about the recordings. None if the item is to be transcribed."""
    further: tuple[str, ...] = ()
    """Places of the question's other recordings, as in `audio`."""


@dataclass(frozen=True, slots=True, eq=False)
class Waveform:
    """A contiguous block of a recording: mono float32 at 16 kHz. A long recording is a sequence of Waveforms,
    in order."""

    samples: Samples
    start: int = 0
    """Position of samples[0] on the recording's clock, in samples."""


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a Chunk on its recording's clock, in samples.

    The cores of a recording's chunks partition it: every sample is in exactly one core. If no pause was found to cut
    in, neighbouring chunks also carry each other's audio around the cut (the audio extends beyond the core). Stitching
    then decides by time which words count.
    """

    start: int
    end: int
    """The chunk's audio is [start, end)."""
    core_start: int
    core_end: int
    """The core is [core_start, core_end), inside the audio."""
    silent: bool = False
    """True for certain silence or stationary noise. The chunk is not given to an engine, which could only
    invent text."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the recordings of a Chunk, or about a text alone."""

    prompt: str
    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function that the model asks for. Nobody executes it."""

    name: str
    arguments: str
    """JSON text of the arguments, an object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a model to a Question."""

    text: str
    """The text alone; tool calls are in `tool_calls`."""
    finish_reason: str
    """"stop", "length" (the largest number of tokens was reached) or "tool_calls"."""
    prompt_tokens: int
    """Number of positions of the prompt, with those of the audio."""
    completion_tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    parts: tuple[str, ...] = ()
    """Answers about the parts of a long recording, from which this answer was made. Empty if there was one part."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The unit of work of an engine: never longer than the engine's limit, and cut in a pause if there is one."""

    item: int
    """Item.index of the recording."""
    index: int
    """0-based position within the recording."""
    samples: Samples
    """Shape (span.end - span.start,)."""
    span: Span
    lang: str | None = None
    """Primary subtag of the language, e.g. "pt". None means that no language is given."""
    question: Question | None = None
    """The question to answer. None means to transcribe the chunk."""
    recordings: tuple[int, ...] = ()
    """Lengths of the question's recordings in samples, one after another in `samples`. Empty for a question without
    audio."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word with its times."""

    text: str
    """The word with its leading space, if it was decoded with one. So joining words gives the text in any script."""
    start: float
    end: float
    """Seconds of the start and the end. In a Hypothesis they count from the chunk's first sample, in a Transcript they
    are on the recording's clock."""
    confidence: float | None = None
    """0 to 1, or None if the engine gives no confidence."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech between pauses, about a sentence."""

    text: str
    start: float
    end: float


LOST_SPEECH = "lost_speech"
"""Kind of a Flag: no text over speech."""
TEXT_OVER_SILENCE = "text_over_silence"
"""Kind of a Flag: text where nobody speaks."""
REPETITION = "repetition"
"""Kind of a Flag: the text repeats itself."""
SPEAKING_RATE = "speaking_rate"
"""Kind of a Flag: more text, or less, than anybody speaks in this time."""
CUT_OFF = "cut_off"
"""Kind of a Flag: the text ended at the largest number of tokens."""
LOW_CONFIDENCE = "low_confidence"
"""Kind of a Flag: the model is unsure of its words."""
OTHER_LANGUAGE = "other_language"
"""Kind of a Flag: the text is probably in another language than the one asked for."""
FLAG_KINDS = (
    LOST_SPEECH, TEXT_OVER_SILENCE, REPETITION, SPEAKING_RATE, CUT_OFF, LOW_CONFIDENCE, OTHER_LANGUAGE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flag:
    """One reason to distrust the text that was kept."""

    kind: str
    """One of FLAG_KINDS."""
    reason: str
    """The reason as text for people, e.g. "no text over 12.4 s of speech"."""
    start: float | None = None
    end: float | None = None
    """Seconds of the stretch that the flag is about. In a Hypothesis they count from the chunk's first sample, in a
    Transcript they are on the recording's clock. In a Hypothesis, None means the whole chunk; in a Transcript, the
    whole recording."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Text that an engine recognised in one Chunk."""

    item: int
    chunk: int
    text: str
    words: tuple[Word, ...] = ()
    """Words with times that count from the chunk's first sample. Empty if the engine gives no word times."""
    warnings: tuple[str, ...] = ()
    language: str | None = None
    """Primary subtag of the language that the engine was told, or that it detected with enough certainty. None if
    neither is the case, or if the text is empty."""
    flags: tuple[Flag, ...] = ()
    """Reasons to distrust the text."""
    confidence: float | None = None
    """0 to 1: the mean probability of the text's tokens, for an engine without word times. Otherwise None: the words
    have their own."""
    answer: Answer | None = None
    """Answer to the chunk's question, whose text is `text`."""


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """The error of an engine on one Chunk. The item fails, and the run continues."""

    item: int
    chunk: int
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """Text of one Item, with times on the recording's clock (0 is the start of the recording, not the offset)."""

    text: str
    words: tuple[Word, ...] = ()
    segments: tuple[Segment, ...] = ()
    audio_duration: float = 0.0
    """Seconds of audio that were transcribed."""
    warnings: tuple[str, ...] = ()
    language: str | None = None
    """Language of most of the audio that has one, by the chunks' Hypotheses. None if no chunk has a language."""
    flags: tuple[Flag, ...] = ()
    """Reasons to distrust the text, in the order of the chunks."""
    confidence: float | None = None
    """0 to 1: the mean of the chunks with text, for an engine without word times. Otherwise None: the words have their
    own."""
    answer: Answer | None = None
    """Answer to the item's question, whose text is `text`. None if the item was transcribed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why one Item has no transcript."""

    error: str
    """Class name in errors.py, e.g. "AudioError"."""
    message: str
    retryable: bool = False
    """True if the same item may succeed in another run with nothing changed, for example after a network error."""


Outcome = Transcript | Failure
