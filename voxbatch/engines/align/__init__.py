"""Engines that find the times of a given text: one for English by pocketsphinx, one for CTC models by onnxruntime.

A chunk has the text of its whole recording. The chunks of a recording come in order, and a running anchor, a place in
the text and in the audio, goes with them. Each chunk is aligned, together with the audio that an earlier chunk has
left, with the next part of the text. The words up to the last pause are then fixed, and the anchor moves there. So the
memory is bounded for any length, and a word is never decided at the edge of a chunk.

Text that is not in the audio has no times and is told by a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voxbatch.engines.align.trellis import States, best_path
from voxbatch.engines.feed import Feed
from voxbatch.engines.results import Result
from voxbatch.engines.suspect_text import PieceText, suspicions
from voxbatch.errors import EngineError
from voxbatch.process.limits import find_limit
from voxbatch.records import LOST_SPEECH, SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Samples, Word
from voxbatch.voice import has_detector, speech_probabilities

WINDOW_S = 30
"""Length of the longest chunk."""
MIN_PAUSE_S = 0.15
"""Shortest pause at which the anchor may stand. The closure of a plosive takes up to 0.12 s."""
EDGE_S = 1.5
"""Distance of the anchor from the end of audio without a pause: it stands between words."""
WORDS_PER_SECOND = 6.0
"""Words of the text for each second of audio: twice a usual pace, so that as many may be left out …"""
MORE_WORDS = 50
"""… and this many more."""
MAX_WORDS = 1_000
"""Most words that are looked for in a window: nearly seven minutes at a usual pace."""
_TOKEN = re.compile(r"\s*\S+")


class AcousticModel(Protocol):
    """An acoustic model."""

    frame_s: float
    jump_cost: float
    """See best_path."""

    def scores(self, samples: Samples) -> NDArray[np.float32]:
        """Return the scores of each frame, shape (num_frames, num_columns), as logarithms of probabilities."""

    def units(self, word: str, lang: str) -> list[list[int]]:
        """Return the columns of each unit of a word. Empty if nothing of the word is spoken, such as a dash."""

    def states(self, words: Sequence[list[list[int]]]) -> States:
        """Return the states of words, each given by its units."""

    def close(self) -> None:
        """Unload the model."""


class Alignment:
    """The alignment of one recording, which goes on with each chunk."""

    def __init__(self, model: AcousticModel, text: str, lang: str) -> None:
        self._model, self._lang = model, lang
        self._samples = np.zeros(0, np.float32)
        """The audio after the anchor."""
        self._start = 0
        """Position of the anchor on the recording's clock, in samples."""
        self._next = 0
        """Index of the first word after the anchor."""
        self._num_fruitless = 0
        """Number of windows without a word since the last one with a word."""
        self._waiting: list[Chunk] = []
        """The chunks without a result."""
        self._words: list[Word] = []
        """Words with times on the recording's clock, which belong to the chunks that wait."""
        self._notes: list[tuple[int, str]] = []
        """Warnings with their positions, in samples."""
        self._tokens: list[str] = []
        """The words as they are written, each with the space before it and with the signs after it that are not
        spoken."""
        self._units: list[list[list[int]]] = []
        self._error = ""
        """The error that ended the alignment."""
        unspoken = ""
        for token in _TOKEN.findall(text):
            if units := model.units(token.strip(), lang):
                self._tokens.append(unspoken + token)
                self._units.append(units)
                unspoken = ""
            elif self._tokens:
                self._tokens[-1] += token
            else:
                unspoken += token

    def results(self, chunk: Chunk, is_last: bool) -> Iterator[Hypothesis | ChunkFailure]:
        """Align the next chunk of the recording. Yield the results of all chunks whose words are fixed now. An error
        fails all chunks without a result, because the place of their words is not known any more.

        Raises:
            EngineError: a limit of this machine is to blame, and not the recording.
        """
        if not self._error:
            try:
                yield from self._add(chunk, is_last)
                return
            except Exception as e:
                if limit := find_limit(e):
                    raise EngineError(limit) from e
                self._error = f"{type(e).__name__}: {e}"
        for index in sorted({chunk.index, *(waiting.index for waiting in self._waiting)}):
            yield ChunkFailure(chunk.item, index, self._error, retryable=True)
        self._waiting.clear()

    def _add(self, chunk: Chunk, is_last: bool) -> Iterator[Hypothesis]:
        if not len(self._samples):
            self._start = chunk.span.start
        self._samples = np.concatenate((self._samples, chunk.samples))
        self._waiting.append(chunk)
        self._align_window(is_last)
        while self._waiting and (is_last or self._waiting[0].span.end <= self._start):
            hypothesis = self._hypothesis(self._waiting[0], is_last and len(self._waiting) == 1)
            del self._waiting[0]
            yield hypothesis

    def _align_window(self, is_last: bool) -> None:
        """Fix the words of the audio after the anchor up to its last pause, or all of them, and move the anchor."""
        model, seconds = self._model, len(self._samples) / SAMPLING_RATE
        num_words = round(WORDS_PER_SECOND * seconds) + MORE_WORDS << min(self._num_fruitless, 10)
        stop = min(self._next + min(num_words, MAX_WORDS), len(self._tokens))
        scores = model.scores(self._samples) if stop > self._next else np.zeros((0, 0), np.float32)
        if len(scores) > 1:
            states = model.states(self._units[self._next : stop])
            all_given = is_last and stop == len(self._tokens)
            path = best_path(scores, states, model.jump_cost, may_end_early=not all_given).states
            self._fix(path, states, is_last)
        elif is_last or stop == self._next:
            self._move(len(self._samples))
        if is_last:
            self._leave_out(self._next, len(self._tokens))

    def _fix(self, path: NDArray[np.int64], states: States, is_last: bool) -> None:
        """Fix the words of a path up to its last pause, or all of them."""
        words, frame_s = states.words[path], self._model.frame_s
        pause_numbers = np.cumsum(states.words < 0)[path] - 1  # the words before a pause have lower numbers
        end = len(path) if is_last else _last_cut(words, frame_s)
        begins_word = (np.diff(words[:end], prepend=-1) != 0) & (words[:end] >= 0)
        starts = np.flatnonzero(begins_word)
        first, num_passed = self._next, 0
        for begin in starts:
            word = int(words[begin])
            if word > num_passed:
                self._leave_out(first + num_passed, first + word, int(begin))
            num_passed = word + 1
            last = begin + int(np.argmax(np.append(words[begin:] != word, True)))
            start = self._start / SAMPLING_RATE + int(begin) * frame_s
            self._words.append(Word(self._tokens[first + word], start, start + int(last - begin) * frame_s))
        self._num_fruitless = 0 if len(starts) else self._num_fruitless + 1
        if 0 < end < len(path) and words[end] < 0 and len(starts) and int(pause_numbers[end]) > num_passed:
            self._leave_out(first + num_passed, first + int(pause_numbers[end]), end)
            num_passed = int(pause_numbers[end])
        self._next = first + num_passed
        self._move(len(self._samples) if is_last else round(end * frame_s * SAMPLING_RATE))

    def _move(self, num_samples: int) -> None:
        """Move the anchor forward in the audio."""
        self._samples = self._samples[num_samples:].copy()
        self._start += num_samples

    def _leave_out(self, begin: int, end: int, frame: int = 0) -> None:
        """Add a warning about words that are not in the audio."""
        if begin < end:
            text = "".join(self._tokens[begin:end]).strip()
            shown = text if len(text) <= 80 else f"{text[:50].rstrip()} … {text[-25:].lstrip()}"
            at = self._start + round(frame * self._model.frame_s * SAMPLING_RATE)
            count = end - begin
            of_text = f"{count:,} word{'s' * (count > 1)} of the text, {shown!r}"
            self._notes.append((at, f"not in the audio: {of_text}, near {at / SAMPLING_RATE:.2f} s"))

    def _hypothesis(self, chunk: Chunk, is_last: bool) -> Hypothesis:
        """Return the result of a chunk: the words that begin in it, its warnings, and where it has speech without
        text."""
        end = float("inf") if is_last else chunk.span.end / SAMPLING_RATE
        own = [word for word in self._words if word.start < end]
        notes = tuple(text for at, text in self._notes if at < end * SAMPLING_RATE)
        self._words, self._notes = self._words[len(own) :], self._notes[len(notes) :]
        zero = chunk.span.start / SAMPLING_RATE
        words = tuple(Word(word.text, word.start - zero, word.end - zero) for word in own)
        text = "".join(word.text for word in words)
        voice = speech_probabilities(chunk.samples) if has_detector() else None
        doubts = suspicions(chunk.samples, PieceText(text, words), voice)
        lost = tuple(doubt.flag for doubt in doubts if doubt.flag.kind == LOST_SPEECH)
        return Hypothesis(chunk.item, chunk.index, text, words, notes, self._lang, lost)


def _last_cut(words: NDArray[np.int64], frame_s: float) -> int:
    """Return the frame at which the anchor may stand: the middle of the last pause, else a place between two words,
    else a place near the end.

    Args:
        words: index of the word of each frame; -1 in pauses.
        frame_s: seconds from one frame to the next.
    """
    min_pause, edge = round(MIN_PAUSE_S / frame_s), round(EDGE_S / frame_s)
    bounds = np.flatnonzero(np.diff(words)) + 1
    runs = list(zip([0, *bounds], [*bounds, len(words)], strict=True))
    for begin, end in reversed(runs):
        if words[begin] < 0 and end - begin >= min_pause and begin > 0:
            return int(begin + end) // 2
    between = max((begin for begin, _ in runs if begin <= len(words) - edge), default=0)
    return int(between) or max(len(words) - edge, 0)


def aligned(model: AcousticModel, feed: Feed, default_lang: str) -> Iterator[Result]:
    """Align the chunks of a feed; see `Engine.stream`."""
    alignments = dict[int, Alignment]()
    while (chunk := feed.get()) is not None:
        text_given = chunk.given
        assert text_given is not None
        if chunk.item not in alignments:
            alignments[chunk.item] = Alignment(model, text_given.text, chunk.lang or default_lang)
        yield from alignments[chunk.item].results(chunk, text_given.is_last)
        if text_given.is_last:
            del alignments[chunk.item]
