"""The run that OUT belongs to: run.json and the lists of its recordings.

run.json has the settings that decide the texts. It is created before any output, and only `--overwrite` replaces it:
the run in the file is the owner of OUT. Each run that takes OUT over has a new generation, so that it differs from all
earlier runs in this OUT, also from those with the same identity.

    lists/00002.bin    a line of JSON with the facts of the list
                       16 bytes for each item: the hash of its id and the hash of its line, see manifest.Survey.keys

A run whose list of recordings changes, or that does failed items again, creates a further list. No list is ever
changed, and the latest one counts. The items of the manifest come first, in its order. The items that the run has kept
from earlier lists, and that its manifest does not name, follow them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from voxbatch.config import checked_limits, digest
from voxbatch.errors import CheckpointError, ConfigError
from voxbatch.formats import DEFAULT_LIMITS
from voxbatch.output.layout import (
    FIRST,
    GENERATION,
    RUN_FILE,
    VERSION,
    list_name,
    list_names,
    number_of_list,
)
from voxbatch.output.products import Products, SecondPassFiles
from voxbatch.output.stored_json import Count, Number, json_bytes, read_json, record_of
from voxbatch.storage import Store, remove_command
from voxbatch.storage.columns import BLOCK, Column
from voxbatch.work import additions_of, work_of


@dataclass(frozen=True, slots=True)
class RunKey:
    """The key of the run that a file in OUT belongs to. Each part and the summary carry it."""

    run_id: str
    """Digest of the identity and of the manifest that the run was started with."""
    generation: str = ""
    """Random id of a run that took OUT over with `--overwrite`. Empty for the first run."""

    def __str__(self) -> str:
        return f"{self.run_id} (generation {self.generation})" if self.generation else self.run_id


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


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about how a run was made. Unlike its identity, these facts may change when the run is resumed."""

    engine: EngineFacts
    voxbatch: str
    python: str
    machine: str
    """Operating system, processor type and number of CPUs."""
    workers: Count
    """Number of processes that transcribe side by side on one machine."""
    config: Mapping[str, Any]
    """All settings; see Config.to_dict."""
    libraries: Mapping[str, str]
    """Versions of the libraries that decode audio."""

    def __post_init__(self) -> None:
        """Check the settings that readers use.

        Raises:
            ValueError: a setting has another type, or a limit of subtitles is out of range.
        """
        settings = record_of(self.config, _KnownSettings)
        try:
            checked_limits({name: getattr(settings, name) for name in asdict(DEFAULT_LIMITS)})
        except ConfigError as e:
            raise ValueError(str(e)) from e

    @property
    def versions(self) -> str:
        """Versions of all software that may influence the texts, for messages."""
        versions = {"voxbatch": self.voxbatch, **self.engine.versions, **self.libraries}
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    @property
    def options(self) -> Mapping[str, Any]:
        """The options and versions that may make the transcripts of two runs differ, by name: those of the engine,
        those of the command, and all software."""
        config = {name: value for name, value in self.config.items() if name not in _NO_OPTIONS}
        versions = {**self.engine.versions, **self.libraries, "voxbatch": self.voxbatch, "machine": self.machine}
        return {**config, **self.config.get("engine_options", {}), **self.engine.decoding, **versions}

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of the files of single items."""
        return tuple(self.config.get("formats") or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as values for JSON."""
        names = ("engine", "voxbatch", "python", "libraries", "machine", "workers", "config")
        facts = asdict(self)
        return {name: facts[name] for name in names}


_NO_OPTIONS = {
    "source", "out", "engine", "model", "engine_options", "shard", "shards", "overwrite", "update", "retry_failed",
    "formats", "beside", "report", *asdict(DEFAULT_LIMITS),
}  # fmt: skip
"""Settings of a run that are no option of its transcripts, or that have a field of their own."""


@dataclass(frozen=True, slots=True)
class _KnownSettings:
    """The settings in a stored config that voxbatch reads."""

    usd_per_hour: Number | None = None
    formats: Sequence[str] | None = None
    beside: bool | None = None
    report: bool | None = None
    max_line: Number | None = None
    max_lines: Number | None = None
    max_cps: Number | None = None
    frame_rate: Number | str | None = None
    min_gap: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that OUT belongs to, with its latest list of recordings."""

    run_id: str
    """See RunKey."""
    generation: str = ""
    """See RunKey."""
    identity: Mapping[str, Any]
    """All settings that decide the text of the transcripts. Two runs with the same identity may share an OUT."""
    language: str | None
    """Language of the items that have no `lang` of their own."""
    list_number: int = 1
    """Number of the list, from 1."""
    manifest: str
    """Digest of the lines of the manifest; see manifest.Survey.fingerprint."""
    items: int
    """Number of items in the list, also of those that are not in the manifest."""
    gone: int = 0
    """Number of items that are not in the manifest. They are the last ones of the list."""
    folder: str | None
    """Place that relative paths in the manifest are resolved against."""
    id_root: str = ""
    """See manifest.Source.id_root. """
    facts: RunFacts
    """Facts about the process that created the list."""
    retryable_before: int = 0
    """Number of the list that retries the retryable failures of all earlier lists: they do not count any more."""
    failures_before: int = 0
    """Number of the list that retries all failures of all earlier lists."""
    pass_name: str = FIRST
    """The pass whose parts a process writes: layout.FIRST, or layout.SECOND in a cascade."""

    @property
    def key(self) -> RunKey:
        """The key that the files of the run carry."""
        return RunKey(self.run_id, self.generation)

    @property
    def products(self) -> Products:
        """Its files in OUT in which the kinds of work differ."""
        products: Products = work_of(self.identity).resolve("products")
        return products

    @property
    def takes_corrections(self) -> bool:
        """True if `voxbatch correct` takes what a person has changed; see Work.refused."""
        return "correct" not in work_of(self.identity).refused

    @property
    def second_pass(self) -> SecondPassFiles | None:
        """Its second pass, if another model does some of the items again."""
        return next((work.resolve("overlay") for work in additions_of(self.identity) if work.overlay), None)

    @property
    def settings(self) -> dict[str, Any]:
        """The manifest and the settings, those of the decoding by their own names: {"manifest": "…", "decoding
        beam_size": 5, …}."""
        identity = json.loads(json.dumps(dict(self.identity)))  # a stored identity has no tuples
        decoding = identity.get("decoding")
        options = decoding if isinstance(decoding, dict) else {}
        return {
            "manifest": self.manifest,
            **{name: value for name, value in identity.items() if value is not decoding},
            **{f"decoding {name}": value for name, value in options.items()},
        }

    def check_reader(self, reader: str, place: str) -> None:
        """Check that the run has something for a command or an option.

        Args:
            reader: a name from work.READERS.

        Raises:
            ConfigError: the kind of the run has nothing for it.
        """
        if reason := self.refusal(reader):
            raise ConfigError(f"{place} {reason.format(out=place)}")

    def refusal(self, reader: str) -> str:
        """Return why the run has nothing for a reader, "" if it has; see `check_reader`."""
        kinds = (work_of(self.identity), *additions_of(self.identity))
        return next((kind.refused[reader] for kind in kinds if reader in kind.refused), "")

    @property
    def transcripts(self) -> str:
        """Name of the merged output of the items that have not failed."""
        return work_of(self.identity).merged

    def __str__(self) -> str:
        return str(self.key) if self.list_number == 1 else f"{self.key} (list {self.list_number})"

    def to_bytes(self) -> bytes:
        """Return the content of run.json."""
        generation = {"generation": self.generation} if self.generation else {}
        stored = {"version": VERSION, "run": self.run_id, **generation, "identity": dict(self.identity)}
        return json_bytes({**stored, "language": self.language}, indent=2) + b"\n"


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of run.json."""

    version: Literal[1]
    run: str
    identity: Mapping[str, Any]
    language: str | None = None
    generation: Annotated[str, msgspec.Meta(pattern=f"^({GENERATION})?$")] = ""

    @property
    def key(self) -> RunKey:
        """The key that the files of the run carry."""
        return RunKey(self.run, self.generation)


@dataclass(frozen=True, slots=True)
class StoredList:
    """The first line of a list."""

    version: Literal[1]
    run: str
    generation: str
    manifest: str
    items: Count
    folder: str | None
    facts: RunFacts
    retryable_before: Count
    failures_before: Count
    sha256: str
    """SHA-256 of the keys."""
    id_root: str
    gone: Count = 0
    started_as: str = ""
    """The id that this list gives the run, if run.json has another one, because a process that was killed before it
    wrote a list had other recordings."""


def read_file(store: Store) -> RunFile | None:
    """Return the content of run.json, or None if there is no such file.

    Raises:
        CheckpointError: the file is not of this version of voxbatch.
    """
    if (content := store.read(RUN_FILE)) is None:
        return None
    try:
        return read_json(content, RunFile)
    except ValueError as e:
        raise CheckpointError(
            f"{store.place}/{RUN_FILE} was not written by this version of voxbatch; continue with the one that wrote "
            "it, or choose another OUT with -o"
        ) from e


def read(store: Store) -> Run | None:
    """Return the run that OUT belongs to with its latest list, or None if there is no list: no run was started in this
    OUT, or somebody has removed the list.

    Raises:
        CheckpointError: run.json or the list is not of this version of voxbatch.
    """
    stored = read_file(store)
    names = [] if stored is None else list_names(store, stored.generation)
    if stored is None or not names:
        return None
    header = read_list(store, names[-1], stored.key)
    return Run(
        run_id=stored.run,
        generation=stored.generation,
        identity=stored.identity,
        language=stored.language,
        list_number=number_of_list(names[-1]),
        manifest=header.manifest,
        items=header.items,
        gone=header.gone,
        folder=header.folder,
        id_root=header.id_root,
        facts=header.facts,
        retryable_before=header.retryable_before,
        failures_before=header.failures_before,
    )


def read_existing(store: Store) -> Run:
    """Return the run that OUT belongs to.

    Raises:
        ConfigError: no run was started in this OUT.
        CheckpointError: the list is missing; see also `read`.
    """
    if (run := read(store)) is not None:
        return run
    if (stored := read_file(store)) is None:
        raise ConfigError(f"{store.place}: no run was started there (it has no {RUN_FILE}){_meant(store.place)}")
    reason = f"the list of the items of run {stored.key} is missing"
    raise CheckpointError(f"{store.place}: {reason}; run again with the same recordings", reason)


def _meant(place: str) -> str:
    """Return what to give in place of a folder of recordings, whose OUT may be beside it; "" if none is there."""
    beside = f"{place.rstrip('/')}.voxbatch"
    return f"; the run of its recordings is in {beside}" if os.path.exists(f"{beside}/{RUN_FILE}") else ""


def read_list(store: Store, name: str, run: RunKey) -> StoredList:
    """Return the facts of a list of a run.

    Raises:
        CheckpointError: the list is damaged, or belongs to another run.
    """
    with contextlib.closing(store.lines(name)) as lines:
        return _parse_list(store, name, run, next(lines, b""))


ItemKeys = NDArray[np.uint64]
"""Keys of items, shape (num_items, 2): hash of the id, hash of the line."""


def create_list(store: Store, run: Run, keys: ItemKeys | Column) -> bool:
    """Write the list of a run, unless a list with its number exists.

    Returns:
        False if the list existed.
    """
    of_keys = hashlib.sha256()
    for block in _blocks(keys):
        of_keys.update(block)
    own_id = digest({"manifest": run.manifest, **run.identity})
    started_as = {"started_as": own_id} if run.list_number == 1 and own_id != run.run_id else {}
    header = {
        "version": VERSION, "run": run.run_id, "generation": run.generation, "manifest": run.manifest,
        "items": len(keys), "gone": run.gone, "folder": run.folder, "retryable_before": run.retryable_before,
        "failures_before": run.failures_before, "sha256": of_keys.hexdigest(), "id_root": run.id_root,
        "facts": run.facts.to_dict(), **started_as,
    }  # fmt: skip
    content = chain([json_bytes(header) + b"\n"], _blocks(keys))
    return store.create(list_name(run.list_number, run.generation), content)


def _blocks(keys: ItemKeys | Column) -> Iterator[bytes]:
    """Yield the keys as bytes. A copy of a million would take 16 MB."""
    if isinstance(keys, Column):
        yield from (block.tobytes() for _, block in keys.blocks())
        return
    for start in range(0, len(keys), BLOCK):
        yield keys[start : start + BLOCK].astype("<u8", copy=False).tobytes()


def read_keys(store: Store, name: str, run: RunKey) -> ItemKeys:
    """Return the keys in a list of a run.

    Raises:
        CheckpointError: the list is damaged, or belongs to another run.
    """
    line, _, data = (store.read(name) or b"").partition(b"\n")
    header = _parse_list(store, name, run, line)
    if len(data) != _KEY_BYTES * header.items or hashlib.sha256(data).hexdigest() != header.sha256:
        raise _damaged_list(store, name, run)
    return np.frombuffer(data, "<u8").reshape(-1, 2)


_KEY_BYTES = 16


def _parse_list(store: Store, name: str, run: RunKey, line: bytes) -> StoredList:
    try:
        header = read_json(line, StoredList)
    except ValueError as e:
        raise _damaged_list(store, name, run) from e
    if RunKey(header.run, header.generation) != run:
        raise _damaged_list(store, name, run)
    return header


def _damaged_list(store: Store, name: str, run: RunKey) -> CheckpointError:
    reason = f"not a list of the items of run {run}, or damaged"
    remedy = f"remove it and run again with the same recordings: {remove_command(store.place, name)}"
    return CheckpointError(f"{store.place}/{name}: {reason}; {remedy}", reason)
