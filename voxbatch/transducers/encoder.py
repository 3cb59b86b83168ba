"""The FastConformer encoder of Parakeet, for large batches on a GPU: packed features in, frames out.

It has the weights of transformers' ParakeetEncoder and gives its numbers. What differs:

- Clips are packed into rows (`packing`): attention stays inside a clip, and what lies between clips is 0 before each
  convolution, as padding is.
- Fewer values go through memory. transformers copies the scores of the relative positions five times in each layer, and
  calls cuDNN for a depthwise convolution that is nine multiplications. Here the shift of the positions is a view, the
  batch norm is folded into the convolution, and one function is a whole layer, so that PyTorch compiles it once for all
  layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

SUBSAMPLED_ROWS = 16
"""Rows whose features are subsampled at a time: the first convolution makes 60 MB of each second of a row."""
MAX_KEYS = 8
"""Lengths of rows whose keys of positions are kept: 37 MB each."""


class ConformerEncoder:
    """The encoder.

    Args:
        encoder: transformers' ParakeetEncoder, with its weights, in evaluation mode.
    """

    def __init__(self, encoder: Any):
        self._encoder = encoder
        encoder.subsampling.to(memory_format=torch.channels_last)
        self._keys: dict[int, list[torch.Tensor]] = {}
        self._compiled_rows = 0
        self._recordings: dict[torch.Size, _EncoderGraph] = {}

    def compile(self, num_rows: int) -> None:
        """Compile the encoder for each length of so many rows at the first call with it, which takes some seconds."""
        self._compiled_rows = num_rows

    def __call__(self, features: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
        """Return the encoded frames of rows. A compiled encoder overwrites them at the next call with this shape.

        Args:
            features: shape (num_rows, num_features, num_mel_bins), 0 between clips.
            clips: int8, number of the clip of each feature in its row, -1 between clips: shape (num_rows,
                num_features). A clip begins at a multiple of the subsampling factor.

        Returns:
            Shape (num_rows, num_features / subsampling factor, hidden_size).
        """
        if len(features) != self._compiled_rows:
            return self._encoded(subsampled, layer, features, clips)
        recording = self._recordings.get(features.shape)
        if recording is None:
            compiled = functools.partial(self._encoded, *(torch.compile(part, dynamic=False) for part in PARTS))
            recording = self._recordings[features.shape] = _EncoderGraph(compiled, features, clips)
        return recording(features, clips)

    def _encoded(
        self,
        subsampled: Callable[..., torch.Tensor],
        layer: Callable[..., torch.Tensor],
        features: torch.Tensor,
        clips: torch.Tensor,
    ) -> torch.Tensor:
        encoder = self._encoder
        parts = zip(features.split(SUBSAMPLED_ROWS), clips.split(SUBSAMPLED_ROWS), strict=True)
        hidden = torch.cat([subsampled(encoder.subsampling, *part) for part in parts]) * encoder.input_scale
        num_frames = hidden.shape[1]
        clips = clips[:, :: features.shape[1] // num_frames]
        keys = self._keys.get(num_frames)
        if keys is None:
            positions = encoder.encode_positions(hidden[:1])[0]
            keys = [relative_keys(block.self_attn, positions) for block in encoder.layers]
            if len(self._keys) < MAX_KEYS:
                self._keys[num_frames] = keys
        for block, block_keys in zip(encoder.layers, keys, strict=True):
            hidden = layer(block, hidden, block_keys, clips)
        return hidden


class _EncoderGraph:
    """The calls of the encoder for one shape as a CUDA graph. A replay costs the CPU a fiftieth of the calls."""

    def __init__(self, encoded: Callable[..., torch.Tensor], *inputs: torch.Tensor):
        self._inputs = [tensor.clone() for tensor in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            encoded(*self._inputs)  # compiles, and lets libraries allocate their work space
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread copies samples meanwhile: only calls of this thread may not disturb the recording.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = encoded(*self._inputs)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._output


def subsampled(module: Any, features: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return the subsampled features, shape (num_rows, num_frames, hidden_size).

    A convolution with a stride of 2 halves the lengths of clips, rounded up: the new frame i is one of the clip if the
    old frame 2i was.
    """
    hidden = features.unsqueeze(1)
    for part in module.layers:
        hidden = part(hidden)
        if isinstance(part, torch.nn.Conv2d):
            clips = clips[:, :: part.stride[0]]
            hidden = hidden * (clips >= 0)[:, None, :, None]
    output: torch.Tensor = module.linear(hidden.transpose(1, 2).flatten(2))
    return output


def relative_keys(attention: Any, positions: torch.Tensor) -> torch.Tensor:
    """Return the projected relative positions, shape (num_heads, head_size, num_distances).

    One distance is added, so that the rows of scores have a length for which tensor cores are fast.

    Args:
        positions: embeddings of the distances num_frames - 1 … 1 - num_frames, shape (2 num_frames - 1, hidden_size).
    """
    keys = functional.pad(attention.relative_k_proj(positions), (0, 0, 0, 1))
    return keys.view(len(keys), -1, attention.head_dim).permute(1, 2, 0).contiguous()


def layer(block: Any, hidden: torch.Tensor, keys: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return the output of one layer: half a feed-forward, attention, convolution, half a feed-forward, and a norm."""
    hidden = hidden + 0.5 * feed_forward(block.feed_forward1, block.norm_feed_forward1(hidden))
    hidden = hidden + attended(block.self_attn, block.norm_self_att(hidden), keys, clips)
    hidden = hidden + convolved(block.conv, block.norm_conv(hidden), clips)
    hidden = hidden + 0.5 * feed_forward(block.feed_forward2, block.norm_feed_forward2(hidden))
    output: torch.Tensor = block.norm_out(hidden)
    return output


def feed_forward(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the output of a feed-forward module."""
    output: torch.Tensor = module.linear2(module.activation(module.linear1(hidden)))
    return output


def attended(module: Any, hidden: torch.Tensor, keys: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return the attention of each frame to the frames of its clip, with relative positions (Transformer-XL, arXiv
    1901.02860, appendix B).

    The score of the frames i and j has the key of the distance i - j. Among the scores of all distances, that of j = 0
    is one element further to the left for each i. So rows that are one element shorter are the shifted scores.
    """
    rows, frames, _ = hidden.shape
    heads, _, distances = keys.shape
    query, key, value = (
        projection(hidden).view(rows, frames, heads, -1) for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    by_distance = ((query + module.bias_v) * module.scaling).transpose(1, 2) @ keys
    strides = (heads * frames * distances, frames * distances, distances - 1, 1)
    bias = by_distance.as_strided((rows, heads, frames, frames), strides, frames - 1)
    # Frames between clips attend to each other: a softmax over nothing is not a number.
    bias = bias.masked_fill(clips[:, None, :, None] != clips[:, None, None, :], float("-inf"))
    output = functional.scaled_dot_product_attention(
        (query + module.bias_u).transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=bias,
        scale=module.scaling,
    )
    projected: torch.Tensor = module.o_proj(output.transpose(1, 2).reshape(rows, frames, -1))
    return projected


def convolved(module: Any, hidden: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return the output of the convolution module, in whose depthwise convolution the batch norm is folded."""
    pointwise = module.pointwise_conv1
    hidden = functional.glu(functional.linear(hidden, pointwise.weight[:, :, 0], pointwise.bias))
    hidden = hidden * (clips >= 0).unsqueeze(-1)
    depthwise, norm = module.depthwise_conv, module.norm
    scale = norm.weight.float() * torch.rsqrt(norm.running_var.float() + norm.eps)
    taps = depthwise.weight[:, 0].float() * scale[:, None]
    output = norm.bias.float() - norm.running_mean.float() * scale
    if depthwise.bias is not None:
        output = output + depthwise.bias.float() * scale
    padded = functional.pad(hidden, (0, 0, module.padding, module.padding))
    for tap in range(taps.shape[1]):
        output = output + padded[:, tap : tap + hidden.shape[1]].float() * taps[:, tap]
    pointwise = module.pointwise_conv2
    activated = module.activation(output).to(hidden.dtype)
    return functional.linear(activated, pointwise.weight[:, :, 0], pointwise.bias)


PARTS = subsampled, layer
"""The functions that are compiled."""
