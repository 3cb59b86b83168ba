"""The settings of a run.

Each setting comes from the first source that gives it: flag > VOXBATCH_* > a file for vLLM > profile > default.

The command line's parser resolves flags and variables. `vllm/engine/serving_properties` and
`vllm/engine/vllm_config` read the file for vLLM. A profile is a YAML file in `profiles/` that gives other defaults.
All settings are validated once, here. The resolved Config is written next to the outputs. The settings that decide the
text of the transcripts are the identity of the run.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from voxbatch import frame_rate
from voxbatch.errors import ConfigError
from voxbatch.formats import DEFAULT_LIMITS, WRITERS
from voxbatch.hints import FORMAT, hint
from voxbatch.languages import language_tag, unknown_language
from voxbatch.records import ALL_STREAMS, CHANNEL_MODES, TASKS, TRANSCRIBE
from voxbatch.settings import (
    MACHINE,
    MODEL,
    OUTPUTS,
    PROCESS,
    RECORDING,
    SCORING,
    SOURCE,
    check_settings,
    setting,
    settings_of,
)
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.storage.address import is_remote, parse_bucket_address, redacted
from voxbatch.work import WorkOptions, additions_of, stored_options

FORMATS = tuple(WRITERS)
LOG_FORMATS = ("auto", "json", "text")
DEFAULT_SHARE = 0.3
"""Largest part of the audio that the large model of a cascade does, unless --cascade gives another."""
RETRY_CHOICES = ("retryable", "all")
ANY_SPEAKERS = "auto"


def _last_run(default: float | str) -> str:
    """Return the end of the help of a limit of subtitles."""
    return f"Default: the last run's, else {default if isinstance(default, str) else f'{default:g}'}."


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The choice of a model by the machine, from which `engines/quality` makes the engine and the model of a run."""

    quality: str | None = setting(
        None, choices=("fast", "balanced", "best"), use=RECORDING, group=MODEL, metavar="fast|balanced|best",
        help="Take the model by this machine and --language: the most accurate one with half of the fastest one's "
        "speed, with a tenth of it, or faster than the recording.",
    )  # fmt: skip


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
        None, group=MODEL, in_profiles=False, metavar="SMALL,LARGE[:SHARE]",
        help="Two models in place of --model: SMALL does everything, and LARGE again what SMALL is least sure of: up "
        f"to SHARE of the audio (default {DEFAULT_SHARE}), or with wer=5 and a --calibration of SMALL until the rest "
        "has an expected WER of 5 %.",
    )  # fmt: skip
    """See works.cascade.options.parse_cascade. `model` is then the small one."""
    engine_options: Mapping[str, str] = setting(
        {}, use=RECORDING, group=MODEL, metavar="NAME=VALUE",
        help="An option of this engine only, e.g. beam_size=1. Repeatable.",
    )  # fmt: skip
    kernel_cache: str | None = setting(
        None, use=RECORDING, group=MODEL, in_profiles=False, metavar="PLACE",
        help="Keep compiled kernels here for the next start: a folder, gs:// or s3:// prefix. Engine vllm only.",
    )  # fmt: skip
    language: str | None = setting(
        None, use=RECORDING, in_identity=True, metavar="LANG",
        help="Language of items that do not name one, e.g. en. Default: the engine decides.",
    )  # fmt: skip
    """Tag of the language. It may be given as a name, such as "English"."""
    task: str = setting(
        TRANSCRIBE, choices=TASKS, use=RECORDING, group=MODEL, in_identity=True, metavar="TASK",
        help="transcribe; translate: to English, multilingual Whisper models only; align: as voxbatch align does.",
    )  # fmt: skip
    hotwords: str | None = setting(
        None, use=RECORDING, group=MODEL, in_identity=True, in_profiles=False, metavar="FILE",
        help="Names and terms that may be spoken, one a line. Whisper models only.",
    )  # fmt: skip
    """The words, divided by commas."""
    prompt: str | None = setting(
        None, use=RECORDING, group=MODEL, in_identity=True, in_profiles=False, metavar="TEXT",
        help="A text that could stand before each recording, in its style and with its names. Whisper models only.",
    )  # fmt: skip
    formats: tuple[str, ...] = setting(
        (), group=OUTPUTS, metavar="LIST",
        help=f"Write a file for each item in each of these formats: {','.join(FORMATS)}. Default: the last run's.",
    )  # fmt: skip
    """This setting, and the others of item_files.given_settings, are those of the last merge of OUT unless given."""
    beside: bool | None = setting(
        None, group=OUTPUTS,
        help="Write them (srt by default) also beside the recordings: talk.srt, talk.transcript.txt. Files of others "
        "stay. Default: as in the last run.",
    )  # fmt: skip
    report: bool | None = setting(
        None, group=OUTPUTS,
        help="Write report.html, a page for people. Default: if OUT is a local folder.",
    )  # fmt: skip
    max_line: int | None = setting(
        None, minimum=10, maximum=200, group=OUTPUTS, metavar="N",
        help="Longest line of a subtitle in columns. A Chinese or Japanese character takes two. "
        f"{_last_run(f'{DEFAULT_LIMITS.max_line}, or 20 for 9:16 video')}",
    )  # fmt: skip
    max_lines: int | None = setting(
        None, minimum=1, maximum=6, group=OUTPUTS, metavar="N",
        help=f"Most lines of a subtitle. {_last_run(DEFAULT_LIMITS.max_lines)}",
    )  # fmt: skip
    max_cps: float | None = setting(
        None, minimum=4, maximum=100, group=OUTPUTS, metavar="N",
        help="Columns per second that a reader can follow; subtitles stay longer where there is room. "
        f"{_last_run(DEFAULT_LIMITS.max_cps)}",
    )  # fmt: skip
    frame_rate: str | float | None = setting(
        None, group=OUTPUTS, metavar="RATE",
        help="Subtitles begin and end with a frame: auto takes the frame rate of each video, and 24 for audio; 25 or "
        f"30000/1001 is for all. {_last_run(DEFAULT_LIMITS.frame_rate)}",
    )  # fmt: skip
    """A number, or frame_rate.AUTO."""
    min_gap: int | None = setting(
        None, minimum=0, maximum=100, group=OUTPUTS, metavar="N",
        help=f"Least frames between two subtitles. {_last_run(DEFAULT_LIMITS.min_gap)}",
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
        help="Continue the run in OUT though the manifest has changed: transcripts of unchanged lines stay. A folder "
        "may then be empty.",
    )  # fmt: skip
    retry_failed: str | None = setting(
        None, choices=RETRY_CHOICES, use=PROCESS, in_profiles=False, metavar="[retryable|all]",
        help="Do failed items of OUT again: those that may succeed unchanged (retryable, default), or all.",
    )  # fmt: skip
    allow_outside: bool = setting(
        False, group=SOURCE,
        help="Let a manifest at an address name any file and address, not only those next to it.",
    )  # fmt: skip
    only_under: tuple[str, ...] = setting(
        (), group=SOURCE, metavar="PLACE",
        help="Let the manifest name only files below PLACE. Repeatable.",
    )  # fmt: skip
    include: tuple[str, ...] = setting(
        (), group=SOURCE, in_profiles=False, metavar="GLOB",
        help="From a folder, take only recordings whose path or name matches GLOB, e.g. '*.flac'; * also matches /. "
        "Repeatable.",
    )  # fmt: skip
    """See manifest.recording_path.is_included."""
    stores: Stores = DEFAULT_STORES
    fail_unreachable: bool = setting(
        False, group=OUTPUTS,
        help="Record recordings as failed if their store is down or denies access. Default: stop.",
    )  # fmt: skip
    audio_stream: str | int | None = setting(
        None, use=RECORDING, group=SOURCE, in_identity=True, metavar="LIST",
        help="Audio streams to take: numbers from 0, which are mixed; all; or a language. Default: the first one with "
        "voice, or the sides of a conversation.",
    )  # fmt: skip
    """A number is an int; several are text, such as "0,2"."""
    channels: str | None = setting(
        None, choices=CHANNEL_MODES, use=RECORDING, group=SOURCE, in_identity=True, metavar="MODE",
        help="split: recognise each channel alone, as a speaker; auto: only the two channels of a call. Default: mix "
        "them down.",
    )  # fmt: skip
    channel_names: tuple[str, ...] = setting(
        (), needs="channels", use=RECORDING, group=SOURCE, in_identity=True, metavar="LIST",
        help="Names of the speakers of the channels, e.g. agent,customer. Default: Speaker 1, Speaker 2.",
    )  # fmt: skip
    speakers: str | int | None = setting(
        None, use=RECORDING, group=SOURCE, in_identity=True, metavar="[N|MIN-MAX]",
        help="Tell the speakers apart: N, MIN to MAX, or any number (auto).",
    )  # fmt: skip
    """See works.speakers.options.speaker_count."""
    speaker_model: str | None = setting(
        None, needs="speakers", use=RECORDING, group=MODEL, in_identity=True, metavar="MODEL",
        help="The networks that tell speakers apart: a folder, a name on the hub, gs:// or s3://. Default: "
        "pyannote's and CAM++.",
    )  # fmt: skip
    speaker_names: str | None = setting(
        None, needs="speakers", use=RECORDING, group=SOURCE, metavar="FOLDER",
        help="Samples of known voices, who get their names: NAME.wav or several in NAME/, in a folder, gs:// or s3://.",
    )  # fmt: skip
    """The identity of a run has the digests of the samples instead of the place."""
    max_hours: float = setting(
        24.0, minimum=0.001, use=RECORDING, group=SOURCE, metavar="H",
        help="Fail items with more than H hours of audio.",
    )  # fmt: skip
    own: WorkOptions | None = None
    """The settings of a kind of work that has some of its own."""
    calibration: str | None = setting(
        None, group=SCORING, in_profiles=False, metavar="FILE",
        help="Estimate the WER of a run without references: a file that `voxbatch calibrate` wrote.",
    )  # fmt: skip
    part_items: int = setting(200, minimum=1, group=OUTPUTS, metavar="K", help="Commit a part after K finished items …")
    part_seconds: float = setting(
        30.0, minimum=0.01, group=OUTPUTS, metavar="T",
        help="… or after T seconds, whichever comes first. A kill loses at most this work.",
    )  # fmt: skip
    decoders: int = setting(
        0, minimum=0, group=MACHINE, metavar="N",
        help="Decoder processes for each worker. Default: one per core in total, at most 16 each.",
    )  # fmt: skip
    workers: int = setting(
        0, minimum=0, group=MACHINE, metavar="auto|N",
        help="Processes that run in parallel: one for each GPU, or at most N.",
    )  # fmt: skip
    """0 leaves the number to the engine."""
    keep_engine: float = setting(
        0.0, minimum=0, maximum=86_400, use=PROCESS, group=MACHINE, in_profiles=False, metavar="TIME",
        help="Keep the model loaded for TIME (90s, 10m, 1h), for your next run with --keep-engine and the same "
        "options. A run without it ends it. Default: 0.",
    )  # fmt: skip
    """Seconds; see `process.vacancy`."""
    profile: str | None = setting(
        None, use=RECORDING, group=MODEL, in_profiles=False, metavar="NAME",
        help="Use the settings of a profile; see voxbatch profiles.",
    )  # fmt: skip
    expected_rtfx: float | None = setting(
        None, minimum=0.001, group=MACHINE, metavar="X",
        help="For estimates: seconds of audio per second of one machine. Default: known or calculated.",
    )  # fmt: skip
    usd_per_hour: float | None = setting(
        None, group=MACHINE, metavar="USD",
        help="Price of one machine. Default: the known price on Cloud Run and SageMaker, elsewhere none.",
    )  # fmt: skip
    """See the module `prices`."""

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_tag(self.language))  # frozen, and this is its construction
            if reason := unknown_language(self.language):
                raise ConfigError(f"--language {self.language}: {reason}")
        object.__setattr__(self, "audio_stream", _audio_stream(self.audio_stream))
        object.__setattr__(self, "frame_rate", frame_rate.parsed(self.frame_rate))
        check_settings(self)
        for addition in additions_of(self.marks, only_held=False):
            if addition.checks:
                for name, value in addition.resolve("checks")(self).items():
                    object.__setattr__(self, name, value)
        check_formats(self.formats)
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
    def marks(self) -> dict[str, Any]:
        """The settings by their names, those of the kind of work by their key: see work.work_of."""
        marks = {entry.name: getattr(self, entry.name) for entry in fields(RunOptions)}
        return marks if self.own is None else {**marks, self.own.key: self.own}

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
        return identity if self.own is None else {**identity, self.own.key: self.own.identity()}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for people and for files, with the store options among them.

        No address in the result has a query, because a query may hold a signature, and no address has a password.
        """
        settings: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "own":
                settings |= stored_options(self.own)
            else:
                settings |= value["options"] if name == "stores" else {name: value}
        for name in _ADDRESSES & settings.keys():
            value = settings[name]
            settings[name] = tuple(map(redacted, value)) if isinstance(value, tuple) else value and redacted(value)
        return settings if self.own is None else settings | dict.fromkeys(self.own.hidden & settings.keys())


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


def _audio_stream(value: str | int | None) -> str | int | None:
    """Return the audio streams of a setting in the one way in which they are written: "02" → 2, "2,0" → "0,2",
    "German" → "de".

    Raises:
        ConfigError: the text names no streams.
    """
    if value is None:
        return None
    text = str(value)
    if re.fullmatch(r"\d{1,3}(,\d{1,3})*", text, re.ASCII):
        numbers = sorted(set(map(int, text.split(","))))
        return numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))
    if text == ALL_STREAMS:
        return text
    if unknown_language(language := language_tag(text)):
        raise ConfigError(
            f"--audio-stream {text}: give numbers from 0, such as 1 or 0,2; {ALL_STREAMS}; or a language such as de"
        )
    return language


def check_formats(formats: Iterable[str]) -> None:
    """Check the names of output formats.

    Raises:
        ConfigError: a name is unknown.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        if answer := hint(FORMAT, unknown[0]):
            raise ConfigError(f"--formats {unknown[0]}: {answer}")
        close = difflib.get_close_matches(unknown[0].lower(), FORMATS, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(FORMATS)}{meant}")


def checked_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return limits of subtitles, by the names of their settings, as RunOptions has them. None is any.

    Raises:
        ConfigError: a limit is out of range.
    """
    for name, value in limits.items():
        settings_of(RunOptions)[name].check(value)
    return {**limits, frame_rate.KEY: frame_rate.parsed(limits.get(frame_rate.KEY))}


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
