"""Requests are admitted in bursts, and every request is admitted in the end."""

from __future__ import annotations

import numpy as np
import pytest

from voxbatch.vllm_plugin.scheduler.admission import BURSTS, MAX_BURST, burst_size


@pytest.mark.parametrize("most", [1, 2, 5, 14, 28, 512])
@pytest.mark.parametrize("crowd", [0, 0.01, 0.5, 1, 10.1])
@pytest.mark.parametrize("at_once", [3, 1_000])
def test_every_waiting_request_is_admitted(most: int, crowd: float, at_once: int) -> None:
    """Waiting requests are always admitted in the end, in few steps: one for each burst.

    This holds for any number of waiting requests, any maximum of a step, and any ends of the running requests.
    """
    rng = np.random.default_rng(most)
    total = waiting = round(crowd * most)
    running, steps, admitting = list[int](), 0, 0
    while waiting or running:
        admitted = min(waiting, at_once, most - len(running)) if most - len(running) >= burst_size(most) else 0
        running += rng.integers(1, 400, admitted).tolist()
        waiting -= admitted
        admitting += admitted > 0
        running = [left - 1 for left in running if left > 1]
        steps += 1
        assert steps <= 400 * (total + 1)
    assert admitting <= 2 + total / min(at_once, burst_size(most))


def test_burst_size() -> None:
    """A burst is a fourteenth of the requests that may run, at least one and at most MAX_BURST."""
    assert [burst_size(most) for most in (1, 13, 28, 36 * BURSTS, 1_024)] == [1, 1, 2, MAX_BURST, MAX_BURST]
