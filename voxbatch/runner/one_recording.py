"""Transcribe one recording through the pipeline of a run, without an OUT."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from voxbatch.decoding import Undecodable
from voxbatch.engines import Engine, EngineMessage
from voxbatch.latency import Latency
from voxbatch.output.checkpoint import PartEntry
from voxbatch.output.results import outcome_of
from voxbatch.records import Item, Outcome
from voxbatch.runner.pipeline import Pipeline, PipelineOptions
from voxbatch.runner.progress import Progress
from voxbatch.runner.stop import Stop
from voxbatch.storage.circuit_breaker import CircuitBreaker


class _EntriesInMemory:
    """Takes the finished items in place of a checkpoint."""

    def __init__(self) -> None:
        self.entries: list[PartEntry] = []

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latency: Latency | None = None,
        peak_gpu_bytes: int | None = None,
    ) -> list[PartEntry]:
        """Keep the entries; see PartWriter."""
        self.entries += entries
        return self.entries


def transcribe_recording(
    engine: Engine,
    item: Item,
    options: PipelineOptions,
    stop: Stop,
    on_engine_message: Callable[[EngineMessage], None],
) -> Outcome:
    """Return the outcome of one item: the one that a run would write into its outputs.

    The engine keeps its model loaded for the next call. A recording whose place is unreachable has failed.

    Raises:
        StopRequested: `stop` was requested.
        RunError: the engine cannot start or has died, or decoders do not start.
    """
    taken = _EntriesInMemory()
    breaker = CircuitBreaker[Undecodable](fail_unreachable=True)
    progress = Progress(items=1)
    Pipeline(engine, taken, options, progress, lambda _: None, stop, on_engine_message, breaker).run(iter([item]))
    (entry,) = taken.entries
    return outcome_of(entry.kind, json.loads(entry.line))
