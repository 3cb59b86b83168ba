"""Shared prefix: the decoder computes the silence at the beginning of all chunks once, and all later chunks share it.

A position of the prompt is a token of text and a row of audio. The first positions (31 of 39, or 31 of 63) are the same
in every chunk; see vllm_plugin.silence for the audio. So their keys and values are the same too, because the decoder
only looks back. The first chunk with this beginning is computed in full, and the K/V blocks of its beginning are held
for as long as the engine lives. A later chunk starts behind the shared positions. It uses the held blocks in two ways:

- Blocks that contain only shared positions are read in place. They replace the chunk's own blocks in the data for the
  model runner. Hundreds of requests read the same memory, and find it in the GPU's cache.
- The last block also contains positions that the chunk will write. The step that admits the chunk copies this block in
  full, with vLLM's own copy on write, by which vLLM gives a request the blocks that another request computed. So this
  module does not depend on the layout or the number format of a block. The positions of the copy behind the shared ones
  are overwritten before they are read.

Nothing is assumed: the tokens of each request and the samples of its audio are checked. A request with another
beginning is computed in full. The order of the steps guarantees that the blocks are filled before they are copied,
because the GPU executes the steps one after another.
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
"""Maximum number of K/V positions that are copied for a chunk. Blocks are copied whole. A block has 16 positions on a
GPU and 128 on a CPU. A GPU would take as long to copy 256 positions as to compute 31 (calculated for the 4B model)."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The silence with which the chunks of a model usually begin."""

    samples: int
    """Number of samples at the beginning of a chunk that are zero."""
    positions: int
    """Number of positions whose audio depends on these samples alone. Position p receives row p of the encoder's
    output."""


def opening(config: Any) -> Opening | None:
    """Return the silence at the beginning of a model's chunks, or None if they do not begin with silence.

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
    """The shared prefix of a scheduler that is plain (steady.plain)."""

    def __init__(self, opening: Opening, manager: Any):
        """Prepare the prefix of a scheduler.

        Args:
            manager: the scheduler's KVCacheManager.
        """
        self._opening, self._manager = opening, manager
        [group] = manager.coordinator.single_type_managers
        self._blocks_of: Mapping[str, list[Any]] = group.req_to_blocks
        self.blocks: int = -(-opening.positions // group.block_size)
        """Number of blocks that are held: two on a GPU, which are 3.4 MB of the 4B model's K/V cache."""
        self._full: int = opening.positions // group.block_size
        """Number of held blocks that contain only shared positions."""
        self.copied: int = (self.blocks - self._full) * group.block_size
        """Number of positions in the other held blocks, which are copied."""
        self.prompt = 0
        """Number of tokens in the whole prompt of the first chunk. 0 before that chunk."""
        self._tokens: list[int] = []
        """The shared tokens of that prompt."""
        self._held: list[int] = []
        """Ids of the held blocks, the first blocks of that chunk."""

    def computed(self, request: Any) -> tuple[Any, int, int]:
        """Return no blocks, and the number of positions that need not be computed.

        This method replaces KVCacheManager.get_computed_blocks. The request still gets blocks of its own for all its
        positions, and its first blocks stay unused, because vLLM shares blocks only if it finds them by their content.
        """
        known = self.shared if self._held and self._begins(request) else 0
        return self._manager.empty_kv_cache_blocks, known, 0

    @property
    def shared(self) -> int:
        """Return the number of positions that need not be computed any more."""
        return self._opening.positions if self._held else 0

    def enter(self, step: Any, requests: Mapping[str, Any]) -> None:
        """Enter the shared blocks, and the copies to make before the model runs, into a scheduled step.

        If no prefix is held yet, hold the blocks of the first request of the step that computes one.

        Args:
            requests: the requests of the scheduler, by id.
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
        """Hold the first blocks of the request, so that they never become free again.

        Only this request writes to them, and it writes only behind the shared positions.
        """
        blocks = self._blocks_of[request.request_id][: self.blocks]
        self._manager.block_pool.touch(blocks)
        self._held = [block.block_id for block in blocks]
        self._tokens = request.prompt_token_ids[: self._opening.positions]
        self.prompt = len(request.prompt_token_ids)

    def _begins(self, request: Any) -> bool:
        """Return whether the request begins with the shared positions and has further positions to compute."""
        tokens, count = request.prompt_token_ids or [], self._opening.positions
        return (
            len(tokens) > count
            and (not self._tokens or tokens[:count] == self._tokens)
            and not request.skip_reading_prefix_cache  # True: the request needs a result for each position
            and self._is_silent(request.mm_features)
        )

    def _is_silent(self, features: list[Any]) -> bool:
        """Return whether the request has one piece of audio, from position 0 on, that begins with the silence."""
        if len(features) != 1 or features[0].mm_position.offset or features[0].data is None:
            return False
        return begins_silent(samples(features[0]), self._opening.samples)


def beginning(scheduler: Any, longest: int) -> Beginning | None:
    """Return the shared prefix of a scheduler, or None if the prefix is impossible or would gain nothing.

    Args:
        longest: number of K/V blocks of a request of maximum length. They must exist in addition to the held blocks.
    """
    if not plain.scheduler_is_plain(scheduler):
        return None
    found = opening(scheduler.vllm_config.model_config)
    if found is None:
        return None
    made = Beginning(found, scheduler.kv_cache_manager)
    besides = scheduler.kv_cache_config.num_blocks - 1 - longest  # vLLM reserves one block
    return made if made.blocks <= besides and made.copied <= COPIED else None


def _behind(step: Any, positions: int) -> Iterator[list[int]]:
    """Yield the block lists of the requests that the step admits or resumes with `positions` computed positions.

    For these requests, Beginning.computed returned that number. The lists are the ones that the model runner gets, so
    the caller can change them.
    """
    for new in step.scheduled_new_reqs:
        if new.num_computed_tokens == positions:
            yield new.block_ids[0]
    again = step.scheduled_cached_reqs
    if again.resumed_req_ids:
        for name, computed, blocks in zip(again.req_ids, again.num_computed_tokens, again.new_block_ids, strict=True):
            if computed == positions and name in again.resumed_req_ids:
                yield blocks[0]
