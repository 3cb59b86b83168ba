"""Align texts in place of recognising them: the steps of a run with the task `align` that differ.

`check_texts` refuses texts that cannot be aligned. `with_texts` gives the chunks of each item its text.
`with_given_text` makes the transcript, whose text is the given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.decoding import SPLIT_ADVICE, Message
from voxbatch.engines import EngineSpec, Feed
from voxbatch.engines.choice import EngineChoice, choose
from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.manifest.source import BadLines
from voxbatch.records import Chunk, Flag, GivenText, Item, Transcript
from voxbatch.runner.shared import EventQueue, InProgress
from voxbatch.runner.steps import Decode, Outcomes, Started, Steps, Transcripts
from voxbatch.speech.pieces import unreadable
from voxbatch.text.item_flags import item_flags
from voxbatch.works.align.policy import GivenTextPolicy

NOT_IN_AUDIO = "not in the audio: no word of the text"


def check_texts(config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
    """Check that an engine that aligns can spell each text.

    Raises:
        ConfigError: the channels are to be aligned alone, and the text is that of all of them.
        ManifestError: a text has mostly letters that the model does not know.
    """
    if config.channels is not None:
        raise ConfigError("--channels: a text is aligned with all channels; leave it out, or give rows with `channel`")
    bad = BadLines()
    for item in items(source, policy, config.limit):
        if reason := unreadable(item.given or "", spec.scripts):
            bad.add(item.line, f"`text` cannot be aligned by {spec.model}: {reason}")
    if bad.total:
        raise ManifestError(source.name, [source.placed(line) for line in bad.first], bad.total)


def with_texts(messages: Iterable[Message], in_progress: InProgress) -> Iterator[Message]:
    """Yield the messages of the decoders. Each chunk gets the text of its item, and the last one is marked.

    A chunk waits for the next message of its item, because only that tells whether it is the last one.
    """
    waiting = dict[int, Chunk]()
    for message in messages:
        if (chunk := waiting.pop(message.item, None)) is not None:
            item = in_progress.items[message.item].item
            yield replace(chunk, given=GivenText(item.given or "", is_last=not isinstance(message, Chunk)))
        if isinstance(message, Chunk):
            waiting[message.item] = message
        else:
            yield message


def with_given_text(transcript: Transcript, item: Item) -> Transcript:
    """Return the transcript with the text of its item. The words that are not in the audio have no times."""
    if transcript.words:
        return replace(transcript, text=item.given or "")
    return replace(transcript, text=item.given or "", warnings=(*transcript.warnings, NOT_IN_AUDIO))


class Align(Steps):
    """Find the times of given texts."""

    engines = engines.ALIGNERS
    skips_silence = False
    carries_over = False
    overlap = 0
    """A text that is aligned goes on from chunk to chunk."""

    def choose_engine(self) -> EngineChoice:
        """Return the engine: a model that is given is a CTC network."""
        asked = "ctc" if self.options.model and self.options.engine == "auto" else self.options.engine
        return choose(asked, self.engines)

    def path_policy(self) -> PathPolicy:
        """See Steps."""
        return GivenTextPolicy(self.options.allow_outside, self.options.only_under, self.options.task)

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
        """See Steps."""
        check_texts(config, source, policy, spec)
        super().check_recordings(config, source, policy, spec)

    def messages(self, started: Started, decode: Decode, spec: EngineSpec, shared: InProgress) -> Iterator[Message]:
        """See Steps."""
        return with_texts(decode(self.max_samples, SPLIT_ADVICE), shared)

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """See Steps."""
        return _Alignments(self.additions)

    def flags(self, transcript: Any) -> Iterable[Flag]:
        """See Steps. The text comes from the user, so its language is not doubted."""
        return (*transcript.flags, *item_flags(transcript, None))


class _Alignments(Transcripts):
    needs_sound = True

    def finished(self, transcript: Transcript, item: Item) -> Transcript:
        return with_given_text(transcript, item)
