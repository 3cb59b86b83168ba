"""Tiny encoder and adapter with random weights. They have the names and the interface of vLLM's, but do not use
vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DIM, HEADS, HEAD, HIDDEN, WIDTH, POOL, LAYERS = 16, 2, 8, 24, 12, 4, 3
MELS = 20


def tower(window: int, seed: int = 0) -> tuple[Any, Any]:
    """Return a stand-in for vLLM's VoxtralEncoderModel, with a window of `window` frames, and the adapter."""
    torch.manual_seed(seed)
    config = SimpleNamespace(
        block_pool_size=POOL, hop_length=160, window_size=400, global_log_mel_max=1.5, sliding_window=window
    )
    rotary = _rotary(4_096)
    encoder = SimpleNamespace(
        conv1=_Convolution(MELS, 1), conv2=_Convolution(DIM, 2), total_stride=2, layer_norm=_Norm(),
        layers=[_layer(rotary) for _ in range(LAYERS)],
    )  # fmt: skip
    whole = SimpleNamespace(
        config=config, dtype=torch.float32, mel_filters=torch.rand(201, MELS), whisper_encoder=encoder
    )
    return whole, nn.Linear(POOL * DIM, WIDTH)


def _layer(rotary: Any) -> Any:
    size = HEADS * HEAD
    attention = SimpleNamespace(
        qkv_proj=_Product(DIM, 3 * size), rotary_emb=rotary, out_proj=_Product(size, DIM), head_dim=HEAD,
        q_size=size, kv_size=size, scaling=HEAD**-0.5,
    )  # fmt: skip
    gated = SimpleNamespace(gate_up_proj=_Product(DIM, 2 * HIDDEN), act_fn=_Gate(), down_proj=_Product(HIDDEN, DIM))
    return SimpleNamespace(
        self_attn_layer_norm=_Norm(), self_attn=attention, final_layer_norm=_Norm(), mlp=gated, embed_dim=DIM
    )


def _rotary(positions: int) -> Any:
    angles = torch.outer(torch.arange(positions), 1 / 100 ** (torch.arange(0, HEAD, 2) / HEAD))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return SimpleNamespace(cos_sin_cache=cache)


class _Convolution(nn.Conv1d):  # type: ignore[misc]
    """Causal convolution over 3 frames."""

    def __init__(self, inputs: int, stride: int):
        super().__init__(inputs, DIM, 3, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.pad(x, (3 - self.stride[0], 0)))


class _Product(nn.Linear):  # type: ignore[misc]
    """Linear layer that counts its input rows in `rows` since `rows` was last set to 0."""

    rows = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.rows += len(x)
        return super().forward(x), None


class _Norm:
    def __init__(self) -> None:
        self.weight = torch.rand(DIM) + 0.5

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class _Gate:
    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up
