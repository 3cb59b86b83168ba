"""Voxtral TTS's flow matching: the hidden state of the language model → the codes of the next frame.

The first code is the likeliest one. The other 36 come from noise, which seven steps of Euler's method move along a
velocity. A small transformer gives the velocity, from three tokens: the place, the time and the hidden state. Each step
is calculated with the hidden state and without it (classifier-free guidance).

The shapes depend on the number of rows alone, and no value is read on the host, so that a CUDA graph can hold `codes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm.plugin.speech.layer_ops import LayerOps

EMPTY_CODE, END_CODE, NUM_SPECIAL = 0, 1, 2
"""Codes that are no sound; the codes of sounds follow them."""
STEPS = 7
"""Steps of Euler's method. The published params.json does not state them (vllm-omni, parsers/voxtral_tts.py)."""
GUIDANCE = 1.2
"""Weight of the velocity with the hidden state (cfg_alpha of vllm-omni)."""
_THETA = 1e4
"""Longest wavelength of the embedding of the time."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of a layer. Matrices that have the same input are one."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class FlowMatching:
    """The flow matching of a model.

    Args:
        weights: its tensors by their names in the checkpoint, without the prefix `acoustic_transformer.`, on the
            model's device.
        args: `multimodal.audio_model_args` of params.json.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], args: Mapping[str, Any]) -> None:
        sizes = args["acoustic_transformer_args"]
        heads, kv_heads, head_dim = (int(sizes[name]) for name in ("n_heads", "n_kv_heads", "head_dim"))
        self._ops = LayerOps(heads, kv_heads, head_dim, float(sizes.get("norm_eps", 1e-5)))
        if weights["norm.weight"].is_cuda:
            from voxbatch.vllm.plugin.speech.fused_ops import FusedLayerOps  # needs vLLM's kernels

            self._ops = FusedLayerOps(*astuple(self._ops))
        self.num_acoustic, self._levels = int(args["n_acoustic_codebook"]), int(args["acoustic_codebook_size"])
        self._num_semantic = NUM_SPECIAL + int(args["semantic_codebook_size"])
        self._semantic = weights["semantic_codebook_output.weight"]
        self._acoustic = weights["acoustic_codebook_output.weight"]
        self._place, self._hidden = weights["input_projection.weight"], weights["llm_projection.weight"]
        self._norm = weights["norm.weight"]
        self._layers = [_layer(weights, f"layers.{number}") for number in range(int(sizes["n_layers"]))]
        dtype, device = self._semantic.dtype, self._semantic.device
        exact = {"dtype": torch.float32, "device": "cpu"}  # vLLM loads weights with the model's dtype as the default
        times = torch.linspace(0, 1, int(sizes.get("n_decoding_steps") or STEPS) + 1, **exact).to(dtype)
        self._deltas = [float(delta) for delta in times[1:] - times[:-1]]
        half = int(sizes["dim"]) // 2
        waves = times.float()[:, None] * torch.exp(
            -torch.tensor(_THETA, **exact).log() * torch.arange(half, **exact) / half
        )
        embedded = torch.cat((waves.cos(), waves.sin()), 1).to(dtype).to(device)
        self._times = functional.linear(embedded, weights["time_projection.weight"])

    def codes(self, hidden: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return the codes of a frame for each row, [rows, 37], int64.

        Args:
            hidden: [rows, width]: hidden states of the language model.
            noise: [rows, 36]: normal random numbers.
        """
        scores = functional.linear(hidden, self._semantic).float()
        scores[:, EMPTY_CODE] = -torch.inf
        scores[:, self._num_semantic :] = -torch.inf
        semantic = scores.argmax(1, keepdim=True)
        projected = functional.linear(hidden, self._hidden)
        projected = torch.cat((projected, torch.zeros_like(projected)))
        place = noise.to(hidden.dtype)
        for time, delta in zip(self._times[:-1], self._deltas, strict=True):
            guided, free = self._velocity(torch.cat((place, place)), time, projected).chunk(2)
            place = place + (GUIDANCE * guided + (1 - GUIDANCE) * free) * delta
        acoustic = ((place.clamp(-1, 1) + 1) / 2 * (self._levels - 1)).round().long()
        acoustic = torch.where(semantic == END_CODE, EMPTY_CODE, acoustic)
        return torch.cat((semantic, acoustic + NUM_SPECIAL), 1)

    def _velocity(self, place: torch.Tensor, time: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the velocity at each row's place, [rows, 36].

        Args:
            place: [rows, 36].
            time: [width], the embedding of the time.
            hidden: [rows, width], the projected hidden states.
        """
        residual = torch.stack((functional.linear(place, self._place), time.expand_as(hidden), hidden), 1)
        delta = None
        for layer in self._layers:
            x, residual = self._ops.norm(residual, delta, layer.attention_norm)
            delta = functional.linear(self._ops.attend(functional.linear(x, layer.qkv)), layer.output)
            x, residual = self._ops.norm(residual, delta, layer.ffn_norm)
            delta = functional.linear(self._ops.gate(functional.linear(x, layer.gate_up)), layer.down)
        assert delta is not None
        x, _ = self._ops.norm(residual[:, 0].contiguous(), delta[:, 0].contiguous(), self._norm)
        return functional.linear(x, self._acoustic)


def _layer(weights: Mapping[str, torch.Tensor], name: str) -> _Layer:
    attention, network = f"{name}.attention", f"{name}.feed_forward"
    return _Layer(
        weights[f"{name}.attention_norm.weight"],
        torch.cat([weights[f"{attention}.{part}.weight"] for part in ("wq", "wk", "wv")]),
        weights[f"{attention}.wo.weight"],
        weights[f"{name}.ffn_norm.weight"],
        torch.cat([weights[f"{network}.{part}.weight"] for part in ("w1", "w3")]),
        weights[f"{network}.w2.weight"],
    )
