"""Admission: reserve all K/V blocks of a request before it runs, so that no request is preempted for lack of blocks.

vLLM admits a request as soon as there are blocks for its prompt. If the blocks run out later, it preempts a request,
which must be computed anew. Here a request is admitted if there are blocks for its prompt and for the longest text that
it may produce. A chunk of 20 s takes fewer blocks than a chunk of 35 s, so more short chunks run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

IN_FLIGHT = 2
"""Number of tokens by which asynchronous scheduling may be ahead."""


class Reservations:
    """The K/V blocks of a scheduler, and the number that is reserved for each running request."""

    def __init__(self, scheduler: Any, held: int = 0):
        """Count the blocks of a scheduler.

        Args:
            held: number of blocks that no request gets.
        """
        self._specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
        self._context: int = scheduler.max_model_len
        self.total = int(scheduler.kv_cache_config.num_blocks) - 1 - held  # vLLM reserves one block
        self._of = dict[str, int]()
        self.longest = self._blocks(self._context)
        """Number of blocks of a request of maximum length."""

    @property
    def fitting(self) -> int:
        """Return the number of requests of maximum length that fit at the same time, at least 1."""
        return max(1, self.total // max(1, self.longest))

    def keep_only(self, running: Sequence[Any]) -> None:
        """Free the blocks of all requests but the running ones."""
        if len(running) != len(self._of):
            names = [request.request_id for request in running]
            self._of = {name: self._of[name] for name in names if name in self._of}

    def room(self, waiting: Iterable[Any], most: int) -> int:
        """Return how many requests may be admitted now, at most `most`.

        The waiting requests count in their order. After the last of them, requests of maximum length count.
        """
        free, count = self._free(), 0
        for request in waiting:
            free -= self._needed(request)
            if count >= most or (free < 0 and (self._of or count)):
                return count
            count += 1
        return max(count, min(most, count + free // max(1, self.longest)))

    def checked(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap KVCacheManager.allocate_slots so that it refuses a new request whose blocks are not all free.

        A request is never refused if no other request has blocks.
        """

        def allocate_slots(request: Any, *args: Any, **others: Any) -> Any:
            name = request.request_id
            if name in self._of:
                return allocate(request, *args, **others)
            needed = self._needed(request)
            if self._of and needed > self._free():
                return None
            found = allocate(request, *args, **others)
            if found is not None:
                self._of[name] = needed
            return found

        return allocate_slots

    def _free(self) -> int:
        return self.total - sum(self._of.values())

    def _needed(self, request: Any) -> int:
        return self._blocks(min(request.num_prompt_tokens + request.max_tokens, self._context))

    def _blocks(self, positions: int) -> int:
        return sum(_blocks(spec, positions) for spec in self._specs)


def _blocks(spec: Any, positions: int) -> int:
    window = getattr(spec, "sliding_window", None) or positions
    slides = window + IN_FLIGHT < positions
    held = window + IN_FLIGHT if slides else positions
    return int(-(-held // spec.block_size)) + slides  # one more: a sliding window seldom begins at a block boundary
