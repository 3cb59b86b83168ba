"""Scores of the tokens of all unfinished requests, and of each request in one piece when it has finished.

The sampler's scores of a step (see voxbatch.vllm.plugin.token_scores) come in the order of the model's batch. With a
thousand requests, a list for each of them would take more time than the scheduler has. So they are rows of one array,
and a step is written by one indexed assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np


class ScoreTable:
    """The scores of unfinished requests.

    The number of a token within its request decides its place. So preemptions, steps that run ahead and steps without
    scores put no score in a wrong place; a token without a score has NaN.
    """

    def __init__(self, max_tokens: int):
        """Make an empty table."""
        self._scores = np.empty((0, max_tokens, 2), np.float32)
        self._counts = np.empty(0, np.int64)
        """Number of tokens of the request of each row."""
        self._rows: dict[str, int] = {}
        self._free: list[int] = []

    def add(self, requests: Sequence[Any], scores: np.ndarray | None, live: Collection[str]) -> None:
        """Store the scores of a step.

        Args:
            requests: vLLM's request of each row of the batch, after the step's tokens were appended to it. None for a
                request that had ended before.
            scores: [batch, 2], or None for a step without scores.
            live: ids of all requests that have not ended.
        """
        batch = np.arange(len(requests))
        if None in requests:
            batch = np.array([row for row, request in enumerate(requests) if request is not None], np.int64)
            requests = [request for request in requests if request is not None]
        rows = self._rows_of([request.request_id for request in requests], live)
        counts = np.fromiter((len(request._output_token_ids) for request in requests), np.int64, len(requests))
        has_new = counts > self._counts[rows]
        self._counts[rows] = counts
        if scores is not None:
            self._scores[rows[has_new], counts[has_new] - 1] = scores[batch[has_new]]

    @property
    def is_empty(self) -> bool:
        """Return whether no request has a row."""
        return not self._rows

    def pop(self, name: str) -> np.ndarray | None:
        """Return the scores of a finished request, [tokens, 2], and forget it. None for a request without scores."""
        if (row := self._rows.pop(name, None)) is None:
            return None
        self._free.append(row)
        return self._scores[row, : self._counts[row]].copy()

    def _rows_of(self, names: list[str], live: Collection[str]) -> np.ndarray:
        """Return the row of each request. A new request gets one.

        If the free rows are too few, take back those of requests that were aborted. If these are too few as well, make
        the table larger.
        """
        if missing := [name for name in names if name not in self._rows]:
            if len(self._free) < len(missing):
                active = {*names, *live}
                for name in [name for name in self._rows if name not in active]:
                    self._free.append(self._rows.pop(name))
            if (lacking := len(missing) - len(self._free)) > 0:
                used = len(self._scores)
                growth = max(lacking, used)
                self._scores = np.concatenate([self._scores, np.empty((growth, *self._scores.shape[1:]), np.float32)])
                self._counts = np.concatenate([self._counts, np.zeros(growth, np.int64)])
                self._free += range(used, used + growth)
            for name in missing:
                row = self._rows[name] = self._free.pop()
                self._scores[row], self._counts[row] = np.nan, 0
        return np.fromiter(map(self._rows.__getitem__, names), np.int64, len(names))
