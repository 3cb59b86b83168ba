"""When everything fails, it is the engine that is broken, and not the recordings, which would be recorded as failed for
good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from voxbatch.engines.notice import Notice
from voxbatch.errors import EngineError
from voxbatch.records import ChunkFailure, Hypothesis

GIVE_UP_AFTER = 8
"""Failed chunks without one success."""

Result = Hypothesis | ChunkFailure | Notice


def unless_all_fail(results: Iterable[Result]) -> Iterator[Result]:
    """Hold failures that might be the engine's (retryable ones) back until a chunk succeeds.

    Raises:
        EngineError: the first GIVE_UP_AFTER chunks all failed.
    """
    failures: list[ChunkFailure] | None = []
    for result in results:
        if isinstance(result, ChunkFailure) and result.retryable and failures is not None:
            failures.append(result)
            if len(failures) == GIVE_UP_AFTER:
                raise EngineError(f"the first {GIVE_UP_AFTER} chunks all failed, the last with: {result.message}")
            continue
        if isinstance(result, Hypothesis) and failures is not None:
            yield from failures
            failures = None
        yield result
    yield from failures or ()
