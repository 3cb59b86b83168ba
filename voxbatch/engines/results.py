"""The results and messages that an engine yields, from one thread or from several; the check of their values, and the
check that stops a run in which every chunk fails.

If every chunk fails, the engine is broken and not the recordings. Without the check, all recordings would be recorded
as failed for good.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from voxbatch.errors import EngineError
from voxbatch.process.limits import find_limit
from voxbatch.records import Chunk, ChunkFailure, Hypothesis, Speech, Word

GIVE_UP_AFTER = 8
"""Number of failed chunks, of several recordings and without any success, after which the engine counts as broken. The
chunks of one recording alone prove nothing: a resumed run may begin with the one recording that the engine cannot
transcribe, and must come to the others."""

SILENCE = 1e-3
"""Highest sample of speech that nobody hears: -60 dB of full scale."""


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of an engine to the user."""

    text: str
    is_warning: bool = False
    is_progress: bool = False
    """True for the state of a download, which the next message replaces: it is shown in the progress, not as a line of
    the log."""


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """The progress within a chunk whose result is not there yet, from an engine that works on long chunks."""

    item: int
    chunk: int
    num_samples: int
    """Number of samples that were transcribed since the last message about this chunk."""
    words: tuple[Word, ...] = ()
    """All words of the chunk so far, which its Hypothesis begins with. Empty if the engine does not tell them."""


Result = Hypothesis | Speech | ChunkFailure | ChunkProgress | EngineMessage


def from_threads(count: int, name: str, work: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    """Yield the results of several threads that do the same work, each as soon as it is there.

    Args:
        work: called once in each thread.

    Raises:
        EngineError: the work of a thread raised it.
    """
    results: queue.SimpleQueue[Result | EngineError | None] = queue.SimpleQueue()

    def put_all() -> None:
        try:
            for result in work():
                results.put(result)
        except EngineError as e:
            results.put(e)
        finally:
            results.put(None)

    for _ in range(count):
        threading.Thread(target=put_all, daemon=True, name=name).start()
    for _ in range(count):  # each thread puts None when it ends
        while (result := results.get()) is not None:
            if isinstance(result, EngineError):
                raise result
            yield result


def failure_of(engine: str, chunk: Chunk, error: Exception) -> ChunkFailure:
    """Return the failure of a chunk by an error.

    Raises:
        EngineError: a limit of this machine is to blame, and not the chunk.
    """
    if (limit := find_limit(error)) is not None:
        raise EngineError(f"{engine}: {limit}") from error
    return ChunkFailure(chunk.item, chunk.index, f"{engine}: {type(error).__name__}: {error}", retryable=True)


def stop_if_all_fail(results: Iterable[Result]) -> Iterator[Result]:
    """Yield the results, but hold back retryable failures until the first chunk succeeds.

    The engine may be the cause of a retryable failure. All other results pass at once. If the results end without a
    success, the failures held back are yielded at the end.

    Raises:
        EngineError: GIVE_UP_AFTER chunks, of at least two recordings, failed with a retryable failure before any chunk
            succeeded.
    """
    failures: list[ChunkFailure] | None = []
    for result in results:
        if isinstance(result, ChunkFailure) and result.retryable and failures is not None:
            failures.append(result)
            if len(failures) >= GIVE_UP_AFTER and result.item != failures[0].item:
                raise EngineError(f"the first {len(failures)} chunks all failed, the last with: {result.message}")
            continue
        if isinstance(result, Hypothesis | Speech) and failures is not None:
            yield from failures
            failures = None
        yield result
    yield from failures or ()


def find_wrong_value(result: Hypothesis | Speech | ChunkFailure | ChunkProgress) -> str | None:
    """Return why a result cannot go into the outputs, as text for people; None if all its values are right.

    A result is right if msgspec gives it back unchanged. So it has no number that is not finite, no half of a surrogate
    pair, and no value of another type than its field. An engine is code of others, which cannot be trusted with that.

        Hypothesis(0, 0, "hi", (Word(" hi", "0", 1.0),))  →  "Expected `float`, got `str` - at `$.words[0].start`"
    """
    if isinstance(result, Speech):
        import numpy as np

        if not np.isfinite(result.samples).all():
            return "a sample is not finite"
        return None if np.abs(result.samples).max(initial=0.0) >= SILENCE else "the speech has no sound"
    try:
        copy = _DECODERS[type(result)].decode(_ENCODER.encode(result))
    except (TypeError, ValueError, RecursionError) as e:
        return str(e)
    return None if copy == result else "a value has another type than its field"


def _as_float(value: Any) -> float:
    """Return the float of NumPy's float64, which is a float for Python and an unknown type for msgspec."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no value of an output")


assert issubclass(Word, msgspec.Struct), (
    "msgspec finds the annotation of a Hypothesis in its module, where this import has put Word"
)
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_as_float)
_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in (Hypothesis, ChunkFailure, ChunkProgress)}
