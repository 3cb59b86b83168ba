"""Python packages that imitate a machine with GPUs, vLLM and PyTorch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from voxbatch.vllm.engine.model import DEFAULT_MODEL, DEFAULT_PARAMS

NVML = """
class NVMLError(Exception): ...
class Memory: total, free, reserved = {total}, {total}, 640_000_000
nvmlMemory_v2 = 2
def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlDeviceGetCount(): return {cards}
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle, version=1): return Memory
def nvmlDeviceGetCudaComputeCapability(handle): return 8, 9
def nvmlDeviceGetName(handle): return "NVIDIA L4"
def nvmlSystemGetDriverVersion(): return {driver!r}
def nvmlSystemGetCudaDriverVersion(): return {cuda}
"""
TORCH = """
import time
from torch import version
FAULT = {fault!r}
class cuda:
    def is_available(): return not FAULT
    def device_count(): return 0 if FAULT else {cards}
def zeros(size, device):
    time.sleep({hang})
    if FAULT:
        raise RuntimeError(FAULT)
"""
ENTRY_POINTS = "[vllm.general_plugins]\nvoxbatch = voxbatch.vllm.plugin:register\n"


def package(folder: Path, name: str, release: str, **files: str) -> None:
    """Write a distribution and its module of the same name."""
    info = folder / f"{name}-{release}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    for file, text in files.items():
        path = folder / name / f"{file}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def gpu_machine(
    folder: Path,
    *,
    vllm: str | None = "0.32.0",
    transformers: str = "5.19.0",
    total_bytes: int = 24_152_899_584,
    cards: int = 2,
    driver: str = "580.95.05",
    cuda: int = 13000,
    torch_cuda: str | None = "13.0",
    fault: str = "",
    hang: float = 0,
) -> Path:
    """Write packages for the path: a fake NVML, a PyTorch, an empty vLLM and transformers, and voxbatch's entry point.

    Args:
        vllm: the version of vLLM; None for a machine without it.
        transformers: its version.
        total_bytes: the memory of each GPU.
        cuda: the CUDA version of the driver in NVML's form, 12020 for 12.2.
        torch_cuda: the CUDA version for which PyTorch was built.
        fault: the reason for which PyTorch cannot use a GPU.
        hang: seconds until PyTorch fails or succeeds.
    """
    for name, release in (("vllm", vllm), ("transformers", transformers)):
        if release is not None:
            package(folder, name, release, __init__="")
    version = f"from typing import Optional\n__version__ = '2.13.0'\ncuda: Optional[str] = {torch_cuda!r}\n"
    package(folder, "torch", "2.13.0", __init__=TORCH.format(fault=fault, cards=cards, hang=hang), version=version)
    package(folder, "voxbatch", "0")
    (folder / "voxbatch-0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "pynvml.py").write_text(NVML.format(cards=cards, driver=driver, cuda=cuda, total=total_bytes))
    return folder


def small_files(folder: Path) -> None:
    """Write Voxtral Realtime's configuration and the settings of its tokenizer, without the weights."""
    folder.mkdir(parents=True)
    audio = {"audio_encoding_args": {"transcription_format": "streaming"}}
    encoder = {**DEFAULT_PARAMS["multimodal"]["whisper_model_args"]["encoder_args"], **audio}
    (folder / "params.json").write_text(
        json.dumps({**DEFAULT_PARAMS, "multimodal": {"whisper_model_args": {"encoder_args": encoder}}})
    )
    settings = {"transcription_delay_ms": 480, "frame_rate": 12.5, "streaming_n_left_pad_tokens": 32}
    (folder / "tekken.json").write_text(json.dumps({"audio": {**settings, "sampling_rate": 16_000}}))


def hub_cache(folder: Path) -> dict[str, str]:
    """Return an environment in which the hub is offline and its cache contains the small files of the default model."""
    repository = folder / "hub" / f"models--{DEFAULT_MODEL.replace('/', '--')}"
    small_files(repository / "snapshots" / "0")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0")
    return {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}


def parakeet_folder(folder: Path, num_bytes: int = 2_510_000_000) -> str:
    """Write a Parakeet TDT in Hugging Face's format, whose weights are a hole of a file."""
    folder.mkdir(parents=True)
    config = {"model_type": "parakeet_tdt", "encoder_config": {"num_mel_bins": 128}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text('{"feature_size": 128}')
    (folder / "model.safetensors").touch()
    os.truncate(folder / "model.safetensors", num_bytes)
    return str(folder)


def path(*folders: Path) -> str:
    """Return a PYTHONPATH with this checkout last."""
    return os.pathsep.join(map(str, [*folders, Path(__file__).parents[2]]))


def model_folder(folder: Path, gigabytes: float = 8.9) -> str:
    """Write a model of this size, whose weights are a hole of a file."""
    small_files(folder)
    count = int(gigabytes * 1e9)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [count // 2], "data_offsets": [0, count]}}).encode()
    with (folder / "consolidated.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count)
    return str(folder)
