"""The plugin in vLLM's second model runner gives stock vLLM's output in the first one.

The tests run vLLM's own code of the second runner. Its kernels run by Triton's interpreter (`triton_interpreter`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sounds
from conftest import ROOT

from voxbatch.engines.vllm.compat import RUNNER

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SHARED = 31
"""Number of positions that depend on the leading silence alone."""
SCHEDULER = "scheduler_cls=second_runner.SecondRunnerScheduler"
WIDTH, BUFFER, ROWS, SLOTS = 8, 20, 64, 6
"""Widths of the audio's rows and of the runner's buffer; rows of a slot, and slots."""


def said(model: Path, audio: dict[str, np.ndarray], folder: Path, scheduler: str, *options: str) -> dict[str, Any]:
    """Run together.py in its own process, in the second runner unless the scheduler is "stock"; return its result."""
    from engine_runs import HERE, INTERPRETER, PATIENCE_S, caches, installed
    from test_plugin import _environment

    sounds.save(folder / "audio.npz", audio)
    out = folder / f"{scheduler}.json"
    command: list[str | Path] = [
        sys.executable, HERE / "together.py", model, folder / "audio.npz", out, scheduler, *options,
    ]  # fmt: skip
    chosen = {RUNNER: "0" if scheduler == "stock" else "1"}
    path = {"PYTHONPATH": f"{INTERPRETER}:{ROOT}:{HERE}:{installed(folder)}", **caches(folder), **chosen}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=_environment(path)
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def audio(realtime: Path) -> dict[str, np.ndarray]:
    """Return padded audio of 0.4 to 12 s, some of it with an unusual beginning."""
    from test_plugin import beginnings

    return beginnings(realtime)


@pytest.fixture(scope="module")
def stock(
    realtime: Path, audio: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """Return stock vLLM's tokens in its first runner, one request at a time."""
    found = said(realtime, audio, tmp_path_factory.mktemp("stock"), "stock")
    assert found["runner"] == "vllm.v1.worker.cpu_model_runner"
    tokens: dict[str, list[int]] = found["tokens"]
    return tokens


@pytest.mark.parametrize(
    ("scheduler", "step_tokens", "block"), [("Ahead", 2_048, 16), ("Ahead", 50, 16), ("Watched", 50, 128)]
)
def test_tokens_together_equal_stock(
    scheduler: str,
    step_tokens: int,
    block: int,
    realtime: Path,
    audio: dict[str, np.ndarray],
    stock: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    """Chunks together give the tokens of each alone, with a shared prefix, a preemption, and prompts in two steps.

    With asynchronous scheduling, most steps are on the fast path, and run ahead of the tokens.
    """
    limits = ("max_num_seqs=5", f"max_num_batched_tokens={step_tokens}", f"block_size={block}")
    found = said(realtime, audio, tmp_path, scheduler, *limits)
    assert found["runner"] == "vllm.v1.worker.cpu.model_runner"
    assert found["tokens"] == stock
    told = [computed for each in found["told"].values() for computed in each]
    assert set(told) == {0, SHARED}
    assert found["copies"] == told.count(SHARED) > 5
    assert any(len(each) > 1 for each in found["told"].values())
    assert (found["fast_steps"] > 200) == (scheduler == "Ahead")


def test_tokens_and_scores_of_a_run_equal_stock(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """The engine gives stock vLLM's tokens and scores, with the plugin and with the stock model."""
    from engine_runs import FLOAT32, streamed
    from test_confidence import check_scores, reference

    few = {
        name: each[: (8 + 18 * i) * 1_000] for i, (name, each) in enumerate([*realtime_spoken.waveforms.items()][:5])
    }
    expected = reference(realtime, few, tmp_path)
    for plugin in ("true", "false"):
        folder = tmp_path / plugin
        folder.mkdir()
        options = (*FLOAT32, f"prefill_encoder={plugin}", "max_num_seqs=3", SCHEDULER)
        found = streamed(realtime, few, folder, *options, root=ROOT, **{RUNNER: "1"})
        check_scores(found, expected)
        assert ("encoder once a chunk" in found["notices"][1]) == (plugin == "true")


def test_tokens_of_an_instruct_model_equal_stock(voxtral: Path, voxtral_spoken: Spoken, tmp_path: Path) -> None:
    """An instruct model with the plugin gives stock's tokens; a prompt is computed in two steps."""
    from engine_runs import FLOAT32, streamed
    from test_instruct_plugin import TEXT_TOKENS

    few = dict([*voxtral_spoken.waveforms.items()][:4])
    options = ("max_model_len=1024", "prefill_encoder=true", "max_num_seqs=3", "max_num_batched_tokens=500", SCHEDULER)
    found = streamed(voxtral, few, tmp_path, *FLOAT32, *options, root=ROOT, **{RUNNER: "1"})
    assert found["failures"] == {}
    assert found["tokens"] == {name: [voxtral_spoken.tokens[name][:TEXT_TOKENS]] for name in few}
    assert "encoder once a chunk" in found["notices"][1]


# ── the audio of a step, without an engine ────────────────────────────────────────────────────────────────────────────


class Joining:
    """Model that joins the slices of audio, as PrefillRealtime does for audio outside the pool."""

    supports_realtime = True

    def __init__(self, pool: Any):
        self.encoder_output_pool = pool

    def embed_input_ids(self, input_ids: Any, multimodal_embeddings: Any, is_multimodal: Any) -> Any:
        import torch
        from torch.nn import functional

        if not multimodal_embeddings:
            return torch.zeros(len(input_ids), BUFFER)
        return functional.pad(torch.cat(tuple(multimodal_embeddings)), (0, BUFFER - WIDTH))


def states(model: Any) -> list[Any]:
    """Return our state of the model and vLLM's own, with vLLM's own encoder cache and runner."""
    import torch
    from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
    from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    from voxbatch.vllm_plugin.model_state import WholeChunkState

    found = []
    for kind in (WholeChunkState, DefaultModelState):
        state: Any = kind.__new__(kind)
        state.supports_mm_inputs, state.model, state.rope_state = True, model, None
        state.prompt_embeds_state = state.mm_pruner = None
        state.encoder_cache = EncoderCache()
        state.encoder_runner = EncoderRunner(
            model, 400, BUFFER, state.encoder_cache, torch.float32, torch.device("cpu")
        )
        state.encoder_runner.is_realtime = True
        found.append(state)
    ours = found[0]
    ours._pool, ours._first_rows = model.encoder_output_pool, np.full(SLOTS, -1, np.int64)
    return found


def batch(names: list[str], rows: list[int], computed: np.ndarray, counts: np.ndarray) -> Any:
    """Return the parts of the second runner's batch that a state reads."""
    import torch

    ends = np.cumsum(counts)
    positions = np.concatenate([np.arange(first, first + n) for first, n in zip(computed, counts, strict=True)])
    total = int(ends[-1])
    return SimpleNamespace(
        req_ids=names, idx_mapping_np=np.array(rows), num_scheduled_tokens=counts.astype(np.int32), num_tokens=total,
        num_tokens_after_padding=total + 3, positions=torch.from_numpy(np.append(positions, [7, 7, 7])),
        input_ids=torch.zeros(total + 3, dtype=torch.int32), query_start_loc_np=np.append(0, ends),
        prefill_len_np=np.full(len(names), 39), num_computed_tokens_np=computed,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_audio_of_a_step_equals_vllms(seed: int) -> None:
    """The rows fetched by number are the slices that vLLM joins, while requests come, end and return.

    In a third of the walks the audio of some requests is outside the pool, and vLLM's own method joins the slices.
    """
    torch = pytest.importorskip("torch")
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    from voxbatch.vllm_plugin.encoder_output_pool import EncoderOutputPool

    rng = np.random.default_rng(seed)
    pool = EncoderOutputPool(SLOTS, ROWS, torch.zeros(WIDTH))
    ours, stock = states(Joining(pool))
    running, free, by_number = dict[str, tuple[int, int]](), list(range(SLOTS)), 0
    for step in range(40):
        for name in [name for name in running if rng.random() < 0.1]:
            free.append(running.pop(name)[0])
            for state in (ours, stock):
                state.encoder_cache.remove_request(name)
                state.encoder_cache.free_encoder_cache(f"audio-{name}")
        while free and (rng.random() < 0.3 or not running):
            name, length = f"{step}-{len(free)}", int(rng.integers(20, ROWS))
            place = PlaceholderRange(offset=0, length=length)
            feature = MultiModalFeatureSpec(data=None, modality="audio", identifier=f"audio-{name}", mm_position=place)
            rows = torch.from_numpy(rng.normal(size=(length, WIDTH)).astype(np.float32))
            encoded = rows if not seed % 3 and rng.random() < 0.2 else pool.store(rows)
            running[name] = (free.pop(int(rng.integers(len(free)))), length)
            for state in (ours, stock):
                state.add_request(running[name][0], SimpleNamespace())
                state.encoder_cache.add_request(name, [feature])
                state.encoder_cache.encoder_outputs[feature.identifier] = encoded
            del encoded
        names = [*rng.permutation(list(running))]
        lengths = np.array([running[name][1] for name in names])
        counts = np.where(rng.random(len(names)) < 0.3, rng.integers(1, 9, len(names)), 1)
        computed = rng.integers(0, lengths - counts + 1)
        one = batch(names, [running[name][0] for name in names], computed, counts)
        found, expected = (state.prepare_inputs_embeds({}, one, None) for state in (ours, stock))
        assert found.shape == expected.shape == (one.num_tokens_after_padding, BUFFER)
        assert torch.equal(found[: one.num_tokens, :WIDTH], expected[: one.num_tokens, :WIDTH])
        assert bool(expected[: one.num_tokens, :WIDTH].any())
        by_number += bool((ours._first_rows[one.idx_mapping_np] >= 0).all())
    assert by_number == 40 if seed % 3 else 0 < by_number < 40
