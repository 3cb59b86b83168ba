"""Which GPUs are visible: CUDA_VISIBLE_DEVICES as CUDA itself reads it."""

from __future__ import annotations

import pytest

from voxbatch.engines import has_gpu
from voxbatch.engines.vllm import gpu


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("devices", [None, "", "0", "GPU-8932f937"])
def test_none_where_there_is_no_driver(devices: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the variable says, and without an exception."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert gpu.cards() == []
    assert gpu.driver() is None


@pytest.mark.parametrize(
    ("given", "visible"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("1", ["1"]),
        ("2,0", ["2", "0"]),
        (" 1 , 2 ", ["1", "2"]),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("0,3,1", ["0"]),
        ("0,,1", ["0"]),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"]),
        ("MIG-1,0", ["MIG-1", "0"]),
    ],
)
def test_the_variable(given: str | None, visible: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, all; with it, those it names in its order, up to the first that there is not."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert gpu._visible(3) == visible
