"""Admission: reserve all K/V blocks of a request before it runs, and admit requests in bursts.

vLLM admits a request as soon as there are blocks for its prompt. If the blocks run out later, it preempts a request,
which must be computed anew. Here a request is admitted if there are blocks for its prompt and for the longest text that
it may produce. A chunk of 20 s takes fewer blocks than a chunk of 35 s, so more short chunks run at a time. If the
audio lies within the prompt, the length of the text is unknown, and blocks for EXPECTED_TEXT tokens are reserved. If
most texts are longer, vLLM preempts a request.

A step that only decodes is one CUDA graph; a step that also computes a prompt is not. So each admission makes a step
slower. For this reason, if the encoder runs once per chunk, a whole burst of requests is admitted in one step, and the
steps between two bursts only decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

IN_FLIGHT = 2
"""Number of tokens by which asynchronous scheduling may be ahead."""
EXPECTED_TEXT = 160
"""Number of text tokens that blocks are reserved for if the length of the text is unknown. 30 s of read speech have
about 100. The sum over all running requests matters, so that a few fast speakers do no harm."""
BURSTS, MAX_BURST = 14, 36
"""Number of bursts that admit as many requests as may run at a time, and maximum number of requests in a burst.

On an H200 a burst of 36 chunks takes the GPU from the decoding requests for about 0.25 s. More and smaller bursts would
slow down more steps. Before a larger burst, a GPU with power to spare would wait, because the host would need longer to
prepare the burst than the GPU needs for a step of the other requests."""


def burst_size(max_requests: int) -> int:
    """Return the number of requests in a burst if `max_requests` requests may run at a time."""
    return max(1, min(MAX_BURST, max_requests // BURSTS))


def enlarge_encoder_cache(scheduler: Any) -> None:
    """Give the encoder cache of a scheduler as many slots as all running requests can need."""
    cache = scheduler.encoder_cache_manager
    slots = max(cache.cache_size, scheduler.max_num_running_reqs * scheduler.max_model_len)
    cache.cache_size = cache.num_free_slots = cache.num_freeable_slots = slots


class Reservations:
    """The K/V blocks of a scheduler, and the number that is reserved for each running request."""

    def __init__(self, scheduler: Any, max_text: int = EXPECTED_TEXT):
        """Count the blocks of a scheduler.

        Args:
            max_text: maximum number of text tokens to reserve blocks for, if the length of the text is unknown.
        """
        self._max_text = max_text
        self._specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
        self._max_model_len: int = scheduler.max_model_len
        self.total = int(scheduler.kv_cache_config.num_blocks) - 1  # vLLM reserves one block
        self.blocks = dict[str, int]()
        """Number of reserved blocks of each request, by its id."""
        self.max_per_request = self._num_blocks(self._max_model_len)
        """Number of blocks of a request of maximum length."""

    @property
    def fitting(self) -> int:
        """Return the number of requests of maximum length that fit at the same time, at least 1."""
        return max(1, self.total // max(1, self.max_per_request))

    def keep_only(self, running: Sequence[Any]) -> None:
        """Free the blocks of all requests but the running ones."""
        if len(running) != len(self.blocks):
            names = [request.request_id for request in running]
            self.blocks = {name: self.blocks[name] for name in names if name in self.blocks}

    def admissible(self, waiting: Iterable[Any], limit: int) -> int:
        """Return how many requests may be admitted now, at most `limit`.

        The waiting requests count in their order. After the last of them, requests of maximum length count.
        """
        free, count = self._num_free(), 0
        for request in waiting:
            free -= self._needed(request)
            if count >= limit or (free < 0 and (self.blocks or count)):
                return count
            count += 1
        return max(count, min(limit, count + free // max(1, self.max_per_request)))

    def fits(self, request: Any) -> bool:
        """Return whether all blocks of a new request are free, or no other request has blocks."""
        return not self.blocks or self._needed(request) <= self._num_free()

    def add(self, request: Any) -> None:
        """Reserve all blocks of a request."""
        self.blocks[request.request_id] = self._needed(request)

    def _num_free(self) -> int:
        return self.total - sum(self.blocks.values())

    def _needed(self, request: Any) -> int:
        prompt, text = request.num_prompt_tokens, request.max_tokens
        places = [feature.mm_position for feature in request.mm_features]
        if places and all(place.offset + place.length < prompt for place in places):
            text = min(text, self._max_text)
        return self._num_blocks(min(prompt + text, self._max_model_len))

    def _num_blocks(self, positions: int) -> int:
        """Return the number of blocks of a request with this number of positions, in all groups of layers."""
        count = 0
        for spec in self._specs:
            window = getattr(spec, "sliding_window", None) or positions
            slides = window + IN_FLIGHT < positions
            held = window + IN_FLIGHT if slides else positions
            count += int(-(-held // spec.block_size)) + slides  # a window seldom begins at a block boundary: one more
        return count
