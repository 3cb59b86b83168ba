"""CUDA kernel for the scores of sampled tokens: one pass over the logits of a step.

1,024 requests of 131,072 logits in bfloat16 are 268 MB: 0.1 ms at 3 TB/s, where a step of so many requests takes 18 ms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 8_192
"""Number of logits that a program reads at a time."""
WARPS = 8


def score_rows(logits: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """Write the log-probability of each row's token and the entropy of the row, in nats, to `out`.

    The sums are in float32. A logit of -inf has the probability 0.

    Args:
        logits: [rows, vocabulary], in any floating-point format. The logits of a row are contiguous.
        tokens: [rows, 1], the index of a logit in each row.
        out: [rows, 2], float32.
    """
    rows, vocabulary = logits.shape
    _score[(rows,)](logits, tokens, out, vocabulary, logits.stride(0), tokens.stride(0), BLOCK=BLOCK, num_warps=WARPS)


@triton.jit
def _score(logits, tokens, out, vocabulary, logits_row, tokens_row, BLOCK: tl.constexpr):
    """Score one row per program, by the online softmax (Milakov and Gimelshein, 2018).

    With m the highest logit, Z = Σ exp(x - m) and T = Σ exp(x - m) (x - m), the log-probability of a token is
    x - m - log Z, and the entropy is log Z - T / Z.
    """
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * logits_row
    highest, total, weighted = -1e30, 0.0, 0.0
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(begin + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        share, fade = tl.exp(x - higher), tl.exp(highest - higher)
        weighted = (weighted + total * (highest - higher)) * fade
        weighted += tl.sum(tl.where(share > 0, share * (x - higher), 0.0), 0)
        total, highest = total * fade + tl.sum(share, 0), higher
    token = tl.load(tokens + row * tokens_row)
    chosen = tl.load(begin + token).to(tl.float32)
    tl.store(out + row * 2, chosen - highest - tl.log(total))
    tl.store(out + row * 2 + 1, tl.log(total) - weighted / total)
