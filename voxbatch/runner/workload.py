"""Measure the audio of a shard: the seconds of each recording, from the manifest or from headers.

Durations come from the manifest. Where the manifest gives none, the headers of a sample of the recordings are read.
`measure` does so before a run, and `sampling` while the run is in progress.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from voxbatch.config import Config
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.errors import AudioError, StorageError, VoxbatchError
from voxbatch.manifest import Source, Survey, items, survey
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.records import Item, Windows
from voxbatch.runner.job import Job
from voxbatch.runner.prepare import items_of_shard
from voxbatch.runner.progress import Progress, known_audio
from voxbatch.runner.steps import steps_of
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


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The amount of audio in a config's shard, or in those of its items that are to do."""

    durations: Column
    """Seconds of each item that is to do, float32. 0 for the `unknown_items`."""
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


def measure_workload(config: Config) -> Workload:
    """Survey the manifest, and read the headers of a sample of the recordings whose durations it does not give.

    No engine is needed.

    Raises:
        UsageError: the config or the manifest is wrong.
        StorageError: a place is unreachable or refuses access.
    """
    with steps_of(config).open(config) as source, HeaderReader() as headers:
        surveyed = survey(source, steps_of(config).path_policy(), config.limit)
        return measure(surveyed, items_of_shard(surveyed.durations, config), source, config, headers)


def measure(surveyed: Survey, to_do: ItemSet, source: Source, config: Config, headers: HeaderReader) -> Workload:
    """Return the durations of the items that are to do. For items without one, take the mean duration of a sample,
    whose headers are read.

    Raises:
        StorageError: a place is unreachable or refuses access.
    """
    _, num_unknown, _ = known_audio(surveyed.durations, to_do)
    in_sample = unknown_sample(surveyed.durations, to_do, max(1, num_unknown // SAMPLE_SIZE))
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
    for (start, block), (_, is_in) in zip(surveyed.durations.blocks(), to_do.blocks(), strict=True):
        for index in seconds_of.keys() & range(start, start + len(block)):
            block[index - start] = seconds_of[index]
        block[np.isnan(block)] = mean
        durations.append(block[is_in])
    return Workload(durations, num_unknown, 0 if seconds_of else num_unknown, num_certain < num_unknown)


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
