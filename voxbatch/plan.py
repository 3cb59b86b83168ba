"""What a run would do, without doing it: items, hours, chunks, time, cost.

Durations come from the manifest; where it does not say, from the headers of a sample of the recordings.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxbatch import engines
from voxbatch.audio import probe
from voxbatch.config import Config, load_profile, profile_names
from voxbatch.errors import AudioError, StorageError
from voxbatch.manifest import Source, items, survey
from voxbatch.run import opened, policy
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
    """Audio seconds a second, as the profile expects; None where nothing is known."""
    usd_per_hour: float | None

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


def plan(config: Config) -> Plan:
    """Raises UsageError as `run` would. Loads no model, writes nothing."""
    choice = engines.choose(config.engine)
    with opened(config) as source:
        surveyed = survey(source, policy(config), config.limit)
        spec = engines.create(choice.name, config.model, config.engine_options, config.access).spec
        mine = members(surveyed.durations, config.shard, config.shards)
        unknown = mine & np.isnan(surveyed.durations)
        _estimate(surveyed.durations, unknown, config, source)
        durations = surveyed.durations[mine]
    audio_s = float(durations.sum(dtype=np.float64))
    chunks = np.ceil(np.divide(durations, spec.max_chunk_samples / spec.sampling_rate, out=durations), out=durations)
    expected = _expected(config, choice.name)
    return Plan(
        engine=choice.reason,
        model=spec.model,
        items=int(mine.sum()),
        audio_s=audio_s,
        estimated_items=int(unknown.sum()),
        chunks=int(chunks.sum(dtype=np.float64)),
        rtfx=config.expected_rtfx or expected.expected_rtfx,
        usd_per_hour=config.usd_per_hour if config.usd_per_hour is not None else expected.usd_per_hour,
    )


@dataclass(frozen=True, slots=True)
class _Expected:
    expected_rtfx: float | None = None
    usd_per_hour: float | None = None


def _expected(config: Config, engine: str) -> _Expected:
    """What the run's profile, or else the first one for its engine, says of speed and price."""
    for name in [config.profile] if config.profile else profile_names():
        settings = load_profile(name)
        if settings.get("engine") == engine:
            return _Expected(settings.get("expected_rtfx"), settings.get("usd_per_hour"))
    return _Expected()


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
