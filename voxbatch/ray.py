"""A run on a Ray cluster: the shards of a run as the rows of a Ray Data set, each transcribed by an actor with a GPU.

    import voxbatch.ray

    summary = voxbatch.ray.run("gs://calls/day.jsonl", "gs://calls/out/day", concurrency=8)

A shard is the same as a task of `voxbatch run --shard i/n`: it commits its items to the parts in OUT, and the last
shard to finish merges. So Ray may restart an actor and repeat a shard at any time: the next attempt continues after the
last committed part, and each item is committed once. Ray carries only the numbers of the shards; recordings and
transcripts do not pass through its object store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from voxbatch import runner
from voxbatch.api.keyword_types import ShardKeywords
from voxbatch.api.keywords import run_options
from voxbatch.api.python_log import python_log
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
MAX_RESTARTS = 20
"""Restarts of an actor, and repetitions of a shard whose actor died: machines may be taken away many times, but a shard
that kills each process must not go on for ever."""


class ShardTranscriber:
    """An actor class for `map_batches`: takes numbers of shards, transcribes these shards, and keeps its engine
    loaded.
    """

    def __init__(self, config: Config):
        """Store the config, whose `shard` is ignored."""
        self._config, self._log = config, python_log()
        self._engine_cache = EngineCache()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Transcribe the shards in the column `id`.

        Returns:
            The columns `shard`, `items`, `error` (empty if the shard is complete) and `is_usage_error`. An error is
            returned and not raised, because Ray would end the other shards.
        """
        rows: dict[str, list[Any]] = {"shard": [], "items": [], "error": [], "is_usage_error": []}
        for shard in batch["id"].tolist():
            items, error = 0, None
            try:
                config = replace(self._config, shard=shard)
                items = runner.run(config, self._log, engine_cache=self._engine_cache).progress.committed
            except VoxbatchError as e:
                error = e
                self._engine_cache.close()  # it may have died
            rows["shard"].append(shard)
            rows["items"].append(items)
            rows["error"].append(str(error or ""))
            rows["is_usage_error"].append(isinstance(error, UsageError))
        return rows


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
        import ray.data
    except ImportError as e:
        raise ConfigError(f"voxbatch.ray: Ray is not installed ({e}): pip install 'voxbatch[ray]'") from e
    settings = run_options({"decoders": max(1, int(num_cpus)), **options}, ShardKeywords)
    if not ray.is_initialized():
        ray.init()
    gpus = ray.cluster_resources().get("GPU", 0)
    actors = concurrency or max(1, int(gpus // num_gpus) if num_gpus else 1)
    shards = shards or SHARDS_PER_ACTOR * actors
    config = replace(Config.of(settings, _absolute(source), _absolute(out)), shards=shards)
    results = (
        ray.data.range(shards, override_num_blocks=shards)
        .map_batches(
            ShardTranscriber,
            fn_constructor_args=(config,),
            batch_size=1,
            num_gpus=num_gpus,
            num_cpus=num_cpus,
            # An actor that waits for its machine must not delay the others, nor hold shards that they could do.
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, max_tasks_in_flight_per_actor=1),
            max_restarts=MAX_RESTARTS,
            max_task_retries=MAX_RESTARTS,
        )
        .take_all()
    )
    if failed := sorted((row for row in results if row["error"]), key=lambda row: not row["is_usage_error"]):
        kind = ConfigError if failed[0]["is_usage_error"] else RunError
        raise kind(f"{len(failed)} of {shards} shards could not be completed: {failed[0]['error']}")
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
