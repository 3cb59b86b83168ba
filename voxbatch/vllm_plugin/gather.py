"""Audio rows of a step's positions, fetched from the encoder output pool (`shelf`) by one indexed copy.

vLLM's runner cuts a slice for each request in each step and joins the slices again. With 512 requests this takes 1.5 ms
of Python and as many tensors. Here the host computes one row number for each position, in NumPy, and the GPU fetches
all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from voxbatch.vllm_plugin.packing import sent
from voxbatch.vllm_plugin.shelf import Shelf

Gather = Callable[..., tuple[Any, torch.Tensor]]


class Rows(list[torch.Tensor]):
    """Row numbers in the encoder output pool, one for each position of the step. They replace the runner's list of
    slices."""


def indexed(slices: Gather) -> Gather:
    """Return the runner's `_gather_mm_embeddings` for a model that has an encoder output pool.

    Args:
        slices: vLLM's own method. It is called if any audio of the step is outside the pool.
    """

    def gather(runner: Any, scheduler_output: Any, shift_computed_tokens: int = 0) -> tuple[Any, torch.Tensor]:
        shelf = getattr(runner.get_model(), "shelf", None)
        rows = _rows(runner, scheduler_output, shelf) if shelf is not None and not shift_computed_tokens else None
        if rows is None:
            return slices(runner, scheduler_output, shift_computed_tokens)
        return Rows([sent(rows, runner.device)]), torch.empty(0, dtype=torch.bool)

    return gather


def _rows(runner: Any, scheduler_output: Any, shelf: Shelf) -> np.ndarray | None:
    """Return the row number of each position, [positions], int64; None if a request's audio is outside the pool."""
    names = runner.input_batch.req_ids
    counts = _counts(scheduler_output, names)
    done = runner.input_batch.num_computed_tokens_cpu[: len(names)]
    for name in _let_in(scheduler_output):
        shelf.note(name, _encoded(runner, name))
    if shelf.is_crowded:
        shelf.keep_only(runner.requests)
    begins = shelf.begins(names)
    if begins is None:
        return None
    first = begins + done
    if counts.max() > 1:
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = np.repeat(first, counts) + within
    # A step that runs ahead may go past a request's end. Nobody reads those rows, so any existing row will do.
    found: np.ndarray = np.minimum(first, shelf.last)
    return found


def _let_in(scheduler_output: Any) -> Iterator[str]:
    """Yield the requests in their first step, and those that resume after a preemption.

    Their first positions may be computed already.
    """
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id
    yield from scheduler_output.scheduled_cached_reqs.resumed_req_ids


def _counts(scheduler_output: Any, names: Sequence[str]) -> np.ndarray:
    """Return the number of positions of each request in the step, [names], int64."""
    if scheduler_output.total_num_scheduled_tokens == len(names):  # each request has at least one position
        return np.ones(len(names), np.int64)
    return np.fromiter((scheduler_output.num_scheduled_tokens[name] for name in names), np.int64, len(names))


def _encoded(runner: Any, name: str) -> torch.Tensor | None:
    found: torch.Tensor | None = runner.encoder_cache.get(runner.requests[name].mm_features[0].identifier)
    return found
