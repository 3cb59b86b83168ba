"""Voxtral Realtime with its encoder run once a chunk says what stock vLLM says, and holds less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from support import Spoken

pytest_plugins = ["support"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCKS = 8_192
"""In 1 GiB: 128 positions each, of 2 layers' keys and values, 64 numbers of 4 bytes; the encoder has none."""


def prefilled(model: Path, spoken: Spoken, folder: Path, *options: str) -> dict[str, Any]:
    from support import FLOAT32, streamed

    return streamed(model, spoken.waveforms, folder, *FLOAT32, "ignore_eos=false", "prefill_encoder=true", *options)


def test_tokens_in_company(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """40 chunks of 0.3 to 36 s, admitted in bursts of two, 28 at a time: each one's tokens are those of stock vLLM
    alone. All K/V blocks are the decoder's."""
    assert len(realtime_spoken.waveforms) >= 40
    assert len({token for tokens in realtime_spoken.tokens.values() for token in tokens}) >= 50
    found = prefilled(realtime, realtime_spoken, tmp_path, "max_num_seqs=28")
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens] for name, tokens in realtime_spoken.tokens.items()}
    assert f"up to 28 requests at a time in {BLOCKS:,} K/V blocks" in found["notices"][1]


def test_tokens_alone(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """The same, one at a time."""
    found = prefilled(realtime, realtime_spoken, tmp_path, "max_num_seqs=1")
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens] for name, tokens in realtime_spoken.tokens.items()}


def test_rows_are_those_of_transformers(realtime: Path, tmp_path: Path) -> None:
    """The encoder's output, of many chunks together, of each alone, and the whole way by the kernels that a GPU takes,
    is what transformers' own encoder gives, to 1e-4; and a frame more of the window shows."""
    import generate
    from huggingface import Reference
    from sounds import babble
    from support import HERE, installed

    pad = generate.tokenizer(str(realtime)).audio_encoder.pad
    audio = {f"{seconds} s": pad(babble(seconds, 7), 16_000) for seconds in (0.3, 1.0, 14.9, 15.1, 29.97, 35.0, 4.2)}
    np.savez(tmp_path / "chunks.npz", **audio)
    command = [sys.executable, HERE / "encode.py", realtime, tmp_path / "chunks.npz", tmp_path / "rows.npz"]
    path = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}:{installed(tmp_path)}", "XDG_CACHE_HOME": str(tmp_path)}
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
def test_a_part_in_8_bits(part: str, realtime: Path, tmp_path: Path) -> None:
    """The part's matrices are quantised while Mistral's weights load, and the other part's are not; biases are loaded,
    and the plugin's way through the encoder holds: what it gives is transformers' to a few per cent."""
    import generate
    from huggingface import Reference
    from sounds import babble
    from support import HERE, installed

    samples = generate.tokenizer(str(realtime)).audio_encoder.pad(babble(5.0, 7), 16_000)
    np.save(tmp_path / "chunk.npy", samples)
    command = [sys.executable, HERE / "quantised.py", realtime, tmp_path / "chunk.npy", tmp_path / "out.npz", part]
    path = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}:{installed(tmp_path)}", "XDG_CACHE_HOME": str(tmp_path)}
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


def _environment(changes: dict[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}, **changes}


def _python(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: to import vLLM gives warnings, which are errors here."""
    from support import HERE

    changed = _environment({"PYTHONPATH": str(HERE.parents[1]), **changes})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=changed, timeout=240)


def test_every_private_name_is_there() -> None:
    """In this vLLM, which is one that the plugin was made for; and one that is gone is named."""
    code = "from voxbatch.vllm_plugin import private; private.require(); print('all'); "
    done = _python(code + "private.NAMES['vllm.config:Gone'] = ''; private.require()")
    assert "all" in done.stdout
    assert "has no vllm.config:Gone, which voxbatch's encoder plugin needs" in done.stderr.splitlines()[-1]


def test_a_version_that_nobody_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is registered, with both versions and the way out."""
    from voxbatch import vllm_plugin
    from voxbatch.vllm_plugin import private

    monkeypatch.setenv(vllm_plugin.SWITCH, "1")
    monkeypatch.setattr(private, "_version", lambda: "0.31.2")
    with pytest.raises(RuntimeError, match=r"made for vLLM 0\.26 and 0\.32, and this is 0\.31\.2: run without it"):
        vllm_plugin.register()


def test_nobody_asked() -> None:
    """Then nothing of vLLM's is changed, or even imported, by being installed."""
    done = _python("import sys; from voxbatch.vllm_plugin import register; register(); print('vllm' in sys.modules)")
    assert done.stdout == "False\n"
