"""Tests for `voxbatch doctor` as the command of a GPU job, on machines with stubs of NVIDIA's libraries.

The stubs are compiled here. They are loaded by the real code: by NVML's Python module, and by a PyTorch that asks
libcuda.so.1 for its version as the real one does. The image's entry point decides on the compatibility libraries, which
are another such stub.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import machines
import pytest
from conftest import ROOT
from machines import model_folder

CUDA = """
int cuInit(unsigned flags) {{ return 0; }}
int cuDriverGetVersion(int *version) {{ *version = {cuda}; return 0; }}
"""
NVML = """
#include <dlfcn.h>
#include <string.h>
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "NVIDIA L4", length); return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "535.216.03", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m) { m->total = m->free = 24152899584ULL; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *m) { m->reserved = 640000000ULL; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 8; *minor = 9; return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) {
    int (*ask)(int *) = (int (*)(int *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDriverGetVersion");
    return ask(version);
}
"""
TORCH = """
import ctypes
from torch import version
def driver():
    found = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found)) == 0
    return found.value
class cuda:
    def is_available(): return driver() >= 13000
    def device_count(): return int(driver() >= 13000)
def zeros(size, device):
    if driver() < 13000:  # the message is PyTorch's
        raise RuntimeError(f"The NVIDIA driver on your system is too old (found version {driver()}).")
"""
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Tue Oct 22 19:06:45 UTC 2024\n"
NVML_MODULE = ROOT / ".venv-vllm" / "lib"

pytestmark = pytest.mark.slow


def library(path: Path, text: str) -> None:
    """Compile a shared library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", path, source, "-ldl"], check=True)


Job = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a function: job(compat=13000) runs the entry point with the default command of a GPU job in an image with
    vLLM and these compatibility libraries, on a machine with the driver 535 of some L4s.
    """
    nvml = next(NVML_MODULE.glob("python3*/site-packages/vllm/third_party/pynvml.py"), None)
    if nvml is None or shutil.which("gcc") is None:
        pytest.skip("gcc and .venv-vllm, which has NVML's Python module, are needed: make test sets up the second")
    packages = machines.gpu_machine(tmp_path / "packages")
    (packages / "torch" / "__init__.py").write_text(TORCH)
    shutil.copy(nvml, packages / "pynvml.py")
    model = model_folder(tmp_path / "model")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    script = tmp_path / "entrypoint.sh"
    text = (ROOT / "jobs" / "image" / "entrypoint.sh").read_text()
    for place in ("/proc/driver/nvidia", "/dev/nvidiactl", "/usr/local/cuda/compat"):
        text = text.replace(place, f"{tmp_path}{place}")
    script.write_text(text)
    script.chmod(0o755)

    def run(compat: int = 0) -> subprocess.CompletedProcess[str]:
        library(tmp_path / "usr/local/nvidia/lib64/libcuda.so.1", CUDA.format(cuda=12020))
        library(tmp_path / "usr/local/nvidia/lib64/libnvidia-ml.so.1", NVML)
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/nvidiactl").touch()
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(VERSION)
        if compat:
            library(tmp_path / "usr/local/cuda/compat/libcuda.so.1", CUDA.format(cuda=compat))
        env = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "CUDA_VERSION": "13.0.2",
            "PYTHONPATH": machines.path(packages), "LD_LIBRARY_PATH": str(tmp_path / "usr/local/nvidia/lib64"),
            "VOXBATCH_ENGINE": "vllm", "VOXBATCH_MODEL": model, "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        return subprocess.run([script, "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_old_driver_without_compatibility_libraries_fails(job: Job) -> None:
    """With the driver 535 of some L4s, doctor fails with the reason, and says what to do."""
    done = job()
    assert done.returncode == 1
    assert (
        "driver 535.216.03 runs CUDA 12.2, and this PyTorch is built for CUDA 13.0 (RuntimeError: The " in done.stdout
    )
    assert "(found version 12020).): install driver 580 or later" in done.stdout
    assert done.stdout.splitlines()[-1] == ("not ready: vllm is installed and cannot start here: see cuda above")


def test_old_driver_with_compatibility_libraries_is_ready(job: Job) -> None:
    """The entry point loads the libraries of the image for such a driver."""
    done = job(compat=13000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "driver 535.216.03 runs CUDA 13.0, and PyTorch for CUDA 13.0 allocates memory on each GPU" in done.stdout
