"""Requests are admitted in bursts, and every one of them at last."""

from __future__ import annotations

import numpy as np
import pytest

from voxbatch.engines.vllm.bursts import opens, size, stays_open


@pytest.mark.parametrize("most", [1, 2, 5, 14, 28, 512])
@pytest.mark.parametrize("crowd", [0, 0.01, 0.5, 1, 10.1])
def test_nobody_waits_for_ever(most: int, crowd: float) -> None:
    """However few wait and whenever those that run end: as long as somebody waits, it goes on. And the steps that
    admit somebody are few: one for each burst."""
    rng = np.random.default_rng(most)
    total = waiting = round(crowd * most)
    running, is_open, steps, admitting = list[int](), False, 0, 0
    while waiting or running:
        is_open = opens(len(running), most, is_open)
        admitted = min(waiting, most - len(running)) if is_open else 0
        assert len(running) + admitted <= most
        running += rng.integers(1, 400, admitted).tolist()
        waiting -= admitted
        admitting += admitted > 0
        is_open = is_open and stays_open(len(running), waiting, most)
        running = [left - 1 for left in running if left > 1]
        steps += 1
        assert steps <= 400 * (total + 1)
    assert admitting <= 2 + total / size(most)


def test_the_door() -> None:
    """28 may run, so a burst is 2: it opens for two, and at once for an empty house; it stays open while there is room
    for somebody who waits."""
    assert not opens(27, 28, was_open=False)
    assert opens(26, 28, was_open=False)
    assert opens(27, 28, was_open=True)
    assert not opens(28, 28, was_open=True)
    assert opens(0, 28, was_open=False)
    assert opens(0, 1, was_open=False)
    assert not opens(1, 1, was_open=True)
    assert stays_open(27, 1, 28)
    assert not stays_open(28, 1, 28)
    assert not stays_open(27, 0, 28)
