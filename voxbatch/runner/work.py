"""The kind of work of a run, and all that differs between the kinds.

`work_of` alone looks which kind a run is; every other module of the runner asks the Work. `Work` transcribes, and the
others derive from it: `aligning.Align`, `asking.Ask` and `speaking.Speak`. To add a kind, derive a class and name it in
`work_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch import engines
from voxbatch.config import Config, RunOptions
from voxbatch.decoding import SPLIT_ADVICE, Decoded, Message
from voxbatch.engines import Engine, EngineSpec, Feed
from voxbatch.engines import Registration as EngineEntry
from voxbatch.engines.choice import EngineChoice, choose
from voxbatch.errors import ConfigError
from voxbatch.manifest import PathPolicy, Source, open_source
from voxbatch.output.lines import line_bytes, transcript_line
from voxbatch.output.parts import PartEntry
from voxbatch.records import ALIGN, OVERLAP, SAMPLING_RATE, Failure, Hypothesis, Item, Outcome, Recording, Transcript
from voxbatch.text.stitching import stitch

if TYPE_CHECKING:
    from voxbatch.runner.shared import EventQueue, InProgress, PendingItem
    from voxbatch.scoring.counts import ErrorCounts

NETWORKS_GB = 2.1
"""GB of a GPU for the networks that tell speakers apart. On an H200 their process took 2.04 GB at most, with sixteen
decoders."""
Started = Iterator[tuple[Item, str | None] | None]
"""Items with their languages; None for a pause."""


class Outcomes(Protocol):
    """Makes the outcomes of items from the results of their chunks. The main thread alone uses it."""

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | Recording | None:
        """Return the outcome of an item all of whose chunks have results. None if something else is still missing."""

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Close the feed if no further chunk can come. All recordings are decoded."""

    def close(self) -> None:
        """End threads."""


class Work:
    """Transcribe recordings."""

    engines: Mapping[str, EngineEntry] = engines.ENGINES
    reads_recordings = True
    overlap = OVERLAP
    """Seconds of the audio that two chunks share, if the engine gives word times."""
    max_queued_events = 1024
    feeds_itself = False
    """True if outcomes may put further chunks into the feed."""
    proof_prompt: str | None = None

    def __init__(self, options: RunOptions) -> None:
        self.options = options

    # -- before a model is loaded

    def open(self, config: Config) -> Source:
        """Open the source."""
        return open_source(config.source, store_options=config.store_options, include=config.include)

    def path_policy(self) -> PathPolicy:
        """Return the rule for the rows of the manifest."""
        return PathPolicy(self.options.allow_outside, self.options.only_under, self.options.task)

    def choose_engine(self) -> EngineChoice:
        """Return the engine; see choice.choose."""
        return choose(self.options.engine, self.engines, model=self.options.model)

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """Return the options with which the engine is created, without the place of compiled kernels."""
        options = self.options.engine_options
        if (task := options.get("task")) in ("ask", "speak"):
            raise ConfigError(f"engine option task={task}: it is for voxbatch {task}, which sets it")
        if self.options.speakers and engine == "vllm":
            return {"beside_gb": str(NETWORKS_GB), **options}
        return options

    def check(self, spec: EngineSpec) -> None:
        """Check that the engine can do this work."""

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
        """Check the rows of the manifest against the engine."""

    # -- the decode thread

    def messages(
        self, started: Started, decode: Callable[[int, str], Iterator[Message]], spec: EngineSpec, shared: InProgress
    ) -> Iterator[Message]:
        """Return the chunks and the final messages of all items.

        Args:
            started: the items.
            decode: decodes them, up to a number of samples; gives an advice about longer ones.
        """
        return decode(self.max_samples, SPLIT_ADVICE)

    @property
    def max_samples(self) -> int:
        """Samples of the longest recording that is decoded."""
        return round(3600 * SAMPLING_RATE * self.options.max_hours)

    # -- the engine

    def engine(self, engine: Engine, resources: ExitStack) -> Engine:
        """Return the engine, or one around it."""
        return engine

    # -- the main thread

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """Return what makes the outcomes."""
        return Transcripts(self.options)

    def reference(self, item: Item) -> str | None:
        """Return the text that the outcome of an item is scored against."""
        return item.text

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
        line = transcript_line(item, outcome, spec.name, spec.model, lang, folder, counts)
        return PartEntry(item.index, "transcript", line_bytes(line))


class Transcripts:
    """The outcomes of items that are transcribed."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | Recording | None:
        """Return the outcome of an item all of whose chunks have results."""
        hypotheses = pending.of_chunks(decoded, Hypothesis)
        if isinstance(hypotheses, Failure):
            return hypotheses
        if decoded.levels:
            from voxbatch.text.speakers import stitch_channels  # only for channels that are kept apart

            names = self._options.channel_names
            return stitch_channels(decoded.spans, hypotheses, decoded.levels, names, decoded.warnings)
        transcript = stitch(decoded.spans, hypotheses, decoded.warnings)
        if decoded.turns is not None:
            from voxbatch.text.speakers import with_speakers  # only for speakers that are told apart

            transcript = with_speakers(transcript, decoded.turns)
        return self.finished(transcript, pending.item)

    def finished(self, transcript: Transcript, item: Item) -> Transcript:
        """Return the transcript as the line has it."""
        return transcript

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Do nothing: no further chunk can come."""

    def close(self) -> None:
        """Do nothing."""


def work_of(options: RunOptions) -> Work:
    """Return the work of a run."""
    if options.speech is not None:
        from voxbatch.runner.speaking import Speak

        return Speak(options)
    if options.questions is not None:
        from voxbatch.runner.asking import Ask

        return Ask(options)
    if options.task == ALIGN:
        from voxbatch.runner.aligning import Align

        return Align(options)
    return Work(options)
