"""The kinds of work, by their names, and what each kind tells the layers of the core.

A kind of work is a folder of `works/`, whose `WORK` is a Work. The core never asks which kind a run is: it asks the
Work. Nothing of a kind is imported before a run of that kind needs it. Without the folder of a kind, its command is
gone, and a run of that kind is refused.

To add a kind, write the folder and add a line to `KINDS`; or to `ADDITIONS`, if it adds something to another kind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

from voxbatch import parts
from voxbatch.errors import ConfigError

FOLDER = Path(__file__).parent / "works"
_resolved = functools.cache(resolve_name)  # it is called for each line


class Kind(NamedTuple):
    """A line of the registry: the setting of a run, or of its identity, that makes the run one of this kind."""

    setting: str
    value: object = None
    """None means any value."""
    is_always_stored: bool = False
    """True if the stored settings of runs of other kinds have the setting, too."""

    def is_of(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the settings of a run are of this kind."""
        value = settings.get(self.setting)
        return value is not None if self.value is None else value == self.value


EVERY_KIND = frozenset((
    "engine", "model", "engine_options", "limit", "overwrite", "update", "retry_failed", "max_hours", "part_items",
    "part_seconds", "expected_rtfx", "usd_per_hour",
))  # fmt: skip
"""Settings of a run that hold for every kind of work."""
OF_RECORDINGS = EVERY_KIND | {
    "report", "allow_outside", "only_under", "include", "fail_unreachable", "audio_stream", "decoders", "workers",
}  # fmt: skip
"""Those that hold for every kind that reads recordings."""

TRANSCRIBE = "transcribe"
TRANSCRIPTS = "transcripts.jsonl"
KINDS: Mapping[str, Kind] = {
    "speak": Kind("speech"),
    "ask": Kind("questions", is_always_stored=True),
    "align": Kind("task", "align"),
    "language": Kind("detection"),
    "redact": Kind("redaction"),
}
"""The kinds of work besides `transcribe`. A run is of one kind."""
ADDITIONS: Mapping[str, Kind] = {
    "cascade": Kind("cascade"),
    "speakers": Kind("speakers"),
    "channels": Kind("channels"),
}
"""What may be added to a kind of work whose settings have it."""
FOLDERS: Mapping[str, str] = {"channels": "speakers"}
"""The folders that have another name than their kind."""
READERS = frozenset((
    "beside", "calibrate", "compare", "correct", "export", "find", "formats", "redact", "score", "videos",
))  # fmt: skip
"""Readers for which a kind may have nothing in its OUT: commands; files of single items, also beside the recordings;
and copies of videos, with --mux and --burn. All other commands take the OUT of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a kind of work tells the layers of the core. The parts are named "package.module:object"."""

    name: str
    settings: frozenset[str] | None = None
    """Names of the settings of a run that hold for this kind. None means all."""
    steps: str
    """The steps of a run: a class derived from runner.steps.Steps, or for an addition from Addition."""
    outputs: tuple[tuple[str, str], ...] = (("transcripts", TRANSCRIPTS),)
    """(label, name) of its files of all items in OUT. The first one has the lines of the items that have not failed. A
    run does not list a file without a label."""
    products: str = "voxbatch.output.products:PRODUCTS"
    """What its outputs hold: an output.products.Products."""
    overlay: str | None = None
    """What OUT has of its second pass: an output.products.SecondPassFiles."""
    submission: str | None = None
    """How `voxbatch submit` starts it elsewhere: a clouds.submit_command.SubmittedKind."""
    command_tells_all: bool = True
    """True if the options of the command tell the whole run, and no texts or questions besides."""
    checks: str | None = None
    """A function that checks the settings of a run when they are built, and returns those that follow from them."""
    names_speakers: bool = False
    """True if the speakers of a recording have names that mean others in other recordings."""
    example: str = "run recordings/"
    """A command of this kind and its source, as an example."""
    sets_engine_task: bool = False
    """True if the kind sets the engine option `task` to its name."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The commands and options, of READERS, that an OUT of this kind has nothing for, each with the reason: it follows
    OUT in a message, and {out} in it stands for OUT."""

    @property
    def merged(self) -> str:
        """Name of the output with the lines of the items that have not failed."""
        return self.outputs[0][1]

    def holds(self, name: str) -> bool:
        """Return whether a setting of a run holds for this kind."""
        return self.settings is None or name in self.settings

    def resolve(self, part: str) -> Any:
        """Return a part by the name of its field."""
        return _resolved(getattr(self, part))


def exists(name: str) -> bool:
    """Return whether the folder of a kind is there."""
    return parts.has(f"voxbatch.works.{FOLDERS.get(name, name)}")


def commands() -> list[str]:
    """Return the names of the kinds that have a command, which has the name of the kind."""
    return [name for name in sorted(KINDS) if exists(name)]


def kinds() -> Iterator[Work]:
    """Yield the kinds of work that are there, without what is added to them."""
    yield work(TRANSCRIBE)
    yield from map(work, commands())


@functools.cache
def work(name: str) -> Work:
    """Return a kind of work by its name.

    Raises:
        ConfigError: its folder is missing.
    """
    if not exists(name):
        raise ConfigError(
            f"this installation of voxbatch cannot do {name!r}: {FOLDER / FOLDERS.get(name, name)} is missing"
        )
    folder = import_module(f"voxbatch.works.{FOLDERS.get(name, name)}")
    found: Work = folder.WORK if name not in FOLDERS else getattr(folder, name.upper())
    return found


def work_of(settings: Mapping[str, Any]) -> Work:
    """Return the kind of a run.

    Args:
        settings: RunOptions.marks, a stored config, or the identity of a run.
    """
    return work(next((name for name, kind in KINDS.items() if kind.is_of(settings)), TRANSCRIBE))


def additions_of(settings: Mapping[str, Any], only_held: bool = True) -> Iterator[Work]:
    """Yield what is added to the kind of a run; see `work_of`.

    Args:
        only_held: leave out an addition whose setting does not hold for the kind.
    """
    main = work_of(settings)
    for name, kind in ADDITIONS.items():
        if kind.is_of(settings) and (main.holds(kind.setting) or not only_held):
            yield work(name)


class WorkOptions:
    """The settings that a kind of work has of its own: a dataclass."""

    __slots__ = ()
    key: ClassVar[str]
    """Their key in stored settings and in the identity of a run."""
    hidden: ClassVar[frozenset[str]] = frozenset()
    """Names of settings of the run, and of these, that are stored as null."""

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the results."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # each subclass is a dataclass


def stored_options(own: WorkOptions | None) -> dict[str, Any]:
    """Return the settings of a kind of work as they stand in the stored settings of a run."""
    stored: dict[str, Any] = {kind.setting: None for kind in KINDS.values() if kind.is_always_stored}
    if own is None:
        return stored
    values: dict[str, Any] = asdict(own)  # type: ignore[call-overload]
    return {**stored, own.key: values | dict.fromkeys(own.hidden & values.keys())}
