"""A simulated engine for tests: deterministic text, with delays, failures and crashes on request.

With this engine, the pipeline can be tested in milliseconds and its overhead can be measured. The engine ignores the
audio. It produces one numbered word every WORD_SECONDS, from the position of the chunk in its recording, so that
stitching can be checked exactly. A question is answered with its prompt and the lengths of its recordings.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from voxbatch.engines import EngineMessage, EngineSpec, Feed, Registration
from voxbatch.engines.results import Result
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, Answer, Chunk, ChunkFailure, Hypothesis, Word
from voxbatch.settings import parse
from voxbatch.storage import DEFAULT_STORES, Stores

REGISTRATION = Registration(class_path="scripted_engine:ScriptedTestEngine", answers=True)
"""The registration that the entry point of this package names; see voxbatch.engines.entry_points."""
WORD_SECONDS = 0.5
SHORTEST_LIMIT_S = 14.0
"""Minimum of `max_chunk_s`, because cutting in pauses needs it (see chunk.cut)."""
KILL_ALL = -2
"""See `crash_signal`."""
HOLD_POLL_S = 0.01
"""Seconds between two looks for the folder `hold`."""
MISHEARD = 0.3
"""Confidence up to which a word is misheard, with the option `confidence`."""
MISPLACED: Mapping[str, Callable[[Hypothesis | ChunkFailure], Any]] = {
    "item": lambda result: replace(result, item=10**6),
    "chunk": lambda result: replace(result, chunk=result.chunk + 7),
    "negative": lambda result: replace(result, chunk=-1),
    "text": lambda result: replace(result, item="zero", chunk=[]),  # type: ignore[arg-type]
    "none": lambda result: None,
}
"""Changes of a result that then belongs to no chunk."""
WORKER = "VOXBATCH_SCRIPTED_WORKER"
"""Environment variable that gives a process its number among the `workers`."""


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """Engine options of the simulated engine."""

    max_chunk_s: float = 30.0
    concurrency: int = 8
    load_s: float = 0.0
    """Wall seconds that loading takes. A notice follows, unless this is 0."""
    delay_s: float = 0.0
    """Wall seconds that a chunk of any length takes. Up to `concurrency` chunks take this time in parallel."""
    shuffle: bool = False
    """True to return the result of the newest chunk in flight first."""
    fail_items: str = ""
    """Indexes of the items whose chunks all fail, separated by commas."""
    die_after: int = -1
    """Number of results after which EngineError is raised. -1 means never."""
    kill_after: int = -1
    """Number of results after which the process is killed (SIGKILL). -1 means never."""
    own_process: bool = False
    """True to run the engine in a child process, as engines with native code do."""
    crash_items: str = ""
    """Indexes of the items at which the process of the engine crashes, separated by commas."""
    crash_signal: int = signal.SIGSEGV
    """Number of the signal with which it crashes. 0 means that it hangs, -1 that it ends with exit code 0, and -2 that
    SIGKILL ends it, and with it the run that it is a worker of, as the kernel ends a container without memory."""
    lose_items: str = ""
    """Indexes of the items whose chunks get no result, separated by commas."""
    raise_items: str = ""
    """Indexes of the items at which the engine raises an error, separated by commas."""
    raise_error: str = "MemoryError"
    """Name of the error, one of Python's."""
    load_error: str = ""
    """Name of the error that ends the loading of the model."""
    misplace_items: str = ""
    """Indexes of the items whose results are misplaced, separated by commas."""
    misplace: str = "item"
    """Place of these results: a key of MISPLACED."""
    end_after: int = -1
    """Number of results of a stream after which the stream ends, whatever it holds. -1 means never."""
    notices: bool = False
    """True to follow each result by a notice."""
    hold: str = ""
    """Path of a folder. If it exists after `hold_after` results, the engine creates a file in it and gives no result
    until the folder is gone, or until no more results are needed."""
    hold_after: int = 1
    """Number of results before the engine looks for the folder `hold`."""
    only_worker: int = -1
    """Number of the worker, from 0, that dies or is killed. -1 means every worker that gives enough results."""
    workers: int = 1
    """Number of processes that work side by side."""
    says: str = ""
    """Path of a JSON file with the texts of each model: {"count": ["text of item 0", …]}. Their words take the place of
    the numbered ones, and are never misheard. An item may have a list of texts, one for each channel. A "_" is a
    pause of the length of a word."""
    words: bool = True
    confidence: bool = False
    """True to mishear words, with a confidence. Which words these are depends on the name of the model."""
    task: str = "transcribe"
    """"ask" to answer questions."""
    max_answer_tokens: int = 1024
    """No effect."""
    max_question_s: float = 120.0
    """Length of all recordings of a question together, in seconds."""


class ScriptedTestEngine:
    """The simulated engine; see Engine for the methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: Stores = DEFAULT_STORES):
        script = self._script = parse(ScriptedOptions, "scripted", options)
        self._failing_items = _indexes("fail_items", script.fail_items)
        self._crashing_items = _indexes("crash_items", script.crash_items)
        self._lost_items = _indexes("lose_items", script.lose_items)
        self._raising_items = _indexes("raise_items", script.raise_items)
        self._misplaced_items = _indexes("misplace_items", script.misplace_items)
        if script.max_chunk_s < SHORTEST_LIMIT_S or min(script.concurrency, script.workers) < 1:
            raise ConfigError(
                f"engine options max_chunk_s={script.max_chunk_s:g}, concurrency={script.concurrency}, "
                f"workers={script.workers}: scripted takes a max_chunk_s from {SHORTEST_LIMIT_S:g}, a concurrency from "
                "1 and workers from 1"
            )
        self._texts = _texts(script.says, model or "count")
        self._loaded = False
        asks = script.task == "ask"
        self._dies = str(script.only_worker) in ("-1", os.environ.get(WORKER, "0"))
        self.spec = EngineSpec(
            name="scripted",
            model=model or "count",
            max_chunk_samples=round(script.max_chunk_s * SAMPLING_RATE),
            concurrency=script.concurrency,
            word_times=script.words and not asks,
            confidence=script.confidence and not asks,
            own_process=script.own_process,
            max_recordings=8 if asks else 0,
            max_question_samples=round(script.max_question_s * SAMPLING_RATE) if asks else 0,
            license="Apache-2.0",
            origin="voxbatch",
            decoding={"max_chunk_s": script.max_chunk_s, "words": script.words}
            | ({"confidence": True} if script.confidence else {}),
            workers=tuple({WORKER: str(worker)} for worker in range(script.workers)),
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Yield the counted words of each chunk; see `Engine.stream`."""
        yield from self._load()
        in_flight: deque[tuple[float, Chunk]] = deque()
        done = 0
        while True:
            while len(in_flight) < self._script.concurrency and (chunk := self._next(feed, not in_flight)):
                in_flight.append((time.monotonic() + self._script.delay_s, chunk))
            if not in_flight:
                return
            if (left := in_flight[0][0] - time.monotonic()) > 0:
                time.sleep(left)
            if done == self._script.hold_after:
                _wait_while_held(self._script.hold, feed)
            _, chunk = in_flight.pop() if self._script.shuffle else in_flight.popleft()
            result = self._result(chunk)
            yield MISPLACED[self._script.misplace](result) if chunk.item in self._misplaced_items else result
            done += 1
            if done == self._script.end_after:
                return
            if self._script.notices:
                yield EngineMessage(f"scripted has done {done}")
            if self._dies:
                self._die(done)

    def _load(self) -> Iterator[EngineMessage]:
        if self._script.load_error:
            raise _error(self._script.load_error)
        if self._script.load_s and not self._loaded:
            time.sleep(self._script.load_s)
            yield EngineMessage("scripted is loaded")
        self._loaded = True

    def _die(self, done: int) -> None:
        """Die, or raise an error, if that is due after so many results."""
        if done == self._script.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == self._script.die_after:
            raise EngineError(f"scripted to die after {done} results")

    def _next(self, feed: Feed, wait: bool) -> Chunk | None:
        """Return the next chunk that gets a result; see Feed.get."""
        while (chunk := feed.get(wait)) is not None and chunk.item in self._lost_items:
            pass
        return chunk

    def _result(self, chunk: Chunk) -> Hypothesis | ChunkFailure:
        if chunk.item in self._crashing_items:
            _crash(self._script.crash_signal)
        if chunk.item in self._raising_items:
            raise _error(self._script.raise_error)
        if chunk.item in self._failing_items:
            return ChunkFailure(chunk.item, chunk.index, "scripted to fail", retryable=True)
        if chunk.question is not None:
            answer = _answer(chunk)
            return Hypothesis(chunk.item, chunk.index, answer.text, answer=answer)
        words = tuple(count_words(chunk))
        if self._texts:
            text = self._texts[chunk.item]
            words = tuple(said_words(words, (text if isinstance(text, str) else text[chunk.span.channel or 0]).split()))
        if self._script.confidence:
            words = tuple(self._heard(word, chunk.item) for word in words)
        text = "".join(word.text for word in words)
        return Hypothesis(chunk.item, chunk.index, text, words if self._script.words else ())

    def _heard(self, word: Word, item: int) -> Word:
        """Return a word with a confidence, misheard if that is low."""
        confidence = crc32(f"{self.spec.model} {item}{word.text}".encode()) % 1000 / 1000
        is_misheard = confidence <= MISHEARD and not self._texts
        return replace(word, text=f" {self.spec.model}" if is_misheard else word.text, confidence=confidence)

    def gpu_bytes(self) -> None:
        """Return None, because there is no GPU."""

    def close(self) -> None:
        """Load again at the next stream; see `Engine.close`."""
        self._loaded = False


def _indexes(option: str, text: str) -> set[int]:
    try:
        return {int(index) for index in text.split(",") if index}
    except ValueError as e:
        raise ConfigError(f"engine option {option}={text!r}: scripted takes item indexes, such as 0,3") from e


def _texts(path: str, model: str) -> list[str | list[str]]:
    """Return the texts that a model says, one for each item. Without a file, there are none."""
    if not path:
        return []
    with open(path) as file:
        texts: dict[str, list[str | list[str]]] = json.load(file)
    return texts[model]


def _wait_while_held(folder: str, feed: Feed) -> None:
    """Create a file in a folder, unless it does not exist, and wait until the folder is gone or the feed discarded."""
    if not os.path.isdir(folder):
        return
    with contextlib.suppress(FileNotFoundError):  # it is gone now
        open(os.path.join(folder, str(os.getpid())), "w").close()
    while os.path.isdir(folder) and not feed.discarded:
        time.sleep(HOLD_POLL_S)


def _error(name: str) -> BaseException:
    """Return an error of Python by its name; SystemExit with exit code 0."""
    kind: type[BaseException] = getattr(builtins, name)
    return kind(0) if kind is SystemExit else kind()


def _crash(number: int) -> None:
    """End this process: see `crash_signal`."""
    if number == KILL_ALL:
        pids = [os.getpid()]
        if WORKER in os.environ:
            run = os.getppid()
            with open(f"/proc/{run}/task/{run}/children") as children:
                pids = [run, *sorted(map(int, children.read().split()), key=os.getpid().__eq__)]  # this one is last
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    if number < 0:
        os._exit(0)
    if number:
        os.kill(os.getpid(), number)
    while True:
        time.sleep(1)


def _answer(chunk: Chunk) -> Answer:
    """Return the prompt and the seconds of each recording as the answer to a question. A prompt in brackets is its own
    answer."""
    assert chunk.question is not None
    seconds = ", ".join(f"{length / SAMPLING_RATE:g} s" for length in chunk.recordings)
    prompt = chunk.question.prompt
    text = prompt if prompt.startswith("[") else f"{prompt} [{seconds}]"
    return Answer(text, "stop", len(chunk.samples) // 1280, len(text.split()))


def count_words(chunk: Chunk) -> Iterator[Word]:
    """Yield the words of a chunk. Word n begins n × WORD_SECONDS after the beginning of the recording, and belongs to
    the chunk if the chunk contains all of it."""
    step = round(WORD_SECONDS * SAMPLING_RATE)
    first = -(-chunk.span.start // step)
    for n in range(first, (chunk.span.end - step) // step + 1):
        start = (n * step - chunk.span.start) / SAMPLING_RATE
        yield Word(f" w{n}", start, start + WORD_SECONDS)


def said_words(counted: Iterable[Word], texts: Sequence[str]) -> Iterator[Word]:
    """Yield counted words with the words of a text in their place, as far as there are some."""
    for word in counted:
        number = int(word.text.removeprefix(" w"))
        if number < len(texts) and texts[number] != "_":
            yield replace(word, text=f" {texts[number]}")
