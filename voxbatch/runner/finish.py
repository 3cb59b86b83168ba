"""Finish a shard: record that it is complete, and merge the outputs if all shards are."""

from __future__ import annotations

from voxbatch.log import Log
from voxbatch.output import merge
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.summary import Summary
from voxbatch.runner.prepare import Job
from voxbatch.runner.transcribe import RemainingWork
from voxbatch.storage import open_store


def finish(job: Job, work: RemainingWork, log: Log) -> Summary | None:
    """Record that every item of the shard is in a part. The last shard to finish merges.

    Returns:
        The summary of all shards. None while other shards are still in progress.

    Raises:
        CheckpointError: a part or an existing output is damaged.
        StorageError: OUT cannot be read or written.
    """
    work.checkpoint.mark_complete(work.progress.items)
    if not work.checkpoint.are_all_complete():
        return None
    store, files = open_store(job.out, job.store_options), ItemFiles.of(job.run.facts.config)
    return merge.merge(store, job.run, files, log, job.store_options, job.calibration)
