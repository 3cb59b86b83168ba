"""Audio encoder for whole chunks: audio in, one row for each 80 ms out, as wide as the decoder.

The modules and weights are those that vLLM made and loaded. This module only computes with them in another way. The
frames of a chunk attend to each other without a K/V cache. The silence that chunks begin with is encoded once for all
chunks (`silence`). Nothing here waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm_plugin import GROUP_FRAMES
from voxbatch.vllm_plugin.convolution import Causal, Convolution, Turned
from voxbatch.vllm_plugin.encoder_attention import Attention, Flash, Masked, Windowed
from voxbatch.vllm_plugin.packing import Packed, groups, packed, to_device
from voxbatch.vllm_plugin.rotary import RotateAndLayOut, rotate_and_lay_out
from voxbatch.vllm_plugin.silence import Silence, extent
from voxbatch.vllm_plugin.spectrogram import Spectrogram, rounded

BEHIND = 2
"""Number of earlier frames that the two convolutions read for a frame: they read three mels before the frame's own."""

Shelve = Callable[[torch.Tensor], torch.Tensor]
"""Function that takes the rows of a chunk, stores them, and returns the stored rows."""
Keep = Callable[[torch.Tensor], None]
"""Function that takes the keys and values of a layer, [2, rows, k]. It is called for each layer, in the layers' order.
"""


class Encoder:
    """Encoder and adapter over groups of chunks. Create it after the weights are loaded.

    Args:
        tower: vLLM's VoxtralEncoderModel.
        adapter: module that turns `pool` frames into a row.
        left_pad: number of tokens of silence that chunks usually begin with. A chunk that begins so is cheaper to
            encode. All other chunks are encoded correctly too.
    """

    def __init__(self, tower: Any, adapter: Any, left_pad: int = 0):
        config, layers = tower.config, tower.whisper_encoder
        self._layers, self._adapter, self._dtype = layers, adapter, tower.dtype
        self._pool: int = config.block_pool_size
        self._per_frame: int = config.hop_length * layers.total_stride
        self.device: torch.device = layers.conv1.weight.device
        self._spectrogram = Spectrogram(
            tower.mel_filters.to(self.device), config.window_size, config.hop_length, float(config.global_log_mel_max)
        )
        one = layers.layers[0].self_attn
        self._cos_sin = _interleaved(one.rotary_emb, one.head_dim).to(self.device, self._dtype).contiguous()
        flash = _flash_version(one.head_dim) if self.device.type == "cuda" and self._dtype != torch.float32 else None
        self._ops: _Ops = _Fused() if flash else _Plain()
        self._place: RotateAndLayOut = _kernel() if flash else rotate_and_lay_out
        way: Callable[[Any], Convolution] = Causal if flash else Turned
        self._conv1, self._conv2 = way(layers.conv1), way(layers.conv2)
        window, scale = config.sliding_window, one.scaling
        self._attention: Attention = Masked(window, scale)
        if flash:
            own = one.q_size == one.kv_size and _fits(one.head_dim, self._dtype)
            self._attention = Windowed(window, scale) if own else Flash(window, scale, flash)
        self._nothing = self._no_silence()
        samples, settled = extent(left_pad, config)
        with torch.no_grad():
            self._silence = self._heard(samples, settled) if settled > BEHIND else self._nothing

    def __call__(self, audio: Sequence[torch.Tensor], shelve: Shelve = lambda rows: rows) -> list[torch.Tensor]:
        """Return the rows of each chunk, [tokens, width], in the order of `audio`.

        Args:
            audio: [samples] for each chunk, 16 kHz, a whole number of tokens. A chunk is on the host or on the
                encoder's device. Only on the host is it checked for silence at its beginning.
            shelve: stores the rows of a chunk as soon as its group is encoded, so that the rows of a whole burst are
                never in memory twice.

        Raises:
            ValueError: a chunk is empty or not a whole number of tokens.
        """
        frames = [self._frames(len(each)) for each in audio]
        found: dict[int, torch.Tensor] = {}
        for group, silence in self._groups(audio):
            rows = self._group([audio[i] for i in group], [frames[i] for i in group], silence)
            found |= zip(group, map(shelve, rows), strict=True)
        return [found[i] for i in range(len(frames))]

    def rehearse(self, samples: int) -> None:
        """Encode the largest possible group, of silence, so that vLLM includes its memory when it measures the peak.

        Args:
            samples: length of the longest chunk.
        """
        chunks = max(1, GROUP_FRAMES // self._spread(samples, self._nothing))
        # audio on a GPU is not checked for silence, so it is encoded in full
        self([torch.zeros(samples, device=self.device)] * chunks)
        self([torch.zeros(samples)])

    def _frames(self, samples: int) -> int:
        token = self._per_frame * self._pool
        if samples % token or not samples:
            raise ValueError(f"{samples} samples of audio; a request's audio is padded to whole tokens of {token}")
        return samples // self._per_frame

    def _spread(self, samples: int, silence: Silence) -> int:
        """Return the number of frames that a chunk takes in a group, with the padding of its spectrogram."""
        known = max(0, silence.frames - BEHIND) * self._per_frame
        return self._frames(rounded(samples - known))

    def _groups(self, audio: Sequence[torch.Tensor]) -> Iterator[tuple[list[int], Silence]]:
        """Yield the indexes of the chunks of each group, and the silence that these chunks begin with."""
        silent = [self._silence.begins(each) for each in audio]
        for silence, want in ((self._silence, True), (self._nothing, False)):
            members = [i for i, it_is in enumerate(silent) if it_is is want]
            for group in groups([self._spread(len(audio[i]), silence) for i in members], GROUP_FRAMES):
                yield [members[i] for i in group], silence

    def _group(self, audio: list[torch.Tensor], frames: list[int], silence: Silence) -> Sequence[torch.Tensor]:
        own = [count - silence.frames for count in frames]
        layout = packed(own, self.device, silence.frames)
        hidden = self._attended(self._convolved(audio, own, silence.frames), layout, silence.keys)
        rows = self._adapted(hidden).split([count // self._pool for count in own])
        return [torch.cat((silence.rows, each)) for each in rows] if silence.frames else rows

    def _adapted(self, hidden: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._adapter(hidden.reshape(len(hidden) // self._pool, -1))
        return rows

    def _no_silence(self) -> Silence:
        sizes = [layer.self_attn.kv_size for layer in self._layers.layers]
        keys = [torch.empty(2, 0, size, dtype=self._dtype, device=self.device) for size in sizes]
        return Silence(0, keys, torch.empty(0))

    def _heard(self, samples: int, frames: int) -> Silence:
        """Encode `samples` samples of silence, and return their first `frames` frames as the shared silence."""
        keys: list[torch.Tensor] = []
        audio = torch.zeros(samples, device=self.device)
        layout = packed([frames], self.device)
        hidden = self._attended(self._convolved([audio], [frames], 0), layout, self._nothing.keys, keys.append)
        return Silence(samples, keys, self._adapted(hidden))

    def _convolved(self, audio: list[torch.Tensor], frames: list[int], first: int) -> torch.Tensor:
        """Return the convolved frames of all chunks end to end, [total frames, dim].

        `frames[i]` frames of chunk i are returned, from frame `first` on. The convolutions only look back, so the
        padding after the end of a chunk does not reach its frames. The spectrogram begins up to BEHIND frames earlier,
        because the convolutions read these frames too.
        """
        behind = min(first, BEHIND)
        here, skipped = [to_device(each, self.device) for each in audio], (first - behind) * self._layers.total_stride
        heard = functional.gelu(self._conv1(self._spectrogram(here, skipped)))
        heard = functional.gelu(self._conv2(heard))[:, behind:]
        return torch.cat([chunk[:count] for chunk, count in zip(heard, frames, strict=True)])

    def _attended(
        self, residual: torch.Tensor, layout: Packed, known: Sequence[torch.Tensor], keep: Keep | None = None
    ) -> torch.Tensor:
        """Run [frames, dim] through all layers. Each layer first gets its keys and values of the shared silence,
        `known`."""
        delta, layers = None, self._layers.layers
        for layer, pads in zip(layers, known, strict=True):
            normed, residual = self._normed(layer.self_attn_layer_norm, delta, residual)
            seen = self._attend(layer.self_attn, normed, layout, pads, keep)
            normed, residual = self._normed(layer.final_layer_norm, seen, residual)
            delta = self._fed_forward(layer.mlp, normed)
        return self._normed(self._layers.layer_norm, delta, residual)[0]

    def _normed(
        self, module: Any, delta: torch.Tensor | None, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of a layer, and the residual that the layer's output is added to."""
        if delta is None:
            return self._ops.norm(module, residual), residual
        return self._ops.add_and_norm(module, delta, residual)

    def _fed_forward(self, layer: Any, normed: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = layer.down_proj(self._ops.gate(layer.act_fn, layer.gate_up_proj(normed)[0]))[0]
        return found

    def _attend(
        self, layer: Any, normed: torch.Tensor, layout: Packed, pads: torch.Tensor, keep: Keep | None
    ) -> torch.Tensor:
        qkv = layer.qkv_proj(normed)[0]
        kv = qkv.new_empty(2, sum(layout.key_lengths), layer.kv_size)
        self._place(qkv, kv, pads, self._cos_sin, layout, layer.head_dim)
        if keep is not None:
            keep(kv)
        q, k, v = (each.unflatten(1, (-1, layer.head_dim)) for each in (qkv[:, : layer.q_size], *kv))
        found: torch.Tensor = layer.out_proj(self._attention(q, k, v, layout).flatten(1))[0]
        return found


def _interleaved(rotary: Any, head_dim: int) -> torch.Tensor:
    """Return the rotary embedding's table, [positions, head_dim]: cosines, then sines.

    Raises:
        ValueError: the embedding rotates in another way than `rotary` does.
    """
    if rotary.is_neox_style or rotary.rotary_dim != head_dim:
        raise ValueError(
            f"the encoder turns {rotary.rotary_dim} of a head's {head_dim} numbers, "
            f"{'by halves' if rotary.is_neox_style else 'in pairs'}; voxbatch's encoder plugin knows all of them, in "
            "pairs: run without it (--no-prefill-encoder)"
        )
    found: torch.Tensor = rotary.cos_sin_cache
    return found


def _kernel() -> RotateAndLayOut:
    from voxbatch.vllm_plugin import rotary_kernel

    return rotary_kernel.rotate_and_lay_out


def _fits(head_dim: int, dtype: torch.dtype) -> bool:
    from voxbatch.vllm_plugin import window_kernel

    return window_kernel.fits(head_dim, dtype)


def _flash_version(head_dim: int) -> int | None:
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    found: int | None = get_flash_attn_version(head_size=head_dim)
    return found


class _Plain:
    """Small operations of a layer in PyTorch, as stock vLLM runs them on a CPU."""

    def norm(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the RMS norm of x."""
        found: torch.Tensor = module.forward_native(x)
        return found

    def add_and_norm(
        self, module: Any, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of the sum `residual + delta`, and the sum."""
        residual = residual + delta
        return self.norm(module, residual), residual

    def gate(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        """Return SwiGLU's product: SiLU of the left half of x times its right half."""
        found: torch.Tensor = module.forward_native(x)
        return found


class _Fused(_Plain):
    """The same operations by vLLM's own CUDA kernels. They write into `delta` and `residual`.

    In a compiled model vLLM leaves these operations to the compiler. This code is not compiled.
    """

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

    def gate(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module.forward_cuda(x)
        return found


_Ops = _Plain
