"""Voxtral Realtime as vLLM runs it with the plugin: the encoder runs when a chunk is admitted, the decoder in every
step.

Three things differ from the stock model:

1. The encoder's attention layers are removed from the list by which vLLM gives layers their K/V cache. So they have
none.
2. `embed_multimodal` runs the whole encoder and the adapter. The stock model stops after the convolutions.
3. `forward` runs the decoder alone, so that a step that only decodes is one CUDA graph.

The weights, the prompt and the logits are those of the stock model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.model_executor.models.voxtral_realtime import VoxtralRealtimeGeneration
from vllm.sequence import IntermediateTensors

from voxbatch.vllm.plugin import is_reproducible
from voxbatch.vllm.plugin.encoder import Encoder
from voxbatch.vllm.plugin.encoder_output_pool import EncoderOutputPool
from voxbatch.vllm.plugin.patches import patch_runner
from voxbatch.vllm.plugin.patches.gather_mm_embeddings import RowNumbers

SAMPLES_PER_TOKEN = 1_280
"""Samples of audio for each text token: 80 ms at 16 kHz."""
GRAPH_FIELDS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""Names of the fields of vLLM's compilation_config that choose the CUDA graphs."""


class WholeChunkModel:
    """Mixin for the plugin's models, which get whole chunks. A derived class has `encode_chunks`."""

    def embed_multimodal(self, **kwargs: object) -> Sequence[torch.Tensor]:
        """Encode audio from vLLM, and return the rows of each chunk, [tokens, width].

        vLLM calls this when it measures memory. The audio of requests comes through `encode_chunks`.
        """
        model: Any = self
        audio = model._parse_and_validate_audio_arrays(**kwargs)
        rows: Sequence[torch.Tensor] = model.encode_chunks(audio) if audio else []
        return rows


class PrefillRealtime(WholeChunkModel, VoxtralRealtimeGeneration):  # type: ignore[misc]
    """Voxtral Realtime for whole chunks. It replaces vLLM's model of the same architecture."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        with _hide_full_graphs(vllm_config.compilation_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        layers = self.whisper_encoder.whisper_encoder.layers
        for layer in layers:
            vllm_config.compilation_config.static_forward_context.pop(layer.self_attn.attn.layer_name)
        self._width = self.config.text_config.hidden_size
        self._buffer_width = vllm_config.model_config.get_inputs_embeds_size()
        self._max_model_len = vllm_config.model_config.max_model_len
        row = self.audio_language_adapter.w_out.weight[0].detach()
        slots = vllm_config.scheduler_config.max_num_seqs
        self.encoder_output_pool = EncoderOutputPool(slots, self._max_model_len, row)
        self._encoder: Encoder | None = None
        self._held: torch.Tensor | None = None
        patch_runner()

    def embed_multimodal(self, **kwargs: object) -> Sequence[torch.Tensor]:
        """Encode audio while vLLM measures memory, and hold the memory of the CUDA graphs until the next chunk."""
        rows = super().embed_multimodal(**kwargs)
        self._held = self._encoder.graph_memory() if self._encoder else None
        return rows

    def encode_chunks(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Encode chunks, and return the rows of each, [tokens, width], in the encoder output pool.

        Args:
            audio: [samples] for each chunk, preferably on the host; see Encoder.
        """
        self._held = None
        if self._encoder is None:  # vLLM calls this for the first time after it has loaded the weights
            left_pad = self.audio_config.streaming_n_left_pad_tokens or 0
            self._encoder = Encoder(self.whisper_encoder, self.audio_language_adapter, left_pad, is_reproducible())
            self._encoder.rehearse(self._max_model_len * SAMPLES_PER_TOKEN)
        stored_rows = {i: self.encoder_output_pool.store(rows) for i, rows in self._encoder.encode(audio)}
        return [stored_rows[i] for i in range(len(audio))]

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the audio of a step's positions, in their order, [positions, width of the runner's buffer].

        The embedding of the text is added in `forward`.
        """
        if not multimodal_embeddings:
            return input_ids.new_zeros(len(input_ids), self._buffer_width, dtype=self.whisper_encoder.dtype)
        if isinstance(multimodal_embeddings, RowNumbers):
            audio = self.encoder_output_pool.gather(multimodal_embeddings[0])
        else:
            audio = torch.cat(tuple(multimodal_embeddings))
        return functional.pad(audio, (0, self._buffer_width - self._width))

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor | IntermediateTensors:
        """Run the decoder on the sum of audio and text, and return the hidden states, [positions, width].

        Args:
            input_ids: [positions], the text.
            inputs_embeds: [positions, width of the runner's buffer], the audio.
        """
        assert inputs_embeds is not None
        assert input_ids is not None
        embeds = inputs_embeds[:, : self._width] + self.language_model.embed_input_ids(input_ids)
        delay = torch.full((1,), fill_value=self.n_delay_tokens, device=embeds.device, dtype=embeds.dtype)
        return self.language_model.model(
            input_ids, positions, intermediate_tensors, inputs_embeds=embeds, t_cond=self.time_embedding(delay)
        )


@contextlib.contextmanager
def _hide_full_graphs(config: Any) -> Iterator[None]:
    """Ask for no full CUDA graphs while this context lasts. The stock model refuses them, because its `forward` runs
    the encoder.

    vLLM makes a configuration of the language model with the same compilation_config meanwhile. Without compiled code
    it finds that no other graphs are possible, and empties the list of sizes.
    """
    values = {name: getattr(config, name) for name in GRAPH_FIELDS}
    if config.cudagraph_mode.has_full_cudagraphs():
        config.cudagraph_mode = CUDAGraphMode.PIECEWISE
    try:
        yield
    finally:
        for name, value in values.items():
            setattr(config, name, value)
