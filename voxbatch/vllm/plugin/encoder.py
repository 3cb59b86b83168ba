"""Audio encoder for whole chunks: audio in, one row for each 80 ms out, as wide as the decoder.

The modules and weights are those that vLLM made and loaded. This module only computes with them in another way. The
frames of a chunk attend to each other without a K/V cache. The silence that chunks begin with is encoded once for all
chunks (`silence`). Nothing here waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm.plugin import FRAME_BYTES, GROUP_FRAMES
from voxbatch.vllm.plugin.encoder_attention import Attention, Flash, Masked
from voxbatch.vllm.plugin.encoder_graphs import EncoderGraphs
from voxbatch.vllm.plugin.encoder_ops import EightBitOps, FusedOps, TorchOps
from voxbatch.vllm.plugin.packing import Packed, group_chunks, pack, to_device
from voxbatch.vllm.plugin.rotary import RotateAndLayOut, rotate_and_lay_out
from voxbatch.vllm.plugin.silence import Silence, extent
from voxbatch.vllm.plugin.spectrogram import Spectrogram, rounded

CONTEXT_FRAMES = 2
"""Number of earlier frames that the two convolutions read for a frame: they read three mels before the frame's own."""


class Encoder:
    """Encoder and adapter over groups of chunks. Create it after the weights are loaded.

    Args:
        tower: vLLM's VoxtralEncoderModel.
        adapter: module that turns `pool` frames into a row.
        left_pad: number of tokens of silence that chunks usually begin with. A chunk that begins so is cheaper to
            encode. All other chunks are encoded correctly too.
        reproducible: the rows of a chunk must depend on its samples alone. Libraries choose their kernels by the shape
            of the input, and each kernel rounds differently. So the spectrogram and the convolutions see one chunk at a
            time, and FlashAttention always expects the same length. vLLM's batch-invariant mode does the rest.
    """

    def __init__(self, tower: Any, adapter: Any, left_pad: int = 0, reproducible: bool = False):
        config, layers = tower.config, tower.whisper_encoder
        self._layers, self._adapter, self._dtype = layers, adapter, tower.dtype
        self._pool: int = config.block_pool_size
        self._samples_per_frame: int = config.hop_length * layers.total_stride
        self._reproducible = reproducible
        self.device: torch.device = layers.conv1.weight.device
        self._spectrogram = Spectrogram(
            tower.mel_filters.to(self.device), config.window_size, config.hop_length, float(config.global_log_mel_max)
        )
        rotary = layers.layers[0].self_attn.rotary_emb  # it rotates the numbers of a head in pairs
        # [positions, head_dim]: cosines, then sines
        self._cos_sin = rotary.cos_sin_cache.to(self.device, self._dtype).contiguous()
        self._ops, self._rotate_and_lay_out, self._attention = _implementations(
            layers.layers, config.sliding_window, self.device, self._dtype, GROUP_FRAMES if reproducible else 0
        )
        sizes = [layer.self_attn.kv_size for layer in layers.layers]
        no_keys = [torch.empty(2, 0, size, dtype=self._dtype, device=self.device) for size in sizes]
        self._silence = self._no_silence = Silence(0, no_keys, torch.empty(0))
        samples, settled = extent(left_pad, config)
        if settled > CONTEXT_FRAMES:
            keys: list[torch.Tensor] = []
            with torch.no_grad():
                convolved = self._convolve([torch.zeros(samples, device=self.device)], [settled], 0)
                rows = self._encode_frames(convolved, self._layout([settled], 0), self._no_silence, keys)
            self._silence = Silence(samples, keys, rows)
        # in 16 bits the GPU is the limit, and the padding of the groups costs more than the waiting for the host
        self._graphs = self._make_graphs() if isinstance(self._ops, EightBitOps) else None

    def __call__(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each chunk, [tokens, width], in the order of `audio`; see `encode`."""
        rows = dict(self.encode(audio))
        return [rows[i] for i in range(len(audio))]

    def encode(self, audio: Sequence[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the index of each chunk and its rows, [tokens, width].

        The chunks come group by group. A caller that stores the rows of each chunk elsewhere at once never has the rows
        of a whole burst in memory twice.

        Args:
            audio: [samples] for each chunk, 16 kHz, a whole number of tokens. A chunk is on the host or on the
                encoder's device. Only on the host is it checked for silence at its beginning.

        Raises:
            ValueError: a chunk is empty or not a whole number of tokens.
        """
        frames = [self._num_frames(len(samples)) for samples in audio]
        for group, silence in self._groups(audio):
            own_frames = [frames[i] - silence.frames for i in group]
            convolved = self._convolve([audio[i] for i in group], own_frames, silence.frames)
            if self._graphs and silence is self._silence and self._graphs.fit(own_frames):
                rows = self._graphs(convolved, own_frames)
            else:
                rows = self._encode_frames(convolved, self._layout(own_frames, silence.frames), silence)
            for i, chunk_rows in zip(group, rows.split([count // self._pool for count in own_frames]), strict=True):
                yield i, torch.cat((silence.rows, chunk_rows)) if silence.frames else chunk_rows

    def rehearse(self, samples: int) -> None:
        """Encode the largest possible group, of silence, so that vLLM includes its memory when it measures the peak.

        Args:
            samples: length of the longest chunk.
        """
        chunks = max(1, GROUP_FRAMES // self._padded_frames(samples, self._no_silence))
        # audio on a GPU is not checked for silence, so it is encoded in full
        self([torch.zeros(samples, device=self.device)] * chunks)
        self([torch.zeros(samples)])

    def graph_memory(self) -> torch.Tensor | None:
        """Return as much memory as the CUDA graphs will take; None if there are none.

        The graphs are made while requests run, and their memory is not part of the peak that vLLM measures before. A
        caller that holds this memory meanwhile makes it a part.
        """
        if self._graphs is None:
            return None
        return torch.empty(GROUP_FRAMES * FRAME_BYTES, dtype=torch.uint8, device=self.device)

    def _num_frames(self, samples: int) -> int:
        token = self._samples_per_frame * self._pool
        if samples % token or not samples:
            raise ValueError(f"{samples} samples of audio; a request's audio is padded to whole tokens of {token}")
        return samples // self._samples_per_frame

    def _padded_frames(self, samples: int, silence: Silence) -> int:
        """Return the number of frames that a chunk takes in a group, with the padding of its spectrogram."""
        known_samples = max(0, silence.frames - CONTEXT_FRAMES) * self._samples_per_frame
        return self._num_frames(rounded(samples - known_samples))

    def _groups(self, audio: Sequence[torch.Tensor]) -> Iterator[tuple[list[int], Silence]]:
        """Yield the indexes of the chunks of each group, and the silence that these chunks begin with."""
        begins_silent = [self._silence.begins(samples) for samples in audio]
        for silence, is_silent in ((self._silence, True), (self._no_silence, False)):
            members = [i for i, begins in enumerate(begins_silent) if begins is is_silent]
            for group in group_chunks([self._padded_frames(len(audio[i]), silence) for i in members], GROUP_FRAMES):
                yield [members[i] for i in group], silence

    def _make_graphs(self) -> EncoderGraphs | None:
        """Return the graphs for chunks that begin with silence, or None on a device or for shapes without them."""
        silence = self._silence
        if not isinstance(self._attention, Flash) or not silence.frames:
            return None
        frames = self._cos_sin.new_zeros(GROUP_FRAMES, self._layers.conv2.weight.shape[0])
        rows = silence.rows.new_zeros(GROUP_FRAMES // self._pool, silence.rows.shape[1])

        def run_layers(frames: torch.Tensor, layout: Packed) -> torch.Tensor:
            return self._encode_frames(frames, layout, silence)

        return EncoderGraphs(run_layers, silence.frames, frames, rows)

    def _layout(self, frames: Sequence[int], known_frames: int) -> Packed:
        return pack(frames, self.device, known_frames)

    def _encode_frames(
        self, convolved: torch.Tensor, layout: Packed, silence: Silence, keys: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return the rows of convolved frames, [tokens, width]; see `_run_layers`."""
        hidden = self._run_layers(convolved, layout, silence.keys, keys)
        rows: torch.Tensor = self._adapter(hidden.reshape(len(hidden) // self._pool, -1))
        return rows

    def _convolve(self, audio: list[torch.Tensor], frames: list[int], first: int) -> torch.Tensor:
        """Return the convolved frames of all chunks end to end, [total frames, dim].

        `frames[i]` frames of chunk i are returned, from frame `first` on. The convolutions only look back, so the
        padding after the end of a chunk does not reach its frames. The spectrogram begins up to CONTEXT_FRAMES frames
        earlier, because the convolutions read these frames too.
        """
        if self._reproducible and len(audio) > 1:
            chunks = zip(audio, frames, strict=True)
            return torch.cat([self._convolve([waveform], [count], first) for waveform, count in chunks])
        context = min(first, CONTEXT_FRAMES)
        samples = [to_device(waveform, self.device) for waveform in audio]
        conv1, conv2 = self._layers.conv1, self._layers.conv2
        mels = self._spectrogram(samples, (first - context) * self._layers.total_stride)
        hidden = functional.gelu(conv1(mels.transpose(1, 2).to(conv1.weight.dtype)))
        hidden = functional.gelu(conv2(hidden)).transpose(1, 2)[:, context:]
        return torch.cat([chunk[:count] for chunk, count in zip(hidden, frames, strict=True)])

    def _run_layers(
        self,
        residual: torch.Tensor,
        layout: Packed,
        known_pads: Sequence[torch.Tensor],
        keys: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run [frames, dim] through all layers.

        Args:
            known_pads: each layer's keys and values of the shared silence.
            keys: gets the keys and values of each layer, [2, rows, k].
        """
        ops, delta = self._ops, None
        for layer, pads in zip(self._layers.layers, known_pads, strict=True):
            normed, residual = ops.norm(layer.self_attn_layer_norm, residual, delta)
            attended = self._attend(layer.self_attn, normed, layout, pads, keys)
            normed, residual = ops.norm(layer.final_layer_norm, residual, attended)
            gated = ops.gate(layer.mlp.act_fn, ops.multiply(layer.mlp.gate_up_proj, normed))
            delta = ops.multiply(layer.mlp.down_proj, gated)
        return ops.last_norm(self._layers.layer_norm, residual, delta)

    def _attend(
        self, layer: Any, normed: Any, layout: Packed, pads: torch.Tensor, keys: list[torch.Tensor] | None
    ) -> torch.Tensor:
        qkv = self._ops.multiply(layer.qkv_proj, normed)
        kv = qkv.new_empty(2, sum(layout.key_lengths), layer.kv_size)
        self._rotate_and_lay_out(qkv, kv, pads, self._cos_sin, layout, layer.head_dim)
        if keys is not None:
            keys.append(kv)
        q, k, v = (part.unflatten(1, (-1, layer.head_dim)) for part in (qkv[:, : layer.q_size], *kv))
        return self._ops.multiply(layer.out_proj, self._attention(q, k, v, layout).flatten(1))


def _implementations(
    layers: Sequence[Any], window: int, device: torch.device, dtype: torch.dtype, expected_length: int
) -> tuple[TorchOps, RotateAndLayOut, Attention]:
    """Return the implementations of a layer's parts: CUDA kernels on a GPU in 16 bits, and PyTorch's functions else.

    Args:
        layers: vLLM's WhisperCausalEncoderLayers.
        window: number of frames that a frame attends to, with itself.
        expected_length: see Flash.
    """
    attention, version = layers[0].self_attn, None
    scale = attention.scaling
    if device.type == "cuda" and dtype != torch.float32:
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

        version = get_flash_attn_version(head_size=attention.head_dim)
    if not version:
        return TorchOps(), rotate_and_lay_out, Masked(window, scale)
    from voxbatch.vllm.plugin import rotary_kernel

    ops = EightBitOps(dtype) if EightBitOps.fits(layers) else FusedOps()
    return ops, rotary_kernel.rotate_and_lay_out, Flash(window, scale, version, expected_length)
