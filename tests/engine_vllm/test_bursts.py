"""Requests are admitted in bursts, and every request is admitted in the end."""

from __future__ import annotations

import numpy as np
import pytest

from voxbatch.engines.vllm.bursts import LARGEST, opens, size


@pytest.mark.parametrize("most", [1, 2, 5, 14, 28, 512])
@pytest.mark.parametrize("crowd", [0, 0.01, 0.5, 1, 10.1])
@pytest.mark.parametrize("at_once", [3, 1_000])
def test_nobody_waits_for_ever(most: int, crowd: float, at_once: int) -> None:
    """Waiting requests are always admitted in the end, in few steps: one for each burst.

    This holds for any number of waiting requests, any maximum of a step, and any ends of the running requests.
    """
    rng = np.random.default_rng(most)
    total = waiting = round(crowd * most)
    running, steps, admitting = list[int](), 0, 0
    while waiting or running:
        admitted = min(waiting, at_once, most - len(running)) if opens(len(running), most) else 0
        running += rng.integers(1, 400, admitted).tolist()
        waiting -= admitted
        admitting += admitted > 0
        running = [left - 1 for left in running if left > 1]
        steps += 1
        assert steps <= 400 * (total + 1)
    assert admitting <= 2 + total / min(at_once, size(most))


def test_the_door() -> None:
    """Admission opens when a whole burst fits, or when nothing runs.

    Of 28 requests a burst is 2. Of 1,024 requests a burst has its maximum size.
    """
    assert not opens(27, 28)
    assert opens(26, 28)
    assert opens(0, 28)
    assert opens(0, 1)
    assert not opens(1, 1)
    assert not opens(1_024 - LARGEST + 1, 1_024)
    assert opens(1_024 - LARGEST, 1_024)
