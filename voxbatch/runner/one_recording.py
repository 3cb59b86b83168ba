"""Transcribe a single recording without an OUT."""

from __future__ import annotations

import json
import tempfile
import wave
from collections.abc import Callable, Iterable

import numpy as np

from voxbatch.config import RunOptions
from voxbatch.decoding import Undecodable
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import ChunkProgress, Engine, EngineMessage
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.outcomes import outcome_of
from voxbatch.output.parts import PartEntry
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.records import SAMPLING_RATE, Hypothesis, Item, Outcome, Span
from voxbatch.runner.pipeline import Pipeline
from voxbatch.runner.progress import Progress, Stop
from voxbatch.runner.steps import steps_of
from voxbatch.storage.circuit_breaker import CircuitBreaker

PROOF_ITEM = -2
"""Item.index of the noise. Engines in a child process use -1 themselves."""


class _EntriesInMemory:
    """Takes the finished items in place of a checkpoint."""

    def __init__(self) -> None:
        self.entries: list[PartEntry] = []

    def commit(self, entries: Iterable[PartEntry], *facts: object, **further: object) -> list[PartEntry]:
        """Keep the entries; see PartWriter."""
        self.entries += entries
        return self.entries


def transcribe_recording(
    engine: Engine,
    item: Item,
    options: RunOptions,
    stop: Stop,
    on_engine_message: Callable[[EngineMessage], None],
    diarization: Diarization | None = None,
    on_text: Callable[[Span, Hypothesis | ChunkProgress], None] | None = None,
) -> Outcome:
    """Return the outcome of one item: the one that a run would write into its outputs.

    The engine keeps its model loaded for the next call. A recording whose place is unreachable has failed.

    Args:
        on_text: see Pipeline.

    Raises:
        StopRequested: `stop` was requested.
        RunError: the engine cannot start or has died, or decoders do not start.
    """
    writer = _EntriesInMemory()
    breaker = CircuitBreaker[Undecodable](fail_unreachable=True)
    progress = Progress(items=1)
    pipeline = Pipeline(
        engine, writer, options, progress, lambda _: None, stop, on_engine_message, breaker, diarization=diarization,
        on_text=on_text,
    )  # fmt: skip
    with limits_are_run_errors():
        pipeline.run(iter([item]))
    (entry,) = writer.entries
    return outcome_of(entry.kind, json.loads(entry.line))


def transcribe_noise(
    engine: Engine, options: RunOptions, stop: Stop, on_engine_message: Callable[[EngineMessage], None]
) -> None:
    """Transcribe a second of noise. If this ends the process, no recording is to blame, and no attempt is recorded."""
    swelling = np.linspace(0, 3000, SAMPLING_RATE)  # engines do not get noise of an even loudness: it holds no speech
    samples = np.random.default_rng(0).normal(0, swelling).astype("<i2")
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        with wave.open(file, "wb") as noise:
            noise.setnchannels(1)
            noise.setsampwidth(samples.itemsize)
            noise.setframerate(SAMPLING_RATE)
            noise.writeframes(samples.tobytes())
        file.flush()
        row = json.dumps({AUDIO_KEY: file.name}).encode()
        item = Item(PROOF_ITEM, 0, "noise", file.name, channel=0, row=row, prompt=steps_of(options).proof_prompt)
        transcribe_recording(engine, item, options, stop, on_engine_message)
