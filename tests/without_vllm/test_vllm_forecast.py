"""The speed of an engine is estimated before it starts, from its settings and the name of a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import machines
import numpy as np
import pytest
from conftest import Voxbatch

from voxbatch.engines import has_gpu, previews
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.engines.previews import ExpectedSpeed
from voxbatch.errors import ConfigError
from voxbatch.storage.columns import Column
from voxbatch.vllm.engine import forecast
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.memory import StreamingFootprint
from voxbatch.vllm.engine.model import DEFAULT_PARAMS as PARAMS

L4, H200 = "NVIDIA L4", "NVIDIA H200"
PREFILLED: dict[str, Any] = {"prefill_encoder": "true"}
STOCK: dict[str, Any] = {"prefill_encoder": "false"}


def expected(gpu: str | None = L4, model: str | None = None, gpus: int = 1, **options: str) -> ExpectedSpeed | None:
    """Return the estimate for an engine on a card, or None."""
    return previews.expected_speed("vllm", model, options, None, gpu, gpus)


def rtfx(gpu: str = L4, gpus: int = 1, **options: str) -> float:
    """Return the estimated RTFx."""
    found = expected(gpu, None, gpus, **options)
    assert found
    return found.rtfx


def test_estimates_for_an_l4() -> None:
    """An L4 reaches about 40 with stock vLLM, and three times as much with the encoder once for each chunk.

    The estimate says how it was calculated.
    """
    assert 30 <= rtfx(**STOCK) <= 50
    assert 2.5 <= rtfx(**PREFILLED) / rtfx(**STOCK) <= 4
    assert str(expected()) == (
        "calculated for an NVIDIA L4 with the encoder once a chunk, not measured, and may be 30 % off; give a measured "
        "value with --expected-rtfx"
    )
    assert "an NVIDIA L4 with stock vLLM" in str(expected(L4, **STOCK))
    assert "4 NVIDIA L4 with the encoder once a chunk" in str(expected(L4, gpus=4))


def test_auto_estimates_the_plugin() -> None:
    """The estimate for remote GPUs uses the plugin's speed, unless stock vLLM is requested."""
    assert rtfx(prefill_encoder="false") < rtfx(prefill_encoder="auto") == rtfx(prefill_encoder="true")


@pytest.mark.parametrize("name", GPU_SPECS)
@pytest.mark.parametrize("prefilled", [False, True])
def test_requests_fit_into_the_memory(name: str, prefilled: bool) -> None:
    """The estimate never has more requests than the engine would admit, and has most of these."""
    settings = resolve("realtime", {})
    mine = StreamingFootprint(PARAMS, 512, prefilled)
    most = mine.admitted(0.95 * GPU_SPECS[name].total_bytes)
    assert 0.7 * most <= forecast.requests(PARAMS, settings, name, prefilled, 30) <= most
    assert mine.running(448, 1e9) == 1


def test_requests_follow_the_settings() -> None:
    """The number of requests follows max_num_seqs, a smaller memory budget, or an encoder cache that is not lifted.

    It may exceed the usual number if the memory suffices.
    """
    many = resolve("realtime", {"max_num_seqs": "768"})
    assert forecast.requests(PARAMS, many, H200, True, 30) == 768
    assert forecast.requests(PARAMS, many, L4, True, 30) < 200
    for options, count in (
        ({"max_num_seqs": "8"}, 8),
        ({"gpu_memory_gb": "22"}, 34),
        ({"lift_encoder_cache": "false"}, 4096 // 448),
        ({"lift_encoder_cache": "false", "max_num_batched_tokens": "0"}, 16_384 // 448),
    ):
        assert forecast.requests(PARAMS, resolve("realtime", options), H200, False, 30) == count, options
    settings = resolve("realtime", {"lift_encoder_cache": "false", "max_num_batched_tokens": "0"})
    assert forecast.requests(PARAMS, settings, "NVIDIA A100-SXM4-80GB", False, 30) == 8_192 // 448


def column(*durations: float) -> Column:
    found = Column("<f4")
    found.append(np.array(durations))
    return found


def test_estimates_follow_the_lengths_of_recordings() -> None:
    """Short recordings are mostly pads, a few do not fill a card, and long ones are cut."""

    def of(*durations: float) -> float:
        found = previews.expected_speed("vllm", None, PREFILLED, column(*durations), H200)
        assert found
        return found.rtfx

    assert of(*[5.0] * 5000) < 0.75 * of(*[30.0] * 5000)
    assert of(*[30.0] * 4) < of(*[30.0] * 400) / 10
    assert of(36_000.0) == pytest.approx(of(*[35.0] * 1029), rel=0.05)
    assert of(0.0) == rtfx(H200, **PREFILLED)


def test_no_estimate_for_unknown_combinations(tmp_path: Path) -> None:
    """There is no estimate for other cards, models, number formats and engines, and an invalid option is refused."""
    assert expected("NVIDIA T4") is None
    assert expected(L4, "openai/whisper-large-v3-turbo") is None
    assert expected(L4, "mistralai/Voxtral-Mini-3B-2507") is None
    assert expected(L4, tensor_parallel_size="2") is None
    assert expected(L4, quantization="fp8") is None
    assert expected(L4, fp8="decoder") is None
    assert expected(L4, dtype="float32") is None
    assert previews.expected_speed("faster-whisper", None, {}, None, L4) is None
    assert previews.expected_speed("no such", None, {}, None, L4) is None
    with pytest.raises(ConfigError, match="engine option 'no_such' is unknown to vllm"):
        expected(L4, no_such="1")


def test_a_remote_model_is_taken_for_the_published_one() -> None:
    """A model in a bucket or in a folder of another machine is taken for the published model."""
    assert expected(L4, "gs://bucket/model/") == expected(L4, "/model/in/the/image") == expected(L4)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_no_estimate_without_a_gpu() -> None:
    """There is no estimate for a machine without a GPU."""
    assert expected(None) is None


@pytest.fixture
def l4s(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine with two L4s, vLLM 0.32 and voxbatch. The engine is never started."""
    machines.small_files(tmp_path / "model")
    return {"PYTHONPATH": machines.path(machines.gpu_machine(tmp_path / "packages")), "CUDA_VISIBLE_DEVICES": "0,1"}


def test_the_dry_run_estimates_the_time(voxbatch: Voxbatch, tmp_path: Path, l4s: dict[str, str]) -> None:
    """The dry run estimates the time for the local cards and the requested encoder mode, and says so.

    An expected RTFx from the user has priority.
    """
    durations = column(*[1800.0] * 300)
    rows = [json.dumps({"audio_filepath": f"{i}.wav", "duration": 1800}) + "\n" for i in range(len(durations))]
    (tmp_path / "m.jsonl").write_text("".join(rows))

    def rtfx(**options: str) -> float:
        found = previews.expected_speed("vllm", None, options, durations, L4, 2)
        assert found
        return found.rtfx

    def time(*args: str) -> str:
        done = voxbatch("run", "m.jsonl", "--engine", "vllm", "--model", "model", "--dry-run", *args, env=l4s)
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("time"))

    not_measured = "not measured, and may be 30 % off; give a measured value with --expected-rtfx)"
    once = "with the encoder once a chunk"
    assert time().endswith(f"at RTFx {rtfx():g} (calculated for 2 NVIDIA L4 {once}, {not_measured}")
    assert time("--workers", "1").endswith(f"(calculated for an NVIDIA L4 {once}, {not_measured}")
    assert time("--prefill-encoder") == time()
    assert f"at RTFx {rtfx(**STOCK):g} (calculated for 2 NVIDIA L4 with stock" in time("--no-prefill-encoder")
    assert time("--expected-rtfx", "50") == "time     about 3:00:00 at RTFx 50"
