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
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.languages import language_tag, unknown_language
from voxbatch.questions import QuestionOptions
from voxbatch.storage.address import is_remote, parse_bucket_address, redacted
from voxbatch.storage.options import DEFAULT_STORE_OPTIONS, StoreOptions

FORMATS = (
    "srt", "vtt", "vtt-words", "ttml", "txt", "tsv", "ctm", "textgrid", "json", "whisperx-json", "openai-json",
)  # fmt: skip
TEXT_KINDS = ("jsonl", "json", "csv", "tsv", "trn", "ctm", "stm", "kaldi", "lines")
"""Kinds of files with texts that `score` reads; the package scoring.readers reads them."""
LOG_FORMATS = ("auto", "json", "text")
RETRY_CHOICES = ("retryable", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Settings of a run, except for its input and its OUT. All runs of one listener share them.

    Raises:
        ConfigError: a value is out of range, or two settings contradict each other.
    """

    engine: str = "auto"
    model: str | None = None
    """Name or place of the model. None means the engine's default."""
    engine_options: Mapping[str, str] = field(default_factory=dict)
    kernel_cache: str | None = None
    """Place of the kernels that engines compile: a folder, or a gs:// or s3:// prefix. Not part of the identity."""
    language: str | None = None
    """Tag of the language of the items that do not name one. It may be given as a name, such as "English". None leaves
    the choice to the engine."""
    formats: tuple[str, ...] = ()
    beside: bool = False
    """Write each file of an item also beside its recording. Without formats, this is SubRip."""
    report: bool | None = None
    """Write report.html at the end. None means where OUT is a local folder."""
    max_line: int = 42
    """Columns of a line of a subtitle; see formats.CueLimits."""
    max_lines: int = 2
    """Lines of a subtitle."""
    max_cps: float = 20.0
    """Columns per second that a reader of subtitles should not have to exceed."""
    shard: int = 0
    shards: int = 1
    limit: int | None = None
    overwrite: bool = False
    update: bool = False
    """Continue OUT even if the manifest has changed: transcripts of unchanged lines are kept."""
    retry_failed: str | None = None
    """Failed items of OUT to do again: "retryable" (they may succeed with nothing changed), "all", or None."""
    allow_outside: bool = False
    only_under: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    """Patterns for a folder of recordings: only recordings that match one of them are used. See
    manifest.folder.is_included."""
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS
    fail_unreachable: bool = False
    """Record a recording as failed if its server or bucket is unreachable or refuses access. Otherwise, stop."""
    audio_stream: int | None = None
    """0-based audio stream to take of recordings that have several. None means the first one with sound."""
    max_hours: float = 24.0
    """Most hours of audio of one item. A longer item fails."""
    questions: QuestionOptions | None = None
    """Questions about the recordings. None means that they are transcribed."""
    calibration: str | None = None
    """File of a calibration, a path or an address, with which the summary's WER is estimated."""
    part_items: int = 200
    """Number of finished items that triggers a commit …"""
    part_seconds: float = 30.0
    """… or number of seconds, whichever comes first. This is the most work that a kill can lose."""
    decoders: int = 0
    """Number of decoder processes. 0 means one per core, at most 16. If several workers run, each has this many decoder
    processes of its own, and 0 divides the cores among them."""
    workers: int = 0
    """Maximum number of processes that transcribe side by side, one per GPU. 0 leaves the number to the engine."""
    profile: str | None = None
    expected_rtfx: float | None = None
    """Audio seconds per second that were measured with this profile. `--dry-run` uses it."""
    usd_per_hour: float | None = None
    """Price of one task's machine; see the module `prices`."""

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_tag(self.language))  # frozen, and this is its construction
            if reason := unknown_language(self.language):
                raise ConfigError(f"--language {self.language}: {reason}")
        check_formats(self.formats)
        check_cues(self.max_line, self.max_lines, self.max_cps)
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
        if self.retry_failed not in (None, *RETRY_CHOICES):
            raise ConfigError(f"--retry-failed {self.retry_failed!r}: known are {', '.join(RETRY_CHOICES)}")
        for name, least in (
            ("limit", 1),
            ("part_items", 1),
            ("part_seconds", 0.01),
            ("max_hours", 0.001),
            ("decoders", 0),
            ("audio_stream", 0),
            ("workers", 0),
            ("expected_rtfx", 0.001),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name.replace('_', '-')} is {value!r}; it must be at least {least}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for people and for files, with the store options among them.

        No address in the result has a query, because a query may hold a signature, and no address has a password.
        """
        settings: dict[str, Any] = {}
        for name, value in asdict(self).items():
            settings |= value if name == "store_options" else {name: value}
        addresses = {name: _redacted(value) for name, value in settings.items() if name in _ADDRESSES}
        return {**settings, **addresses, "only_under": tuple(map(redacted, self.only_under))}


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
            options: the options of the run.
            source: see the field.
            out: see the field.
            changes: values that replace those of `options`, by the names of their fields.
        """
        return cls(
            **{each.name: getattr(options, each.name) for each in fields(RunOptions)} | changes, source=source, out=out
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for people and for files, the input and OUT first."""
        settings = RunOptions.to_dict(self)
        return {"source": settings["source"], "out": settings["out"], **settings}


def _redacted(value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    return tuple(map(redacted, value)) if isinstance(value, tuple) else value and redacted(value)


_ADDRESSES = ("source", "out", "model", "calibration", "kernel_cache", "s3_endpoint_url")


def check_formats(formats: Iterable[str]) -> None:
    """Check the names of output formats.

    Raises:
        ConfigError: a name is unknown.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(FORMATS)}")


def check_cues(max_line: float | None, max_lines: float | None, max_cps: float | None) -> None:
    """Check the limits of subtitles. None is any.

    Raises:
        ConfigError: a limit is out of range.
    """
    given = {"max-line": max_line, "max-lines": max_lines, "max-cps": max_cps}
    for (name, value), (least, most) in zip(given.items(), ((10, 200), (1, 6), (4, 100)), strict=True):
        if value is not None and not least <= value <= most:
            raise ConfigError(f"--{name} is {value:g}; it must be from {least} to {most}")


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


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    folder = resources.files("voxbatch") / "profiles"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name: str) -> dict[str, Any]:
    """Return the settings of a profile, by the names of PROFILE_KEYS; `description` may be among them.

    Raises:
        ConfigError: the profile does not exist, or it sets a setting that no profile may set.
    """
    import yaml

    if name not in profile_names():
        raise ConfigError(f"profile {name!r} is unknown; known are {', '.join(profile_names())}")
    text = (resources.files("voxbatch") / "profiles" / f"{name}.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(text) or {}
    if unknown := sorted(set(settings) - PROFILE_KEYS - {"description"}):
        raise ConfigError(
            f"profile {name}: {', '.join(unknown)}: not for profiles; allowed are {', '.join(sorted(PROFILE_KEYS))}"
        )
    return settings


_NO_PROFILES = {
    "profile", "shard", "shards", "limit", "calibration", "questions", "overwrite", "update", "retry_failed", "include",
    "kernel_cache", "store_options", "s3_endpoint_url", "anonymous", "requester_pays", "allow_private_addresses",
}  # fmt: skip
"""Settings that no profile may set: what the run covers, where its data is, who pays for access, and what a stranger's
manifest can reach through it."""
PROFILE_KEYS = {f.name for kind in (RunOptions, StoreOptions) for f in fields(kind)} - _NO_PROFILES
"""Settings that a profile may set."""
