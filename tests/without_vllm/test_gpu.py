"""The visible GPUs follow CUDA_VISIBLE_DEVICES, read as CUDA itself reads it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from voxbatch.engines import gpu, has_gpu
from voxbatch.vllm.engine import VllmEngine


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("devices", [None, "", "0", "GPU-8932f937"])
def test_no_gpus_without_a_driver(devices: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no GPUs without a driver, whatever the variable says, and no exception."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert gpu.visible_gpus() == []
    assert gpu.driver() is None


def test_used_bytes_exclude_the_drivers_own() -> None:
    """Memory in use is the total without the free memory and the driver's own."""
    assert gpu.GpuInfo("0", "H200", 150, 40, 10).used_bytes == 100
    assert gpu.GpuInfo("0", "H200", 150, 145, 10).used_bytes == 0


def test_gpu_bytes_is_that_of_the_fullest_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first visible GPUs count, because the engine takes these; the result is None on a CPU."""
    monkeypatch.setattr(
        gpu, "visible_gpus", lambda: [gpu.GpuInfo(str(i), "H200", 150, free) for i, free in enumerate((90, 50, 1))]
    )
    engine = SimpleNamespace(_on_cpu=False, _settings=SimpleNamespace(tensor_parallel_size=2))
    assert VllmEngine.gpu_bytes(engine) == 100  # type: ignore[arg-type]
    engine._on_cpu = True
    assert VllmEngine.gpu_bytes(engine) is None  # type: ignore[arg-type]


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
def test_cuda_visible_devices_selects_gpus(
    given: str | None, visible: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All GPUs are visible without the variable; with it, those that it names, in its order, up to the first unknown
    one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert gpu._visible(3) == visible
