"""The scheduler fast path and the bookkeeping by column change nothing in vLLM's scheduler and runner.

In random walks two schedulers, one with the fast path and one without, get the same requests, aborts and answers. Two
runners without a model, one with our methods and one with vLLM's, go through the steps. After each step the schedulers
are compared with each other, and so are the runners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any

import modelless
import numpy as np
import pytest
from modelless import BLOCK, CONTEXT, Side, arrivals, drawn_request, drawn_words, ours, request, seeds, some_of

torch = pytest.importorskip("torch", reason="vLLM is not installed")

from voxbatch.vllm.plugin.patches import bookkeeping_sync, prepare_input_ids, update_states  # noqa: E402

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns

WALKS = 40
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
OURS = {
    "_update_states": update_states.wrap,
    "_bookkeeping_sync": bookkeeping_sync.wrap,
}
TABLES = ("token_ids_cpu", "is_token_ids", "num_tokens_no_spec", "num_computed_tokens_cpu", "num_prompt_tokens")
LISTS = ("req_ids", "req_id_to_index", "prev_req_id_to_index", "spec_token_ids", "req_output_token_ids")

Methods = Mapping[str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without pinned memory, which needs a GPU, and in one process."""
    monkeypatch.setattr("vllm.v1.worker.gpu_input_batch.PIN_MEMORY", False)
    alone = SimpleNamespace(is_last_rank=True, world_size=1)
    monkeypatch.setattr("vllm.v1.worker.gpu_model_runner.get_pp_group", lambda: alone)


@cache
def ours_counted() -> type[Any]:
    """Return our scheduler's class, which counts the steps on the fast path."""

    class Ours(ours()):  # type: ignore[misc]
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


def originals() -> Methods:
    """Return vLLM's own methods, even if ours have replaced them in this process."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    found = {name: getattr(GPUModelRunner, name) for name in OURS}
    return {name: getattr(method, "original", method) for name, method in found.items()}


@cache
def runner_kind() -> type[Any]:
    """Return vLLM's runner class without a model, an attention backend or a device: only its bookkeeping remains."""
    from vllm.v1.pool.late_interaction_runner import LateInteractionRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    class Runner(GPUModelRunner):  # type: ignore[misc]
        speculative_config = None
        is_pooling_model = uses_mrope = use_async_spec_decode = routed_experts_initialized = False
        device = torch.device("cpu")
        parallel_config = SimpleNamespace(pipeline_parallel_size=1)
        kv_cache_config = SimpleNamespace(kv_cache_groups=["attention"])

        def __init__(self, methods: Methods, rows: int, is_async: bool, split: int | None):
            self._methods, self.use_async_scheduling = methods, is_async
            self.reorder_batch_threshold, self.max_model_len = split, CONTEXT
            self.requests, self.num_prompt_logprobs = dict[str, Any](), dict[str, int]()
            self.encoder_cache = dict[str, Any]()
            self.late_interaction_runner = LateInteractionRunner()
            self.input_batch = input_batch(rows)
            self.prev_positions, self.prev_num_draft_tokens = column(rows, np.int32), column(rows, np.int32)
            self.discard_request_mask = column(rows, np.bool_)

        def begin(self, step: Any) -> Any:
            """Run a step up to the model's turn. The rows of discarded tokens are found as in `_prepare_inputs`."""
            later = self._methods["_update_states"](self, step)
            batch = self.input_batch
            scheduled = np.array([step.num_scheduled_tokens[name] for name in batch.req_ids], dtype=np.int32)
            self._compute_prev_positions(batch.num_reqs)
            known = np.array([self.requests[name].num_tokens for name in batch.req_ids], dtype=np.int32)
            ends = batch.num_computed_tokens_cpu[: batch.num_reqs] + scheduled
            self.discard_request_mask.np[: batch.num_reqs] = ends < known
            return later

        def end(self, step: Any, sampled: Any, proposed: Any) -> Any:
            """Run a step from the model's turn on.

            Args:
                sampled: tokens.
                proposed: tokens of the next step that are known already, if any.
            """
            from vllm.v1.outputs import SamplerOutput

            self.input_batch.prev_sampled_token_ids = proposed
            said = SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=None)
            total = step.total_num_scheduled_tokens
            return self._methods["_bookkeeping_sync"](self, step, said, None, torch.zeros(total + 1, 4), total)

        def _to_list(self, sampled: Any) -> list[list[int]]:
            found: list[list[int]] = sampled.tolist()
            return found

        def _get_prompt_logprobs_dict(self, hidden: Any, scheduled: dict[str, int]) -> dict[str, int]:
            return {**scheduled, "in all": len(hidden)}

    return Runner


def column(rows: int, kind: type[Any]) -> Any:
    """Return a zeroed column of a runner's table."""
    return SimpleNamespace(np=np.zeros(rows, dtype=kind))


def input_batch(rows: int) -> Any:
    """Return vLLM's own InputBatch."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    return InputBatch(
        max_num_reqs=rows,
        max_model_len=CONTEXT,
        max_num_batched_tokens=1024,
        device=torch.device("cpu"),
        vocab_size=1_000,
        block_sizes=[BLOCK],
        max_num_blocks_per_req=[CONTEXT // BLOCK],
    )


class Pair:
    """Two runners, ours and stock. Ours records which steps it leaves to vLLM's methods."""

    def __init__(self, rows: int, is_async: bool = True, split: int | None = None):
        self._left, theirs = dict[str, tuple[Any, ...]](), originals()
        ours = {name: way(self._watched(name, theirs[name])) for name, way in OURS.items()}
        self.ours, self.stock = (runner_kind()(ways, rows, is_async, split) for ways in (ours, theirs))
        self._is_async = is_async
        self.counts = Counter[str]()
        """Number of steps whose requests were updated by column, of resumed requests, and of discarded tokens."""

    def _watched(self, name: str, each: Callable[..., Any]) -> Callable[..., Any]:
        def watched(runner: Any, *given: Any) -> Any:
            self._left[name] = given
            return each(runner, *given)

        return watched

    def turn(self, step: Any, proposed: Any = None, is_changed: bool = False) -> None:
        """Run both through one step, and check that vLLM's own method updates the requests if one is resumed, is not in
        the batch, or `is_changed`, and no others; and that it records no token of an asynchronous step.

        Args:
            proposed: see Runner.end.
        """
        told, batch = step.scheduled_cached_reqs, self.ours.input_batch
        in_place = not told.resumed_req_ids and {*batch.req_id_to_index}.issuperset(told.req_ids)
        self._left.clear()
        later = [(runner.begin(deepcopy(step)) is None) for runner in (self.ours, self.stock)]
        assert later[0] == later[1]
        self.compare()
        left = self._left["_update_states"][0].scheduled_cached_reqs.req_ids
        assert left == ([] if in_place and not is_changed else told.req_ids)
        if not step.total_num_scheduled_tokens:
            return
        sampled = torch.randint(3, 900, (self.stock.input_batch.num_reqs, 1), dtype=torch.int32)
        found, expected = (runner.end(step, sampled, proposed) for runner in (self.ours, self.stock))
        assert found == expected
        self.compare()
        assert len(self._left["_bookkeeping_sync"][1].sampled_token_ids) == (0 if self._is_async else len(sampled))
        self.counts.update(
            by_column=bool(told.req_ids) and not left,
            resumed=len(told.resumed_req_ids),
            discarded=len(expected[-1]),
        )

    def compare(self) -> None:
        """Check that both runners have the same state."""
        ours, stock = of_runner(self.ours), of_runner(self.stock)
        for name, expected in stock.items():
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(ours[name], expected, err_msg=name, strict=True)
            else:
                assert ours[name] == expected, name
        assert self.ours.input_batch.prev_sampled_token_ids is self.stock.input_batch.prev_sampled_token_ids


def of_runner(runner: Any) -> dict[str, Any]:
    """Return all state that the runner's next steps depend on. Unused rows are included, because nothing may write
    there."""
    batch, [table] = runner.input_batch, runner.input_batch.block_table.block_tables
    return {
        "requests": {
            name: (each.num_computed_tokens, each.block_ids, each.output_token_ids, each.prev_num_draft_len)
            for name, each in runner.requests.items()
        },
        "one list": [
            runner.requests[name].output_token_ids is batch.req_output_token_ids[row]
            for name, row in batch.req_id_to_index.items()
        ],
        "blocks": table.block_table.np,
        "numbers of blocks": table.num_blocks_per_row,
        "previous": runner.prev_positions.np,
        "discarded": runner.discard_request_mask.np,
        **{name: getattr(batch, name) for name in TABLES + LISTS},
    }


def walk(
    seed: int,
    *,
    blocks: int = 2_000,
    crowded: bool = False,
    first: int = 0,
    prompt: int = 60,
    step_tokens: int = 0,
    is_async: bool = True,
) -> tuple[Side, Pair]:
    """Run both schedulers and both runners through random steps, and return our scheduler at the end, and the runners.

    Args:
        first: number of requests that come at the start, without later ones; 0 means that requests come now and then.
        prompt: maximum number of prompt tokens.
        step_tokens: maximum number of tokens in a step; 0 draws few or many.
        is_async: run the bookkeeping asynchronously. Only then the steps run ahead.
    """
    rng, requests = np.random.default_rng(seed), 24
    say = drawn_words(seed, rng.choice([0.0, 0.01, 0.1]))
    limits: dict[str, Any] = {"requests": requests, "blocks": blocks, "crowded": crowded}
    limits["step_tokens"] = step_tokens or int(rng.choice([200, 16_384]))
    mine, stock = (Side(kind, say, **limits) for kind in (ours_counted(), modelless.stock()))
    pair, asked = Pair(requests, is_async, split=[None, 1][seed % 2]), 0
    for step in range(STEPS):
        coming = arrivals(rng, step, first)
        for name in map(str, range(asked, asked + coming)):
            drawn = int(rng.integers(1, prompt)), int(rng.integers(1, 100)), seed
            for side in (mine, stock):
                side.scheduler.add_request(drawn_request(name, *drawn))
        asked += coming
        if rng.random() < 0.05 and mine.scheduler.requests:
            gone = some_of(rng, list(mine.scheduler.requests))
            for side in (mine, stock):
                side.abort(gone)
        if stock.scheduler.has_requests():
            scheduled = mine.schedule()
            assert of_step(scheduled) == of_step(stock.schedule())
            assert of_state(mine.scheduler) == of_state(stock.scheduler)
            # some tokens of the next step are known before the bookkeeping, and must stay
            pair.turn(scheduled, proposed=torch.zeros(1, 1) if rng.random() < 0.1 else None)
        for _ in range(mine.under_way - (0 if not is_async or rng.random() < 0.03 else 1)):
            assert mine.update() == stock.update()
            assert of_state(mine.scheduler) == of_state(stock.scheduler)
            assert mine.messages >= stock.messages  # the front end is woken at least as often
    while mine.update() and stock.update():
        pass
    assert mine.ends == stock.ends
    assert [mine.texts[name] for name in stock.ends] == [stock.texts[name] for name in stock.ends]
    return mine, pair


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_equals_vllm_with_enough_blocks(seed: int) -> None:
    """Steps, states and texts are the same if the blocks suffice, and nearly all possible steps take the fast path."""
    mine, pair = walk(seed)
    assert min(mine.scheduler.fast_steps, pair.counts["by_column"]) > STEPS // 10 or len(mine.texts) < 5


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_equals_vllm_with_prompts_in_parts(seed: int) -> None:
    """Steps, states and texts are the same if the tokens of some rows are discarded in most steps."""
    _, pair = walk(1_000 + seed, step_tokens=[24, 40, 100][seed % 3], prompt=300)
    assert pair.counts["discarded"] > 20


@pytest.mark.parametrize("seed", seeds(WALKS))
@pytest.mark.parametrize("first", [0, 16], ids=["requests come now and then", "requests come together"])
def test_equals_vllm_with_preemptions(first: int, seed: int) -> None:
    """Steps, states and texts are the same if requests are preempted and resumed for lack of blocks."""
    mine, pair = walk(2_000 + 31 * first + seed, blocks=20 - seed % 8, crowded=True, first=first)
    assert mine.preempted >= pair.counts["resumed"]
    assert mine.preempted or first  # 16 requests alone may all end before they need so many blocks


@pytest.mark.parametrize("seed", seeds(WALKS // 4))
def test_synchronous_scheduling_is_left_to_vllm(seed: int) -> None:
    """vLLM's own method records the tokens if they come to the host after each step."""
    _, pair = walk(4_000 + seed, is_async=False)
    assert pair.counts["by_column"]


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


def under_way(requests: int, steps: int) -> tuple[Side, Pair]:
    """Return a pair after `steps` steps of requests that all began in the first step."""
    side, pair = Side(ours(), lambda name, number: 7, requests=4, blocks=200), Pair(4)
    for name in map(str, range(requests)):
        side.scheduler.add_request(request(name, 10, 50, ignore_eos=True))
    for _ in range(steps):
        pair.turn(side.schedule())
    return side, pair


def remove_tokens(told: Any) -> None:
    told.num_output_tokens[1] -= 2
    told.num_computed_tokens[1] -= 2


def resume_in_place(told: Any) -> None:
    told.resumed_req_ids.add("1")
    told.new_block_ids[1] = ([150, 151],)
    told.all_token_ids["1"] = [1] * 10 + [7] * 6


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (remove_tokens, lambda request: len(request.output_token_ids) == 5),
        (resume_in_place, lambda request: request.block_ids == ([150, 151],)),
    ],
    ids=["it has fewer tokens", "all requests were preempted at once, because the cache is emptied"],
)
def test_a_changed_request_is_left_to_vllm(change: Callable[[Any], None], expected: Callable[[Any], bool]) -> None:
    """vLLM's own method removes tokens of a request, and gives new blocks to one that is resumed while it is in the
    batch."""
    side, pair = under_way(3, 6)
    step = deepcopy(side.schedule())
    change(step.scheduled_cached_reqs)
    pair.turn(step, is_changed=True)
    assert expected(pair.ours.requests["1"])


def test_request_that_returns_to_the_batch_is_left_to_vllm() -> None:
    """vLLM's own method returns a request to the batch if it was left out of a step without a preemption."""
    side, pair = under_way(3, 6)
    step = deepcopy(side.schedule())
    told = step.scheduled_cached_reqs
    for column in (told.req_ids, told.new_block_ids, told.num_computed_tokens, told.num_output_tokens):
        del column[1]
    step.total_num_scheduled_tokens -= step.num_scheduled_tokens.pop("1")
    pair.turn(step)
    assert pair.ours.input_batch.req_ids == ["0", "2"]
    step = deepcopy(side.schedule())
    told = step.scheduled_cached_reqs
    told.num_computed_tokens[1] -= 1
    told.num_output_tokens[1] -= 1
    told.all_token_ids["1"] = [1] * 10 + [7] * 6
    pair.turn(step)
    assert pair.ours.input_batch.req_ids == ["0", "2", "1"]


@pytest.mark.parametrize("seed", range(30))
def test_input_ids_equal_those_of_vllm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's input is the one that vLLM's runner prepares.

    Requests stay in their places, move, or are new, with one token each or more.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

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
