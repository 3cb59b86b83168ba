"""What a run would do, without doing it: items, hours, chunks, time, cost.

Durations come from the manifest; where it does not say, from the headers of a sample of the recordings. `plan` asks the
engine that would run here; `measure` and `expected` need none, for runs that are to start elsewhere.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxbatch import engines
from voxbatch.audio import probe
from voxbatch.config import Config, load_profile
from voxbatch.engines import Speed
from voxbatch.errors import AudioError, StorageError
from voxbatch.manifest import Source, Survey, items, survey
from voxbatch.run import opened, policy, workers
from voxbatch.shard import members
from voxbatch.storage import USUAL, Access, in_order, open_recording

SAMPLE = 200
"""Recordings whose headers are read where the manifest gives no duration: the mean of 200 calls is known to a tenth."""
STREAMS = 8
"""Of them are asked at a time."""
GIVE_UP_AFTER = 8
"""Of them whose place does not answer: a plan that takes hours to make is none."""
HEADER_BYTES = 64 << 10
"""What is fetched of a remote one at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    engine: str
    """One line: which, and why."""
    model: str
    items: int
    """In this shard."""
    audio_s: float
    """Including the estimate for items whose duration nobody gave."""
    estimated_items: int
    """How many these are."""
    chunks: int
    """At least: cuts in pauses make some more."""
    rtfx: float | None
    """Audio seconds a second, as the profile expects or as was worked out; None where nothing is known."""
    usd_per_hour: float | None
    speed: Speed | None = None
    """What rtfx is then; None where somebody measured it."""

    @property
    def wall_s(self) -> float | None:
        return self.audio_s / self.rtfx if self.rtfx else None

    @property
    def usd(self) -> float | None:
        return (
            self.wall_s / 3600 * self.usd_per_hour
            if self.wall_s is not None and self.usd_per_hour is not None
            else None
        )


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """How much there is to transcribe in a config's shard."""

    durations: NDArray[np.float32]
    """Seconds, of its items alone."""
    estimated_items: int
    """How many of these are estimates."""

    @property
    def items(self) -> int:
        return len(self.durations)

    @property
    def audio_s(self) -> float:
        return float(self.durations.sum(dtype=np.float64))


def plan(config: Config) -> Plan:
    """Raises UsageError as `run` would. Loads no model, writes nothing."""
    choice = engines.choose(config.engine)
    with opened(config) as source:
        surveyed = survey(source, policy(config), config.limit)
        engine = engines.create(choice.name, config.model, config.engine_options, config.access)
        spec = engine.spec
        extent = _extent(surveyed, source, config)
    chunks = np.ceil(extent.durations / np.float32(spec.max_chunk_samples / spec.sampling_rate))
    known = expected(config, choice.name)
    speed = None if known.rtfx else worked_out(config, choice.name, extent, gpus=max(1, len(workers(config, engine))))
    return Plan(
        engine=choice.reason,
        model=spec.model,
        items=extent.items,
        audio_s=extent.audio_s,
        estimated_items=extent.estimated_items,
        chunks=int(chunks.sum(dtype=np.float64)),
        rtfx=speed.rtfx if speed else known.rtfx,
        usd_per_hour=known.usd_per_hour,
        speed=speed,
    )


def measure(config: Config) -> Extent:
    """Survey the manifest, and ask a sample of the recordings for durations that it does not give. Takes no engine.

    Raises:
        UsageError: the config or the manifest do not fit.
        StorageError: a place does not answer, or lets nobody in.
    """
    with opened(config) as source:
        return _extent(survey(source, policy(config), config.limit), source, config)


def _extent(surveyed: Survey, source: Source, config: Config) -> Extent:
    mine = members(surveyed.durations, config.shard, config.shards)
    unknown = mine & np.isnan(surveyed.durations)
    _estimate(surveyed.durations, unknown, config, source)
    return Extent(surveyed.durations[mine], int(unknown.sum()))


@dataclass(frozen=True, slots=True)
class Expected:
    """None where nothing is known."""

    rtfx: float | None
    usd_per_hour: float | None


PROFILES = {"vllm": "ctx512-batch", "faster-whisper": "cpu"}
"""What an engine runs with where no profile is asked for."""


def expected(config: Config, engine: str) -> Expected:
    """Speed and price: the config's own, or else what the profile says that this engine would run with."""
    name = config.profile or PROFILES.get(engine)
    profile = load_profile(name) if name else {}
    if profile.get("engine") != engine:
        profile = {}
    own = config.usd_per_hour
    return Expected(
        config.expected_rtfx or profile.get("expected_rtfx"), profile.get("usd_per_hour") if own is None else own
    )


def worked_out(
    config: Config, engine: str, extent: Extent | None = None, gpu: str | None = None, gpus: int = 1
) -> Speed | None:
    """Likewise, by arithmetic; None where that is not possible. See engines.expected.

    Args:
        extent: what there is to do; None: hours of it.
    """
    made_for = load_profile(config.profile).get("model") if config.profile else None
    if made_for and not engines.expected(engine, made_for, {}, None, gpu):
        return None  # the model's name, a bucket's say, tells less than the profile
    durations = extent.durations if extent else None
    return engines.expected(engine, config.model, config.engine_options, durations, gpu, gpus)


def _estimate(durations: NDArray[np.float32], unknown: NDArray[np.bool_], config: Config, source: Source) -> None:
    """Fill in unknown durations: a sample of the recordings is asked, the others are taken for the sample's mean."""
    indexes = np.flatnonzero(unknown)
    sample = np.zeros(len(unknown), np.bool_)
    sample[indexes[:: max(1, len(indexes) // SAMPLE)]] = True
    asked = list(items(source, policy(config), config.limit, sample))
    unreached = 0
    for item, seconds in zip(asked, in_order(STREAMS, lambda item: _asked(item.audio, config), asked), strict=True):
        unreached += isinstance(seconds, StorageError)
        if isinstance(seconds, StorageError) and unreached == min(GIVE_UP_AFTER, len(asked)):
            raise seconds
        durations[item.index] = np.nan if isinstance(seconds, StorageError) else seconds or np.nan
    found = durations[sample]
    known = found[~np.isnan(found)]
    durations[unknown & np.isnan(durations)] = known.mean() if len(known) else 0.0


def _asked(audio: str, config: Config) -> float | StorageError | None:
    """Seconds; None where the recording does not tell; why its place does not."""
    try:
        return probed(audio, config.access)
    except StorageError as e:
        return e


def probed(path: str, access: Access = USUAL, certain: bool = False) -> float | None:
    """Seconds of a recording by its header, None where it cannot be told; see audio.probe.

    Raises:
        StorageError: the recording's place does not answer, or lets nobody in.
    """
    try:
        with contextlib.closing(open_recording(path, access, HEADER_BYTES)) as recording:
            return probe(recording, certain)
    except AudioError:
        return None
