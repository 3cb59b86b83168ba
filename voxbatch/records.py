"""The frozen records that flow from package to package: a manifest line in, a Transcript or a Failure out.

    Item → Waveform → Chunk → Hypothesis → Transcript | Failure

Inside, positions are integer samples at 16 kHz on the recording's clock. Seconds appear only at the edges (Item, Word,
Segment). Records hold data and define its meaning; the packages that make and read the records hold the logic. Records
do not validate: an Item is checked once, when its line is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from voxbatch.failure_kinds import FailureKind
from voxbatch.settings import QUESTION, setting
from voxbatch.shared_samples import SharedSamples
from voxbatch.views import TranscriptViews

if TYPE_CHECKING:  # the command line needs some of the records before numpy is imported
    import numpy as np
    from numpy.typing import NDArray

    from voxbatch.word import Number
    from voxbatch.word import Word as Word  # noqa: PLC0414 mypy then lets other modules import it from here
else:

    def __getattr__(name: str) -> Any:
        """Load Word when it is first used, because msgspec takes longer to import than the command line needs for its
        help (PEP 562)."""
        if name not in ("Number", "Word"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from voxbatch.word import Number, Word

        globals().update(Number=Number, Word=Word)
        return globals()[name]


SAMPLING_RATE = 16_000
"""Samples per second of every waveform inside voxbatch. Whisper and Voxtral were trained on this rate."""

OVERLAP = SAMPLING_RATE
"""Samples that each side of a forced cut carries beyond the cut. One second is two words at an ordinary pace, so that
both chunks hear a word at the cut whole."""

CHANNEL_MODES = SPLIT, AUTO = ("split", "auto")
"""Recognise each channel of a recording alone: always, or only if its two channels are the sides of a call."""
ALL_STREAMS = "all"
"""Mix all audio streams of a recording."""
TASKS = TRANSCRIBE, TRANSLATE, ALIGN = ("transcribe", "translate", "align")
"""Work of an engine: write the words that are spoken, or their translation into English, or find the times of a given
text."""
LEVEL_FRAME = SAMPLING_RATE // 50
"""Samples of which a level of a channel is measured: 20 ms."""

Samples: TypeAlias = "NDArray[np.float32]"
"""Mono audio: float32, shape (num_samples,), full scale ±1."""
MAX_TOKENS = 32_768
"""Largest number of tokens of an answer: the context of Voxtral Mini 3B and Small 24B."""
MAX_TEMPERATURE = 2.0
"""Highest temperature, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows in which an engine takes audio, as the estimate of a run counts them."""

    length_s: float
    """Length of the longest window."""
    step_s: float
    """Mean distance of the windows of a long recording."""
    work_s: float
    """Work on a window of this length whatever it holds, in seconds of audio that take as long."""
    padding_s: float = math.inf
    """Padding of a shorter window on which the engine works, as far as there is room."""

    def fixed_s(self, seconds: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the work on the windows of recordings, without that on their audio.

        The work on the first window is in proportion to its length. Windows of 30 s each 24 s, with the work of 11 s
        and a padding of 5 s: 0.4 s of audio → 2.0, 60 s → 33.0.
        """
        first = ((seconds + self.padding_s) / self.length_s).clip(None, 1.0) * (seconds > 0)
        return self.work_s * (first - (self.length_s - seconds).clip(None, 0) // self.step_s)


NO_WINDOWS = Windows(30.0, 30.0, 0.0)
"""The windows of an engine that pads nothing: they take no work."""


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
    hotwords: str | None = None
    """See Hints. None means those of the run."""
    given: str | None = None
    """Text whose times are looked for. None if the words are to be recognised."""
    task: str = TRANSCRIBE
    """One of TASKS."""


@dataclass(frozen=True, slots=True, eq=False)
class Waveform:
    """A contiguous block of a recording: float32 at 16 kHz, mono unless its channels are recognised alone. A long
    recording is a sequence of Waveforms, in order."""

    samples: Samples
    """Shape (num_samples, channels) if the channels are recognised alone."""
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
    channel: int | None = None
    """0-based channel of the recording, if the channels are recognised alone. The cores of each channel's chunks
    partition the recording."""


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The way in which an engine answers all questions of a run."""

    system: str | None = setting(None, group=QUESTION, metavar="TEXT", help="The system prompt.")
    max_tokens: int = setting(
        1024, minimum=1, maximum=MAX_TOKENS, group=QUESTION, metavar="N", help="Largest number of tokens of an answer."
    )
    temperature: float = setting(
        0.0, minimum=0, maximum=MAX_TEMPERATURE, group=QUESTION, metavar="T",
        help="0 takes the likeliest token each time.",
    )  # fmt: skip
    top_p: float = setting(
        1.0, minimum=math.ulp(0), maximum=1, group=QUESTION, metavar="P",
        help="With a temperature: choose among the likeliest tokens whose probabilities add up to P.",
    )  # fmt: skip
    seed: int = setting(
        0, minimum=0, maximum=2**63 - 1, group=QUESTION, metavar="N", help="With a temperature: seed of each answer."
    )
    json_schema: str | None = setting(
        None, group=QUESTION, metavar="FILE", help="A JSON schema that each answer follows."
    )
    """JSON text. None means free text."""
    tools: str | None = setting(
        None, group=QUESTION, metavar="FILE",
        help="Functions in OpenAI's format, a JSON list, that the model may call. Nothing is executed.",
    )  # fmt: skip
    """JSON text. None means no functions."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the recordings of a Chunk, or about a text alone."""

    prompt: str
    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class Hints:
    """Texts that make an engine expect words."""

    hotwords: str | None = None
    """Names and terms that may be spoken, divided by commas."""
    prompt: str | None = None
    """A text that could stand before the recording, in its style and with its names."""


@dataclass(frozen=True, slots=True)
class GivenText:
    """The text of a whole recording whose times are looked for, beside one of its chunks."""

    text: str
    is_last: bool
    """True if the chunk is the last one of the recording."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A stretch of text for an engine that speaks: some sentences, or a clause of a long one."""

    text: str
    voice: str
    seed: int
    """Seed of everything random in the speech, so that the piece sounds the same in every run."""
    pause_s: float = 0.0
    """Seconds of silence that follow the speech."""
    longest_s: float | None = None
    """Seconds that the speech may take: the engine speaks faster if it must. None sets no limit."""


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
    audio: Samples | SharedSamples
    """The samples of the span: in this process, or in memory that it has not mapped yet."""
    span: Span
    lang: str | None = None
    """Primary subtag of the language, e.g. "pt". None means that no language is given."""
    question: Question | None = None
    """The question to answer. None means to transcribe the chunk."""
    recordings: tuple[int, ...] = ()
    """Lengths of the question's recordings in samples, one after another in `samples`. Empty for a question without
    audio."""
    hints: Hints | None = None
    task: str = TRANSCRIBE
    """One of TASKS."""
    given: GivenText | None = None
    """The text, with the task `align`. The chunks of a recording then come in order, silent ones too."""
    piece: TextPiece | None = None
    """The text to speak, for an engine that speaks. The chunk then has no samples, and its span is an estimate."""

    @property
    def samples(self) -> Samples:
        """The samples in this process, shape (span.end - span.start,)."""
        return self.audio.array if isinstance(self.audio, SharedSamples) else self.audio


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech of one speaker between pauses, about a sentence."""

    text: str
    start: float
    end: float
    speaker: str | None = None
    """See Word."""
    words: tuple[Word, ...] = field(default=(), compare=False, repr=False)
    """Its words, which are those of the Transcript in this time. Empty if the engine gives no word times."""
    markup: str = ""
    """Its text as HTML with <i>, <b> and <u>, if a person has styled a subtitle so. Else empty."""


@dataclass(frozen=True, slots=True)
class SpeakerCount:
    """The number of speakers that a recording may have."""

    minimum: int = 1
    maximum: int | None = None
    """None: any number."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Time in which one speaker talks without a pause. The turns of several speakers may overlap."""

    start: float
    end: float
    """Seconds on the recording's clock."""
    speaker: int
    """Number of the speaker, from 0 in the order of their first turns."""
    name: str | None = None
    """Name of the speaker, if the voice is known."""


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
MISHEARD = "misheard"
"""Kind of a Flag: an engine that listened to a spoken piece heard another text."""
FLAG_KINDS = (
    LOST_SPEECH, TEXT_OVER_SILENCE, REPETITION, SPEAKING_RATE, CUT_OFF, LOW_CONFIDENCE, OTHER_LANGUAGE, MISHEARD,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flag:
    """One reason to distrust the text that was kept."""

    kind: str
    """One of FLAG_KINDS."""
    reason: str
    """The reason as text for people, e.g. "no text over 12.4 s of speech"."""
    start: Number | None = None
    end: Number | None = None
    """Seconds of the stretch that the flag is about. In a Hypothesis they count from the chunk's first sample, in a
    Transcript they are on the recording's clock. In a Hypothesis, None means the whole chunk; in a Transcript, the
    whole recording."""


def by_stretch(flags: Iterable[Flag]) -> list[Flag]:
    """Return one flag for each stretch with the kinds and the reasons of all its flags, for people: the whole recording
    first, and then in the order of time. Times count in tenths of a second, as they are shown."""
    stretches = dict[tuple[float, float], list[Flag]]()
    for flag in flags:
        stretch = tuple(-1.0 if time is None else round(time, 1) for time in (flag.start, flag.end))
        stretches.setdefault((stretch[0], stretch[1]), []).append(flag)
    return [
        replace(
            same[0],
            kind=", ".join(dict.fromkeys(flag.kind for flag in same)),
            reason="; ".join(dict.fromkeys(flag.reason for flag in same)),
        )
        for _, same in sorted(stretches.items(), key=itemgetter(0))
    ]


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
    confidence: Number | None = None
    """0 to 1: the mean probability of the text's tokens, for an engine without word times. Otherwise None: the words
    have their own."""
    answer: Answer | None = None
    """Answer to the chunk's question, whose text is `text`."""
    languages: tuple[tuple[str, Number], ...] = ()
    """(primary subtag, probability) of each language that the chunk may be in, from an engine that detects languages.
    Empty if nobody speaks."""


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """The error of an engine on one Chunk. The item fails, and the run continues."""

    item: int
    chunk: int
    message: str
    retryable: bool = False
    crashes: bool = False
    """True if the engine's process died of the chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Audio that an engine has spoken for the TextPiece of one Chunk."""

    item: int
    chunk: int
    piece: TextPiece
    samples: Samples
    """At the engine's sampling rate. Never empty."""
    warnings: tuple[str, ...] = ()
    heard: str | None = None
    """The text that a transcribing engine heard in the samples. None if nothing listened."""


@dataclass(frozen=True, slots=True, repr=False)
class Transcript(TranscriptViews):
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
    """0 to 1: the mean of the words, or of the chunks with text for an engine without word times. None if the engine
    gives no confidence."""
    answer: Answer | None = None
    """Answer to the item's question, whose text is `text`. None if the item was transcribed."""
    subtitles: tuple[Segment, ...] = ()
    """The subtitles that a person has timed, with line feeds between their lines. Empty if nobody has."""
    audio: str = field(default="", compare=False)
    """Place of the recording, for a player. Empty if it has none, as bytes and arrays."""
    frame_rate: float | None = None
    """Frames per second of the recording's video, at which subtitles begin. None if it has no picture."""
    aspect_ratio: float | None = None
    """Width of its picture as it is shown, divided by its height, to which lines are fitted. None if it has none."""


@dataclass(frozen=True, slots=True, eq=False)
class SpokenRecording:
    """Speech of one Item's text, encoded."""

    flac: bytes
    voice: str
    duration: float
    """Seconds."""
    loudness: float | None
    """Integrated loudness in LUFS (ITU-R BS.1770). None if the speech is too short to measure."""
    segments: tuple[Segment, ...]
    """The pieces with their times."""
    warnings: tuple[str, ...] = ()
    heard: str | None = None
    """See Speech."""
    flags: tuple[Flag, ...] = ()
    """Reasons to distrust the speech."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why one Item has no transcript."""

    kind: FailureKind
    message: str
    retryable: bool = False
    """True if the same item may succeed in another run with nothing changed, for example after a network error."""

    @property
    def error(self) -> str:
        """Class name in errors.py, e.g. "AudioError"."""
        return self.kind.facts.error


Outcome = Transcript | Failure
