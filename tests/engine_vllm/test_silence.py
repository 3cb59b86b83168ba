"""The silence that chunks begin with is encoded once, and the output is the same as without this shortcut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tower import LAYERS, tower  # noqa: E402

from voxbatch.vllm.plugin.encoder import Encoder  # noqa: E402
from voxbatch.vllm.plugin.packing import Packed, pack  # noqa: E402
from voxbatch.vllm.plugin.rotary import rotate_and_lay_out  # noqa: E402
from voxbatch.vllm.plugin.silence import settled_frames  # noqa: E402

CPU, TOKEN, LEFT_PAD = torch.device("cpu"), 1_280, 32
SETTLED = 124
"""Frames of LEFT_PAD tokens: 255 mels end before the recording begins, they make 127 frames, and these make 31 whole
tokens."""


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    """Run each test without gradients."""
    with torch.no_grad():
        yield


def chunk(tokens: int, seed: int = 0, left_pad: int = LEFT_PAD) -> Any:
    """Return [samples]: the silence, then noise of this many tokens."""
    noise = np.random.default_rng(seed).standard_normal(tokens * TOKEN).astype(np.float32) * 0.1
    return torch.from_numpy(np.concatenate([np.zeros(left_pad * TOKEN, np.float32), noise]))


@pytest.mark.parametrize(("tokens", "frames"), [(0, 0), (1, 0), (2, 4), (3, 8), (32, SETTLED)])
def test_settled_frames(tokens: int, frames: int) -> None:
    """The number of settled frames equals one computed by hand: the last such mel is half a window before the
    recording."""
    assert settled_frames(tokens * TOKEN, 400, 160, 4) == frames


@pytest.mark.parametrize("window", [20, SETTLED - 1, SETTLED, SETTLED + 1, SETTLED + 4, 200, 750])
def test_shared_silence_equals_the_full_encoding(window: int) -> None:
    """The shortcut gives the full encoding's rows, for chunks from the silence alone to more than a window after it.

    The chunks are encoded each alone and all together.
    """
    whole, short = Encoder(*tower(window)), Encoder(*tower(window), LEFT_PAD)
    audio = [chunk(tokens, tokens) for tokens in (0, 1, 18, 19, 50, 156, 157)]
    expected = whole(audio)
    assert [len(rows) for rows in expected] == [len(each) // TOKEN for each in audio]
    for found in (short(audio), [short([each])[0] for each in audio]):
        for rows, others in zip(found, expected, strict=True):
            torch.testing.assert_close(rows, others, atol=1e-5, rtol=0)


@pytest.mark.parametrize("left_pad", [0, 1, 2, 3, 31, 33])
def test_any_number_of_silent_tokens(left_pad: int) -> None:
    """The shortcut holds for any number of tokens of silence, also for too few to settle a frame."""
    audio = [chunk(5, 1, left_pad), chunk(40, 2, left_pad)]
    for rows, others in zip(Encoder(*tower(30), left_pad)(audio), Encoder(*tower(30))(audio), strict=True):
        torch.testing.assert_close(rows, others, atol=1e-5, rtol=0)


def test_chunk_with_another_beginning_is_encoded_in_full() -> None:
    """A chunk that begins differently is encoded in full, and does not disturb the chunks beside it.

    Before the recording, one sample at either end is not zero or is NaN; or the recording has no silence, or is shorter
    than it.
    """
    parts = tower(100)
    whole, short = Encoder(*parts), Encoder(*parts, LEFT_PAD)
    audio = [chunk(20, i) for i in range(4)]
    audio[0][0] = audio[1][LEFT_PAD * TOKEN - 1] = 1e-30
    audio += [chunk(40, 5, left_pad=0), chunk(3, 6, left_pad=0), torch.zeros(31 * TOKEN)]
    expected = whole(audio)
    products = [layer.self_attn.qkv_proj for layer in parts[0].whisper_encoder.layers]
    for product in products:
        product.rows = 0
    found = short(audio)
    frames = [len(each) // 320 for each in audio]
    assert [product.rows for product in products] == [sum(frames) - 2 * SETTLED] * LAYERS
    for rows, others in zip(found, expected, strict=True):
        torch.testing.assert_close(rows, others, atol=1e-5, rtol=0)
    odd = chunk(1)
    odd[5] = float("nan")
    assert not short._silence.begins(odd)


def test_audio_on_a_device_is_not_checked_for_silence() -> None:
    """Audio on a device is not checked for silence, because the check would wait for the device."""
    silence = Encoder(*tower(100), LEFT_PAD)._silence
    assert silence.begins(torch.zeros(LEFT_PAD * TOKEN))
    assert not silence.begins(torch.zeros(LEFT_PAD * TOKEN, device="meta"))


def _rotated_and_laid_out(how: Any, layout: Packed, queries: int, keys: int) -> tuple[Any, Any]:
    """Return queries, and keys and values in their layout, of two heads and more of 16. Unwritten numbers are NaN."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(layout.lengths), queries + 2 * keys, generator=generator)
    pads, angles = torch.randn(2, layout.known, keys, generator=generator), torch.rand(64, 8, generator=generator)
    kv, before = qkv.new_full((2, sum(layout.key_lengths), keys), float("nan")), qkv.clone()
    how(qkv, kv, pads, torch.cat((angles.cos(), angles.sin()), dim=1), layout, 16)
    assert torch.equal(qkv[:, queries:], before[:, queries:])
    return qkv[:, :queries], kv


@pytest.mark.parametrize("known", [0, 3])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (96, 32)])
def test_rotary_kernel_equals_pytorch(known: int, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, run by Triton's interpreter if Triton is installed, equals the PyTorch version, which test_plugin.py
    compares with transformers."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from voxbatch.vllm.plugin import rotary_kernel

    layout = pack([4, 1, 7], CPU, known)
    for found, expected in zip(
        _rotated_and_laid_out(rotary_kernel.rotate_and_lay_out, layout, queries, keys),
        _rotated_and_laid_out(rotate_and_lay_out, layout, queries, keys),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
