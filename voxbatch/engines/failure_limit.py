"""Stop a run in which every chunk fails, because then the engine is broken and not the recordings.

Otherwise all recordings would be recorded as failed for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from voxbatch.engines.message import ChunkProgress, EngineMessage
from voxbatch.errors import EngineError
from voxbatch.records import ChunkFailure, Hypothesis

GIVE_UP_AFTER = 8
"""Number of failed chunks, of several recordings and without any success, after which the engine counts as broken. The
chunks of one recording alone prove nothing: a resumed run may begin with the one recording that the engine cannot
transcribe, and must come to the others."""

Result = Hypothesis | ChunkFailure | ChunkProgress | EngineMessage


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
        if isinstance(result, Hypothesis) and failures is not None:
            yield from failures
            failures = None
        yield result
    yield from failures or ()
