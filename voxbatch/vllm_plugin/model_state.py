"""State of the plugin's models in vLLM's second model runner: encode a chunk once, and fetch its rows by number.

The second runner (vllm/v1/worker/gpu) asks the model for a class of state, and leaves the audio of a step to it. So two
overridden methods do what `patches/execute_mm_encoder` and `patches/gather_mm_embeddings` do in the first runner. The
runner does the rest of `patches` by itself: requests have fixed rows, the last tokens stay on the GPU, and a greedy
step converts no logits.

Nothing here was ever run on a GPU. On a CPU, with Triton's interpreter, the tokens are those of stock vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from voxbatch.vllm_plugin.encoder_output_pool import OUTSIDE, EncoderOutputPool
from voxbatch.vllm_plugin.packing import to_device
from voxbatch.vllm_plugin.silence import samples_of


class WholeChunkState(DefaultModelState):  # type: ignore[misc]
    """vLLM's state of a model whose audio is there from the start."""

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device):
        super().__init__(vllm_config, model, encoder_cache, device)
        self._pool: EncoderOutputPool | None = getattr(model, "encoder_output_pool", None)
        self._first_rows = np.full(self.max_num_reqs, OUTSIDE, np.int64)
        """First row in the pool of the request in each of the runner's rows. OUTSIDE before its audio is encoded."""

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Begin a request, or begin it anew after a preemption."""
        super().add_request(req_index, new_req_data)
        self._first_rows[req_index] = OUTSIDE

    def execute_mm_encoder(self, scheduled_encoder_inputs: dict[str, list[int]]) -> None:
        """Encode the audio of admitted requests from the samples on the host.

        vLLM would send the samples to the GPU first (see `patches/execute_mm_encoder`).
        """
        names, items = self.encoder_runner.prepare_mm_inputs(scheduled_encoder_inputs)
        if items:
            rows = self.model.encode_chunks([samples_of(data) for _, data in items])
            self.encoder_cache.encoder_outputs.update(zip(names, rows, strict=True))

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: Any, req_states: Any
    ) -> torch.Tensor:
        """Return the audio of a step's positions, [positions with padding, width of the runner's buffer].

        vLLM's own method handles a model without a pool, and a step with audio outside the pool.
        """
        self.execute_mm_encoder(scheduled_encoder_inputs)
        first_rows = None if self._pool is None else self._first_rows_of(input_batch, self._pool)
        if self._pool is None or first_rows is None:
            found: torch.Tensor = super().prepare_inputs_embeds({}, input_batch, req_states)
            return found
        count, buffer = input_batch.num_tokens, self.encoder_runner.inputs_embeds
        begins = to_device(np.repeat(first_rows, input_batch.num_scheduled_tokens), buffer.device)
        # A step that runs ahead may go past a request's end. Nobody reads those rows, so any existing row will do.
        audio = self._pool.gather((begins + input_batch.positions[:count]).clamp_(max=self._pool.last_row))
        buffer[:count, : audio.shape[1]] = audio
        return buffer[: input_batch.num_tokens_after_padding]

    def _first_rows_of(self, input_batch: Any, pool: EncoderOutputPool) -> np.ndarray | None:
        """Return the first row of each request of the batch, [requests]; None if the audio of one is outside."""
        rows = input_batch.idx_mapping_np
        for place in np.flatnonzero(self._first_rows[rows] == OUTSIDE):
            features = self.encoder_cache.mm_features[input_batch.req_ids[place]]
            encoded = self.encoder_cache.encoder_outputs.get(features[0].identifier) if features else None
            self._first_rows[rows[place]] = pool.first_row(encoded)
        found: np.ndarray = self._first_rows[rows]
        return None if (found == OUTSIDE).any() else found
