"""Reproducible runs: the result of a chunk does not depend on its company, and products are checked at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import Linear, Module, Parameter, Sequential, functional  # noqa: E402
from tower import tower  # noqa: E402

from voxbatch.vllm.plugin.encoder import Encoder  # noqa: E402
from voxbatch.vllm.plugin.patches import flash_attn_varlen_func  # noqa: E402
from voxbatch.vllm.plugin.patches.linear_batch_invariant import wrap  # noqa: E402
from voxbatch.vllm.plugin.product_check import first_dependent_product  # noqa: E402

pytest_plugins = ["engine_runs"]
TOKEN = 1_280


class Steady(Linear):  # type: ignore[misc]  # torch may be missing
    """A linear layer that computes each row for itself, in float64."""

    def forward(self, x: Any) -> Any:
        """Return the product."""
        return (x.double()[:, None, :] * self.weight.double()).sum(dim=-1).to(x.dtype)


class Hasty(Steady):
    """A linear layer that splits the sums of up to 16 rows in two."""

    def forward(self, x: Any) -> Any:
        """Return the product."""
        if len(x) > 16:
            return super().forward(x)
        halves = zip(x.chunk(2, dim=1), self.weight.chunk(2, dim=1), strict=True)
        return sum(functional.linear(part.bfloat16(), matrix.bfloat16()) for part, matrix in halves).to(x.dtype)


def test_a_product_that_depends_on_the_rows_is_named() -> None:
    """The check names the first number of rows and the shape, and nothing if each row is computed for itself."""
    torch.manual_seed(0)
    assert first_dependent_product(Sequential(Steady(32, 8), Steady(8, 8))) == ""
    assert first_dependent_product(Sequential(Steady(32, 8), Hasty(64, 8))) == (
        "1 of 2048 rows times a matrix of 64 x 8"
    )


def test_products_in_8_bits_are_checked_too() -> None:
    """vLLM stores such a weight transposed, and multiplies it with rows of 16 bits."""

    class EightBits(Module):  # type: ignore[misc]  # torch may be missing
        """vLLM's linear layer with a weight in 8 bits."""

        def __init__(self, split: bool) -> None:
            super().__init__()
            self.weight = Parameter(torch.randn(64, 8).to(torch.float8_e4m3fn), requires_grad=False)
            self.orig_dtype, self.bias, self.quant_method = torch.bfloat16, None, self
            self.matrix = (Hasty if split else Steady)(64, 8, bias=False, dtype=torch.bfloat16)

        def apply(self, layer: Any, x: Any, bias: Any) -> Any:
            """Return the product."""
            return self.matrix(x)

    torch.manual_seed(0)
    assert first_dependent_product(EightBits(split=False)) == ""
    assert first_dependent_product(EightBits(split=True)) == "1 of 2048 rows times a matrix of 64 x 8"


def test_only_bfloat16_is_multiplied_by_cublas() -> None:
    """Other number formats keep vLLM's function."""
    vllms, x = [], torch.ones(2, 3)
    multiply = wrap(lambda *arguments: vllms.append(arguments))
    multiply(x, torch.ones(4, 3), None)
    assert len(vllms) == 1
    assert multiply(x.bfloat16(), torch.ones(4, 3).bfloat16(), torch.ones(4).bfloat16()).eq(4).all()
    assert len(vllms) == 1


@pytest.mark.parametrize(("size", "lengths"), [(64, (65, 65, 90)), (128, (1, 64, 90))])
def test_attention_takes_one_kernel(size: int, lengths: tuple[int, ...]) -> None:
    """FlashAttention gets one split from callers that name none, and the number of those that name one. With small
    heads a query counts as longer than 64 positions."""
    attend = flash_attn_varlen_func.wrap(lambda q, **named: (named["max_seqlen_q"], named["num_splits"]))
    query = torch.zeros(1, 2, size)
    assert tuple(attend(query, max_seqlen_q=length) for length in (1, 64, 90)) == tuple((n, 1) for n in lengths)
    assert attend(q=query, max_seqlen_q=90, num_splits=4) == (90, 4)


def test_convolutions_see_one_chunk_at_a_time() -> None:
    """The convolved frames are the same bits for a chunk alone and in a group, and rows those of any other encoder."""
    with torch.no_grad():
        audio = [torch.randn(TOKEN * tokens) * 0.1 for tokens in (7, 40, 21)]
        frames = [len(samples) // TOKEN * 4 for samples in audio]
        encoder, usual = Encoder(*tower(20), reproducible=True), Encoder(*tower(20))
        alone = [encoder._convolve([samples], [count], 0) for samples, count in zip(audio, frames, strict=True)]
        assert torch.equal(encoder._convolve(audio, frames, 0), torch.cat(alone))
        for rows, others in zip(encoder(audio), usual(audio), strict=True):
            torch.testing.assert_close(rows, others, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_results_do_not_depend_on_company(realtime: Path, tmp_path: Path) -> None:
    """Chunks have the same tokens, texts and words in another order, in other company and with other limits.

    On a CPU oneDNN chooses its kernels by the number of rows, so that confidences agree in four digits only.
    """
    from engine_runs import FLOAT32, streamed
    from sounds import chunks

    waveforms = chunks(7, 0.3, 6.0)
    few = dict([*waveforms.items()][::-2])
    options = (*FLOAT32, "prefill_encoder=true", "reproducible=true")
    all_of_them = streamed(realtime, waveforms, tmp_path, *options, "max_num_seqs=5")
    some = streamed(realtime, few, tmp_path, *options, "max_num_seqs=2")
    assert len({*all_of_them["texts"].values()}) == len(waveforms)
    for name in few:
        assert some["tokens"][name] == all_of_them["tokens"][name]
        assert some["texts"][name] == all_of_them["texts"][name]
        assert [word for word, _ in some["words"][name]] == [word for word, _ in all_of_them["words"][name]]
        confidences = [confidence for _, confidence in all_of_them["words"][name]]
        assert [confidence for _, confidence in some["words"][name]] == pytest.approx(confidences, abs=1e-4)
