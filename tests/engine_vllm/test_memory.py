"""The number of requests that a card admits follows from the model's published shape.

vLLM's budget leaves memory for everything that vLLM does not count.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import H200, L4, full_size, params

from voxbatch.engines import Feed, gpu
from voxbatch.errors import ConfigError
from voxbatch.profiles import load_profile
from voxbatch.records import Chunk, Span
from voxbatch.settings import parse
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.arguments import (
    capture_sizes,
    concurrency,
    llm_arguments,
    memory_share,
    small_job_chunks,
)
from voxbatch.vllm.engine.environment import ALLOCATOR, THREADS, allocator, threads
from voxbatch.vllm.engine.families.instruct import Instruct
from voxbatch.vllm.engine.families.questions import Questions
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.memory import (
    MAX_REQUESTS,
    UNCOUNTED_BYTES,
    Footprint,
    StreamingFootprint,
    step_bytes,
)
from voxbatch.vllm.engine.model import REALTIME, TRANSCRIPTION, WHISPER, Model
from voxbatch.vllm.engine.planned_memory import planned_bytes
from voxbatch.vllm.engine.settings import FP8_PARTS, VllmSettings
from voxbatch.vllm.plugin.scheduler.admission import burst_size

KIB, MIB = 1 << 10, 1 << 20


def footprint(max_model_len: int = 512, memory_type: type[Footprint] = StreamingFootprint, **others: Any) -> Footprint:
    """Return the footprint of this model."""
    return memory_type(params(), max_model_len, **others)


def prefilled(*fp8: str) -> Footprint:
    """Return the footprint with the encoder once for each chunk."""
    return footprint(prefilled=True, fp8=frozenset(fp8))


def test_weights_take_the_published_size() -> None:
    """The weights take 8.86 GB in bfloat16, to 3 %; 8 bits halve all of them but the embedding's 0.8 GB."""
    assert footprint().weights_bytes == pytest.approx(8.86e9, rel=0.03)
    embedding = 131_072 * 3_072 * 2
    assert prefilled("decoder", "encoder").weights_bytes == (footprint().weights_bytes + embedding) / 2
    assert prefilled("kv").weights_bytes == footprint().weights_bytes
    assert prefilled("decoder").weights_bytes < prefilled("encoder").weights_bytes < footprint().weights_bytes


def test_bytes_of_a_request() -> None:
    """A position takes 104 KiB of decoder cache and 10 KiB of encoder cache, and 1 MiB of the encoder's own K/V cache
    within its window of 189 positions.

    With the plugin it takes 104 KiB (52 in 8 bits) and 6 KiB of encoder output. The cache is in whole blocks of 16
    positions, or of more if requested.
    """
    per_position = (footprint(4096).request_bytes - footprint(2048).request_bytes) / 2048
    assert per_position == (104 + 10) * KIB
    in_window = (footprint(96).request_bytes - footprint(48).request_bytes) / 48
    assert in_window == 1 * MIB + (104 + 10) * KIB
    assert footprint().request_bytes == 512 * 114 * KIB + 189 * MIB
    assert footprint(memory_type=Footprint).request_bytes == 512 * 114 * KIB
    assert prefilled().request_bytes == prefilled("decoder", "encoder").request_bytes == 512 * 110 * KIB
    assert prefilled("kv").request_bytes == 512 * 58 * KIB
    assert footprint(500, prefilled=True).request_bytes == (512 * 104 + 500 * 6) * KIB
    assert footprint(500, prefilled=True, block_size=128).request_bytes == (512 * 104 + 500 * 6) * KIB
    assert footprint(513, prefilled=True, block_size=128).request_bytes == (640 * 104 + 513 * 6) * KIB


def test_requests_admitted_by_gpus() -> None:
    """An L4 admits about 190 requests with the plugin, about 40 in stock's way, and about 440 in 8 bits.

    An H200 admits about 460 in stock's way. A card that is too small still admits one.
    """
    assert prefilled().fitting(21.3e9) == prefilled().admitted(21.3e9) == 192
    assert 40 < footprint().admitted(21.3e9) < 50
    assert 400 < prefilled(*FP8_PARTS).admitted(21.3e9) < 500
    assert prefilled().admitted(0.9 * 80e9) == MAX_REQUESTS
    assert 450 < footprint().admitted(0.9 * 141e9) < 470
    assert footprint().admitted(1e12) == MAX_REQUESTS
    assert footprint().admitted(4e9) == 1


budgets = st.floats(0, 1e12)
footprints = st.builds(
    footprint,
    st.integers(1, 200_000),
    st.sampled_from((Footprint, StreamingFootprint)),
    prefilled=st.booleans(),
    fp8=st.frozensets(st.sampled_from(FP8_PARTS)),
    block_size=st.sampled_from((16, 64, 128)),
)


@given(footprints, budgets, budgets)
def test_more_memory_admits_more(found: Footprint, one: float, other: float) -> None:
    """More memory admits more requests, from 1 to MAX_REQUESTS, and they fit whenever more than one does."""
    budgets = sorted((one, other))
    small, large = (found.admitted(budget) for budget in budgets)
    assert 1 <= small <= large <= MAX_REQUESTS
    small, large = (found.fitting(budget) for budget in budgets)
    assert 1 <= small <= large
    assert large == 1 or found.weights_bytes + large * found.request_bytes <= max(one, other)


# -- the instruct models -----------------------------------------------------------------------------------------------

TEXT_OF_A_WINDOW = 100
"""Text tokens of 30 s of read speech."""


def instruct(profile: str, max_model_len: int, **others: Any) -> Footprint:
    """Return the footprint of the instruct model of a profile."""
    return Footprint(full_size().params(profile), max_model_len, **others)


def of_profile(profile: str) -> VllmSettings:
    """Return the settings of a profile."""
    return parse(VllmSettings, "vllm", {n: str(v) for n, v in load_profile(profile)["engine_options"].items()})


@pytest.mark.parametrize(("profile", "fitting"), [("mini-3b", 76), ("small-24b", 143)])
def test_a_step_holds_the_requests_of_an_instruct_profile(profile: str, fitting: int) -> None:
    """A step holds all requests that L4s admit and the prompts of new ones, and all memory is left to the K/V cache."""
    settings = of_profile(profile)
    planned = planned_bytes(settings, L4) * settings.tensor_parallel_size - (settings.tensor_parallel_size - 1) * 1.4e9
    footprint = instruct(profile, settings.max_model_len)
    assert footprint.fitting(planned) == pytest.approx(fitting, rel=0.05)
    requests = footprint.admitted(planned)
    prompts = requests / TEXT_OF_A_WINDOW * Instruct.prompt_tokens
    step = settings.max_num_batched_tokens or Instruct.step_tokens(requests, prefilled=False, on_cpu=False)
    assert requests + prompts <= step
    assert step_bytes(step) == 0


@pytest.mark.parametrize(("requests", "expected"), [(1, 4_096), (150, 4_096), (180, 5_120), (1_024, 15_360)])
def test_a_step_of_the_plugin_holds_the_prompts_of_a_burst(requests: int, expected: int) -> None:
    """With the plugin, a step of an instruct model also holds the prompts of a whole burst."""
    assert Instruct.step_tokens(requests, prefilled=True, on_cpu=False) == expected
    assert requests + burst_size(requests) * Instruct.prompt_tokens <= expected


def test_requests_of_an_instruct_model_are_admitted_by_their_usual_text() -> None:
    """An L4 admits instruct requests by the text of 30 s of speech, and not by the longest text that is allowed."""
    plugin, planned = instruct("mini-3b", 1_024, prefilled=True), planned_bytes(VllmSettings(), L4)
    assert (plugin.encoded_bytes, plugin.fitting(planned), plugin.admitted(planned)) == (0, 84, 158)


@pytest.mark.parametrize(
    ("profile", "card", "context", "requests"),
    [
        ("mini-3b", L4, range(30_000, 32_769), range(1, 40)),
        ("mini-3b", H200, range(32_768, 32_769), range(256, 257)),
        ("small-24b", L4, range(20_000, 32_769), range(1, 100)),
    ],
    ids=["mini-3b on L4", "mini-3b on H200", "small-24b on L4"],
)
def test_the_context_for_questions_fits_into_the_memory(
    profile: str, card: gpu.GpuInfo, context: range, requests: range
) -> None:
    """One question fills the context beside the audio that is encoded on each GPU, and many short ones fit as well."""
    settings = of_profile(profile)
    gpus = settings.tensor_parallel_size
    planned = planned_bytes(settings, card) * gpus
    longest = min(32_768, instruct(profile, 32_768).question_context(planned, gpus))
    assert longest in context
    footprint = instruct(profile, longest)
    assert footprint.question_context(planned, gpus) >= longest
    assert footprint.questions(planned, gpus, longest) >= 1
    assert footprint.questions(planned, gpus, 1_527) in requests


# -- a card ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [L4, H200])
@pytest.mark.parametrize("asked", [{}, {"gpu_memory_utilization": 1.0}, {"gpu_memory_gb": 22.0}])
def test_options_limit_the_memory_of_a_gpu(card: gpu.GpuInfo, asked: dict[str, Any]) -> None:
    """vLLM's plan, uncounted memory and the driver's memory add up to the limit; the default is 95 % of the card. So an
    L4 keeps 1.2 GB free."""
    limit = asked.get("gpu_memory_gb", 0) * 1e9 or asked.get("gpu_memory_utilization", 0.95) * card.total_bytes
    settings = VllmSettings(prefill_encoder="false", lift_encoder_cache=False, **asked)
    planned = memory_share(model(Path()), settings, False, card, 100) * (card.total_bytes - card.reserved_bytes)
    assert planned + UNCOUNTED_BYTES + card.reserved_bytes == pytest.approx(limit)


def test_impossible_memory_limits_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A limit above a visible card's memory is refused, and so is one that CUDA alone would fill, even if the number of
    requests does not depend on the memory."""
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [H200, L4])
    too_much = VllmSettings(gpu_memory_gb=100.0, max_num_seqs=64)
    for kind in (model(tmp_path), Model("a model", tmp_path, WHISPER, is_mistral=False)):
        with pytest.raises(ConfigError, match=r"gpu_memory_gb=100\.0: NVIDIA L4 has only 24\.2 GB"):
            concurrency(kind, too_much, kind.is_mistral)
    with pytest.raises(ConfigError, match=r"1\.5 GB of NVIDIA L4 may be filled, and the driver, CUDA and CUDA graphs"):
        planned_bytes(VllmSettings(gpu_memory_gb=1.5), L4)


def test_requests_of_other_models_fill_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On an L4 21.28 GB are planned. Less 4.7 GB of weights and 1.4 GB of working memory, 220 requests fit with 69 MB
    each: 600 positions in 28 layers with 8 heads of 128 (Qwen3-ASR 1.7B). An unknown size means a fixed number."""
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [L4])
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(4_700_000_000)
    other = Model("a model", tmp_path, TRANSCRIPTION, is_mistral=False)
    assert concurrency(other, VllmSettings(), False, 2 * 2 * 28 * 8 * 128 * 600) == 220
    assert concurrency(other, VllmSettings(), False) == 128


def model(folder: Path) -> Model:
    """Return a Voxtral Realtime in this folder."""
    return Model("a model", folder, REALTIME, is_mistral=True)


@pytest.fixture
def voxtral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a model on a machine with an L4 and vLLM for it."""
    (tmp_path / "params.json").write_text(json.dumps(params()))
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [L4])
    monkeypatch.setattr("voxbatch.vllm.plugin.is_installed", lambda: True)
    return model(tmp_path)


def test_uncounted_encoded_audio_is_reserved(voxtral: Model) -> None:
    """Stock's way reserves 5 MiB for each admitted request, not for each requested one.

    With the encoder once for each chunk, encoded audio is part of the model.
    """
    stock, plugin = VllmSettings(prefill_encoder="false"), VllmSettings(prefill_encoder="true")
    usable, planned = L4.total_bytes - L4.reserved_bytes, planned_bytes(stock, L4)
    requests = footprint().fitting(planned)
    assert memory_share(voxtral, stock, False, L4, requests) * usable == pytest.approx(planned - requests * 5 * MIB)
    assert memory_share(voxtral, stock, False, L4, 10_000) == memory_share(voxtral, stock, False, L4, requests)
    assert memory_share(voxtral, plugin, True, L4, 192) * usable == pytest.approx(planned)


def test_arguments_for_vllm(voxtral: Model) -> None:
    """vLLM gets its share of the memory that CUDA reports, the plugin's attention, and otherwise only requested
    settings."""
    plain = llm_arguments(voxtral, VllmSettings(prefill_encoder="true"), True, voxtral.path, 192)
    assert plain["gpu_memory_utilization"] == round(21.275e9 / (L4.total_bytes - L4.reserved_bytes), 4)
    assert plain["attention_backend"] == "CUSTOM"
    assert not {"block_size", "kv_cache_dtype", "quantization"} & {*plain}
    stock = llm_arguments(voxtral, VllmSettings(prefill_encoder="false"), False, voxtral.path, 38)
    assert "attention_backend" not in stock
    asked = VllmSettings(prefill_encoder="true", block_size=64, attention_backend="FLASH_ATTN")
    told = llm_arguments(voxtral, asked, True, voxtral.path, 192)
    assert (told["block_size"], told["attention_backend"]) == (64, "FLASH_ATTN")


def test_a_reproducible_whisper_has_no_compiled_code(voxtral: Model) -> None:
    """vLLM leaves compiled code out of some steps of Whisper, so a reproducible run has none in any, and graphs of the
    steps that only decode. Other families have compiled code."""
    whisper = Model("whisper", voxtral.path, WHISPER, is_mistral=False)

    def compilation(located: Model, **options: Any) -> dict[str, Any]:
        settings = VllmSettings(reproducible=True, max_num_seqs=8, **options)
        told: dict[str, Any] = llm_arguments(located, settings, False, located.path, 8)["compilation_config"]
        return told

    graphs = compilation(whisper)
    assert (graphs["mode"], graphs["cudagraph_mode"]) == ("NONE", "FULL_DECODE_ONLY")
    assert graphs["cudagraph_capture_sizes"]
    assert compilation(whisper, cudagraph_mode="NONE") == {"mode": "NONE", "cudagraph_mode": "NONE"}
    assert "mode" not in compilation(voxtral)


def test_cuda_graphs_cover_all_requests(voxtral: Model) -> None:
    """CUDA graphs cover all requested requests, also beyond vLLM's own limit, if there are graphs at all."""
    for options, largest in (
        ({}, 384),
        ({"max_num_seqs": 768}, 768),
        ({"max_num_seqs": 600}, 608),
        ({"max_num_seqs": 300, "max_num_batched_tokens": 512}, 512),
        ({"max_num_seqs": 768, "cudagraph_mode": "NONE"}, None),
    ):
        settings = VllmSettings(prefill_encoder="true", **options)
        given = llm_arguments(voxtral, settings, True, voxtral.path, settings.max_num_seqs or 192)
        assert max(given["compilation_config"].get("cudagraph_capture_sizes", ()), default=None) == largest, options


@given(st.integers(1, 1_500))
def test_a_step_with_most_requests_is_hardly_larger_than_needed(requests: int) -> None:
    """A step that runs three quarters of all requests or more gets a graph with at most 15 rows too many, a smaller one
    of at most a third more or 8 rows, and there are fewer graphs than vLLM's own."""
    sizes = capture_sizes(requests)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] >= requests
    for running in range(1, requests + 1):
        size = next(each for each in sizes if each >= running)
        assert size - running <= (15 if running >= requests * 3 / 4 else max(8, running / 3)), (running, size)
    stock = [1, 2, 4, *range(8, 256, 8), *range(256, sizes[-1] + 1, 16)]
    assert len(sizes) <= max(8, 0.7 * len(stock))


def small_feed(chunks: int, is_last: bool = True, closed: bool = True) -> Feed:
    """Return a feed with short chunks."""
    feed = Feed(1_000, is_last)
    for i in range(chunks):
        feed.put(Chunk(0, i, np.zeros(9, np.float32), Span(0, 9, 0, 9)))
    if closed:
        feed.close()
    return feed


def test_a_small_job_has_all_its_chunks_when_vllm_starts() -> None:
    """A job is small if all chunks of the only feed are there when vLLM starts, unless the user chose the graphs or the
    task is to answer questions. Chunks that an engine took before it died count."""
    auto, chosen = VllmSettings(), VllmSettings(cudagraph_mode="FULL_AND_PIECEWISE")
    assert small_job_chunks(Realtime, auto, small_feed(3)) == 3
    assert small_job_chunks(Realtime, chosen, small_feed(3)) == 0
    assert small_job_chunks(Questions, auto, small_feed(3)) == 0
    assert small_job_chunks(Realtime, auto, small_feed(3, closed=False)) == 0
    assert small_job_chunks(Realtime, auto, small_feed(3, is_last=False)) == 0
    taken = small_feed(3)
    assert [taken.get(), taken.get(), taken.get()].count(None) == 0
    assert small_job_chunks(Realtime, auto, taken) == 3
    assert small_job_chunks(Realtime, auto, small_feed(0)) == 1


def test_a_small_job_has_graphs_and_no_compiled_code(voxtral: Model) -> None:
    """A small job gets full graphs of steps that only decode, for all its chunks in two halves each and for no more
    requests than run at a time, and vLLM compiles nothing. So the graphs of PIECEWISE are left out, which lie between
    pieces of compiled code. vLLM is told the K/V cache if there is ample room for it."""
    plugin = VllmSettings(prefill_encoder="true")
    for settings, chunks, sizes, requests_in_kv in (
        (plugin, 1, [1, 2], 3),
        (plugin, 3, [1, 2, 4, 6], 7),
        (plugin, 500, [1, 2, 4, 8, 16, 32, 64, 128, 192], 0),
        (replace(plugin, max_num_batched_tokens=16), 500, [1, 2, 4, 8, 16], 0),
    ):
        told = llm_arguments(voxtral, settings, True, voxtral.path, 192, chunks)
        expected = {"mode": "NONE", "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        assert told["compilation_config"] == expected
        assert not told["enforce_eager"]
        assert (told["kv_cache_memory_bytes"] or 0) == requests_in_kv * 512 * 104 * 1024  # 104 KiB for each position
    assert llm_arguments(voxtral, replace(plugin, enforce_eager=True), True, voxtral.path, 192, 3)["enforce_eager"]
    assert "mode" not in llm_arguments(voxtral, plugin, True, voxtral.path, 192)["compilation_config"]
    assert llm_arguments(voxtral, replace(plugin, cudagraph_mode="PIECEWISE"), True, voxtral.path, 38, 3)[
        "enforce_eager"
    ]


@pytest.mark.filterwarnings("default")  # importing vLLM warns
def test_vllm_reads_the_modes_of_a_small_job(voxtral: Model) -> None:
    """vLLM reads the values of a small job as the modes that they name."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode

    told = llm_arguments(voxtral, VllmSettings(prefill_encoder="true"), True, voxtral.path, 192, 3)
    read = CompilationConfig(**told["compilation_config"])
    assert (read.mode, read.cudagraph_mode) == (CompilationMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY)


def test_the_allocator_gets_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator gets expandable segments on one GPU, unless the user has set it by either of its names."""
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert allocator(1) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator(4) == {}
    for name in ALLOCATOR:
        monkeypatch.setenv(name, "max_split_size_mb:128")
        assert allocator(1) == {}
        monkeypatch.delenv(name)


def test_the_host_of_a_gpu_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of a GPU uses one thread unless the user says otherwise; an engine on a CPU keeps its threads."""
    monkeypatch.delenv(THREADS, raising=False)
    assert threads(on_gpu=True) == {"OMP_NUM_THREADS": "1"}
    assert threads(on_gpu=False) == {}
    monkeypatch.setenv(THREADS, "4")
    assert threads(on_gpu=True) == {}
