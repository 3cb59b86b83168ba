"""The audio encoder over whole chunks: audio in, one row for each 80 ms out, as wide as the decoder.

The modules and weights are those that vLLM made and loaded; here is only another way through them, in which a chunk's
frames see each other without a K/V cache. Nothing in it waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm_plugin import GROUP_FRAMES
from voxbatch.vllm_plugin.attention import Attention, Flash, Masked
from voxbatch.vllm_plugin.packing import Packed, groups, packed
from voxbatch.vllm_plugin.spectrogram import Spectrogram, rounded

Keep = Callable[[torch.Tensor], torch.Tensor]


class Encoder:
    """Made once the weights are loaded.

    Args:
        tower: vLLM's VoxtralEncoderModel.
        adapter: from `pool` frames to a row.
    """

    def __init__(self, tower: Any, adapter: Any):
        config, layers = tower.config, tower.whisper_encoder
        self._layers, self._adapter, self._dtype = layers, adapter, tower.dtype
        self._pool: int = config.block_pool_size
        self._per_frame: int = config.hop_length * layers.total_stride
        device = layers.conv1.weight.device
        self._spectrogram = Spectrogram(
            tower.mel_filters.to(device), config.window_size, config.hop_length, float(config.global_log_mel_max)
        )
        one = layers.layers[0].self_attn
        flash = _flash_version(one.head_dim) if device.type == "cuda" and self._dtype != torch.float32 else None
        self._ops: _Ops = _Fused() if flash else _Plain()
        window, scale = config.sliding_window, one.scaling
        self._attention: Attention = Flash(window, scale, flash) if flash else Masked(window, scale)

    def __call__(self, audio: Sequence[torch.Tensor], keep: Keep = lambda rows: rows) -> list[torch.Tensor]:
        """[tokens, width] for each chunk, in their order.

        Args:
            audio: [samples] each, 16 kHz, a whole number of tokens.
            keep: takes a chunk's rows to where they stay, as soon as its group is done, so that those of a whole burst
                are never held twice.

        Raises:
            ValueError: it is not.
        """
        frames = [self._frames(len(each)) for each in audio]
        padded = [self._frames(rounded(len(each))) for each in audio]
        found: dict[int, torch.Tensor] = {}
        for group in groups(padded, GROUP_FRAMES):
            rows = map(keep, self._group([audio[i] for i in group], [frames[i] for i in group]))
            found |= zip(group, rows, strict=True)
        return [found[i] for i in range(len(frames))]

    @property
    def working_bytes(self) -> int:
        """What a full group takes in the widest layer: queries, keys and values, the gated product and its result,
        and the frames themselves, three times."""
        one = self._layers.layers[0]
        numbers = one.self_attn.q_size + 2 * one.self_attn.kv_size + 3 * one.embed_dim
        numbers += 3 * one.mlp.down_proj.input_size_per_partition  # its weight may be laid out otherwise, in FP8
        return int(GROUP_FRAMES * numbers * self._dtype.itemsize)

    def rehearse(self, samples: int, chunks: int) -> None:
        """Encode the largest group that there will be, of silence, while the audio of the largest burst is there, so
        that whoever measures memory sees it used.

        Args:
            samples: of the longest chunk.
            chunks: that a step may bring.
        """
        burst = torch.zeros(chunks, samples, device=self._layers.conv1.weight.device)
        self(burst[: max(1, GROUP_FRAMES // self._frames(samples))].unbind())

    def _frames(self, samples: int) -> int:
        token = self._per_frame * self._pool
        if samples % token or not samples:
            raise ValueError(f"{samples} samples of audio; a request's audio is padded to whole tokens of {token}")
        return samples // self._per_frame

    def _group(self, audio: list[torch.Tensor], frames: list[int]) -> Sequence[torch.Tensor]:
        layout = packed(frames, audio[0].device)
        hidden = self._attended(self._convolved(audio, frames), layout)
        rows: torch.Tensor = self._adapter(hidden.reshape(len(hidden) // self._pool, -1))
        found: Sequence[torch.Tensor] = rows.split([count // self._pool for count in frames])
        return found

    def _convolved(self, audio: list[torch.Tensor], frames: list[int]) -> torch.Tensor:
        """[frames, dim], chunks end to end. The convolutions look back only, so that what is behind a chunk's end
        does not reach it."""
        mel = self._spectrogram(audio).to(self._dtype)
        heard = functional.gelu(self._layers.conv2(functional.gelu(self._layers.conv1(mel)))).transpose(1, 2)
        return torch.cat([chunk[:count] for chunk, count in zip(heard, frames, strict=True)])

    def _attended(self, residual: torch.Tensor, layout: Packed) -> torch.Tensor:
        first, *others = self._layers.layers
        normed = self._ops.norm(first.self_attn_layer_norm, residual)
        delta, residual = self._layer(first, normed, residual, layout)
        for layer in others:
            normed, residual = self._ops.add_and_norm(layer.self_attn_layer_norm, delta, residual)
            delta, residual = self._layer(layer, normed, residual, layout)
        return self._ops.add_and_norm(self._layers.layer_norm, delta, residual)[0]

    def _layer(
        self, layer: Any, normed: torch.Tensor, residual: torch.Tensor, layout: Packed
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer adds, and to what."""
        seen = self._attend(layer.self_attn, normed, layout)
        normed, residual = self._ops.add_and_norm(layer.final_layer_norm, seen, residual)
        gated = self._ops.gate(layer.mlp.act_fn, layer.mlp.gate_up_proj(normed)[0])
        return layer.mlp.down_proj(gated)[0], residual

    def _attend(self, layer: Any, normed: torch.Tensor, layout: Packed) -> torch.Tensor:
        q, k, v = layer.qkv_proj(normed)[0].split([layer.q_size, layer.kv_size, layer.kv_size], dim=-1)
        q, k = self._ops.rotate(layer.rotary_emb, layout.positions, q, k)
        q, k, v = (each.unflatten(-1, (-1, layer.head_dim)) for each in (q, k, v))
        found: torch.Tensor = layer.out_proj(self._attention(q, k, v, layout).flatten(1))[0]
        return found


def _flash_version(head_dim: int) -> int | None:
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    found: int | None = get_flash_attn_version(head_size=head_dim)
    return found


class _Plain:
    """A layer's small steps in PyTorch's words, as stock vLLM takes them on a CPU."""

    def norm(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module.forward_native(x)
        return found

    def add_and_norm(
        self, module: Any, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + delta
        return self.norm(module, residual), residual

    def rotate(
        self, module: Any, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = module.forward_native(positions, q, k)
        return found

    def gate(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module.forward_native(x)
        return found


class _Fused(_Plain):
    """The same by vLLM's own CUDA kernels, which it leaves to the compiler where a model is compiled; this code is
    not. They write into `delta`, `residual`, `q` and `k`."""

    def __init__(self) -> None:
        from vllm import _custom_ops

        self._kernels: Any = _custom_ops

    def norm(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        found = torch.empty_like(x)
        self._kernels.rms_norm(found, x, module.weight, module.variance_epsilon)
        return found

    def add_and_norm(
        self, module: Any, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._kernels.fused_add_rms_norm(delta, residual, module.weight, module.variance_epsilon)
        return delta, residual

    def rotate(
        self, module: Any, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = module.forward_cuda(positions, q, k)
        return found

    def gate(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module.forward_cuda(x)
        return found


_Ops = _Plain
