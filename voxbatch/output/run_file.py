"""The file run.json, which records the run that OUT belongs to.

It is created before any output. A run that takes OUT over replaces it: with `--overwrite`, or to continue the earlier
run with another list of recordings (see the module `continuation`). The run in the file is the owner of OUT, and the
last run that wrote the file is the owner. Each run that takes OUT over has a new generation, so that it differs from
all earlier runs in this OUT, also from those with the same identity. A process checks that its run is still the owner
before it commits a part and before it writes or deletes any other file.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.config import check_cues
from voxbatch.errors import CheckpointError, ConfigError, RunError, StorageError, TakenOverError
from voxbatch.output.layout import GENERATION, RUN_FILE, VERSION
from voxbatch.output.stored_json import count, field, json_bytes, number, optional
from voxbatch.storage import Store

CHECK_INTERVAL_S = 0.2
"""Seconds in which files are written or deleted without another look at run.json.

A process that was suspended looks at once when it continues. In this time no other run can take OUT over, transcribe
and merge.
"""


@dataclass(frozen=True, slots=True)
class RunKey:
    """The key of the run that a file in OUT belongs to. Each part and the summary carry it."""

    run_id: str
    """Digest of the identity (manifest and config)."""
    generation: str = ""
    """Random id of a run that took OUT over from an earlier run. Empty for the first run."""

    def __str__(self) -> str:
        return f"{self.run_id} (generation {self.generation})" if self.generation else self.run_id


def new_generation() -> str:
    """Return the id of a new generation: 12 hexadecimal digits."""
    return secrets.token_hex(6)


@dataclass(frozen=True, slots=True)
class Continued:
    """An earlier run of an OUT whose finished items a later run has taken over."""

    key: RunKey
    """The key of the earlier run."""
    retried: str | None = None
    """Failures that are not taken over, because the later run does their items again: "retryable" or "all"."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as values for JSON."""
        return {"run": self.key.run_id, "generation": self.key.generation, "retried": self.retried}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Continued:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            ValueError: a value is none that a run writes.
            KeyError, TypeError: see EngineFacts.from_dict.
        """
        key = RunKey(field(stored, "run", str), _checked_generation(field(stored, "generation", str)))
        return cls(key, optional(stored, "retried", str))


def _checked_generation(generation: str) -> str:
    """Return the id of a generation.

    Raises:
        ValueError: it is not such an id, and it would become the name of a folder.
    """
    if generation and not re.fullmatch(GENERATION, generation):
        raise ValueError(f"generation is {generation!r:.80}")
    return generation


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine of a run; see EngineSpec for the fields."""

    name: str
    model: str
    license: str
    origin: str
    decoding: Mapping[str, Any]
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EngineFacts:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            KeyError, TypeError: a key is missing, or `stored` is not such an object.
        """
        return cls(
            name=field(stored, "name", str),
            model=field(stored, "model", str),
            license=field(stored, "license", str),
            origin=field(stored, "origin", str),
            decoding=field(stored, "decoding", dict),
            versions=field(stored, "versions", dict),
            warnings=tuple(map(str, field(stored, "warnings", list))),
        )


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about how a run was made. Unlike its identity, these facts may change when the run is resumed."""

    engine: EngineFacts
    voxbatch: str
    """Version of voxbatch."""
    python: str
    """Version of Python."""
    libraries: Mapping[str, str]
    """Versions of the libraries that decode audio. Empty if an old version wrote the file."""
    machine: str
    """Operating system, processor type and number of CPUs."""
    workers: int
    """Number of processes that transcribe side by side on one machine."""
    config: Mapping[str, Any]
    """All settings; see Config.to_dict."""

    @property
    def versions(self) -> str:
        """Versions of all software that may influence the texts, for messages."""
        versions = {"voxbatch": self.voxbatch, **self.engine.versions, **self.libraries}
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of the files of single items."""
        return tuple(map(str, self.config.get("formats") or ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunFacts:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            KeyError, TypeError: see EngineFacts.from_dict.
            ValueError: a limit of subtitles is out of range.
        """
        config = field(stored, "config", dict)
        if config.get("usd_per_hour") is not None:
            number(config, "usd_per_hour")
        optional(config, "formats", list)
        optional(config, "beside", bool)
        optional(config, "report", bool)
        names = ("max_line", "max_lines", "max_cps")
        try:
            check_cues(*(None if config.get(name) is None else number(config, name) for name in names))
        except ConfigError as e:
            raise ValueError(str(e)) from e
        return cls(
            engine=EngineFacts.from_dict(field(stored, "engine", dict)),
            voxbatch=field(stored, "voxbatch", str),
            python=field(stored, "python", str),
            libraries=optional(stored, "libraries", dict) or {},
            machine=field(stored, "machine", str),
            workers=count(stored, "workers"),
            config=config,
        )


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of run.json."""

    run_id: str
    """See RunKey."""
    identity: Mapping[str, Any]
    """All settings that decide the text of the transcripts. Two runs with the same identity may share an OUT."""
    items: int
    """Number of items in the manifest."""
    language: str | None
    """Language for the score of items that do not name one."""
    folder: str | None
    """Place that relative paths of the manifest are resolved against. None if an old version wrote the file."""
    facts: RunFacts
    """How the run was started."""
    generation: str = ""
    """See RunKey."""
    continues: tuple[Continued, ...] = ()
    """The earlier runs whose finished items this run takes over, newest first."""

    @property
    def key(self) -> RunKey:
        """The key that the files of the run carry."""
        return RunKey(self.run_id, self.generation)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values for JSON."""
        return {
            "version": VERSION,
            "run": self.run_id,
            **({"generation": self.generation} if self.generation else {}),
            "identity": dict(self.identity),
            "items": self.items,
            "language": self.language,
            "folder": self.folder,
            "facts": self.facts.to_dict(),
            **({"continues": [each.to_dict() for each in self.continues]} if self.continues else {}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunFile:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            ValueError: another version of voxbatch wrote the file.
            KeyError, TypeError: see EngineFacts.from_dict.
        """
        if field(stored, "version", int) != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        return cls(
            run_id=field(stored, "run", str),
            identity=field(stored, "identity", dict),
            items=count(stored, "items"),
            language=optional(stored, "language", str),
            folder=optional(stored, "folder", str),
            facts=RunFacts.from_dict(field(stored, "facts", dict)),
            generation=_checked_generation(optional(stored, "generation", str) or ""),
            continues=tuple(map(Continued.from_dict, optional(stored, "continues", list) or [])),
        )

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return json_bytes(self.to_dict(), indent=2) + b"\n"


def read(store: Store) -> RunFile | None:
    """Return the content of run.json, or None if no run was started in this OUT. See `parse`."""
    return None if (stored := store.read(RUN_FILE)) is None else parse(store, RUN_FILE, stored)


def parse(store: Store, name: str, stored: bytes) -> RunFile:
    """Return the content of run.json, or of another file with such a content.

    Raises:
        CheckpointError: the content is not of this version of voxbatch.
    """
    try:
        return RunFile.from_dict(json.loads(stored))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CheckpointError(
            f"{store.place}/{name} was not written by this version of voxbatch; choose another OUT with -o"
        ) from e


def read_existing(store: Store) -> RunFile:
    """Return the content of run.json.

    Raises:
        ConfigError: no run was started in this OUT.
        CheckpointError: see `read`.
    """
    if (run := read(store)) is None:
        raise ConfigError(f"{store.place}: no run was started there (it has no {RUN_FILE})")
    return run


class Ownership:
    """The checks of one process that its run is still the owner of OUT.

    Several threads may use an object: at worst, two of them read run.json at the same time.
    """

    def __init__(self, store: Store, run: RunKey):
        self._store, self._run = store, run
        self._checked_at = float("-inf")

    def check(self) -> None:
        """Read run.json.

        Raises:
            TakenOverError: OUT belongs to another run now, or was deleted.
            CheckpointError: see `read`.
            StorageError: OUT cannot be read.
        """
        now, place = time.monotonic(), self._store.place
        if (owner := read(self._store)) is None:
            raise TakenOverError(
                f"{place}/{RUN_FILE} is gone: OUT was deleted or moved during the run, or the process that started the "
                "run ended before its model was loaded"
            )
        if owner.key != self._run and owner.continues:
            raise TakenOverError(
                f"{place}: another process continues this OUT with the present list of recordings, or does failed "
                "recordings again, and has taken over the committed items; this process ends, and nothing is to be done"
            )
        if owner.key != self._run:
            raise TakenOverError(
                f"{place}: another run, {owner.key}, took OUT over with --overwrite; this run, {self._run}, ends, and "
                "its items in OUT are gone; to run both, give each its own OUT with -o"
            )
        self._checked_at = now

    def check_again(self) -> None:
        """Read run.json, unless the last check was less than CHECK_INTERVAL_S seconds ago. See `check`."""
        if time.monotonic() - self._checked_at >= CHECK_INTERVAL_S:
            self.check()


@contextlib.contextmanager
def takeover_explained(store: Store, run: RunKey) -> Iterator[None]:
    """Replace an error inside the context, if it is the consequence of a takeover: for example, a part is missing
    because the other run has deleted it.

    Raises:
        TakenOverError: an error occurred, and OUT belongs to another run.
    """
    try:
        yield
    except TakenOverError:
        raise
    except RunError:
        with contextlib.suppress(StorageError, CheckpointError):  # then nothing is known about the owner
            Ownership(store, run).check()
        raise
