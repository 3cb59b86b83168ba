"""Estimate a run without running it: items, hours, chunks, time and cost.

Durations come from the manifest. Where the manifest gives none, the headers of a sample of the recordings are read.
`plan` asks the engine that would run on this machine. `measure` and `expected` need no engine; they serve runs that
start elsewhere.
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
from voxbatch.runner.run import opened, policy, worker_environments
from voxbatch.runner.shard import members
from voxbatch.storage import USUAL, Access, in_order, open_recording

SAMPLE = 200
"""Number of recordings whose headers are read if the manifest gives no duration. The mean duration of 200 calls is
known to a tenth."""
STREAMS = 8
"""Number of headers that are read at a time."""
GIVE_UP_AFTER = 8
"""Number of unreachable recordings in the sample that ends the estimate: a plan that takes hours is of no use."""
HEADER_BYTES = 64 << 10
"""Bytes that are fetched of a remote recording at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimate of `--dry-run` for one shard."""

    engine: str
    """One line: the engine's name and the reason for the choice."""
    model: str
    items: int
    """Number of items in this shard."""
    audio_s: float
    """Seconds of audio, including the estimate for items without a known duration."""
    estimated_items: int
    """Number of items whose duration the manifest does not give."""
    chunks: int
    """Minimum number of chunks. Cuts in pauses make somewhat more."""
    rtfx: float | None
    """Audio seconds per second, from the profile or calculated. None if nothing is known."""
    usd_per_hour: float | None
    speed: Speed | None = None
    """The calculated speed that `rtfx` comes from. None if `rtfx` is not calculated."""

    @property
    def wall_s(self) -> float | None:
        """Seconds that the run takes, or None if the speed is unknown."""
        return self.audio_s / self.rtfx if self.rtfx else None

    @property
    def usd(self) -> float | None:
        """Cost of the run, or None if the speed or the price is unknown."""
        return (
            self.wall_s / 3600 * self.usd_per_hour
            if self.wall_s is not None and self.usd_per_hour is not None
            else None
        )


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """The amount of audio in a config's shard."""

    durations: NDArray[np.float32]
    """Seconds of each item of the shard, shape (items,)."""
    estimated_items: int
    """Number of items whose duration the manifest does not give."""

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.durations)

    @property
    def audio_s(self) -> float:
        """Seconds of audio in total."""
        return float(self.durations.sum(dtype=np.float64))


def plan(config: Config) -> Plan:
    """Estimate the run of a config. No model is loaded and nothing is written.

    Raises:
        UsageError: as in `run.run`.
        StorageError: a place is unreachable or refuses access.
    """
    choice = engines.choose(config.engine)
    with opened(config) as source:
        surveyed = survey(source, policy(config), config.limit)
        engine = engines.create(choice.name, config.model, config.engine_options, config.access)
        spec = engine.spec
        extent = _extent(surveyed, source, config)
    chunks = np.ceil(extent.durations / np.float32(spec.max_chunk_samples / spec.sampling_rate))
    known = expected(config, choice.name)
    speed = (
        None
        if known.rtfx
        else worked_out(config, choice.name, extent, gpus=max(1, len(worker_environments(config, engine))))
    )
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
    """Survey the manifest, and read the headers of a sample of the recordings whose durations it does not give.

    No engine is needed.

    Raises:
        UsageError: the config or the manifest is wrong.
        StorageError: a place is unreachable or refuses access.
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
    """Expected speed and price. None if nothing is known."""

    rtfx: float | None
    """Audio seconds per second."""
    usd_per_hour: float | None


PROFILES = {"vllm": "ctx512-batch", "faster-whisper": "cpu"}
"""The profile that an engine runs with if none is given."""


def expected(config: Config, engine: str) -> Expected:
    """Return speed and price from the config, or else from the profile that this engine would run with."""
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
    """Calculate the speed of an engine, or return None if this is not possible. See engines.expected.

    Args:
        extent: the recordings to transcribe. None means an endless number of long recordings.
        gpu: NVML's name of a GPU elsewhere. None means the GPU of this machine.
        gpus: number of GPUs that share the work, each with its own engine.
    """
    made_for = load_profile(config.profile).get("model") if config.profile else None
    if made_for and not engines.expected(engine, made_for, {}, None, gpu):
        return None  # config.model may be a mere bucket address, which says less than the profile's model
    durations = extent.durations if extent else None
    return engines.expected(engine, config.model, config.engine_options, durations, gpu, gpus)


def _estimate(durations: NDArray[np.float32], unknown: NDArray[np.bool_], config: Config, source: Source) -> None:
    """Fill in unknown durations: read the headers of a sample, and use the mean of the sample for the other
    recordings."""
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
    """Return the seconds of a recording, None if its header does not tell, or the error if its place is unreachable."""
    try:
        return probed(audio, config.access)
    except StorageError as e:
        return e


def probed(path: str, access: Access = USUAL, certain: bool = False) -> float | None:
    """Return the seconds of a recording from its header, or None if the header does not tell; see audio.probe.

    Raises:
        StorageError: the place of the recording is unreachable or refuses access.
    """
    try:
        with contextlib.closing(open_recording(path, access, HEADER_BYTES)) as recording:
            return probe(recording, certain)
    except AudioError:
        return None
