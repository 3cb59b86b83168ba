"""The scheduler fast path changes nothing in vLLM's scheduler.

In random walks two schedulers, one with the fast path and one without, get the same requests, aborts and answers, and
are compared after each step.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any

import modelless
import numpy as np
import pytest
from modelless import Side, arrivals, drawn_request, drawn_words, request, seeds, some_of

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns

WALKS = 60
"""Number of walks of each kind."""
STEPS = 100
STATE = (
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_output_placeholders",
    "is_prefill_chunk",
    "num_preemptions",
    "status",
    "spec_token_ids",
    "stop_reason",
)
QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")


@cache
def ours_counted() -> type[Any]:
    """Return our scheduler's class, which counts the steps on the fast path."""

    class Ours(modelless.ours()):  # type: ignore[misc]
        fast_steps = 0

        def _empty_step(self) -> Any:
            self.fast_steps += 1
            return super()._empty_step()

    return Ours


def of_step(step: Any) -> dict[str, Any]:
    """Return a scheduler's output for comparison, in the order in which the runner reads it."""
    found = {each.name: getattr(step, each.name) for each in fields(step)}
    found["num_scheduled_tokens"] = list(step.num_scheduled_tokens.items())
    found["scheduled_new_reqs"] = [
        (new.req_id, new.block_ids, new.num_computed_tokens) for new in step.scheduled_new_reqs
    ]
    return found


def of_state(vllm: Any) -> dict[str, Any]:
    """Return all state that a scheduler's next steps depend on."""
    manager, cache = vllm.kv_cache_manager, vllm.encoder_cache_manager
    [group] = manager.coordinator.single_type_managers
    return {
        "running": [each.request_id for each in vllm.running],
        "waiting": [[each.request_id for each in getattr(vllm, name, ())] for name in QUEUES],
        "requests": {
            name: [getattr(each, of) for of in STATE] + [list(each.all_token_ids), list(each.output_token_ids)]
            for name, each in vllm.requests.items()
        },
        "inflight": {each.request_id for each in vllm._inflight_prefills},
        "previous": set(vllm.prev_step_scheduled_req_ids),
        "finished": set(vllm.finished_req_ids),
        "preempted": set(vllm.reset_preempted_req_ids),
        "blocks": {name: [block.block_id for block in held] for name, held in group.req_to_blocks.items()},
        "free blocks": manager.block_pool.get_num_free_blocks(),
        "step": (vllm.current_step, vllm.pause_state, vllm.max_num_running_reqs),
        "encoder": (cache.cached, cache.request_cached_ids, dict(cache.freeable), cache.freed, cache.num_free_slots),
    }


def walk(
    seed: int,
    *,
    blocks: int = 2_000,
    crowded: bool = False,
    requests: int = 24,
    first: int = 0,
) -> Side:
    """Run both schedulers through random steps, and return ours at the end.

    Args:
        first: number of requests that come at the start, without later ones; 0 means that requests come now and then.
    """
    rng = np.random.default_rng(seed)
    say = drawn_words(seed, rng.choice([0.0, 0.01, 0.1]))
    step_tokens = int(rng.choice([200, 16_384]))
    limits: dict[str, Any] = {"requests": requests, "blocks": blocks, "crowded": crowded, "step_tokens": step_tokens}
    ours, stock = (Side(kind, say, **limits) for kind in (ours_counted(), modelless.stock()))
    asked = 0
    for step in range(STEPS):
        coming = arrivals(rng, step, first)
        for name in map(str, range(asked, asked + coming)):
            drawn = int(rng.integers(1, 60)), int(rng.integers(1, 100)), seed
            for side in (ours, stock):
                side.scheduler.add_request(drawn_request(name, *drawn))
        asked += coming
        if rng.random() < 0.05 and ours.scheduler.requests:
            gone = some_of(rng, list(ours.scheduler.requests))
            for side in (ours, stock):
                side.abort(gone)
        compare_steps(ours, stock)
        answers = ours.under_way if rng.random() < 0.03 else ours.under_way - 1
        for _ in range(answers):
            assert ours.update() == stock.update()
            assert of_state(ours.scheduler) == of_state(stock.scheduler)
            assert ours.messages >= stock.messages  # the front end is woken at least as often
    while ours.update() and stock.update():
        pass
    compare_texts(ours, stock)
    return ours


def compare_steps(ours: Side, stock: Side) -> None:
    """Schedule a step in both, and check that steps and states are equal."""
    if stock.scheduler.has_requests():
        assert of_step(ours.schedule()) == of_step(stock.schedule())
        assert of_state(ours.scheduler) == of_state(stock.scheduler)


def compare_texts(ours: Side, stock: Side) -> None:
    """Check that both have the same ends and texts."""
    assert ours.ends == stock.ends
    for name in stock.ends:
        assert ours.texts[name] == stock.texts[name]


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_equals_vllm_with_enough_blocks(seed: int) -> None:
    """Steps, states and texts are the same if the blocks suffice, and nearly all possible steps take the fast path."""
    ours = walk(seed)
    assert ours.scheduler.fast_steps > STEPS // 10 or len(ours.texts) < 5


@pytest.mark.parametrize("seed", seeds(WALKS))
@pytest.mark.parametrize("first", [0, 16], ids=["requests come now and then", "requests come together"])
def test_equals_vllm_with_preemptions(first: int, seed: int) -> None:
    """Steps, states and texts are the same if requests are preempted and resumed for lack of blocks."""
    walk(1_000 + 31 * first + seed, blocks=60 - seed // 2, crowded=True, first=first)


def test_front_end_gets_whole_texts_and_a_message_per_step() -> None:
    """The front end gets a request's text only when it has ended, and a message after each step.

    By these messages the front end takes new work and knows that the engine lives.
    """
    ours = Side(ours_counted(), lambda name, number: 7 + number, requests=4, blocks=200)
    for name in "01":
        ours.scheduler.add_request(request(name, 10, 5 + 5 * int(name)))
    told = []
    ours.schedule()
    for _ in range(12):
        ours.schedule()
        ours.update()
        told.append((ours.messages, {name: len(text) for name, text in ours.texts.items()}))
    assert [messages for messages, _ in told] == list(range(1, 13))
    assert [len(lengths) for _, lengths in told] == [0] * 4 + [1] * 5 + [2] * 3
    assert ours.texts == {"0": list(range(7, 12)), "1": list(range(7, 17))}


@pytest.mark.parametrize("seed", range(30))
def test_input_ids_equal_those_of_vllm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's input is the one that vLLM's runner prepares.

    Requests stay in their places, move, or are new, with one token each or more.
    """
    torch = pytest.importorskip("torch")
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from voxbatch.vllm_plugin.patches import prepare_input_ids

    monkeypatch.setattr("vllm.v1.worker.gpu_model_runner.PIN_MEMORY", False)  # pinning needs a GPU
    rng = np.random.default_rng(seed)
    before, now = int(rng.integers(1, 20)), int(rng.integers(1, 20))
    places = np.arange(now) if seed % 3 == 0 and now <= before else rng.permutation(max(before, now))[:now]
    places = np.where(places < before, places, -1) if seed % 2 else places % before
    tokens = np.where(places < 0, rng.integers(1, 4, now), 1)
    ends = np.cumsum(tokens)
    inputs = []
    each = getattr(GPUModelRunner._prepare_input_ids, "original", GPUModelRunner._prepare_input_ids)
    for prepare in (each, prepare_input_ids.wrap(each)):
        host, device = torch.arange(100, 160, dtype=torch.int32), torch.zeros(60, dtype=torch.int32)
        runner = SimpleNamespace(
            input_batch=SimpleNamespace(
                prev_sampled_token_ids=torch.arange(1, before + 1, dtype=torch.int32)[:, None] if seed % 7 else None,
                req_ids=[str(name) for name in range(now)],
            ),
            prev_positions=SimpleNamespace(np=places.astype(np.int32)),
            input_ids=SimpleNamespace(gpu=device, copy_to_gpu=lambda n, to=device, of=host: to[:n].copy_(of[:n])),
            device=torch.device("cpu"),
            enable_prompt_embeds=False,
            prev_num_spec_tokens=0,
            _draft_token_ids=None,
            _pp_recv_work=None,
        )
        prepare(runner, SimpleNamespace(scheduled_spec_decode_tokens={}), now, int(ends[-1]), ends)
        inputs.append(device[: ends[-1]].tolist())
    assert inputs[0] == inputs[1]
