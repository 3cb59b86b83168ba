"""Estimate a run without running it: items, hours, chunks, time and cost.

`estimate_run` asks the engine that would run on this machine. `known_rates` needs no engine; it serves runs that start
elsewhere. `workload` measures the audio.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from voxbatch import engines
from voxbatch.config import Config, RunOptions
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.engines import NO_WINDOWS, EngineSpec, Registration, hub
from voxbatch.engines.choice import EngineChoice
from voxbatch.engines.known_models import BUNDLED, WHISPER_CODES, find
from voxbatch.engines.model_files import NotFetched, nothing_fetched
from voxbatch.engines.previews import ExpectedSpeed, expected_speed
from voxbatch.engines.quality import measured_speed
from voxbatch.engines.refusals import require_language
from voxbatch.errors import StorageError
from voxbatch.manifest import survey
from voxbatch.profiles import load_profile
from voxbatch.runner.done_before import done_before
from voxbatch.runner.job import SecondModel
from voxbatch.runner.prepare import items_of_shard, keep_id_root, worker_environments
from voxbatch.runner.steps import Steps, steps_of
from voxbatch.runner.workload import Workload, measure


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The estimate of `--dry-run` for one shard."""

    engine: str
    """One line: the engine's name and the reason for the choice."""
    model: str
    items: int
    """Number of items in this shard that are to do."""
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
    before: str = ""
    """How the run would continue the one in OUT, as text for people. Empty if OUT has no run."""
    is_chosen: bool = True
    """False for a second pass whose items are not chosen yet: it is estimated as if they were like the others."""

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
            is_chosen=False,
        )


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
        keep_id_root(source, config)
        surveyed = survey(source, steps.path_policy(), config.limit)
        engine_options = steps.engine_options(choice.name)
        spec, fetch = _spec(choice.name, config, engine_options, steps.engines)
        if config.language:
            require_language(spec, config.language)
        if not fetch:
            steps.check_options(spec)
        options = steps.second_options()
        second = _Second.of(steps, spec, options.of(config), choice.name, is_here=not fetch) if options else None
        own = items_of_shard(surveyed.durations, config)
        done = None
        if not config.overwrite:
            done = done_before(config, source, surveyed, None if fetch else spec, second.model if second else None)
        with HeaderReader() as headers:
            workload = measure(surveyed, own - done.items if done else own, source, config, headers)
            again = workload
            if second and done and done.text:
                again = measure(surveyed, own if done.second is None else done.second, source, config, headers)
    known, before = _rates_here(config, choice.name), done.text if done else ""
    passes = [replace(_estimate(config, choice, spec, workload, known, fetch), before=before)]
    if options and second:
        unmeasured = replace(known, rtfx=None)  # the known speed is that of the first model
        estimate = _estimate(options.of(config), choice, second.spec, again, unmeasured, second.fetch)
        is_chosen = done is not None and done.second is not None
        passes.append(replace(estimate, before=before) if is_chosen else estimate.part(options.share))
    return passes


def remaining_workload(config: Config) -> tuple[Workload, str]:
    """Return the recordings that OUT lacks, and how the run would continue the one in OUT, as text for people: "" if
    OUT has none. No engine is needed: its model is taken for that of OUT if both runs name it alike.

    Raises:
        UsageError: the config or the manifest is wrong.
        StorageError: a place of the manifest or of a recording is unreachable or refuses access.
    """
    steps = steps_of(config)
    with steps.open(config) as source, HeaderReader() as headers:
        with contextlib.suppress(StorageError):  # `done_before` reports it
            keep_id_root(source, config)
        surveyed = survey(source, steps.path_policy(), config.limit)
        own = items_of_shard(surveyed.durations, config)
        if config.overwrite:
            return measure(surveyed, own, source, config, headers), ""
        done = done_before(config, source, surveyed, None)
        return measure(surveyed, own - done.items, source, config, headers), done.text


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


@dataclass(frozen=True, slots=True)
class _Second:
    """The second model of a run."""

    spec: EngineSpec
    fetch: str
    """See RunEstimate."""
    model: SecondModel | None
    """None if one of the two models is not here."""

    @classmethod
    def of(cls, steps: Steps, first: EngineSpec, second: Config, engine: str, is_here: bool) -> _Second:
        """Return the second model of a run.

        Args:
            second: the options of the second pass.
            is_here: the first model is here, so that both can be compared.
        """
        try:
            with nothing_fetched():
                if is_here and (model := steps.second_model(first)):
                    return cls(model.spec, "", model)
        except NotFetched as e:
            return cls(_known_spec(engine, second.model, steps.engines), _fetch(e, engine), None)
        return cls(*_spec(engine, second, {}, steps.engines), None)


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


def _rates_here(config: RunOptions, engine: str) -> KnownRates:
    """Return the same for this machine: the speed that `voxbatch models` shows, if it was measured before and neither
    the config nor a profile says another one."""
    known, model = known_rates(config, engine), find(config.model or BUNDLED, engine)
    if config.expected_rtfx or config.profile or known.rtfx is None or model is None:
        return known
    return replace(known, rtfx=measured_speed(model) or known.rtfx)


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
