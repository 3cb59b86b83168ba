"""The silence that every chunk begins with, in the decoder: computed for the first chunk, shared by all others.

A position of the prompt is a token of text and a row of audio. The first ones, 31 of 39 or of 63, are the same in every
chunk (see vllm_plugin.silence for the audio), and so are their keys and values, for the decoder looks back only. The
first chunk that begins so goes the whole way, and the K/V blocks of its beginning are held for as long as the engine
lives. A later one is told to begin behind them. Those blocks that hold nothing else it reads where they are: they take
the place of its own in what the runner is told, and hundreds of requests that read the same memory find it in the GPU's
cache. The last one, which it will write behind the shared positions, is copied whole by the step that lets it in:
vLLM's own way of giving a request what another has computed (copy on write). So nothing here knows how a block is laid
out or in which number format. What a copy has behind the shared positions is overwritten before it is read.

Nothing is taken on trust: the tokens of each request and the samples of its audio are looked at, and one that begins
otherwise goes the whole way. That the blocks are filled before they are copied follows from the order of the steps:
the GPU takes them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

from voxbatch.engines.vllm.steady import plain
from voxbatch.vllm_plugin.admit import samples
from voxbatch.vllm_plugin.private import ARCHITECTURE
from voxbatch.vllm_plugin.silence import begins_silent, extent

COPIED = 128
"""Positions of K/V cache that are copied for a chunk, at most, for blocks are copied whole. On a GPU they are 16, and
256 would take it as long to copy as 31 to compute (worked out, for the 4B model); a CPU's blocks are 128."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a model's chunks usually begin with."""

    samples: int
    """All zero."""
    positions: int
    """Whose audio depends on these samples alone: position p hears row p of the encoder's."""


def opening(config: Any) -> Opening | None:
    """None for a model whose chunks do not begin with silence.

    Args:
        config: vLLM's ModelConfig.
    """
    if ARCHITECTURE not in config.architectures:
        return None
    encoder = config.hf_config.audio_config
    audio = cached_tokenizer_from_config(config).instruct.audio_encoder.audio_config
    silent, frames = extent(audio.streaming_n_left_pad_tokens or 0, encoder)
    positions = frames // encoder.block_pool_size
    return Opening(silent, positions) if positions else None


class Beginning:
    """Of a scheduler that is plain (steady.plain)."""

    def __init__(self, opening: Opening, manager: Any):
        """
        Args:
            manager: the scheduler's KVCacheManager.
        """
        self._opening, self._manager = opening, manager
        [group] = manager.coordinator.single_type_managers
        self._blocks_of: Mapping[str, list[Any]] = group.req_to_blocks
        self.blocks: int = -(-opening.positions // group.block_size)
        """That are held: on a GPU two, or 3.4 MB of the 4B model's K/V cache."""
        self._full: int = opening.positions // group.block_size
        """Of these, such as hold shared positions only."""
        self.copied: int = (self.blocks - self._full) * group.block_size
        """Positions in the others."""
        self.prompt = 0
        """Tokens of the whole prompt of the chunk that was first; 0 until then."""
        self._tokens: list[int] = []
        """The shared ones, of that prompt."""
        self._held: list[int] = []
        """Ids of that chunk's first blocks."""

    def computed(self, request: Any) -> tuple[Any, int, int]:
        """In the place of KVCacheManager.get_computed_blocks: no blocks, but how many positions need not be computed.
        The request is given blocks of its own for all of its positions, of which the first are not used: vLLM shares
        blocks only where it looks for them by their contents."""
        known = self.shared if self._held and self._begins(request) else 0
        return self._manager.empty_kv_cache_blocks, known, 0

    @property
    def shared(self) -> int:
        """Positions that need not be computed any more."""
        return self._opening.positions if self._held else 0

    def enter(self, step: Any, requests: Mapping[str, Any]) -> None:
        """Into a step that was scheduled, which blocks are the shared ones, and what is copied before its model runs;
        and until there is something to share, see whether the step computes it.

        Args:
            requests: the scheduler's, by id.
        """
        full, copies = self._full, list[KVCacheBlockCopy]()
        for blocks in _behind(step, self._opening.positions):
            blocks[:full] = self._held[:full]
            copies += map(KVCacheBlockCopy, self._held[full:], blocks[full:])
        if copies:
            step.kv_cache_block_copies = [*(step.kv_cache_block_copies or ()), *copies]
        if not self._held:
            self._look_for_the_first(step, requests)

    def _look_for_the_first(self, step: Any, requests: Mapping[str, Any]) -> None:
        for new in step.scheduled_new_reqs:
            is_whole = step.num_scheduled_tokens[new.req_id] >= self._opening.positions
            if is_whole and self._begins(requests[new.req_id]):
                self._hold(requests[new.req_id])
                return

    def _hold(self, request: Any) -> None:
        """Its first blocks, which nobody writes to but itself, and it only behind the shared positions, are never free
        again."""
        blocks = self._blocks_of[request.request_id][: self.blocks]
        self._manager.block_pool.touch(blocks)
        self._held = [block.block_id for block in blocks]
        self._tokens = request.prompt_token_ids[: self._opening.positions]
        self.prompt = len(request.prompt_token_ids)

    def _begins(self, request: Any) -> bool:
        """Whether the request's first positions are the shared ones, and there are others to compute."""
        tokens, count = request.prompt_token_ids or [], self._opening.positions
        return (
            len(tokens) > count
            and (not self._tokens or tokens[:count] == self._tokens)
            and not request.skip_reading_prefix_cache  # it wants something of each position
            and self._is_silent(request.mm_features)
        )

    def _is_silent(self, features: list[Any]) -> bool:
        """One piece of audio, from position 0 on, that begins with the silence."""
        if len(features) != 1 or features[0].mm_position.offset or features[0].data is None:
            return False
        return begins_silent(samples(features[0]), self._opening.samples)


def beginning(scheduler: Any, longest: int) -> Beginning | None:
    """None where it cannot be had, or would be for nothing.

    Args:
        longest: K/V blocks that a request of full length takes: they must be there besides.
    """
    if not plain.scheduler_is_plain(scheduler):
        return None
    found = opening(scheduler.vllm_config.model_config)
    if found is None:
        return None
    made = Beginning(found, scheduler.kv_cache_manager)
    besides = scheduler.kv_cache_config.num_blocks - 1 - longest  # vLLM keeps one to itself
    return made if made.blocks <= besides and made.copied <= COPIED else None


def _behind(step: Any, positions: int) -> Iterator[list[int]]:
    """Blocks of each request that the step lets in, new or again, with so many positions computed, which is what
    Beginning.computed said of it: the very list that the runner will be given."""
    for new in step.scheduled_new_reqs:
        if new.num_computed_tokens == positions:
            yield new.block_ids[0]
    again = step.scheduled_cached_reqs
    if again.resumed_req_ids:
        for name, computed, blocks in zip(again.req_ids, again.num_computed_tokens, again.new_block_ids, strict=True):
            if computed == positions and name in again.resumed_req_ids:
                yield blocks[0]
