"""Voxtral Realtime with its encoder run once for each chunk gives stock vLLM's output, and takes less memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import environment

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCKS = 8_192
"""Blocks in 1 GiB: 128 positions each, of 2 layers' keys and values, 64 numbers of 4 bytes. The encoder has none."""


def check_tokens(
    model: Path, waveforms: dict[str, np.ndarray], spoken: Spoken, folder: Path, *options: str
) -> dict[str, Any]:
    """Run the engine with the plugin over the chunks, check its tokens, and return its result."""
    from engine_runs import FLOAT32, streamed

    found = streamed(model, waveforms, folder, *FLOAT32, "ignore_eos=false", "prefill_encoder=true", *options)
    assert found["failures"] == {}
    assert found["tokens"] == {name: [spoken.tokens[name]] for name in waveforms}
    return found


def test_tokens_of_chunks_together_equal_stock(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """32 chunks of 0.3 to 36 s, admitted in bursts, give the tokens that stock vLLM gives for each alone.

    The bursts have two chunks, and 28 run at a time. All K/V blocks belong to the decoder.
    """
    found = check_tokens(realtime, realtime_spoken.waveforms, realtime_spoken, tmp_path, "max_num_seqs=28")
    assert f"up to 28 requests at a time in {BLOCKS:,} K/V blocks" in found["notices"][1]


@pytest.mark.parametrize(("step_tokens", "block"), [(2_048, 16), (50, 128)])
def test_tokens_of_other_beginnings_equal_stock(
    step_tokens: int, block: int, realtime: Path, beginnings: Spoken, tmp_path: Path
) -> None:
    """Chunks that begin with silence, with noise or with a click give the tokens that stock vLLM gives for each alone.

    One of them is preempted. This also holds if a step cannot take two prompts.
    """
    from engine_runs import in_process

    audio, stock_tokens = beginnings
    limits = {"max_num_seqs": 5, "max_num_batched_tokens": step_tokens, "block_size": block}
    found = in_process(tmp_path, "together.together", realtime, audio, limits)
    assert found == {"tokens": stock_tokens, "preempted": 1}


def test_rows_equal_those_of_transformers(realtime: Path, tmp_path: Path) -> None:
    """The encoder's output equals that of transformers' encoder to 1e-4, and a window of one more frame shows.

    This holds for many chunks together, for each alone, and for the kernels that a GPU uses without the shared silence.
    """
    import generate
    from engine_runs import in_process
    from huggingface import Reference
    from sounds import babble

    pad = generate.tokenizer(realtime).audio_encoder.pad
    audio = {f"{seconds} s": pad(babble(seconds, 7), 16_000) for seconds in (0.3, 1.0, 14.9, 15.1, 29.97, 35.0, 4.2)}
    reference = Reference(realtime)
    rows = in_process(tmp_path, "encode.rows", realtime, audio)
    assert rows["known"] == 124
    for name, samples in audio.items():
        expected = reference.rows(samples)
        assert np.abs(expected).mean() > 0.1
        for how in ("together", "alone", "fused"):
            np.testing.assert_allclose(rows[how][name], expected, atol=1e-4)
    reference.model.config.audio_config.sliding_window = 751
    assert np.abs(rows["alone"]["35.0 s"] - reference.rows(audio["35.0 s"])).max() > 1e-3


TOWERS = {"encoder": "whisper_encoder.", "decoder": "language_model."}


def quantised(model: Path, samples: np.ndarray, folder: Path, *parts: str) -> tuple[np.ndarray, dict[str, set[str]]]:
    """Return the rows of a chunk by a model with parts in 8 bits, and vLLM's classes for the matrices of each tower."""
    from engine_runs import in_process

    rows, methods = in_process(folder, "encode.quantised", model, samples, parts)
    return rows, {
        tower: {method for name, method in methods.items() if name.startswith(prefix) and name.endswith("_proj")}
        for tower, prefix in TOWERS.items()
    }


@pytest.mark.parametrize("part", TOWERS)
def test_fp8_part(part: str, realtime: Path, tmp_path: Path) -> None:
    """Only the requested part's matrices are quantised while Mistral's weights load, and its biases are loaded.

    The plugin's encoder still works: its output is transformers' to a few per cent.
    """
    import generate
    from huggingface import Reference
    from sounds import babble

    samples = generate.tokenizer(realtime).audio_encoder.pad(babble(5.0, 7), 16_000)
    rows, methods = quantised(realtime, samples, tmp_path, part)
    names = {tower: "Fp8PtpcOnlineLinearMethod" if tower == part else "UnquantizedLinearMethod" for tower in TOWERS}
    assert methods == {tower: {name} for tower, name in names.items()}
    expected = Reference(realtime).rows(samples)
    error = np.abs(rows - expected).mean() / np.abs(expected).mean()
    assert error < (0.15 if part == "encoder" else 0.1), error  # bfloat16 alone: 0.06


def test_checkpoint_in_8_bits(realtime: Path, tmp_path: Path) -> None:
    """A checkpoint whose decoder was published in 8 bits loads as it is with the plugin, and needs no option."""
    import checkpoints

    model = shutil.copytree(realtime, tmp_path / "model")
    checkpoints.quantise_decoder(model)
    _, methods = quantised(model, np.zeros(1_280 * 50, np.float32), tmp_path / "run")
    assert methods == {"decoder": {"CompressedTensorsLinearMethod"}, "encoder": {"UnquantizedLinearMethod"}}


@pytest.mark.filterwarnings("default")  # importing vLLM warns
def test_the_sizes_of_graphs_outlive_the_making_of_the_model() -> None:
    """vLLM's own configuration empties the list of sizes while full graphs are hidden and nothing is compiled."""
    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig

    from voxbatch.vllm.plugin.model import _hide_full_graphs

    config = CompilationConfig(mode=0, cudagraph_mode="FULL_DECODE_ONLY", cudagraph_capture_sizes=[1, 2])
    config.max_cudagraph_capture_size = 2
    with _hide_full_graphs(config):
        VllmConfig(compilation_config=config)
        assert config.cudagraph_capture_sizes == []
    kept = config.cudagraph_mode, config.cudagraph_capture_sizes, config.max_cudagraph_capture_size
    assert kept == (CUDAGraphMode.FULL_DECODE_ONLY, [1, 2], 2)


def test_register_does_nothing_without_the_switch() -> None:
    """An installed plugin that is not switched on changes nothing in vLLM, and imports nothing of it."""
    code = "import sys; from voxbatch.vllm.plugin import register; register(); print('vllm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=240)
    assert done.stdout == "False\n", done.stderr
