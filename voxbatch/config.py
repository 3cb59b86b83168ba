"""The settings of a run.

Each setting comes from the first source that gives it: flag > VOXBATCH_* > a file for vLLM > profile > default.

The command line's parser resolves flags and variables. `engines/vllm/serving_properties` and
`engines/vllm/vllm_config` read the file for vLLM. A profile is a YAML file in `profiles/` that gives other defaults.
All settings are validated once, here. The resolved Config is written next to the outputs. The settings that decide the
text of the transcripts are the identity of the run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.formats import DEFAULT_LIMITS, WRITERS
from voxbatch.languages import language_tag, unknown_language
from voxbatch.records import ALIGN, CHANNEL_MODES, SPLIT, TASKS, TRANSCRIBE, AnswerOptions, SpeakerCount
from voxbatch.settings import (
    MACHINE,
    MODEL,
    OUTPUTS,
    PROCESS,
    QUESTION,
    RECORDING,
    SCORING,
    SOURCE,
    SPEECH,
    check_settings,
    setting,
    settings_of,
)
from voxbatch.storage.address import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, parse_bucket_address, redacted

FORMATS = tuple(WRITERS)
LOG_FORMATS = ("auto", "json", "text")
AUDIO_FORMATS = ("flac", "wav", "mp3", "opus", "m4b")
"""Formats of the recordings of a run that speaks."""
FOR_SPEECH = (
    "engine", "model", "engine_options", "language", "limit", "overwrite", "update", "retry_failed", "max_hours",
    "part_items", "part_seconds", "expected_rtfx", "usd_per_hour",
)  # fmt: skip
"""Settings of a run that also apply to one that speaks: it reads no recordings."""
DEFAULT_SHARE = 0.3
"""Largest part of the audio that the large model of a cascade does, unless --cascade gives another."""
RETRY_CHOICES = ("retryable", "all")
ANY_SPEAKERS = "auto"
DEFAULT_ANSWER = AnswerOptions()
"""A free text, by greedy decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """The questions of a run.

    Raises:
        ConfigError: a value is out of range, or two options contradict each other.
    """

    prompt: str | None = setting(
        None, group=QUESTION, metavar="TEXT",
        help="The question about each recording. A `prompt` in a manifest's line is asked instead.",
    )  # fmt: skip
    answer: AnswerOptions = DEFAULT_ANSWER
    map_reduce: bool = setting(
        False, group=QUESTION,
        help="Ask about the parts of a recording that is too long for one question, and then about the answers. "
        "Default: refuse it.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, text in (("prompt", self.prompt), ("system", self.answer.system)):
            if text is not None and not text.strip():
                raise ConfigError(f"--{name} is empty; give a text, or leave it out")
        check_settings(self.answer)
        if self.answer.json_schema is not None and self.answer.tools is not None:
            raise ConfigError("--json-schema and --tools contradict each other: an answer is a document or has calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """The way in which a run speaks texts.

    Raises:
        ConfigError: a value is out of range.
    """

    voice: str | None = setting(
        None, group=SPEECH, metavar="NAME",
        help="Voice of texts that name none. Default: the engine's first voice.",
    )  # fmt: skip
    seed: int = setting(
        0, minimum=0, maximum=2**31 - 1, group=SPEECH, metavar="N",
        help="Seed of the speech. The same seed gives the same recordings.",
    )  # fmt: skip
    loudness: float = setting(
        -19.0, minimum=-50, maximum=-8, group=SPEECH, metavar="LUFS",
        help="Integrated loudness of each recording (ITU-R BS.1770).",
    )  # fmt: skip
    verify: bool = setting(
        False, group=SPEECH,
        help="Transcribe each piece, and speak it again, up to three times, if the text heard has too many errors.",
    )  # fmt: skip
    max_wer: float = setting(
        0.15, minimum=0, maximum=10, group=SPEECH, metavar="R",
        help="With --verify: WER of a piece above which it is spoken again, and flagged if no attempt is better.",
    )  # fmt: skip
    accept_licence: bool = setting(
        False, group=SPEECH,
        help="Accept the licence of a model that forbids commercial use, such as Voxtral TTS (CC BY-NC 4.0).",
    )  # fmt: skip
    audio_formats: tuple[str, ...] = setting(
        (), group=OUTPUTS, metavar="LIST",
        help=f"Formats of the recordings: {','.join(AUDIO_FORMATS)}. flac is always written; m4b is one audiobook with "
        "a chapter for each text.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted(set(self.audio_formats) - set(AUDIO_FORMATS)):
            raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(AUDIO_FORMATS)}")

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the sound."""
        others = ("accept_licence", "audio_formats")
        return {name: value for name, value in asdict(self).items() if name not in others}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Settings of a run, except for its input and its OUT. All runs of one listener share them.

    Raises:
        ConfigError: a value is out of range, or two settings contradict each other.
    """

    engine: str = setting(
        "auto",
        use=RECORDING,
        group=MODEL,
        metavar="NAME",
        help="auto, vllm, transducers, faster-whisper, onnx-asr, or one of an installed package.",
    )
    model: str | None = setting(
        None, use=RECORDING, metavar="MODEL",
        help="A folder, a name on the hub, gs:// or s3://. Default: the engine's own model.",
    )  # fmt: skip
    cascade: str | None = setting(
        None, group=MODEL, for_answers=False, in_profiles=False, metavar="SMALL,LARGE[:SHARE]",
        help="Two models in place of --model: SMALL does everything, and LARGE does again the recordings of which "
        f"SMALL is least sure: up to SHARE of the audio (default {DEFAULT_SHARE}) or, with wer=5 for SHARE and with a "
        "--calibration of SMALL, until the others have an expected WER of 5 %. The more confident text counts.",
    )  # fmt: skip
    """See parse_cascade. `model` is then the small one."""
    engine_options: Mapping[str, str] = setting(
        {}, use=RECORDING, group=MODEL, metavar="NAME=VALUE",
        help="An option of this engine only, e.g. beam_size=1. Repeatable.",
    )  # fmt: skip
    kernel_cache: str | None = setting(
        None, use=RECORDING, group=MODEL, in_profiles=False, metavar="PLACE",
        help="A folder, gs:// or s3:// prefix from which the kernels of an earlier run with the same GPU, model and "
        "settings are fetched, and where they are stored if they are not there. Engine vllm only.",
    )  # fmt: skip
    language: str | None = setting(
        None, use=RECORDING, in_identity=True, for_answers=False, metavar="LANG",
        help="Language of items that do not name one, e.g. en. Default: the engine decides.",
    )  # fmt: skip
    """Tag of the language. It may be given as a name, such as "English"."""
    task: str = setting(
        TRANSCRIBE, choices=TASKS, use=RECORDING, group=MODEL, in_identity=True, for_answers=False, metavar="TASK",
        help="transcribe; translate: write English for speech in any language, multilingual Whisper models only; "
        "align: find the times of the words of each row's `text`, as voxbatch align does.",
    )  # fmt: skip
    hotwords: str | None = setting(
        None, use=RECORDING, group=MODEL, in_identity=True, for_answers=False, in_profiles=False, metavar="FILE",
        help="Names and terms that may be spoken, one on each line, so that the model spells them. A row may have "
        "`hotwords` of its own. Whisper models only.",
    )  # fmt: skip
    """The words, divided by commas."""
    prompt: str | None = setting(
        None, use=RECORDING, group=MODEL, in_identity=True, for_answers=False, in_profiles=False, metavar="TEXT",
        help="A text that could stand before each recording, in its style and with its names. Whisper models only.",
    )  # fmt: skip
    formats: tuple[str, ...] = setting(
        (), group=OUTPUTS, for_answers=False, metavar="LIST",
        help=f"Write one file per item in each of these formats: {','.join(FORMATS)}.",
    )  # fmt: skip
    beside: bool = setting(
        False, group=OUTPUTS, for_answers=False,
        help="Write them (srt by default) also beside the recordings: talk.srt next to talk.mp4. Files of others stay.",
    )  # fmt: skip
    report: bool | None = setting(
        None, group=OUTPUTS,
        help="Write report.html, a page with the error rates and with each item's text and audio. Default: if OUT is a "
        "local folder.",
    )  # fmt: skip
    max_line: int = setting(
        42, minimum=10, maximum=200, group=OUTPUTS, for_answers=False, metavar="N",
        help="Longest line of a subtitle in columns. A Chinese or Japanese character takes two.",
    )  # fmt: skip
    max_lines: int = setting(
        2, minimum=1, maximum=6, group=OUTPUTS, for_answers=False, metavar="N", help="Most lines of a subtitle."
    )
    max_cps: float = setting(
        20.0, minimum=4, maximum=100, group=OUTPUTS, for_answers=False, metavar="N",
        help="Columns per second that a reader can follow: a subtitle is shown longer where there is room.",
    )  # fmt: skip
    frame_rate: float = setting(
        DEFAULT_LIMITS.frame_rate, minimum=10, maximum=240, group=OUTPUTS, for_answers=False, metavar="N",
        help="Frames per second of the videos: subtitles begin and end with a frame.",
    )  # fmt: skip
    min_gap: int = setting(
        DEFAULT_LIMITS.min_gap, minimum=0, maximum=100, group=OUTPUTS, for_answers=False, metavar="N",
        help="Least frames between two subtitles.",
    )  # fmt: skip
    shard: int = 0
    shards: int = 1
    limit: int | None = setting(
        None, minimum=1, group=SOURCE, in_profiles=False, metavar="N", help="Take only the first N items."
    )
    overwrite: bool = setting(
        False, use=PROCESS, in_profiles=False,
        help="Continue the run in OUT (default), or erase its outputs first.",
    )  # fmt: skip
    update: bool = setting(
        False, use=PROCESS, group=SOURCE, in_profiles=False,
        help="Continue the run in OUT even if the manifest has changed: keep the transcripts of unchanged lines. A "
        "folder needs no --update, unless it may be empty: then there is nothing to do, and the exit code is 0.",
    )  # fmt: skip
    retry_failed: str | None = setting(
        None, choices=RETRY_CHOICES, use=PROCESS, in_profiles=False, metavar="[retryable|all]",
        help="Do the failed items of OUT again: those that may succeed with nothing changed (retryable, default), or "
        "all.",
    )  # fmt: skip
    allow_outside: bool = setting(
        False, group=SOURCE,
        help="Let a manifest at an address name any local file and any address, not only those next to it.",
    )  # fmt: skip
    only_under: tuple[str, ...] = setting(
        (), group=SOURCE, metavar="PLACE",
        help="Let the manifest name only files below PLACE, a folder or the address of a folder. Repeatable.",
    )  # fmt: skip
    include: tuple[str, ...] = setting(
        (), group=SOURCE, in_profiles=False, metavar="GLOB",
        help="From a folder, take only recordings whose path or name matches GLOB, e.g. '*.flac'; * also matches /. "
        "Repeatable.",
    )  # fmt: skip
    """See manifest.recording_line.is_included."""
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS
    fail_unreachable: bool = setting(
        False, group=OUTPUTS,
        help="Record recordings as failed if their store is down or denies access. Default: stop, so that the run can "
        "continue later.",
    )  # fmt: skip
    audio_stream: int | None = setting(
        None, minimum=0, use=RECORDING, group=SOURCE, in_identity=True, metavar="N",
        help="Audio stream to take, from 0, of recordings that have several, such as a film in two languages. Default: "
        "the first one with voice.",
    )  # fmt: skip
    channels: str | None = setting(
        None, choices=CHANNEL_MODES, use=RECORDING, group=SOURCE, in_identity=True, for_answers=False, metavar="MODE",
        help="split: recognise each channel of a recording alone, as a speaker; auto: only the two channels of a call. "
        "Default: mix them down.",
    )  # fmt: skip
    channel_names: tuple[str, ...] = setting(
        (), use=RECORDING, group=SOURCE, in_identity=True, for_answers=False, metavar="LIST",
        help="Names of the speakers of the channels, from the first one, e.g. agent,customer. Default: Speaker 1, "
        "Speaker 2.",
    )  # fmt: skip
    speakers: str | None = setting(
        None, use=RECORDING, group=SOURCE, in_identity=True, for_answers=False, metavar="[N|MIN-MAX]",
        help="Tell the speakers apart: N of them, MIN to MAX, or any number (auto). Words and segments get a speaker.",
    )  # fmt: skip
    """See speaker_count."""
    speaker_model: str | None = setting(
        None, use=RECORDING, group=MODEL, in_identity=True, for_answers=False, metavar="MODEL",
        help="The networks that tell the speakers apart: a folder, a name on the hub, gs:// or s3://. Default: "
        "pyannote's segmentation 3.0 and CAM++.",
    )  # fmt: skip
    speaker_names: str | None = setting(
        None, use=RECORDING, group=SOURCE, for_answers=False, metavar="FOLDER",
        help="Samples of known voices, NAME.wav or several in NAME/, a folder or gs:// or s3://. Speakers with such a "
        "voice get its name, others stay numbers.",
    )  # fmt: skip
    """The identity of a run has the digests of the samples instead of the place."""
    max_hours: float = setting(
        24.0, minimum=0.001, use=RECORDING, group=SOURCE, metavar="H",
        help="Fail items with more than H hours of audio.",
    )  # fmt: skip
    questions: QuestionOptions | None = None
    """Questions about the recordings. None means that they are transcribed."""
    speech: SpeechOptions | None = None
    """The way in which texts are spoken. None means that the items are recordings."""
    calibration: str | None = setting(
        None, group=SCORING, in_profiles=False, for_answers=False, metavar="FILE",
        help="Estimate the WER of a run without references: a file that `voxbatch calibrate` wrote.",
    )  # fmt: skip
    part_items: int = setting(200, minimum=1, group=OUTPUTS, metavar="K", help="Commit a part after K finished items …")
    part_seconds: float = setting(
        30.0, minimum=0.01, group=OUTPUTS, metavar="T",
        help="… or after T seconds, whichever comes first. A kill loses at most this work.",
    )  # fmt: skip
    decoders: int = setting(
        0, minimum=0, group=MACHINE, metavar="N",
        help="Decoder processes for each worker. Default: one per core in total, and at most 16 for each worker.",
    )  # fmt: skip
    workers: int = setting(
        0, minimum=0, group=MACHINE, metavar="auto|N",
        help="Processes that run in parallel: one for each GPU, or at most N.",
    )  # fmt: skip
    """0 leaves the number to the engine."""
    profile: str | None = setting(
        None, use=RECORDING, group=MODEL, in_profiles=False, metavar="NAME",
        help="Use the settings of a profile; see voxbatch profiles.",
    )  # fmt: skip
    expected_rtfx: float | None = setting(
        None, minimum=0.001, group=MACHINE, metavar="X",
        help="For estimates: seconds of audio per second of one machine. Default: the profile's value, or for Voxtral "
        "Realtime a calculation for the GPU.",
    )  # fmt: skip
    usd_per_hour: float | None = setting(
        None, group=MACHINE, metavar="USD",
        help="Price of one machine. Default: the price known to voxbatch on Cloud Run and SageMaker, elsewhere none: "
        "no cost is shown.",
    )  # fmt: skip
    """See the module `prices`."""

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_tag(self.language))  # frozen, and this is its construction
            if reason := unknown_language(self.language):
                raise ConfigError(f"--language {self.language}: {reason}")
        check_settings(self)
        if self.cascade is not None:
            check_cascade(self)
            object.__setattr__(self, "model", self.cascade_models.small)
        check_formats(self.formats)
        check_channels(self.channels, self.channel_names)
        check_speakers(self)
        if self.beside:
            check_beside(self.formats)
        check_include(self.include)
        check_kernel_cache(self.kernel_cache)
        if self.overwrite and self.shards > 1:
            raise ConfigError(
                f"--overwrite by one of {self.shards} shards or tasks would erase the work of the others; give all of "
                "them another OUT, or erase OUT once by hand"
            )
        taking = "--update" if self.update else "--retry-failed"
        if (self.update or self.retry_failed) and self.shards > 1:
            raise ConfigError(
                f"{taking} by one of {self.shards} shards or tasks would end the others; run it once as one task "
                "(--tasks none, without --shard)"
            )
        if (self.update or self.retry_failed) and self.overwrite:
            raise ConfigError(f"--overwrite erases OUT, and {taking} continues it; leave out one of them")

    @property
    def cascade_models(self) -> Cascade:
        """The models of a cascade. Only for a run with one."""
        assert self.cascade is not None
        return parse_cascade(self.cascade)

    @property
    def hints_given(self) -> list[str]:
        """The options that tell an engine which words to expect, if they are given."""
        return [f"--{name}" for name in ("hotwords", "prompt") if getattr(self, name)]

    def identity(self) -> dict[str, Any]:
        """Return the settings here that decide the text of the outputs, for the identity of a run.

        A setting that has its default is left out, so that an OUT of a version without it can still be continued. The
        identity always names the language.
        """
        identity: dict[str, Any] = {"language": self.language}
        for name, declared in settings_of(type(self)).items():
            if declared.in_identity and getattr(self, name) != declared.default:
                identity[name] = getattr(self, name)
        if self.questions:
            identity["questions"] = asdict(self.questions)
        if self.speech:
            identity["speech"] = self.speech.identity()
        return identity

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for people and for files, with the store options among them.

        No address in the result has a query, because a query may hold a signature, and no address has a password.
        """
        settings: dict[str, Any] = {}
        for name, value in asdict(self).items():
            settings |= value if name == "store_options" else {name: value}
        if self.speech is None:
            del settings["speech"]
        for name in _ADDRESSES & settings.keys():
            value = settings[name]
            settings[name] = tuple(map(redacted, value)) if isinstance(value, tuple) else value and redacted(value)
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(RunOptions):
    """Settings of one run."""

    source: str | tuple[str, ...]
    """A manifest, or recordings; several names are a tuple. See manifest.opening."""
    out: str
    """Folder of the outputs (OUT): a local path or a bucket prefix."""

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)
        if self.report is None:
            object.__setattr__(self, "report", not is_remote(self.out))  # frozen, and this is its construction

    @classmethod
    def of(cls, options: RunOptions, source: str | tuple[str, ...], out: str, **changes: Any) -> Config:
        """Return the settings of a run with these options.

        Args:
            changes: values that replace those of `options`, by the names of their fields.
        """
        values = {entry.name: getattr(options, entry.name) for entry in fields(RunOptions)}
        return cls(**values | changes, source=source, out=out)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for people and for files, the input and OUT first."""
        settings = RunOptions.to_dict(self)
        return {"source": settings["source"], "out": settings["out"], **settings}


_ADDRESSES = {
    "source", "out", "model", "cascade", "speaker_model", "speaker_names", "calibration", "kernel_cache", "only_under",
    "s3_endpoint_url",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cascade:
    """The two models of a cascade."""

    small: str
    """The model that does everything."""
    large: str
    """The model that does the least sure recordings again."""
    share: float | None
    """Largest part of the audio that the large model does, from 0 to 1. None with `wer`."""
    wer: float | None = None
    """Highest expected word error rate of what the large model does not do, from 0 to 1. None with `share`."""


def parse_cascade(text: str) -> Cascade:
    """Return the models of a cascade.

        "tiny.en,base.en:0.2"    →  Cascade("tiny.en", "base.en", 0.2)
        "tiny.en,base.en:wer=5"  →  Cascade("tiny.en", "base.en", None, 0.05)

    Raises:
        ConfigError: the text is something else, the share or the rate is out of range, or both models are the same.
    """
    example = "give SMALL,LARGE or SMALL,LARGE:SHARE, such as tiny.en,base.en:0.3 or tiny.en,base.en:wer=5"
    match = re.fullmatch(r"([^,]+),([^,]+?)(?::([^/,:]*))?", text)
    if match is None:
        raise ConfigError(f"--cascade {text}: {example}")
    small, large = match[1].strip(), match[2].strip()
    try:
        by_wer = (match[3] or "").startswith("wer=")
        share = DEFAULT_SHARE if match[3] is None else float(match[3].removeprefix("wer="))
    except ValueError as e:
        raise ConfigError(f"--cascade {text}: {match[3]!r} is no share of the audio; {example}") from e
    if by_wer and not 0 < share < 100:
        raise ConfigError(f"--cascade {text}: the word error rate is {share:g} %; it must be above 0 and below 100")
    if not by_wer and not 0 < share < 1:
        raise ConfigError(
            f"--cascade {text}: the share is {match[3]}; it must be above 0 and below 1, because with 0 there is no "
            "second pass, and with 1 the large model alone costs less"
        )
    if small == large:
        raise ConfigError(f"--cascade {text}: both models are {small}; give two different ones")
    return Cascade(small, large, None, share / 100) if by_wer else Cascade(small, large, share)


def check_cascade(options: RunOptions) -> None:
    """Check the settings of a cascade.

    Raises:
        ConfigError: see `parse_cascade`; or another setting contradicts the cascade.
    """
    if options.model not in (None, options.cascade_models.small):
        raise ConfigError(f"--cascade names both models; leave out --model {redacted(options.model)}")
    if options.task == ALIGN:
        raise ConfigError("--cascade is for transcripts: an engine that aligns has no confidence in a text")
    by_wer = options.cascade_models.wer is not None
    if options.calibration is not None and not by_wer:
        raise ConfigError(
            "--calibration is of one model, and --cascade has two; leave out one of them, or choose by the word error "
            "rate that it gives: SMALL,LARGE:wer=5"
        )
    if options.calibration is None and by_wer:
        raise ConfigError(
            f"--cascade {options.cascade}: a word error rate is estimated by a calibration of "
            f"{options.cascade_models.small}; give --calibration FILE, which voxbatch calibrate makes from a run of it"
        )


def check_formats(formats: Iterable[str]) -> None:
    """Check the names of output formats.

    Raises:
        ConfigError: a name is unknown.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(FORMATS)}")


def check_cues(limits: Mapping[str, float | None]) -> None:
    """Check limits of subtitles, by the names of their settings. None is any.

    Raises:
        ConfigError: a limit is out of range.
    """
    for name, value in limits.items():
        settings_of(RunOptions)[name].check(value)


def check_channels(channels: str | None, names: Sequence[str]) -> None:
    """Check the names of channels.

    Raises:
        ConfigError: channels are named and not recognised alone, or two have the same name.
    """
    if names and channels is None:
        raise ConfigError("--channel-names needs --channels split or --channels auto")
    if not all(name.strip() for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"--channel-names {','.join(names)}: give each channel a name of its own")


def check_speakers(options: RunOptions) -> None:
    """Check the settings of speakers.

    Raises:
        ConfigError: the number of speakers makes no sense, or two settings contradict each other.
    """
    if options.speakers is not None:
        speaker_count(options.speakers)
        if options.channels == SPLIT:
            raise ConfigError(
                "--channels split makes each channel a speaker, and --speakers tells the voices of a mixdown apart; "
                "leave out one of them, or give --channels auto"
            )
        return
    for name in ("speaker_model", "speaker_names"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} needs --speakers")


def speaker_count(text: str) -> SpeakerCount:
    """Return the number of speakers that a recording may have: "auto" → from 1, "2" → 2 to 2, "2-4" → 2 to 4.

    Raises:
        ConfigError: the text is something else, or no recording can have so many speakers.
    """
    if text == ANY_SPEAKERS:
        return SpeakerCount()
    match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text, re.ASCII)
    if match is None:
        raise ConfigError(f"--speakers {text!r}: give a number, two numbers such as 2-4, or {ANY_SPEAKERS}")
    least = int(match[1])
    most = int(match[2] or least)
    if not 1 <= least <= most:
        raise ConfigError(f"--speakers {text}: the number must be at least 1, and the first one not above the second")
    return SpeakerCount(least, most)


def check_beside(formats: Iterable[str]) -> None:
    """Check the formats of files beside recordings.

    Raises:
        ConfigError: a file would be taken for a reference, or two formats have the same file.
    """
    if "txt" in formats:
        raise ConfigError(
            "--beside writes no txt: NAME.txt beside a recording is its reference for the next run; leave out txt, or "
            "leave out --beside"
        )
    for group in ({"vtt", "vtt-words"}, {"json", "whisperx-json", "openai-json"}):
        if len(both := sorted(group & set(formats))) > 1:
            raise ConfigError(f"--beside: {' and '.join(both)} would have the same file beside a recording; give one")


def check_kernel_cache(place: str | None) -> None:
    """Check the place of compiled kernels, if one is given.

    Raises:
        ConfigError: no kernels can be stored there.
    """
    if place is None:
        return
    try:
        if is_remote(place):
            parse_bucket_address(place)
    except ValueError as e:
        raise ConfigError(f"--kernel-cache {redacted(place)}: {e}; give a folder, gs:// or s3://") from e
    if not place:
        raise ConfigError("--kernel-cache '' is no place; give a folder, gs:// or s3://, or leave it out")


def check_include(patterns: Iterable[str]) -> None:
    """Check the patterns of a folder's recordings.

    Raises:
        ConfigError: a pattern is empty.
    """
    if not all(patterns):
        raise ConfigError("--include '' matches nothing; give a pattern such as '*.flac'")


def digest(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify an identity. Two runs have the same digits exactly if their identities are
    equal."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
