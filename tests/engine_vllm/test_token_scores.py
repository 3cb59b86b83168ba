"""Each score arrives with its token, in its request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import modelless
import numpy as np
import pytest
from modelless import Side, arrivals, request, seeds, some_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.filterwarnings("default")  # importing vLLM warns


class Scoring(modelless.Model):
    """A model whose scores name their place: the request's number, and the number of the token."""

    def answer(self, step: Any) -> Any:
        from voxbatch.vllm.plugin.token_scores import StepScores

        found = super().answer(step)
        rows = [[int(name), self._known[name][2]] for name in found.req_ids]
        found.logprobs = StepScores(torch.tensor(rows, dtype=torch.float32).reshape(-1, 2))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20))
def test_each_finished_request_has_the_scores_of_its_tokens(seed: int) -> None:
    """Each score arrives with its token, on the fast path and without it.

    Requests come, end, are aborted, and are preempted for lack of blocks; steps run ahead of the model's answers.
    """
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from voxbatch.vllm import plugin as vllm_plugin

    rng = np.random.default_rng(seed)
    kind: type[Any] = modelless.stock() if seed % 2 else modelless.ours()
    crowded = seed % 4 > 1
    side = Side(kind, lambda name, number: 7, requests=12, blocks=24 if crowded else 500, crowded=crowded)
    side.model = Scoring(lambda name, number: 7)
    asked = 0
    for step in range(120):
        for _ in range(arrivals(rng, step, 0)):
            side.scheduler.add_request(request(str(asked), int(rng.integers(1, 60)), int(rng.integers(1, 60))))
            asked += 1
        if rng.random() < 0.05 and side.scheduler.requests:
            side.abort(some_of(rng, list(side.scheduler.requests)))
        if side.scheduler.has_requests():
            side.schedule()
        while side.under_way > 1:
            side.update()
    while side.update():
        pass
    assert len(side.ends) > 5
    assert bool(side.preempted) == crowded
    for name in side.ends:
        scores = np.frombuffer(side.scores[name][vllm_plugin.SCORES], np.float32).reshape(-1, 2)
        assert scores[:, 0].tolist() == [int(name)] * len(side.texts[name])
        assert scores[:, 1].tolist() == list(range(len(side.texts[name])))


def step_of(*requests: tuple[str, int]) -> list[Any]:
    """Return requests with an id and a number of tokens."""
    return [SimpleNamespace(request_id=name, _output_token_ids=[7] * count) for name, count in requests]


def test_a_token_without_a_score_has_none() -> None:
    """A step without scores leaves NaN, and a step in which a request gets no token leaves its scores as they are."""
    from voxbatch.vllm.plugin.scheduler.score_table import ScoreTable

    table, both = ScoreTable(10), {"a", "b"}
    table.add(step_of(("a", 1), ("b", 0)), np.array([[1, 2], [5, 5]], np.float32), both)
    table.add(step_of(("a", 2)), None, both)
    table.add([None, *step_of(("b", 1), ("a", 2))], np.array([[5, 5], [3, 4], [5, 5]], np.float32), both)
    a, b = table.pop("a"), table.pop("b")
    assert a is not None
    assert b is not None
    np.testing.assert_array_equal(a, [[1, 2], [np.nan, np.nan]])
    np.testing.assert_array_equal(b, [[3, 4]])
    assert table.pop("a") is None


def test_aborted_requests_leave_their_rows_to_others() -> None:
    """A thousand requests of which each is aborted take no more memory than those that run together."""
    from voxbatch.vllm.plugin.scheduler.score_table import ScoreTable

    table = ScoreTable(10)
    for number in range(0, 1_000, 2):
        names = str(number), str(number + 1)
        table.add(step_of(*((name, 1) for name in names)), np.full((2, 2), number, np.float32), set())
    assert len(table._scores) <= 4
    found = table.pop("999")
    assert found is not None
    assert found.tolist() == [[998, 998]]


def test_a_worker_that_cannot_score_says_why_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown runner, or a kernel that does not compile, is a reason for a run without confidences, and no error."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from voxbatch.vllm.plugin import worker_extension
    from voxbatch.vllm.plugin.patches import sample_scores

    monkeypatch.setattr(GPUModelRunner, "_sample", GPUModelRunner._sample)  # so that it is restored
    monkeypatch.setattr(GPUModelRunner, sample_scores.SWITCH, False, raising=False)
    worker = worker_extension.WorkerExtension()
    worker.model_runner = SimpleNamespace()
    assert "SimpleNamespace of this vLLM" in worker.voxbatch_score_tokens()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    worker.model_runner = runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.model_config = SimpleNamespace(get_vocab_size=lambda: 10, dtype=torch.float32)
    runner.device = torch.device("cpu")
    assert worker.voxbatch_score_tokens() == ""
    assert getattr(runner, sample_scores.SWITCH)
    monkeypatch.setattr(worker_extension, "score", broken)
    assert worker.voxbatch_score_tokens() == "the kernel cannot be compiled: RuntimeError: no compiler"
    assert not getattr(runner, sample_scores.SWITCH)
