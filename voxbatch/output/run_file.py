"""The file run.json, which records the run that OUT belongs to. It is created before any output and never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError
from voxbatch.output.erase import erase
from voxbatch.output.layout import RUN_FILE, VERSION, foreign_outputs
from voxbatch.storage import Store


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
            name=stored["name"],
            model=stored["model"],
            license=stored["license"],
            origin=stored["origin"],
            decoding=stored["decoding"],
            versions=stored["versions"],
            warnings=tuple(stored["warnings"]),
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

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunFacts:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            KeyError, TypeError: see EngineFacts.from_dict.
        """
        return cls(
            engine=EngineFacts.from_dict(stored["engine"]),
            voxbatch=stored["voxbatch"],
            python=stored["python"],
            libraries=stored.get("libraries", {}),
            machine=stored["machine"],
            workers=stored["workers"],
            config=stored["config"],
        )


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of run.json."""

    run_id: str
    """Digest of the identity. Each part of the run carries it."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return the content as values for JSON."""
        return {
            "version": VERSION,
            "run": self.run_id,
            "identity": dict(self.identity),
            "items": self.items,
            "language": self.language,
            "folder": self.folder,
            "facts": self.facts.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunFile:
        """Rebuild the record from JSON. Unknown keys are ignored.

        Raises:
            ValueError: another version of voxbatch wrote the file.
            KeyError, TypeError: see EngineFacts.from_dict.
        """
        if stored["version"] != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        return cls(
            run_id=stored["run"],
            identity=stored["identity"],
            items=stored["items"],
            language=stored["language"],
            folder=stored.get("folder"),
            facts=RunFacts.from_dict(stored["facts"]),
        )


def reserve(store: Store, run: RunFile, overwrite: bool = False) -> RunFile:
    """Reserve OUT for a run, or check that OUT already belongs to it.

    Args:
        run: the content of run.json if none is stored yet.
        overwrite: first erase what earlier runs wrote.

    Returns:
        The stored run.json, which an earlier run or another process may have written.

    Raises:
        ConfigError: OUT holds merged outputs that no run of voxbatch made.
        RunMismatchError: OUT belongs to another run.
        CheckpointError: see `read`.
    """
    if overwrite:
        erase(store)
    if foreign := foreign_outputs(store):
        raise ConfigError(
            f"{store.place} holds {', '.join(foreign)} but no {RUN_FILE}: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )
    store.create(RUN_FILE, [json.dumps(run.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n"])
    recorded = read(store) or run
    if recorded.run_id != run.run_id:
        differing = [
            f"{name} was {_shortened(before)}, is {_shortened(run.identity.get(name))}"
            for name, before in recorded.identity.items()
            if before != run.identity.get(name)
        ]
        raise RunMismatchError(
            f"{store.place} holds another run ({recorded.run_id}, this one is {run.run_id}): {'; '.join(differing)}. "
            "Choose another OUT with -o (another name for an upload), or erase the old outputs with --overwrite"
        )
    return recorded


def _shortened(value: Any) -> str:
    """Return a value of the identity for a message: the first digits of a SHA-256 digest, all of any other value."""
    return value[:12] + "…" if isinstance(value, str) and len(value) == 64 else str(value)


def read(store: Store) -> RunFile | None:
    """Return the content of run.json, or None if no run was started in this OUT.

    Raises:
        CheckpointError: the file is not a run.json of this version of voxbatch.
    """
    if (stored := store.read(RUN_FILE)) is None:
        return None
    try:
        return RunFile.from_dict(json.loads(stored))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(
            f"{store.place}/{RUN_FILE} was not written by this version of voxbatch; choose another OUT with -o"
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
