"""Make the chunks of questions from what decoders send: all recordings of an item in one chunk, or the parts of a long
recording in a chunk each.

Without --map-reduce, a decoder sends each recording whole. With it, a recording that is longer than the engine takes is
cut. The parts are asked about one by one, and `last_chunk` is the question about the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from voxbatch.decoding import Decoded, Message, Undecodable
from voxbatch.questions import QuestionOptions, about_part, prompt_about_answers
from voxbatch.records import Chunk, Item, Question, Samples, Span

_EMPTY = np.zeros(0, np.float32)


@dataclass(slots=True)
class _Recordings:
    """The recordings of an item that have arrived."""

    item: Item
    samples: dict[int, Samples] = field(default_factory=dict)
    """Samples of each recording that is decoded, by its number. A recording without audio is missing."""
    ended: dict[int, Decoded | Undecodable] = field(default_factory=dict)
    """Final message of each recording, by its number."""
    first_part: Chunk | None = None
    """The first part of a recording, until it is known whether there is another one."""


class QuestionChunks:
    """The items whose recordings are being decoded. One thread alone uses it."""

    def __init__(self, options: QuestionOptions) -> None:
        self._options = options
        self._items: dict[int, _Recordings] = {}

    def begin(self, item: Item) -> None:
        """Expect the messages of an item."""
        self._items[item.index] = _Recordings(item)

    def after(self, message: Message) -> Iterator[Message]:
        """Yield the chunks and the final message of the item that a decoder's message completes, if any."""
        recordings = self._items[message.item]
        if self._options.map_reduce:
            yield from self._parts(recordings, message)
        elif isinstance(message, Chunk):
            recordings.samples[message.index] = message.samples
        else:
            recordings.ended[message.recording] = message
            if len(recordings.ended) == 1 + len(recordings.item.further):
                del self._items[message.item]
                yield from self._whole(recordings)

    def _whole(self, recordings: _Recordings) -> Iterator[Message]:
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
            warnings = tuple(f"recording {i}: {text}" for i, each in enumerate(decoded, 1) for text in each.warnings)
        yield replace(decoded[-1], spans=(span,), warnings=warnings)

    def _parts(self, recordings: _Recordings, message: Message) -> Iterator[Message]:
        """Yield the parts of a recording. The first part waits for the second one: alone, it is asked the question
        itself."""
        first, recordings.first_part = recordings.first_part, None
        question = self._question(recordings.item)
        one_part = replace(question, options=about_part(question.options))
        if isinstance(message, Chunk):
            lengths = (len(message.samples),)
            if message.index == 0:
                recordings.first_part = replace(message, question=question, recordings=lengths)
                return
            if first is not None:
                yield replace(first, question=one_part)
            yield replace(message, question=one_part, recordings=lengths)
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


def last_chunk(item: Item, options: QuestionOptions, answers: Sequence[str]) -> Chunk:
    """Return the question about the answers to the parts of an item's recording. It has no audio."""
    assert item.prompt is not None
    question = Question(prompt_about_answers(item.prompt, answers), options.answer)
    return Chunk(item.index, len(answers), _EMPTY, Span(0, 0, 0, 0), question=question)
