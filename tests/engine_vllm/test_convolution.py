"""The encoder's convolutions as matrix products equal those of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.nn import Conv1d, functional  # noqa: E402
from tower import DIM, MELS, tower  # noqa: E402

from voxbatch.vllm_plugin.convolution import Causal, Turned  # noqa: E402
from voxbatch.vllm_plugin.encoder import BEHIND, Encoder  # noqa: E402

AS_IN_FLOAT32 = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    """Run each test without gradients."""
    with torch.no_grad():
        yield


@pytest.fixture
def nothing_is_left_as_found() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that a missing write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def by_pytorch(module: Any, frames: Any) -> Any:
    """Convolve [chunks, frames, channels] to [chunks, frames / stride, out] with PyTorch."""
    padded = functional.pad(frames.transpose(1, 2), (module.kernel_size[0] - module.stride[0], 0))
    return functional.conv1d(padded, module.weight, module.bias, module.stride).transpose(1, 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.sampled_from([(3, 1), (3, 2), (1, 1), (2, 2), (5, 2), (4, 1)]))
def test_a_causal_convolution(chunks: int, count: int, shape: tuple[int, int]) -> None:
    """The product equals PyTorch's convolution for any kernel and stride, also for chunks of fewer frames than a
    window."""
    kernel, stride = shape
    torch.manual_seed(count)
    module, frames = Conv1d(5, 7, kernel, stride), torch.randn(chunks, count * stride, 5)
    torch.testing.assert_close(Causal(module)(frames), by_pytorch(module, frames), **AS_IN_FLOAT32)


@pytest.mark.usefixtures("nothing_is_left_as_found")
def test_chunks_do_not_hear_each_other() -> None:
    """NaN stays within its chunk, and every place of every window is written."""
    first, second = Causal(Conv1d(MELS, DIM, 3)), Causal(Conv1d(DIM, DIM, 3, 2))
    mels = torch.randn(3, 8, MELS)
    expected = second(first(mels))
    assert expected.shape == (3, 4, DIM)
    assert expected.isfinite().all()
    mels[1] = float("nan")
    found = second(first(mels))
    torch.testing.assert_close(found[::2], expected[::2], **AS_IN_FLOAT32)
    assert found[1].isnan().all()


def test_in_bfloat16() -> None:
    """The product in bfloat16 is as close to the float32 result as PyTorch's convolution: each rounds once, after the
    sum."""
    torch.manual_seed(0)
    first, second = Conv1d(128, 320, 3).bfloat16(), Conv1d(320, 320, 3, 2).bfloat16()
    mels = torch.randn(4, 256, 128).bfloat16()

    def both(one: Any, other: Any, frames: Any) -> Any:
        return functional.gelu(other(functional.gelu(one(frames))))

    def theirs(frames: Any) -> Any:
        return both(partial(by_pytorch, first), partial(by_pytorch, second), frames)

    found, by_theirs = both(Causal(first), Causal(second), mels), theirs(mels)
    first.float(), second.float()
    exact = theirs(mels.float())
    ours, others = (each.float() - exact for each in (found, by_theirs))
    assert found.dtype == torch.bfloat16
    assert ours.norm() < 1.05 * others.norm()
    assert ours.abs().max() < 1.5 * others.abs().max()


@pytest.mark.parametrize("way", [Turned, Causal])
def test_the_encoder_goes_through_its_own_convolutions(way: Any) -> None:
    """The encoder's convolved frames equal those that its modules make of the same spectrogram, with either
    implementation.

    The chunks have different lengths and lie end to end. The frames begin at the first frame and at a later one.
    """
    whole, adapter = tower(100)
    encoder, layers = Encoder(whole, adapter), whole.whisper_encoder
    encoder._conv1, encoder._conv2 = way(layers.conv1), way(layers.conv2)
    audio = [torch.randn(1_280 * tokens) * 0.1 for tokens in (20, 3, 17)]
    mels = encoder._spectrogram(audio).transpose(1, 2)
    heard = functional.gelu(layers.conv2(functional.gelu(layers.conv1(mels)))).transpose(1, 2)
    for first in (0, BEHIND + 2):
        counts = [len(each) // 320 - first for each in audio]
        expected = torch.cat([chunk[first:][:count] for chunk, count in zip(heard, counts, strict=True)])
        torch.testing.assert_close(encoder._convolved(audio, counts, first), expected, atol=1e-5, rtol=1e-5)
