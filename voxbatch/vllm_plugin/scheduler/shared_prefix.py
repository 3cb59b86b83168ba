"""Shared prefix: the decoder computes the silence at the beginning of all chunks once, and all later chunks share it.

A position of the prompt is a token of text and a row of audio. The first positions (31 of 39, or 31 of 63) are the same
in every chunk; see vllm_plugin.silence for the audio. So their keys and values are the same too, because the decoder
only looks back. The first chunk with this prefix is computed in full, and the K/V blocks of its prefix are held for as
long as the engine lives. A later chunk starts after the shared positions. It uses the held blocks in two ways:

- Blocks that contain only shared positions are read in place. They replace the chunk's own blocks in the data for the
  model runner. Hundreds of requests read the same memory, and find it in the GPU's cache.
- The last block also contains positions that the chunk will write. The step that admits the chunk copies this block in
  full, with vLLM's own copy on write, by which vLLM gives a request the blocks that another request computed. So this
  module does not depend on the layout or the number format of a block. The positions of the copy behind the shared ones
  are overwritten before they are read.

Nothing is assumed: the tokens of each request and the samples of its audio are checked. A request that begins otherwise
is computed in full. The order of the steps guarantees that the blocks are filled before they are copied, because the
GPU executes the steps one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

from voxbatch.vllm_plugin.scheduler import fast_path_conditions
from voxbatch.vllm_plugin.silence import begins_silent, extent, samples_of
from voxbatch.vllm_plugin.vllm_version import ARCHITECTURE

MAX_COPIED = 128
"""Maximum number of K/V positions that are copied for a chunk. Blocks are copied whole. A block has 16 positions on a
GPU and 128 on a CPU. A GPU would take as long to copy 256 positions as to compute 31 (calculated for the 4B model)."""


@dataclass(frozen=True, slots=True)
class LeadingSilence:
    """The silence with which the chunks of a model usually begin."""

    samples: int
    """Number of samples at the beginning of a chunk that are zero."""
    positions: int
    """Number of positions whose audio depends on these samples alone. Position p receives row p of the encoder's
    output."""


def leading_silence(config: Any) -> LeadingSilence | None:
    """Return the silence at the beginning of a model's chunks, or None if they do not begin with silence."""
    if ARCHITECTURE not in config.architectures:
        return None
    encoder = config.hf_config.audio_config
    audio = cached_tokenizer_from_config(config).instruct.audio_encoder.audio_config
    samples, frames = extent(audio.streaming_n_left_pad_tokens or 0, encoder)
    positions = frames // encoder.block_pool_size
    return LeadingSilence(samples, positions) if positions else None


def shared_prefix(scheduler: Any, max_per_request: int) -> SharedPrefix | None:
    """Return the shared prefix of a scheduler, or None if the prefix is impossible or would gain nothing.

    Args:
        max_per_request: number of K/V blocks of a request of maximum length. They must exist in addition to the held
            blocks.
    """
    if not fast_path_conditions.scheduler_qualifies(scheduler):
        return None
    silence = leading_silence(scheduler.vllm_config.model_config)
    if silence is None:
        return None
    prefix = SharedPrefix(silence, scheduler.kv_cache_manager)
    remaining = scheduler.kv_cache_config.num_blocks - 1 - max_per_request  # vLLM reserves one block
    return prefix if prefix.num_blocks <= remaining and prefix.num_copied <= MAX_COPIED else None


class SharedPrefix:
    """The shared prefix of a scheduler that qualifies for the fast path (`fast_path_conditions`)."""

    def __init__(self, silence: LeadingSilence, manager: Any):
        """Prepare the prefix of a scheduler."""
        self._silence, self._manager = silence, manager
        [group] = manager.coordinator.single_type_managers
        self._blocks_of: Mapping[str, list[Any]] = group.req_to_blocks
        self.num_blocks: int = -(-silence.positions // group.block_size)
        """Number of blocks that are held: two on a GPU, which are 3.4 MB of the 4B model's K/V cache."""
        self._num_full: int = silence.positions // group.block_size
        """Number of held blocks that contain only shared positions."""
        self.num_copied: int = (self.num_blocks - self._num_full) * group.block_size
        """Number of positions in the other held blocks, which are copied."""
        self.prompt_tokens = 0
        """Number of tokens in the whole prompt of the first chunk. 0 before that chunk."""
        self._tokens: list[int] = []
        self._held: list[int] = []
        """Ids of the held blocks, the first blocks of that chunk."""

    @property
    def positions(self) -> int:
        """Return the number of positions that need not be computed any more."""
        return self._silence.positions if self._held else 0

    def computed_positions(self, request: Any) -> int:
        """Return the number of positions of a request that need not be computed."""
        return self.positions if self._held and self._starts(request) else 0

    def computed_blocks(self, request: Any) -> tuple[Any, int, int]:
        """Return no blocks, and `computed_positions`. This replaces KVCacheManager.get_computed_blocks.

        So the request gets blocks of its own for all its positions, and its first blocks stay unused, because vLLM
        shares blocks only if it finds them by their content.
        """
        return self._manager.empty_kv_cache_blocks, self.computed_positions(request), 0

    def enter(self, step: Any, requests: Mapping[str, Any]) -> None:
        """Enter the shared blocks, and the copies to make before the model runs, into a scheduled step.

        If no prefix is held yet, hold the first blocks of the first request of the step that computes one, so that they
        never become free again. Only this request writes to them, and it writes only behind the shared positions.
        """
        full, copies = self._num_full, list[KVCacheBlockCopy]()
        for block_ids in _block_ids_after(step, self._silence.positions):
            block_ids[:full] = self._held[:full]
            copies += map(KVCacheBlockCopy, self._held[full:], block_ids[full:])
        if copies:
            step.kv_cache_block_copies = [*(step.kv_cache_block_copies or ()), *copies]
        for new in step.scheduled_new_reqs if not self._held else ():
            request = requests[new.req_id]
            if step.num_scheduled_tokens[new.req_id] >= self._silence.positions and self._starts(request):
                blocks = self._blocks_of[new.req_id][: self.num_blocks]
                self._manager.block_pool.touch(blocks)
                self._held = [block.block_id for block in blocks]
                self._tokens = request.prompt_token_ids[: self._silence.positions]
                self.prompt_tokens = len(request.prompt_token_ids)
                return

    def _starts(self, request: Any) -> bool:
        """Return whether the request begins with the shared positions and has further positions to compute.

        Its only piece of audio begins at position 0, with the silence.
        """
        tokens, count = request.prompt_token_ids or [], self._silence.positions
        has_same_tokens = len(tokens) > count and (not self._tokens or tokens[:count] == self._tokens)
        # skip_reading_prefix_cache: the request needs a result for each position
        if not has_same_tokens or request.skip_reading_prefix_cache or len(request.mm_features) != 1:
            return False
        [feature] = request.mm_features
        if feature.mm_position.offset or feature.data is None:
            return False
        return begins_silent(samples_of(feature.data), self._silence.samples)


def _block_ids_after(step: Any, positions: int) -> Iterator[list[int]]:
    """Yield the block ids of the requests that the step admits or resumes with `positions` computed positions.

    For these requests, SharedPrefix.computed_positions returned that number. The lists are the ones that the model
    runner gets, so the caller can change them.
    """
    for new in step.scheduled_new_reqs:
        if new.num_computed_tokens == positions:
            yield new.block_ids[0]
    cached = step.scheduled_cached_reqs
    if cached.resumed_req_ids:
        columns = cached.req_ids, cached.num_computed_tokens, cached.new_block_ids
        for name, computed, block_ids in zip(*columns, strict=True):
            if computed == positions and name in cached.resumed_req_ids:
                yield block_ids[0]
