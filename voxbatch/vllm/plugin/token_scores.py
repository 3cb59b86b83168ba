"""Scores of sampled tokens, on their way from the sampler to the scheduler: log-probabilities and entropies, in nats.

The log-probability is that of the model's own distribution, as in vLLM's `logprobs` (raw_logprobs). vLLM's own way to
it is too slow here: it converts all logits to float32, writes their log-softmax, ranks the tokens, and makes Python
objects for each token (5 µs in the engine's process and 10 µs in the front end, on a slow core: 15 ms a step of 1,024
requests). This module makes two numbers for each request, which travel with the sampled tokens: the runner
copies both to the host by the same stream, and nothing waits for the scores alone.
"""

from __future__ import annotations

import torch


class StepScores:
    """The scores of one step, [requests, 2], float32: the log-probability of each sampled token and the entropy.

    It stands in the place of vLLM's LogprobsTensors and has the two methods that the runner calls.
    """

    def __init__(self, scores: torch.Tensor):
        self.scores = scores

    def to_cpu_nonblocking(self) -> StepScores:
        """Return a copy on the host. Its numbers are there when the runner's copy stream is done."""
        return StepScores(self.scores.to("cpu", non_blocking=True))

    def tolists(self) -> StepScores:
        """Return the scores on the host."""
        return StepScores(self.scores.cpu())


def score(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token and the entropy of its row, [requests, 2], float32.

    Args:
        logits: [requests, vocabulary].
        tokens: [requests, 1]: the sampled tokens.
    """
    if logits.is_cuda:
        from voxbatch.vllm.plugin.score_kernel import score_rows

        out = logits.new_empty((len(logits), 2), dtype=torch.float32)
        score_rows(logits, tokens, out)
        return out
    logprobs = logits.float().log_softmax(dim=-1)
    entropies = torch.special.entr(logprobs.exp()).sum(dim=-1, keepdim=True)
    return torch.cat((logprobs.gather(1, tokens.long()), entropies), dim=1)
