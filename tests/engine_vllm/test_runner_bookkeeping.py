"""Our bookkeeping by column equals vLLM's bookkeeping by row.

Two runners without a model go side by side through the same steps of a real scheduler, and are compared after each
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from modelless import (
    BLOCK,
    CONTEXT,
    Side,
    arrivals,
    drawn_request,
    drawn_words,
    ours,
    request,
    seeds,
    some_of,
)  # fmt: skip

torch = pytest.importorskip("torch", reason="vLLM is not installed")

from voxbatch.vllm_plugin.patches import bookkeeping_sync, update_states  # noqa: E402

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns

WALKS = 12
"""Number of walks of each kind."""
STEPS = 100
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


def originals() -> Methods:
    """Return vLLM's own methods, even if ours have replaced them in this process."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    found = {name: getattr(GPUModelRunner, name) for name in OURS}
    return {name: getattr(method, "original", method) for name, method in found.items()}


@cache
def runner_kind() -> type[Any]:
    """Return vLLM's runner class without a model, an attention backend or a device: only its bookkeeping remains."""
    import torch
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
    import torch
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


@dataclass(frozen=True, slots=True)
class Turn:
    """Facts about one step."""

    told: bool
    """The scheduler updated requests that the runner knows."""
    in_place: bool
    """All of these requests were in the batch, and none was resumed."""
    resumed: int
    discarded: int
    rows: int
    short_update: bool
    short_note: bool


class Pair:
    """Two runners, ours and stock. Ours records which steps it leaves to vLLM's methods."""

    def __init__(self, rows: int, is_async: bool = True, split: int | None = None):
        self._left, theirs = dict[str, tuple[Any, ...]](), originals()
        ours = {name: way(self._watched(name, theirs[name])) for name, way in OURS.items()}
        self.ours, self.stock = (runner_kind()(ways, rows, is_async, split) for ways in (ours, theirs))

    def _watched(self, name: str, each: Callable[..., Any]) -> Callable[..., Any]:
        def watched(runner: Any, *given: Any) -> Any:
            self._left[name] = given
            return each(runner, *given)

        return watched

    def turn(self, step: Any, proposed: Any = None) -> Turn | None:
        """Run both through one step, and return its facts; None if the step has no requests.

        Args:
            proposed: see Runner.end.
        """
        import torch

        told, batch = step.scheduled_cached_reqs, self.ours.input_batch
        before = set(batch.req_id_to_index)
        in_place = not told.resumed_req_ids and before.issuperset(told.req_ids)
        self._left.clear()
        later = [(runner.begin(deepcopy(step)) is None) for runner in (self.ours, self.stock)]
        assert later[0] == later[1]
        self.compare()
        left = self._left["_update_states"][0].scheduled_cached_reqs.req_ids
        assert left in ([], told.req_ids)
        if not step.total_num_scheduled_tokens:
            return None
        sampled = torch.randint(3, 900, (self.stock.input_batch.num_reqs, 1), dtype=torch.int32)
        found, expected = (runner.end(step, sampled, proposed) for runner in (self.ours, self.stock))
        assert found == expected
        self.compare()
        return Turn(
            told=bool(told.req_ids),
            in_place=in_place,
            resumed=len(told.resumed_req_ids),
            discarded=len(expected[-1]),
            rows=len(sampled),
            short_update=bool(told.req_ids) and not left,
            short_note=not len(self._left["_bookkeeping_sync"][1].sampled_token_ids),
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
    requests: int = 24,
    step_tokens: int = 16_384,
    prompt: int = 60,
    is_async: bool = True,
) -> list[Turn]:
    """Run both through random steps.

    Args:
        prompt: maximum number of prompt tokens.
        is_async: run the bookkeeping asynchronously. Only then the steps run ahead.
    """
    rng = np.random.default_rng(seed)
    say = drawn_words(seed, rng.choice([0.0, 0.01, 0.1]))
    side = Side(ours(), say, requests=requests, blocks=blocks, crowded=crowded, step_tokens=step_tokens)
    pair, asked, turns = Pair(requests, is_async, split=[None, 1][seed % 2]), 0, list[Turn | None]()
    for number in range(STEPS):
        coming = arrivals(rng, number, 0)
        for name in map(str, range(asked, asked + coming)):
            drawn = int(rng.integers(1, prompt)), int(rng.integers(1, 100))
            side.scheduler.add_request(drawn_request(name, *drawn, seed))
        asked += coming
        if rng.random() < 0.05 and side.scheduler.requests:
            side.abort(some_of(rng, list(side.scheduler.requests)))
        if side.scheduler.has_requests():
            step = side.schedule()
            turns.append(pair.turn(step, proposed=known(rng)))
        ahead = 0 if not is_async or rng.random() < 0.03 else int(rng.choice([1, 1, 1, 2]))
        while side.under_way > ahead:
            side.update()
    return [turn for turn in turns if turn is not None]


def known(rng: np.random.Generator) -> Any:
    """Return the next step's tokens in some steps, as if they were known before the bookkeeping. They must stay."""
    import torch

    return torch.zeros(1, 1) if rng.random() < 0.1 else None


def counted(turns: list[Turn]) -> Counter[str]:
    """Return the number of steps for which each fact of Turn holds."""
    return Counter(name for turn in turns for name in Turn.__slots__ if getattr(turn, name))


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_equals_vllm(seed: int) -> None:
    """The bookkeeping is the same after each step, and all steps but the first are recorded in columns, with enough
    blocks and also if the tokens of some rows are discarded in most steps."""
    plain, chunked = walk(seed), walk(1_000 + seed, step_tokens=[24, 40, 100][seed % 3], prompt=300)
    for turns in (plain, chunked):
        assert all(turn.in_place and turn.short_note and turn.short_update == turn.told for turn in turns)
    assert counted(plain)["short_update"] > 0.8 * len(plain) > 20
    assert counted(chunked)["discarded"] > 0.5 * len(chunked) > 20
    assert any(0 < turn.discarded < turn.rows for turn in chunked)


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_preemptions_are_left_to_vllm(seed: int) -> None:
    """vLLM's own method handles the whole step in which a preempted request is resumed, and only these steps."""
    turns = walk(2_000 + seed, blocks=40 - seed, crowded=True, step_tokens=[60, 16_384][seed % 2])
    assert all(turn.in_place == (not turn.resumed) for turn in turns)
    assert all(turn.short_note and turn.short_update == (turn.told and turn.in_place) for turn in turns)
    found = counted(turns)
    assert found["resumed"]
    assert found["short_update"] > 0.5 * len(turns) > 20


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_synchronous_scheduling_is_left_to_vllm(seed: int) -> None:
    """vLLM's own method records the tokens if they come to the host after each step."""
    turns = walk(4_000 + seed, is_async=False, step_tokens=[100, 16_384][seed % 2])
    assert not any(turn.short_note for turn in turns)
    assert counted(turns)["short_update"] > 0.8 * len(turns) > 20


def under_way(requests: int, steps: int) -> tuple[Side, Pair]:
    """Return a pair after `steps` steps of requests that all began in the first step."""
    side, pair = Side(ours(), lambda name, number: 7, requests=4, blocks=200), Pair(4)
    for name in map(str, range(requests)):
        side.scheduler.add_request(request(name, 10, 50, ignore_eos=True))
    for _ in range(steps):
        assert pair.turn(side.schedule())
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
    turn = pair.turn(step)
    assert turn is not None
    assert turn.told
    assert not turn.short_update
    assert expected(pair.ours.requests["1"])


def test_request_that_returns_to_the_batch_is_left_to_vllm() -> None:
    """vLLM's own method returns a request to the batch if it was left out of a step without a preemption."""
    side, pair = under_way(3, 6)
    step = deepcopy(side.schedule())
    told = step.scheduled_cached_reqs
    for column in (told.req_ids, told.new_block_ids, told.num_computed_tokens, told.num_output_tokens):
        del column[1]
    step.total_num_scheduled_tokens -= step.num_scheduled_tokens.pop("1")
    turn = pair.turn(step)
    assert turn is not None
    assert turn.short_update
    assert pair.ours.input_batch.req_ids == ["0", "2"]
    step = deepcopy(side.schedule())
    told = step.scheduled_cached_reqs
    told.num_computed_tokens[1] -= 1
    told.num_output_tokens[1] -= 1
    told.all_token_ids["1"] = [1] * 10 + [7] * 6
    turn = pair.turn(step)
    assert turn is not None
    assert not turn.in_place
    assert not turn.short_update
    assert pair.ours.input_batch.req_ids == ["0", "2", "1"]
