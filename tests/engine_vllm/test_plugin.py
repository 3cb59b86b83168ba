"""Voxtral Realtime with its encoder run once for each chunk gives stock vLLM's output, and takes less memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sounds

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCKS = 8_192
"""Blocks in 1 GiB: 128 positions each, of 2 layers' keys and values, 64 numbers of 4 bytes. The encoder has none."""


def prefilled(model: Path, spoken: Spoken, folder: Path, *options: str) -> dict[str, Any]:
    """Run the engine with the plugin over the chunks, and return its result."""
    from engine_runs import FLOAT32, streamed

    return streamed(model, spoken.waveforms, folder, *FLOAT32, "ignore_eos=false", "prefill_encoder=true", *options)


def test_tokens_of_chunks_together_equal_stock(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """40 chunks of 0.3 to 36 s, admitted in bursts, give the tokens that stock vLLM gives for each alone.

    The bursts have two chunks, and 28 run at a time. All K/V blocks belong to the decoder.
    """
    assert len(realtime_spoken.waveforms) >= 40
    assert len({token for tokens in realtime_spoken.tokens.values() for token in tokens}) >= 50
    found = prefilled(realtime, realtime_spoken, tmp_path, "max_num_seqs=28")
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens] for name, tokens in realtime_spoken.tokens.items()}
    assert f"up to 28 requests at a time in {BLOCKS:,} K/V blocks" in found["notices"][1]


def test_tokens_of_single_chunks_equal_stock(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """One chunk at a time gives the same tokens too."""
    found = prefilled(realtime, realtime_spoken, tmp_path, "max_num_seqs=1")
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens] for name, tokens in realtime_spoken.tokens.items()}


LEFT_PAD, SHARED = 32 * 1_280, 31
"""Samples of silence that chunks begin with, and the number of positions that depend on the silence alone."""


def beginnings(model: Path) -> dict[str, np.ndarray]:
    """Return padded audio of 0.4 to 12 s: most with the usual silence, some with broken silence or none."""
    import generate
    from sounds import babble

    pad = generate.tokenizer(str(model)).audio_encoder.pad
    seconds = (3.0, 0.4, 12.0, 5.5, 1.0, 8.0, 2.0, 4.0, 7.1, 2.5, 3.3, 6.0)
    found = {f"{name}": pad(babble(length, name), 16_000) for name, length in enumerate(seconds)}
    for name in ("0", "4", "9"):
        found[f"noise {name}"] = found[name].copy()
        found[f"noise {name}"][:LEFT_PAD] = babble(LEFT_PAD / 16_000, 99)[:LEFT_PAD]
    for name, place in (("2", 0), ("6", LEFT_PAD - 1)):
        found[f"click {name}"] = found[name].copy()
        found[f"click {name}"][place] = 0.9
    return found


def said(model: Path, audio: dict[str, np.ndarray], folder: Path, scheduler: str, *options: str) -> dict[str, Any]:
    """Run together.py in its own process, and return its result."""
    from engine_runs import HERE, ROOT, caches, installed

    sounds.save(folder / "audio.npz", audio)
    out = folder / f"{scheduler}.json"
    command: list[str | Path] = [
        sys.executable,
        HERE / "together.py",
        model,
        folder / "audio.npz",
        out,
        scheduler,
        *options,
    ]
    path = {"PYTHONPATH": f"{ROOT}:{HERE}:{installed(folder)}", **caches(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=_environment(path))
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def stock_tokens(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return stock vLLM's tokens for the beginnings, one at a time."""
    found: dict[str, list[int]] = said(realtime, beginnings(realtime), tmp_path_factory.mktemp("s"), "stock")["tokens"]
    return found


@pytest.mark.parametrize(("step_tokens", "block"), [(2_048, 16), (50, 128)])
def test_tokens_with_a_shared_prefix_equal_stock(
    step_tokens: int, block: int, realtime: Path, stock_tokens: dict[str, list[int]], tmp_path: Path
) -> None:
    """Chunks that share a prefix give the tokens that stock vLLM gives for each alone.

    The prefix is computed for the first chunks, and shared or copied by later ones, one of them after a preemption. A
    chunk that begins differently is computed in full beside them. This also holds if a step cannot take two prompts.
    With blocks of 16 positions, as on a GPU, one block is shared and one is copied. With blocks of 128, one is copied.
    """
    audio = beginnings(realtime)
    limits = ("max_num_seqs=5", f"max_num_batched_tokens={step_tokens}", f"block_size={block}")
    found = said(realtime, audio, tmp_path, "Watched", *limits)
    assert found["tokens"] == stock_tokens
    told = found["told"]
    assert all(set(told[name]) == {0} for name in audio if not name.isdigit())
    silent = [each for name, each in told.items() if name.isdigit()]
    first = {2_048: 5, 50: 2}[step_tokens]  # the chunks that came before there was a block to copy
    assert [each[0] for each in silent] == [0] * first + [SHARED] * (len(silent) - first)
    assert [each[1] for each in told.values() if len(each) > 1] in ([0], [SHARED])
    assert found["copies"] == sum(each.count(SHARED) for each in silent)
    assert any(each[1:] == [SHARED] for each in silent)


def test_missing_block_copies_change_tokens(realtime: Path, stock_tokens: dict[str, list[int]], tmp_path: Path) -> None:
    """Missing copies change the tokens of the chunks that needed them, and of no others."""
    found = said(realtime, beginnings(realtime), tmp_path, "Forgetful", "max_num_seqs=5", "max_num_batched_tokens=2048")
    wrong = {name for name, tokens in found["tokens"].items() if tokens != stock_tokens[name]}
    assert wrong
    assert wrong <= {name for name, told in found["told"].items() if SHARED in told}


def test_rows_equal_those_of_transformers(realtime: Path, tmp_path: Path) -> None:
    """The encoder's output equals that of transformers' encoder to 1e-4, and a window of one more frame shows.

    This holds for many chunks together, for each alone, and for the kernels that a GPU uses without the shared silence.
    """
    import generate
    from engine_runs import HERE, ROOT, caches, installed
    from huggingface import Reference
    from sounds import babble

    pad = generate.tokenizer(str(realtime)).audio_encoder.pad
    audio = {f"{seconds} s": pad(babble(seconds, 7), 16_000) for seconds in (0.3, 1.0, 14.9, 15.1, 29.97, 35.0, 4.2)}
    sounds.save(tmp_path / "chunks.npz", audio)
    command: list[str | Path] = [
        sys.executable,
        HERE / "encode.py",
        realtime,
        tmp_path / "chunks.npz",
        tmp_path / "rows.npz",
    ]
    path = {"PYTHONPATH": f"{ROOT}:{HERE}:{installed(tmp_path)}", **caches(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=_environment(path))
    assert done.returncode == 0, done.stderr[-4_000:]
    reference = Reference(realtime)
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["known"] == 124
        for name, samples in audio.items():
            expected = reference.rows(samples)
            assert np.abs(expected).mean() > 0.1
            for how in ("together", "alone", "fused"):
                np.testing.assert_allclose(rows[f"{name}.{how}"], expected, atol=1e-4)
        reference.model.config.audio_config.sliding_window = 751
        assert np.abs(rows["35.0 s.alone"] - reference.rows(audio["35.0 s"])).max() > 1e-3


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_fp8_part(part: str, realtime: Path, tmp_path: Path) -> None:
    """Only the requested part's matrices are quantised while Mistral's weights load, and its biases are loaded.

    The plugin's encoder still works: its output is transformers' to a few per cent.
    """
    import generate
    from engine_runs import HERE, ROOT, caches, installed
    from huggingface import Reference
    from sounds import babble

    samples = generate.tokenizer(str(realtime)).audio_encoder.pad(babble(5.0, 7), 16_000)
    np.save(tmp_path / "chunk.npy", samples)
    command: list[str | Path] = [
        sys.executable,
        HERE / "quantised.py",
        realtime,
        tmp_path / "chunk.npy",
        tmp_path / "out.npz",
        part,
    ]
    path = {"PYTHONPATH": f"{ROOT}:{HERE}:{installed(tmp_path)}", **caches(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=_environment(path))
    assert done.returncode == 0, done.stderr[-4_000:]
    with np.load(tmp_path / "out.npz") as found:
        rows, methods = found["rows"], json.loads(str(found["methods"]))
    towers = {"encoder": "whisper_encoder.", "decoder": "language_model."}
    matrices = {name: method for name, method in methods.items() if name.endswith(("_proj",))}
    for tower in towers.values():
        used = {method for name, method in matrices.items() if name.startswith(tower)}
        assert used == {"Fp8PtpcOnlineLinearMethod" if tower == towers[part] else "UnquantizedLinearMethod"}
    expected = Reference(realtime).rows(samples)
    error = np.abs(rows - expected).mean() / np.abs(expected).mean()
    assert error < (0.15 if part == "encoder" else 0.1), error  # bfloat16 alone: 0.06


def test_checkpoint_in_8_bits(realtime: Path, tmp_path: Path) -> None:
    """A checkpoint whose decoder was published in 8 bits loads as it is with the plugin, and needs no option."""
    import checkpoints
    from engine_runs import HERE, ROOT, caches, installed

    model = shutil.copytree(realtime, tmp_path / "model")
    checkpoints.quantise_decoder(model)
    np.save(tmp_path / "chunk.npy", np.zeros(1_280 * 50, np.float32))
    command: list[str | Path] = [
        sys.executable, HERE / "quantised.py", model, tmp_path / "chunk.npy", tmp_path / "out.npz",
    ]  # fmt: skip
    path = {"PYTHONPATH": f"{ROOT}:{HERE}:{installed(tmp_path)}", **caches(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=_environment(path))
    assert done.returncode == 0, done.stderr[-4_000:]
    with np.load(tmp_path / "out.npz") as found:
        methods = json.loads(str(found["methods"]))
    for tower, method in (
        ("language_model.", "CompressedTensorsLinearMethod"), ("whisper_encoder.", "UnquantizedLinearMethod"),
    ):  # fmt: skip
        assert {m for name, m in methods.items() if name.startswith(tower) and name.endswith("_proj")} == {method}


def _environment(changes: dict[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}, **changes}


def _python(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process: importing vLLM gives warnings, which are errors here."""
    from engine_runs import ROOT

    changed = _environment({"PYTHONPATH": str(ROOT), **changes})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=changed, timeout=240)


def test_every_vllm_name_can_be_imported() -> None:
    """Python finds each name that the source has (tests/engine_vllm/test_vllm_names.py)."""
    code = (
        "import importlib\nfrom voxbatch.vllm_plugin.vllm_names import NAMES\n"
        "for name in NAMES:\n    module, _, attribute = name.partition(':')\n"
        "    if not hasattr(importlib.import_module(module), attribute): print(name)"
    )
    done = _python(code)
    assert (done.returncode, done.stdout) == (0, "vllm.v1.attention.backends.fa_utils:flash_attn_varlen_func\n"), done


@pytest.mark.filterwarnings("default")  # importing vLLM warns
def test_the_sizes_of_graphs_outlive_the_making_of_the_model() -> None:
    """vLLM's own configuration empties the list of sizes while full graphs are hidden and nothing is compiled."""
    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig

    from voxbatch.vllm_plugin.model import _hide_full_graphs

    config = CompilationConfig(mode=0, cudagraph_mode="FULL_DECODE_ONLY", cudagraph_capture_sizes=[1, 2])
    config.max_cudagraph_capture_size = 2
    with _hide_full_graphs(config):
        VllmConfig(compilation_config=config)
        assert config.cudagraph_capture_sizes == []
    kept = config.cudagraph_mode, config.cudagraph_capture_sizes, config.max_cudagraph_capture_size
    assert kept == (CUDAGraphMode.FULL_DECODE_ONLY, [1, 2], 2)


def test_unread_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsupported version is refused before anything is registered, with both versions and a solution."""
    from voxbatch import vllm_plugin
    from voxbatch.vllm_plugin import vllm_names

    monkeypatch.setenv(vllm_plugin.SWITCH, "1")
    monkeypatch.setattr(vllm_names, "_version", lambda: "0.31.2")
    with pytest.raises(
        RuntimeError, match=r"made for vLLM 0\.26, 0\.32 and 0\.33, and this is 0\.31\.2: run without it"
    ):
        vllm_plugin.register()


def test_register_does_nothing_without_the_switch() -> None:
    """An installed plugin that is not switched on changes nothing in vLLM, and imports nothing of it."""
    done = _python("import sys; from voxbatch.vllm_plugin import register; register(); print('vllm' in sys.modules)")
    assert done.stdout == "False\n"
