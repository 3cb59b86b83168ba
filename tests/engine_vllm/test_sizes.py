"""Tests that sizes in a file for vLLM mean what vLLM's own parser makes of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from voxbatch.vllm.engine.config_keys import KEYS

vllm = pytest.importorskip("vllm.utils.argparse_utils")


def size(read: Callable[[str], int | str], text: str) -> int:
    """Return the size; 0 if it is refused."""
    try:
        return max(0, int(read(text)))
    except (ValueError, argparse.ArgumentTypeError):
        return 0


@pytest.mark.parametrize("unit", ["", *"kKmMgGtTx"])
@pytest.mark.parametrize("number", ["1", "2", "007", "0.5", "25.6", "1.", ".5", "0", "-1", "1e3", "2_048", ""])
def test_sizes_are_those_of_vllm(number: str, unit: str) -> None:
    """A size is read as vLLM reads it, and refused where vLLM refuses it, or where it is less than 1."""
    for name in ("max_model_len", "max_num_batched_tokens"):
        assert size(KEYS[name].read, number + unit) == size(vllm.human_readable_int, number + unit)
