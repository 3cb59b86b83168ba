"""The steps of a run in which the kinds of work differ.

`steps_of` returns the Steps of a run; every other module of the runner calls them, and knows no kind. `Steps` has what
most kinds do: they decode recordings. A kind derives a class in `works/`. An Addition changes some of the steps of
another kind: it tells speakers apart, or adds a second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch import engines, work
from voxbatch.config import Config, RunOptions
from voxbatch.decoding import SPLIT_ADVICE, Decoded, Message
from voxbatch.engines import Engine, EngineMessage, EngineSpec, Feed
from voxbatch.engines import Registration as EngineEntry
from voxbatch.engines.choice import EngineChoice, choose
from voxbatch.errors import ConfigError
from voxbatch.manifest import PathPolicy, Source
from voxbatch.output.lines import failure_line, line_bytes, transcript_line
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import (
    OVERLAP,
    SAMPLING_RATE,
    TRANSLATE,
    Failure,
    Flag,
    Hypothesis,
    Item,
    Outcome,
    SpokenRecording,
    Transcript,
)
from voxbatch.sources.opening import open_source
from voxbatch.text.stitching import stitch

if TYPE_CHECKING:
    from voxbatch.decoding.messages import Diarization
    from voxbatch.runner.job import SecondModel, SecondOptions
    from voxbatch.runner.shared import EventQueue, InProgress, PendingItem
    from voxbatch.scoring.counts import ErrorCounts

Started = Iterator[tuple[Item, str | None] | None]
"""Items with their languages; None for a pause."""
Decode = Callable[[int, str], Iterator[Message]]
"""Decodes the started items, up to a number of samples; gives an advice about longer ones."""


class Outcomes(Protocol):
    """Makes the outcomes of items from the results of their chunks. The main thread alone uses it."""

    needs_sound: bool
    """False if a video without an audio track has an outcome, as one in which nobody speaks. Otherwise it fails."""

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | SpokenRecording | None:
        """Return the outcome of an item all of whose chunks have results. None if something else is still missing."""

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Close the feed if no further chunk can come. All recordings are decoded."""

    def close(self) -> None:
        """End threads."""


class Addition:
    """Steps that are added to those of a kind of work."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """Return defaults of engine options."""
        return {}

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy) -> None:
        """Check the recordings of the manifest."""

    def diarization(self, spec: EngineSpec, loads_networks: bool) -> Diarization | None:
        """Return the way in which the decoders tell speakers apart, if they do.

        Args:
            loads_networks: load the networks once, on the CPU.
        """
        return None

    def beside(
        self,
        diarization: Diarization | None,
        device: str | None,
        resources: ExitStack,
        on_engine_message: Callable[[EngineMessage], None],
    ) -> Diarization | None:
        """Return the way to tell speakers apart beside an engine on a device, until `resources` end."""
        return diarization

    def transcript(self, decoded: Decoded, hypotheses: Sequence[Hypothesis]) -> Transcript | None:
        """Return the transcript of an item; None for that of its kind of work."""
        return None

    def second_options(self) -> SecondOptions | None:
        """Return the second pass, if there is one."""
        return None

    def second_model(self, spec: EngineSpec) -> SecondModel | None:
        """Return the second model, if there is one. It is not loaded.

        Args:
            spec: the first model.

        Raises:
            ConfigError: the engine does not take the model, or one of the two cannot do what the options ask for.
        """
        return None


class Steps:
    """The steps of a kind of work."""

    engines: Mapping[str, EngineEntry] = engines.ENGINES
    reads_recordings = True
    skips_silence = True
    """True if no engine gets a silent chunk, for which it could only invent text."""
    overlap = OVERLAP
    """Seconds of the audio that two chunks share, if the engine gives word times."""
    max_queued_events = 1024
    feeds_itself = False
    """True if outcomes may put further chunks into the feed."""
    proof_prompt: str | None = None
    has_known_speed = True
    """True if the speed of an engine is that of transcribing: a profile or a calculation tells it."""
    carries_over = True
    """True if a row decides nothing but by the keys of `carrying`: its `text` is only a reference."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.additions: Sequence[Addition] = [
            addition.resolve("steps")(options) for addition in work.additions_of(options.marks)
        ]

    # -- before a model is loaded

    def open(self, config: Config) -> Source:
        """Open the source."""
        return open_source(config.source, stores=config.stores, include=config.include)

    def path_policy(self) -> PathPolicy:
        """Return the rule for the rows of the manifest.

        Raises:
            ConfigError: the rule contradicts itself, or a place is not valid.
        """
        return PathPolicy(self.options.allow_outside, self.options.only_under, self.options.task)

    def choose_engine(self) -> EngineChoice:
        """Return the engine; see choice.choose."""
        return choose(self.options.engine, self.engines, model=self.options.model, stores=self.options.stores)

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """Return the options with which the engine is created, without the place of compiled kernels.

        Raises:
            ConfigError: only the options of the engine ask for this kind of work, or the engine cannot do it.
        """
        options = self.options.engine_options
        if (task := options.get("task")) in work.commands() and work.work(task).sets_engine_task:
            raise ConfigError(f"engine option task={task}: it is for voxbatch {task}, which sets it")
        for addition in self.additions:
            options = {**addition.engine_options(engine), **options}
        return options

    def check(self, spec: EngineSpec, row_hints: Iterable[str] = (), loads_networks: bool = True) -> Diarization | None:
        """Check that an engine can do what the options ask for, and return the way in which the decoders tell speakers
        apart, if they do.

        Args:
            row_hints: names of the keys of the manifest that give hints.
            loads_networks: load the networks that tell speakers apart once, on the CPU.

        Raises:
            ConfigError, StorageError: the engine cannot; see `Addition.diarization`.
        """
        options = self.options
        if options.language:
            from voxbatch.engines.refusals import require_language

            require_language(spec, options.language)
        self.check_engine(spec)
        self.check_options(spec, row_hints)
        ways = (addition.diarization(spec, loads_networks) for addition in self.additions)
        return next(filter(None, ways), None)

    def check_options(self, spec: EngineSpec, row_hints: Iterable[str] = ()) -> None:
        """Check that an engine can do the task, and take the hints.

        Raises:
            ConfigError: it cannot.
        """
        options = self.options
        if (hints := ", ".join([*options.hints_given, *row_hints])) and not spec.takes_hints:
            raise ConfigError(
                f"{hints}: the engine {spec.name} cannot tell {spec.model} which words to expect; take a Whisper "
                "model, or leave it out"
            )
        if options.task == TRANSLATE and not spec.translates:
            raise ConfigError(
                f"--task translate: {spec.model} of the engine {spec.name} was not trained to translate; take a "
                "multilingual Whisper model, such as --model large-v3 of faster-whisper or openai/whisper-large-v3 of "
                "vllm"
            )

    def check_engine(self, spec: EngineSpec) -> None:
        """Check that the engine can do this kind of work."""

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
        """Check the rows of the manifest against the engine.

        Raises:
            UsageError: the engine cannot do what the options ask for with them.
        """
        for addition in self.additions:
            addition.check_recordings(config, source, policy)

    def second_options(self) -> SecondOptions | None:
        """See Addition."""
        return next(filter(None, (addition.second_options() for addition in self.additions)), None)

    def second_model(self, spec: EngineSpec) -> SecondModel | None:
        """See Addition."""
        return next(filter(None, (addition.second_model(spec) for addition in self.additions)), None)

    def size(self, audio_s: float, chunks: int) -> tuple[str, str]:
        """Return the name and the value of the size of the work, for people."""
        return "chunks", f"at least {chunks:,}"

    @property
    def excerpts(self) -> int | None:
        """Number of excerpts, each as long as the longest chunk of the engine, that are decoded of a longer recording.
        None decodes whole recordings."""
        return None

    def longest_s(self, spec: EngineSpec) -> float:
        """Return the most seconds of a recording that are decoded."""
        return math.inf if self.excerpts is None else self.excerpts * spec.max_chunk_samples / SAMPLING_RATE

    # -- the decode thread

    def messages(self, started: Started, decode: Decode, spec: EngineSpec, shared: InProgress) -> Iterator[Message]:
        """Return the chunks and the final messages of all items."""
        return decode(self.max_samples, SPLIT_ADVICE)

    @property
    def max_samples(self) -> int:
        """Samples of the longest recording that is decoded."""
        return round(3600 * SAMPLING_RATE * self.options.max_hours)

    # -- the engine

    def engine(self, engine: Engine, resources: ExitStack) -> Engine:
        """Return the engine, or one around it."""
        return engine

    def beside(
        self,
        diarization: Diarization | None,
        device: str | None,
        resources: ExitStack,
        on_engine_message: Callable[[EngineMessage], None],
    ) -> Diarization | None:
        """See Addition."""
        for addition in self.additions:
            diarization = addition.beside(diarization, device, resources, on_engine_message)
        return diarization

    # -- the main thread

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """Return what makes the outcomes."""
        return Transcripts(self.additions)

    def entry(
        self,
        item: Item,
        outcome: Any,
        spec: EngineSpec,
        lang: str | None,
        folder: str | None,
        counts: ErrorCounts | None,
    ) -> PartEntry:
        """Return the entry of an item that is done."""
        flags = self.flags(outcome)
        line = transcript_line(item, outcome, spec.name, spec.model, lang, folder, counts, flags=flags)
        return PartEntry(item.index, "transcript", line_bytes(line))

    def flags(self, transcript: Any) -> Iterable[Flag] | None:
        """Return the flags of a transcript. None: those that `transcript_line` finds."""
        return None

    def failure_entry(self, item: Item, failure: Failure, lang: str | None, folder: str | None) -> PartEntry:
        """Return the entry of an item that has failed."""
        return PartEntry(item.index, "failure", json_bytes(failure_line(item, failure, lang, folder)))


class Transcripts:
    """The outcomes of items that are transcribed."""

    needs_sound = False

    def __init__(self, additions: Sequence[Addition]) -> None:
        self._additions = additions

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | None:
        """Return the outcome of an item all of whose chunks have results."""
        hypotheses = pending.of_chunks(decoded, Hypothesis)
        if isinstance(hypotheses, Failure):
            return hypotheses
        transcripts = (addition.transcript(decoded, hypotheses) for addition in self._additions)
        transcript = next(filter(None, transcripts), None) or stitch(decoded.spans, hypotheses, decoded.warnings)
        picture = replace(transcript, frame_rate=decoded.frame_rate, aspect_ratio=decoded.aspect_ratio)
        return self.finished(picture, pending.item)

    def finished(self, transcript: Transcript, item: Item) -> Transcript:
        """Return the transcript as the line has it."""
        return transcript

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Do nothing: no further chunk can come."""

    def close(self) -> None:
        """Do nothing."""


def steps_of(options: RunOptions) -> Steps:
    """Return the steps of a run."""
    steps: Steps = work.work_of(options.marks).resolve("steps")(options)
    return steps
