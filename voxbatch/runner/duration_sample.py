"""Estimate the durations that the manifest does not give, while the run is in progress.

A thread reads the headers of a few recordings, evenly spread over the items. The engine does not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

from voxbatch.errors import VoxbatchError
from voxbatch.manifest import items
from voxbatch.runner.forecast import probe_duration, unknown_sample
from voxbatch.runner.prepare import Job
from voxbatch.runner.progress import Progress
from voxbatch.storage.columns import ItemSet

SAMPLE_SIZE = 50
"""Number of headers. They give the mean duration of calls to a fifth. The finished items make it better."""


@contextlib.contextmanager
def sampling(job: Job, remaining: ItemSet, progress: Progress) -> Iterator[None]:
    """Read headers in a thread, and put their seconds into `progress.sample`, until the context ends.

    Args:
        job: the run.
        remaining: the items to transcribe.
        progress: receives the seconds.
    """
    wanted = unknown_sample(job.durations, remaining, -(-progress.unknown // SAMPLE_SIZE))
    is_over = threading.Event()

    def read() -> None:
        # A recording that cannot be read, or a manifest that changes, is told by the run itself.
        with contextlib.suppress(VoxbatchError), replace(job.source, fd=os.dup(job.source.fd)).open() as source:
            for item in items(source, job.path_policy, job.limit, wanted):
                if is_over.is_set():
                    return
                with contextlib.suppress(VoxbatchError):
                    if (seconds := probe_duration(item.audio, job.store_options)) is not None:
                        progress.sample[item.index] = max(0.0, seconds - item.offset)

    threading.Thread(target=read, daemon=True, name="durations").start()
    try:
        yield
    finally:
        is_over.set()
