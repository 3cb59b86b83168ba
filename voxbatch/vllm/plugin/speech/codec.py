"""Voxtral TTS's codec: the codes of a speech → samples at 24 kHz.

A speech is cut into windows of one length, each with CONTEXT frames of the window before it in front. The codec looks
back 21 frames, so the samples are those of the whole speech. Windows of several speeches are decoded in batches of one
size, so that the samples of a speech do not depend on the others.

The decoder is a convolution, then four pairs of transformer layers, with a convolution that doubles the rate between
them: 12.5 frames a second become 100 patches of 240 samples. All of it is causal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm.plugin.speech import FRAME
from voxbatch.vllm.plugin.speech.flow_matching import NUM_SPECIAL

WINDOW, CONTEXT = 88, 24
"""Frames of a window, and of its beginning that the window before it has already."""
BATCH = 16
"""Windows that a GPU decodes at a time. A CPU decodes one."""


class Codec:
    """The decoder of a codec.

    Args:
        weights: its tensors by their names in the checkpoint, without the prefix `audio_tokenizer.`, on the model's
            device.
        args: `multimodal.audio_tokenizer_args` of params.json.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], args: Mapping[str, Any]) -> None:
        self._weights, self._args = weights, args
        self._heads, self._head_dim = int(args["n_heads"]), int(args["head_dim"])
        self._eps, self._levels = float(args["norm_eps"]), int(args["acoustic_codebook_size"])
        lengths, kernels, self._strides = (
            [int(number) for number in args[f"decoder_{name}_str"].split(",")]
            for name in ("transformer_lengths", "convs_kernels", "convs_strides")
        )
        self._lengths, self._kernels = lengths, kernels
        usage = weights["quantizer.semantic_codebook.cluster_usage"].float().clamp(min=1e-5)
        sums = weights["quantizer.semantic_codebook.embedding_sum"].float()
        self._dtype = weights["output_proj.conv.parametrizations.weight.original1"].dtype
        self._semantic = (sums / usage[:, None]).to(self._dtype)
        self._convolutions = dict[str, torch.Tensor]()
        for name in (*(f"decoder_blocks.{2 * number}" for number in range(len(lengths))), "output_proj"):
            # the checkpoint has direction and length of the weight (weight normalisation)
            length, direction = (weights[f"{name}.conv.parametrizations.weight.original{part}"] for part in (0, 1))
            self._convolutions[name] = direction * (length / direction.norm(dim=(1, 2), keepdim=True))
        device = self._semantic.device
        self._batch = 1 if device.type == "cpu" else BATCH
        slopes = [2.0 ** (-8 * head / self._heads) for head in range(self._heads)]
        self._steepness = torch.tensor(slopes, dtype=torch.float32, device=device)[:, None, None]

    def samples(self, speeches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the samples of speeches, float32, on the host.

        Args:
            speeches: [frames, 37] each, at least one frame; with the special codes, but without the end.
        """
        windows, kept, counts = [], [], []
        for speech in speeches:
            starts = range(0, max(1, len(speech) - CONTEXT), WINDOW - CONTEXT)
            counts.append(len(starts))
            for start in starts:
                window = speech[start : start + WINDOW]
                windows.append(functional.pad(window, (0, 0, 0, WINDOW - len(window)), value=NUM_SPECIAL))
                kept.append((CONTEXT if start else 0, len(window)))
        decoded: list[torch.Tensor] = []
        for first in range(0, len(windows), self._batch):
            batch = torch.stack(windows[first : first + self._batch])
            filled = functional.pad(batch, (0, 0, 0, 0, 0, self._batch - len(batch)), value=NUM_SPECIAL)
            decoded += self.decode(filled)[: len(batch)].float().to("cpu", non_blocking=True)
        if self._semantic.is_cuda:
            torch.cuda.current_stream().synchronize()
        parts = iter(part[begin * FRAME : end * FRAME] for part, (begin, end) in zip(decoded, kept, strict=True))
        return [torch.cat([next(parts) for _ in range(count)]) for count in counts]

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the samples of windows, [windows, frames * 1920].

        Args:
            codes: [windows, frames, 37], with the special codes.
        """
        codes = codes.long() - NUM_SPECIAL
        acoustic = codes[..., 1:] * 2 / (self._levels - 1) - 1
        x = torch.cat((functional.embedding(codes[..., 0], self._semantic), acoustic.to(self._dtype)), -1)
        x = self._convolved(x.transpose(1, 2), "decoder_blocks.0", self._kernels[0], "replicate")
        reach = int(self._args["attn_sliding_window_size"])
        for stride in self._strides:
            reach //= stride
        for stage, length in enumerate(self._lengths):
            if stage:
                stride, weight = self._strides[stage], self._convolutions[f"decoder_blocks.{2 * stage}"]
                length_after = x.shape[-1] * stride  # what would depend on later frames is cut off
                x = functional.conv_transpose1d(x, weight, stride=stride)[..., :length_after]
            reach *= self._strides[stage]
            x = x.transpose(1, 2)
            for number in range(length):
                x = self._layer(x, f"decoder_blocks.{2 * stage + 1}.layers.{number}", reach)
            x = x.transpose(1, 2)
        x = self._convolved(x, "output_proj", int(self._args["patch_proj_kernel_size"]), "reflect")
        return x.transpose(1, 2).flatten(1)

    def _convolved(self, x: torch.Tensor, name: str, kernel: int, mode: str) -> torch.Tensor:
        return functional.conv1d(functional.pad(x, (kernel - 1, 0), mode=mode), self._convolutions[name])

    def _layer(self, x: torch.Tensor, name: str, reach: int) -> torch.Tensor:
        normed = self._normed(x, f"{name}.attention_norm", self._eps)
        x = x + self._weights[f"{name}.attention_scale"] * self._attention(normed, f"{name}.attention", reach)
        normed, network = self._normed(x, f"{name}.ffn_norm", self._eps), f"{name}.feed_forward"
        inner = functional.silu(self._product(normed, f"{network}.w1")) * self._product(normed, f"{network}.w3")
        return x + self._weights[f"{name}.ffn_scale"] * self._product(inner, f"{network}.w2")

    def _attention(self, x: torch.Tensor, name: str, reach: int) -> torch.Tensor:
        """Return what each position reads from itself and `reach` positions before it; near ones count more (ALiBi)."""
        eps = float(self._args["qk_norm_eps"])
        q = self._normed(self._product(x, f"{name}.wq"), f"{name}.q_norm", eps)
        k = self._normed(self._product(x, f"{name}.wk"), f"{name}.k_norm", eps)
        places = torch.arange(x.shape[1], device=x.device)
        distance = places[None, :] - places[:, None]
        outside = (distance > 0) | (distance < -reach)
        mask = (self._steepness * distance).masked_fill(outside, -torch.inf).to(x.dtype)
        mask = mask[None] if mask.is_cuda else mask  # CUDA's fast attention takes no mask of three dimensions
        q, k, v = (
            part.view(*x.shape[:2], -1, self._head_dim).transpose(1, 2)
            for part in (q, k, self._product(x, f"{name}.wv"))
        )
        read = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=k.shape[1] != self._heads)
        return self._product(read.transpose(1, 2).flatten(2), f"{name}.wo")

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"])

    def _normed(self, x: torch.Tensor, name: str, eps: float) -> torch.Tensor:
        weight = self._weights[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, eps)
