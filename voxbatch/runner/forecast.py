"""Estimate a run without running it: items, hours, chunks, time and cost.

Durations come from the manifest. Where the manifest gives none, the headers of a sample of the recordings are read.
`estimate_run` asks the engine that would run on this machine. `measure_workload` and `known_rates` need no engine; they
serve runs that start elsewhere. `sampling` estimates the rest of a run that is in progress.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from voxbatch import engines
from voxbatch.config import Config, RunOptions
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.engines import NO_WINDOWS, EngineSpec, Registration, hub
from voxbatch.engines.choice import EngineChoice
from voxbatch.engines.known_models import BUNDLED, WHISPER_CODES, find
from voxbatch.engines.model_files import NotFetched, nothing_fetched
from voxbatch.engines.previews import ExpectedSpeed, expected_speed
from voxbatch.engines.refusals import require_language
from voxbatch.errors import AudioError, StorageError, VoxbatchError
from voxbatch.manifest import Source, Survey, items, survey
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.profiles import load_profile
from voxbatch.records import Item, Windows
from voxbatch.runner.job import Job
from voxbatch.runner.prepare import items_of_shard, worker_environments
from voxbatch.runner.progress import Progress, known_audio
from voxbatch.runner.steps import Steps, steps_of
from voxbatch.storage import Stores, parallel_map
from voxbatch.storage.circuit_breaker import CircuitBreaker, Reachable, Report, report_error, report_success
from voxbatch.storage.columns import Column, ItemSet
from voxbatch.storage.recording import Recording

SAMPLE_SIZE = 200
"""Number of recordings whose headers are read if the manifest gives no duration. The mean duration of 200 calls is
known to a tenth. A run reads as many while it is in progress."""
SAMPLING_DELAY_S = 1.0
"""Seconds of a run before headers are read. Recordings that are decoded by then need no process that reads them."""
PROBE_THREADS = 8
"""Number of headers that are read at a time."""
MAX_UNREACHABLE = 8
"""Number of unreachable recordings of a silent place at which the estimate fails, because it must not take hours."""
PROBE_BLOCK_BYTES = 64 << 10
"""Bytes that are fetched of a remote recording at a time."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
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
    unknown_items: int
    """Number of these items for which there is no estimate either. `audio_s` does not include them."""
    chunks: int | None
    """Minimum number of chunks. Cuts in pauses make somewhat more. None if the limit of the engine is unknown."""
    work_s: float
    """Seconds of long recordings that take as long as these. More than `audio_s` if the engine pads short ones."""
    rtfx: float | None
    """Audio seconds of long recordings per second, from the profile or calculated. None if nothing is known."""
    usd_per_hour: float | None
    is_about: bool = False
    """See Workload."""
    speed: ExpectedSpeed | None = None
    """The calculated speed that `rtfx` comes from. None if `rtfx` is not calculated."""
    fetch: str = ""
    """The model that the run will fetch, as text for people. Empty if it is here."""

    @property
    def wall_s(self) -> float | None:
        """Seconds that the run takes, or None if the speed or a duration is unknown."""
        return self.work_s / self.rtfx if self.rtfx and not self.unknown_items else None

    @property
    def usd(self) -> float | None:
        """Cost of the run, or None if the speed, the price or a duration is unknown."""
        return (
            self.wall_s / 3600 * self.usd_per_hour
            if self.wall_s is not None and self.usd_per_hour is not None
            else None
        )

    def part(self, share: float) -> RunEstimate:
        """Return the estimate for a part of the audio, as if its recordings were like the others."""
        return replace(
            self,
            items=math.ceil(share * self.items),
            audio_s=share * self.audio_s,
            chunks=None if self.chunks is None else math.ceil(share * self.chunks),
            work_s=share * self.work_s,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The amount of audio in a config's shard."""

    durations: Column
    """Seconds of each item of the shard, float32. 0 for the `unknown_items`."""
    estimated_items: int
    """Number of items whose duration the manifest does not give."""
    unknown_items: int
    """Number of these items for which there is no estimate, because no header of the sample tells a duration."""
    is_about: bool
    """True if a duration is the mean of a sample, or is from a header that may be wrong: that of a video, for example,
    is the length of its picture, and of a recording without a header, some frames are counted."""

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.durations)

    @property
    def audio_s(self) -> float:
        """Seconds of audio in total."""
        return sum(float(block.sum(dtype=np.float64)) for _, block in self.durations.blocks())

    def work_s(self, windows: Windows) -> float:
        """Return the seconds of long recordings that take as long.

        A long recording has a window each 24 s whose fixed work is that of 11 s, 35 s together, so that 15 s are
        (15 + 11) × 24 / 35 = 17.8 s of work.
        """
        fixed_s = sum(float(windows.fixed_s(block).sum(dtype=np.float64)) for _, block in self.durations.blocks())
        return (self.audio_s + fixed_s) * windows.step_s / (windows.step_s + windows.work_s)

    def chunks(self, longest_s: float) -> int:
        """Return the number of chunks of at most `longest_s` seconds, without those of the `unknown_items`."""
        limit = np.float32(longest_s)
        return sum(int(np.ceil(block / limit).sum(dtype=np.float64)) for _, block in self.durations.blocks())


def estimate_run(config: Config) -> list[RunEstimate]:
    """Estimate the run of a config: its only pass, or both passes of a cascade. No model is fetched or loaded, and
    nothing is written. The hub is asked only for a model that is neither here nor in the table of models.

    Raises:
        UsageError: as in `runner.run`.
        StorageError: a place is unreachable or refuses access.
    """
    steps = steps_of(config)
    choice = steps.choose_engine()
    with steps.open(config) as source:
        surveyed = survey(source, steps.path_policy(), config.limit)
        engine_options = steps.engine_options(choice.name)
        spec, fetch = _spec(choice.name, config, engine_options, steps.engines)
        if config.language:
            require_language(spec, config.language)
        with HeaderReader() as headers:
            workload = measure(surveyed, source, config, headers)
    known = known_rates(config, choice.name)
    passes = [_estimate(config, choice, spec, workload, known, fetch)]
    if options := steps.second_options():
        spec, fetch = _second_spec(steps, spec, options.of(config), choice.name, is_here=not fetch)
        unmeasured = replace(known, rtfx=None)  # the known speed is that of the first model
        estimate = _estimate(options.of(config), choice, spec, workload, unmeasured, fetch)
        passes.append(estimate.part(options.share))
    return passes


def _spec(
    engine: str, config: Config, options: Mapping[str, str], table: Mapping[str, Registration]
) -> tuple[EngineSpec, str]:
    """Return the properties of the engine of a run, and what the run will fetch, as text for people. If that is needed
    to tell the properties, they are those of the table of models."""
    try:
        with nothing_fetched():
            spec = engines.create(engine, config.model, options, config.stores, table).spec
            known = None if os.path.exists(spec.model) else find(spec.model, engine)
            if known and known.place == "no":  # an earlier download has not come to the weights
                raise NotFetched(known.hub)
            return spec, ""
    except NotFetched as e:
        return _known_spec(engine, config.model, table), _fetch(e, engine)


def _second_spec(steps: Steps, first: EngineSpec, second: Config, engine: str, is_here: bool) -> tuple[EngineSpec, str]:
    """Return the same of the second pass of a cascade.

    Args:
        is_here: the first model is here, so that both can be compared.
    """
    try:
        with nothing_fetched():
            if is_here and (model := steps.second_model(first)):
                return model.spec, ""
    except NotFetched as e:
        return _known_spec(engine, second.model, steps.engines), _fetch(e, engine)
    return _spec(engine, second, {}, steps.engines)


def _known_spec(engine: str, name: str | None, table: Mapping[str, Registration]) -> EngineSpec:
    """Return what is known of an engine without the files of its model."""
    known, registration = find(name or "", engine), table.get(engine)
    languages = frozenset({*known.languages, *WHISPER_CODES}) if known and len(known.languages) > 1 else None
    if known and languages is None:
        languages = frozenset(known.languages)
    windows = registration.windows if registration else NO_WINDOWS
    return EngineSpec(engine, name or engine, 0, concurrency=1, languages=languages, windows=windows)


def _fetch(missing: NotFetched, engine: str) -> str:
    """Return the model that a run will fetch, and its size.

    Raises:
        ConfigError, EngineError: the hub has no such model, or cannot be reached.
    """
    if missing.num_bytes is not None:
        return f"{missing.name}: {missing.num_bytes / 1e6:,.0f} MB"
    if known := find(missing.name, engine):
        return f"{missing.name}: " + (f"about {known.megabytes:,} MB" if known.megabytes else "of unknown size")
    sizes = hub.file_sizes(missing.name, missing.revision, ["*"])
    return f"{missing.name}: at most {sum(sizes.values()) / 1e6:,.0f} MB"


def _estimate(
    config: Config, choice: EngineChoice, spec: EngineSpec, workload: Workload, known: KnownRates, fetch: str
) -> RunEstimate:
    """Return the estimate of one pass over all recordings of the workload."""
    longest_s = spec.max_chunk_samples / spec.sampling_rate
    gpus = max(1, len(worker_environments(spec, config.workers)))
    speed = None if known.rtfx else calculate_speed(config, choice.name, workload, gpus=gpus)
    return RunEstimate(
        engine=choice.reason,
        model=spec.model,
        items=workload.items,
        audio_s=workload.audio_s,
        estimated_items=workload.estimated_items,
        unknown_items=workload.unknown_items,
        chunks=workload.chunks(longest_s) + workload.unknown_items if longest_s else None,
        work_s=workload.work_s(spec.windows),
        rtfx=speed.rtfx if speed else known.rtfx,
        usd_per_hour=known.usd_per_hour,
        is_about=workload.is_about,
        speed=speed,
        fetch=fetch,
    )


def measure_workload(config: Config) -> Workload:
    """Survey the manifest, and read the headers of a sample of the recordings whose durations it does not give.

    No engine is needed.

    Raises:
        UsageError: the config or the manifest is wrong.
        StorageError: a place is unreachable or refuses access.
    """
    with steps_of(config).open(config) as source, HeaderReader() as headers:
        return measure(survey(source, steps_of(config).path_policy(), config.limit), source, config, headers)


def measure(surveyed: Survey, source: Source, config: Config, headers: HeaderReader) -> Workload:
    """Return the shard's durations. For items without one, take the mean duration of a sample, whose headers are
    read.

    Raises:
        StorageError: a place is unreachable or refuses access.
    """
    in_shard = items_of_shard(surveyed.durations, config)
    _, num_unknown, _ = known_audio(surveyed.durations, in_shard)
    in_sample = unknown_sample(surveyed.durations, in_shard, max(1, num_unknown // SAMPLE_SIZE))
    every = items(source, steps_of(config).path_policy(), config.limit, in_sample)
    # Rows of 10 MB each would fill the memory.
    sample = [replace(item, row=b"", text=None, given=None) for item in every]

    def read_header(item: Item) -> tuple[float | None, bool, Report | None]:
        """Return the seconds of a recording, None if they cannot be read; whether they are certain; and the report
        about its place."""
        try:
            with _header(item.audio, config.stores) as recording:
                return *headers.best_seconds(recording), report_success(item.audio, recording.last_arrival)
        except (AudioError, StorageError) as e:
            return None, False, report_error(item.index, item.audio, e)

    breaker = CircuitBreaker[None](config.fail_unreachable, threshold=min(MAX_UNREACHABLE, len(sample)))
    measured = parallel_map(PROBE_THREADS, read_header, sample)
    seconds_of: dict[int, float] = {}
    num_certain = 0
    for item, (seconds, is_certain, report) in zip(sample, measured, strict=True):
        num_certain += is_certain
        if isinstance(report, Reachable):
            breaker.reachable(report)
        elif report is not None:
            breaker.unreachable(report, None)
        if seconds:
            seconds_of[item.index] = seconds
    if not seconds_of:
        breaker.finish()
    durations = Column("<f4")
    mean = float(np.mean(np.array([*seconds_of.values()], np.float32))) if seconds_of else 0.0
    for (start, block), (_, is_in) in zip(surveyed.durations.blocks(), in_shard.blocks(), strict=True):
        for index in seconds_of.keys() & range(start, start + len(block)):
            block[index - start] = seconds_of[index]
        block[np.isnan(block)] = mean
        durations.append(block[is_in])
    return Workload(durations, num_unknown, 0 if seconds_of else num_unknown, num_certain < num_unknown)


@dataclass(frozen=True, slots=True)
class KnownRates:
    """Expected speed and price. None if nothing is known."""

    rtfx: float | None
    usd_per_hour: float | None


def known_rates(config: RunOptions, engine: str) -> KnownRates:
    """Return the speed from the config, or else from the profile that this engine would run with; and the price.

    No profile knows the speed of questions. The price is that of this machine: it was given, or the platform of the
    task has it. No profile knows it.
    """
    registration = engines.registered(engine, engines.ENGINES)
    name = config.profile or (registration and registration.default_profile)
    profile = load_profile(name) if name else {}
    if profile.get("engine") != engine or not steps_of(config).has_known_speed:
        profile = {}
    rtfx = config.expected_rtfx or profile.get("expected_rtfx")
    if rtfx and not config.expected_rtfx and "model" not in profile:
        rtfx = _scaled(rtfx, config.model, engine)
    return KnownRates(rtfx, config.usd_per_hour)


def _scaled(rtfx: float, name: str | None, engine: str) -> float | None:
    """Return the speed with a model, rounded to two digits, from that with the bundled model, in proportion to their
    multiply-adds: 23 → 0.49 for large-v3. None if those of the model are unknown."""
    bundled, model = find(BUNDLED, engine), find(name or BUNDLED, engine)
    if model is bundled or not (bundled and bundled.gmac):
        return rtfx
    return float(f"{rtfx * bundled.gmac / model.gmac:.2g}") if model and model.gmac else None


def calculate_speed(
    config: RunOptions, engine: str, workload: Workload | None = None, gpu: str | None = None, gpus: int = 1
) -> ExpectedSpeed | None:
    """Calculate the speed of an engine, or return None if this is not possible. See previews.expected_speed.

    Args:
        workload: the recordings to transcribe. None means an endless number of long recordings.
        gpu: NVML's name of a GPU elsewhere. None means the GPU of this machine.
        gpus: number of GPUs that share the work, each with its own engine.
    """
    if not steps_of(config).has_known_speed:
        return None
    made_for = load_profile(config.profile).get("model") if config.profile else None
    if made_for and not expected_speed(engine, made_for, {}, None, gpu):
        return None  # config.model may be a mere bucket address, which says less than the profile's model
    durations = workload.durations if workload else None
    return expected_speed(engine, config.model, config.engine_options, durations, gpu, gpus)


def certain_seconds(path: str, stores: Stores, headers: HeaderReader) -> float | None:
    """Return the seconds of a recording from its header, or None if the header does not tell for certain.

    Raises:
        StorageError: the place of the recording is unreachable or refuses access.
    """
    try:
        with _header(path, stores) as recording:
            return headers.seconds(recording, certain=True)
    except AudioError:
        return None


def _header(path: str, stores: Stores) -> contextlib.closing[Recording]:
    """Open a recording to read its header alone."""
    return contextlib.closing(stores.recording(path, PROBE_BLOCK_BYTES))


def unknown_sample(durations: Column, items: ItemSet, step: int) -> ItemSet:
    """Return every step-th of the items whose duration is unknown."""
    sample, seen = ItemSet(items.size), 0
    for (start, seconds), (_, is_in) in zip(durations.blocks(), items.blocks(), strict=True):
        unknown = start + np.flatnonzero(is_in & np.isnan(seconds))
        sample.add(unknown[-seen % step :: step])
        seen += len(unknown)
    return sample


@contextlib.contextmanager
def sampling(job: Job, remaining: ItemSet, progress: Progress) -> Iterator[None]:
    """Estimate the durations that the manifest does not give, while a run is in progress.

    A thread reads the headers of a few recordings, evenly spread over the items, and puts their seconds into
    `progress.sample`, or their bytes into `progress.sizes` if a header does not tell, until the context ends. It begins
    anywhere, because the first recordings are measured soon. The engine does not wait for it.
    """
    sample = unknown_sample(job.durations, remaining, -(-progress.unknown // SAMPLE_SIZE))
    is_over = threading.Event()

    def read() -> None:
        # A recording that cannot be read, a manifest that changes, or a limit of processes is told by the run itself.
        with (
            contextlib.suppress(VoxbatchError),
            limits_are_run_errors(),
            replace(job.source, fd=os.dup(job.source.fd)).open() as source,
            HeaderReader() as headers,
        ):
            every = items(source, job.path_policy, job.config.limit, sample)
            places = [(item.index, item.audio, item.offset) for item in every]  # a row may have 10 MB
            random.Random(0).shuffle(places)
            for index, _, _ in places:
                progress.sample.setdefault(index, None)
            is_over.wait(SAMPLING_DELAY_S)
            for index, audio, offset in places:
                if is_over.is_set():
                    return
                if progress.sample.get(index, 0.0) is not None:
                    continue  # it is decoded or finished
                with contextlib.suppress(VoxbatchError), _header(audio, job.config.stores) as recording:
                    if (seconds := headers.seconds(recording)) is not None:
                        progress.sample[index] = min(max(0.0, seconds - offset), job.longest_s)
                    elif not offset:
                        progress.sizes[index] = recording.size

    threading.Thread(target=read, daemon=True, name="durations").start()
    try:
        yield
    finally:
        is_over.set()
