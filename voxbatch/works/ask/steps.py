"""Run questions in place of transcriptions: the steps that differ.

`check_lengths` checks the recordings before a model is loaded. `RecordingJoiner` makes the chunks of the decode thread:
all recordings of an item in one chunk, or with --map-reduce the parts of a long recording in a chunk each. `Answers`
makes the outcomes of the main thread, and asks the last question about a long recording: the one about the answers to
its parts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from voxbatch.config import Config
from voxbatch.decoding import SPLIT_ADVICE, Decoded, Message, Undecodable
from voxbatch.decoding.header_reader import HeaderReader
from voxbatch.engines import ENGINES, EngineSpec, Feed, registered
from voxbatch.errors import AudioError, ConfigError, ManifestError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.manifest.json_line import AUDIOS_KEY
from voxbatch.manifest.source import BadLines
from voxbatch.output.lines import failure_line, line_bytes, transcript_line
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import (
    SAMPLING_RATE,
    AnswerOptions,
    Chunk,
    ChunkFailure,
    Failure,
    Hypothesis,
    Item,
    Outcome,
    Question,
    Samples,
    Span,
    Transcript,
)
from voxbatch.runner.shared import EventQueue, InProgress, PendingItem
from voxbatch.runner.steps import Decode, Outcomes, Started, Steps
from voxbatch.storage import Stores, is_remote
from voxbatch.works.ask.lines import answer_keys, question_keys
from voxbatch.works.ask.options import QuestionOptions

MAX_PROBED = 1000
"""Number of local recordings without a duration in the manifest whose headers are read: a second or two. The item of a
further one that is too long fails when it is decoded."""
_EMPTY = np.zeros(0, np.float32)


def options_with_questions(engine: str, options: Mapping[str, str], answer: AnswerOptions) -> Mapping[str, str]:
    """Return the options of an engine that answers questions.

    Args:
        answer: the way in which it answers; an engine may reserve room for the longest answer.

    Raises:
        ConfigError: the engine cannot answer questions.
    """
    registration = registered(engine, ENGINES)
    if registration is None or not registration.answers:
        raise ConfigError(
            f"the engine {engine} transcribes and cannot answer questions; take --engine vllm, on a machine with a GPU"
        )
    return {**options, "task": "ask", "max_answer_tokens": str(answer.max_tokens)}


def check_lengths(
    source: Source, policy: PathPolicy, limit: int | None, spec: EngineSpec, stores: Stores, headers: HeaderReader
) -> None:
    """Check that the engine takes the recordings of each question.

    The lengths are those of the manifest, or else of the headers of local files. An unreadable header is no error here:
    the item fails when it is decoded.

    Args:
        limit: number of lines to read; None reads all.

    Raises:
        ManifestError: recordings are too long, or too many for the engine.
    """
    bad, probed = BadLines(), itertools.count()
    longest_s, total_s = spec.max_chunk_samples / spec.sampling_rate, spec.max_question_samples / spec.sampling_rate
    for item in items(source, policy, limit):
        places = (item.audio, *item.further)
        if len(places) > spec.max_recordings:
            number = f"`{AUDIOS_KEY}` names {len(places)} recordings"
            bad.add(item.line, f"{number}, and model {spec.model} takes at most {spec.max_recordings} in one question")
            continue
        if item.duration is not None:
            lengths = [item.duration]
        else:
            local = [place for place in places if not is_remote(place) and next(probed) < MAX_PROBED]
            lengths = [_header_s(place, item, stores, headers) for place in local]
        if max(lengths, default=0) > longest_s:
            seen = f"a recording has {max(lengths) / 60:.1f} minutes, and one question takes {longest_s / 60:.3g}"
            bad.add(item.line, f"{seen}; ask about its parts with --map-reduce, or give `offset` and `duration`")
        elif sum(lengths) > total_s:
            seen = f"the recordings have {sum(lengths) / 60:.1f} minutes, and the context of {spec.model}"
            bad.add(item.line, f"{seen} has room for {total_s / 60:.3g}; ask about fewer of them in one line")
    if bad.total:
        raise ManifestError(source.name, [source.placed(line) for line in bad.first], bad.total)


def _header_s(place: str, item: Item, stores: Stores, headers: HeaderReader) -> float:
    """Return the seconds of a recording after the item's offset, by its header; 0 if it does not tell."""
    try:
        with contextlib.closing(stores.recording(place)) as recording:
            return max(0.0, (headers.seconds(recording) or 0.0) - item.offset)
    except (AudioError, StorageError):
        return 0.0


@dataclass(slots=True)
class _ItemRecordings:
    """The recordings of an item that have arrived."""

    item: Item
    samples: dict[int, Samples] = field(default_factory=dict)
    """Samples of each recording that is decoded, by its number. A recording without audio is missing."""
    ended: dict[int, Decoded | Undecodable] = field(default_factory=dict)
    """Final message of each recording, by its number."""
    first_part: Chunk | None = None
    """The first part of a recording, until it is known whether there is another one."""


class RecordingJoiner:
    """Joins what the decoders send of each item to chunks with a question. The decode thread alone uses it."""

    def __init__(self, options: QuestionOptions, in_progress: InProgress) -> None:
        self._options, self._in_progress = options, in_progress
        self._items: dict[int, _ItemRecordings] = {}
        """Item.index → item whose recordings are being decoded."""

    def longest_samples(self, max_samples: int, spec: EngineSpec) -> tuple[int, str]:
        """Return the length of the longest recording that is decoded, and the advice about a longer one.

        Args:
            max_samples: length of the longest recording of a run of transcriptions.
        """
        if self._options.map_reduce or max_samples <= spec.max_chunk_samples:
            return max_samples, SPLIT_ADVICE
        return spec.max_chunk_samples, "ask about its parts with --map-reduce, or give `offset` and `duration`"

    def joined(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the chunks and the final message of each item as soon as the messages of the decoders complete them."""
        for message in messages:
            if message.item not in self._items:
                self._items[message.item] = _ItemRecordings(self._in_progress.items[message.item].item)
            recordings = self._items[message.item]
            if self._options.map_reduce:
                yield from self._parts(recordings, message)
            elif isinstance(message, Chunk):
                recordings.samples[message.index] = message.samples
            else:
                recordings.ended[message.recording] = message
                if len(recordings.ended) == 1 + len(recordings.item.further):
                    del self._items[message.item]
                    yield from self._one_chunk(recordings)

    def _one_chunk(self, recordings: _ItemRecordings) -> Iterator[Message]:
        """Yield the one chunk of an item and its final message, or the failure of its first recording that failed."""
        decoded = list[Decoded]()
        for number in sorted(recordings.ended):
            message = recordings.ended[number]
            if isinstance(message, Undecodable):
                yield message
                return
            decoded.append(message)
        audio = [recordings.samples.get(number, _EMPTY) for number in range(len(decoded))]
        samples = np.concatenate(audio)
        span = Span(0, len(samples), 0, len(samples))
        item = recordings.item.index
        lengths = tuple(map(len, audio))
        yield Chunk(item, 0, samples, span, question=self._question(recordings.item), recordings=lengths)
        warnings = decoded[0].warnings
        if len(decoded) > 1:
            warnings = tuple(
                f"recording {i}: {text}" for i, message in enumerate(decoded, 1) for text in message.warnings
            )
        yield replace(decoded[-1], spans=(span,), warnings=warnings)

    def _parts(self, recordings: _ItemRecordings, message: Message) -> Iterator[Message]:
        """Yield the parts of a recording. The first part waits for the second one: alone, it is asked the question
        itself."""
        first, recordings.first_part = recordings.first_part, None
        question = self._question(recordings.item)
        about_one_part = replace(question, options=replace(question.options, json_schema=None, tools=None))  # free text
        if isinstance(message, Chunk):
            lengths = (len(message.samples),)
            if message.index == 0:
                recordings.first_part = replace(message, question=question, recordings=lengths)
                return
            if first is not None:
                yield replace(first, question=about_one_part)
            yield replace(message, question=about_one_part, recordings=lengths)
            return
        del self._items[message.item]
        if isinstance(message, Undecodable):
            yield message
            return
        if first is not None:
            yield first
        elif not message.spans:  # a recording without audio
            yield Chunk(message.item, 0, _EMPTY, Span(0, 0, 0, 0), question=question, recordings=(0,))
            message = replace(message, spans=(Span(0, 0, 0, 0),))
        yield message

    def _question(self, item: Item) -> Question:
        assert item.prompt is not None
        return Question(item.prompt, self._options.answer)


class Answers:
    """The outcomes of items with questions. The main thread alone uses it."""

    needs_sound = True

    def __init__(self, options: QuestionOptions, feed: Feed) -> None:
        self._options, self._feed = options, feed
        self._asked: set[int] = set()
        """Item.index of each item in progress whose parts are answered, and that has got its last question."""

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | None:
        """Return the outcome of an item all of whose parts have results. None if it needs the answer to a last
        question, which is asked once."""
        answers, item = pending.of_chunks(decoded, Hypothesis), pending.item
        if isinstance(answers, Failure):
            return answers
        num_parts = len(decoded.spans)
        if num_parts == 1:
            return _answered(decoded, answers)
        if num_parts in pending.results:
            self._asked.remove(item.index)
            last = pending.results[num_parts]
            if isinstance(last, ChunkFailure):
                text = f"the answers to its parts: {last.message}"
                return Failure(FailureKind.ENGINE, text, last.retryable)
            assert isinstance(last, Hypothesis)
            return _answered(decoded, [*answers, last])
        if item.index not in self._asked:
            self._asked.add(item.index)
            assert item.prompt is not None
            parts = "\n\n".join(f"Part {n} of {len(answers)}:\n{answer.text}" for n, answer in enumerate(answers, 1))
            prompt = (
                "A long recording was divided into parts, and the same question was asked about each part. Answer the "
                f"question for the whole recording from these answers.\n\nQuestion: {item.prompt}\n\n{parts}"
            )
            question = Question(prompt, self._options.answer)
            self._feed.put(Chunk(item.index, num_parts, _EMPTY, Span(0, 0, 0, 0), question=question))
        return None

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Close the feed if no further question can come. Call this only when all recordings are decoded."""
        for pending in pending_items:
            if pending.decoded and len(pending.decoded.spans) > 1 and pending.item.index not in self._asked:
                return
        self._feed.close()

    def close(self) -> None:
        """Do nothing."""


class Ask(Steps):
    """Ask a question about each recording."""

    skips_silence = False
    proof_prompt = "Hello"
    carries_over = False
    has_known_speed = False
    """The lengths of the answers decide, and they are unknown."""

    @property
    def _questions(self) -> QuestionOptions:
        assert isinstance(self.options.own, QuestionOptions)
        return self.options.own

    @property
    def feeds_itself(self) -> bool:  # type: ignore[override]
        """True with --map-reduce: the last question is about answers."""
        return self._questions.map_reduce

    def path_policy(self) -> PathPolicy:
        """See Steps."""
        from voxbatch.works.ask.question_policy import QuestionPolicy

        options, questions = self.options, self._questions
        return QuestionPolicy(
            options.allow_outside, options.only_under, prompt=questions.prompt, is_divided=questions.map_reduce
        )

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """See Steps."""
        return options_with_questions(engine, self.options.engine_options, self._questions.answer)

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
        """See Steps."""
        if not self._questions.map_reduce:
            with HeaderReader() as headers:
                check_lengths(source, policy, config.limit, spec, config.stores, headers)

    def messages(self, started: Started, decode: Decode, spec: EngineSpec, shared: InProgress) -> Iterator[Message]:
        """See Steps."""
        joiner = RecordingJoiner(self._questions, shared)
        return joiner.joined(decode(*joiner.longest_samples(self.max_samples, spec)))

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """See Steps."""
        return Answers(self._questions, feed)

    def entry(
        self, item: Item, outcome: Any, spec: EngineSpec, lang: str | None, folder: str | None, counts: object
    ) -> PartEntry:
        """See Steps."""
        row, own = question_keys(item, folder), answer_keys(outcome.answer) if outcome.answer else {}
        flags = outcome.flags if own else None
        line = transcript_line(item, outcome, spec.name, spec.model, lang, folder, flags=flags, row=row, own=own)
        return PartEntry(item.index, "transcript", line_bytes(line))

    def failure_entry(self, item: Item, failure: Failure, lang: str | None, folder: str | None) -> PartEntry:
        """See Steps."""
        line = failure_line(item, failure, lang, folder, question_keys(item, folder))
        return PartEntry(item.index, "failure", json_bytes(line))


def _answered(decoded: Decoded, answers: list[Hypothesis]) -> Transcript:
    """Return the answer to an item's question, with the numbers of tokens of all its requests.

    Args:
        decoded: the parts of the recording, or all recordings as one.
        answers: the answer to the question; before it, the answers to the parts if there are several.
    """
    records = [hypothesis.answer for hypothesis in answers if hypothesis.answer is not None]
    assert len(records) == len(answers)
    answer = replace(
        records[-1],
        prompt_tokens=sum(record.prompt_tokens for record in records),
        completion_tokens=sum(record.completion_tokens for record in records),
        parts=tuple(part.text for part in answers[:-1]),
    )
    notes = (*decoded.warnings, *(text for hypothesis in answers for text in hypothesis.warnings))
    cut_off = [number for number, record in enumerate(records, 1) if record.finish_reason == "length"]
    if cut_off:
        numbers = f" {', '.join(map(str, cut_off))}" if len(answers) > 1 else ""
        notes = (*notes, f"answer{numbers} ended at the largest number of tokens; raise --max-tokens")
    seconds = sum(span.core_end - span.core_start for span in decoded.spans) / SAMPLING_RATE
    return Transcript(answer.text, audio_duration=seconds, warnings=notes, answer=answer)
