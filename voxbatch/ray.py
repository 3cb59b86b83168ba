"""A run on a Ray cluster: each shard of the run is a call of an actor with a GPU.

    import voxbatch.ray

    summary = voxbatch.ray.run("gs://calls/day.jsonl", "gs://calls/out/day", concurrency=8)

A shard is the same as a task of `voxbatch run --shard i/n`: it commits its items to the parts in OUT, and the last
shard to finish merges. So a shard whose actor or node died is given to another actor, which continues after the last
committed part, and each item is committed once. Ray carries only the numbers of the shards; recordings and transcripts
do not pass through its object store.

Ray Data would do the same with `map_batches`, but its pool grows only when the actors have more calls waiting than they
can run, and a call waits for its own actor to be restarted on a node that may never come back.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any, Unpack

from voxbatch import runner
from voxbatch.api.keyword_types import ShardKeywords
from voxbatch.api.keywords import run_options
from voxbatch.api.python_log import LOGGER, python_log
from voxbatch.config import Config
from voxbatch.engines import EngineCache
from voxbatch.errors import ConfigError, RunError, UsageError, VoxbatchError
from voxbatch.manifest.recording_path import LIST_MARK
from voxbatch.output.summary import Summary, read_summary
from voxbatch.sources.named import is_list
from voxbatch.storage import is_remote

SHARDS_PER_ACTOR = 4
"""Shards for each actor, unless a number is given. The shards have equal hours. With several for each actor, an actor
that is slower, or that comes later, does fewer of them. Each shard reads the whole manifest once."""
MAX_LOSSES = 20
"""Actors that may die with the same shard, or one after the other before they have started: machines may be taken away
many times, but a shard that kills each process must not go on for ever."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The end of a shard: complete, or an error. An error is returned and not raised, because the other shards go
    on.
    """

    shard: int
    error: str = ""
    is_usage_error: bool = False


class ShardTranscriber:
    """An actor that transcribes shards, one at a time, and keeps its engine loaded between them."""

    def __init__(self, config: Config):
        """Store the config, whose `shard` is ignored."""
        self._config, self._log = config, python_log()
        self._engine_cache = EngineCache()

    def start(self) -> None:
        """Do nothing. The result says that the actor has its machine."""

    def transcribe(self, shard: int) -> ShardResult:
        """Transcribe a shard."""
        try:
            runner.run(replace(self._config, shard=shard), self._log, engine_cache=self._engine_cache)
        except VoxbatchError as e:
            self._engine_cache.close()  # it may have died
            return ShardResult(shard, str(e), isinstance(e, UsageError))
        return ShardResult(shard)


class _Pool:
    """The actors of a run, each with the call that it has not answered yet.

    All actors are asked for at the beginning, so that an autoscaling cluster starts a machine for each. One that still
    waits for its machine holds no shard.
    """

    def __init__(self, actor_class: Any, config: Config, size: int):
        self._actor_class, self._config = actor_class, config
        self._calls: dict[Any, tuple[Any, int | None]] = {}
        """By the reference to its result: the actor, and the shard; None until the actor has started."""
        for _ in range(size):
            self._add()

    def _add(self) -> None:
        actor = self._actor_class.remote(self._config)
        self._calls[actor.start.remote()] = actor, None

    def results(self, shards: int) -> list[ShardResult]:
        """Transcribe all shards, and return a result for each.

        Raises:
            RunError: no actor can start.
        """
        import ray

        waiting, losses, results = deque(range(shards)), Counter[int | None](), list[ShardResult]()
        while len(results) < shards:
            (answered,), _ = ray.wait(list(self._calls), num_returns=1)
            actor, shard = self._calls.pop(answered)
            try:
                result = ray.get(answered)
            except ray.exceptions.RayActorError as e:
                ray.kill(actor)  # it may only be out of reach
                losses[shard] += 1
                if losses[shard] > MAX_LOSSES:
                    results.append(_given_up(shard, e))
                elif shard is not None:
                    LOGGER.warning("shard %d of %d is repeated: its actor died (%s)", shard, shards, _first_line(e))
                    waiting.appendleft(shard)
                self._add()
                continue
            if result is None:
                losses[None] = 0
            else:
                results.append(result)
            if waiting:
                shard = waiting.popleft()
                self._calls[actor.transcribe.remote(shard)] = actor, shard
            else:
                ray.kill(actor)  # its GPU is free for others
        return results

    def close(self) -> None:
        """Kill the actors that are left: after an error or an interrupt at work, else without a machine."""
        import ray

        for actor, _ in self._calls.values():
            ray.kill(actor)


def _given_up(shard: int | None, error: Exception) -> ShardResult:
    """Return the result of a shard that has lost too many actors.

    Raises:
        RunError: the actors died before they had a shard.
    """
    if shard is None:
        raise RunError(f"{MAX_LOSSES + 1} actors of Ray died before they had started; the last one: {error}") from error
    return ShardResult(shard, f"{MAX_LOSSES + 1} actors died with it; the last one: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    concurrency: int | None = None,
    num_gpus: float = 1,
    num_cpus: float = 4,
    shards: int | None = None,
    **options: Unpack[ShardKeywords],
) -> Summary:
    """Transcribe all recordings of a source on a Ray cluster, and return the summary of the run.

    A call with the same source and OUT continues a run that was interrupted, also with other numbers of actors and
    shards.

    Args:
        source: a manifest, a folder, or an address, which every machine of the cluster sees.
        out: folder of the outputs, which every machine sees: an address, or a path on a shared file system.
        concurrency: number of actors. Default: as many as the GPUs of the cluster allow, at least one.
        num_gpus: GPUs of each actor; 0 for an engine without a GPU.
        num_cpus: CPUs of each actor, and its number of decoder processes.
        shards: number of shards. Default: SHARDS_PER_ACTOR for each actor.
        options: the options of `voxbatch.run`, without those for one process alone.

    Raises:
        UsageError: an option, the manifest or OUT is wrong.
        RunError: some shards could not be completed. What is committed is safe, and the same call continues.
    """
    try:
        import ray
    except ImportError as e:
        raise ConfigError(f"voxbatch.ray: Ray is not installed ({e}): pip install 'voxbatch[ray]'") from e
    settings = run_options({"decoders": max(1, int(num_cpus)), **options}, ShardKeywords)
    if not ray.is_initialized():
        ray.init()
    gpus = ray.cluster_resources().get("GPU", 0)
    actors = concurrency or max(1, int(gpus // num_gpus) if num_gpus else 1)
    shards = shards or SHARDS_PER_ACTOR * actors
    config = replace(Config.of(settings, _absolute(source), _absolute(out)), shards=shards)
    actor_class = ray.remote(num_gpus=num_gpus, num_cpus=num_cpus, max_restarts=0)(ShardTranscriber)
    pool = _Pool(actor_class, config, min(actors, shards))
    try:
        results = pool.results(shards)
    finally:
        pool.close()
    if failed := sorted((result for result in results if result.error), key=lambda result: not result.is_usage_error):
        kind = ConfigError if failed[0].is_usage_error else RunError
        raise kind(f"{len(failed)} of {shards} shards could not be completed: {failed[0].error}")
    summary = read_summary(config.stores.out(config.out))
    if summary is None:
        raise RunError(f"{config.out} has no summary, although all shards are complete: can every machine see OUT?")
    return summary


def _absolute(place: str | os.PathLike[str]) -> str:
    """Return a path that means the same in a process with another working directory; an address as it is.

    Raises:
        ConfigError: it is standard input, which no other machine sees.
    """
    name = os.fspath(place)
    if name == "-":
        raise ConfigError("voxbatch.ray: standard input cannot be read on other machines; give a manifest's path")
    mark, path = (LIST_MARK, name.removeprefix(LIST_MARK)) if is_list(name) else ("", name)
    return name if is_remote(path) else mark + os.path.abspath(path)
